"""The package as it was built, the golden cases, and the command line to compare with.

UNPACK_PYTHON names the folder that holds the built package (default: build/release/python), UNPACK
the program (default: build/release/unpack).
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PACKAGE = Path(os.environ.get("UNPACK_PYTHON", ROOT / "build" / "release" / "python"))
PROGRAM = os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
MARY = "Mary and John went to the store. John gave a drink to"

sys.path.insert(0, str(PACKAGE))

CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))
EXPECTED = {case: json.loads((GOLDEN / case / "expected.json").read_text()) for case in CASES}


@pytest.fixture(scope="session")
def up():
    import unpack_engine

    return unpack_engine


@pytest.fixture(scope="session")
def pocket(up):
    return up.load("pocket-gpt2")


@pytest.fixture(scope="session")
def mary(pocket):
    return pocket.prepare(MARY)


@pytest.fixture(scope="session")
def golden(up):
    """A golden model and its prepared prompt, each made once."""
    made = {}

    def get(case):
        if case not in made:
            model = up.load(GOLDEN / case)
            made[case] = (model, model.prepare(EXPECTED[case]["ids"]))
        return made[case]

    return get


@pytest.fixture(scope="session")
def command_line():
    """Runs the program with --json and returns what it says."""
    if not os.access(PROGRAM, os.X_OK):
        pytest.fail(f"{PROGRAM} is not there: build it, or set UNPACK")

    def run(*args):
        result = subprocess.run(
            [PROGRAM, *map(str, args), "--json", "-"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run
