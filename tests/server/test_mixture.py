"""A mixture of experts behind the API."""
import pytest
from serving import MARY, ROOT

NAME = "tiny-mixtral"
IDS = [3, 17, 5, 22, 17, 9]


@pytest.fixture
def mixture(start):
    for folder in (ROOT / "tests" / "golden" / NAME, ROOT.parent / "shared" / "golden" / NAME):
        if folder.is_dir():
            return start("--model", folder)
    pytest.skip(f"{NAME} is not there")


def test_it_names_experts_and_the_branch_of_the_router(mixture):
    predicted = mixture.ok("predict", ids=IDS, experts=True)
    assert len(predicted["experts"][0]) == len(IDS)
    assert sum(use["weight"] for use in predicted["experts"][1][-1]) == pytest.approx(1)
    assert "experts" not in mixture.ok("predict", ids=IDS)
    traced = mixture.ok("trace", ids=IDS, expert_weights=[1, 0, 0])
    assert traced["options"]["expert_weights"] == [1, 0, 0]
    assert traced["experts"][1] == predicted["experts"][1][-1]
    rooted = mixture.ok("reroot", ids=IDS, root="MLP1@-1", branch="R", top_paths=5)
    assert rooted["composition"]["R"] and rooted["entries"]["experts"]
    assert {path["branches"][-1] for path in rooted["paths"]} == {"R"}
    (model,) = [m for m in mixture_models(mixture) if m["info"]]
    assert model["info"]["mixture"] is True


def mixture_models(server):
    import json

    return json.loads(server.raw("GET", "/api/models")[2])["models"]


def test_a_dense_model_has_no_experts(server):
    assert "no experts" in server.refused("predict", {"prompt": MARY, "experts": True})
