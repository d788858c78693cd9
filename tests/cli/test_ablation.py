"""`unpack intervene --ablate` and `unpack trace --words` from outside."""
import json

import pytest
from conftest import MARY

QUESTION = (MARY, "--target", " Mary", "--versus", " John")


def change(unpack, *options):
    got = unpack.json("intervene", *QUESTION, *options)
    return got["cut"]["target"] - got["clean"]["target"]


def test_ablating_a_name_mover_takes_the_answer_away_and_hiding_it_does_not(unpack):
    assert change(unpack, "--component", "A5.H3", "--ablate", "zero") < -3
    assert change(unpack, "--component", "A5.H3", "--ablate", "mean") < -3
    assert (
        change(
            unpack,
            "--component",
            "A5.H3@-1",
            "--ablate",
            "resample",
            "--patch-from",
            MARY.replace("Mary", "Anna"),
        )
        < -3
    )
    assert abs(change(unpack, "--cut", "A5.H3", "--channel", "attention")) < 0.5
    assert change(unpack, "--cut", "A5.H3", "--ablate", "zero") == pytest.approx(
        change(unpack, "--component", "A5.H3"), rel=1e-4
    )


def test_scaling_steers(unpack):
    assert change(unpack, "--component", "A5.H3", "--scale", "2") > 1
    assert change(unpack, "--component", "A5.H3,A5.H4", "--scale", "1") == pytest.approx(
        0, abs=1e-3
    )


def test_what_is_kept_alone_is_what_is_left_when_all_else_is_ablated(unpack):
    kept = ("A5.H3", "MLP0")
    rest = [f"A{layer}.H{head}" for layer in range(8) for head in range(8)] + [
        f"MLP{layer}" for layer in range(8)
    ]
    by_hand = change(
        unpack,
        "--component",
        ",".join(name for name in rest if name not in kept),
        "--ablate",
        "mean",
    )
    assert change(
        unpack, "--component", ",".join(kept), "--keep", "--ablate", "mean"
    ) == pytest.approx(by_hand, rel=1e-4)
    assert change(unpack, "--component", ",".join(rest), "--keep") == pytest.approx(0, abs=1e-4)
    assert abs(by_hand) > 0.1 and change(unpack, "--keep") == pytest.approx(
        change(unpack, "--component", ",".join(rest)), rel=1e-4
    )


@pytest.mark.parametrize(
    "options, status, message",
    [
        (("--ablate", "zero"), 2, "component"),
        (("--component", "A5.H3", "--ablate", "half"), 2, "zero, mean, resample"),
        (("--component", "A5.H3", "--scale", "much"), 2, "scale"),
        (("--component", "A5.H3", "--scale", "inf"), 2, "scale"),
        (("--component", "A55.H3"), 1, "A55.H3"),
        (("--component", "A5.H3@99"), 1, "99"),
        (("--component", ""), 1, ""),
        (("--component", "A5.H3", "--ablate", "resample"), 2, "patch"),
        (
            ("--component", "A5.H3", "--ablate", "resample", "--patch-from", "too short"),
            1,
            "one length",
        ),
    ],
)
def test_wrong_ablations_are_refused_in_one_line(unpack, options, status, message):
    result = unpack("intervene", MARY, *options)
    assert (
        result.returncode == status and message in result.stderr and result.stderr.count("\n") == 1
    ), result.stderr


def test_words_tell_what_the_strongest_components_do(unpack):
    for preset, feeds in (("paper", "A1.H1"), ("best", "MLP0")):
        text = unpack.ok("trace", *QUESTION, "--words", "--preset", preset)
        said = text.split("In words\n")[1]
        assert (
            "A5.H3 at ·to (13) looks 83% at Mary and copies it (V)" in said
            and f"because {feeds} at Mary feeds its keys (K)" in said
        )
        answer = json.loads(
            unpack.ok("trace", *QUESTION, "--words", "--preset", preset, "--json", "-")
        )
        assert (
            "A5.H3@13" in [sentence["node"] for sentence in answer["sentences"]][:2]
            and answer["words"]
        )
    assert "In words" not in unpack.ok("trace", *QUESTION)
