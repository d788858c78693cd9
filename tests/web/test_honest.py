"""What the page must not get wrong: each of these once misled."""
import re
import threading
import time

import pytest
from asking import ANNA, MARY, state, why
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from serving import Server


def measured(page):
    """(credit, measured change) of the last test."""
    values = [text.replace("−", "-") for text in page.texts(".measured .value")]
    return [float(value) for value in values]


def test_a_head_that_carries_the_answer_is_seen_to_matter_when_it_is_taken_out(page):
    page.open(why(node="A5.H3@13", other=ANNA))
    page.click("#part-test")
    page.click("#run-test")
    credit, change = page.wait(lambda: measured(page))
    assert credit > 3 and change < -3
    assert page.texts(".before-after .chosen td")[0] > page.texts(".before-after .chosen td")[1]
    for how in ("mean", "resample"):
        page.choose("#ablate", how)
        page.click("#run-test")
        page.wait(
            lambda: ("its mean" if how == "mean" else "second prompt") in page.text(".measured")
        )
        assert measured(page)[1] < -3
    # Twice as much of it is steering, not ablation.
    page.choose("#ablate", "zero")
    page.slide("#scale", 2)
    page.click("#run-test")
    page.wait(lambda: "2 times" in page.text(".measured"))
    assert measured(page)[1] > 1
    # The old cut stays, under its own name.
    page.choose("#ablate", "hide")
    page.click("#run-test")
    page.wait(lambda: len(measured(page)) == 3)
    assert abs(measured(page)[1]) < 1, "later heads hardly read it"
    assert "what it writes straight to the output stays" in page.text(".test")
    page.shot("test-it")


def test_several_pins_are_taken_out_at_once_and_at_every_position(page):
    page.open(why(node="A5.H3@13", pins="Group 1:A5.H3@13,A5.H4@13,MLP0@1"))
    page.click("#part-test")
    page.click("#run-test")
    alone = page.wait(lambda: measured(page))[-1]
    page.click("#test-pins")
    page.click("#run-test")
    together = page.wait(lambda: len(measured(page)) == 1 and measured(page))[0]
    assert together < alone
    page.click("#everywhere")
    page.click("#run-test")
    page.wait(lambda: measured(page) and measured(page)[0] != together)


def occupy(server):
    """Two long prompts, one at work and one waiting."""
    threads = [
        threading.Thread(
            target=lambda n=n: server.post(
                "trace", {"prompt": f"{n} {time.time()} " + "word " * 380, "top_paths": 10}
            )
        )
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    return threads


def carried(page):
    return page.text("#carried").replace("−", "-")


def test_the_net_share_is_said_first_and_mass_is_defined_where_it_is_used(page):
    page.open(why())
    said = carried(page)
    assert re.match(r"12 routes carry \d+% of the net credit", said)
    assert said.index("net credit") < said.index("gross mass")
    page.js("[...document.querySelectorAll('#carried .mark')].at(-1).click()")
    page.wait(lambda: "without their signs" in page.text(".explanation"))
    # Recomputed from the routes themselves.
    credits = [float(value.replace("−", "-")) for value in page.texts(".paths .value")]
    net, total = map(float, re.search(r"\(([-\d.]+) of ([-\d.]+)\)", said).groups())
    assert len(credits) == 12 and abs(sum(credits) - net) < 0.01
    assert int(re.search(r"(\d+)%", said).group(1)) == round(100 * net / total)


def test_every_share_is_of_the_same_whole(page):
    page.open(why(routes=500))
    assert carried(page).startswith("500 routes carry")
    gross = float(re.search(r"and ([\d.]+)% of the gross", carried(page)).group(1))
    edges = len(page.all("#graph .edge"))
    assert edges > 100
    page.click('[data-sign="negative"]')
    page.wait(lambda: "pass the filters" in carried(page) and not page.all("#graph .edge.positive"))
    shares = [float(x) for x in re.findall(r"([\d.]+)% of (?:the gross mass|it)", carried(page))]
    assert len(shares) == 2 and shares[0] <= shares[1] <= 100 and gross > 0
    page.click("#clear-filters")
    page.wait(lambda: len(page.all("#graph .edge")) == edges)
    page.slide("#routes", 0)
    page.wait(lambda: carried(page).startswith("5 routes carry"))


def test_an_old_answer_loses_its_colours_while_the_prompt_is_changed(page):
    page.open(why())
    assert not page.all(".why.stale")
    page.click("#edit")
    page.one("#prompt").send_keys(" the")
    page.wait(lambda: page.all(".why.stale"))
    assert "grayscale" in page.js("return getComputedStyle(document.querySelector('.why')).filter")
    assert "greyed out" in page.text(".note")
    assert not page.js(
        "return [...document.querySelectorAll('.chips .chip')].some((e) => e.style.background)"
    )
    page.one("#prompt").send_keys(Keys.ESCAPE)
    page.wait(lambda: not page.all(".why.stale"))


def test_an_old_answer_loses_its_colours_after_an_error(page):
    page.open(why())
    page.js("location.hash = arguments[0]", why(root="A5.H3@13", **{"o.beta": -1}))
    page.wait(lambda: page.all(".problem") and page.all(".why.stale"))
    page.driver.get_log("browser")  # the refused request itself is logged by the browser


def test_a_paste_of_thousands_of_words_shows_one_number(page):
    page.open()
    page.js(
        "const e = document.querySelector('#prompt'); e.value = 'word '.repeat(3000);"
        " e.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.wait(lambda: "more than the limit of 512" in page.text(".problem"))
    assert not page.all(".count")
    page.driver.get_log("browser")


def test_after_an_outage_the_same_question_is_asked_again(page):
    server = Server()
    again = None
    page.driver.get("about:blank")
    page.driver.get_log("performance")  # what the test before asked of its server may come late
    page.url = server.url
    try:
        page.open(why())
        server.stop()
        page.js("location.hash = arguments[0]", why(root="A5.H3@13"))
        page.wait(
            lambda: "does not answer" in page.text(".problem")
            and page.all(".retry")
            and page.all(".why.stale")
        )
        page.click(".retry")  # nobody there: still a problem, still a way out
        page.wait(lambda: "does not answer" in page.text(".problem"))
        again = Server("--port", str(server.port))
        page.js("document.querySelector('.retry')?.click()")  # unless it was tried again by itself
        page.wait(
            lambda: page.root() == "A5.H3@13"
            and not page.all(".problem")
            and not page.all(".why.stale")
        )
    finally:
        page.driver.get("about:blank")
        for running in (again, server):
            if running:
                running.close()
        page.driver.get_log("browser")  # refused connections are logged by the browser


@pytest.mark.parametrize(
    "options, status",
    [
        (("--time-limit", "1"), "longer than the limit"),
        (("--max-waiting", "1"), "too many requests"),
    ],
)
def test_limits_of_the_server_can_be_tried_again(page, options, status):
    server = Server(*options)
    page.url = server.url
    busy = None
    try:
        if "--max-waiting" in options:
            busy = occupy(server)
        page.driver.get(
            f"{server.url}/"
            f"{state(prompt=MARY + ' her ' * 150 if '--time-limit' in options else MARY)}"
        )
        page.wait(lambda: status in page.text(".problem") and page.all(".retry"), seconds=40)
    finally:
        page.driver.get("about:blank")
        server.close()
        for thread in busy or []:
            thread.join()
        page.driver.get_log("browser")


def test_both_spellings_of_a_contrast_are_listed_with_their_probabilities(page):
    page.open(state(prompt=MARY))
    field = page.one("#versus")
    field.click()
    field.send_keys("John")
    page.wait(lambda: page.texts(".suggestions .word")[:2] == ["·John", "John"])
    assert all("%" in text for text in page.texts(".suggestions li")[:2])
    field.send_keys(Keys.ENTER)
    page.wait(lambda: page.one("#versus").get_attribute("value") == "·John")
    page.wait(lambda: "·John" in page.text("#graph .node.target"))
    page.shot("spellings")


def test_a_new_prompt_has_its_own_target_and_no_contrast(page):
    page.open(why())
    page.click("#edit")
    page.type("#prompt", "The capital of France is")
    page.one("#prompt").send_keys(Keys.ENTER)
    page.wait(lambda: "France" in page.hash())
    page.settled()
    assert "target" not in page.hash() and "versus" not in page.hash()
    assert (
        "Mary" not in page.one("#target").get_attribute("value")
        and page.one("#versus").get_attribute("value") == "any other"
    )


def test_another_model_is_asked_the_same(page):
    page.open(why())
    page.choose("#model", "pocket-neox")
    page.wait(lambda: "model=pocket-neox" in page.hash())
    page.settled()
    page.wait(lambda: page.text("#graph .node.target").startswith("·Mary vs ·John"), seconds=40)
    assert page.one("#versus").get_attribute("value") == "·John"
    page.wait(lambda: "parallel" in page.text("#model-line"))


def test_back_goes_through_the_questions(page):
    # A tab of its own: past fifty entries the browser drops those that no hand made, and the tab of
    # the other tests has them.
    others = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.open()
        page.js("document.querySelectorAll('.example')[0].click()")
        page.settled()
        page.js("document.querySelectorAll('.tabs button')[1].click()")
        page.js("document.querySelector('#tab-why').click()")
        page.click("#edit")
        page.type("#prompt", "They were all men, and each of")
        page.one("#prompt").send_keys(Keys.ENTER)
        page.wait(lambda: "them" in page.one("#target").get_attribute("value"))
        assert page.js("return document.title").startswith("Why ·them? They were all men")
        page.driver.back()
        page.wait(lambda: page.one("#target").get_attribute("value") == "·Mary")
        page.wait(
            lambda: page.js("return document.title").startswith("Why ·Mary rather than ·John?")
        )
        page.js("history.go(-3)")
        page.wait(lambda: page.all(".start .example"))
    finally:
        page.driver.close()
        page.driver.switch_to.window(others)


def test_a_question_behind_others_says_so_and_can_be_cancelled(page, server):
    page.open(state(prompt="x"))
    others = occupy(server)
    page.js("location.hash = arguments[0]", state(prompt=MARY + " a friend"))
    page.wait(lambda: re.search(r"\d questions? first", page.text(".progress")))
    page.shot("waiting")
    page.click(".progress .cancel")
    page.wait(lambda: "cancelled" in page.text(".problem"))
    for thread in others:
        thread.join()
    page.click(".retry")
    page.settled()


def test_a_long_prompt_is_prepared_with_a_progress_bar_and_can_be_cancelled(page):
    """How long that takes depends on the machine: the answers stand in for a slow one."""
    page.open(state(prompt="x"))
    page.js(
        """const ask = window.fetch; window.fetch = (path, init) => {
        const place = {state: 'running', before: 0, what: 'layers', done: 2, total: 7};
        if (path.startsWith('/api/queue'))
          return Promise.resolve(new Response(JSON.stringify(place)));
        if (path !== '/api/trace') return ask(path, init);
        return new Promise((_, fail) => init.signal.addEventListener('abort', () => {
          window.aborted = true; fail(new Error('aborted')); })); };
        location.hash = arguments[0]""",
        state(prompt=MARY),
    )
    page.wait(lambda: "preparing the prompt, layer 3 of 7" in page.text(".progress"))
    assert (
        page.js("return parseFloat(document.querySelector('.progress .track > span').style.width)")
        == 37.5
    )
    page.click(".progress .cancel")
    page.wait(lambda: page.all(".problem.quiet") and page.js("return window.aborted"))


def test_the_progress_bar_of_a_real_long_prompt_grows(page):
    page.open()
    page.js(
        "location.hash = arguments[0]",
        state(prompt="It was a long day and the men went on. " * 40 + str(time.time())),
    )
    width = (
        "return parseFloat(document.querySelector('.progress .track > span')?.style.width || '0')"
    )
    first = page.wait(lambda: page.js(width), seconds=40)
    assert re.search(r"preparing the prompt, layer \d of 8", page.text(".progress"))
    page.wait(lambda: page.js(width) > first + 10 or page.all("#graph .edge"), seconds=40)
    if page.all(".progress .cancel"):
        page.click(".progress .cancel")
        page.wait(lambda: "cancelled" in page.text(".problem"))


def test_the_focus_follows_a_reroot_and_svg_has_its_own_tabindex(page):
    page.open(why())
    assert page.all('#graph [tabindex="0"]')
    page.js("document.querySelector('#graph [data-node=\"A5.H3@13\"]').focus()")
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    page.wait(lambda: page.root() == "A5.H3@13")
    page.wait(lambda: page.js("return document.activeElement.dataset.node") == "A5.H3@13")
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.wait(lambda: not page.all(".crumbs"))
    page.wait(lambda: page.js("return document.activeElement.dataset.node") == "A5.H3@13")
