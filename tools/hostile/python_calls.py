"""Arguments of the Python module's calls."""
import base64
import json
import os
import pickle
import select
import subprocess
from pathlib import Path

from hostile.material import FIELDS, NUMBERS, STRINGS, TALKS, WORDS
from hostile.rules import PATIENCE, PROGRAM, ROOT, TIME_LIMIT, Outcome, limited

MODULE = Path(os.environ.get("UNPACK_PYTHON", Path(PROGRAM).parent / "python"))
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")

# Answers a line of JSON a call: what was wrong with it, or nothing.
CHILD = r"""
import base64, json, pickle, re, sys
import numpy as np
import unpack_engine as up
model = up.load("pocket-gpt2")
prepared = model.prepare("Mary and John went")
allowed = (ValueError, TypeError, OSError, MemoryError, IndexError, KeyError)
def finite(x):
    if isinstance(x, np.ndarray):
        return x.dtype.kind != "f" or bool(np.isfinite(x).all())
    if isinstance(x, float):
        return x == x and abs(x) != float("inf")
    if isinstance(x, dict):
        return all(map(finite, x.values()))
    return not isinstance(x, (list, tuple)) or all(map(finite, x))
print("ready", flush=True)
for line in sys.stdin:
    holder, name, args, named = pickle.loads(base64.b64decode(line))
    problem = detail = ""
    try:
        held = {"model": model, "prepared": prepared, "module": up}[holder]
        result = getattr(held, name)(*args, **named)
        told = result.to_dict() if hasattr(result, "to_dict") else result
        if not finite(told):
            problem, detail = "a number that is not finite", str(told)[:200]
    except allowed as error:
        text = str(error)
        control = re.search(r"[\x00-\x1f\x7f-\x9f]", text)
        if len(text) >= 500 or control or "internal error" in text:
            problem, detail = "a message that is no line", repr(text[:200])
    except Exception as error:
        problem, detail = "an exception of type " + type(error).__name__, repr(str(error)[:200])
    print(json.dumps([problem, detail]), flush=True)
"""


def nested(levels):
    inner = 1
    for _ in range(levels):
        inner = [inner]
    return inner


PLAIN_TALKS = [talk for talk in TALKS if "Raw(" not in repr(talk)] + [
    [{"role": "user", "content": nested(levels)}] for levels in (60, 300)
]


class PythonCalls:
    """Methods of the module with arguments of every kind, in one interpreter that must survive
    them.
    """

    CALLS = [
        ("model", "prepare"),
        ("model", "trace"),
        ("model", "predict"),
        ("model", "generate"),
        ("model", "encode"),
        ("model", "decode"),
        ("model", "tokenize"),
        ("model", "intervene"),
        ("model", "attribute"),
        ("model", "answer"),
        ("model", "sources"),
        ("model", "chat"),
        ("model", "prepare_many"),
        ("prepared", "trace"),
        ("prepared", "interactions"),
        ("prepared", "sentences"),
        ("prepared", "edge_credit"),
        ("prepared", "scores"),
        ("module", "load"),
        ("module", "from_state_dict"),
        ("module", "circuit"),
        ("module", "random"),
    ]

    def __init__(self):
        self.process = None

    def start(self):
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        self.process = subprocess.Popen(
            [PYTHON, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limited,
            env={**os.environ, "PYTHONPATH": str(MODULE), "HF_HUB_CACHE": "/nonexistent"},
            cwd=ROOT,
        )
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(
                f"the module in {MODULE} does not load: {self.process.stderr.read()[-400:]}"
            )

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                stream.close()
        self.process = None

    def value(self, rng, depth=0):
        kind = rng.randrange(10)
        if kind == 0:
            return rng.choice(
                [
                    0, -1, 1, 2**31, 2**63, 2**64 - 2, 10**400, -(10**400), float("nan"),
                    float("inf"), -0.0, 1e308, 5e-324, 1j
                ]
            )
        if kind == 1:
            return rng.choice(STRINGS + NUMBERS)
        if kind in (2, 3):
            return rng.choice(WORDS)
        if kind == 4:
            return rng.choice(
                [
                    None, True, False, b"Mary", bytearray(b"\x00"), memoryview, object, Ellipsis,
                    range(3), range(10**12), frozenset({1}), {}
                ]
            )
        if kind == 5:
            return rng.randint(-3, 12)
        if kind == 6:
            return rng.choice(PLAIN_TALKS)
        if kind == 7:
            return "Mary and John"
        if depth < 2 and kind == 8:
            return [self.value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3]))]
        return (
            {rng.choice(FIELDS): rng.randint(0, 3) for _ in range(rng.randrange(3))}
            if depth < 2
            else 3
        )

    def draw(self, rng):
        holder, name = rng.choice(self.CALLS)
        args = (
            []
            if holder == "prepared"
            else [
                (
                    rng.choice(["Mary and John", [3, 17, 5]])
                    if holder == "model" and rng.random() < 0.6
                    else self.value(rng)
                )
            ]
        )
        named = {
            rng.choice(FIELDS).replace("from", "from_"): self.value(rng)
            for _ in range(rng.randrange(4))
        }
        # A search is allowed to take as long as it was asked to; here it has to end within the time
        # limit.
        return {
            "holder": holder,
            "name": name,
            "args": args,
            "named": {key: x for key, x in named.items() if key not in ("progress", "callback")},
        }

    def run(self, case, place):
        self.start()
        try:
            self.process.stdin.write(
                base64.b64encode(
                    pickle.dumps((case["holder"], case["name"], case["args"], case["named"]))
                ).decode()
                + "\n"
            )
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE * TIME_LIMIT)
            line = self.process.stdout.readline() if ready else None
        except OSError:
            line = ""
        if line is None:
            self.close()
            return Outcome("over the time limit", f"{PATIENCE * TIME_LIMIT} s")
        if not line:
            status = self.process.wait()
            return Outcome(
                f"the interpreter ended with {status}", self.process.stderr.read()[-400:]
            )
        return Outcome(*json.loads(line))

    def smaller(self, case):
        for key in case["named"]:
            yield {**case, "named": {k: v for k, v in case["named"].items() if k != key}}
