"""One figure: what the page saves is what the program draws."""
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from asking import MARY, state, why
from serving import PROGRAM
from test_exports import save

LONG = "It was a long day and the men went on and on. " * 3 + MARY


def drawn(svg):
    """(texts with their places, lines with their numbers) of the figure: what comes before the
    program's own panels.
    """
    texts, lines = [], []
    panels = False
    for element in ElementTree.fromstring(svg).iter():
        tag = element.tag.split("}")[1]
        panels = panels or element.get("class") in ("h", "s")
        if panels:
            break
        if tag == "text":
            texts.append((element.text, [float(element.get("x")), float(element.get("y"))]))
        elif tag == "path":
            dashed = (
                "dash" in (element.get("class") or "")
                or element.get("stroke-dasharray") is not None
            )
            lines.append(
                (
                    dashed,
                    [float(x) for x in re.findall(r"-?[0-9.]+", element.get("d"))]
                    + [float(element.get("stroke-width"))],
                )
            )
    return sorted(texts), lines


def near(one, other):
    return len(one) == len(other) and all(abs(a - b) < 0.11 for a, b in zip(one, other))


def same(mine, theirs):
    assert [text for text, _ in mine[0]] == [text for text, _ in theirs[0]]
    assert all(near(place, also) for (_, place), (_, also) in zip(mine[0], theirs[0]))
    assert [dashed for dashed, _ in mine[1]] == [dashed for dashed, _ in theirs[1]]
    assert all(near(points, also) for (_, points), (_, also) in zip(mine[1], theirs[1]))
    return True


@pytest.mark.parametrize("routes", [12, 60])
@pytest.mark.parametrize("prompt", [MARY, LONG])
def test_the_page_and_the_program_draw_the_same_figure(page, downloaded, prompt, routes):
    page.open(state(prompt=prompt, targettext=" Mary", versustext=" John", routes=routes))
    page.wait(lambda: len(page.all("#graph .edge")) > 5)
    mine = drawn(save(page, downloaded, "svg")[1])
    command = [
        PROGRAM, "trace", prompt, "--target", " Mary", "--versus", " John", "--top-paths",
        str(routes), "--svg", "-"
    ]
    theirs = drawn(subprocess.run(command, capture_output=True, check=True).stdout)
    words = [text for text, _ in mine[0]]
    assert any(text.startswith("Why ·Mary rather than ·John?") for text in words) and any(
        text.startswith("pocket-gpt2; P(·Mary) = ") for text in words
    )
    assert same(mine, theirs) and len(mine[1]) > 20


def test_the_figure_of_a_root_is_the_same_too(page, downloaded):
    page.open(why(root="A5.H3@13"))
    page.wait(lambda: page.root() == "A5.H3@13" and len(page.all("#graph .edge")) > 5)
    mine = drawn(save(page, downloaded, "svg")[1])
    command = [
        PROGRAM, "trace", MARY, "--target", " Mary", "--versus", " John", "--root", "A5.H3@13",
        "--top-paths", "12", "--svg", "-"
    ]
    theirs = drawn(subprocess.run(command, capture_output=True, check=True).stdout)
    assert any(text.startswith("What does A5.H3@13 read?") for text, _ in mine[0]) and same(
        mine, theirs
    )


@pytest.mark.parametrize("width", [1280, 900, 360])
def test_the_numbers_of_tokens_do_not_run_into_each_other(page, width):
    page.open(why(), width=width)
    page.wait(
        lambda: page.js(
            "return [...document.querySelectorAll('#graph .axis .tiny')].filter((e) =>"
            " e.getClientRects().length).length"
        )
        >= 4
    )  # drawn
    met = page.js(
        """const boxes = [...document.querySelectorAll('#graph .axis .tiny')]
          .filter((e) => e.getClientRects().length)
          .map((e) => e.getBoundingClientRect()).sort((a, b) => a.left - b.left);
        const met = boxes.filter((box, i) => i > 0 && box.left < boxes[i - 1].right - 0.5);
        return [boxes.length, met.length]"""
    )
    assert met[0] >= 4 and met[1] == 0


@pytest.mark.parametrize("width", [1280, 720, 360])
def test_the_tokens_hide_nothing_of_the_graph(page, width):
    page.open(why(), width=width)
    hidden = """
        const ground = document.querySelector('#graph .axis .ground').getBoundingClientRect();
        const bottom = (e) => e.querySelector('.body').getBoundingClientRect().bottom;
        return [...document.querySelectorAll('#graph .node')]
          .filter((e) => bottom(e) > ground.top + 1).map((e) => e.dataset.node)"""
    assert page.js(hidden) == []
