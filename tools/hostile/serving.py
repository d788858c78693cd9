"""HTTP requests to a running server."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

from hostile.material import fields, mangle, smaller_bytes, text_of
from hostile.rules import LONGEST_LINE, PROGRAM, TIME_LIMIT, Outcome, judge_json


class Requests:
    """HTTP requests to a running server."""

    ENDPOINTS = [
        "tokenize", "predict", "trace", "paths", "reroot", "interactions", "intervene", "prove",
        "sources", "reads", "writes", "attention", "lens", "suggest", "words", "attribute", "cost"
    ]

    def __init__(self):
        self.process = None

    def start(self):
        if self.process is not None and self.process.poll() is None:
            return
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", "--time-limit", "5", "--cache", "64"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_CACHE": "/nonexistent"},
        )
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
        return {
            "name": rng.choice(self.ENDPOINTS),
            "body": mangle(rng, body) if rng.random() < 0.3 else body,
            "head": rng.choice(
                [
                    None,
                    None,
                    None,
                    {"Content-Type": "text/plain"},
                    {"Host": "evil.example"},
                    {"Origin": "http://evil.example"},
                    {"Content-Encoding": "gzip"},
                ]
            ),
            "raw": rng.random() < 0.1,
        }

    def run(self, case, place):
        self.start()
        begin = time.monotonic()
        try:
            if case["raw"]:
                with socket.create_connection(
                    ("127.0.0.1", self.port), timeout=TIME_LIMIT
                ) as connection:
                    connection.sendall(case["body"][:50] + b"\r\n\r\n")
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                status, answer = 400, b'{"error": "raw"}'
            else:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIME_LIMIT)
                connection.request(
                    "POST",
                    "/api/" + case["name"],
                    case["body"],
                    {"Content-Type": "application/json", **(case["head"] or {})},
                )
                response = connection.getresponse()
                status, answer = response.status, response.read()
                connection.close()
        except OSError as error:
            if self.process.poll() is not None:
                return Outcome(f"the server ended with {self.process.returncode}", str(error))
            status, answer = 400, (
                b'{"error": "closed"}' if time.monotonic() - begin < TIME_LIMIT else b""
            )
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
