"""unpack circuit: what its files hold, and what bad tasks are told."""
import json
import signal
import subprocess
import time
import xml.etree.ElementTree as ET

import pytest
from conftest import PROGRAM, ROOT

PROMPT = "Mary and John went to the store. John gave a drink to"
OTHER = "Anna and Mark went to the store. Paul gave a drink to"


def write_task(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def found(unpack, tmp_path_factory):
    folder = tmp_path_factory.mktemp("circuit")
    task = write_task(
        folder / "task.jsonl",
        {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER},
        {
            "prompt": PROMPT,
            "target": " John",
            "versus": " Mary",
            "counterfactual": OTHER,
        },  # the model is wrong here
    )
    said = unpack(
        "circuit", task, "--preset", "paper", "--out", folder / "out", "--sizes", "1%,20%,100%",
        "--size", "60", "--mib", folder / "mib.json", "--neuronpedia", folder / "np.json"
    )
    assert said.returncode == 0, said.stderr
    return folder, said


def test_credit_is_that_of_trace_over_the_first_absolute_credit(unpack, found):
    circuit = json.loads((found[0] / "out" / "circuit.json").read_text())
    traced = unpack.json(
        "trace", PROMPT, "--target", " Mary", "--versus", " John", "--preset", "paper", "--edges"
    )["edges"]
    first = sum(abs(e["credit"]) for e in traced if e["reader"] == "target")
    want = {(e["writer"], e["reader"], e["branch"]): e["credit"] / first for e in traced}
    got = {(e["writer"], e["reader"], e["branch"]): e for e in circuit["edges"]}
    assert set(got) == {key for key, credit in want.items() if credit != 0}
    for key, edge in got.items():
        assert edge["credit"] == pytest.approx(want[key], rel=1e-4, abs=1e-9)
        assert edge["absolute"] == pytest.approx(abs(edge["credit"]))
    assert [e["rank"] for e in circuit["edges"]] == list(range(1, len(got) + 1))
    sizes = [e["absolute"] for e in circuit["edges"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(
        e["branch"] in ("K", "Q", "V") if e["reader"].startswith("A") else e["branch"] is None
        for e in circuit["edges"]
    )


def test_wrong_prompts_are_left_out_and_counted(found):
    circuit = json.loads((found[0] / "out" / "circuit.json").read_text())
    assert circuit["prompts"] == 1 and circuit["wrong"] == 1
    assert "1 of 2 prompts were left out" in found[1].stderr


def test_the_kept_edges_are_connected_and_measured(found):
    circuit = json.loads((found[0] / "out" / "circuit.json").read_text())
    kept = [e for e in circuit["edges"] if e["in_circuit"]]
    assert len(kept) == circuit["circuit"]["edges"] <= 60 and all("drop" in e for e in kept)
    fed = {"emb", "pos"}
    for _ in kept:
        fed |= {e["reader"] for e in kept if e["writer"] in fed}
    assert all(e["writer"] in fed for e in kept) and "target" in fed
    assert circuit["sizes"][-1]["faithfulness"] == pytest.approx(1, abs=1e-4)
    faith = [(p["share"], p["faithfulness"]) for p in circuit["sizes"]]
    area = sum(
        (b[0] - a[0]) * (abs(1 - a[1]) + abs(1 - b[1])) / 2 for a, b in zip(faith, faith[1:])
    )
    assert circuit["cmd"] == pytest.approx(area, abs=1e-9)


def test_other_programs_files_have_their_shape(unpack, found):
    folder = found[0]
    mib = json.loads((folder / "mib.json").read_text())
    assert mib["cfg"] == {"n_layers": 8, "n_heads": 8, "parallel_attn_mlp": False, "d_model": 256}
    assert set(mib["nodes"]["a0.h0"]) == {"in_graph"} and set(mib["edges"]["input->a0.h0<q>"]) == {
        "score",
        "in_graph",
    }
    assert len(mib["nodes"]) == 2 + 8 * 9
    assert (
        len(mib["edges"]) == sum(24 * (1 + 9 * l) + 9 + 9 * l for l in range(8)) + 73
    )  # one input for tokens and positions
    kept = [
        e
        for e in json.loads((folder / "out" / "circuit.json").read_text())["edges"]
        if e["in_circuit"]
    ]
    names = {"emb": "input", "pos": "input", "target": "logits"}
    short = lambda name: names.get(name) or name.lower().replace("mlp", "m")
    want = {
        f"{short(e['writer'])}->{short(e['reader'])}"
        + (f"<{e['branch'].lower()}>" if e["branch"] else "")
        for e in kept
    }
    assert {name for name, edge in mib["edges"].items() if edge["in_graph"]} == want
    probability = unpack.json("trace", PROMPT, "--target", " Mary")["target"]["probability"]
    for graph in (
        json.loads((folder / "np.json").read_text()),
        json.loads(unpack.ok("trace", PROMPT, "--target", " Mary", "--neuronpedia", "-")),
    ):
        assert set(graph["metadata"]) >= {"slug", "scan", "prompt_tokens", "prompt"} and graph[
            "metadata"
        ]["prompt"].endswith("a drink to")
        ids = {node["node_id"] for node in graph["nodes"]}
        assert len(ids) == len(graph["nodes"]) and all(
            link["source"] in ids and link["target"] in ids for link in graph["links"]
        )
        keys = {
            "node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp",
            "influence", "activation"
        }
        assert all(keys <= set(node) for node in graph["nodes"])
        logit = [node for node in graph["nodes"] if node["feature_type"] == "logit"]
        assert len(logit) == 1 and f"(p={probability:.2f})" in logit[0]["clerp"]


def test_pictures_and_graphs_hold_every_kept_edge(found):
    folder = found[0] / "out"
    kept = [
        e for e in json.loads((folder / "circuit.json").read_text())["edges"] if e["in_circuit"]
    ]
    graph = ET.parse(folder / "circuit.graphml").getroot()
    assert len(graph.findall(".//{*}edge")) == len(kept)
    assert (folder / "circuit.dot").read_text().count(" -> ") == len(kept)
    drawn = ET.parse(folder / "circuit.svg").getroot()
    assert len([g for g in drawn.iter() if g.get("class") == "edge"]) == len(kept)
    report = (folder / "report.md").read_text()
    assert (
        "curves.svg" in report
        and "unpack circuit task.jsonl" in report
        and (folder / "curves.svg").exists()
    )


def test_csv_is_read_like_json_lines(unpack, tmp_path):
    (tmp_path / "task.csv").write_text(
        f'prompt, target,versus ,counterfactual\n"{PROMPT}"," Mary"," John","{OTHER}"\n'
    )
    options = ("--sizes", "5%,100%", "--minimality", "0", "--method", "random")
    unpack.ok("circuit", tmp_path / "task.csv", "--out", tmp_path / "a", *options)
    write_task(
        tmp_path / "task.jsonl",
        {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER},
    )
    unpack.ok("circuit", tmp_path / "task.jsonl", "--out", tmp_path / "b", *options)
    a, b = (json.loads((tmp_path / name / "circuit.json").read_text()) for name in "ab")
    assert a["sizes"] == b["sizes"]


def test_compare_puts_every_method_into_one_report(unpack, tmp_path):
    unpack.ok(
        "experiment", "compiled", "--program", "induction", "--format", "gpt2", "--noise", "0",
        "--save", tmp_path / "models"
    )
    model = next(path.parent for path in (tmp_path / "models").rglob("config.json"))
    truth = json.loads((model / "circuit.json").read_text())
    keys = ("ids", "counterfactual_ids", "target_id", "versus_id")
    task = write_task(tmp_path / "task.jsonl", *({k: p[k] for k in keys} for p in truth["prompts"]))
    unpack.ok(
        "circuit", task, "--model", model, "--compare", "--sizes", "10%,100%", "--out",
        tmp_path / "out"
    )
    report = (tmp_path / "out" / "report.md").read_text()
    assert all(
        f"| {name}" in report
        for name in (
            "ours, best |", "ours, best, contrast |", "ifr", "eap", "eap-ig, 5 steps", "patching",
            "random"
        )
    )
    true = {(e["writer"], e["reader"], e["branch"]) for e in truth["true_edges"]}
    constant = {(e["writer"], e["reader"], e["branch"]) for e in truth["constant_edges"]}
    ranked = [
        (e["writer"], e["reader"], e["branch"])
        for e in json.loads((tmp_path / "out" / "circuit.json").read_text())["edges"]
    ]
    assert {e for e in ranked if e not in constant} >= true
    assert set([e for e in ranked if e not in constant][: len(true)]) == true


@pytest.mark.parametrize(
    "row, options, said",
    [
        (
            {"prompt": PROMPT, "target": " Mary", "counterfactual": "Anna went"},
            (),
            "line 1: the counterfactual has",
        ),
        ({"prompt": PROMPT, "target": " Mary and John"}, (), "line 1: target"),
        ({"prompt": PROMPT, "target": " Mary", "versus": " John"}, (), "has no counterfactual"),
        ({"target": " Mary"}, (), "line 1: neither prompt nor ids"),
        ({"prompt": PROMPT}, (), "line 1: neither target nor target_id"),
        (
            {"prompt": PROMPT, "target": " John", "versus": " Mary", "counterfactual": OTHER},
            (),
            "prefers another answer on all 1 prompts",
        ),
        (
            {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER},
            ("--sizes", "0.001%"),
            "leaves nothing",
        ),
        (
            {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER},
            ("--size", "1"),
            "leave no way",
        ),
        (
            {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER},
            ("--sizes", "x"),
            "a size is a percentage",
        ),
        (
            {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": PROMPT},
            (),
            "ablating every edge changes nothing",
        ),
    ],
)
def test_bad_tasks_get_one_line(unpack, tmp_path, row, options, said):
    task = write_task(tmp_path / "task.jsonl", row)
    assert said in unpack.fails(
        2 if options[:1] == ("--sizes",) else 1,
        "circuit",
        task,
        "--out",
        tmp_path / "out",
        *options,
    )
    assert not (tmp_path / "out").exists()


def test_a_task_that_is_nothing_is_said_so(unpack, tmp_path):
    assert "neither a file nor a task" in unpack.fails(
        1, "circuit", "iou", "--out", tmp_path / "out"
    )
    assert "--out FOLDER" in unpack.fails(2, "circuit", "ioi")


@pytest.mark.parametrize(
    "options", [("--nodes",), ("--ablate", "mean"), ("--ablate", "zero"), ("--contrast",)]
)
def test_other_ways_to_keep_and_to_ablate_end_at_the_whole_model(unpack, tmp_path, options):
    rows = [{"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER}]
    task = write_task(tmp_path / "task.jsonl", *rows)
    unpack.ok(
        "circuit", task, "--out", tmp_path / "out", "--sizes", "5%,50%,100%", "--minimality", "2",
        *options
    )
    circuit = json.loads((tmp_path / "out" / "circuit.json").read_text())
    assert circuit["sizes"][-1]["faithfulness"] == pytest.approx(1, abs=1e-4)
    assert circuit["sizes"][-1]["necessity"] == pytest.approx(1, abs=1e-4)
    kept = [e for e in circuit["edges"] if e["in_circuit"]]
    if "--nodes" in options:
        assert circuit["sizes"][1]["asked"] == 36 and circuit["all_nodes"] == 72
        nodes = {e["writer"] for e in kept} - {"emb", "pos"}
        into = {(e["writer"], e["reader"]) for e in kept}
        assert all(
            (writer, "target") in into for writer in nodes
        )  # whole components: all edges between them that have credit


def test_an_interrupted_search_goes_on_where_it_stopped(unpack, tmp_path):
    options = [
        "ioi", "--model", "pocket-neox", "--preset", "paper", "--n", "2", "--sizes", "1%,100%",
        "--minimality", "60"
    ]
    unpack.ok("circuit", *options, "--out", tmp_path / "whole")
    process = subprocess.Popen(
        [PROGRAM, "circuit", *options, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    kept = tmp_path / "out" / "search.jsonl"
    deadline = time.monotonic() + 60
    while not (kept.exists() and kept.read_text().count("\n") > 8):  # in the middle of the proof
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (
        process.returncode == 130
        and "the same command goes on" in said
        and not (tmp_path / "out" / "circuit.json").exists()
    )
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines) + "\n" + lines[-1][:40])  # and was killed while it wrote
    unpack.ok("circuit", *options, "--out", tmp_path / "out")
    assert not kept.exists()
    whole, again = (
        json.loads((tmp_path / name / "circuit.json").read_text()) for name in ("whole", "out")
    )
    assert again == whole


def test_a_search_that_fails_leaves_nothing(unpack, tmp_path):
    task = write_task(
        tmp_path / "task.jsonl",
        {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": PROMPT},
    )
    assert "changes nothing" in unpack.fails(1, "circuit", task, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_edges_at_positions_add_up_to_edges_and_are_proven(unpack, found, tmp_path):
    task = write_task(
        tmp_path / "task.jsonl",
        {"prompt": PROMPT, "target": " Mary", "versus": " John", "counterfactual": OTHER},
        {
            "prompt": "Then " + PROMPT,
            "target": " Mary",
            "versus": " John",
            "counterfactual": "Then " + OTHER,
        },
    )
    said = unpack(
        "circuit", task, "--preset", "paper", "--positions", "--sizes", "1%,100%", "--size", "100",
        "--minimality", "3", "--out", tmp_path / "out", "--mib", tmp_path / "mib.json"
    )
    assert (
        said.returncode == 0
        and "1 of 2 prompts were left out: they have another length" in said.stderr
    )
    placed = json.loads((tmp_path / "out" / "circuit.json").read_text())
    assert placed["positions"] is True and placed["prompts"] == 1 and placed["other_length"] == 1
    sums = {}
    for edge in placed["edges"]:
        writer, position = edge["writer"].split("@")
        assert 0 <= int(position) < placed["all_edges"] // 6838
        key = (writer, edge["reader"], edge["branch"])
        sums[key] = sums.get(key, 0.0) + edge["credit"]
    plain = json.loads((found[0] / "out" / "circuit.json").read_text())
    want = {(e["writer"], e["reader"], e["branch"]): e["credit"] for e in plain["edges"]}
    assert all(
        sums.get(key, 0.0) == pytest.approx(credit, rel=1e-4, abs=1e-7)
        for key, credit in want.items()
    )
    assert placed["sizes"][-1]["faithfulness"] == pytest.approx(1, abs=1e-4)
    assert all(e["writer"].endswith("@13") for e in placed["edges"] if e["reader"] == "target")
    drawn = ET.parse(tmp_path / "out" / "circuit.svg").getroot()
    kept = {
        (e["writer"].split("@")[0], e["reader"], e["branch"])
        for e in placed["edges"]
        if e["in_circuit"]
    }
    assert len([g for g in drawn.iter() if g.get("class") == "edge"]) == len(kept)
    assert "do not go together" in unpack.fails(
        2, "circuit", task, "--positions", "--nodes", "--out", tmp_path / "none"
    )


def test_methods_that_a_model_does_not_have_are_left_out_of_a_comparison(unpack, tmp_path):
    task = write_task(
        tmp_path / "task.jsonl",
        {"ids": [1, 2, 3, 4], "target_id": 5, "versus_id": 6, "counterfactual_ids": [4, 3, 2, 1]},
        {"ids": [1, 2, 3, 4], "target_id": 6, "versus_id": 5, "counterfactual_ids": [4, 3, 2, 1]},
    )
    model = ROOT / "tests" / "golden" / "tiny-mixtral"
    said = unpack(
        "circuit", task, "--model", model, "--compare", "--sizes", "50%,100%", "--out",
        tmp_path / "out"
    )
    assert (
        said.returncode == 0
        and "eap was left out: eap and eap-ig know no gradient of mixtral" in said.stderr
    )
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| patching" in report and "| eap" not in report
