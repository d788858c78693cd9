"""Quantised checkpoints whose layout config.json names: a writer for each, and a slow reference
that says what the numbers mean.
"""
import json
import math

import numpy as np
import pytest

import checkpoints
from conftest import GOLDEN

NF4 = np.array(
    [
        -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0
    ],
    np.float32,
)
TYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "I32": np.int32,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E4M3": np.uint8,
}


def save(folder, config, tensors):
    """tensors: name -> (type, array)."""
    folder.mkdir()
    header, body = {}, b""
    for name, (kind, array) in tensors.items():
        data = np.ascontiguousarray(array, TYPES[kind]).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(np.shape(array)),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    checkpoints.write(folder / "model.safetensors", header, body)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def golden(case="tiny-llama"):
    header, body = checkpoints.read(GOLDEN / case / "model.safetensors")
    config = json.loads((GOLDEN / case / "config.json").read_text())
    return config, {
        n: np.frombuffer(body[e["data_offsets"][0] : e["data_offsets"][1]], np.float32).reshape(
            e["shape"]
        )
        for n, e in header.items()
        if n != "__metadata__"
    }


def linear(name):
    return name.endswith("_proj.weight")


def e4m3(code):
    """The value of a byte, as the format defines it."""
    sign, exponent, mantissa = (-1.0 if code & 128 else 1.0), code >> 3 & 15, code & 7
    return sign * (
        mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    )


def fp8(name, w, rng, kind):
    codes = rng.integers(0, 256, w.shape)
    codes[(codes & 127) == 127] = 3  # no NaN
    value = np.vectorize(e4m3)(codes).astype(np.float32)
    if kind == "blocks":
        rows, columns = math.ceil(w.shape[0] / 8), math.ceil(w.shape[1] / 10)
        scale = rng.uniform(1e-4, 2e-3, (rows, columns)).astype(np.float32)
        spread = np.repeat(np.repeat(scale, 8, 0), 10, 1)[: w.shape[0], : w.shape[1]]
        return {name: ("F8_E4M3", codes), name + "_scale_inv": ("F32", scale)}, value * spread
    shape = {"tensor": (), "rows": (w.shape[0], 1)}[kind]
    scale = rng.uniform(1e-4, 2e-3, shape).astype(np.float32)
    return {
        name: ("F8_E4M3", codes),
        name + "_scale": ("F32", scale),
        name.replace("weight", "input_scale"): ("F32", np.float32(1)),
    }, value * scale


def nf4(name, w, rng, double):
    codes = rng.integers(0, 16, w.size)
    packed = (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1)
    blocks = math.ceil(w.size / 64)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(w.shape)}
    out = {name: ("U8", packed), name + ".quant_map": ("F32", NF4)}
    if double:
        table, index = rng.uniform(-0.05, 0.05, 256).astype(np.float32), rng.integers(
            0, 256, blocks
        )
        outer = rng.uniform(0.5, 1, math.ceil(blocks / 4)).astype(np.float32)
        absmax = table[index] * np.repeat(outer, 4)[:blocks] + np.float32(0.1)
        state.update(
            nested_blocksize=4, nested_dtype="float32", nested_offset=float(np.float32(0.1))
        )
        out.update(
            {
                name + ".absmax": ("U8", index),
                name + ".nested_absmax": ("F32", outer),
                name + ".nested_quant_map": ("F32", table),
            }
        )
    else:
        absmax = rng.uniform(0.05, 0.2, blocks).astype(np.float32)
        out[name + ".absmax"] = ("F32", absmax)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    out[name + ".quant_state.bitsandbytes__nf4"] = ("U8", text)
    return out, (NF4[codes] * np.repeat(absmax, 64)[: w.size]).reshape(w.shape)


def pack(values, order):
    """Eight numbers of four bits a word, along the last axis; the one in place i is
    values[order[i]].
    """
    groups = values.reshape(*values.shape[:-1], -1, 8).astype(np.uint64)
    return (
        sum(groups[..., order[i]] << np.uint64(4 * i) for i in range(8))
        .astype(np.uint32)
        .view(np.int32)
    )


def grouped(name, w, rng, kind, group=8, shuffled=False, less_one=True):
    outputs, inputs = w.shape
    base, group = name[: -len(".weight")], group or inputs
    groups = math.ceil(inputs / group)
    q, zero = rng.integers(0, 16, (inputs, outputs)), rng.integers(0, 16, (groups, outputs))
    scale = rng.uniform(0.001, 0.02, (groups, outputs)).astype(np.float16)
    belongs = np.arange(inputs) // group
    if shuffled:
        belongs = rng.permutation(belongs)
    value = ((q - zero[belongs]).astype(np.float32) * scale[belongs].astype(np.float32)).T
    if kind == "awq":
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        return {
            base + ".qweight": ("I32", pack(q, order)),
            base + ".qzeros": ("I32", pack(zero, order)),
            base + ".scales": ("F16", scale),
        }, value
    plain = list(range(8))
    parts = {
        base + ".qweight": ("I32", pack(q.T, plain).T),
        base + ".qzeros": ("I32", pack((zero - less_one) % 16, plain)),
        base + ".scales": ("F16", scale),
    }
    return {**parts, base + ".g_idx": ("I32", belongs)}, value


SCHEMES = {
    "fp8 in blocks": (
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 10]},
        lambda n, w, r: fp8(n, w, r, "blocks"),
    ),
    "fp8 by tensor": ({"quant_method": "fp8"}, lambda n, w, r: fp8(n, w, r, "tensor")),
    "fp8 by row": (
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        lambda n, w, r: fp8(n, w, r, "rows"),
    ),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda n, w, r: nf4(n, w, r, False),
    ),
    "nf4 twice": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        lambda n, w, r: nf4(n, w, r, True),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm"},
        lambda n, w, r: grouped(n, w, r, "awq"),
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False},
        lambda n, w, r: grouped(n, w, r, "gptq"),
    ),
    "gptq in an order of its own": (
        {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True},
        lambda n, w, r: grouped(n, w, r, "gptq", shuffled=True),
    ),
    "gptq v2, one group": (
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
        lambda n, w, r: grouped(n, w, r, "gptq", group=None, less_one=False),
    ),
}


def pair(tmp_path, scheme):
    """The quantised folder, and one with what the reference makes of it in float32."""
    config, tensors = golden()
    quantisation, make = SCHEMES[scheme]
    rng = np.random.default_rng(11)
    packed, plain = {}, {}
    for name, w in tensors.items():
        parts, value = make(name, w, rng) if linear(name) else ({name: ("F32", w)}, w)
        packed.update(parts)
        plain[name] = ("F32", value)
    return save(tmp_path / "packed", {**config, "quantization_config": quantisation}, packed), save(
        tmp_path / "plain", config, plain
    )


def traced(unpack, folder, device):
    result = unpack.json(
        "trace", "--ids", "3,17,5,9", "--model", folder, "--target-id", "7", "--device", device
    )
    return np.array([result["target"]["logit"], *result["token_credit"]]), result["model"]["dtype"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_checkpoint_is_explained_as_its_numbers_are(unpack, tmp_path, scheme):
    packed, plain = pair(tmp_path, scheme)
    for device, limit in (("reference", 1e-12), ("cpu", 1e-7)):
        got, dtype = traced(unpack, packed, device)
        expected, _ = traced(unpack, plain, device)
        assert np.abs(got - expected).max() <= limit * np.abs(expected).max()
    assert dtype in ("FP8", "bitsandbytes 4 bit", "AWQ 4 bit", "GPTQ 4 bit")


def test_models_names_the_scheme(unpack, tmp_path):
    packed, plain = pair(tmp_path, "gptq")
    lines = unpack.ok("models", packed, plain).splitlines()
    line = lambda folder: next(line for line in lines if line.rstrip().endswith(str(folder)))
    assert "GPTQ 4 bit" in line(packed) and "fits" in line(packed) and "float32" in line(plain)
    # However long the name of a scheme is, columns stand below each other.
    (tmp_path / "nf4").mkdir()
    listed = [
        line
        for line in unpack.ok("models", packed, pair(tmp_path / "nf4", "nf4")[0]).splitlines()
        if " ctx  fits  " in line
    ]
    assert "bitsandbytes 4 bit" in listed[-1] and len({line.index(" ctx ") for line in listed}) == 1


def broken(tmp_path, scheme, change):
    packed, _ = pair(tmp_path, scheme)
    header, body = checkpoints.read(packed / "model.safetensors")
    name = next(n for n in header if "q_proj" in n).split("q_proj")[0] + "q_proj."
    tensors = {
        n: (
            e["dtype"],
            np.frombuffer(body[e["data_offsets"][0] : e["data_offsets"][1]], TYPES[e["dtype"]])
            .reshape(e["shape"])
            .copy(),
        )
        for n, e in header.items()
    }
    change(tensors, name)
    for file in packed.iterdir():
        if file.name == "config.json":
            config = json.loads(file.read_text())
    return save(tmp_path / "broken", config, tensors)


BAD = [
    ("gptq", lambda t, n: t.pop(n + "scales"), "scales"),
    ("gptq", lambda t, n: t.update({n + "g_idx": ("I32", t[n + "g_idx"][1] + 99)}), "group"),
    ("gptq", lambda t, n: t.update({n + "qzeros": ("I32", t[n + "qzeros"][1][:1])}), "qzeros"),
    ("awq", lambda t, n: t.update({n + "qweight": ("I8", np.zeros((4, 4)))}), "qweight"),
    (
        "awq",
        lambda t, n: t.update({n + "scales": ("F16", t[n + "scales"][1] * np.float16(np.nan))}),
        "no finite number",
    ),
    (
        "awq",
        lambda t, n: t.update(
            {
                n + "qweight": ("I32", t[n + "qweight"][1][:8]),
                n + "scales": ("F16", t[n + "scales"][1][:1]),
                n + "qzeros": ("I32", t[n + "qzeros"][1][:1]),
            }
        ),
        "shape",
    ),
    ("nf4", lambda t, n: t.pop(n + "weight.quant_map"), "quant_map"),
    ("nf4", lambda t, n: t.update({n + "weight.absmax": ("F32", np.ones(3))}), "absmax"),
    (
        "nf4",
        lambda t, n: t.update(
            {n + "weight.quant_state.bitsandbytes__nf4": ("U8", np.frombuffer(b"{", np.uint8))}
        ),
        "JSON",
    ),
    (
        "nf4",
        lambda t, n: t.update(
            {
                n
                + "weight.quant_state.bitsandbytes__nf4": (
                    "U8",
                    np.frombuffer(b'{"shape": [99999999, 99999999]}', np.uint8),
                )
            }
        ),
        "bytes",
    ),
    ("nf4 twice", lambda t, n: t.pop(n + "weight.nested_absmax"), "nested_absmax"),
    (
        "fp8 in blocks",
        lambda t, n: t.update({n + "weight_scale_inv": ("F32", np.ones((1, 1)))}),
        "weight_scale_inv",
    ),
    ("fp8 by tensor", lambda t, n: t.pop(n + "weight_scale"), "weight_scale"),
    (
        "fp8 by tensor",
        lambda t, n: t.update({n + "weight": ("F8_E4M3", np.full(t[n + "weight"][1].shape, 127))}),
        "no finite number",
    ),
]


@pytest.mark.parametrize("scheme, change, word", BAD, ids=range(len(BAD)))
def test_parts_that_do_not_fit_are_refused(unpack, tmp_path, scheme, change, word):
    assert word in unpack.fails(
        1, "predict", "--ids", "1,2", "--model", broken(tmp_path, scheme, change)
    )


@pytest.mark.parametrize(
    "quantisation, word",
    [
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "gptq", "bits": 8}, "gptq of 8 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8 bits"),
        ({"quant_method": "fp8", "weight_block_size": [0, 5]}, "weight_block_size"),
    ],
)
def test_schemes_that_are_not_read_are_named(unpack, tmp_path, quantisation, word):
    config, tensors = golden()
    folder = save(
        tmp_path / "other",
        {**config, "quantization_config": quantisation},
        {n: ("F32", w) for n, w in tensors.items()},
    )
    assert word in unpack.fails(1, "predict", "--ids", "1,2", "--model", folder)
