#!/usr/bin/env python3
"""A running server under mixed load: does it answer, and does its memory stay within the bound that
SECURITY.md states?

    tools/soak.py --minutes 5                 # eight clients, three models, --cache 64
    tools/soak.py --minutes 60 --clients 32 --cache 256 --seed 7

Clients send traces, paths, answers, sources, conversations, wrong and cut-off requests, all drawn
from a seed. UNPACK names the program (default: build/release/unpack). Fails where an answer is none
of those allowed, where the server ends, or where memory leaves its bound: what the server takes
with its models loaded, plus --cache for prompts, plus --cache / 4 and ALLOWANCE for the question of
each model's moment.
"""
import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
MODELS = ["pocket-gpt2", "pocket-llama", "pocket-neox"]
ALLOWED = {200, 400, 413, 429, 503, 504}
ALLOWANCE = 96 << 20  # bytes a model: tensors of a pass over the longest prompt, JSON of an answer
WORDS = (
    "Mary John went to the store and gave a drink to Kate who said that it was cold because the"
    " number of cups in the house".split()
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who gave the drink?"},
]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


class Soaked:
    """A server, and what it takes of the machine."""

    def __init__(self, cache, options=()):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", "--cache", str(cache), *map(str, options)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_CACHE": "/nonexistent"},
        )
        self.port = int(re.search(r":(\d+)/", self.process.stderr.readline()).group(1))

    def ask(self, name, body, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(
                "POST",
                f"/api/{name}",
                body if isinstance(body, bytes) else json.dumps(body),
                {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))

    def memory(self):
        """Resident bytes, those of mapped weight files left out: the system takes them back when it
        likes.
        """
        with open(f"/proc/{self.process.pid}/status") as file:
            return 1024 * int(re.search(r"^RssAnon:\s+(\d+) kB", file.read(), re.M).group(1))

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        self.process.stderr.close()
        return status


def draw(rng):
    """A request: (endpoint, body). Most are sound."""
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.choice([3, 8, 20, 60, 150])))
    body = {"model": rng.choice(MODELS), "prompt": prompt}
    kind = rng.randrange(12)
    if kind <= 3:
        return "trace", {
            **body,
            "top_paths": rng.choice([1, 20, 500]),
            "beta": rng.choice([0.8, 0.5, 0.2]),
            "preset": rng.choice(["paper", "released", "best"]),
        }
    if kind == 4:
        return "paths", {**body, "top_paths": 50}
    if kind == 5:
        return "trace", {
            **body,
            "answer": " a drink to Mary",
            "group_by": "sentence",
            "format": rng.choice(["json", "html", "svg"]),
        }
    if kind == 6:
        return "predict", {"model": body["model"], "messages": TALK, "chat_template": TEMPLATE}
    if kind == 7:
        return "sources", {
            "model": body["model"],
            "question": "Who gave it?",
            "documents": ["Mary gave it.", prompt[:200]],
            "generate": 3,
        }
    if kind == 8:
        return rng.choice(["lens", "attention", "interactions", "tokenize"]), body
    if kind == 9:
        return "attribute", {**body, "prompt": prompt[:60], "generate": 3}
    if kind == 10:
        return "intervene", {**body, "cut": "A1.H0"}
    return "trace", rng.choice(
        [
            {**body, "tau": 1e-9, "tau_rule": "entry"},
            {"prompt": "x " * 5000},
            {**body, "weights": [1e300, 0, 0]},
            b"[" * 5000,
            b'{"prompt": "x", "tau": 1e400}',
            {**body, "top_paths": 10**9},
        ]
    )


def client(server, rng, end, seen, problems):
    while time.monotonic() < end and not problems:
        name, body = draw(rng)
        try:
            if rng.random() < 0.05:  # one who asks and leaves
                data = json.dumps(body).encode() if isinstance(body, dict) else body
                with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                    connection.sendall(
                        b"POST /api/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
                        b" application/json\r\nContent-Length: %d\r\n\r\n"
                        % (name.encode(), len(data))
                        + data
                    )
                continue
            status, answer = server.ask(name, body)
        except OSError as error:
            problems.append(f"{name}: {error}")
            return
        with seen["lock"]:
            seen[status] = seen.get(status, 0) + 1
        if status not in ALLOWED:
            problems.append(f"{name}: status {status}: {answer[:200]!r} for {str(body)[:300]}")
        if status == 429:
            time.sleep(0.2)


def soak(seconds, clients=8, cache=64, seed=0, out=None, options=(), bounded=True):
    """{what was seen}; raises AssertionError where something is out of its bound."""
    server = Soaked(cache, options)
    try:
        for model in MODELS:
            assert server.ask("predict", {"model": model, "prompt": "load it"})[0] == 200
        begin = server.memory()
        bound = begin + (cache << 20) + len(MODELS) * ((cache << 20) // 4 + ALLOWANCE)
        seen, problems = {"lock": threading.Lock()}, []
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(
                target=client, args=(server, random.Random(f"{seed} {i}"), end, seen, problems)
            )
            for i in range(clients)
        ]
        for thread in threads:
            thread.start()
        most = most_kept = 0
        said = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            most = max(most, server.memory())
            most_kept = max(most_kept, server.metric("unpack_cache_bytes"))
            if out and time.monotonic() - said > 30:
                said = time.monotonic()
                print(
                    (
                        f"soak: {sum(n for key, n in seen.items() if key != 'lock')} answers,"
                        f" {server.memory() >> 20} MiB, at most {most >> 20} MiB"
                    ),
                    file=out,
                )
            time.sleep(0.1)
        del seen["lock"]
        assert not problems, problems[:3]
        assert seen.get(200, 0) > 0, seen
        assert server.ask("predict", {"prompt": "still there"})[0] == 200
        left = server.memory()
        assert (
            most <= bound or not bounded
        ), f"{most >> 20} MiB at most, over the bound of {bound >> 20} MiB"
        assert most_kept <= cache << 20, f"{most_kept} bytes of prompts kept"
        found = {
            "answers": seen,
            "loaded": begin,
            "most": most,
            "bound": bound,
            "kept": most_kept,
            "left": left,
        }
    finally:
        status = server.close()
    assert status == 0, f"the server ended with {status}"
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument(
        "--no-bound",
        action="store_true",
        help="do not judge memory, of which a sanitizer takes its own",
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache", type=int, default=64, help="MiB")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        seen = soak(
            args.seconds or args.minutes * 60,
            args.clients,
            args.cache,
            args.seed,
            sys.stderr,
            bounded=not args.no_bound,
        )
    except AssertionError as error:
        print(f"soak: {error}")
        return 1
    print(
        "soak: answers",
        seen.pop("answers"),
        *(f"{name} {int(size) >> 20} MiB" for name, size in seen.items()),
        sep=", ",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
