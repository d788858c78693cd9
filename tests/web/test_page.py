"""The page, driven as a person would."""
import json
import os
import time
from urllib.parse import quote

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

MARY = "Mary and John went to the store. John gave a drink to"


def state(**parts):
    return "#" + "&".join(f"{key}={quote(str(value))}" for key, value in parts.items())


def node(page, kind="head"):
    """The name of a node in the graph that can be clicked."""
    return page.js("return document.querySelector(arguments[0])?.dataset.node", f"#graph .node.{kind}.open")


def test_a_first_visit_shows_an_example_already_traced(page):
    page.open()
    assert page.one("#prompt").get_attribute("value") == MARY
    assert len(page.all(".bars .bar")) == 10
    assert len(page.all(".strip .token")) == len(page.all(".chips .chip")) > 8
    assert page.all("#graph .edge") and page.all(".paths li")
    page.shot("light")


def test_typing_shows_tokens_and_predictions_before_anything_is_traced(page):
    page.open()
    before = page.texts(".bars .bar .text")
    page.type("#prompt", "Once upon a time there was a little")
    page.wait(lambda: "".join(page.texts(".chips .chip")[1:]) == "Once upon a time there was a little")
    page.wait(lambda: page.texts(".bars .bar .text") != before)
    assert "Mary" in page.text(".strip")
    page.one("#prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: "little" in page.text(".strip"))


def test_picking_target_and_contrast_among_the_bars(page):
    page.open()
    page.settled()
    second, third = page.all(".bars .bar")[1:3]
    texts = [bar.get_attribute("textContent") for bar in (second, third)]
    second.click()
    page.wait(lambda: page.texts(".bar.target") and page.texts(".bar.target")[0].split("target")[0] == texts[0].split("%")[0].rstrip("0123456789."))
    third.click()
    page.wait(lambda: page.all(".bar.contrast"))
    page.wait(lambda: "against" in page.text(".summary"))
    assert "logit difference" in page.text(".summary")
    assert "target=" in page.js("return location.hash") and "versus=" in page.js("return location.hash")
    page.all(".bar.contrast")[0].click()
    page.wait(lambda: "against" not in page.text(".summary"))


def test_a_target_that_is_not_listed_can_be_typed(page):
    page.open()
    field = page.all(".choices input")[0]
    field.send_keys(" store", Keys.ENTER)
    page.wait(lambda: " store" in page.text(".summary"))


def test_a_target_of_several_tokens_is_explained(page):
    page.open()
    page.all(".choices input")[0].send_keys(" not one token at all", Keys.ENTER)
    page.wait(lambda: page.all(".problem"))
    assert page.text(".problem")
    page.driver.get_log("browser")  # the refused request itself is logged by the browser


def test_rerooting_and_the_way_back(page):
    page.open()
    page.settled()
    first = node(page)
    page.click(f'#graph [data-node="{first}"]')
    page.wait(lambda: page.root() == first)
    page.wait(lambda: page.all(".sources tbody tr") and page.text(".branches").startswith("K"))
    page.shot("root-light")
    second = node(page) or node(page, "mlp")
    page.click(f'#graph [data-node="{second}"]')
    page.wait(lambda: page.root() == second)
    assert len(page.all(".crumbs li")) == 3
    page.driver.back()
    page.wait(lambda: page.root() == first)
    page.js("document.querySelectorAll('.crumbs button')[0].click()")
    page.wait(lambda: page.root().startswith("target"))
    page.wait(lambda: page.all(".map button"))


def test_an_mlp_as_root_shows_its_neurons(page):
    page.open(state(prompt=MARY, root="MLP3@5"))
    page.wait(lambda: "neuron" in page.text(".ranked"))


def test_a_gated_model_shows_gate_and_up(page):
    page.open(state(model="pocket-llama", prompt=MARY, root="MLP3@5"))
    page.wait(lambda: page.texts(".branches h4") == ["G", "U"])
    assert "U" in page.texts("#filter-branch option")


def test_the_model_chooser_asks_another_model(page):
    page.open()
    page.choose("#model", "pocket-neox")
    page.wait(lambda: "model=pocket-neox" in page.js("return location.hash"))
    page.wait(lambda: "pos" not in page.texts("#filter-through option"), seconds=40)
    page.settled()
    assert page.all("#graph .node")


def test_filters_change_the_paths_and_the_remainder_is_always_said(page):
    page.open()
    page.settled()
    assert "unexplained remainder" in page.text("#remainder")
    page.choose("#filter-sign", "negative")
    page.wait(lambda: page.all(".paths li") and not page.all(".paths li.positive"))
    assert "filtered out" in page.text("#remainder")
    page.choose("#filter-sign", "")
    page.choose("#filter-branch", "V")
    page.wait(lambda: "branch=V" in page.js("return location.hash"))
    page.wait(lambda: page.texts(".paths li") and all(row.replace("target", "").rstrip("→").rsplit("A", 1)[0].rstrip().endswith("V") for row in page.texts(".paths li")))
    page.click(".filters .link")
    page.wait(lambda: page.all(".paths li.positive") and "filtered out" not in page.text("#remainder"))


def test_the_strip_filters_by_source_token(page):
    page.open()
    page.settled()
    page.all(".strip .token")[1].click()
    page.wait(lambda: page.all(".paths li") and all(row.split("@")[1].startswith("1") for row in page.texts(".paths .hop:first-child .name")))
    assert "from=1" in page.js("return location.hash")


def test_the_slider_shows_more_paths_for_more_mass(page):
    page.open(state(prompt=MARY, mass=5))
    page.settled()
    shown = lambda: int(page.text("#remainder").split()[0])  # noqa: E731
    few = page.wait(shown)
    page.js("const e = document.querySelector('#mass'); e.value = 30; e.dispatchEvent(new Event('input', {bubbles: true}))")
    page.wait(lambda: shown() > few, seconds=40)
    assert "mass=30" in page.js("return location.hash")


def test_hovering_links_path_graph_and_strip(page):
    page.open()
    page.settled()
    ActionChains(page.driver).move_to_element(page.one(".paths li")).perform()
    page.wait(lambda: page.all(".edge.lit"))
    assert page.all(".edge.dim") and page.all(".token.dim")
    start = page.texts(".paths li:first-child .name")[0].split("@")[1]
    assert len(page.all(".token:not(.dim)")) == 1
    assert page.js("return [...document.querySelectorAll('.strip .token')].findIndex((e) => !e.classList.contains('dim'))") == int(start)
    ActionChains(page.driver).move_to_element(page.all(".strip .token")[int(start)]).perform()
    page.wait(lambda: page.all(".paths li:not(.dim)"))
    assert all(name.endswith(f"@{start}") for name in page.texts(".paths li:not(.dim) .hop:first-child .name"))


def test_everything_can_be_done_with_the_keyboard(page):
    page.open()
    page.settled()
    page.js("document.querySelector('#graph [tabindex=\"0\"]').focus()")
    keys = ActionChains(page.driver)
    before = page.js("return document.activeElement.dataset.node")
    for key in (Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ARROW_LEFT, Keys.ARROW_RIGHT):
        ActionChains(page.driver).send_keys(key).perform()
        if page.js("return document.activeElement.dataset.node") != before:
            break
    assert page.js("return document.activeElement.dataset.node") != before
    page.js("document.querySelector('#graph .node.open').focus()")
    chosen = page.js("return document.activeElement.dataset.node")
    keys.send_keys(Keys.ENTER).perform()
    page.wait(lambda: page.root() == chosen)
    page.js("document.querySelector('.tabs button').focus()")
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.wait(lambda: page.root().startswith("target"))
    # Every control has a name and can be reached.
    nameless = page.js("""return [...document.querySelectorAll('button, select, input, textarea, summary')].filter((e) =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length || e.title)).map((e) => e.outerHTML)""")
    assert nameless == []


def test_the_heatmap_zooms_by_layer(page):
    page.open(state(prompt=MARY, tab="interactions"))
    canvas = page.one("canvas")
    page.shot("interactions-light")
    tall = canvas.size["height"]
    canvas.send_keys(Keys.ARROW_UP, Keys.ARROW_UP)
    page.wait(lambda: "reads" in page.text("[aria-label=Interactions] .small"))
    canvas.send_keys(Keys.ENTER)
    page.wait(lambda: page.one("canvas").size["height"] != tall)
    page.one("canvas").send_keys(Keys.ESCAPE)
    page.wait(lambda: page.one("canvas").size["height"] == tall)


def test_two_prompts_stand_side_by_side(page):
    page.open(state(prompt=MARY, tab="compare"))
    page.type("#other", "Mary and Anna went to the store. Anna gave a drink to")
    page.click("#compare")
    page.wait(lambda: page.all(".difference tbody tr"))
    assert len(page.all(".side .strip")) == 2 and page.all(".difference .changed")
    page.shot("compare-light")
    assert "other=" in page.js("return location.hash")


def test_knocking_a_component_out_sets_credit_beside_the_measured_change(page):
    page.open(state(prompt=MARY, root="A5.H3@13"))
    page.wait(lambda: page.all("#knockout"))
    page.click("#knockout")
    page.wait(lambda: len(page.all(".knockout tbody tr")) == 3)
    rows = page.texts(".knockout tbody tr")
    assert "credit" in rows[0] and "no attention head reads it" in rows[1] and "no MLP reads it" in rows[2]
    assert "need not agree" in page.text(".knockout")
    page.shot("knockout-light")


def test_an_edge_is_patched_from_the_second_prompt(page):
    page.open(state(prompt=MARY, other=MARY.replace("Mary", "Anna")))
    page.settled()
    page.js("const e = [...document.querySelectorAll('#graph .edge')].at(-1); e.dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    page.wait(lambda: page.text("#knockout") == "Patch the edge")
    page.click("#knockout")
    page.wait(lambda: len(page.all(".knockout tbody tr")) == 2)


def test_options_differ_from_the_defaults_only_when_changed(page):
    page.open()
    page.settled()
    before = page.texts(".strip .credit")
    page.click("#options summary")
    page.choose("#options select", "gate")
    page.wait(lambda: "o.dispatch=gate" in page.js("return location.hash"))
    page.wait(lambda: page.texts(".strip .credit") != before)
    page.click("#options .link")
    page.wait(lambda: "o.dispatch" not in page.js("return location.hash"))
    page.wait(lambda: page.texts(".strip .credit") == before)


def test_a_link_shows_the_same_again(page):
    page.open()
    page.settled()
    page.click(f'#graph [data-node="{node(page)}"]')
    page.wait(lambda: page.all(".sources"))
    page.choose("#filter-branch", "K")
    page.wait(lambda: "branch=K" in page.js("return location.hash"))
    page.settled()
    seen = (page.root(), page.texts(".strip .credit"), page.wait(lambda: page.texts(".paths li")))
    page.open(page.js("return location.hash"))
    page.wait(lambda: (page.root(), page.texts(".strip .credit"), page.texts(".paths li")) == seen)


@pytest.mark.parametrize("index, suffix, start", [(0, ".json", b"{"), (1, ".svg", b"<svg"), (2, ".png", b"\x89PNG"), (3, ".html", b"<!")])
def test_export(page, downloaded, index, suffix, start):
    page.open()
    page.settled()
    page.click("#export summary")
    page.js("document.querySelectorAll('#export button')[arguments[0]].click()", index)
    content = downloaded(suffix)
    assert content.lstrip().lower().startswith(start.lower()) and len(content) > 2000
    if suffix == ".json":
        assert json.loads(content)["root"] == "target"
    if suffix in (".svg", ".html"):
        assert b"var(--" not in content or suffix == ".html"
        assert b"http://" not in content.replace(b"http://www.w3.org", b"") and b"https://" not in content
    if suffix == ".png":
        # Not an empty picture: it packs badly.
        assert len(content) > 15_000


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("tab", ["paths", "interactions", "compare"])
def test_it_fits_every_width_in_light_and_dark(page, width, dark, tab):
    page.open(state(prompt=MARY, tab=tab, other=MARY.replace("Mary", "Anna"), root="A5.H1@8") if tab != "paths" else state(prompt=MARY), width=width, dark=dark)
    page.settled()
    if tab == "compare":
        page.one(".difference")
    assert page.js("return document.documentElement.scrollWidth") <= width
    page.shot(f"{tab}-{width}-{'dark' if dark else 'light'}")
    if dark:
        ground = page.js("return getComputedStyle(document.body).backgroundColor")
        assert all(int(part) < 60 for part in ground.strip("rgb()").split(","))


def test_the_theme_can_be_chosen(page):
    page.open()
    page.choose("[aria-label=Theme]", "dark")
    page.wait(lambda: page.js("return getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 27)")
    page.choose("[aria-label=Theme]", "auto")
    page.wait(lambda: page.js("return getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 248)")


def test_an_empty_prompt_and_strange_text_do_no_harm(page):
    page.open(state(prompt="日本語 <script>alert(1)</script> \u202e & \"quotes\" 🙂"))
    page.settled()
    assert page.all(".strip .token")
    page.js("const e = document.querySelector('#prompt'); e.value = ''; e.dispatchEvent(new Event('input', {bubbles: true}))")
    page.wait(lambda: not page.all(".chips .chip"))


def timed(page, act, done):
    """Milliseconds, measured inside the page from the click to the frame that shows it. Its policy forbids eval: the code goes in as text."""
    return page.driver.execute_async_script(f"""
      const finish = arguments[arguments.length - 1], begin = performance.now();
      {act};
      const look = () => requestAnimationFrame(() => (({done}) ? requestAnimationFrame(() => finish(performance.now() - begin)) : look()));
      look();""")


def slack():
    """Room for a busy machine: the figures are printed, and only a gross slowdown fails."""
    return 5.0 * max(1.0, os.getloadavg()[0] / os.cpu_count())


def test_the_first_trace_shows_within_a_second(page):
    page.driver.set_script_timeout(20)
    times = []
    for index in range(3):
        page.open()
        page.settled()
        page.type("#prompt", f"When Anna and Paul went to the shop number {index}{int(time.time()) % 1000}, Paul gave a book to")
        page.wait(lambda: "book" in page.text(".chips"))
        time.sleep(0.6)
        times.append(timed(page, "document.querySelector('#trace').click()", "document.querySelector('.strip').textContent.includes('book')"))
    print(f"first trace: {min(times):.0f} ms")
    assert min(times) < 1000 * slack(), times


def test_rerooting_shows_within_150_ms(page):
    page.driver.set_script_timeout(20)
    page.open()
    page.settled()
    times = []
    for _ in range(4):
        name = node(page)
        act = f"""document.querySelector('#graph [data-node="{name}"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"""
        times.append(timed(page, act, f"""document.querySelector('section[aria-label="Root {name}"]')"""))
        page.js("document.querySelectorAll('.crumbs button')[0].click()")
        page.wait(lambda: page.root().startswith("target"))
        page.settled()
    print(f"reroot: {min(times):.0f} ms")
    assert min(times) < 150 * slack(), times
