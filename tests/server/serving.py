"""A running `unpack serve`, and requests to it. UNPACK names the program (default:
build/release/unpack).
"""
import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
MARY = "Mary and John went to the store. John gave a drink to"


class Server:
    def __init__(self, *options):
        if not os.access(PROGRAM, os.X_OK):
            raise RuntimeError(f"{PROGRAM} is not there: build it, or set UNPACK")
        # A Hugging Face cache of whoever runs the tests must not add models.
        environment = {**os.environ, "HF_HUB_CACHE": "/nonexistent"}
        port = [] if "--port" in options else ["--port", "0"]
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *port, *map(str, options)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if not found:
            self.process.kill()
            raise RuntimeError(f"the server did not start: {line}{self.process.stderr.read()}")
        self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def raw(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, body) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return (
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()

    def post(self, name, body, headers=None, timeout=120):
        """(status, answer) of a JSON request; `body` may be bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.raw(
            "POST",
            f"/api/{name}",
            data,
            {"Content-Type": "application/json", **(headers or {})},
            timeout,
        )
        return status, json.loads(answer)

    def ok(self, name, **body):
        status, answer = self.post(name, body)
        assert status == 200, answer
        return answer

    def refused(self, name, body, status=400):
        """The message of a request that must be answered with that status."""
        got, answer = self.post(name, body)
        assert got == status, (got, answer)
        assert set(answer) == {"error"} and "\n" not in answer["error"], answer
        return answer["error"]

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def processor_time(self):
        """Seconds that the server has computed: a busy machine makes it wait, which is not what is
        measured.
        """
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, with_signal=signal.SIGINT, timeout=20):
        self.process.send_signal(with_signal)
        return self.process.wait(timeout)

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.stderr.close()
