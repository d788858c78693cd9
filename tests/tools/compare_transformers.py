#!/usr/bin/env python3
"""Hold a built `unpack` against PyTorch and the transformers library, family by family.

    compare_transformers.py PROGRAM [--device cpu] [--only NAME]

Small models of random weights are made by transformers itself, saved as a folder, and the logits
after the last token are compared with those of `PROGRAM predict`. Needs torch and transformers;
exit 1 where a model is off by more than 1e-4 of the largest logit, or where the program refuses it.
"""
import argparse
import json
import subprocess
import sys
import tempfile

import torch
import transformers

SMALL = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=20, max_position_embeddings=64, bos_token_id=1,
    eos_token_id=2, pad_token_id=0, initializer_range=0.3
)
HALF = [1.0 + 0.1 * i for i in range(3)]
LONG = {"rope_type": "longrope", "short_factor": HALF, "long_factor": [2 * x for x in HALF]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES = {
    "gpt2": ("gpt2", dict(n_embd=24, n_layer=2, n_head=4, n_positions=64)),
    "gpt_neox": ("gpt_neox", dict(rotary_pct=0.5)),
    "llama": ("llama", dict(rope_scaling=LLAMA3)),
    "llama-yarn": ("llama", dict(rope_scaling=YARN)),
    "mistral-window": ("mistral", dict(sliding_window=5)),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    "qwen3": ("qwen3", dict(head_dim=8)),
    "gemma": ("gemma", dict(head_dim=8)),
    "gemma2": (
        "gemma2",
        dict(
            head_dim=8, query_pre_attn_scalar=12, sliding_window=4, attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0
        ),
    ),
    "gemma3_text": (
        "gemma3_text",
        dict(
            head_dim=8,
            sliding_window=4,
            num_hidden_layers=7,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", dict(sliding_window=6)),
    "phi3-short": ("phi3", dict(rope_scaling=LONG, original_max_position_embeddings=32)),
    "phi3-long": ("phi3", dict(rope_scaling=LONG, original_max_position_embeddings=6)),
    "smollm3": ("smollm3", dict(num_hidden_layers=5)),
    "granite": (
        "granite",
        dict(
            embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2,
            logits_scaling=2.5
        ),
    ),
    "mixtral": ("mixtral", dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=6)),
    "qwen3_moe": (
        "qwen3_moe",
        dict(
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=12,
            head_dim=8,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        ),
    ),
    "olmoe": ("olmoe", dict(num_experts=6, num_experts_per_tok=2)),
    "gpt_oss": (
        "gpt_oss",
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=4),
    ),
}


def config_of(family, changes):
    values = dict(SMALL, **changes)
    if family == "gpt2":
        for key in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "intermediate_size", "max_position_embeddings"
        ):
            values.pop(key, None)
    if "rope_scaling" in values and "rope_parameters" not in values:
        scaling = dict(values.pop("rope_scaling"))
        try:
            return transformers.AutoConfig.for_model(family, **values, rope_scaling=scaling)
        except Exception:
            return transformers.AutoConfig.for_model(
                family, **values, rope_parameters=dict(scaling, rope_theta=10000.0)
            )
    return transformers.AutoConfig.for_model(family, **values)


def compare(program, device, name, seed):
    family, changes = CASES[name]
    torch.manual_seed(seed)
    config = config_of(family, changes)
    config._attn_implementation = "eager"
    model = (
        transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
        .eval()
        .float()
    )
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(3, 60, (1, 11))
    with torch.no_grad():
        want = model(ids).logits[0, -1].double()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        answer = subprocess.run(
            [
                program,
                "predict",
                "--model",
                folder,
                "--ids",
                ",".join(str(int(i)) for i in ids[0]),
                "--top",
                str(len(want)),
                "--device",
                device,
                "--json",
                "-",
            ],
            capture_output=True,
            text=True,
        )
    if answer.returncode:
        return float("inf"), answer.stderr.strip()
    got = torch.zeros(len(want), dtype=torch.float64)
    for row in json.loads(answer.stdout)["predictions"]:
        got[row["id"]] = row["logit"]
    return float((got - want).abs().max() / want.abs().max()), ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only")
    options = parser.parse_args()
    print("torch", torch.__version__, "transformers", transformers.__version__)
    failed = 0
    for name in CASES:
        if options.only and options.only != name:
            continue
        try:
            error, why = compare(options.program, options.device, name, 7)
        except Exception as e:  # a version of the library without this family
            print(f"{name:16} left out: {type(e).__name__} {str(e)[:150]}")
            continue
        failed += error > 1e-4
        print(f"{name:16} {error:.2e} {why}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
