"""Mixtures of experts through Python."""
import numpy as np
import pytest
from conftest import GOLDEN, ROOT

IDS = [3, 17, 5, 22, 17, 9]


@pytest.fixture(scope="module")
def mixture(up):
    for folder in (GOLDEN / "tiny-mixtral", ROOT.parent / "shared" / "golden" / "tiny-mixtral"):
        if folder.is_dir():
            return up.load(folder)
    pytest.skip("tiny-mixtral is not there")


def test_experts_of_every_position(mixture, pocket):
    result = mixture.predict(IDS, experts=True)
    assert mixture.predict(IDS).experts is None
    assert len(result.experts) == mixture.config["n_layers"] and len(result.experts[0]) == len(IDS)
    trace = mixture.trace(IDS)
    assert trace.experts == [layer[-1] for layer in result.experts]
    assert pocket.trace("Mary and John").experts is None
    with pytest.raises(ValueError, match="no experts"):
        pocket.predict("Mary", experts=True)
    with pytest.raises(TypeError, match="experts"):
        mixture.predict(IDS, experts=1)


def test_shares_of_a_root_are_by_expert_and_neuron(mixture):
    trace = mixture.trace(IDS, root="MLP1@-1")
    experts = trace.to_dict()["entries"]["experts"]
    assert trace.entries.shape[0] == mixture.config["experts"]
    for expert in range(len(trace.entries)):
        want = [use["credit"] for use in experts if use["expert"] == expert] or [0.0]
        assert trace.entries[expert].sum() == pytest.approx(want[0], abs=1e-6)
    assert set(trace.composition) == {"all", "R", "G", "U"}


def test_weights_and_the_branch_of_the_router(mixture):
    prepared = mixture.prepare(IDS)
    paths = prepared.trace(root="MLP1@-1", branch="R", top_paths=50).paths
    assert paths and all(path.branches[-1] == "R" for path in paths)
    alone = prepared.trace(root="MLP1@-1", expert_weights=(0, 0.5, 0.5))
    assert alone.options["expert_weights"] == [0, 0.5, 0.5] and not alone.composition["R"]
    with pytest.raises(ValueError, match="expert_weights"):
        prepared.trace(expert_weights=(1, 1))
    scores = prepared.scores(1, "R")
    assert scores.shape[1:] == (len(IDS), mixture.config["experts_per_token"])
    assert np.isfinite(scores).all()
