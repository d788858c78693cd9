"""Model folders: config, weights, tokenizer, and weights whose values overflow."""
import json
import random
import shutil
import struct

from hostile.material import bend, mangle, smaller_bytes, text_of
from hostile.rules import GOLDEN, ROOT, Outcome, run_program


class ModelFiles:
    """Config, weights, index and tokenizer of a model folder."""

    CASES = sorted(
        folder.name for folder in GOLDEN.glob("tiny-*") if (folder / "model.safetensors").exists()
    )

    def draw(self, rng):
        folder = rng.choice(self.CASES)
        name = rng.choice(["config.json", "config.json", "model.safetensors", "tokenizer.json"])
        source = GOLDEN / folder / name
        if not source.exists():
            source = ROOT / "models" / "pocket-gpt2" / name
        data = source.read_bytes()
        if name == "model.safetensors" and rng.random() < 0.8:
            (size,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8 : 8 + size])
            bend(rng, header)
            text = text_of(header).encode()
            if rng.random() < 0.3:
                text = mangle(rng, text)
            data = (
                struct.pack("<Q", len(text) + rng.choice([0, 0, 0, 1, -1, 1 << 40]))
                + text
                + data[8 + size :]
            )
        elif name == "config.json" and rng.random() < 0.8:
            config = json.loads(data)
            bend(rng, config)
            data = text_of(config).encode("utf-8", "surrogatepass")
        else:
            data = mangle(rng, data[:200_000])
        return {"folder": folder, "name": name, "data": data}

    def run(self, case, place):
        folder = place / "model"
        shutil.copytree(GOLDEN / case["folder"], folder, ignore=shutil.ignore_patterns("expected*"))
        (folder / case["name"]).write_bytes(case["data"])
        if case["name"] == "tokenizer.json":
            return run_program(
                ["tokenize", "Mary and John", "--model", folder, "--json", "-"], results=["-"]
            )
        return run_program(
            ["trace", "--ids", "1,2,3", "--model", folder, "--top-paths", "2", "--json", "-"],
            results=["-"],
        )

    def smaller(self, case):
        if len(case["data"]) < 20_000:
            for data in smaller_bytes(case["data"]):
                yield {**case, "data": data}


class Weights:
    """Values of weights: large, small, and of a kind that overflows."""

    def draw(self, rng):
        return {
            "folder": rng.choice(ModelFiles.CASES),
            "seed": rng.randrange(1 << 30),
            "scale": rng.choice([1e3, 1e10, 1e20, 1e30, 1e38, 1e-30]),
            "part": rng.choice([1.0, 0.1, 0.001]),
        }

    def run(self, case, place):
        rng = random.Random(case["seed"])
        folder = place / "model"
        shutil.copytree(GOLDEN / case["folder"], folder, ignore=shutil.ignore_patterns("expected*"))
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        (size,) = struct.unpack("<Q", data[:8])
        for entry in json.loads(data[8 : 8 + size]).values():
            if entry.get("dtype") != "F32":
                continue
            begin, end = (8 + size + x for x in entry["data_offsets"])
            for at in range(begin, end, 4):
                if rng.random() < case["part"]:
                    (x,) = struct.unpack_from("<f", data, at)
                    y = x * case["scale"]
                    struct.pack_into("<f", data, at, y if abs(y) < 3.4e38 else 3.4e38)
        file.write_bytes(data)
        for command in (["trace", "--top-paths", "3"], ["predict"], ["interactions"]):
            found = run_program(
                [*command, "--ids", "1,2,3", "--model", folder, "--json", "-"], results=["-"]
            )
            if found:
                return found
        return Outcome()

    def smaller(self, case):
        for part in (0.1, 0.01, 0.001):
            if part < case["part"]:
                yield {**case, "part": part}
