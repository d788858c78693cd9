"""What goes into every package, and the scripts that count and check: packaging/,
scripts/test_parts.sh.
"""
import json
import os
import shutil
import subprocess
import sys
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


def copied_tree(folder, tools):
    """The scripts alone, in a tree of their own, and an environment without apt in whose PATH are
    a shell's usual companions and these tools, each a line of shell.
    """
    for name in ("packaging", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("VERSION", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    programs = folder / "bin"
    programs.mkdir()
    for name in "bash cat dirname grep head id mkdir mv nproc rm sed sh".split():
        (programs / name).symlink_to(shutil.which(name))
    for name, line in tools.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    return {"PATH": str(programs), "HOME": str(folder)}


def run_script(folder, script, tools, **more):
    environment = {**copied_tree(folder, tools), **more}
    return subprocess.run(
        [shutil.which("bash"), folder / "packaging" / script],
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize(
    ("script", "kind", "missing"),
    [
        ("wheel.sh", "wheel", "patchelf strip"),
        ("deb.sh", "deb", "dpkg-buildpackage dh ninja"),
        ("tarball.sh", "wheel", "ninja patchelf strip objdump"),
        (
            "arm64.sh",
            "arm64",
            "ninja pkg-config aarch64-linux-gnu-g++ aarch64-linux-gnu-objdump qemu-aarch64-static"
            " mmdebstrap",
        ),
    ],
)
def test_a_missing_tool_is_named_before_anything_is_compiled(tmp_path, script, kind, missing):
    ran = run_script(tmp_path, script, {"cmake": 'echo "compiled anyway"'})
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        f"packaging: these programs are missing: {missing}; on Debian and Ubuntu"
        f" `scripts/setup.sh {kind}` installs them"
    )
    assert "compiled anyway" not in ran.stdout


def test_the_wheels_backend_asks_for_its_tools_first(tmp_path):
    environment = copied_tree(tmp_path, {"cmake": 'echo "compiled anyway"', "strip": "", "ldd": ""})
    ran = subprocess.run(
        [sys.executable, "-c", "import wheel_backend; wheel_backend.build_wheel('.')"],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(tmp_path / "packaging")},
    )
    assert ran.returncode == 1 and "compiled anyway" not in ran.stdout
    assert ran.stderr == (
        "packaging: these programs are missing: patchelf; on Debian and Ubuntu"
        " `scripts/setup.sh wheel` installs them\n"
    )


def test_a_folder_of_libraries_that_was_cut_short_is_not_taken_for_a_whole_one(tmp_path):
    tools = dict.fromkeys(("cmake", "ninja", "pkg-config", "qemu-aarch64-static"), "exit 1")
    tools |= dict.fromkeys(("aarch64-linux-gnu-g++", "aarch64-linux-gnu-objdump"), "exit 1")
    tools["mmdebstrap"] = (
        'for word; do case $word in */arm64-root*) mkdir -p "$word/usr/include/fmt" ;; esac; done\n'
        "exit 1"
    )
    assert run_script(tmp_path, "arm64.sh", tools).returncode != 0
    assert (tmp_path / "build" / "arm64-root.new" / "usr").is_dir()
    assert not (tmp_path / "build" / "arm64-root").exists()


def test_a_release_refuses_packages_of_another_debian_and_deletes_nothing(tmp_path):
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "SHA256SUMS").touch()
    ran = run_script(tmp_path, "release.sh", {}, SUITE="trixie")
    assert ran.returncode == 1
    assert "SUITE=trixie packaging/deb.sh" in ran.stderr
    assert (tmp_path / "dist" / "SHA256SUMS").exists()


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


def test_the_notices_of_debian_packages_are_not_compressed():
    """debhelper compresses documents of more than 4 KiB, and the image keeps notices by name."""
    assert "\tdh_compress -XTHIRD_PARTY_NOTICES.md\n" in (
        ROOT / "packaging" / "debian" / "rules"
    ).read_text()
