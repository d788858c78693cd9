"""The page, driven as a person would."""
import json
import os
import re
import statistics
import time

import pytest
from asking import ANNA, MARY, papers, state, why
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

NO_MODEL_SPEAKS_THIS = "日本語 <script>alert(1)</script> \u202e & \"quotes\" 🙂"


def visible(page, selector):
    return page.js(
        (
            "const e = document.querySelector(arguments[0]); return !!e &&"
            " e.getClientRects().length > 0"
        ),
        selector,
    )


# The start ----------------------------------------------------------------------------------------


def test_a_first_visit_says_what_to_do(page):
    page.open()
    assert len(page.all(".example")) == 5 and len(page.all(".steps li")) == 3
    page.wait(lambda: "layers" in page.text("#model-line"))
    page.shot("start")


@pytest.mark.parametrize("index", range(5))
def test_every_example_is_one_that_the_model_solves(page, index):
    page.open()
    page.js("document.querySelectorAll('.example')[arguments[0]].click()", index)
    page.settled()
    assert page.text(".bar .text") == page.one("#target").get_attribute(
        "value"
    ), "the target is the likeliest token"
    assert page.all("#graph .edge")


def test_every_term_has_an_explanation(page):
    page.open(why())
    assert len(page.all(".mark")) >= 8
    page.js("document.querySelector('.title .mark').click()")
    page.wait(lambda: len(page.text(".explanation")) > 40)
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.wait(lambda: not page.all(".explanation"))


# Prompt and question ------------------------------------------------------------------------------


def test_the_prompt_is_coloured_tokens_with_their_spaces_and_bytes(page):
    page.open(state(prompt="Zoë went 🙂 to"))
    chips = page.texts(".chips .chip")
    assert "·went" in "".join(chips) and any(
        re.match(r"(0x[0-9A-F]{2} ?)+", chip) for chip in chips
    ), chips
    assert (
        page.js(
            "return [...document.querySelectorAll('.chips .chip')].filter((e) =>"
            " e.style.background).length"
        )
        > 3
    )


def test_clicking_a_token_predicts_there(page):
    page.open(why())
    page.js(
        "[...document.querySelectorAll('.chips .chip')].find((e) => e.textContent ==="
        " '·gave').click()"
    )
    page.wait(lambda: "at=10" in page.hash())
    page.settled()
    assert "▸?" in page.text('.chip[aria-pressed="true"]') and "gave" in page.text(
        '.chip[aria-pressed="true"]'
    )
    assert all(
        int(name.split("@")[1]) <= 10
        for name in page.js(
            "return [...document.querySelectorAll('#graph [data-node]')].map((e) => e.dataset.node)"
        )
    )


def test_a_double_click_changes_one_token(page):
    page.open(why())
    page.js(
        "[...document.querySelectorAll('.chips .chip')].find((e) => e.textContent ==="
        " 'Mary').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    field = page.one(".chip-input")
    field.send_keys(Keys.CONTROL + "a")
    field.send_keys("Anna", Keys.ENTER)
    page.wait(lambda: f"prompt={ANNA}" in page.hash())
    page.settled()
    assert page.one("#target").get_attribute("value") == "·Anna"


def test_typing_shows_tokens_before_anything_is_asked(page):
    page.open()
    page.one("#prompt").send_keys("Once upon a time")
    page.wait(lambda: "Once·upon·a·time" in "".join(page.texts(".chips .chip")))
    assert not page.all(".answer")


def test_any_token_can_be_the_target(page):
    page.open(why())
    field = page.one("#target")
    field.click()
    field.send_keys("store", Keys.ARROW_DOWN, Keys.ARROW_UP)
    page.wait(lambda: page.texts(".suggestions .word")[:1] == ["·store"])
    field.send_keys(Keys.ENTER)
    page.wait(lambda: page.text("#graph .node.target").startswith("·store vs ·John"))
    field = page.one("#versus")
    field.click()
    page.wait(lambda: "raw logit" in page.text(".suggestions"))
    field.send_keys("zzzzzz")
    page.wait(lambda: "no token begins" in page.text(".suggestions"))
    field.send_keys(Keys.ESCAPE)


# The graph ----------------------------------------------------------------------------------------


def test_the_graph_has_ports_filled_nodes_and_tokens_as_its_axis(page):
    page.open(papers())
    assert page.js(
        "return [...document.querySelectorAll('[data-node=\"A5.H3@13\"] .port')].map((e) =>"
        " [e.textContent, e.classList.contains('used')])"
    ) == [["K", True], ["Q", True], ["V", True]]
    fills = page.js(
        "return [...document.querySelectorAll('#graph .node[data-node] .body')].map((e) =>"
        " getComputedStyle(e).fill)"
    )
    assert len(set(fills)) > 4
    assert len(page.all("#graph .axis .token")) == 14 and not page.all(".strip")


def test_a_click_selects_a_double_click_reroots_and_shift_pins(page):
    page.open(papers())
    page.node("A5.H3@13")
    page.wait(lambda: page.all('section[aria-label="Inspector: A5.H3@13"]'))
    assert page.all("#graph .node.selected") and not page.all(".crumbs")
    page.node("MLP0@1", shift=True)
    page.wait(lambda: page.all('#graph [data-node="MLP0@1"].pinned'))
    assert "(1)" in page.text("#tab-circuit") and "pins=" in page.hash()
    page.node("A5.H3@13", "dblclick")
    page.wait(lambda: page.root() == "A5.H3@13")
    page.settled()
    page.node("A1.H1@1", "dblclick")
    page.wait(lambda: page.root() == "A1.H1@1" and len(page.all(".crumbs li")) == 3)
    page.driver.back()
    page.wait(lambda: page.root() == "A5.H3@13")
    page.js("document.querySelector('.crumbs button').click()")
    page.wait(lambda: not page.all(".crumbs"))


def place(page):
    return [
        float(x)
        for x in re.findall(
            r"-?[\d.]+",
            page.js("return document.querySelector('#graph .content').getAttribute('transform')"),
        )
    ]


def test_the_graph_zooms_pans_and_fills_the_screen_with_its_labels_in_view(page):
    page.open(why(routes=100))
    x, y, scale = place(page)
    page.js("document.querySelector('[aria-label=\"Zoom in\"]').click()")
    page.wait(lambda: place(page)[2] > scale * 1.2)
    before = place(page)
    graph = page.one("#graph")
    ActionChains(page.driver).move_to_element_with_offset(
        graph, -graph.size["width"] // 2 + 220, -60
    ).click_and_hold().move_by_offset(-150, -40).release().perform()
    page.wait(lambda: abs(place(page)[0] - before[0] + 150) < 5)
    assert all(
        float(x) == 6
        for x in page.js(
            "return [...document.querySelectorAll('.layer-labels text')].map((e) =>"
            " e.getAttribute('x'))"
        )
    )
    assert page.all(".layer-labels text") and page.all(".axis .token")
    page.click("#fullscreen")
    page.wait(lambda: page.all(".graph-frame.full"))
    assert (
        page.js("return document.querySelector('.graph-frame').getBoundingClientRect().width")
        >= 1200
    )
    page.shot("full")
    page.click("#fullscreen")
    page.wait(lambda: not page.all(".graph-frame.full"))
    page.js("document.querySelector('[aria-label=\"Fit\"]').click()")
    page.wait(lambda: place(page)[2] < before[2])


def test_hovering_links_routes_graph_and_tokens(page):
    page.open(why())
    page.one(".sentences")  # nothing moves any more
    ActionChains(page.driver).move_to_element(page.one(".paths .amount")).perform()
    page.wait(lambda: page.all(".edge.lit") and page.all(".edge.dim"))
    ActionChains(page.driver).move_to_element(page.all(".chips .chip")[1]).perform()
    page.wait(
        lambda: page.all(".paths li:not(.dim)")
        and all(
            name.endswith("@1")
            for name in page.texts(".paths li:not(.dim) .hop:nth-child(2) .name")
        )
    )


def test_filters_thresholds_signs_and_the_first_token(page):
    page.open(papers())
    page.choose("#filter-branch", "K")
    page.wait(
        lambda: "branch=K" in page.hash()
        and page.all(".paths li")
        and all(row.rsplit("A", 1)[0].endswith("K") for row in page.texts(".paths .route"))
    )
    page.click("#clear-filters")
    page.choose("#threshold", "5")
    page.wait(lambda: 0 < len(page.all(".paths li")) < 6)
    page.choose("#threshold", "0")
    page.wait(lambda: any("endoftext" in row for row in page.texts(".paths .route")))
    page.click("#skip-first")
    page.wait(lambda: not any("endoftext" in row for row in page.texts(".paths .route")))
    assert "left out" in page.text("#graph .axis .token")
    page.js(
        "document.querySelectorAll('#graph .axis .token')[1].dispatchEvent(new MouseEvent('click',"
        " {bubbles: true}))"
    )
    page.wait(
        lambda: "from=1" in page.hash()
        and page.all(".paths li")
        and all("@1" in row.split("→")[0] for row in page.texts(".paths .route"))
    )


def test_unused_tokens_fold_in_long_prompts(page):
    page.open(
        state(prompt="It was a long day and the men were tired of walking on the road. " + MARY)
    )
    folds = page.all("#graph .fold")
    assert folds and len(page.all("#graph .axis .token")) < 25
    page.js(
        "document.querySelector('#graph .fold').dispatchEvent(new MouseEvent('click', {bubbles:"
        " true}))"
    )
    page.wait(lambda: not page.all("#graph .fold"))


def test_everything_can_be_done_with_the_keyboard(page):
    page.open(why())
    page.js("document.querySelector('#graph [tabindex=\"0\"]').focus()")
    before = page.js("return document.activeElement.dataset.node")
    for key in (Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ARROW_LEFT, Keys.ARROW_RIGHT):
        ActionChains(page.driver).send_keys(key).perform()
        if page.js("return document.activeElement.dataset.node") != before:
            break
    here = page.js("return document.activeElement.dataset.node")
    assert here != before
    ActionChains(page.driver).send_keys(Keys.SPACE).perform()
    page.wait(lambda: page.all(f'section[aria-label="Inspector: {here}"]'))
    ActionChains(page.driver).send_keys("p").perform()
    page.wait(lambda: page.all(f'#graph [data-node="{here}"].pinned'))
    # Every control has a name.
    nameless = page.js(
        """
        const controls = document.querySelectorAll('button, select, input, textarea, summary');
        return [...controls].filter((e) => !(e.textContent.trim() ||
          e.getAttribute('aria-label') || e.labels?.length || e.title)).map((e) => e.outerHTML)"""
    )
    assert nameless == []


# The inspector ------------------------------------------------------------------------------------


def test_the_inspector_says_what_a_head_reads_writes_looks_at_and_feeds(page):
    page.open(papers(node="A5.H3@13"))
    page.wait(lambda: "looks 83% at Mary and copies it (V)" in page.text(".inspector .sentence"))
    page.wait(lambda: [text[0] for text in page.texts(".branches h4")] == ["K", "Q", "V"])
    assert page.texts(".sources tbody th")[0].startswith("Mary")
    page.click("#part-writes")
    page.wait(lambda: page.texts(".inspector .ranked .word")[:1] == ["·Mary"])
    page.click("#part-attention")
    page.wait(lambda: len(page.all(".inspector canvas")) == 9)
    assert page.texts(".labelled .rows span") == page.texts(
        ".labelled .columns span"
    ) and page.texts(".labelled .rows span")[1:3] == ["Mary", "·and"]
    assert page.text(".labelled .asked") == "·to"
    page.shot("attention")
    page.click("#part-feeds")
    page.wait(lambda: "the target, directly" in page.text(".inspector .ranked"))
    page.click("#part-reads")
    page.js("document.querySelector('.branches .link').click()")
    page.wait(lambda: page.all('section[aria-label="Inspector: A1.H1@1"]'))
    page.click("#reroot")
    page.wait(lambda: page.root() == "A1.H1@1")


def test_the_inspector_shows_an_mlps_neurons_and_a_gated_ones_branches(page):
    page.open(why(node="MLP6@13"))
    page.click("#part-writes")
    page.wait(lambda: len(page.all(".neurons tbody tr")) == 5)
    page.open(why(model="pocket-llama", node="MLP3@5"))
    page.wait(lambda: [text[0] for text in page.texts(".branches h4")] == ["G", "U"], seconds=40)
    assert "U" in page.texts("#filter-branch option")


def test_the_experts_of_a_mixture_are_shown_where_there_are_any(page):
    """No mixture is bundled: an answer that has them is put in the way."""
    page.open()
    page.js(
        """const ask = window.fetch; window.fetch = async (path, init) => {
        const response = await ask(path, init);
        if (path !== '/api/reads') return response;
        const answer = await response.json();
        const experts = [{expert: 3, weight: 0.7, credit: 0.5},
          {expert: 1, weight: 0.3, credit: -0.1}];
        answer.entries = {neurons: answer.entries.neurons ?? [], experts};
        return new Response(JSON.stringify(answer)); };
        location.hash = arguments[0]""",
        why(node="MLP6@13"),
    )
    page.click("#part-experts")
    page.wait(
        lambda: page.texts(".sources tbody th") == ["3", "1"] and "70.0%" in page.text(".sources")
    )


def test_the_trace_is_told_in_words(page):
    page.open(why())
    page.wait(
        lambda: "A5.H3 at ·to (13) looks 83% at Mary and copies it (V)" in page.text(".sentences")
    )
    page.open(papers())
    page.wait(
        lambda: "A5.H3 at ·to (13) looks 83% at Mary and copies it (V)" in page.text(".sentences")
    )
    assert "because A1.H1 at Mary feeds its keys (K)" in page.text(".sentences")
    page.js("document.querySelector('.sentences .link').click()")
    page.wait(lambda: page.all('section[aria-label="Inspector: A5.H3@13"]'))


def test_an_edge_is_patched_from_the_second_prompt(page):
    page.open(why(other=ANNA))
    page.js(
        "[...document.querySelectorAll('#graph .edge')].at(-1).dispatchEvent(new"
        " MouseEvent('click', {bubbles: true}))"
    )
    page.click("#run-test")
    page.wait(lambda: len(page.all(".measured tbody tr")) == 2)


# The other tabs -----------------------------------------------------------------------------------


def test_the_lens_shows_where_the_answer_comes_up(page):
    page.open(why(tab="layers"))
    page.wait(lambda: len(page.all(".lens tbody tr")) == 9)
    assert page.js(
        "return [...document.querySelectorAll('.lens tbody tr')].map((row) =>"
        " row.lastElementChild.classList.contains('is-target'))"
    )[0]
    page.js("document.querySelector('.lens tbody tr td:nth-of-type(5)').click()")
    page.wait(lambda: "at=4" in page.hash() and page.all("#graph .edge"))


def test_heads_are_sorted_by_credit(page):
    page.open(why(tab="heads"))
    page.wait(lambda: len(page.all(".patterns [data-head]")) == 12)
    credits = [
        abs(float(text.split()[1].replace("−", "-")))
        for text in page.texts(".patterns [data-head] > span")
    ]
    assert credits == sorted(credits, reverse=True) and page.texts(".patterns b")[0] == "A5.H3"
    page.click('[data-head="A5.H3"]')
    page.wait(lambda: page.all('section[aria-label="Inspector: A5.H3@13"]'))
    page.click("#tab-heads")
    page.js("document.querySelector('.more-of').open = true")
    page.wait(lambda: page.all(".heat canvas"))


def test_any_token_of_an_answer_can_be_asked_about(page):
    page.open(why(tab="answer"))
    page.wait(lambda: page.texts(".output .chip")[:2] == ["·Mary", "."])
    page.js("document.querySelectorAll('.output .chip')[3].click()")
    page.wait(
        lambda: len(page.all(".strip .token")) == 17 and len(page.all(".strip .generated")) == 3
    )
    page.one("#continuation").send_keys(" John.", Keys.ENTER)
    page.wait(lambda: page.texts(".output .chip") == ["·John", "."])
    page.click("#answer-why")
    page.wait(lambda: page.text("#graph .node.target").startswith("·John"))


def test_two_prompts_are_compared_by_token_component_and_route(page):
    page.open(papers(tab="compare"))
    assert "Change a word" in page.text("section[aria-label=Compare]")
    page.type("#other", ANNA)
    page.click("#compare")
    page.wait(lambda: page.all(".components tbody tr") and page.all(".routes-differ tbody tr"))
    assert page.texts(".tokens .changed .word") == ["Mary", "Anna"]
    assert page.text(".components th").startswith("A5.H3")
    assert "other=" in page.hash()


def test_pins_become_a_named_circuit_that_is_measured_saved_and_opened_again(
    page, downloaded, tmp_path
):
    page.open(why(pins="Movers:A5.H3@13,A5.H4@13,MLP0@1", tab="circuit"))
    assert re.search(
        r"routes through these alone carry \d+% of the net credit", page.text("#circuit-share")
    )
    page.choose('[aria-label="Group of MLP0@1"]', "1")
    page.wait(lambda: len(page.all(".group")) == 2)
    page.js(
        "const e = document.querySelectorAll('.group-name')[1]; e.value = 'Early';"
        " e.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.wait(
        lambda: "Early:MLP0@1"
        in page.js("return decodeURIComponent(decodeURIComponent(location.hash))")
    )
    page.click("#circuit-measure")
    page.wait(lambda: len(page.all(".effect")) == 4)
    alone = re.search(
        r"logit difference ([-−+.0-9]+) of .* faithfulness (-?\d+)%.*necessity (-?\d+)%",
        page.text("#circuit-alone"),
    )
    assert alone and int(alone[2]) > 90 and int(alone[3]) > 90, page.text("#circuit-alone")
    page.shot("circuit")
    page.click("#circuit-save")
    name, content = downloaded(".json")
    saved = json.loads(content)
    assert [group["name"] for group in saved["groups"]] == ["Movers", "Early"] and saved[
        "measured"
    ]["all"]["after"] < saved["measured"]["all"]["before"]
    assert (
        saved["proof"]["only"] != saved["proof"]["clean"]
        and saved["proof"]["without"] == saved["measured"]["all"]["after"]
    )
    page.open(why(tab="circuit"))
    assert "Shift-click" in page.text("section[aria-label=Circuit]")
    file = tmp_path / name
    file.write_bytes(content)
    page.one("#circuit-file").send_keys(str(file))
    page.wait(lambda: len(page.all(".group")) == 2)
    file.write_text("no circuit")
    page.one("#circuit-file").send_keys(str(file))
    page.wait(lambda: "is no circuit" in page.text(".problem"))


# Options, links, files ----------------------------------------------------------------------------


def test_options_differ_from_the_defaults_only_when_changed(page):
    page.open(why())
    before = page.texts("#graph .axis .tiny")
    arrived = page.text("#options .small")
    assert "of the credit now arrives" in arrived
    page.slide("#beta", 0.3)
    page.wait(
        lambda: "o.beta=0.3" in page.hash()
        and page.texts("#graph .axis .tiny") != before
        and page.text("#options .small") != arrived
    )
    page.choose('[data-option="dispatch"]', "gate")
    page.wait(lambda: "o.dispatch=gate" in page.hash())
    page.click("#defaults")
    page.wait(lambda: "o." not in page.hash() and page.texts("#graph .axis .tiny") == before)


def test_a_preset_sets_what_goes_together_and_can_be_changed_in_one_place(page, server):
    page.open(why())
    before = page.texts("#graph .axis .tiny")
    assert page.texts("#preset option") == ["paper", "released", "best (default)"]
    chosen = page.js(
        "return ['direction', 'keys', 'scores'].map((key) =>"
        " document.querySelector(`[data-option=${key}]`).value)"
    )
    assert (
        chosen == ["read", "spread", "centered"]
        and page.one("#beta").get_attribute("value") == "0.2"
    )
    want = server.ok(
        "trace", prompt=MARY, target=" Mary", versus=" John", preset="best", top_paths=0
    )["token_credit"]
    shown = [float(text.replace("−", "-")) for text in page.texts("#graph .axis .tiny")]
    assert shown == [float(f"{value:.2g}") for value in want]
    page.choose("#preset", "paper")
    page.wait(
        lambda: "o.preset=paper" in page.hash() and page.texts("#graph .axis .tiny") != before
    )
    page.settled()
    assert not page.all('[data-option="keys"]'), "nothing that direction output does not know"
    # One option beside it: only that is said.
    page.choose('[data-option="scores"]', "centered")
    page.wait(
        lambda: "o.scores=centered" in page.hash()
        and "o.preset=paper" in page.hash()
        and "o.direction" not in page.hash()
    )
    page.open(page.js("return location.hash"))
    assert page.one("#preset").get_attribute("value") == "paper"
    page.choose("#preset", "best")
    page.wait(lambda: "o." not in page.hash() and page.texts("#graph .axis .tiny") == before)


def test_a_link_shows_the_same_again(page):
    page.open(why(node="A5.H3@13", routes=20))
    page.node("A5.H3@13", "dblclick")
    page.wait(lambda: page.root() == "A5.H3@13")
    page.settled()
    page.click("#copy-link")
    page.wait(lambda: page.text("#copy-link") == "Copied" or page.all('[aria-label="Link"]'))
    seen = (
        page.root(),
        page.texts("#graph .axis .tiny"),
        page.wait(lambda: page.texts(".paths .route")),
    )
    page.open(page.js("return location.hash"))
    page.wait(
        lambda: (page.root(), page.texts("#graph .axis .tiny"), page.texts(".paths .route")) == seen
    )


# Looks and speed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 720, 1440])
def test_it_fits_every_width_in_light_and_dark(page, width, dark):
    """720 is a window of 1440 at 200% zoom."""
    page.open(why(node="A5.H3@13", other=ANNA, pins="Movers:A5.H3@13"), width=width, dark=dark)
    for tab in ("why", "layers", "heads", "answer", "compare", "circuit"):
        page.click(f"#tab-{tab}")
        page.wait(
            lambda: page.all(
                {
                    "why": ".branches",
                    "layers": ".lens",
                    "heads": ".patterns",
                    "answer": ".output",
                    "compare": ".components",
                    "circuit": ".group",
                }[tab]
            )
        )
        assert page.js("return document.documentElement.scrollWidth") <= width, tab
        page.shot(f"{tab}-{width}-{'dark' if dark else 'light'}")
    ground = page.js("return getComputedStyle(document.body).backgroundColor")
    assert all((int(part) < 60) == dark for part in ground.strip("rgb()").split(","))


def test_the_theme_can_be_chosen(page):
    page.open()
    page.choose("[aria-label=Theme]", "dark")
    page.wait(
        lambda: page.js("return getComputedStyle(document.body).backgroundColor")
        == "rgb(16, 21, 27)"
    )
    page.choose("[aria-label=Theme]", "auto")
    page.wait(
        lambda: page.js("return getComputedStyle(document.body).backgroundColor")
        == "rgb(244, 246, 248)"
    )


def test_strange_text_does_no_harm(page):
    page.open(state(prompt=NO_MODEL_SPEAKS_THIS))
    assert page.all("#graph .axis .token") and "0xE20x800xAE" in page.text(".chips").replace(
        " ", ""
    )


def test_what_can_wait_makes_way_for_a_reroot(page):
    """The sentences of the old question are taken back the moment that another root is asked for,
    and those of the new one come.
    """
    page.open(why())
    page.one(".sentences")
    page.js(
        """const ask = window.fetch; window.seen = [];
        window.fetch = (path, init) => {
          if (path !== '/api/words') {
            if (path === '/api/reroot') window.seen.push(window.words?.aborted);
            return ask(path, init);
          }
          window.words = init.signal;
          const rooted = JSON.parse(init.body).root !== undefined;
          if (rooted) return ask(path, init);
          return new Promise((_, refuse) =>
            init.signal.addEventListener('abort', () => refuse(new Error('taken back')))); }"""
    )
    page.slide("#beta", 0.3)
    page.wait(lambda: page.js("return window.words && !window.words.aborted"))
    page.node("A5.H3@13", "dblclick")
    page.wait(lambda: page.root() == "A5.H3@13")
    page.settled()
    assert page.js("return window.seen") == [True]
    page.wait(lambda: page.texts(".sentences li"))


def test_of_many_tokens_the_one_that_is_asked_about_is_in_view(page):
    page.open(state(prompt="It was a long day and the men went on and on. " * 20 + MARY))
    seen = (
        "const box = document.querySelector('.chips').getBoundingClientRect(), chip ="
        " document.querySelector('.chip[aria-pressed=true]').getBoundingClientRect(); return"
        " chip.top >= box.top && chip.bottom <= box.bottom"
    )
    assert page.js(
        "const box = document.querySelector('.chips'); return box.scrollHeight > box.clientHeight"
        " + 20"
    ) and page.js(seen)
    page.click('.chip[title^="position 3,"]')
    page.wait(lambda: "at=3" in page.hash() and page.js(seen))
    assert page.js("return scrollY") == 0


def timed(page, act, done):
    """Milliseconds, measured inside the page from the act to the frame that shows it. Its policy
    forbids eval: the code goes in as text.
    """
    return page.driver.execute_async_script(
        f"""
      const finish = arguments[arguments.length - 1], begin = performance.now();
      {act};
      const done = () => finish(performance.now() - begin);
      const look = () =>
        requestAnimationFrame(() => (({done}) ? requestAnimationFrame(done) : look()));
      look();"""
    )


def slack():
    """Room for a busy machine: the figures are printed, and only a gross slowdown fails."""
    return 5.0 * max(1.0, os.getloadavg()[0] / os.cpu_count())


@pytest.mark.parametrize("tokens, limit", [(14, 120), (300, 300)])
def test_rerooting_and_first_paint_are_quick(page, tokens, limit):
    page.driver.set_script_timeout(60)
    prompt = (
        ("It was a long day and the men went on and on. " * 40 + MARY) if tokens == 300 else MARY
    )
    if tokens == 300:
        words = prompt.split()
        prompt = " ".join(words[-265:])
    page.open()
    # First paint: from the moment that the answer is here to the frame that shows its graph.
    page.js(
        """const ask = window.fetch; window.fetch = async (path, init) => {
        const response = await ask(path, init);
        if (path !== '/api/trace') return response;
        const text = await response.text();
        window.answered = performance.now();
        return new Response(text); }"""
    )
    act = (
        f"history.pushState(null, '', {json.dumps(state(prompt=prompt))}); dispatchEvent(new"
        " PopStateEvent('popstate'))"
    )
    timed(page, act, "document.querySelectorAll('#graph .edge').length > 5")
    paint = page.js("return performance.now() - window.answered")
    assert tokens != 300 or 280 < len(page.all(".chips [title^=position]")) < 360
    times = []
    # From all over the graph: the higher a root, the more is below it.
    names = page.js(
        "return [...document.querySelectorAll('#graph .node.head.open, #graph"
        " .node.mlp.open')].map((e) => e.dataset.node)"
    )
    names = names[:: max(1, len(names) // 6)]
    for name in names:
        node = f"""document.querySelector('#graph [data-node="{name}"]')"""
        act = f"{node}.dispatchEvent(new MouseEvent('dblclick', {{bubbles: true}}))"
        times.append(
            timed(
                page,
                act,
                f"""document.querySelector('.crumbs [aria-current]')?.textContent === '{name}' &&
                document.querySelector('.answer').getAttribute('aria-busy') === 'false' &&
                !document.querySelector('.of-before')""",
            )
        )
        page.js("document.querySelector('.crumbs button').click()")
        page.wait(lambda: not page.all(".crumbs"))
        page.settled()
    middle = statistics.median(times)
    print(
        f"{tokens} tokens: first paint {paint:.0f} ms, reroot {middle:.0f} ms;"
        f" {', '.join(f'{name} {ms:.0f}' for name, ms in zip(names, times))}"
    )
    assert paint < 1000 * slack() and middle < limit * slack(), (paint, times)
