"""Python and the command line give the same numbers, texts and pictures."""
import json
import subprocess

import numpy as np
import pytest
from conftest import GOLDEN, MARY, PROGRAM

OPTIONS = ["--target", " Mary", "--versus", " John"]


def same(got, want):
    """Equal, numbers up to the rounding of a different order of threads."""
    assert type(got) is type(want) or {type(got), type(want)} <= {int, float}
    if isinstance(want, dict):
        assert list(got) == list(want)
        for name in want:
            same(got[name], want[name])
    elif isinstance(want, list):
        assert len(got) == len(want)
        for mine, theirs in zip(got, want):
            same(mine, theirs)
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
    else:
        assert got == want


def test_a_trace(mary, command_line):
    same(
        mary.trace(target=" Mary", versus=" John").to_dict(), command_line("trace", MARY, *OPTIONS)
    )


def test_a_trace_with_everything_changed(mary, command_line):
    got = mary.trace(
        target=" Mary", versus=" John", root="A3.H1@-1", reroot="target", top_paths=5, branch="K",
        sign="positive", beta=0.5, weights=(0.5, 0.25, 0.25), dispatch="gate", mlp="linearized",
        scores="centered"
    )
    want = command_line(
        "trace", MARY, *OPTIONS, "--root", "A3.H1@-1", "--reroot", "target", "--top-paths", 5,
        "--branch", "K", "--sign", "positive", "--beta", 0.5, "--weights", "0.5,0.25,0.25",
        "--dispatch", "gate", "--mlp", "linearized", "--scores", "centered"
    )
    same(got.to_dict(), want)


def test_a_trace_of_ids_with_a_threshold(golden, command_line):
    got = golden("tiny-llama")[1].trace(target=[9, 4], tau=0.01)
    ids = ",".join(map(str, golden("tiny-llama")[1].ids))
    want = command_line(
        "trace", "--model", GOLDEN / "tiny-llama", "--ids", ids, "--target-id", "9,4", "--tau", 0.01
    )
    same(got.to_dict(), want)


def test_predictions_interactions_attributions_and_tokens(pocket, mary, command_line):
    same(
        pocket.predict(MARY, top=4, lens=True).to_dict(),
        command_line("predict", MARY, "--top", 4, "--lens"),
    )
    same(mary.interactions(query=-1).to_dict(), command_line("interactions", MARY, "--query", -1))
    got = pocket.attribute("Mary and John went to the store. John gave", " a drink to Mary")
    want = command_line(
        "attribute", "Mary and John went to the store. John gave", "--continuation",
        " a drink to Mary"
    )
    same(got.to_dict(), want)
    same(
        pocket.attribute(MARY, generate=3).to_dict(),
        command_line("attribute", MARY, "--generate", 3),
    )
    want = command_line("tokenize", MARY, "--bos")["tokens"]
    assert [token._asdict() for token in pocket.tokenize(MARY, bos=True)] == want


def test_an_intervention(pocket, command_line):
    got = pocket.intervene(
        MARY, cut="A2.H1", channel="mlp", target=" Mary", versus=" John"
    ).to_dict()
    want = command_line("intervene", MARY, "--cut", "A2.H1", "--channel", "mlp", *OPTIONS)
    for run in ("clean", "cut"):
        same(
            {name: got[run][name] for name in ("nll", "target")},
            {name: want[run][name] for name in ("nll", "target")},
        )


def test_sentences(mary, command_line):
    for options, arguments in [
        (OPTIONS, {}),
        (
            [*OPTIONS, "--root", "MLP0@1", "--preset", "released"],
            {"root": "MLP0@1", "preset": "released"},
        ),
    ]:
        want = command_line("trace", MARY, *options, "--words")["sentences"]
        assert len(want) > 2
        same(mary.sentences(len(want), target=" Mary", versus=" John", **arguments), want)


@pytest.mark.parametrize(
    "option,method", [("--svg", "to_svg"), ("--html", "to_html"), ("--tikz", "to_tikz")]
)
def test_pictures(mary, option, method):
    result = mary.trace(target=" Mary", versus=" John")
    written = subprocess.run(
        [PROGRAM, "trace", MARY, *OPTIONS, option, "-"], capture_output=True, text=True, check=True
    ).stdout
    assert getattr(result, method)().strip() == written.strip()
    if option == "--svg":
        assert result.to_svg() in result._repr_html_()


def test_text_for_a_terminal(mary):
    printed = subprocess.run(
        [PROGRAM, "trace", MARY, *OPTIONS],
        capture_output=True,
        text=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    ).stdout
    assert mary.trace(target=" Mary", versus=" John").to_text(width=100) == printed


def test_generation(pocket):
    printed = subprocess.run(
        [PROGRAM, "generate", MARY, "--max-tokens", "8"], capture_output=True, text=True, check=True
    ).stdout
    assert MARY + pocket.generate(MARY, max_tokens=8).text + "\n" == printed


def test_json_and_arrays_hold_the_same_numbers(mary):
    result = mary.trace(target=" Mary", versus=" John", root="A3.H1@-1")
    data = json.loads(result.to_json())
    assert result.token_credit.tolist() == data["token_credit"]
    assert {name: row.tolist() for name, row in result.node_credit.items()} == data["node_credit"]
    for branch, rows in result.incoming.items():
        for name, row in rows.items():
            np.testing.assert_array_equal(
                row, data["incoming"][branch].get(name, np.zeros(len(row)))
            )
    assert result.importance == data["importance"]
