"""A writer of GGUF files and a slow reader of its block types, from the published format; folders
turned into GGUF files.
"""
import json
import struct

import numpy as np

import checkpoints

# name: (number of the format, elements of a block, bytes of a block)
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "MXFP4": (39, 32, 17),
}
# Where the half-precision scales of a block stand.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def half(b, at):
    return np.float32(np.frombuffer(bytes(b[at : at + 2]), "<f2")[0])


def signed(x):
    return x - 256 if x > 127 else x


def six_bits(scales, j):
    """Scale and minimum of sub-block j of Q4_K and Q5_K."""
    if j < 4:
        return scales[j] & 63, scales[j + 4] & 63
    return (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4, (scales[j + 4] >> 4) | (
        scales[j] >> 6
    ) << 4


def decode(kind, b):
    """One block as a list of floats, element by element."""
    f = np.float32
    if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        d, m, at = half(b, 0), f(0), 2
        if kind.endswith("_1"):
            m, at = half(b, 2), 4
        bits = 0
        if kind[1] == "5":
            bits, at = int.from_bytes(bytes(b[at : at + 4]), "little"), at + 4
        zero = {"Q4_0": 8, "Q5_0": 16}.get(kind, 0)
        out = []
        for i in range(32):
            q = b[at + i] & 15 if i < 16 else b[at + i - 16] >> 4
            out.append(f((q | (bits >> i & 1) << 4) - zero) * d + m)
        return out
    if kind == "Q8_0":
        return [f(signed(x)) * half(b, 0) for x in b[2:34]]
    if kind in ("Q4_K", "Q5_K"):
        d, dmin, scales = half(b, 0), half(b, 2), b[4:16]
        low, out = (b[16:] if kind == "Q4_K" else b[48:]), []
        for i in range(256):
            j, l = i // 32, i % 32
            sc, mn = six_bits(scales, j)
            byte = low[(i // 64) * 32 + l]
            q = byte & 15 if j % 2 == 0 else byte >> 4
            if kind == "Q5_K":
                q += 16 * (b[16 + l] >> j & 1)
            out.append((d * f(sc)) * f(q) - dmin * f(mn))
        return out
    if kind == "Q6_K":
        out = []
        for i in range(256):
            part, r = i // 128, i % 128
            quarter, l = r // 32, r % 32
            low = b[part * 64 + l + 32 * (quarter % 2)]
            q = (low & 15 if quarter < 2 else low >> 4) | (
                b[128 + part * 32 + l] >> 2 * quarter & 3
            ) << 4
            out.append(
                half(b, 208) * f(signed(b[192 + part * 8 + quarter * 2 + l // 16])) * f(q - 32)
            )
        return out
    if kind == "Q2_K":
        out = []
        for i in range(256):
            part, r = i // 128, i % 128
            sc = b[i // 16]
            q = b[16 + part * 32 + r % 32] >> 2 * (r // 32) & 3
            out.append((half(b, 80) * f(sc & 15)) * f(q) - half(b, 82) * f(sc >> 4))
        return out
    if kind == "Q3_K":
        out = []
        for i in range(256):
            part, r, j = i // 128, i % 128, i // 16
            low = b[96 + j % 8] & 15 if j < 8 else b[96 + j % 8] >> 4
            sc = low | (b[104 + j % 4] >> 2 * (j // 4) & 3) << 4
            q = (b[32 + part * 32 + r % 32] >> 2 * (r // 32) & 3) - (
                0 if b[r % 32] >> (part * 4 + r // 32) & 1 else 4
            )
            out.append((half(b, 108) * f(sc - 32)) * f(q))
        return out
    if kind == "MXFP4":
        values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        codes = [x & 15 for x in b[1:17]] + [x >> 4 for x in b[1:17]]
        return [f((-1 if c > 7 else 1) * values[c % 8] * 2.0 ** (b[0] - 127)) for c in codes]
    raise AssertionError(kind)


def random_blocks(rng, kind, elements):
    """Bytes of random blocks whose values are of the size of weights, and the values."""
    _, per, size = TYPES[kind]
    data, values = b"", []
    for _ in range(elements // per):
        block = bytearray(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
        for at in HALVES.get(kind, []):
            block[at : at + 2] = np.float16(
                rng.uniform(0.2, 1)
                * {"K": 3e-4, "6": 2e-5}.get("6" if kind == "Q6_K" else kind[-1], 6e-3)
            ).tobytes()
        if kind == "MXFP4":
            block[0] = int(rng.integers(118, 122))
        data += bytes(block)
        values += decode(kind, block)
    return data, np.array(values, np.float32)


def plain(kind, values):
    if kind == "BF16":
        return (
            (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        )
    return np.ascontiguousarray(values, {"F32": "<f4", "F16": "<f2"}[kind]).tobytes()


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def value(v):
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v) if v >= 0 else struct.pack("<Ii", 5, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    items = [value(x) for x in v]
    return (
        struct.pack("<I", 9)
        + items[0][:4]
        + struct.pack("<Q", len(v))
        + b"".join(i[4:] for i in items)
    )


def write(path, metadata, tensors, version=3):
    """tensors: name -> (type name, shape as numpy has it, bytes)."""
    head, body = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)), b""
    for key, v in metadata.items():
        head += text(key) + value(v)
    for name, (kind, shape, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += (
            text(name)
            + struct.pack("<I", len(shape))
            + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        )
        head += struct.pack("<IQ", TYPES[kind][0] if isinstance(kind, str) else kind, len(body))
        body += data
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path


def stored_tensors(folder):
    for file in sorted(folder.glob("model*.safetensors")):
        header, body = checkpoints.read(file)
        yield from ((name, entry, body) for name, entry in header.items() if name != "__metadata__")


def load_folder(folder):
    """config.json, and all tensors in single precision."""
    tensors = {}
    for name, entry, body in stored_tensors(folder):
        raw = body[entry["data_offsets"][0] : entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] in ("F32", "F16", "F64"):
            array = np.frombuffer(
                raw, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[entry["dtype"]]
            ).astype(np.float32)
        else:
            continue
        tensors[name] = array.reshape(entry["shape"])
    return json.loads((folder / "config.json").read_text()), tensors


def save_folder(folder, config, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, body = {}, b""
    for name, array in tensors.items():
        data = np.ascontiguousarray(array, "<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    checkpoints.write(folder / "model.safetensors", header, body)
    return folder


ARCH = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "olmo2": "olmo2",
    "granite": "granite",
    "smollm3": "smollm3",
    "gpt_oss": "gpt-oss",
}
PERMUTED = ("llama", "granite", "smollm3")


def permuted(array, heads):
    """Rows of queries and keys as converters write them: the two halves of a head's rotation by
    turns.
    """
    shape = array.shape
    return array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def metadata_of(config):
    kind = config["model_type"]
    a = ARCH[kind]
    width = config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    out = {
        "general.architecture": a,
        f"{a}.block_count": config.get("num_hidden_layers", config.get("n_layer")),
        f"{a}.embedding_length": width,
        f"{a}.attention.head_count": heads,
        f"{a}.context_length": config.get("max_position_embeddings", config.get("n_positions")),
        f"{a}.feed_forward_length": (
            config.get("intermediate_size", config.get("n_inner")) or 4 * width
        ),
    }
    if kind in ("gpt2", "gpt_neox"):
        out[f"{a}.attention.layer_norm_epsilon"] = float(
            config.get("layer_norm_eps", config.get("layer_norm_epsilon", 1e-5))
        )
    else:
        out[f"{a}.attention.layer_norm_rms_epsilon"] = float(config.get("rms_norm_eps", 1e-6))
        out[f"{a}.attention.head_count_kv"] = config.get("num_key_value_heads", heads)
        out[f"{a}.rope.freq_base"] = float(config.get("rope_theta", 10000.0))
        head_dim = config.get("head_dim") or width // heads
        out[f"{a}.attention.key_length"] = head_dim
        out[f"{a}.rope.dimension_count"] = int(head_dim * config.get("partial_rotary_factor", 1.0))
    if kind == "gpt_neox":
        out[f"{a}.rope.dimension_count"] = int(width // heads * config.get("rotary_pct", 0.25))
        out[f"{a}.rope.freq_base"] = float(config.get("rotary_emb_base", 10000))
        out[f"{a}.use_parallel_residual"] = config.get("use_parallel_residual", True)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        out[f"{a}.rope.scaling.type"] = scaling["rope_type"]
        out[f"{a}.rope.scaling.factor"] = float(scaling["factor"])
        if "original_max_position_embeddings" in scaling:
            out[f"{a}.rope.scaling.original_context_length"] = scaling[
                "original_max_position_embeddings"
            ]
    if scaling.get("type") == "longrope":
        out[f"{a}.rope.scaling.original_context_length"] = config[
            "original_max_position_embeddings"
        ]
    for key, name in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
        ("attention_multiplier", "attention.scale"),
    ):
        if config.get(key):
            out[f"{a}.{name}"] = float(config[key])
    if "query_pre_attn_scalar" in config:
        out[f"{a}.attention.scale"] = float(config["query_pre_attn_scalar"]) ** -0.5
    if config.get("sliding_window"):
        out[f"{a}.attention.sliding_window"] = config["sliding_window"]
    if "sliding_window_pattern" in config:
        out[f"{a}.attention.sliding_window_pattern"] = config["sliding_window_pattern"]
        out[f"{a}.rope.freq_base_swa"] = float(config["rope_local_base_freq"])
    if "layer_types" in config:
        out[f"{a}.attention.sliding_window_pattern"] = [
            t == "sliding_attention" for t in config["layer_types"]
        ]
    experts = config.get("num_local_experts", config.get("num_experts"))
    if experts:
        out[f"{a}.expert_count"] = experts
        out[f"{a}.expert_used_count"] = config["num_experts_per_tok"]
        out[f"{a}.expert_feed_forward_length"] = config.get(
            "moe_intermediate_size", config["intermediate_size"]
        )
    return out


NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "ln_f.weight": "output_norm.weight",
    "ln_f.bias": "output_norm.bias",
    "gpt_neox.embed_in.weight": "token_embd.weight",
    "gpt_neox.final_layer_norm.weight": "output_norm.weight",
    "gpt_neox.final_layer_norm.bias": "output_norm.bias",
    "embed_out.weight": "output.weight",
}
EXPERTS = {
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
}


def convert(config, tensors):
    """(metadata, {name: array}) as a converter makes them of a folder."""
    kind = config["model_type"]
    arch, metadata = ARCH[kind], metadata_of(config)
    heads = config.get("num_attention_heads", config.get("n_head"))
    out, experts = {}, {}
    for name, array in tensors.items():
        name = name.removeprefix("transformer.")
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if name in TOP:
            out[TOP[name]] = array
            continue
        parts = (
            name.removeprefix("model.")
            .removeprefix("gpt_neox.")
            .removeprefix("layers.")
            .removeprefix("h.")
            .split(".")
        )
        layer, rest = parts[0], parts[1:]
        if (
            not layer.isdigit()
            or rest[-1] in ("masked_bias", "inv_freq")
            or rest[-2:] in (["attn", "bias"], ["attention", "bias"])
        ):
            continue
        if rest[-1] == "sinks":
            out[f"blk.{layer}.attn_sinks.weight"] = array
        elif "experts" in rest and rest[-1] == "weight":
            experts.setdefault(f"blk.{layer}.{EXPERTS[rest[-2]]}.weight", {})[int(rest[-3])] = array
        elif "experts" in rest:  # gpt-oss: all in one tensor
            suffix = "bias" if rest[-1].endswith("_bias") else "weight"
            last = np.swapaxes(array, 1, 2) if suffix == "weight" else array
            if rest[-1].startswith("gate_up"):
                (
                    out[f"blk.{layer}.ffn_gate_exps.{suffix}"],
                    out[f"blk.{layer}.ffn_up_exps.{suffix}"],
                ) = (last[:, 0::2], last[:, 1::2])
            else:
                out[f"blk.{layer}.ffn_down_exps.{suffix}"] = last
        else:
            new = NAMES[".".join(rest[:-1])]
            if (
                kind.startswith("gemma")
                and ".".join(rest[:-1]) == "post_attention_layernorm"
                or kind == "olmo2"
                and new == "ffn_norm"
            ):
                new = "post_attention_norm"
            if arch in PERMUTED and new in ("attn_q", "attn_k"):
                array = permuted(
                    array, heads if new == "attn_q" else config.get("num_key_value_heads", heads)
                )
            if kind == "gpt2" and array.ndim == 2:
                array = array.T
            if kind == "gpt_neox" and new == "attn_qkv":
                array = (
                    array.reshape(heads, 3, -1, *array.shape[1:])
                    .swapaxes(0, 1)
                    .reshape(array.shape)
                )
            out[f"blk.{layer}.{new}.{rest[-1]}"] = array
    for name, by_number in experts.items():
        out[name] = np.stack([by_number[e] for e in sorted(by_number)])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        out["rope_freqs.weight"] = llama3_factors(config, scaling)
    if scaling.get("type") == "longrope":
        out["rope_factors_short.weight"] = np.array(scaling["short_factor"], np.float32)
        out["rope_factors_long.weight"] = np.array(scaling["long_factor"], np.float32)
    return metadata, out


def llama3_factors(config, s):
    rot = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    factors = []
    for i in range(rot // 2):
        wave = 2 * np.pi * config["rope_theta"] ** (2 * i / rot)
        original = s["original_max_position_embeddings"]
        low, high = original / s["low_freq_factor"], original / s["high_freq_factor"]
        smooth = (original / wave - s["low_freq_factor"]) / (
            s["high_freq_factor"] - s["low_freq_factor"]
        )
        factors.append(
            1.0
            if wave < high
            else s["factor"] if wave > low else 1 / ((1 - smooth) / s["factor"] + smooth)
        )
    return np.array(factors, np.float32)


def plain_file(path, folder, kind="F32", **changes):
    config, tensors = load_folder(folder)
    metadata, arrays = convert({**config, **changes}, tensors)
    return write(
        path,
        metadata,
        {
            n: (kind if a.ndim > 1 else "F32", a.shape, plain(kind if a.ndim > 1 else "F32", a))
            for n, a in arrays.items()
        },
    )


def plain_file_with(path, folder, more):
    config, tensors = load_folder(folder)
    metadata, arrays = convert(config, tensors)
    return write(
        path,
        {**metadata, **more},
        {n: ("F32", a.shape, plain("F32", a)) for n, a in arrays.items()},
    )
