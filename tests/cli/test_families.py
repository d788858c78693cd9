"""The newer families: every command once on each, and configs that cannot be."""
import json
import re

import checkpoints
import pytest
from conftest import GOLDEN, ROOT

SHARED = ROOT.parent / "shared" / "golden"
BAD = ["--ids", "1,2,3"]


def case(name):
    for folder in (GOLDEN / name, SHARED / name):
        if folder.is_dir():
            return folder
    pytest.skip(f"{name} is not there")


def prompt(folder):
    expected = json.loads((folder / "expected.json").read_text())
    return expected, ["--model", str(folder), "--ids", ",".join(map(str, expected["ids"]))]


@pytest.fixture(
    scope="module",
    params=[
        "tiny-gemma2", "tiny-gemma3", "tiny-olmo2", "tiny-phi3", "tiny-granite", "tiny-smollm3",
        "tiny-mixtral", "tiny-qwen3moe", "tiny-gptoss"
    ],
)
def model(request):
    return prompt(case(request.param))


@pytest.fixture(scope="module")
def mixture():
    return prompt(case("tiny-mixtral"))


def test_predict_lens_and_generate(unpack, model):
    expected, args = model
    result = unpack.json("predict", *args, "--lens", "--top", 3)
    logits = expected["logits_last"]
    best = max(range(len(logits)), key=logits.__getitem__)
    assert result["predictions"][0]["id"] == best
    assert result["predictions"][0]["logit"] == pytest.approx(logits[best], abs=1e-4)
    assert len(result["lens"]) == result["model"]["layers"] + 1
    assert unpack.ok("generate", *args, "--max-tokens", 1).strip()


def test_trace_in_every_form(unpack, model, tmp_path):
    _, args = model
    files = {
        name: tmp_path / f"t.{name}" for name in ("json", "svg", "html", "tex", "dot", "graphml")
    }
    unpack.ok(
        "trace", *args, "--json", files["json"], "--svg", files["svg"], "--html", files["html"],
        "--tikz", files["tex"], "--graph", files["dot"]
    )
    unpack.ok("trace", *args, "--graph", files["graphml"])
    assert all(path.stat().st_size for path in files.values())
    assert json.loads(files["json"].read_text())["paths"]
    assert "Token credit" in unpack.ok("trace", *args)


@pytest.mark.parametrize(
    "options",
    [
        ["--mlp", "linearized"],
        ["--mlp", "l2"],
        ["--scores", "centered"],
        ["--dispatch", "gate"],
        ["--tau", "0.01"],
        ["--tau", "0.05", "--tau-rule", "entry"],
        ["--root", "MLP1@-1"],
        ["--root", "A1.H0@-1"],
    ],
)
def test_variants_of_a_trace(unpack, model, options):
    _, args = model
    result = unpack.json("trace", *args, *options)
    assert len(result["token_credit"]) == len(result["tokens"])


@pytest.mark.parametrize("method", ["ifr", "attnlrp", "cplrp"])
def test_baselines(unpack, model, method):
    expected, args = model
    if "gptoss" in args[1] and method != "ifr":
        assert "not defined for gpt_oss" in unpack.fails(1, "trace", *args, "--method", method)
        return
    assert len(unpack.json("trace", *args, "--method", method)["token_credit"]) == len(
        expected["ids"]
    )


def test_interactions_interventions_attribution_and_closure(unpack, model, tmp_path):
    expected, args = model
    assert unpack.json("interactions", *args)["mlp"]
    assert unpack.ok("interactions", *args, "--svg", tmp_path / "i.svg") is not None
    cut = unpack.json("intervene", *args, "--cut", "A0.H0", "--channel", "mlp")
    assert cut["clean"] != cut["cut"]
    assert unpack.json("intervene", *args, "--zero", "1")["cut"]
    rows = unpack.json("attribute", *args, "--generate", 2)["rows"]
    assert rows and len(rows[0]["token_credit"]) == len(expected["ids"])
    assert unpack.ok("validate", *args)


def test_batch_takes_no_weight_products(unpack, model, tmp_path):
    expected, args = model
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"ids": expected["ids"]}) + "\n" for _ in range(20)))
    unpack.ok("batch", file, "--out", tmp_path / "out", *args[:2])
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    single = unpack.json("trace", *args)
    assert len(lines) == 20
    for line in (json.loads(lines[0]), json.loads(lines[-1])):
        assert line["token_credit"] == pytest.approx(single["token_credit"], abs=1e-6)


def test_weight_products_that_would_not_hold_are_left_out_with_a_line(unpack, model):
    _, args = model
    result = unpack("trace", *args, "--weight-products", "--device", "cpu", "--json", "-")
    assert result.returncode == 0
    credit, plain = (
        json.loads(result.stdout)["token_credit"],
        unpack.json("trace", *args, "--device", "cpu")["token_credit"],
    )
    if any(name in args[1] for name in ("phi3", "granite", "smollm3")):  # there they hold
        assert not result.stderr and credit == pytest.approx(plain, abs=1e-4)
        return
    assert result.stderr.count("\n") == 1 and "weight_products is left out" in result.stderr
    assert credit == plain


def test_predict_names_the_experts_of_every_token(unpack, mixture):
    expected, args = mixture
    result = unpack.json("predict", *args, "--experts")
    assert len(result["experts"]) == result["model"]["layers"]
    for layer in result["experts"]:
        assert len(layer) == len(expected["ids"])
        for used in layer:
            assert sum(use["weight"] for use in used) == pytest.approx(1)
            assert used == sorted(used, key=lambda use: -use["weight"])
    text = unpack.ok("predict", *args, "--experts")
    first = result["experts"][0][0][0]
    assert re.search(rf"L0: {first['expert']} {100 * first['weight']:.0f}%", text), text
    trace = unpack.json("trace", *args)
    assert trace["experts"] == [layer[trace["target"]["position"]] for layer in result["experts"]]


def test_a_dense_model_has_no_experts(unpack):
    assert "no experts" in unpack.fails(
        1, "predict", "--experts", "--model", GOLDEN / "tiny-llama", *BAD
    )


def test_the_branch_of_the_router(unpack, mixture, tmp_path):
    _, args = mixture
    root = ["--root", "MLP1@-1", "--top-paths", "500"]
    every = unpack.json("trace", *args, *root)
    only = unpack.json("trace", *args, *root, "--branch", "R")
    assert {path["branches"][-1] for path in only["paths"]} == {"R"}
    router = [path["text"] for path in every["paths"] if path["branches"][-1] == "R"]
    assert router and [path["text"] for path in only["paths"]][: len(router)] == router
    assert set(every["composition"]) == {"all", "R", "G", "U"}
    assert every["entries"]["experts"] and "expert" in every["entries"]["neurons"][0]
    picture = unpack.ok("trace", *args, "--svg", "-")
    assert "experts at position" in picture
    weighted = unpack.json("trace", *args, *root, "--expert-weights", "1,0,0")
    assert weighted["options"]["expert_weights"] == [1, 0, 0]
    assert set(weighted["composition"]["G"]) == set()


def spoil(folder, expert_of_layer):
    """Makes every weight of one expert a layer no number."""
    path = folder / "model.safetensors"
    header, body = checkpoints.read(path)
    body = bytearray(body)
    for layer, expert in enumerate(expert_of_layer):
        for name, entry in header.items():
            if name.startswith(f"model.layers.{layer}.block_sparse_moe.experts.{expert}."):
                start, end = entry["data_offsets"]
                body[start:end] = b"\xff" * (end - start)
    checkpoints.write(path, header, bytes(body))


def copied(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((case(name) / file).read_bytes())
    return folder


def test_experts_that_no_position_uses_are_not_read(unpack, tmp_path):
    folder = copied(tmp_path, "tiny-mixtral")
    args = ["--model", folder, "--ids", "3"]
    clean = unpack.json("predict", *args, "--experts")
    used = [{use["expert"] for use in layer[0]} for layer in clean["experts"]]
    experts = json.loads((folder / "config.json").read_text())["num_local_experts"]
    spoil(folder, [next(e for e in range(experts) if e not in layer) for layer in used])
    assert unpack.json("predict", *args, "--experts") == {
        **clean,
        "model": {
            **clean["model"],
            "fingerprint": unpack.json("predict", *args)["model"]["fingerprint"],
        },
    }
    assert unpack.json("trace", *args)["token_credit"]
    spoil(folder, [next(iter(layer)) for layer in used])
    assert "expert" in unpack.fails(1, "predict", *args)


BAD_CONFIGS = [
    ("tiny-mixtral", {"num_experts_per_tok": 99}, "num_experts_per_tok"),
    ("tiny-mixtral", {"num_local_experts": 0}, "num_local_experts"),
    ("tiny-mixtral", {"n_shared_experts": 1}, "shared experts"),
    ("tiny-qwen3moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ("tiny-gptoss", {"layer_types": ["full_attention"]}, "layer_types"),
    ("tiny-gptoss", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ("tiny-gemma2", {"sliding_window": 0}, "sliding_window"),
    ("tiny-gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping"),
    ("tiny-gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
    ("tiny-gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("tiny-gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("tiny-granite", {"logits_scaling": 0}, "logits_scaling"),
    ("tiny-phi3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    (
        "tiny-phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "short_factor",
    ),
    ("tiny-llama", {"model_type": "qwen2_moe"}, "shared experts"),
    ("tiny-llama", {"model_type": "deepseek_v3"}, "latent attention"),
    ("tiny-llama", {"model_type": "mamba2"}, "state-space layers"),
    ("tiny-llama", {"model_type": "bloom"}, "supported: gpt2"),
]


@pytest.mark.parametrize(
    "name, change, says", BAD_CONFIGS, ids=lambda x: x if isinstance(x, str) else next(iter(x))
)
def test_a_config_that_cannot_be_is_named(unpack, tmp_path, name, change, says):
    line = unpack.fails(
        1, "predict", "--model", checkpoints.edit_config(copied(tmp_path, name), **change), *BAD
    )
    assert says in line and "config.json" in line


def test_bench_knows_the_shapes(unpack):
    line = re.sub(r"\s+", " ", unpack.ok("bench", "--help"))
    for name in (
        "gemma-2-2b", "gemma-3-4b", "olmo-2-7b", "phi-3-mini", "mixtral-8x7b", "qwen3-30b-a3b",
        "gpt-oss-20b"
    ):
        assert name in line
