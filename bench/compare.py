#!/usr/bin/env python3
"""Two commits against each other: both are built, their benchmarks run in turn, and the ratio of
the medians is printed.

    bench/compare.py OLD NEW [--filter REGEX] [--rounds 5] [--folder FOLDER]

Runs alternate, so that whatever else the machine does falls on both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(command, **kwargs):
    return subprocess.run([str(part) for part in command], check=True, **kwargs)


def build(commit, folder):
    """The benchmark program of a commit, in a tree of its own."""
    name = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", "--short=12", f"{commit}^{{commit}}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    tree = folder / name
    if not tree.exists():
        run(
            ["git", "-C", ROOT, "worktree", "add", "--detach", "--force", tree, name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    binary = tree / "build"
    log = folder / f"{name}.log"
    with open(log, "w") as out:
        for command in (
            [
                "cmake", "-G", "Ninja", "-S", tree, "-B", binary, "-DCMAKE_BUILD_TYPE=Release",
                "-DUNPACK_TESTS=OFF", "-DUNPACK_BENCH=ON"
            ],
            ["cmake", "--build", binary, "--target", "unpack_bench"],
        ):
            if subprocess.run(
                [str(part) for part in command], stdout=out, stderr=subprocess.STDOUT
            ).returncode:
                sys.exit(f"{commit} does not build: see {log}")
    return binary / "bench" / "unpack_bench"


def measure(program, pattern):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run(
            [
                program, f"--benchmark_filter={pattern}", f"--benchmark_out={out.name}",
                "--benchmark_out_format=json"
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return {
            entry["name"]: entry["real_time"] for entry in json.load(open(out.name))["benchmarks"]
        }


def medians(rounds):
    names = [name for name in rounds[0] if all(name in one for one in rounds)]
    return {name: statistics.median(one[name] for one in rounds) for name in names}


def table(old, new):
    """Lines for the benchmarks that both have, the largest change first."""
    rows = sorted(
        ((new[name] / old[name], name) for name in old if name in new and old[name] > 0),
        key=lambda row: -abs(row[0] - 1),
    )
    return [f"{ratio:6.3f}  {name}" for ratio, name in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--filter", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=None,
        help="where the two trees are built (default: a temporary folder)"
    )
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="unpack-compare-"))
    folder.mkdir(parents=True, exist_ok=True)
    programs = [build(commit, folder) for commit in (args.old, args.new)]
    rounds = ([], [])
    try:
        for turn in range(args.rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                rounds[which].append(measure(programs[which], args.filter))
                print(f"\rround {turn + 1} of {args.rounds}", end="", file=sys.stderr, flush=True)
    finally:
        print(file=sys.stderr)
        if args.folder is None:
            for program in programs:
                subprocess.run(
                    [
                        "git",
                        "-C",
                        str(ROOT),
                        "worktree",
                        "remove",
                        "--force",
                        str(program.parents[2]),
                    ],
                    stderr=subprocess.DEVNULL,
                )
    print(
        f"time of {args.new} over time of {args.old}, medians of {args.rounds}; below 1 is faster"
    )
    print("\n".join(table(medians(rounds[0]), medians(rounds[1]))))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
