"""The built program, and models to run it on. UNPACK names the program (default:
build/release/unpack).
"""
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
MODELS = ROOT / "models"
PROGRAM = os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
MARY = "Mary and John went to the store. John gave a drink to"


class Program:
    def __call__(self, *args, stdin=None, env=None, timeout=300, **more):
        """Runs to the end; text in, text out. Without stdin there is nothing to read."""
        source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [PROGRAM, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            **source,
            **more,
        )

    def ok(self, *args, **more):
        result = self(*args, **more)
        assert result.returncode == 0, f"exit {result.returncode}: {result.stderr}"
        return result.stdout

    def json(self, *args, **more):
        return json.loads(self.ok(*args, "--json", "-", **more))

    def fails(self, status, *args, **more):
        """Fails with that exit status, one clear line on stderr and nothing on stdout. Returns the
        line.
        """
        result = self(*args, **more)
        assert (
            result.returncode == status
        ), f"exit {result.returncode}, expected {status}: {result.stderr}{result.stdout[:200]}"
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("unpack: "), result.stderr
        return lines[0]


@pytest.fixture(scope="session")
def unpack():
    if not os.access(PROGRAM, os.X_OK):
        pytest.fail(f"{PROGRAM} is not there: build it, or set UNPACK")
    return Program()


@pytest.fixture(scope="session")
def within_reach(unpack):
    """root's tests of what others may do start the program as another user, which a tree in a home
    folder of root's does not allow.
    """
    if os.getuid() == 0:
        try:
            subprocess.run(
                [PROGRAM, "--version"], stdout=subprocess.DEVNULL, user=65534, cwd="/", check=True
            )
        except PermissionError:
            pytest.skip(f"{PROGRAM} lies where another user cannot go")
