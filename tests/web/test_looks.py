"""Whether everything can be read and reached: contrast in both themes, and the keyboard where the
mouse can go.
"""
import pytest
from asking import ANNA, MARY, state, why
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

READY = {
    "why": ".sentences",
    "layers": ".lens",
    "heads": ".patterns",
    "answer": ".output .chip",
    "compare": ".components",
    "circuit": ".group",
}

# Texts whose contrast with what they stand on is below 4.5 to 1 (3 to 1 for large ones), the WCAG's
# AA.
FAINT = """
const parts = (colour) => {
  const x = colour.match(/[\\d.]+(e-?\\d+)?/g)?.map(Number) ?? [0, 0, 0, 0];
  const by = colour.startsWith('color(') ? 255 : 1;
  return [x[0] * by, x[1] * by, x[2] * by, x[3] ?? 1];
};
const over = (top, below) =>
  [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const ground = (element) => {
  const stack = [];
  for (let at = element; at; at = at.parentElement) {
    const colour = parts(getComputedStyle(at).backgroundColor);
    if (colour[3] > 0) stack.push(colour);
    if (colour[3] === 1) break;
  }
  return stack.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
};
const light = (colour) => {
  const [r, g, b] = colour.map((x) =>
    x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
  const style = getComputedStyle(element), svg = element.namespaceURI.endsWith('svg');
  if (!text || !element.getClientRects().length || style.visibility === 'hidden') continue;
  if (+style.opacity === 0) continue;
  if (element.closest('.print-only, .stale, title, option, :disabled')) continue;
  let paper = ground(svg ? element.closest('svg').parentElement : element);
  let ink = parts(style.color);
  if (svg) {
    ink = parts(style.fill);
    const tiny = element.classList.contains('tiny');
    const box = tiny ? null : element.parentElement.querySelector(':scope > rect');
    const fill = box ? getComputedStyle(box).fill : 'none';
    if (fill !== 'none') paper = over(parts(fill), paper);
  }
  const a = light(paper), b = light(over(ink, paper)), size = parseFloat(style.fontSize);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const least = size >= 24 || (size >= 18.6 && +style.fontWeight >= 700) ? 3 : 4.5;
  const name = element.className?.baseVal ?? element.className;
  if (ratio < least) found.add(`${ratio.toFixed(2)}: ${text.slice(0, 30)} in ${name}`);
}
return [...found];"""

# What the mouse can press and Tab cannot reach. Edges are picked with E on a node, routes from a
# token by the filters.
MOUSE_ONLY = """
const reached = 'a, button, input, select, textarea, summary, label, option, [tabindex]';
const pressed = (e) => ['pointer', 'crosshair'].includes(getComputedStyle(e).cursor);
return [...document.querySelectorAll('#app *')].filter((e) =>
  pressed(e) && e.getClientRects().length && !e.closest(`${reached}, .edge, .axis .token`) &&
  !e.querySelector(reached)).map((e) => `${e.tagName} ${e.className?.baseVal ?? e.className}`)"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read_and_everything_be_reached(page, dark):
    page.open(dark=dark)
    assert page.js(FAINT) == [] and page.js(MOUSE_ONLY) == []
    page.open(
        why(
            node="A5.H3@13", other=ANNA, pins="Movers:A5.H3@13,A5.H4@13;Early:MLP0@1,A1.H1@1",
            routes=60
        ),
        dark=dark,
    )
    for tab, ready in READY.items():
        page.click(f"#tab-{tab}")
        page.one(ready)
        assert page.js(FAINT) == [] and page.js(MOUSE_ONLY) == [], tab
    page.click("#tab-why")
    for part, ready in {
        "writes": ".branches.two",
        "attention": ".small-patterns",
        "feeds": ".ranked.lines",
        "test": "#run-test",
    }.items():
        page.click(f"#part-{part}")
        page.one(ready)
        assert page.js(FAINT) == [] and page.js(MOUSE_ONLY) == [], part


def test_the_keyboard_walks_over_the_lens_and_asks_there(page):
    page.open(why(tab="layers"))
    page.one(".lens")
    assert (
        page.js("return document.querySelectorAll('.lens [tabindex=\"0\"]').length") == 1
    ), "one stop for Tab"
    page.js("document.querySelector('.lens [tabindex=\"0\"]').focus()")
    ActionChains(page.driver).send_keys(
        Keys.ARROW_RIGHT, Keys.ARROW_UP
    ).perform()  # no further to these sides
    assert page.js("return document.activeElement.textContent") == "·Mary"
    ActionChains(page.driver).send_keys(Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ENTER).perform()
    page.wait(lambda: "at=12" in page.hash() and "tab=layers" not in page.hash())


def test_edges_are_picked_with_the_keyboard(page):
    page.open(why())
    page.js("document.querySelector('#graph [data-node=\"A5.H3@13\"]').focus()")
    picked = []
    while True:
        ActionChains(page.driver).send_keys("e").perform()
        edges = page.js(
            "return [...document.querySelectorAll('#graph .edge.picked')].map((e) =>"
            " e.dataset.edge)"
        )
        if not edges:
            break
        picked += edges
        assert "A5.H3@13" in page.text(".edge-note")
    into = page.js(
        "return [...document.querySelectorAll('#graph .edge')].map((e) =>"
        " e.dataset.edge).filter((key) => key.includes('A5.H3@13') && !key.startsWith('A5.H3@13'))"
    )
    assert sorted(picked) == sorted(into) and len(picked) >= 2


def test_of_many_positions_the_one_that_is_asked_about_is_in_view(page):
    page.open(
        state(prompt="It was a long day and the men went on and on. " * 4 + MARY, tab="layers")
    )
    page.one(".lens")
    assert page.js(
        "const box = document.querySelector('.scroll'); return box.scrollWidth > box.clientWidth"
    )
    assert page.js(
        "const box = document.querySelector('.scroll').getBoundingClientRect(), cell ="
        " document.querySelector('.lens [tabindex=\"0\"]').getBoundingClientRect(); return"
        " cell.left >= box.left && cell.right <= box.right + 1"
    )


@pytest.mark.parametrize(
    "terms",
    [("why", 12), ("layers", 4), ("heads", 4), ("answer", 4), ("compare", 4), ("circuit", 6)],
)
def test_every_tab_explains_its_words(page, terms):
    tab, least = terms
    page.open(why(tab=tab, other=ANNA, pins="Movers:A5.H3@13"))
    page.one(READY[tab])
    assert len(page.all(".mark")) >= least and (tab == "why" or page.all(".title .mark"))


@pytest.mark.parametrize("node, model", [("MLP5@13", "pocket-llama"), ("A5.H3@13", "pocket-gpt2")])
def test_the_inspector_says_of_a_node_what_the_list_of_sentences_says(page, node, model):
    page.open(why(node=node, model=model))
    listed = page.wait(
        lambda: [
            text
            for text in page.texts(".sentences li")
            if text.startswith(node.split("@")[0] + " ")
        ],
        seconds=40,
    )
    page.wait(lambda: page.text(".inspector .sentence") == listed[0])


def test_every_option_is_explained_and_has_its_label(page):
    page.open(why())
    page.click("#options summary")
    (
        page.js("document.querySelector('#options summary').click()")
        if not page.js("return document.querySelector('#options').open")
        else None
    )
    fields = page.js(
        "return [...document.querySelectorAll('.options select, .options"
        " input:not([type=checkbox])')].map((e) => [e.labels[0]?.textContent ?? '',"
        " !!e.closest('label, fieldset').querySelector('.mark') ||"
        " !!e.closest('fieldset')?.querySelector('.mark')])"
    )
    assert len(fields) > 8 and all(label and marked for label, marked in fields), fields
    page.shot("options")


def test_a_full_screen_shows_the_whole_graph(page):
    page.open(why(routes=40))
    page.one("#fullscreen").click()  # a real one: nothing else may fill the screen
    page.wait(lambda: page.all(".graph-frame.full"))
    hidden = (
        "const frame = document.querySelector('.graph-frame').getBoundingClientRect(), axis ="
        " document.querySelector('#graph .axis .ground').getBoundingClientRect(); return"
        " [...document.querySelectorAll('#graph .node')].map((e) =>"
        " e.getBoundingClientRect()).filter((b) => b.left < frame.left || b.right > frame.right ||"
        " b.top < frame.top || b.bottom > axis.bottom).length"
    )
    page.wait(lambda: page.js(hidden) == 0)
    page.click("#fullscreen")
    page.wait(lambda: not page.all(".graph-frame.full"))


def test_patterns_name_their_tokens_where_there_is_room(page):
    page.open(why(tab="heads"))
    page.one(".patterns")
    assert (
        page.texts(".patterns [data-head] .rows")[0].startswith("<|endoftext")
        and page.text('.patterns [data-head="A5.H3"] .asked') == "·to"
    )
    page.open(
        state(prompt="It was a long day and the men went on and on. " * 3 + MARY, tab="heads")
    )
    page.one(".patterns canvas")
    assert not page.all(".patterns .rows")
