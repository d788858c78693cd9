"""Command lines, and strange things in the place of files."""
import os
import re
import shutil
import subprocess
from pathlib import Path

from hostile.rules import GOLDEN, PROGRAM, Outcome, run_program


class CommandLine:
    """Options and their values."""

    # `serve` stays, `bench` measures for minutes: these have tests of their own.
    LEFT_OUT = {"serve", "bench"}
    # Exact patching of every edge is work for minutes, by whatever name it is asked for.
    LONG = {"--compare", "patching"}
    # What keeps a command short enough for the time limit, and where it writes.
    ALWAYS = {
        "experiment": ["--n", "1", "--out", "out"],
        "circuit": ["--n", "1", "--minimality", "1", "--sizes", "5", "--out", "out"],
        "batch": ["--out", "out"],
        "merge": ["--out", "out"],
    }
    FIRST = {
        "experiment": ["sink", "faithfulness", "nonsense", "beta"],
        "circuit": ["ioi", "induction", "nonsense", "in/p.jsonl", "in/p.csv"],
        "batch": ["in/p.jsonl", "in/p.csv", "in", "-"],
        "merge": ["in", "out", "."],
        "completion": ["bash", "zsh", "fish", "sh"],
        "sources": ["Who gave the drink?"],
    }
    VALUES = [
        "0", "1", "-1", "3", "x", "", "1e400", "nan", "inf", "1e-12", "1e300,0,0", "0,0,0", "1,2,3",
        "1,,2", "99999999999", "A0.H0@0", "MLP0", "emb", "K", "G", "output", "entry", "named",
        "per-neuron", "l2", "ifr", "\n", "\x1b[31mred", "\u202eabc", "x" * 20000, "/dev/zero",
        "/dev/null", ".", "..", "-", " Mary", "0.01", "2147483648", "in/p.jsonl", "in/p.csv",
        "in/talk.json", "in/t.jinja", "in", "new.json", "1/2", "3/2", "a=0:1", "=:", "A0.H0->MLP1",
        "5%", "0.5%,7", "user"
    ]

    def __init__(self):
        self.commands = None

    def known(self):
        """{command: [(option, values that its help names)]}, as the program says them: what is
        added to it is attacked without an edit here.
        """
        if self.commands is None:
            said = lambda *args: subprocess.run(
                [PROGRAM, *args], capture_output=True, text=True, check=True
            ).stdout
            names = re.findall(r"^  ([a-z]+) {2,}", said("--help").split("\nCommands")[-1], re.M)
            self.commands = {"nonsense\n\x1b[0m": []}
            for name in set(names) - self.LEFT_OUT:
                self.commands[name] = [
                    (
                        option,
                        (
                            [word for word in value.split("|") if word not in self.LONG]
                            if "|" in value
                            else []
                        ),
                    )
                    for option, value in re.findall(
                        r"^  (?:-\w,)?(--[a-z0-9-]+)(?: (\S+))?", said(name, "--help"), re.M
                    )
                    if option not in self.LONG | {"--help"}
                ]
        return self.commands

    def draw(self, rng):
        command = rng.choice(sorted(self.known()))
        args = [command]
        if rng.random() < 0.9 and command not in ("models", "doctor", "manual"):
            args += (
                rng.choice([["Mary and John"], ["--ids", "3,17,5"], [rng.choice(self.VALUES)]])
                if command not in self.FIRST or rng.random() < 0.1
                else [rng.choice(self.FIRST[command])]
            )
        for _ in range(rng.randrange(4)):
            if self.commands[command] and rng.random() < 0.95:
                option, words = rng.choice(self.commands[command])
                args.append(option)
                if option in self.ALWAYS.get(command, []) and option != "--out":
                    args.append(
                        rng.choice(["0", "-1", "x", "", "1e400", "nan", "1"])
                    )  # not more work than the time limit allows
                elif rng.random() < 0.9:
                    args.append(rng.choice(words if words and rng.random() < 0.6 else self.VALUES))
            else:
                args.append(rng.choice(self.VALUES))
        return args

    def run(self, case, place):
        # Two folders deep, so that ".." is still ours to write to.
        inside = place / "a" / "b"
        (inside / "in").mkdir(parents=True)
        for name, text in {
            "p.jsonl": (
                '{"prompt": "Mary and John", "target": " a", "versus": " b", "counterfactual":'
                ' "John and Mary"}\n'
            ),
            "p.csv": "prompt,target\nMary and, a\n",
            "talk.json": '[{"role": "user", "content": "Hi"}]',
            "t.jinja": "{{ messages[0].content }}",
        }.items():
            (inside / "in" / name).write_text(text)
        always = self.ALWAYS.get(case[0], [])
        wanted = [
            word for pair in zip(always[::2], always[1::2]) if pair[0] not in case for word in pair
        ]  # two of the same are refused
        if case[0] in (
            "trace", "predict", "interactions", "intervene", "attribute", "sources", "doctor"
        ) and not {
            "--json", "--html", "--svg", "--tikz", "--neuronpedia", "--cost", "--help"
        } & set(
            case
        ):
            wanted = ["--json", "-"]
        args = [a.encode("utf-8", "surrogatepass") for a in [*case, *wanted]]
        return run_program(args, results=["-"] if wanted == ["--json", "-"] else None, place=inside)

    def smaller(self, case):
        for i in range(1, len(case)):
            yield case[:i] + case[i + 1 :]


class Paths:
    """Files and folders of strange kinds in the place of every file."""

    KINDS = ["loop", "fifo", "device", "folder", "empty", "missing", "long", "nul", "dangling"]
    WHERE = [
        "model", "config.json", "model.safetensors", "tokenizer.json", "prompts", "out", "run.json",
        "results.jsonl", "json", "index.npy", "corpus"
    ]

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
        target = {
            "model": place / "other",
            "prompts": place / "other",
            "out": place / "other",
            "json": place / "other",
            "corpus": place / "other",
        }.get(where)
        if target is None:
            target = (
                model if where in ("config.json", "model.safetensors", "tokenizer.json") else out
            ) / where
            out.mkdir()
            if target.exists():
                target.unlink()
        if kind == "long":
            target = Path(str(target) + "x" * 5000)
        else:
            self.put(target, kind)
        if where in ("config.json", "model.safetensors", "tokenizer.json", "model"):
            return run_program(
                ["predict", "--ids", "1,2", "--model", target if where == "model" else model]
            )
        if where == "json":
            if kind in ("device", "fifo"):
                return Outcome()  # these are asked for: a pipe waits for its reader
            return run_program(["predict", "--ids", "1,2", "--model", model, "--json", target])
        if where == "corpus":
            return run_program(
                [
                    "experiment", "sink", "--n", "1", "--model", "pocket-gpt2", "--prompts", target,
                    "--out", place / "exp"
                ]
            )
        return run_program(
            [
                "batch",
                target if where == "prompts" else prompts,
                "--model",
                model,
                "--arrays",
                "--out",
                target if where == "out" else out,
            ]
        )

    def smaller(self, case):
        return iter(())
