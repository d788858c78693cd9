"""Command lines, and strange things in the place of files."""
import os
import shutil
from pathlib import Path

from hostile.rules import GOLDEN, Outcome, run_program


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
