"""The n-th allocation, write, sync, rename, mapping or start of a thread fails: never a crash,
never a half-written file under its final name, exit 1 with the reason. UNPACK_FAULT_EVERY=1 tries
every n, UNPACK_FAULT_EVERY=50 every fiftieth, by default a dozen of each kind; with
UNPACK_FAULT_SHARD=3/16 a sixteenth of them, for sixteen of these tests at once. All that fail are
listed. Here products are our own, on the CPU: oneDNN and CUDA end the process where an allocation
of their own fails (SECURITY.md)."""
import http.client
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import GOLDEN, PROGRAM

LIBRARY = Path(os.environ.get("UNPACK_FAULTS", Path(PROGRAM).parent / "libfaults.so"))
TINY = ["--model", str(GOLDEN / "tiny-gpt2"), "--threads", "2"]
EVERY = int(os.environ.get("UNPACK_FAULT_EVERY", "0"))
SHARD, SHARDS = map(int, os.environ.get("UNPACK_FAULT_SHARD", "1/1").split("/"))
OURS = {"UNPACK_ONEDNN": "off", "UNPACK_CUDA_PLUGIN": ""}  # no code of others
MOST = 12  # of one kind, unless all are asked for


@pytest.fixture(scope="module", autouse=True)
def library():
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built: configure with -DUNPACK_FAULTS=ON")


def run(command, fault="", count=None, persistent=False, timeout=60):
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), **OURS}
    if fault:
        environment["UNPACK_FAULT"] = fault
    if persistent:
        environment["UNPACK_FAULT_PERSISTENT"] = "1"
    if count:
        environment["UNPACK_FAULT_COUNT"] = str(count)
    return subprocess.run(
        [PROGRAM, *map(str, command)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        timeout=timeout,
    )


def prepare(place):
    (place / "p.jsonl").write_text('{"ids": [1, 2]}\n{"ids": [3]}\nbad\n')
    for i in (1, 2):
        subprocess.run(
            [
                PROGRAM, "batch", place / "p.jsonl", *TINY, "--out", place / f"s{i}", "--shard",
                f"{i}/2", "--arrays", "--top-paths", "1"
            ],
            check=True,
            capture_output=True,
        )


COMMANDS = {
    "batch": lambda place, out: [
        "batch", place / "p.jsonl", *TINY, "--out", out / "b", "--arrays", "--top-paths", "1"
    ],
    "merge": lambda place, out: ["merge", place / "s1", place / "s2", "--out", out / "m"],
    "trace": lambda place, out: [
        "trace", "--ids", "1,2", *TINY, "--json", out / "t.json", "--html", out / "t.html", "--svg",
        out / "t.svg", "--tikz", out / "t.tex", "--graph", out / "t.dot"
    ],
}


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def counted(file, kind):
    """How many calls of that kind a whole run made."""
    return int(dict(line.split() for line in file.read_text().splitlines())[kind])


def sample(total):
    if EVERY or total <= MOST:
        numbers = range(1, total + 1, EVERY if EVERY and total > MOST else 1)
    else:
        numbers = sorted({1 + i * (total - 1) // (MOST - 1) for i in range(MOST)})
    return numbers[SHARD - 1 :: SHARDS]


def all_of(total, attempt):
    """Tries every n of the sample, and fails with what attempt(n) says of those that broke a
    rule.
    """
    found = {n: problem for n in sample(total) if (problem := attempt(n))}
    assert not found, (len(found), dict(list(found.items())[:20]))


def problem_of(place, name, fault, want):
    """What is wrong with a run under that fault, or nothing."""
    out = place / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    broken = run(COMMANDS[name](place, out), fault)
    if broken.returncode not in (0, 1):
        return f"exit {broken.returncode}: {broken.stderr[-300:]}"
    if broken.returncode == 1 and (broken.stderr.count("\n") != 1 or len(broken.stderr) >= 500):
        return f"not one line: {broken.stderr[-600:]!r}"
    got = contents(out)
    half = [file for file in got if ".part" in file]
    for file, data in got.items():
        # Lines are appended whole; everything else is there wholly or not at all.
        good = want[file].startswith(data) if file.endswith(".jsonl") else data == want[file]
        if not good and not (broken.returncode == 1 and file.endswith(".jsonl")):
            half.append(file)
    if half:
        return f"half-written: {half}"
    if name == "batch":  # what was done is not lost, and the same command goes on
        again = run(COMMANDS[name](place, out))
        if again.returncode != 0 or contents(out) != want:
            return f"does not go on: exit {again.returncode}, {again.stderr}"
    return None


@pytest.mark.parametrize("name", list(COMMANDS))
@pytest.mark.parametrize("kind", ["memory", "write", "sync", "rename", "map", "thread"])
def test_a_call_that_fails_is_one_line_and_leaves_nothing_half_written(tmp_path, name, kind):
    prepare(tmp_path)
    whole = tmp_path / "whole"
    whole.mkdir()
    done = run(COMMANDS[name](tmp_path, whole), count=tmp_path / "count")
    assert done.returncode == 0, done.stderr
    want = contents(whole)
    all_of(
        counted(tmp_path / "count", kind), lambda n: problem_of(tmp_path, name, f"{kind}:{n}", want)
    )


def test_an_allocation_that_fails_among_several_prompts_ends_no_batch(tmp_path):
    """Memory that is too little for all of them may do for each: they are traced one by one."""
    (tmp_path / "p.jsonl").write_text("".join(f'{{"ids": [{i}, 2, 7]}}\n' for i in range(8)))
    command = ["batch", tmp_path / "p.jsonl", *TINY, "--top-paths", "1", "--out"]
    done = run([*command, tmp_path / "whole"], count=tmp_path / "count")
    assert done.returncode == 0, done.stderr
    calls = counted(tmp_path / "count", "memory")
    for n in range(calls * 3 // 4, calls * 9 // 10, calls // 40):  # behind the model's own
        out = tmp_path / str(n)
        again = run([*command, out], f"memory:{n}")
        assert again.returncode == 0, again.stderr
        assert contents(out) == contents(tmp_path / "whole")


def served(fault, place, count=False):
    """What is wrong with a server under that fault, or nothing: it ends with one line, or lives and
    answers the next request.
    """
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "HF_HUB_CACHE": "/nonexistent",
        **OURS,
        "UNPACK_FAULT": fault,
    }
    if count:
        environment["UNPACK_FAULT_COUNT"] = str(place / "count")
    process = subprocess.Popen(
        [PROGRAM, "serve", "--port", "0", *TINY], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = process.stderr.readline()
        found = re.search(r":(\d+)/ ", line)
        if not found:
            status = process.wait(20)
            return (
                None
                if status in (0, 1) and line.startswith("unpack: ")
                else f"exit {status}: {line}"
            )
        statuses = []
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=30)
            try:
                connection.request(
                    "POST",
                    "/api/predict",
                    json.dumps({"ids": [1, 2]}),
                    {"Content-Type": "application/json"},
                )
                statuses.append(connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                statuses.append(0)
            connection.close()
        process.terminate()
        # One call fails: whoever comes next is answered. A late one may meet the last request
        # itself.
        answered = statuses[-1] == 200 or statuses[:2] == [200, 200]
        status = process.wait(20)
        return (
            None
            if status == 0 and answered
            else f"exit {status}, answers {statuses}: {process.stderr.read()[-300:]}"
        )
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("kind", ["memory", "write", "thread"])
def test_a_server_answers_or_says_why_not(tmp_path, kind):
    assert served("", tmp_path, count=True) is None
    all_of(counted(tmp_path / "count", kind), lambda n: served(f"{kind}:{n}", tmp_path))
