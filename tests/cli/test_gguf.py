"""GGUF files: every block type against a slow reference, every golden case as a file, tokenizers,
split files, bad files.
"""
import json
import struct
from pathlib import Path

import numpy as np
import pytest

import gguf_files as gguf
from conftest import GOLDEN, ROOT

IDS = "3,17,5,9,21"
SHARED = ROOT.parent / "shared" / "golden"
# What a GGUF file of the family cannot say is left at the family's own rule in both.
CASES = {
    "one-token": {},
    "small-gpt2": {},
    "small-llama": {},
    "small-neox": {},
    "tiny-gpt2": {},
    "tiny-llama": {},
    "tiny-neox": {},
    "tiny-neox-sequential": {},
    "tiny-qwen2": {},
    "tiny-qwen3": {},
    "tiny-gemma2": {},
    "tiny-gemma3": {},
    "tiny-gptoss": {},
    "tiny-granite": {},
    "tiny-mixtral": {},
    "tiny-olmo2": {},
    "tiny-phi3": {},
    "tiny-qwen3moe": {},
    "tiny-smollm3": {"no_rope_layers": None},
}


def same(a, b, tolerance=2e-5):
    a, b = np.array(a, float), np.array(b, float)
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max()), np.abs(a - b).max()


def folder_of(case):
    for place in (GOLDEN / case, SHARED / case):
        if any(place.glob("model*.safetensors")):
            return place
    pytest.skip(f"{case} is not here")


def traced(unpack, model, ids=IDS):
    result = unpack.json(
        "trace", "--ids", ids, "--model", model, "--target-id", "7", "--device", "reference"
    )
    return result["target"]["logit"], result["token_credit"], [p["credit"] for p in result["paths"]]


@pytest.mark.parametrize("case", CASES)
def test_a_golden_case_as_gguf_is_explained_as_the_folder_is(unpack, tmp_path, case):
    config, tensors = gguf.load_folder(folder_of(case))
    config = {
        k: v for k, v in {**config, **CASES[case]}.items() if v is not None or k == "sliding_window"
    }
    folder = gguf.save_folder(tmp_path / "folder", config, tensors)
    metadata, arrays = gguf.convert(config, tensors)
    file = gguf.write(
        tmp_path / "model.gguf",
        metadata,
        {n: ("F32", a.shape, gguf.plain("F32", a)) for n, a in arrays.items()},
    )
    for a, b in zip(traced(unpack, file), traced(unpack, folder), strict=True):
        same(a, b)


def quantised_pair(tmp_path, kind):
    """The same model twice: blocks in a GGUF file, and what the slow reference makes of them in a
    folder.
    """
    rng = np.random.default_rng(5)
    width, heads, vocab = 256, 4, 32
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 256,
        "max_position_embeddings": 64,
        "vocab_size": vocab,
        "rms_norm_eps": 2.0**-17,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "head_dim": 16,
        "hidden_act": "silu",
    }
    shapes = {
        "token_embd.weight": (vocab, width),
        "output.weight": (vocab, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.attn_q.weight": (64, width),
        "blk.0.attn_k.weight": (32, width),
        "blk.0.attn_v.weight": (32, width),
        "blk.0.attn_output.weight": (width, 64),
        "blk.0.ffn_gate.weight": (256, width),
        "blk.0.ffn_up.weight": (256, width),
        "blk.0.ffn_down.weight": (width, 256),
    }
    packed = {
        "blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight", "token_embd.weight"
    }
    back = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "output_norm.weight": "model.norm.weight",
    }
    names = {
        v: k
        for k, v in gguf.NAMES.items()
        if k.startswith(
            (
                "self_attn.q_p", "self_attn.k_p", "self_attn.v_p", "self_attn.o_p", "mlp.gate_proj",
                "mlp.up_proj", "mlp.down_proj", "input_l", "post_attention_l"
            )
        )
    }
    tensors, folder = {}, {}
    for name, shape in shapes.items():
        if name in packed and kind not in ("F16", "BF16"):
            data, values = gguf.random_blocks(rng, kind, int(np.prod(shape)))
            tensors[name] = (kind, shape, data)
        else:
            values = rng.normal(0, 0.05, int(np.prod(shape))).astype(np.float32) + (
                1 if len(shape) == 1 else 0
            )
            stored = kind if kind in ("F16", "BF16") and len(shape) > 1 else "F32"
            if stored == "F16":
                values = values.astype(np.float16).astype(np.float32)
            if stored == "BF16":
                values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
            tensors[name] = (stored, shape, gguf.plain(stored, values))
        array = values.reshape(shape)
        part = name.split(".")[2] if name.startswith("blk") else None
        if part in ("attn_q", "attn_k"):  # undo the converter's order
            n = heads if part == "attn_q" else 2
            array = array.reshape(n, 8, 2, width).swapaxes(1, 2).reshape(shape)
        folder[back.get(name) or f"model.layers.0.{names[part]}.weight"] = array
    return gguf.write(
        tmp_path / f"{kind}.gguf", gguf.metadata_of(config), tensors
    ), gguf.save_folder(tmp_path / "folder", config, folder)


@pytest.mark.parametrize("kind", [k for k in gguf.TYPES if k != "F32"])
def test_a_block_type_is_read_as_the_slow_reference_reads_it(unpack, tmp_path, kind):
    file, folder = quantised_pair(tmp_path, kind)
    for a, b in zip(traced(unpack, file), traced(unpack, folder), strict=True):
        same(a, b, 1e-12)
    # On the CPU blocks are widened where they are used, plain numbers are packed once: the same
    # bits.
    blocks, plain = (
        unpack.json("trace", "--ids", IDS, "--model", model, "--target-id", "7", "--threads", "2")
        for model in (file, folder)
    )
    for field in ("token_credit", "node_credit", "paths", "predictions", "conservation"):
        assert blocks[field] == plain[field], field
    shown = unpack.json("trace", "--ids", "1,2", "--model", file)["model"]["dtype"]
    assert shown in (kind, "F32")


def q8_0(array):
    """Its blocks, and what they stand for."""
    x = np.ascontiguousarray(array, np.float32).reshape(-1, 32)
    scale = (np.abs(x).max(1) / 127).astype(np.float16)
    q = np.clip(np.rint(x / scale.astype(np.float32)[:, None]), -127, 127).astype(np.int8)
    data = np.concatenate([scale.view(np.uint8).reshape(-1, 2), q.view(np.uint8)], 1).tobytes()
    return data, (q.astype(np.float32) * scale.astype(np.float32)[:, None]).reshape(array.shape)


def test_quantised_experts_give_the_bits_of_plain_ones(unpack, tmp_path):
    rng = np.random.default_rng(8)
    config = {
        "model_type": "mixtral",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 288,
        "max_position_embeddings": 64,
        "vocab_size": 32,
        "rms_norm_eps": 2.0**-17,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "hidden_act": "silu",
    }
    shapes = {
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64),
        "block_sparse_moe.gate": (4, 64),
    }
    for e in range(4):
        shapes.update(
            {
                f"block_sparse_moe.experts.{e}.w1": (288, 64),
                f"block_sparse_moe.experts.{e}.w3": (288, 64),
                f"block_sparse_moe.experts.{e}.w2": (64, 288),
            }
        )
    names = {
        "model.embed_tokens.weight": (32, 64),
        "lm_head.weight": (32, 64),
        "model.norm.weight": (64,),
    }
    for layer in range(2):
        names.update(
            {
                f"model.layers.{layer}.{n}.weight": s
                for n, s in {
                    **shapes,
                    "input_layernorm": (64,),
                    "post_attention_layernorm": (64,),
                }.items()
            }
        )
    plain = {
        n: (
            1 + rng.normal(0, 0.1, s).astype(np.float32)
            if len(s) == 1
            else q8_0(rng.normal(0, 0.2, s))[1]
        )
        for n, s in names.items()
    }
    metadata, arrays = gguf.convert(config, plain)
    tensors = {}
    for name, array in arrays.items():
        kind = "Q8_0" if array.ndim > 1 and "gate_inp" not in name else "F32"
        data, values = q8_0(array) if kind == "Q8_0" else (gguf.plain("F32", array), array)
        assert (values == array).all()
        tensors[name] = (kind, array.shape, data)
    file, folder = gguf.write(tmp_path / "experts.gguf", metadata, tensors), gguf.save_folder(
        tmp_path / "plain", config, plain
    )
    blocks, wide = (
        unpack.json("trace", "--ids", IDS, "--model", model, "--target-id", "7", "--device", "cpu")
        for model in (file, folder)
    )
    for field in ("token_credit", "node_credit", "paths", "predictions", "conservation"):
        assert blocks[field] == wide[field], field
    # Experts are looked at when they are first used.
    spoilt = bytearray(file.read_bytes())
    expert = tensors["blk.0.ffn_gate_exps.weight"][2]
    at = bytes(spoilt).index(expert)
    for block in range(len(expert) // 34):
        spoilt[at + 34 * block : at + 34 * block + 2] = b"\x00\x7c"
    file.write_bytes(spoilt)
    assert "of layer 0 holds values that are no finite numbers" in unpack.fails(
        1, "predict", "--ids", IDS, "--model", file
    )


def tokens_of(unpack, model, text, *more):
    return [
        (t["id"], t["text"])
        for t in unpack.json("tokenize", text, "--model", model, *more)["tokens"]
    ]


def with_tokenizer(tmp_path, metadata):
    return gguf.plain_file_with(tmp_path / "t.gguf", GOLDEN / "tiny-llama", metadata)


def test_a_gpt2_tokenizer_splits_as_the_folder_does(unpack, tmp_path):
    source = json.loads((ROOT / "models" / "pocket-gpt2" / "tokenizer.json").read_text())
    vocab = sorted(source["model"]["vocab"].items(), key=lambda x: x[1])
    tokens = [t for t, _ in vocab]
    for added in source.get("added_tokens", []):
        while len(tokens) <= added["id"]:
            tokens.append(added["content"])
    special = {a["id"] for a in source.get("added_tokens", [])}
    merges = [m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]]
    bos = next(iter(special), 0)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.add_bos_token": True,
    }
    file = with_tokenizer(tmp_path, metadata)
    for text in ("Mary and John went to the store.", "  two  blanks\nand a line", "naïve café 123"):
        assert [i for i, _ in tokens_of(unpack, file, text)] == [
            i for i, _ in tokens_of(unpack, ROOT / "models" / "pocket-gpt2", text)
        ]
    assert tokens_of(unpack, file, "Mary", "--bos")[0][0] == bos


WORDS = ["H", "e", "y", "1", "2", "3", "Ġ", "A", "AA", "HeyHey"]


@pytest.mark.parametrize(
    "pre, pieces",
    [
        ("gpt-2", ["H", "e", "y", "H", "e", "y", "Ġ", "1", "2", "3"]),
        (
            "llama-bpe",
            ["HeyHey", "Ġ", "1", "2", "3"],
        ),  # a word that is a token is one, whatever the merges say
        (
            "tekken",
            ["H", "e", "y", "H", "e", "y", "Ġ", "1", "2", "3"],
        ),  # Hey|Hey: cut where a capital begins
        ("smaug-bpe", ["H", "e", "y", "H", "e", "y", "Ġ", "1", "2", "3"]),
    ],
)
def test_a_pre_tokenizer_cuts_as_its_name_says(unpack, tmp_path, pre, pieces):
    tokens = WORDS + ["<s>"]
    file = with_tokenizer(
        tmp_path,
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["A A"],
            "tokenizer.ggml.token_type": [1] * len(WORDS) + [3],
            "tokenizer.ggml.bos_token_id": len(WORDS),
        },
    )
    assert [tokens[i] for i, _ in tokens_of(unpack, file, "HeyHey 123")] == pieces


def test_a_llama_tokenizer_merges_by_score_and_falls_back_to_bytes(unpack, tmp_path):
    pieces = (
        ["<unk>", "<s>", "</s>"]
        + [f"<0x{i:02X}>" for i in range(256)]
        + ["▁", "a", "b", "c", "ab", "▁ab", "bc", "▁a", "abc"]
    )
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -13.0, -2.0, -3.0, -1.0, -4.0, -5.0]
    types = [2, 3, 3] + [6] * 256 + [1] * 9
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    file = with_tokenizer(tmp_path, metadata)
    names = [pieces[i] for i, _ in tokens_of(unpack, file, "abc")]
    assert names == ["▁a", "bc"]  # bc (-1) goes before ab (-2)
    assert [pieces[i] for i, _ in tokens_of(unpack, file, "ab")] == ["▁ab"]
    assert [pieces[i] for i, _ in tokens_of(unpack, file, "é")] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokens_of(unpack, file, "a", "--bos")[0][0] == 1


def test_split_files_are_read_as_one(unpack, tmp_path):
    config, tensors = gguf.load_folder(GOLDEN / "tiny-llama")
    metadata, arrays = gguf.convert(config, tensors)
    names = list(arrays)
    for i in range(3):
        part = {n: ("F32", arrays[n].shape, gguf.plain("F32", arrays[n])) for n in names[i::3]}
        more = {"split.no": i, "split.count": 3, "split.tensors.count": len(names)}
        gguf.write(
            tmp_path / f"m-0000{i + 1}-of-00003.gguf",
            {**(metadata if i == 0 else {}), **more},
            part,
        )
    for a, b in zip(
        traced(unpack, tmp_path / "m-00001-of-00003.gguf"),
        traced(unpack, GOLDEN / "tiny-llama"),
        strict=True,
    ):
        same(a, b)
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    assert "part 3 of 3 is missing" in unpack.fails(
        1, "predict", "--ids", "1,2", "--model", tmp_path / "m-00001-of-00003.gguf"
    )


def test_a_folder_with_one_gguf_file_is_a_model_and_models_lists_it(unpack, tmp_path):
    gguf.plain_file(tmp_path / "tiny.gguf", GOLDEN / "tiny-llama", "F16")
    assert unpack.json("predict", "--ids", "1,2", "--model", tmp_path)["predictions"]
    out = unpack.ok("models", tmp_path)
    line = next(x for x in out.splitlines() if "tiny.gguf" in x)
    assert "F16" in line and "llama" in line and "512 ctx" in line and "fits" in line


def test_a_gguf_file_is_served_as_a_folder_is(unpack, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "server"))
    from serving import Server

    file = gguf.plain_file(tmp_path / "tiny.gguf", GOLDEN / "tiny-llama", "F16")
    want = unpack.json("trace", "--ids", "1,2,3", "--target-id", "7", "--model", file)[
        "token_credit"
    ]
    running = Server("--model", file)
    try:
        same(running.ok("trace", ids=[1, 2, 3], target_ids=[7])["token_credit"], want, 1e-6)
    finally:
        running.close()


def damaged(data):
    yield "empty", b""
    yield "no magic", b"GGML" + data[4:]
    yield "version", data[:4] + struct.pack("<I", 9) + data[8:]
    yield "big-endian", data[:4] + struct.pack(">I", 3) + data[8:]
    yield "many tensors", data[:8] + struct.pack("<Q", 1 << 60) + data[16:]
    yield "many keys", data[:16] + struct.pack("<Q", 1 << 40) + data[24:]
    yield "long key", data[:24] + struct.pack("<Q", 1 << 62) + data[32:]
    for n in (10, 30, 200, len(data) // 2, len(data) - 1):
        yield f"cut at {n}", data[:n]


def test_damaged_files_end_in_one_line(unpack, tmp_path):
    data = gguf.plain_file(tmp_path / "good.gguf", GOLDEN / "tiny-llama").read_bytes()
    for what, bad in damaged(data):
        (tmp_path / "bad.gguf").write_bytes(bad)
        line = unpack.fails(1, "predict", "--ids", "1,2", "--model", tmp_path / "bad.gguf")
        assert "bad.gguf" in line, what


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda m, t: m.pop("general.architecture"), ["general.architecture"]),
        (lambda m, t: m.update({"general.architecture": "mamba"}), ["mamba", "not supported"]),
        (lambda m, t: m.pop("llama.block_count"), ["block_count"]),
        (lambda m, t: m.update({"llama.block_count": "two"}), ["block_count", "number"]),
        (lambda m, t: m.update({"general.alignment": 3}), ["alignment"]),
        (lambda m, t: t.pop("blk.1.ffn_up.weight"), ["mlp.up_proj", "missing"]),
        (lambda m, t: t.pop("token_embd.weight"), ["token_embd"]),
        (
            lambda m, t: t.update({"blk.0.ffn_up.weight": (20, (24, 16), b"\0" * 4096)}),
            ["IQ4_NL", "not read"],
        ),
        (
            lambda m, t: t.update({"blk.0.ffn_up.weight": (12, (24, 16), b"\0" * 4096)}),
            ["whole blocks", "Q4_K"],
        ),
        (
            lambda m, t: t.update(
                {"blk.0.attn_norm.weight": ("F32", (16,), np.full(16, np.nan, "<f4").tobytes())}
            ),
            ["finite"],
        ),
        (
            lambda m, t: m.update({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]}),
            ["bert", "not supported"],
        ),
        (
            lambda m, t: m.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}),
            ["merges"],
        ),
        (
            lambda m, t: m.update(
                {
                    "tokenizer.ggml.model": "gpt2",
                    "tokenizer.ggml.tokens": ["a"],
                    "tokenizer.ggml.merges": ["ab"],
                }
            ),
            ["pairs"],
        ),
        (
            lambda m, t: m.update(
                {
                    "tokenizer.ggml.model": "gpt2",
                    "tokenizer.ggml.pre": "odd",
                    "tokenizer.ggml.tokens": ["a"],
                    "tokenizer.ggml.merges": ["a a"],
                }
            ),
            ["odd", "not supported"],
        ),
    ],
)
def test_files_that_lie_are_refused(unpack, tmp_path, change, words):
    config, tensors = gguf.load_folder(GOLDEN / "tiny-llama")
    metadata, arrays = gguf.convert(config, tensors)
    table = {n: ("F32", a.shape, gguf.plain("F32", a)) for n, a in arrays.items()}
    change(metadata, table)
    line = unpack.fails(
        1, "predict", "--ids", "1,2", "--model", gguf.write(tmp_path / "lies.gguf", metadata, table)
    )
    assert all(w in line for w in words), line


def test_a_part_of_a_name_gets_the_names_it_is_part_of(unpack):
    assert "did you mean pocket-gpt2, pocket-neox, pocket-llama?" in unpack.fails(
        1, "predict", "x", "--model", "Pocket"
    )
    assert "did you mean pocket-llama?" in unpack.fails(1, "predict", "x", "--model", "llama")
    assert "did you mean" not in unpack.fails(1, "predict", "x", "--model", "oc")


def test_a_name_that_is_nearly_right_gets_suggestions(unpack, tmp_path):
    file = gguf.plain_file_with(tmp_path / "tiny-model.gguf", GOLDEN / "tiny-llama", {})
    assert f"did you mean {file}?" in unpack.fails(
        1, "predict", "--ids", "1", "--model", tmp_path / "tiny-modle.gguf"
    )
    assert "did you mean pocket-gpt2" in unpack.fails(1, "predict", "x", "--model", "pocket-gtp2")
    # A bare name, or the beginning of one, in the working folder.
    for bare in ("tiny-modle.gguf", "tiny-mod"):
        assert unpack.fails(1, "predict", "--ids", "1", "--model", bare, cwd=tmp_path).endswith(
            "did you mean tiny-model.gguf?"
        )
    listed = next(
        line for line in unpack.ok("models", tmp_path).splitlines() if "tiny-model.gguf" in line
    )
    assert " F32 " in listed and "MiB" in listed and "512 ctx" in listed and "fits" in listed
