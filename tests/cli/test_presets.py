"""Presets of the method, and the experiment with compiled models, from the command line."""
import json
import subprocess

import pytest


def trace(unpack, *args):
    result = unpack("trace", "The cat sat on the", "--model", "pocket-gpt2", *args, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_preset_is_the_options_it_stands_for(unpack):
    best = trace(unpack, "--preset", "best")
    options = best["options"]
    assert (options["direction"], options["floor"], options["keys"], options["scores"]) == (
        "read", 1, "spread", "centered"
    )
    same = trace(
        unpack, "--preset", "paper", "--beta", "0.2", "--scores", "centered", "--direction", "read",
        "--floor", "1", "--keys", "spread"
    )
    assert same["token_credit"] == pytest.approx(best["token_credit"])
    paper = trace(unpack, "--preset", "paper")["options"]
    assert (paper["beta"], paper["direction"], paper["scores"], paper["mlp"]) == (
        0.8, "output", "raw", "per-neuron"
    )


def test_the_default_is_best(unpack):
    assert trace(unpack)["options"] == trace(unpack, "--preset", "best")["options"]


def test_rules_without_a_direction_say_that_they_took_the_output(unpack):
    answer = trace(unpack, "--preset", "best", "--dispatch", "gate")
    assert answer["options"]["direction"] == "output"
    assert any("gate" in warning for warning in answer["warnings"])


def test_options_beside_a_preset_override_it_in_any_order(unpack):
    after = trace(unpack, "--preset", "released", "--reroot", "output")["options"]
    before = trace(unpack, "--reroot", "output", "--preset", "released")["options"]
    assert after == before
    assert after["reroot"] == "output" and after["mlp"] == "linearized"


def test_paths_of_best_add_up(unpack):
    answer = trace(unpack, "--preset", "best", "--top-paths", "30")
    sizes = [abs(p["credit"]) for p in answer["paths"]]
    assert len(sizes) == 30 and sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= answer["coverage"]["absolute_total"] * 1.0001


def test_edges_are_the_credit_of_the_nodes_they_lead_to(unpack):
    for preset in ("paper", "best"):
        answer = trace(unpack, "--preset", preset, "--edges", "--top-paths", "0")
        got = {}
        for edge in answer["edges"]:
            got[edge["writer"]] = got.get(edge["writer"], 0) + edge["credit"]
        largest = max(abs(sum(v)) for v in answer["node_credit"].values())
        for writer, credit in answer["node_credit"].items():
            assert got.get(writer, 0) == pytest.approx(sum(credit), abs=1e-3 * largest)


@pytest.mark.parametrize(
    "args, words",
    [
        (["--preset", "worst"], "preset takes one of"),
        (["--floor", "-1"], "floor"),
    ],
)
def test_what_does_not_go_together_is_said_so(unpack, args, words):
    result = unpack("trace", "The cat", "--model", "pocket-gpt2", *args)
    assert result.returncode == 2 and words in result.stderr


def test_compiled_models_are_measured_and_the_run_resumes(unpack, tmp_path):
    args = [
        "experiment", "compiled", "--program", "previous-token", "--noise", "0", "--n", "1",
        "--out", str(tmp_path / "run")
    ]
    first = unpack(*args)
    assert first.returncode == 0, first.stderr
    assert "best" in first.stdout and "1 of 1" in first.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for form in ("gpt2", "llama"):
        assert summary["models"][form]["previous-token"]["0"]["methods"]["best"]["auroc"] == 1
    assert (tmp_path / "run" / "compiled-previous-token.svg").read_text().startswith("<svg")
    assert unpack(*args).stdout == first.stdout


def test_a_saved_model_is_one_that_loads(unpack, tmp_path):
    saved = unpack(
        "experiment", "compiled", "--program", "induction", "--format", "llama", "--noise", "0",
        "--n", "1", "--save", str(tmp_path / "m")
    )
    assert saved.returncode == 0, saved.stderr
    circuit = json.loads((tmp_path / "m" / "circuit.json").read_text())
    prompt = circuit["prompts"][0]
    answer = unpack(
        "predict",
        "--model",
        str(tmp_path / "m"),
        "--ids",
        ",".join(map(str, prompt["ids"])),
        "--json",
        "-",
    )
    assert json.loads(answer.stdout)["predictions"][0]["id"] == prompt["target_id"]
    assert {"writer": "A1.H0", "reader": "A2.H0", "branch": "K"} in circuit["true_edges"]


def test_an_unknown_program_is_named(unpack, tmp_path):
    result = unpack("experiment", "compiled", "--program", "chess", "--out", str(tmp_path / "x"))
    assert result.returncode == 2 and "chess" in result.stderr
