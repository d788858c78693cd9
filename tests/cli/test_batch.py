"""Many prompts from a file: formats, overrides, bad input, resuming after kill -9, shards and their
merge.
"""
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import MARY, PROGRAM

FEW = ["--top-paths", "2"]


def files(folder):
    """Every file of a folder by name."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def lines(folder, name="results.jsonl"):
    return [json.loads(line) for line in (Path(folder) / name).read_text().splitlines()]


def short_prompts(count, seed=1, longest=3):
    """JSON lines of a few tokens, which cost little."""
    draw = random.Random(seed)
    return "".join(
        json.dumps(
            {"id": f"p{i}", "ids": [draw.randrange(4000) for _ in range(draw.randint(1, longest))]}
        )
        + "\n"
        for i in range(count)
    )


@pytest.fixture(scope="module")
def whole(unpack, tmp_path_factory):
    """A file of prompts, two of them bad, and what one run makes of it."""
    place = tmp_path_factory.mktemp("whole")
    rows = short_prompts(25).splitlines(keepends=True)
    rows.insert(7, '{"ids": [5, 99999999]}\n')
    rows.insert(11, "no json\n")
    (place / "prompts.jsonl").write_text("".join(rows))
    unpack.ok("batch", place / "prompts.jsonl", "--out", place / "out", "--arrays", *FEW)
    return place


def test_a_line_says_what_a_trace_says(unpack, tmp_path):
    (tmp_path / "p.txt").write_text(f"{MARY}\n\nMary and\n")
    unpack.ok(
        "batch", tmp_path / "p.txt", "--out", tmp_path / "out", "--target", " Mary", "--versus",
        " John"
    )
    first, second = lines(tmp_path / "out")
    want = unpack.json("trace", MARY, "--target", " Mary", "--versus", " John")
    for own in ("version", "program", "model"):
        del want[own]
    assert (first["index"], first["line"], first["id"]) == (0, 1, None) and (
        second["index"],
        second["line"],
    ) == (1, 3)
    assert {name: first[name] for name in want} == want


def test_a_line_overrides_the_options_of_the_run(unpack, tmp_path):
    rows = [
        {"id": "plain", "prompt": MARY},
        {
            "id": 7,
            "prompt": MARY,
            "target": " John",
            "versus": None,
            "position": -2,
            "beta": 0.5,
            "top_paths": 1,
        },
        {"prompt": MARY, "root": "A3.H1@-1", "target": [" Mary", " Kate"]},
        {"prompt": MARY, "method": "ifr", "raw_logit": True},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    unpack.ok(
        "batch", tmp_path / "p.jsonl", "--out", tmp_path / "out", "--target", " Mary", "--versus",
        " John", "--top-paths", "3"
    )
    plain, changed, rooted, baseline = lines(tmp_path / "out")
    assert (plain["target"]["text"], plain["target"]["versus_text"], len(plain["paths"])) == (
        " Mary",
        " John",
        3,
    )
    assert (changed["id"], changed["target"]["text"], changed["target"]["versus_text"]) == (
        7,
        " John",
        None,
    )
    assert (changed["target"]["position"], changed["options"]["beta"], len(changed["paths"])) == (
        12,
        0.5,
        1,
    )
    assert (
        rooted["root"] == "A3.H1@13" and len(rooted["target"]["ids"]) == 2 and "incoming" in rooted
    )
    assert baseline["method"] == "ifr" and baseline["target"]["logit_difference"] is None


def test_tables_have_a_header_and_quotes(unpack, tmp_path):
    (tmp_path / "p.csv").write_text(
        (
            'id,prompt,Target,note\na,"Mary, said ""no""\nand John", Mary,x\nb,Mary'
            ' and,,y\nc,too,many,cells,here\n'
        ),
        newline="",
    )
    result = unpack("batch", tmp_path / "p.csv", "--out", tmp_path / "csv", *FEW)
    assert result.returncode == 0 and "note" in result.stderr  # a column that nobody reads is named
    first, second = lines(tmp_path / "csv")
    assert (
        "".join(t["text"] for t in first["tokens"][1:]) == 'Mary, said "no"\nand John'
        and first["target"]["text"] == " Mary"
    )
    assert (second["id"], second["line"]) == ("b", 4)
    assert lines(tmp_path / "csv", "errors.jsonl")[0]["line"] == 5
    (tmp_path / "p.tsv").write_text("ids\tposition\n3 17 5\t0\n")
    unpack.ok("batch", tmp_path / "p.tsv", "--out", tmp_path / "tsv", *FEW)
    assert lines(tmp_path / "tsv")[0]["target"]["position"] == 0


def test_prompts_come_through_a_pipe(unpack, tmp_path):
    unpack.ok("batch", "-", "--out", tmp_path / "text", *FEW, stdin="Mary and\nJohn\n")
    unpack.ok(
        "batch",
        "-",
        "--out",
        tmp_path / "json",
        *FEW,
        stdin='{"prompt": "Mary and"}\n{"prompt": "John"}\n',
    )
    assert [x["tokens"] for x in lines(tmp_path / "text")] == [
        x["tokens"] for x in lines(tmp_path / "json")
    ]


def test_bad_lines_are_named_and_the_others_answered(unpack, whole):
    errors = lines(whole / "out", "errors.jsonl")
    assert [(e["line"], e["id"]) for e in errors] == [(8, None), (12, None)]
    assert (
        "outside the vocabulary" in errors[0]["reason"] and "not valid JSON" in errors[1]["reason"]
    )
    assert [x["index"] for x in lines(whole / "out")] == [i for i in range(27) if i not in (7, 11)]
    summary = json.loads((whole / "out" / "summary.json").read_text())
    assert (summary["results"], summary["errors"]) == (25, 2) and summary["components"]["emb"][
        "absolute"
    ] > 0
    line = unpack.fails(1, "batch", whole / "prompts.jsonl", "--out", whole / "strict", "--strict")
    assert "line 8" in line and not (whole / "strict").exists()


@pytest.mark.parametrize(
    "row, reason",
    [
        ({}, "neither"),
        ({"prompt": 3}, "takes a text"),
        ({"prompt": "a", "ids": [1]}, "not both"),
        ({"ids": []}, "at least one"),
        ({"ids": [1] * 5000}, "5000 tokens"),
        ({"prompt": "a", "target": "Mary and John"}, "3 tokens"),
        ({"prompt": "a", "position": 7}, "position 7"),
        ({"prompt": "a", "position": "x"}, "whole number"),
        ({"prompt": "a", "position": 18446744073709551615}, "position"),  # once read as -1
        ({"prompt": "a", "root": "A99.H0@0"}, "A99"),
        ({"prompt": "a", "beta": -1}, "beta"),
        ({"prompt": "a", "id": []}, "id"),
        (3, "object"),
    ],
)
def test_a_bad_line_says_what_is_wrong(unpack, tmp_path, row, reason):
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    result = unpack("batch", tmp_path / "p.jsonl", "--out", tmp_path / "out")
    assert result.returncode == 1  # nothing could be answered
    assert reason in lines(tmp_path / "out", "errors.jsonl")[0]["reason"]


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("p.txt", b"", "empty"),
        ("p.txt", b"\n \n\n", "no prompts"),
        ("p.csv", b"prompt,id\n", "no rows"),
        ("p.csv", b"text,id\nMary,1\n", "first line"),
        ("p.csv", b"prompt,prompt\nMary,1\n", "two columns"),
        ("p.json", b'[{"prompt": "a"}]', "array"),
        ("p.txt", b"Mary\0John", "no text"),
        ("p.jsonl", b"\x1f\x8b\x08\x00", "gzip"),
        ("p.csv", b"PK\x03\x04", "spreadsheet"),
        ("p.txt", "Mary".encode("utf-16"), "UTF-16"),
        ("p.txt", bytes(range(256)) * 100, "no text"),
    ],
)
def test_a_file_that_holds_no_prompts_is_one_clear_error(unpack, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    assert says in unpack.fails(1, "batch", tmp_path / name, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_huge_lines_cost_an_error_and_no_memory(unpack, tmp_path):
    with open(tmp_path / "p.txt", "wb") as file:
        file.write(b"Mary\n" + b"x" * 20_000_000 + b"\nJohn \xff\nJohn\0\nlast\n")
    unpack("batch", tmp_path / "p.txt", "--out", tmp_path / "out", *FEW)
    assert [e["line"] for e in lines(tmp_path / "out", "errors.jsonl")] == [2, 3, 4] and len(
        lines(tmp_path / "out")
    ) == 2
    (tmp_path / "open.csv").write_text('prompt\n"Mary\n' + "x\n" * 3_000_000)
    unpack("batch", tmp_path / "open.csv", "--out", tmp_path / "csv", *FEW, "--strict")
    assert "quote" in unpack.fails(
        1, "batch", tmp_path / "open.csv", "--out", tmp_path / "csv", "--strict"
    )


def test_files_that_are_not_there(unpack, tmp_path):
    assert "cannot read" in unpack.fails(1, "batch", tmp_path / "absent", "--out", tmp_path / "out")
    assert "folder" in unpack.fails(1, "batch", tmp_path, "--out", tmp_path / "out")
    (tmp_path / "p.txt").write_text("Mary\n")
    unpack.fails(2, "batch", tmp_path / "p.txt")
    unpack.fails(2, "batch")


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "1/3x", "-1/3"])
def test_a_shard_that_cannot_be(unpack, whole, shard):
    assert "shard takes" in unpack.fails(
        2, "batch", whole / "prompts.jsonl", "--out", whole / "never", f"--shard={shard}"
    )


def test_threads_and_company_change_no_byte(unpack, whole, tmp_path):
    unpack.ok(
        "batch", whole / "prompts.jsonl", "--out", tmp_path / "one", "--arrays", "--threads", "1",
        *FEW
    )
    assert files(tmp_path / "one") == files(whole / "out")
    # Alone in its file a prompt gets the same answer; a file this short would do without weight
    # products by itself.
    row = (whole / "prompts.jsonl").read_text().splitlines(keepends=True)[20]
    (tmp_path / "alone.jsonl").write_text(row)
    unpack.ok(
        "batch", tmp_path / "alone.jsonl", "--out", tmp_path / "alone", "--weight-products", *FEW
    )
    alone, among = lines(tmp_path / "alone")[0], next(
        x for x in lines(whole / "out") if x["index"] == 20
    )
    for own in ("index", "line", "crc32"):
        del alone[own], among[own]
    assert alone == among


def test_shards_merge_into_what_one_run_writes(unpack, whole, tmp_path):
    for i in (1, 2, 3, 4):
        unpack.ok(
            "batch", whole / "prompts.jsonl", "--out", tmp_path / f"part{i}", "--shard", f"{i}/4",
            "--arrays", *FEW
        )
    parts = [tmp_path / f"part{i}" for i in (3, 1, 4, 2)]
    unpack.ok("merge", *parts, "--out", tmp_path / "merged")
    assert files(tmp_path / "merged") == files(whole / "out")
    unpack.ok("merge", *parts, "--out", tmp_path / "merged")  # once more does no harm

    assert "missing: 1/4, 3/4" in unpack.fails(
        1, "merge", tmp_path / "part2", tmp_path / "part4", "--out", tmp_path / "x"
    )
    assert "twice" in unpack.fails(1, "merge", *parts, tmp_path / "part2", "--out", tmp_path / "x")
    assert "whole run" in unpack.fails(1, "merge", whole / "out", "--out", tmp_path / "x")
    assert "run.json" in unpack.fails(1, "merge", tmp_path, "--out", tmp_path / "x")
    unpack.fails(2, "merge")

    # A shard that stopped half-way, and one whose line was damaged.
    results = tmp_path / "part2" / "results.jsonl"
    good = results.read_bytes()
    results.write_bytes(good[: len(good) // 2])
    assert "2/4" in unpack.fails(1, "merge", *parts, "--out", tmp_path / "x")
    results.write_bytes(good.replace(b'"credit":0', b'"credit":1', 1))
    assert "2/4" in unpack.fails(1, "merge", *parts, "--out", tmp_path / "y")
    results.write_bytes(good[: good.index(b"\n") + 1])
    unpack.ok(
        "batch", whole / "prompts.jsonl", "--out", tmp_path / "part2", "--shard", "2/4", "--arrays",
        *FEW
    )
    assert results.read_bytes() == good


@pytest.mark.parametrize(
    "change, says",
    [
        (["--beta", "0.5"], "options.beta"),
        (["--model", "pocket-neox"], "model"),
        (["--shard", "2/5"], "shards"),
        (["other"], "prompts"),
    ],
)
def test_shards_of_different_runs_are_not_merged(unpack, whole, tmp_path, change, says):
    prompts = whole / "prompts.jsonl"
    unpack.ok("batch", prompts, "--out", tmp_path / "a", "--shard", "1/2", *FEW)
    if change == ["other"]:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(short_prompts(27, seed=2))
        change = []
    shard = [] if "--shard" in change else ["--shard", "2/2"]
    unpack("batch", prompts, "--out", tmp_path / "b", *shard, *change, *FEW)
    line = unpack.fails(1, "merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "merged")
    assert says in line and str(tmp_path / "b") in line


def test_a_folder_of_another_run_is_left_alone(unpack, whole, tmp_path):
    before = files(whole / "out")
    assert "options.beta" in unpack.fails(
        1, "batch", whole / "prompts.jsonl", "--out", whole / "out", "--arrays", "--beta", "0.5",
        *FEW
    )
    assert files(whole / "out") == before
    (tmp_path / "results.jsonl").write_text("mine\n")
    unpack.fails(1, "batch", whole / "prompts.jsonl", "--out", tmp_path)
    unpack.fails(1, "experiment", "sink", "--n", "1", "--out", tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == "mine\n"


def test_arrays_hold_the_numbers_of_the_lines(whole):
    np = pytest.importorskip("numpy")
    load = lambda name: np.load(whole / "out" / f"{name}.npy")
    token, node, offsets, index = (
        load("token_credit"),
        load("node_credit"),
        load("offsets"),
        load("index"),
    )
    rows = lines(whole / "out")
    assert index.tolist() == [row["index"] for row in rows]
    for i, row in enumerate(rows):
        begin, end = offsets[i : i + 2]
        assert token[begin:end].tolist() == row["token_credit"]
        assert node[begin:end].T.tolist() == list(row["node_credit"].values())


def test_a_run_killed_at_20_random_moments_ends_in_the_same_bytes(unpack, tmp_path):
    """kill -9 twenty times, at moments drawn over the whole run, each time resumed: nothing lost,
    nothing doubled.
    """
    rows = short_prompts(100, seed=5).splitlines(keepends=True)
    rows[30:30] = ["bad\n"] * 3
    (tmp_path / "p.jsonl").write_text("".join(rows))
    unpack.ok("batch", tmp_path / "p.jsonl", "--out", tmp_path / "whole", "--arrays", *FEW)
    command = [PROGRAM, "batch", tmp_path / "p.jsonl", "--out", tmp_path / "out", "--arrays", *FEW]
    want = files(tmp_path / "whole")
    results = tmp_path / "out" / "results.jsonl"
    size = lambda: results.stat().st_size if results.exists() else -1
    draw = random.Random(20)
    killed = 0
    sizes = set()
    whole = len(want["results.jsonl"])
    while killed < 20:
        # The moment is drawn by how far the file is to come this time, which no busy machine can
        # shift, and a little time after it.
        before = max(size(), 0)
        wanted = before + draw.randrange(1 + (whole - before) // 3)
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if before == whole:  # killed between the last line and the summary: only the end is left
            assert run.wait() == 0
        while run.poll() is None and size() < wanted:
            time.sleep(0.001)
        try:
            run.wait(timeout=draw.uniform(0, 0.05))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.wait()
            killed += 1
            sizes.add(size())
            continue
        assert files(tmp_path / "out") == want  # it came to its end between two kills: begin again
        shutil.rmtree(tmp_path / "out")
    unpack.ok(*command[1:])
    assert files(tmp_path / "out") == want
    assert len(sizes) > 3, "the kills all fell on the same state"


def test_every_way_to_cut_the_files_is_mended(unpack, whole, tmp_path):
    """What a kill can leave: any beginning of either file."""
    want = files(whole / "out")
    draw = random.Random(3)
    for _ in range(6):
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        for name, content in want.items():
            cut = (
                draw.randrange(len(content) + 1)
                if name in ("results.jsonl", "errors.jsonl")
                else len(content)
            )
            (out / name).write_bytes(content[:cut])
        unpack.ok("batch", whole / "prompts.jsonl", "--out", out, "--arrays", *FEW)
        assert files(out) == want


def test_two_runs_do_not_write_into_one_folder(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text(short_prompts(400, longest=6))
    command = [PROGRAM, "batch", tmp_path / "p.jsonl", "--out", tmp_path / "out"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (tmp_path / "out" / "errors.jsonl").exists():
            time.sleep(0.01)
        assert "another run" in unpack.fails(1, *command[1:])
        first.terminate()
        assert first.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        first.kill()


def test_an_interrupted_batch_says_how_to_go_on(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text(short_prompts(400, longest=6))
    run = subprocess.Popen(
        [PROGRAM, "batch", tmp_path / "p.jsonl", "--out", tmp_path / "out"],
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    assert "goes on" in run.communicate(timeout=60)[1] and run.returncode == 130


CORPUS = [
    "The old man looked at the sea",
    "She went to the market and bought some bread for the children",
    "He said that he would not go there",
]


@pytest.mark.parametrize(
    "name, more",
    [
        ("sink", []),
        ("suppression", []),
        ("knockout", ["--all"]),
        ("faithfulness", []),
        ("beta", []),
        ("ioi", []),
        ("greater-than", []),
        ("sources", []),
    ],
)
def test_shards_of_every_experiment_merge_into_what_one_run_writes(unpack, tmp_path, name, more):
    args = ["experiment", name, "--n", "2", *more]
    if name == "knockout":
        (tmp_path / "corpus.txt").write_text("\n".join(CORPUS * 2))
        args += ["--corpus", tmp_path / "corpus.txt"]
    unpack.ok(*args, "--out", tmp_path / "whole")
    for i in (1, 2):
        unpack.ok(*args, "--out", tmp_path / f"part{i}", "--shard", f"{i}/2")
    report = unpack.ok(
        "merge", tmp_path / "part2", tmp_path / "part1", "--out", tmp_path / "merged"
    )
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    assert report == (tmp_path / "whole" / "report.md").read_text()
    records = [
        set((tmp_path / part / "results.jsonl").read_text().splitlines()[1:])
        for part in ("part1", "part2")
    ]
    shared = {
        line for line in records[0] & records[1] if "score|" not in line and "search|" not in line
    }
    # Every shard made records, none of them twice (knockout's scores and the search for a circuit
    # are needed by all).
    assert all(records) and not shared


def test_an_experiment_without_all_its_shards_is_not_merged(unpack, tmp_path):
    args = ["experiment", "sink", "--n", "2"]
    for i in (1, 2):
        unpack.ok(*args, "--out", tmp_path / f"part{i}", "--shard", f"{i}/2")
    assert "2/2" in unpack.fails(1, "merge", tmp_path / "part1", "--out", tmp_path / "x")
    results = tmp_path / "part2" / "results.jsonl"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:-1]))
    assert "2/2" in unpack.fails(
        1, "merge", tmp_path / "part1", tmp_path / "part2", "--out", tmp_path / "x"
    )
    unpack.ok(*args, "--out", tmp_path / "other", "--shard", "2/2", "--seed", "5")
    assert "seed" in unpack.fails(
        1, "merge", tmp_path / "part1", tmp_path / "other", "--out", tmp_path / "x"
    )
