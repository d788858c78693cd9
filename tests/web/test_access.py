"""A server that asks for a token: the page carries it, and gives it away to nobody."""
import time

import pytest
from asking import state, why
from conftest import Page
from serving import Server

SECRET = "a-secret-of-the-tests"


@pytest.fixture(scope="module")
def guarded():
    running = Server("--token", SECRET)
    yield running
    running.close()


@pytest.fixture
def locked(driver, guarded):
    page = Page(driver, guarded.url)
    driver.get("about:blank")
    yield page
    driver.get(guarded.url)
    page.js("sessionStorage.clear()")
    driver.get("about:blank")
    time.sleep(0.3)
    for log in (
        "browser",
        "performance",
    ):  # refused requests are logged by the browser itself; the next test has another server
        driver.get_log(log)


def addresses(page):
    return [
        entry["message"]
        for entry in page.driver.get_log("performance")
        if "Network.requestWillBeSent\"" in entry["message"]
    ]


@pytest.mark.parametrize("carried", ["/?token=" + SECRET + why(), "/" + why(token=SECRET)])
def test_the_address_brings_the_token_and_forgets_it(locked, carried):
    locked.driver.get(locked.url + carried)
    locked.settled()
    assert locked.all("#graph .edge")
    assert SECRET not in locked.js("return location.href") and "prompt=" in locked.js(
        "return location.hash"
    )
    locked.one(".sentences")  # the last that is asked for the first address
    # The tab keeps it: a reload needs no other.
    addresses(locked)
    locked.driver.refresh()
    locked.settled()
    assert locked.all("#graph .edge")
    assert not any(
        f"token={SECRET}" in message for message in addresses(locked)
    ), "never in an address again"
    locked.click("#copy-link")
    locked.wait(lambda: locked.text("#copy-link") == "Copied" or locked.all('[aria-label="Link"]'))
    assert not locked.all('[aria-label="Link"]') or SECRET not in locked.one(
        '[aria-label="Link"]'
    ).get_attribute("value")


def test_without_one_the_page_asks(locked):
    locked.driver.get(locked.url + "/" + state(prompt="Mary and John"))
    locked.one("#token").send_keys("a-wrong-one")
    assert not locked.all(".chips, .start")
    locked.click("#token-send")
    locked.wait(lambda: "not it" in locked.text(".token-prompt"))
    locked.shot("token")
    locked.type("#token", SECRET)
    locked.click("#token-send")
    locked.settled()
    assert not locked.all("#token") and locked.all("#graph")
