"""Files that the page saves, and what it prints."""
import csv
import io
import json
import os
import re

import pytest
from asking import ANNA, MARY, why
from test_page import visible


def save(page, downloaded, suffix):
    page.click(f'#export [data-format="{suffix}"]')
    return downloaded(f".{suffix}")


def test_the_figure_is_saved_in_every_format_under_the_questions_name(page, downloaded):
    page.open(why(), dark=True)
    for suffix, start in [
        ("svg", b"<svg"),
        ("pdf", b"%PDF-1.4"),
        ("png", b"\x89PNG"),
        ("tex", b"% Compile with pdflatex"),
        ("csv", b"\xef\xbb\xbfroute"),
        ("json", b"{"),
        ("html", b"<!doctype"),
    ]:
        name, content = save(page, downloaded, suffix)
        assert (
            name == f"why-mary-rather-than-john.{suffix}"
            and content.startswith(start)
            and len(content) > 800
        ), name
        if os.environ.get("UNPACK_SHOTS"):
            open(os.path.join(os.environ["UNPACK_SHOTS"], name), "wb").write(content)
        if suffix in ("svg", "html"):
            text = content.decode()
            assert suffix == "html" or outside(page, text) == []
            assert (
                'fill="#ffffff"/>' in text
                and "Why ·Mary rather than ·John?" in text
                and "pocket-gpt2" in text
                and "raises the target" in text
                and "of the net credit" in text
            )
            assert "var(--" not in text and not re.search(r"https?://(?!www\.w3\.org)", text)
        if suffix == "json":
            assert len(json.loads(content)["paths"]) == 12
        if suffix == "png":
            assert len(content) > 20_000


def outside(page, svg):
    """Texts of a picture that leave it."""
    return page.js(
        """
        const read = new DOMParser().parseFromString(arguments[0], 'image/svg+xml').documentElement;
        const svg = document.body.appendChild(document.importNode(read, true));
        const width = svg.width.baseVal.value, height = svg.height.baseVal.value;
        const out = [...svg.querySelectorAll('text')].filter((e) => {
          const b = e.getBBox();
          return b.x < 0 || b.y < 0 || b.x + b.width > width || b.y + b.height > height; });
        svg.remove();
        return out.map((e) => e.textContent)""",
        svg,
    )


def looks(page, server):
    """Weights that are worth a row, of the heads that are shown."""
    heads = page.js(
        "return [...document.querySelectorAll('.patterns [data-head]')].map((e) => e.dataset.head)"
    )
    patterns = [
        head["pattern"] for head in server.ok("attention", prompt=MARY, heads=heads)["heads"]
    ]
    return sum(weight >= 0.001 for pattern in patterns for row in pattern for weight in row)


# Rows of every tab's table.
ROWS = {
    "layers": (
        lambda page, server: 9 * 14
    ),  # the stream before every layer and the output, at every position
    "heads": looks,
    "answer": lambda page, server: len(page.all(".output .chip")),
    "compare": (
        lambda page, server: 14
        + len(page.all(".components tbody tr"))
        + len(page.all(".routes-differ tbody tr"))
    ),
    "circuit": lambda page, server: len(page.all(".group li")),
}


@pytest.mark.parametrize("tab", ["layers", "heads", "answer", "compare", "circuit"])
def test_every_tab_can_be_saved(page, server, downloaded, tab):
    page.open(why(tab=tab, other=ANNA, pins="Movers:A5.H3@13"))
    page.wait(lambda: page.all(".lens, .patterns, .output, .components, .group"))
    for suffix in ("svg", "csv", "json", "pdf"):
        name, content = save(page, downloaded, suffix)
        assert name == f"why-mary-rather-than-john-{tab}.{suffix}"
        if suffix == "csv":
            table = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
            assert {len(row) for row in table} == {len(table[0])}, "every row has every column"
            assert len(table) == 1 + ROWS[tab](page, server)
        if suffix == "json":
            assert json.loads(content)
        if suffix == "pdf":
            assert content.startswith(b"%PDF") and content.rstrip().endswith(b"%%EOF")
        if suffix == "svg":
            assert outside(page, content.decode()) == [], "letters past the edge"
            assert "pocket-gpt2" in content.decode()
            if os.environ.get("UNPACK_SHOTS"):
                open(os.path.join(os.environ["UNPACK_SHOTS"], name), "wb").write(content)


def test_the_data_of_a_root_has_what_the_graph_does_without(page, downloaded):
    page.open(why(root="A5.H3@13"))
    data = json.loads(save(page, downloaded, "json")[1])
    assert data["root"] == "A5.H3@13" and len(data["paths"]) == 12
    assert (
        data["incoming"].keys() == {"K", "Q", "V"}
        and data["incoming"]["K"]
        and data["composition"]["all"]
    )


def test_a_route_that_is_not_listed_is_not_saved_as_nothing(page, downloaded):
    page.open(why(tab="compare", other=ANNA))
    weak = page.wait(lambda: sum("weak" in text for text in page.texts(".routes-differ th")))
    assert save(page, downloaded, "svg")[1].decode().count(">weak<") == weak
    table = list(csv.reader(io.StringIO(save(page, downloaded, "csv")[1].decode("utf-8-sig"))))
    assert sum("" in row for row in table if row[0] == "route") == weak


def test_a_circuits_figure_says_its_net_share(page, downloaded):
    page.open(why(tab="circuit", pins="Movers:A5.H3@13,A5.H4@13;Early:MLP0@1"))
    net = re.search(r"alone carry \d+% of the net credit", page.text("#circuit-share")).group()
    figure = save(page, downloaded, "svg")[1].decode()
    assert net in figure and figure.count("routes through it: ") == 2
    assert outside(page, figure) == []


@pytest.mark.parametrize("chosen", [False, True])
def test_printing_shows_the_figure_first_and_all_of_it_on_white(page, chosen):
    """From a dark page, too: whether the system asks for dark, or the person."""
    page.open(why(), dark=not chosen)
    if chosen:
        page.choose("[aria-label=Theme]", "dark")
        page.wait(
            lambda: page.js("return getComputedStyle(document.body).backgroundColor")
            == "rgb(16, 21, 27)"
        )
    page.one(".sentences")
    page.js("dispatchEvent(new Event('beforeprint'))")
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {
            "media": "print",
            "features": [{"name": "prefers-color-scheme", "value": "light" if chosen else "dark"}],
        },
    )
    assert (
        visible(page, "#printed svg")
        and not visible(page, "header")
        and not visible(page, "#graph")
    )
    assert (
        page.js(
            "return ['body', '.ask', '.words'].map((s) =>"
            " getComputedStyle(document.querySelector(s)).backgroundColor)"
        )
        == ["rgb(255, 255, 255)"] * 3
    )
    assert (
        page.js("return getComputedStyle(document.querySelector('.sentences')).color")
        == "rgb(23, 32, 43)"
    )
    assert page.js(
        "return document.querySelector('#printed').getBoundingClientRect().bottom <="
        " document.querySelector('.ask').getBoundingClientRect().top + 1"
    )
    page.shot("print")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    if chosen:
        page.choose("[aria-label=Theme]", "auto")
