"""up.circuit and Circuit."""
import json

import pytest
from conftest import MARY

OTHER = "Anna and Mark went to the store. Paul gave a drink to"
TASK = [{"prompt": MARY, "target": " Mary", "versus": " John", "counterfactual": OTHER}]


@pytest.fixture(scope="module")
def found(up, pocket):
    return up.circuit(TASK, model=pocket, sizes=["1%", "20%", "100%"], size=60)


def test_edges_are_those_of_edge_credit_over_the_direct_credit(pocket, found):
    edges = pocket.prepare(MARY).edge_credit(target=" Mary", versus=" John", preset="best")
    first = sum(abs(e["credit"]) for e in edges if e["reader"] == "target")
    want = {
        (e["writer"], e["reader"], e["branch"]): e["credit"] / first
        for e in edges
        if e["credit"] != 0
    }
    got = {(e["writer"], e["reader"], e["branch"]): e["credit"] for e in found.ranked}
    assert set(got) == set(want)
    assert max(abs(got[key] - want[key]) for key in got) < 1e-5


def test_a_found_circuit_measures_again_as_it_was_measured(found):
    proof = found.evaluate(TASK)
    assert proof.faithfulness == pytest.approx(found.faithfulness, abs=1e-4) and proof.edges == len(
        found
    )
    assert found.cmd == found.data["cmd"] and found.data["circuit"]["edges"] == len(found)


def test_the_whole_graph_is_faithful_and_half_a_circuit_is_less(up, found):
    whole = up.Circuit(found.ranked, model=found.model)
    assert whole.evaluate(TASK).faithfulness == pytest.approx(1, abs=0.05)
    half = up.Circuit(list(found)[: len(found) // 2], model=found.model)
    assert half.evaluate(TASK).edges <= len(half) < len(found)


def test_circuits_are_sets(up, found):
    first, rest = up.Circuit(list(found)[:5]), up.Circuit(list(found)[3:9])
    assert (
        len(first | rest) == 9
        and len(first & rest) == 2
        and len(first - rest) == 3
        and len(first ^ rest) == 7
    )
    assert list(found)[4] in first & rest and (first | rest) == (rest | first) and first != rest
    assert {"target"} <= set(found.nodes)


def test_a_circuit_is_saved_read_and_drawn(up, pocket, found, tmp_path):
    found.save(tmp_path / "circuit.json")
    again = up.Circuit.load(tmp_path / "circuit.json", model=pocket)
    assert again == found and again.faithfulness == found.faithfulness
    (found - up.Circuit(list(found)[:2])).save(tmp_path / "part.json")
    assert len(up.Circuit.load(tmp_path / "part.json")) == len(found) - 2
    svg = again.draw(tmp_path / "circuit.svg")
    assert svg == (tmp_path / "circuit.svg").read_text() and svg.count('class="edge"') == len(found)
    assert again.draw(format="dot").count(" -> ") == len(found)
    (tmp_path / "none.json").write_text(json.dumps({"edges": [{}]}))
    with pytest.raises(ValueError, match="no circuit"):
        up.Circuit.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="name a model"):
        up.Circuit.load(tmp_path / "circuit.json").draw()


def test_edges_with_positions_measure_again_as_they_were_measured(up, pocket):
    placed = up.circuit(
        TASK, model=pocket, positions=True, sizes=["1%", "100%"], size=300, minimality=0
    )
    assert all("@" in edge.writer for edge in placed) and placed.data["positions"] is True
    proof = placed.evaluate(TASK)
    assert proof.edges == len(placed) and proof.faithfulness == pytest.approx(
        placed.faithfulness, abs=1e-4
    )
    with pytest.raises(ValueError, match="position"):
        up.Circuit([("emb@99", "A0.H0", "K")], model=pocket).evaluate(TASK)


def test_a_search_that_was_interrupted_goes_on_from_its_folder(up, pocket, tmp_path):
    class Stop(Exception):
        pass

    seen = []

    def stop_at_the_proof(what, done, total):
        seen.append(what)
        if what == "sizes" and done >= 1:
            raise Stop

    ask = dict(model=pocket, sizes=["1%", "20%", "100%"], size=60, minimality=3)
    with pytest.raises(Stop):
        up.circuit(TASK, **ask, out=tmp_path / "kept", progress=stop_at_the_proof)
    lines = (tmp_path / "kept" / "search.jsonl").read_text().splitlines()
    assert len(lines) > 2 and "sizes" in seen

    def stop_at_once(what, done, total):
        raise Stop

    with pytest.raises(Stop):  # its own file is kept, that of another search is begun anew
        up.circuit(TASK, **ask, out=tmp_path / "kept", progress=stop_at_once)
    assert (tmp_path / "kept" / "search.jsonl").read_text().splitlines()[: len(lines)] == lines
    again = up.circuit(TASK, **ask, out=str(tmp_path / "kept"))
    plain = up.circuit(TASK, **ask)
    assert again == plain and again.cmd == plain.cmd and again.faithfulness == plain.faithfulness
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "circuit.dot", "circuit.graphml", "circuit.json", "circuit.svg", "curves.svg", "report.md"
    ]
    assert up.Circuit.load(tmp_path / "kept" / "circuit.json") == plain
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="no folder"):
        up.circuit(TASK, **ask, out=tmp_path / "file")


def test_nodes_are_proven_as_the_server_and_intervene_do(pocket):
    ask = dict(target=" Mary", versus=" John")
    proof = pocket.prove(MARY, ["A5.H3@13", "MLP0"], ablate="mean", **ask)
    for name, keep in (("without", False), ("only", True)):
        changed = pocket.intervene(
            MARY, components=["A5.H3@13", "MLP0"], keep=keep, ablate="mean", **ask
        )
        assert proof[name]["target"] == pytest.approx(changed.cut["target"], rel=1e-4, abs=1e-4)
    assert 0 < proof["necessity"] and proof["only"]["target"] != proof["none"]["target"]
    for wrong, said in (
        ([], "nothing to prove"),
        (["A99.H0"], "components"),
        (["A1.H0@99"], "components"),
    ):
        with pytest.raises(ValueError, match=said):
            pocket.prove(MARY, wrong, **ask)
    with pytest.raises(ValueError, match="ablate"):
        pocket.prove(MARY, ["MLP0"], ablate="half", **ask)


def test_wrong_arguments_are_named(up, pocket):
    with pytest.raises(ValueError, match="method"):
        up.circuit(TASK, model=pocket, method="best")
    with pytest.raises(ValueError, match="ablate"):
        up.circuit(TASK, model=pocket, ablate="median")
    with pytest.raises(TypeError, match="task"):
        up.circuit([1], model=pocket)
    with pytest.raises(ValueError, match="size"):
        up.circuit(TASK, model=pocket, sizes="0%")
    with pytest.raises(ValueError, match="size takes one size"):
        up.circuit(TASK, model=pocket, size="10%,20%")
    with pytest.raises(ValueError, match="one length"):
        up.circuit([{**TASK[0], "counterfactual": "Anna"}], model=pocket)
    with pytest.raises(ValueError, match="A9.H9"):
        up.Circuit([("emb", "A9.H9", "K")], model=pocket).evaluate(TASK)
