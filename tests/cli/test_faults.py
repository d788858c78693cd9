"""The n-th allocation, write, sync, rename, mapping or start of a thread fails: never a crash, never a half-written file under its final name,
exit 1 with the reason. UNPACK_FAULT_EVERY=1 tries every n, UNPACK_FAULT_EVERY=50 every fiftieth; by default a dozen of each kind is tried. Here
products are our own: oneDNN ends the process where an allocation of its own fails (SECURITY.md)."""
import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import GOLDEN, PROGRAM, ROOT

LIBRARY = Path(os.environ.get("UNPACK_FAULTS", Path(PROGRAM).parent / "libfaults.so"))
TINY = ["--model", str(GOLDEN / "tiny-gpt2"), "--threads", "2"]
EVERY = int(os.environ.get("UNPACK_FAULT_EVERY", "0"))
MOST = 12  # of one kind, unless all are asked for


@pytest.fixture(scope="module", autouse=True)
def library():
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built: configure with -DUNPACK_FAULTS=ON")


def run(command, fault="", count=None, persistent=False, timeout=60):
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "UNPACK_ONEDNN": "off"}
    if fault:
        environment["UNPACK_FAULT"] = fault
    if persistent:
        environment["UNPACK_FAULT_PERSISTENT"] = "1"
    if count:
        environment["UNPACK_FAULT_COUNT"] = str(count)
    return subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=timeout)


def prepare(place):
    (place / "p.jsonl").write_text('{"ids": [1, 2]}\n{"ids": [3]}\nbad\n')
    for i in (1, 2):
        subprocess.run([PROGRAM, "batch", place / "p.jsonl", *TINY, "--out", place / f"s{i}", "--shard", f"{i}/2", "--arrays", "--top-paths", "1"], check=True, capture_output=True)


COMMANDS = {
    "batch": lambda place, out: ["batch", place / "p.jsonl", *TINY, "--out", out / "b", "--arrays", "--top-paths", "1"],
    "merge": lambda place, out: ["merge", place / "s1", place / "s2", "--out", out / "m"],
    "trace": lambda place, out: ["trace", "--ids", "1,2", *TINY, "--json", out / "t.json", "--html", out / "t.html", "--svg", out / "t.svg", "--tikz", out / "t.tex", "--graph", out / "t.dot"],
}


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def sample(total):
    if EVERY or total <= MOST:
        return range(1, total + 1, EVERY if EVERY and total > MOST else 1)
    return sorted({1 + i * (total - 1) // (MOST - 1) for i in range(MOST)})


@pytest.mark.parametrize("name", list(COMMANDS))
@pytest.mark.parametrize("kind", ["memory", "write", "sync", "rename", "map", "thread"])
def test_a_call_that_fails_is_one_line_and_leaves_nothing_half_written(tmp_path, name, kind):
    prepare(tmp_path)
    whole = tmp_path / "whole"
    whole.mkdir()
    done = run(COMMANDS[name](tmp_path, whole), count=tmp_path / "count")
    assert done.returncode == 0, done.stderr
    want = contents(whole)
    total = dict(line.split() for line in (tmp_path / "count").read_text().splitlines())[kind]
    for n in sample(int(total)):
        out = tmp_path / f"out{n}"
        out.mkdir()
        broken = run(COMMANDS[name](tmp_path, out), f"{kind}:{n}")
        assert broken.returncode in (0, 1), (kind, n, broken.returncode, broken.stderr)
        if broken.returncode == 1:
            assert len(broken.stderr.splitlines()) == 1 and len(broken.stderr) < 500, (kind, n, broken.stderr)
        got = contents(out)
        assert not [file for file in got if ".part" in file], (kind, n, list(got))
        for file, data in got.items():
            # Lines are appended whole; everything else is there wholly or not at all.
            good = want[file].startswith(data) if file.endswith(".jsonl") else data == want[file]
            assert good or (broken.returncode == 1 and file.endswith(".jsonl")), (kind, n, file)
        if name == "batch":  # what was done is not lost, and the same command goes on
            again = run(COMMANDS[name](tmp_path, out))
            assert again.returncode == 0 and contents(out) == want, (kind, n, again.stderr)


@pytest.mark.parametrize("kind", ["memory", "write", "thread"])
def test_a_server_answers_or_says_why_not(tmp_path, kind):
    """Started with a fault somewhere in its life: it ends with one line, or lives and answers the next request."""
    import http.client
    import re

    several = [3, 50, 400, 2000, 9000] if kind == "memory" else [1, 2, 3, 5]
    for n in sorted({*several, *(range(1, 40_000, 20 * EVERY) if kind == "memory" else range(1, 12))}) if EVERY else several:
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "UNPACK_FAULT": f"{kind}:{n}", "HF_HUB_CACHE": "/nonexistent", "UNPACK_ONEDNN": "off"}
        process = subprocess.Popen([PROGRAM, "serve", "--port", "0", *TINY], stderr=subprocess.PIPE, text=True, env=environment)
        line = process.stderr.readline()
        found = re.search(r":(\d+)/ ", line)
        if not found:
            assert process.wait(20) in (0, 1) and line.startswith("unpack: "), (kind, n, line)
            process.stderr.close()
            continue
        statuses = []
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=30)
            try:
                connection.request("POST", "/api/predict", json.dumps({"ids": [1, 2]}), {"Content-Type": "application/json"})
                statuses.append(connection.getresponse().status)
            except OSError:
                statuses.append(0)
            connection.close()
        process.terminate()
        # One call fails: whoever comes next is answered. A late one may meet the last request itself.
        assert process.wait(20) == 0 and (statuses[-1] == 200 or statuses[:2] == [200, 200]), (kind, n, statuses)
        process.stderr.close()
