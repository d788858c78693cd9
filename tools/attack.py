#!/usr/bin/env python3
"""A structured attacker: hostile input for every surface of the program, drawn from a seed.

    tools/attack.py                      # about 30 s, every surface once around, as in `make test`
    tools/attack.py --minutes 120        # by hand, for hours
    tools/attack.py --surface batch --seed 7 --cases 500

It knows what is allowed: exit 0, 1 or 2; on failure one line of UTF-8 under 500 characters; no number that is not finite in a result; limits
of time and memory. What breaks a rule is made smaller for as long as it still does, and written to the folder --keep (default attack-findings).
UNPACK names the program (default: build/release/unpack).

A new surface is a class below with `draw(rng)` (a case: plain data), `run(case, place)` (what happened) and `smaller(case)` (cases to try
instead), and a line in SURFACES.
"""
import argparse
import http.client
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
GOLDEN = ROOT / "tests" / "golden"
TIME_LIMIT = float(os.environ.get("UNPACK_ATTACK_SECONDS", "20"))  # of one case; a slow machine may raise it
MEMORY_LIMIT = 4 << 30  # address space
LONGEST_LINE = 500


class Outcome:
    def __init__(self, problem="", detail=""):
        self.problem, self.detail = problem, detail

    def __bool__(self):
        return bool(self.problem)


# What is allowed ---------------------------------------------------------------------------------------------------


def finite(value):
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, dict):
        return all(finite(x) for x in value.values())
    return not isinstance(value, list) or all(finite(x) for x in value)


def no_constant(name):
    raise ValueError(f"{name} in JSON")


def judge_json(text, allow_null=True):
    """A result: JSON without NaN or Infinity."""
    try:
        value = json.loads(text, parse_constant=no_constant)
    except ValueError as error:
        return Outcome("a result that is no JSON", str(error))
    return Outcome() if finite(value) else Outcome("a number that is not finite", text[:200])


def judge_message(data):
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Outcome("a message that is no UTF-8", repr(data[:200]))
    lines = [line for line in text.split("\n") if line]
    if len(lines) != 1:
        return Outcome(f"{len(lines)} lines of message", text[:400])
    if len(lines[0]) >= LONGEST_LINE:
        return Outcome("a message of 500 characters or more", lines[0][:200])
    if re.search(r"[\x00-\x1f\x7f-\x9f]", lines[0]):
        return Outcome("a control character in a message", repr(lines[0][:200]))
    if "internal error" in lines[0]:
        return Outcome("an internal error", lines[0])
    return Outcome()


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_program(args, stdin=b"", results=None):
    """One call of the program. `results`: files of JSON that it may leave."""
    try:
        done = subprocess.run([os.fsencode(PROGRAM), *[a if isinstance(a, bytes) else os.fsencode(str(a)) for a in args]], input=stdin, capture_output=True,
                              timeout=TIME_LIMIT, preexec_fn=limited)
    except subprocess.TimeoutExpired:
        return Outcome("over the time limit", f"{TIME_LIMIT} s")
    except (ValueError, OSError) as error:  # a NUL or too long an argument: the system refuses it, not the program
        return Outcome() if not isinstance(error, FileNotFoundError) else Outcome("the program is not there", str(error))
    if done.returncode not in (0, 1, 2):
        return Outcome(f"exit {done.returncode}", done.stderr.decode(errors="replace")[:400])
    if done.returncode != 0:
        found = judge_message(done.stderr)
        if found:
            return found
    for file in results or []:
        if file == "-" and done.returncode == 0:
            found = judge_json(done.stdout.decode(errors="replace"))
            if found:
                return found
        elif file != "-" and Path(file).exists():
            for line in Path(file).read_text(errors="replace").splitlines():
                found = judge_json(line)
                if found:
                    return found
    return Outcome()


# Material ----------------------------------------------------------------------------------------------------------

NUMBERS = ["0", "-0", "-1", "1", "1e400", "-1e400", "1e308", "1e-320", "NaN", "Infinity", "1.5", "18446744073709551614", "18446744073709551615",
           "9223372036854775808", "-9223372036854775809", "2147483648", "-2147483649", "9" * 400, "0x10", "1e", "+1", ".5", "00"]
STRINGS = ["", " ", "x" * 5000, "\n", "\x1b[31m", "\u202e", "\u0000", "..", "/", "../../etc/passwd", "{}", "[]", "%s%n", "A0.H0@0", "MLP99@0", "emb@-1", "é" * 300,
           "\ud800", "a\tb", "-", "--", "--json", "null"]
FIELDS = ["prompt", "ids", "id", "target", "target_id", "versus", "versus_id", "raw_logit", "position", "root", "reroot", "top_paths", "tau", "tau_rule", "branch",
          "through", "from", "min_layer", "sign", "beta", "weights", "mlp_weights", "dispatch", "mlp", "scores", "method", "no_bos", "format", "model", "unknown",
          "top", "lens", "query", "all", "cut", "channel", "edges", "zero", "patch_prompt", "patch_ids"]
WORDS = ["output", "target", "named", "entry", "K", "Q", "V", "G", "U", "positive", "negative", "aligned", "gate", "per-neuron", "linearized", "l2", "raw", "centered",
         "unpack", "ifr", "attnlrp", "cplrp", "json", "html", "svg", "tikz", "attention", "mlp", "A0.H0", "MLP0", "emb", "A1.H1@-1", " a"]


def text_of(value):
    """JSON text, with the liberties that a hostile sender takes."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k) + ":" + text_of(v) for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value)


class Raw:
    """Text that goes into JSON as it is."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return f"Raw({self.text[:60]!r})"


def value(rng, depth=0):
    kind = rng.randrange(9)
    if kind == 0:
        return Raw(rng.choice(NUMBERS))
    if kind == 1:
        return rng.choice(STRINGS)
    if kind in (2, 3):
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice([True, False, None])
    if kind == 5:
        return rng.randint(-3, 12)
    if kind == 6:
        return rng.choice([rng.random() * 3 - 1, 0.5, 1.0])
    if kind == 7 and depth < 3:
        return [value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 3, 3, 50]))]
    if kind == 8 and depth < 3:
        return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return Raw(rng.choice(["[" * 100_000 + "]" * 100_000, "[" * 70 + "]" * 70, "{\"a\":" * 100 + "1" + "}" * 100, "[" + "{}," * 100_000 + "{}]", "1" * 400]))


def fields(rng):
    """A request or a line: mostly sound, so that it gets far."""
    out = {}
    if rng.random() < 0.9:
        out.update(rng.choice([{"prompt": "Mary and John"}, {"ids": [3, 17, 5]}, {"prompt": value(rng)}, {"ids": value(rng)}]))
    for _ in range(rng.randrange(4)):
        out[rng.choice(FIELDS)] = value(rng)
    return out


def mangle(rng, data):
    """Bytes with a few of them changed."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            data[at:at] = bytes(rng.choices(b'{}[]",:0123456789-+.eE\\u \x00\xff', k=rng.randint(1, 4)))
        elif kind == 1:
            del data[at:at + rng.choice([1, 2, 8, 64])]
        elif kind == 2 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 3:
            data[at:at] = data[rng.randrange(len(data) + 1):][:rng.randint(1, 30)]
        else:
            data += bytes(rng.choices([0, 32, 10, 125], k=rng.randint(1, 9)))
    return bytes(data)


def smaller_bytes(data):
    size = len(data) // 2
    while size > 0:
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size:]
        size //= 2


def smaller_dict(case):
    for key in list(case):
        yield {k: v for k, v in case.items() if k != key}
    for key, inner in case.items():
        if isinstance(inner, list) and inner:
            yield {**case, key: inner[: len(inner) // 2]}
        if isinstance(inner, Raw) and len(inner.text) > 40:
            yield {**case, key: Raw(inner.text[: len(inner.text) // 4] + inner.text[-len(inner.text) // 4:])}


# Surfaces ----------------------------------------------------------------------------------------------------------


class CommandLine:
    """Options and their values."""

    COMMANDS = {
        "trace": ["--target", "--target-id", "--versus", "--versus-id", "--position", "--root", "--reroot", "--top-paths", "--tau", "--tau-rule", "--branch", "--through",
                  "--from", "--min-layer", "--sign", "--beta", "--weights", "--mlp-weights", "--dispatch", "--mlp", "--scores", "--method", "--threads", "--model"],
        "predict": ["--top", "--threads", "--model"],
        "generate": ["--max-tokens", "--temperature", "--top-k", "--seed"],
        "interactions": ["--query"],
        "intervene": ["--cut", "--channel", "--edge", "--patch-from", "--patch-ids", "--zero", "--position"],
        "attribute": ["--continuation", "--generate", "--beta", "--weights"],
        "tokenize": ["--model", "--jsonl"],
        "merge": ["--out"],
        "models": [],
        "nonsense\n\x1b[0m": [],
    }
    VALUES = ["0", "1", "-1", "3", "x", "", "1e400", "nan", "inf", "1e-12", "1e300,0,0", "0,0,0", "1,2,3", "1,,2", "99999999999", "A0.H0@0", "MLP0", "emb", "K", "G", "output",
              "entry", "named", "per-neuron", "l2", "ifr", "\n", "\x1b[31mred", "\u202eabc", "x" * 20000, "/dev/zero", "/dev/null", ".", "..", "-", " Mary", "0.01", "2147483648"]

    def draw(self, rng):
        command = rng.choice(list(self.COMMANDS))
        args = [command]
        if rng.random() < 0.9 and command not in ("merge", "models"):
            args += rng.choice([["Mary and John"], ["--ids", "3,17,5"], [rng.choice(self.VALUES)]])
        for _ in range(rng.randrange(4)):
            if self.COMMANDS[command] and rng.random() < 0.95:
                args += [rng.choice(self.COMMANDS[command]), rng.choice(self.VALUES)]
            else:
                args.append(rng.choice(self.VALUES))
        return args

    def run(self, case, place):
        wanted = ["--json", "-"] if case[0] in ("trace", "predict", "interactions", "intervene", "attribute") else []
        if case[0] == "merge":
            wanted = ["--out", str(place / "merged")]
        args = [a.encode("utf-8", "surrogatepass") for a in case + wanted]
        return run_program(args, results=["-"] if wanted and case[0] != "merge" else None)

    def smaller(self, case):
        for i in range(1, len(case)):
            yield case[:i] + case[i + 1:]


class BatchLines:
    """Lines of a prompt file."""

    def draw(self, rng):
        lines = []
        for _ in range(rng.randint(1, 6)):
            line = text_of(fields(rng)).encode("utf-8", "surrogatepass")
            lines.append(mangle(rng, line) if rng.random() < 0.3 else line)
        return lines

    def run(self, case, place):
        (place / "p.jsonl").write_bytes(b"\n".join(case) + b"\n")
        out = place / "out"
        args = ["batch", place / "p.jsonl", "--out", out, "--top-paths", "2", "--arrays"]
        found = run_program(args, results=[out / "results.jsonl", out / "errors.jsonl", ])
        if found:
            return found
        for line in (out / "errors.jsonl").read_bytes().splitlines() if (out / "errors.jsonl").exists() else []:
            reason = json.loads(line)["reason"]
            if len(reason) >= LONGEST_LINE or re.search(r"[\x00-\x1f]", reason):
                return Outcome("a reason that is no line", reason[:200])
        return run_program(args)  # once more: it resumes

    def smaller(self, case):
        for i in range(len(case)):
            if len(case) > 1:
                yield case[:i] + case[i + 1:]
        if len(case) == 1:
            for data in smaller_bytes(case[0]):
                yield [data]


class Tables:
    """Tables and texts of prompts."""

    def draw(self, rng):
        rows = [["prompt", "ids", "position", "target", "top_paths"][: rng.randint(1, 5)]]
        for _ in range(rng.randint(0, 4)):
            rows.append([rng.choice(STRINGS + NUMBERS + ["Mary", "3 17", "\"x", "a,b"]).replace("\ud800", "?") for _ in range(rng.randint(1, 6))])
        text = "\n".join(rng.choice([",", "\t"]).join(row) for row in rows).encode()
        return {"name": rng.choice(["p.csv", "p.tsv", "p.txt", "p.json"]), "data": mangle(rng, text) if rng.random() < 0.5 else text}

    def run(self, case, place):
        (place / case["name"]).write_bytes(case["data"])
        return run_program(["batch", place / case["name"], "--out", place / "out", "--top-paths", "1"])

    def smaller(self, case):
        for data in smaller_bytes(case["data"]):
            yield {**case, "data": data}


class ModelFiles:
    """Config, weights, index and tokenizer of a model folder."""

    CASES = ["tiny-gpt2", "tiny-neox", "tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"]

    def draw(self, rng):
        folder = rng.choice([name for name in self.CASES if (GOLDEN / name).is_dir()])
        name = rng.choice(["config.json", "config.json", "model.safetensors", "tokenizer.json"])
        source = GOLDEN / folder / name
        if not source.exists():
            source = ROOT / "models" / "pocket-gpt2" / name
        data = source.read_bytes()
        if name == "model.safetensors" and rng.random() < 0.8:
            (size,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8:8 + size])
            self.bend(rng, header)
            text = text_of(header).encode()
            if rng.random() < 0.3:
                text = mangle(rng, text)
            data = struct.pack("<Q", len(text) + rng.choice([0, 0, 0, 1, -1, 1 << 40])) + text + data[8 + size:]
        elif name == "config.json" and rng.random() < 0.8:
            config = json.loads(data)
            self.bend(rng, config)
            data = text_of(config).encode("utf-8", "surrogatepass")
        else:
            data = mangle(rng, data[:200_000])
        return {"folder": folder, "name": name, "data": data}

    def bend(self, rng, tree):
        """Changes a value somewhere in the tree."""
        for _ in range(rng.randint(1, 3)):
            at = tree
            while True:
                keys = list(at) if isinstance(at, dict) else list(range(len(at)))
                if not keys:
                    break
                key = rng.choice(keys)
                if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
                    at = at[key]
                    continue
                if rng.random() < 0.2 and isinstance(at, dict):
                    del at[key]
                elif isinstance(at[key], int) and rng.random() < 0.5:
                    at[key] = at[key] + rng.choice([-1, 1, 4, 1 << 31, 1 << 62, -(1 << 40)])
                else:
                    at[key] = value(rng)
                break

    def run(self, case, place):
        folder = place / "model"
        shutil.copytree(GOLDEN / case["folder"], folder, ignore=shutil.ignore_patterns("expected*"))
        (folder / case["name"]).write_bytes(case["data"])
        if case["name"] == "tokenizer.json":
            return run_program(["tokenize", "Mary and John", "--model", folder, "--json", "-"], results=["-"])
        return run_program(["trace", "--ids", "1,2,3", "--model", folder, "--top-paths", "2", "--json", "-"], results=["-"])

    def smaller(self, case):
        if len(case["data"]) < 20_000:
            for data in smaller_bytes(case["data"]):
                yield {**case, "data": data}


class Weights:
    """Values of weights: large, small, and of a kind that overflows."""

    def draw(self, rng):
        return {"folder": rng.choice([n for n in ModelFiles.CASES if (GOLDEN / n).is_dir()]), "seed": rng.randrange(1 << 30), "scale": rng.choice([1e3, 1e10, 1e20, 1e30, 1e38, 1e-30]),
                "part": rng.choice([1.0, 0.1, 0.001])}

    def run(self, case, place):
        rng = random.Random(case["seed"])
        folder = place / "model"
        shutil.copytree(GOLDEN / case["folder"], folder, ignore=shutil.ignore_patterns("expected*"))
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        (size,) = struct.unpack("<Q", data[:8])
        for entry in json.loads(data[8:8 + size]).values():
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
            found = run_program([*command, "--ids", "1,2,3", "--model", folder, "--json", "-"], results=["-"])
            if found:
                return found
        return Outcome()

    def smaller(self, case):
        for part in (0.1, 0.01, 0.001):
            if part < case["part"]:
                yield {**case, "part": part}


class Paths:
    """Files and folders of strange kinds in the place of every file."""

    KINDS = ["loop", "fifo", "device", "folder", "empty", "missing", "long", "nul", "dangling"]
    WHERE = ["model", "config.json", "model.safetensors", "tokenizer.json", "prompts", "out", "run.json", "results.jsonl", "json", "index.npy", "corpus"]

    def draw(self, rng):
        return {"kind": rng.choice(self.KINDS), "where": rng.choice(self.WHERE)}

    def put(self, path, kind):
        if kind == "loop":
            os.symlink(path.name, path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "device":
            os.symlink("/dev/zero", path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind == "nul":
            path.write_bytes(b"\0" * 64)
        elif kind == "dangling":
            os.symlink("nowhere", path)

    def run(self, case, place):
        model, prompts, out = place / "model", place / "p.jsonl", place / "out"
        shutil.copytree(GOLDEN / "tiny-gpt2", model, ignore=shutil.ignore_patterns("expected*"))
        prompts.write_text('{"ids": [1, 2]}\n')
        kind, where = case["kind"], case["where"]
        target = {"model": place / "other", "prompts": place / "other", "out": place / "other", "json": place / "other", "corpus": place / "other"}.get(where)
        if target is None:
            target = (model if where in ("config.json", "model.safetensors", "tokenizer.json") else out) / where
            out.mkdir()
            if target.exists():
                target.unlink()
        if kind == "long":
            target = Path(str(target) + "x" * 5000)
        else:
            self.put(target, kind)
        if where in ("config.json", "model.safetensors", "tokenizer.json", "model"):
            return run_program(["predict", "--ids", "1,2", "--model", target if where == "model" else model])
        if where == "json":
            if kind in ("device", "fifo"):
                return Outcome()  # these are asked for: a pipe waits for its reader
            return run_program(["predict", "--ids", "1,2", "--model", model, "--json", target])
        if where == "corpus":
            return run_program(["experiment", "sink", "--n", "1", "--model", "pocket-gpt2", "--prompts", target, "--out", place / "exp"])
        return run_program(["batch", target if where == "prompts" else prompts, "--model", model, "--arrays", "--out", target if where == "out" else out])

    def smaller(self, case):
        return iter(())


class Merges:
    """run.json and records of shards, which the program wrote and somebody changed."""

    def __init__(self):
        self.shards = None

    def shard_files(self):
        if self.shards is None:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "p.jsonl").write_text("".join(json.dumps({"ids": [i + 1, 2]}) + "\n" for i in range(5)) + "bad\n")
                self.shards = []
                for i in (1, 2):
                    out = Path(folder) / f"s{i}"
                    subprocess.run([PROGRAM, "batch", str(Path(folder) / "p.jsonl"), "--model", str(GOLDEN / "tiny-gpt2"), "--out", str(out), "--shard", f"{i}/2", "--arrays",
                                    "--top-paths", "1"], check=True, capture_output=True)
                    self.shards.append({name: (out / name).read_bytes() for name in ("run.json", "results.jsonl", "errors.jsonl")})
        return self.shards

    def draw(self, rng):
        shards = [dict(s) for s in self.shard_files()]
        shard = rng.choice(shards)
        if rng.random() < 0.5:
            run = json.loads(shard["run.json"])
            ModelFiles().bend(rng, run)
            changed = text_of(run).encode("utf-8", "surrogatepass")
            for s in shards if rng.random() < 0.6 else [shard]:
                own = json.loads(s["run.json"])["shard"]
                s["run.json"] = changed.replace(b'"1/2"', json.dumps(own).encode()).replace(b'"2/2"', json.dumps(own).encode())
        else:
            lines = shard["results.jsonl"].splitlines()
            kind = rng.randrange(4)
            at = rng.randrange(len(lines))
            if kind == 0:
                rng.shuffle(lines)
            elif kind == 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
            elif kind == 2:
                lines[at] = mangle(rng, lines[at])
            else:
                record = json.loads(lines[at])
                del record["crc32"]
                ModelFiles().bend(rng, record)
                lines[at] = sealed(text_of(record).encode("utf-8", "surrogatepass"))
            shard["results.jsonl"] = b"\n".join(lines) + b"\n"
        return shards

    def run(self, case, place):
        for i, files in enumerate(case):
            (place / f"s{i}").mkdir()
            for name, data in files.items():
                (place / f"s{i}" / name).write_bytes(data)
        return run_program(["merge", place / "s0", place / "s1", "--out", place / "m"], results=[place / "m" / "results.jsonl"])

    def smaller(self, case):
        for i, files in enumerate(case):
            lines = files["results.jsonl"].splitlines(keepends=True)
            for at in range(len(lines)):
                yield [*case[:i], {**files, "results.jsonl": b"".join(lines[:at] + lines[at + 1:])}, *case[i + 1:]]


def sealed(line):
    """A line with the right checksum of what is in it."""
    import zlib

    body = line[:-1]
    return body + b',"crc32":"%08x"}' % (zlib.crc32(body) & 0xFFFFFFFF)


class Requests:
    """HTTP requests to a running server."""

    ENDPOINTS = ["tokenize", "predict", "trace", "paths", "reroot", "interactions", "intervene"]

    def __init__(self):
        self.process = None

    def start(self):
        if self.process is not None and self.process.poll() is None:
            return
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--time-limit", "5", "--cache", "64"], stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "HF_HUB_CACHE": "/nonexistent"})
        self.port = int(re.search(r":(\d+)/", self.process.stderr.readline()).group(1))

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process is not None:
            self.process.stderr.close()
        self.process = None

    def draw(self, rng):
        body = text_of(fields(rng)).encode("utf-8", "surrogatepass")
        return {"name": rng.choice(self.ENDPOINTS), "body": mangle(rng, body) if rng.random() < 0.3 else body,
                "head": rng.choice([None, None, None, {"Content-Type": "text/plain"}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Content-Encoding": "gzip"}]),
                "raw": rng.random() < 0.1}

    def run(self, case, place):
        self.start()
        begin = time.monotonic()
        try:
            if case["raw"]:
                with socket.create_connection(("127.0.0.1", self.port), timeout=TIME_LIMIT) as connection:
                    connection.sendall(case["body"][:50] + b"\r\n\r\n")
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                status, answer = 400, b'{"error": "raw"}'
            else:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIME_LIMIT)
                connection.request("POST", "/api/" + case["name"], case["body"], {"Content-Type": "application/json", **(case["head"] or {})})
                response = connection.getresponse()
                status, answer = response.status, response.read()
                connection.close()
        except OSError as error:
            if self.process.poll() is not None:
                return Outcome(f"the server ended with {self.process.returncode}", str(error))
            status, answer = 400, b'{"error": "closed"}' if time.monotonic() - begin < TIME_LIMIT else b""
            if not answer:
                return Outcome("no answer within the time limit", str(error))
        if status >= 500 and status not in (503, 504):
            return Outcome(f"status {status}", answer[:300].decode(errors="replace"))
        if status != 200:
            message = json.loads(answer).get("error", "")
            if len(message) >= LONGEST_LINE or re.search(r"[\x00-\x1f\x7f-\x9f]", message):
                return Outcome("a message that is no line", message[:200])
            return Outcome()
        return judge_json(answer.decode()) if answer[:1] == b"{" else Outcome()

    def smaller(self, case):
        for data in smaller_bytes(case["body"]):
            yield {**case, "body": data}


# GGUF files, pickles of weights and chat templates: a class each with draw, run and smaller, and a line here, once the program reads them.
SURFACES = {"command line": CommandLine, "batch": BatchLines, "tables": Tables, "models": ModelFiles, "weights": Weights, "paths": Paths, "merge": Merges,
            "requests": Requests}


# The attack ---------------------------------------------------------------------------------------------------------


def attempt(surface, case):
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        try:
            return surface.run(case, Path(place))
        finally:
            for name in os.listdir(place):  # whatever was made there can be removed
                os.chmod(os.path.join(place, name), 0o700, follow_symlinks=True) if os.path.isdir(os.path.join(place, name)) else None


def shrink(surface, case, found, seconds=30):
    """The smallest case seen that breaks the same rule."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for candidate in surface.smaller(case):
            if time.monotonic() >= end:
                break
            outcome = attempt(surface, candidate)
            if outcome.problem == found.problem:
                case = candidate
                break
        else:
            break
    return case


def attack(names, seed, seconds=None, cases=None, keep=None, out=sys.stderr):
    """(cases tried, findings). Surfaces take turns."""
    findings, tried = [], 0
    surfaces = {name: SURFACES[name]() for name in names}
    end = time.monotonic() + seconds if seconds else None
    try:
        turn = 0
        while (cases is None or turn < cases) and (end is None or time.monotonic() < end):
            for name, surface in surfaces.items():
                if end is not None and time.monotonic() >= end:
                    break
                case = surface.draw(random.Random(f"{seed} {name} {turn}"))
                tried += 1
                found = attempt(surface, case)
                if not found:
                    continue
                case = shrink(surface, case, found)
                findings.append((name, turn, found, case))
                print(f"attack: {name}, seed {seed}, case {turn}: {found.problem}: {found.detail}\n    {str(case)[:600]}", file=out)
                if keep:
                    Path(keep).mkdir(parents=True, exist_ok=True)
                    (Path(keep) / f"{name.replace(' ', '-')}-{seed}-{turn}.txt").write_text(f"{found.problem}\n{found.detail}\n{case!r}\n", errors="replace")
            turn += 1
    finally:
        for surface in surfaces.values():
            if hasattr(surface, "close"):
                surface.close()
    return tried, findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="for how long (default: half a minute)")
    parser.add_argument("--cases", type=int, help="how many of each surface, instead of a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--surface", action="append", choices=list(SURFACES), help="only this one; may be repeated")
    parser.add_argument("--keep", default="attack-findings", help="folder for what was found")
    args = parser.parse_args()
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"{PROGRAM} is not there: build it, or set UNPACK")
    seconds = None if args.cases else (args.minutes * 60 if args.minutes else 30)
    begin = time.monotonic()
    tried, findings = attack(args.surface or list(SURFACES), args.seed, seconds, args.cases, args.keep)
    print(f"{tried} cases in {time.monotonic() - begin:.0f} s, {len(findings)} findings" + (f", in {args.keep}" if findings else ""))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
