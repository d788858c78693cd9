"""Weights in GGUF files and in PyTorch's pickles."""
import io
import json
import math
import shutil
import struct
import zipfile

from hostile.material import mangle, smaller_bytes
from hostile.rules import GOLDEN, run_program

SIZES = [
    0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62,
    (1 << 63) - 1
]


def tensors_of(folder):
    """(config, {name: (shape, bytes)}) of a folder in single precision."""
    data = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return (
        json.loads((folder / "config.json").read_text()),
        {
            name: (entry["shape"], data[8 + size :][slice(*entry["data_offsets"])])
            for name, entry in header.items()
        },
    )


class Ggufs:
    """Metadata, tables of tensors, blocks and tokenizers of GGUF files."""

    NAMES = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    TOP = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    ARCHITECTURES = [
        "llama", "qwen2", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "phi3", "gpt2",
        "gptneox", "olmo2", "olmoe", "granite", "smollm3", "gpt-oss", "mamba", ""
    ]
    VALUES = [
        0, 1, -1, 2, 3, 1 << 31, 0.0, -1.0, 1e30, math.inf, math.nan, True, "", "x", "\x1b[0m",
        [1, 2], [0.5], ["a"], [True], [[1], [2]]
    ]

    def text(self, s):
        data = s.encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(data)) + data

    def value(self, v):
        if isinstance(v, bool):
            return 7, struct.pack("<?", v)
        if isinstance(v, int):
            return (4, struct.pack("<I", v)) if 0 <= v < 1 << 32 else (11, struct.pack("<q", v))
        if isinstance(v, float):
            return 6, struct.pack("<f", v)
        if isinstance(v, str):
            return 8, self.text(v)
        items = [self.value(x) for x in v]
        return 9, struct.pack("<IQ", items[0][0] if items else 4, len(v)) + b"".join(
            data for _, data in items
        )

    def sound(self):
        config, tensors = tensors_of(GOLDEN / "tiny-llama")
        keys = {
            "general.architecture": "llama",
            "llama.block_count": config["num_hidden_layers"],
            "llama.embedding_length": config["hidden_size"],
            "llama.attention.head_count": config["num_attention_heads"],
            "llama.attention.head_count_kv": config["num_key_value_heads"],
            "llama.context_length": config["max_position_embeddings"],
            "llama.feed_forward_length": config["intermediate_size"],
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 10000.0,
            "llama.attention.key_length": config["head_dim"],
            "llama.rope.dimension_count": config["head_dim"],
        }
        rows = []
        for name, (shape, data) in tensors.items():
            parts = name.split(".")
            new = (
                self.TOP.get(name)
                or f"blk.{parts[2]}.{self.NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"
            )
            rows.append(
                {"name": new, "dims": list(reversed(shape)), "type": 0, "data": data, "shift": 0}
            )
        return keys, rows, config["vocab_size"]

    def draw(self, rng):
        keys, rows, vocabulary = self.sound()
        case = {"version": 3, "tensors": 0, "pairs": 0, "command": "trace"}
        if rng.random() < 0.4:  # with a tokenizer
            case["command"] = "tokenize"
            words = ["w", *map(str, range(10)), *(f"w{i}" for i in range(vocabulary - 11))]
            keys.update(
                {
                    "tokenizer.ggml.model": rng.choice(
                        ["gpt2", "gpt2", "llama", "llama", "bert", ""]
                    ),
                    "tokenizer.ggml.tokens": words,
                    "tokenizer.ggml.merges": ["w 1"],
                    "tokenizer.ggml.scores": [0.0] * vocabulary,
                    "tokenizer.ggml.token_type": [1] * vocabulary,
                    "tokenizer.ggml.bos_token_id": 1,
                    "tokenizer.ggml.pre": rng.choice(
                        ["gpt-2", "gpt-2", "llama-bpe", "default", "nothing"]
                    ),
                }
            )
        for _ in range(rng.randrange(3)):
            key, row, kind = rng.choice(list(keys)), rng.choice(rows), rng.randrange(8)
            if kind == 0:
                keys[key] = rng.choice(self.VALUES)
            elif kind == 1:
                keys.pop(key)
            elif kind == 2:
                keys["general.architecture"] = rng.choice(self.ARCHITECTURES)
            elif kind == 3:
                keys[
                    rng.choice(
                        [
                            "general.alignment",
                            "llama.expert_count",
                            "llama.attention.key_length",
                            "llama.rope.dimension_count",
                            "llama.rope.scaling.type",
                            "llama.attention.sliding_window",
                            "split.count",
                            "x" * 3000,
                        ]
                    )
                ] = rng.choice(self.VALUES)
            elif kind == 4:
                row["dims"] = rng.choice(
                    [
                        [],
                        [rng.choice(SIZES)],
                        [rng.choice(SIZES), rng.choice(SIZES)],
                        [2] * 9,
                        row["dims"][::-1],
                    ]
                )
            elif kind == 5:
                row["type"] = rng.choice(
                    [1, 2, 3, 6, 8, 10, 11, 12, 13, 14, 28, 30, 39, 4, 99, 1 << 31]
                )
            elif kind == 6:
                row["shift"] = rng.choice([-32, 1, 32, 1 << 40, (1 << 63) - 1])
            else:
                row["name"] = rng.choice(
                    ["", "x" * 500, "blk.99.attn_q.weight", "../../a", "\x1b[31m", rows[0]["name"]]
                )
        if rng.random() < 0.2:
            case["version"] = rng.choice([0, 1, 2, 4, 1 << 24])
        if rng.random() < 0.2:
            case[rng.choice(["tensors", "pairs"])] = rng.choice([-1, 1, 1 << 40, (1 << 62)])
        data = self.file(case, keys, rows)
        if rng.random() < 0.2:
            data = mangle(rng, data[:3000]) + data[3000:]
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data))]
        return {"command": case["command"], "data": data}

    def file(self, case, keys, rows):
        head = b"GGUF" + struct.pack(
            "<IQQ",
            case["version"],
            (len(rows) + case["tensors"]) % (1 << 64),
            (len(keys) + case["pairs"]) % (1 << 64),
        )
        body = b""
        for key, v in keys.items():
            kind, data = self.value(v)
            head += self.text(key) + struct.pack("<I", kind) + data
        for row in rows:
            body += b"\0" * (-len(body) % 32)
            head += (
                self.text(row["name"])
                + struct.pack("<I", len(row["dims"]))
                + b"".join(struct.pack("<Q", n) for n in row["dims"])
            )
            head += struct.pack("<IQ", row["type"], (len(body) + row["shift"]) % (1 << 64))
            body += row["data"]
        return head + b"\0" * (-len(head) % 32) + body

    def run(self, case, place):
        file = place / "model.gguf"
        file.write_bytes(case["data"])
        if case["command"] == "tokenize":
            return run_program(
                ["tokenize", "Mary w1 w2", "--model", file, "--json", "-"], results=["-"]
            )
        return run_program(
            ["trace", "--ids", "1,2,3", "--model", file, "--top-paths", "2", "--json", "-"],
            results=["-"],
        )

    def smaller(self, case):
        if len(case["data"]) < 20_000:
            for data in smaller_bytes(case["data"]):
                yield {**case, "data": data}


class Pickles:
    """The pickle of a PyTorch file, and the archive around it."""

    OPCODES = [
        b"cos\nsystem\n", b"cbuiltins\neval\n", b"X\x02\x00\x00\x00id", b"(", b"t", b"R", b"Q",
        b"u", b"e", b"a", b"s", b"}", b"]", b")", b"N", b"\x88", b"0", b"1", b"2", b"\x85", b"\x86",
        b"\x87", b"h\x00", b"q\x00", b"r\xff\xff\xff\xff", b"j\xff\xff\xff\x7f",
        b"X\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f",
        b"I99999999999999999999\n", b"F1e999\n", b"G\x7f\xf0\0\0\0\0\0\0", b"P1\n",
        b"\x95" + b"\xff" * 8, b"\x93", b"\x81", b"b", b"\x80\x05", b".", b"(" * 5000,
        b"]" * 5000 + b"a" * 4000, b"\x85" * 5000, b"c" + b"a" * 3000 + b"\n\x1b[0m\n"
    ]

    def number(self, n):
        return (
            b"J" + struct.pack("<i", n)
            if -(1 << 31) <= n < 1 << 31
            else b"\x8a\x09" + n.to_bytes(9, "little", signed=True)
        )

    def string(self, s):
        return b"X" + struct.pack("<I", len(s)) + s.encode()

    def tensor(self, key, shape, strides, offset, count, storage="FloatStorage"):
        numbers = lambda values: b"(" + b"".join(map(self.number, values)) + b"t"
        return (
            b"ctorch._utils\n_rebuild_tensor_v2\n(("
            + self.string("storage")
            + f"ctorch\n{storage}\n".encode()
            + self.string(key)
            + self.string("cpu")
            + self.number(count)
            + b"tQ"
            + self.number(offset)
            + numbers(shape)
            + numbers(strides)
            + b"\x89ccollections\nOrderedDict\n)RtR"
        )

    def draw(self, rng):
        _, tensors = tensors_of(GOLDEN / "tiny-neox")
        pieces, members = [b"\x80\x02ccollections\nOrderedDict\n)R("], {}
        chosen = rng.randrange(len(tensors))
        for i, (name, (shape, data)) in enumerate(tensors.items()):
            strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
            facts = {"shape": shape, "strides": strides, "offset": 0, "count": math.prod(shape)}
            if i == chosen:
                for _ in range(rng.randrange(3)):
                    facts[rng.choice(list(facts))] = (
                        rng.choice(SIZES)
                        if rng.random() < 0.4
                        else [rng.choice(SIZES) for _ in range(rng.randrange(4))]
                    )
                facts["offset"], facts["count"] = (
                    x if isinstance(x, int) else -1 for x in (facts["offset"], facts["count"])
                )
                facts["shape"], facts["strides"] = (
                    x if isinstance(x, list) else [x] for x in (facts["shape"], facts["strides"])
                )
            storage = (
                "FloatStorage"
                if i != chosen
                else rng.choice(
                    ["FloatStorage"] * 6 + ["HalfStorage", "LongStorage", "QInt8Storage", "\x1b[0m"]
                )
            )
            pieces += [
                self.string(name),
                self.tensor(
                    str(i),
                    facts["shape"],
                    facts["strides"],
                    facts["offset"],
                    facts["count"],
                    storage,
                ),
            ]
            members[str(i)] = data
        pieces.append(b"u.")
        for _ in range(rng.randrange(3)):
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(self.OPCODES))
        body = b"".join(pieces)
        if rng.random() < 0.2:
            body = mangle(rng, body)
        if rng.random() < 0.1:
            members.pop(rng.choice(list(members)))
        if rng.random() < 0.2:
            members[rng.choice(["../../x", "0", "data.pkl", "x" * 3000])] = b"abc"
        archive = io.BytesIO()
        with zipfile.ZipFile(
            archive,
            "w",
            compression=zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED,
        ) as z:
            z.writestr("archive/data.pkl", body)
            for key, data in members.items():
                z.writestr(f"archive/data/{key}", data)
        data = archive.getvalue()
        if rng.random() < 0.2:
            end = len(data) - rng.choice([100, 1000, 4000])  # the directory of the archive
            data = data[:end] + mangle(rng, data[end:])
        return {"data": data}

    def run(self, case, place):
        folder = place / "model"
        folder.mkdir()
        shutil.copy(GOLDEN / "tiny-neox" / "config.json", folder)
        (folder / "pytorch_model.bin").write_bytes(case["data"])
        return run_program(
            ["trace", "--ids", "1,2,3", "--model", folder, "--top-paths", "2", "--json", "-"],
            results=["-"],
        )

    def smaller(self, case):
        if len(case["data"]) < 20_000:
            for data in smaller_bytes(case["data"]):
                yield {"data": data}
