"""What goes into every package, and the scripts that count and check: packaging/,
scripts/test_parts.sh.
"""
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PASSES = """[ RUN      ] A.passes
[       OK ] A.passes (0 ms)
[ RUN      ] A.skips
[  SKIPPED ] A.skips (0 ms)
"""
FAILS = """[ RUN      ] A.fails
the value is 3
[  FAILED  ] A.fails (2 ms)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] A.fails
"""
DIES = """[ RUN      ] A.dies
"""


@pytest.mark.parametrize(
    ("said", "status", "total", "more"),
    [
        (PASSES, 0, "tests: 2 passed, 2 skipped, 0 failed", ""),
        (PASSES + FAILS, 1, "tests: 2 passed, 2 skipped, 2 failed", "the value is 3"),
        (PASSES + DIES, 139, "tests: 2 passed, 2 skipped, 0 failed", "was ended in a test"),
    ],
)
def test_parts_are_counted_together_and_what_they_said_is_kept(tmp_path, said, status, total, more):
    program = tmp_path / "tests"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\nexit {status}\n")
    program.chmod(0o755)
    logs = tmp_path / "logs"
    ran = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "test_parts.sh", "2", program],
        capture_output=True,
        text=True,
        env={**os.environ, "LOGS": str(logs)},
    )
    assert (ran.returncode == 0) == (status == 0)
    assert ran.stdout.splitlines()[-1] == total
    assert more in ran.stdout + ran.stderr
    assert sorted(path.name for path in logs.glob("*.log")) == ["part0.log", "part1.log"]
    assert said in (logs / "part1.log").read_text()


def test_notices_name_whatever_the_page_is_made_of():
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    parts = [
        name.removeprefix("node_modules/")
        for name, about in lock["packages"].items()
        if name and not about.get("dev") and not about.get("optional")
    ]
    assert "preact" in parts and "d3-scale" in parts
    for text in (ROOT / "THIRD_PARTY_NOTICES.md", ROOT / "web" / "dist" / "index.html"):
        notices = text.read_text().lower()
        assert [name for name in parts if name not in notices.rpartition("<!--")[2]] == [], text
        assert (
            "permission is hereby granted, free of charge" in notices
            and "permission to use, copy, modify" in notices
        )


@pytest.mark.parametrize(
    "place",
    [
        "packaging/tarball.sh",
        "packaging/wheel_backend.py",
        "CMakeLists.txt",
        "packaging/container.sh",
        "packaging/debian/unpack-engine.docs",
        "packaging/debian/libunpack-dev.docs",
        "packaging/debian/python3-unpack-engine.docs",
    ],
)
def test_every_package_takes_the_notices_along(place):
    assert "THIRD_PARTY_NOTICES.md" in (ROOT / place).read_text()
