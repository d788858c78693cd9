"""A real Chromium on the real page. Never skipped: without a browser these tests fail."""
import base64
import os
import sys
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common import utils
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
from serving import Server  # noqa: E402

# Where screenshots go, for a person to look at; none are kept without it.
SHOTS = os.environ.get("UNPACK_SHOTS")


class Driver(Service):
    """The driver by its address: a bare chroot has no name for it."""

    @property
    def service_url(self):
        return f"http://127.0.0.1:{self.port}"

    def is_connectable(self):
        return utils.is_connectable(self.port, "127.0.0.1")


class Page:
    """The page as a person uses it."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        # What the page before this one, which may be another server's, still had under way is not
        # this one's.
        driver.get("about:blank")
        for kind in ("browser", "performance"):
            driver.get_log(kind)

    def open(self, state="", width=1280, height=900, dark=False):
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
        )
        self.driver.get(f"{self.url}/{state}")
        if "prompt=" in state:
            self.settled()
        else:
            self.one(".start .example")
        return self

    def wait(self, condition, seconds=20, message=""):
        return WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(
            lambda _: condition(), message
        )

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.wait(lambda: self.all(selector), message=f"{selector} is not there")[0]

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def texts(self, selector):
        return self.js(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)",
            selector,
        )

    def js(self, script, *args):
        return self.driver.execute_script(script, *args)

    def click(self, selector, kind="click", shift=False):
        self.one(selector)
        # Nodes of the graph are SVG and may lie under a scroll edge: the event is what counts.
        self.js(
            (
                "const e = document.querySelector(arguments[0]); e.dispatchEvent(new"
                " MouseEvent(arguments[1], {bubbles: true, shiftKey: arguments[2]}))"
            ),
            selector,
            kind,
            shift,
        )

    def node(self, name, kind="click", shift=False):
        self.click(f'#graph [data-node="{name}"]', kind, shift)

    def choose(self, selector, value):
        self.one(selector)
        self.js(
            (
                "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
                " e.dispatchEvent(new Event('change', {bubbles: true}))"
            ),
            selector,
            value,
        )

    def type(self, selector, text):
        field = self.one(selector)
        field.clear()
        field.send_keys(text)

    def slide(self, selector, value):
        self.one(selector)
        self.js(
            (
                "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
                " e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new"
                " Event('change', {bubbles: true}))"
            ),
            selector,
            value,
        )

    def settled(self):
        """The question in the address is answered."""
        self.wait(
            lambda: self.js(
                "return document.querySelector('.answer')?.getAttribute('aria-busy') === 'false' &&"
                " !document.querySelector('.answer.of-before')"
            )
        )

    def hash(self):
        return self.js("return decodeURIComponent(location.hash.replaceAll('+', ' '))")

    def root(self):
        return self.text(".crumbs [aria-current]")

    def shot(self, name):
        if not SHOTS:
            return
        size = self.js("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 5000), "scale": 1}
        picture = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        Path(SHOTS, f"{name}.png").write_bytes(base64.b64decode(picture["data"]))

    def problems(self):
        """Console errors, refused content and anything that was asked of another host."""
        # A connection that the browser kept open and the server closed is asked for again by the
        # page itself.
        severe = [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
            and "ERR_SOCKET_NOT_CONNECTED" not in entry["message"]
        ]
        foreign = []
        for entry in self.driver.get_log("performance"):
            if "Network.requestWillBeSent\"" not in entry["message"]:
                continue
            address = entry["message"].split('"url":"', 1)[1].split('"', 1)[0]
            if address and not address.startswith((self.url, "data:", "blob:", "about:")):
                foreign.append(address)
        return severe + foreign


@pytest.fixture(scope="session")
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture(scope="session")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def driver(downloads):
    options = Options()
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--no-first-run"
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option(
        "prefs",
        {
            "download.default_directory": str(downloads),
            "download.prompt_for_download": False,
            "profile.default_content_setting_values.automatic_downloads": 1,
        },
    )
    browser = webdriver.Chrome(service=Driver("/usr/bin/chromedriver"), options=options)
    yield browser
    browser.quit()


@pytest.fixture
def page(driver, server):
    opened = Page(driver, server.url)
    yield opened
    assert opened.problems() == []


@pytest.fixture
def downloaded(downloads):
    def get(suffix, seconds=15):
        """(name, content) of the file that came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = [file for file in downloads.iterdir() if file.suffix == suffix]
            if found and found[0].stat().st_size:
                time.sleep(0.1)
                content = found[0].read_bytes()
                found[0].unlink()
                return found[0].name, content
            time.sleep(0.05)
        raise AssertionError(f"no {suffix} file came")

    return get
