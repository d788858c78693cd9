"""The names of the paper's package: the examples of its README with another import, and what they
promise.
"""
import json
import types

import numpy as np
import pytest
from conftest import EXPECTED, GOLDEN, MARY
from test_package import read_safetensors

TEXT = "Mary and John went to the store. John gave the bag to"
compat = pytest.importorskip("unpack_engine.compat")


@pytest.fixture(scope="module")
def tracer(pocket):
    return compat.Tracer(pocket)


@pytest.fixture(scope="module")
def result(tracer):
    return tracer.trace(TEXT, target=" Mary", distractor=" John")


def test_a_trace_without_a_config_follows_all_branches_aligned(pocket, result):
    want = pocket.trace(
        TEXT, target=" Mary", versus=" John", weights=(0.333, 0.333, 0.333), mlp="linearized",
        scores="centered", preset="paper", top_paths=20
    )
    np.testing.assert_allclose(result.token_attribution, want.token_percent)
    assert result.tokens == [t.text for t in want.tokens] and result.target_token == " Mary"
    assert [p.score for p in result.paths] == [p.percent for p in want.paths] and len(
        result.paths
    ) == 20


def test_a_path_is_named_from_the_target_to_its_source(result):
    for path in result.paths:
        steps = path.chain.split(" → ")
        assert [
            step.split("@")[0].split("[")[0] for step in steps
        ] == path.components and path.depth == len(steps) - 1
        assert path.components[-1] in ("embedding", "pos_embedding") and steps[-1].endswith(
            f"@{path.source_pos}"
        )
        assert path.source_token == result.tokens[path.source_pos]
        assert path.modes == [
            step[step.index("[") + 1] for step in steps if step.startswith("attn_") and "[" in step
        ]
        assert np.sign(path.raw_score) == np.sign(path.score)
    assert any(path.modes for path in result.paths)


def test_what_is_printed_names_tokens_paths_and_components(result, capsys):
    result.print()
    result.print_tokens()
    result.print_paths(top_k=2)
    result.print_components()
    printed = capsys.readouterr().out
    assert " Mary" in printed and "embedding" in printed and "mlp_0" in printed


def test_presets_and_settings(tracer):
    assert list(compat.PRESETS) == [
        "default", "k_only_weighted", "k_only_l2", "k_only_aligned", "kqv_weighted", "kqv_l2",
        "kqv_aligned"
    ]
    assert (
        compat.PRESETS["default"]
        == compat.PRESETS["kqv_aligned"]
        == compat.TraceConfig(branches="kqv", mlp_rule="weighted", aligned=True)
    )
    assert len(tracer.trace(TEXT, target=" Mary", top_paths_k=200).paths) == 200
    assert tracer.trace(TEXT, target=" Mary", config="k_only_weighted").trace.options[
        "weights"
    ] == [1, 0, 0]
    assert (
        tracer.trace(TEXT, target=" Mary", branches="kqv", aligned=True, beta=0.5).trace.options[
            "beta"
        ]
        == 0.5
    )
    with pytest.raises(ValueError, match="aligned goes with"):
        tracer.trace(TEXT, target=" Mary", aligned=True, mlp_rule="l2")
    with pytest.raises(ValueError, match="config"):
        tracer.trace(MARY, config="best")
    with pytest.raises(TypeError, match="gamma"):
        tracer.trace(MARY, gamma=1)


def test_rerooting_without_a_position_takes_the_targets(tracer):
    prep, cfg = tracer.prepare(TEXT, target=" Mary", distractor=" John")
    last = len(prep.prepared.ids) - 1
    for head in ["attn_7_head_3", "attn_5_head_4"]:
        r = tracer.trace_from_prep(prep, cfg, root=head)
        assert r.root == f"{head}@{last}" and r.trace.options["reroot"] == "target"
        assert r.paths[0].components[0] == head
    assert compat.trace_from_prep(prep, cfg, root="attn_3_head_1@9").root == "attn_3_head_1@9"


def test_graphs_are_drawn_and_emptied(tracer, result, tmp_path):
    from unpack_engine.compat.viz import CircuitGraph

    graph = CircuitGraph.from_tracer(tracer)
    graph.tokens = result.tokens
    graph.target_token = result.target_token
    graph.add_paths(result.paths[:5])
    graph.save_html(tmp_path / "paths.html")
    graph.save_tikz(tmp_path / "paths.tex")
    data = graph.to_dict()
    assert json.loads(json.dumps(data)) == data and len(data["paths"]) == 5
    named = {
        step.split("[")[0] + "@" + step.split("@")[1] if "[" in step else step
        for p in result.paths[:5]
        for step in p.chain.split(" → ")
    }
    assert {n["id"] for n in data["nodes"]} == named | {"target"}
    into = sum(e["score"] for e in data["edges"] if e["target"] == "target")
    assert into == pytest.approx(sum(p.raw_score for p in result.paths[:5]))
    page = (tmp_path / "paths.html").read_text()
    assert page == graph.render_html() and page.count("<rect") == len(data["nodes"])
    assert graph.render_tikz().count("\\draw") == len(data["edges"])
    graph.clear_paths()
    graph.root = "attn_7_head_3"
    prep, cfg = tracer.prepare(TEXT, target=" Mary")
    graph.add_paths(tracer.trace_from_prep(prep, cfg, root=graph.root).paths[:3])
    assert all(
        n["component"] != "target" for n in graph.to_dict()["nodes"]
    ) and "attn_7_head_3" in graph.render_html() + str(graph.to_dict())


def test_discovery_begins_at_late_heads_and_walks_up(tracer, capsys):
    prompt = {
        "text": MARY,
        "target": " Mary",
        "distractor": " John",
        "positions": {"END": 13, "S2": 8},
    }
    one = compat.discover_one(tracer, prompt, seed_min_layer=6, mlp_flow_frac=0.5)
    assert one["seeds"] and all(int(head.split("_")[1]) >= 6 for head in one["seeds"])
    late = {name: abs(value) for name, value in one["dla"].items() if int(name.split("_")[1]) >= 6}
    least = min(late[head] for head in one["seeds"])
    assert len(one["seeds"]) <= 10 and least >= max(late.values()) / 3
    assert all(late[name] <= least for name in late if name not in one["seeds"])
    assert one["circuit"] == one["attn_circuit"] | one["mlp_circuit"] and one["mlp_circuit"]
    for reader, writer, mode, score in one["edges"]:
        assert int(writer.split("_")[1]) < int(reader.split("_")[1]) and mode in "KQV" and score > 0
        assert (
            int(writer.split("_")[1]) > 1
            and one["depth_map"][writer] <= one["depth_map"][reader] + 1
        )
    circuit = compat.discover(tracer, [prompt, prompt], seed_min_layer=6)
    assert circuit.components == one["attn_circuit"] and "2/2" in capsys.readouterr().out
    assert repr(circuit) == f"Circuit({len(circuit)} components, {len(circuit)} heads, 0 MLPs)"
    assert (
        len(circuit - circuit) == 0
        and (circuit | circuit).components == (circuit & circuit).components == circuit.components
    )
    with pytest.raises(ValueError, match="positions"):
        compat.discover_one(tracer, {"text": MARY, "target": " Mary", "distractor": " John"})


def test_validate_runs_the_closure_checks(tracer, capsys):
    assert compat.validate(tracer) is True
    assert capsys.readouterr().out.count("ok ") == 6


def test_a_model_in_memory_brings_its_tokenizer(up):
    config = json.loads((GOLDEN / "tiny-gpt2" / "config.json").read_text())
    tensors = {name: values for name, (_, values) in read_safetensors(GOLDEN / "tiny-gpt2").items()}
    live = types.SimpleNamespace(config=config, state_dict=lambda: tensors)
    ids = EXPECTED["tiny-gpt2"]["ids"]
    words = {"some text": ids, " word": [9], " two words": [9, 8]}
    tracer = compat.Tracer(model=live, tokenizer=lambda text: {"input_ids": words[text]})
    want = compat.Tracer(up.load(GOLDEN / "tiny-gpt2")).trace(ids, target=9)
    np.testing.assert_allclose(
        tracer.trace("some text", target=" word").token_attribution, want.token_attribution
    )
    with pytest.raises(ValueError, match="2 tokens"):
        tracer.trace("some text", target=" two words")
    with pytest.raises(ValueError, match="tokenizer"):
        compat.Tracer(model=live)
