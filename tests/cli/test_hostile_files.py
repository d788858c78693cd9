"""Files and paths that are not what they should be: those that the program wrote itself and reads
again, those of others in its folders, pipes, loops, limits.
"""
import json
import os
import resource
import signal
import subprocess
import sys
import time

import checkpoints
import pytest
from conftest import PROGRAM, ROOT
from hostile_cases import IDS, TINY, batch

sys.path.insert(0, str(ROOT / "tools"))
from hostile.batches import sealed

# Files that the program wrote are foreign input when it reads them again --------------------------


@pytest.fixture(scope="module")
def shards(unpack, tmp_path_factory):
    place = tmp_path_factory.mktemp("shards")
    (place / "p.jsonl").write_text(
        "".join(json.dumps({"ids": [i + 1, 2]}) + "\n" for i in range(6))
    )
    for i in (1, 2):
        unpack.ok(
            "batch", place / "p.jsonl", *TINY, "--out", place / f"s{i}", "--shard", f"{i}/2",
            "--arrays", "--top-paths", "1"
        )
    return [
        {
            name: (place / f"s{i}" / name).read_bytes()
            for name in ("run.json", "results.jsonl", "errors.jsonl")
        }
        for i in (1, 2)
    ]


def merge(unpack, place, shards, status=1):
    for i, files in enumerate(shards):
        (place / f"s{i}").mkdir(parents=True)
        for name, data in files.items():
            (place / f"s{i}" / name).write_bytes(data)
    if status == 0:
        return unpack.ok("merge", place / "s0", place / "s1", "--out", place / "m")
    return unpack.fails(status, "merge", place / "s0", place / "s1", "--out", place / "m")


def changed_runs(shards, change):
    out = []
    for files in shards:
        run = json.loads(files["run.json"])
        change(run)
        out.append({**files, "run.json": json.dumps(run).encode()})
    return out


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.update(writers=3),
        lambda run: run.update(writers=10**9),
        lambda run: run.update(writers="x"),
        lambda run: run.update(writers=-1),
        lambda run: run.pop("writers"),
        lambda run: run.update(arrays=7),
        lambda run: run.pop("arrays"),
        lambda run: run.update(prompts=3),
        lambda run: run["prompts"].update(records="6"),
        lambda run: run["prompts"].update(records=10**12),
        lambda run: run.update(kind=[]),
        lambda run: run.pop("kind"),
        lambda run: run.update(kind="experiment"),
        lambda run: run.update(shard="2/2000000000"),
        lambda run: run.update(shard="2/0"),
        lambda run: run.update(shard=7),
    ],
)
def test_merge_does_not_trust_run_json(unpack, shards, tmp_path, change):
    merge(unpack, tmp_path, changed_runs(shards, change))


def with_line(shards, at, change):
    lines = shards[0]["results.jsonl"].splitlines()
    record = json.loads(lines[at])
    del record["crc32"]
    change(record)
    lines[at] = sealed(json.dumps(record, separators=(",", ":")).encode())
    return [{**shards[0], "results.jsonl": b"\n".join(lines) + b"\n"}, shards[1]]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["token_credit"].__setitem__(0, None),
        lambda r: r["node_credit"]["emb"].__setitem__(1, None),
        lambda r: r["node_credit"]["emb"].append(1.0),
        lambda r: r["node_credit"].pop("emb"),
        lambda r: r.pop("target"),
        lambda r: r.update(node_credit=3),
        lambda r: r.pop("token_credit"),
        lambda r: r.update(index=-1),
        lambda r: r.update(index="0"),
        lambda r: r.pop("index"),
        lambda r: r.update(tokens=[]),
        lambda r: r.update(conservation={}),
    ],
)
def test_merge_does_not_trust_records_with_a_good_checksum(unpack, shards, tmp_path, change):
    merge(unpack, tmp_path, with_line(shards, 1, change))


def test_swapped_and_foreign_lines_are_found(unpack, shards, tmp_path):
    lines = shards[0]["results.jsonl"].splitlines(keepends=True)
    assert "s0" in merge(
        unpack,
        tmp_path / "a",
        [{**shards[0], "results.jsonl": b"".join([lines[1], lines[0], *lines[2:]])}, shards[1]],
    )
    assert "s1" in merge(
        unpack,
        tmp_path / "b",
        [shards[0], {**shards[1], "results.jsonl": shards[1]["results.jsonl"] + lines[0]}],
    )
    merge(unpack, tmp_path / "c", shards, status=0)


def test_a_finished_folder_with_swapped_lines_is_not_taken_for_finished(unpack, tmp_path):
    text = '{"ids": [1]}\n{"ids": [2]}\n{"ids": [3]}\n'
    assert batch(unpack, tmp_path, text).returncode == 0
    results = tmp_path / "out" / "results.jsonl"
    a, b, c = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b + a + c)
    result = batch(unpack, tmp_path, text)
    assert result.returncode == 1 and "order" in result.stderr


def test_a_damaged_line_in_the_middle_loses_nothing_silently(unpack, tmp_path):
    text = "".join(json.dumps({"ids": [i + 1]}) + "\n" for i in range(4))
    assert batch(unpack, tmp_path, text).returncode == 0
    results = tmp_path / "out" / "results.jsonl"
    good = results.read_bytes()
    lines = good.splitlines(keepends=True)
    damaged = lines[0] + lines[1].replace(b"1", b"2", 1) + lines[2] + lines[3]
    results.write_bytes(damaged)
    result = batch(unpack, tmp_path, text)
    assert (
        result.returncode == 1
        and "line 2 is damaged" in result.stderr
        and "head -n 1" in result.stderr
    )
    assert results.read_bytes() == damaged
    results.write_bytes(lines[0])  # as it says
    assert batch(unpack, tmp_path, text).returncode == 0 and results.read_bytes() == good


@pytest.mark.parametrize("name", ["summary.json", "index.npy", "token_credit.npy"])
def test_batch_overwrites_no_files_of_others(unpack, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    result = batch(unpack, tmp_path, '{"ids": [1]}\n', "--arrays")
    assert result.returncode == 1 and name in result.stderr
    assert (
        sorted(os.listdir(tmp_path / "out")) == [name]
        and (tmp_path / "out" / name).read_text() == "mine"
    )


@pytest.mark.parametrize("name", ["summary.json", "report.md", "faithfulness.svg"])
def test_experiment_overwrites_no_files_of_others(unpack, tmp_path, name):
    (tmp_path / name).write_text("mine")
    assert name in unpack.fails(1, "experiment", "sink", "--n", "1", "--out", tmp_path)
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["run.json", "results.jsonl", "summary.json", "index.npy"])
def test_a_folder_in_the_place_of_a_file_is_named(unpack, tmp_path, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    result = batch(unpack, tmp_path, '{"ids": [1]}\n', "--arrays")
    assert result.returncode == 1 and name in result.stderr and "internal" not in result.stderr


# Paths --------------------------------------------------------------------------------------------


def test_strange_paths_are_named_and_never_an_internal_error(unpack, tmp_path):
    os.symlink("loop", tmp_path / "loop")
    for name in (tmp_path / "loop", tmp_path / ("x" * 300), "/" + "y" * 5000):
        for command in (
            ["predict", "--model", name, *IDS],
            ["tokenize", "a", "--model", name],
            ["batch", name, "--out", tmp_path / "o"],
            ["batch", ROOT / "README.md", "--out", name, "--format", "text"],
            ["predict", *IDS, *TINY, "--json", name],
            ["merge", name],
            ["models", name],
        ):
            line = unpack.fails(1, *command)
            assert "internal" not in line, (command, line)


def test_a_folder_without_permission_is_not_one_without_a_config(unpack, within_reach, tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs another user")
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    os.chmod(folder, 0o700)
    for parent in [tmp_path, *tmp_path.parents][:-1]:
        os.chmod(parent, os.stat(parent).st_mode | 0o055)
    r = subprocess.run(
        [PROGRAM, "predict", "--model", str(folder), *IDS],
        capture_output=True,
        text=True,
        user=65534,
        cwd="/",
    )
    assert (
        r.returncode == 1 and "Permission denied" in r.stderr and "no config.json" not in r.stderr
    ), r


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_pipes_and_devices_are_no_model_files(unpack, tmp_path, name, kind):
    folder = checkpoints.copy(tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name) if kind == "fifo" else os.symlink("/dev/zero", folder / name)
    assert name in unpack.fails(1, "predict", "--model", folder, *IDS, timeout=120)


def test_a_pipe_of_prompts_is_refused_with_the_way_out(unpack, tmp_path):
    os.mkfifo(tmp_path / "p.jsonl")
    assert "pipe" in unpack.fails(
        1, "batch", tmp_path / "p.jsonl", "--out", tmp_path / "o", timeout=120
    )


def test_a_file_size_limit_leaves_nothing_behind(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"ids": [1, 2]}\n' * 3)

    def small():
        signal.signal(
            signal.SIGXFSZ, signal.SIG_DFL
        )  # Python ignores it, and its children would, too
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    for command in (
        ["trace", *IDS, *TINY, "--json", tmp_path / "out.json"],
        ["batch", tmp_path / "p.jsonl", *TINY, "--out", tmp_path / "o", "--arrays"],
    ):
        r = subprocess.run(
            [PROGRAM, *map(str, command)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            preexec_fn=small,
        )
        assert r.returncode == 1 and r.stderr.count("\n") == 1, r
    assert not [p for p in tmp_path.rglob("*.part*")] and not (tmp_path / "out.json").exists()


def test_a_prompt_file_that_shrinks_is_said_so(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"ids": [i % 50 + 1] * 3}) + "\n" for i in range(4000))
    )
    process = subprocess.Popen(
        [
            PROGRAM, "batch", str(tmp_path / "p.jsonl"), *TINY, "--out", str(tmp_path / "o"),
            "--top-paths", "1"
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "o" / "results.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    os.truncate(tmp_path / "p.jsonl", 2000)
    _, error = process.communicate(timeout=120)
    assert process.returncode in (0, 1) and "internal" not in error
    if process.returncode == 1:
        assert "changed while it was read" in error
