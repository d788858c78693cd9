"""Baselines, interventions and experiments from the command line."""
import json

import pytest
from conftest import MARY


def test_a_baseline_gives_tokens_and_no_paths(unpack):
    got = unpack.json("trace", MARY, "--method", "cplrp", "--target", " Mary", "--versus", " John")
    assert (
        got["method"] == "cplrp"
        and len(got["token_credit"]) == len(got["tokens"])
        and "paths" not in got
    )


def test_a_baseline_cannot_be_rooted(unpack):
    assert "root goes" in unpack.fails(2, "trace", MARY, "--method", "ifr", "--root", "A1.H0@-1")


def test_hiding_the_embedding_from_attention_costs_likelihood(unpack):
    got = unpack.json(
        "intervene", MARY, "--cut", "emb", "--channel", "attention", "--target", " Mary",
        "--versus", " John"
    )
    assert got["cut"]["nll"] > got["clean"]["nll"] and got["cut"]["target"] < got["clean"]["target"]


def test_an_edge_is_patched_from_another_prompt(unpack):
    other = MARY.replace("John gave", "Tom gave")
    got = unpack.json("intervene", MARY, "--edge", "emb@9 -[V]-> A2.H0@-1", "--patch-from", other)
    assert (
        got["cut"]["target"] != got["clean"]["target"] and got["cut"]["nll"] == got["clean"]["nll"]
    )  # no later token is there to lose
    assert "one length" in unpack.fails(
        1, "intervene", MARY, "--edge", "emb@0 -> target", "--patch-from", "Mary"
    )


@pytest.mark.parametrize(
    "args, status",
    [(["--cut", "A99.H0"], 1), ([], 2), (["--edge", "emb@0 -> target"], 2), (["--zero", "99"], 1)],
)
def test_an_intervention_that_makes_no_sense_says_so(unpack, args, status):
    unpack.fails(status, "intervene", MARY, *args)


def test_an_experiment_writes_records_summary_report_and_plot(unpack, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "# a remark\n" + "The old man looked at the sea and said that he would not go\n" * 3
    )
    args = ["experiment", "knockout", "--n", "2", "--corpus", corpus, "--out", tmp_path / "out"]
    report = unpack.ok(*args)
    assert "within-layer" in report and (tmp_path / "out" / "report.md").read_text() == report
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["models"]["pocket-gpt2"]["attention"]["cuts"] > 10
    assert (tmp_path / "out" / "knockout-mlp-pocket-gpt2.svg").read_text().startswith("<svg")
    records = (tmp_path / "out" / "results.jsonl").read_text()
    assert (
        unpack.ok(*args) == report and (tmp_path / "out" / "results.jsonl").read_text() == records
    )
    assert "other settings" in unpack.fails(1, *args, "--seed", "9")


@pytest.mark.parametrize("keep", [2, 30])  # in the middle of the scores, of the cuts
def test_an_interrupted_knockout_ends_in_the_same_bytes_on_any_number_of_threads(
    unpack, tmp_path, keep
):
    corpus, whole, resumed = tmp_path / "corpus.txt", tmp_path / "whole", tmp_path / "resumed"
    corpus.write_text(
        "".join(
            f"The old man looked at the {what} and said that he would not go there again\n"
            for what in ("sea", "house", "door", "road", "fire")
        )
    )
    args = ["experiment", "knockout", "--n", "3", "--corpus", corpus]
    report = unpack.ok(*args, "--threads", "2", "--out", whole)
    lines = (whole / "results.jsonl").read_bytes().split(b"\n")
    assert len(lines) > 60 and all(b"mlp_signed" in line for line in lines[1:4])
    resumed.mkdir()
    (resumed / "results.jsonl").write_bytes(b"\n".join(lines[:keep]) + b"\n" + lines[keep][:30])
    assert unpack.ok(*args, "--threads", "1", "--out", resumed) == report
    for file in whole.iterdir():
        assert (resumed / file.name).read_bytes() == file.read_bytes(), file.name


def test_bad_lines_of_a_corpus_are_named(unpack, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(
        b"The old man looked at the sea and said that he would not go\nbad \xff\n" * 3
    )
    args = ["experiment", "knockout", "--n", "1", "--corpus", corpus, "--out", tmp_path / "out"]
    assert "line 2" in unpack.fails(1, *args, "--stop-at-bad-line")
    assert "line 2" in unpack(*args).stderr


def test_an_unknown_experiment_lists_those_there_are(unpack):
    assert "faithfulness" in unpack.fails(2, "experiment", "nothing")


@pytest.mark.parametrize(
    "name, args",
    [
        ("ioi", ["--corpus", "text.txt"]),
        ("knockout", ["--prompts", "p.txt"]),
        ("sink", ["--all"]),
        ("beta", ["--roles", "find"]),
        ("ioi", ["--claims", "find"]),
        ("suppression", ["--readout", "logit"]),
        ("sink", ["--raw-logit"]),
        ("knockout", ["--whole-sentences"]),
        ("edges", ["--narrow-paths"]),
    ],
)
def test_an_option_of_another_experiment_is_told(unpack, tmp_path, name, args):
    message = unpack.fails(2, "experiment", name, *args, "--out", tmp_path / "out")
    assert (
        args[0][2:].replace("-", "_") in message
        and name in message
        and not (tmp_path / "out").exists()
    )


def test_a_model_that_is_not_there_ends_the_run_before_it_begins(unpack, tmp_path):
    line = unpack.fails(
        1, "experiment", "sink", "--model", "pocket-gpt2,no-such-model", "--n", "1", "--out",
        tmp_path / "out"
    )
    assert "no-such-model" in line and not (tmp_path / "out").exists()
