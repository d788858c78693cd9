"""The numbers of SECURITY.md: what is one past a stated limit is refused, what is within it is
not.
"""
import json
import re
import struct

import checkpoints
import gguf_files
import pytest
from conftest import GOLDEN, MARY, ROOT
from test_torch_files import as_torch, number, state, tensor, text

TINY = ["--model", str(GOLDEN / "tiny-gpt2")]
TABLE = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(), re.M))
UNITS = {"": 1, "MB": 10**6, "million": 10**6, "MiB": 1 << 20, "GiB": 1 << 30}


def stated(row, before="", behind=""):
    """The number of that row, between these words."""
    found = re.search(rf"{before}(\d[\d,.e]*) ?(MiB|GiB|MB|million|){behind}", TABLE[row])
    assert found, (row, before, behind)
    return int(float(found.group(1).replace(",", ""))) * UNITS[found.group(2)]


def reasons(unpack, place, lines):
    (place / "p.jsonl").write_text("".join(line + "\n" for line in lines))
    unpack("batch", place / "p.jsonl", *TINY, "--out", place / "out", "--top-paths", "1")
    return bad_lines(place / "out")


def bad_lines(out):
    return [json.loads(line)["reason"] for line in (out / "errors.jsonl").read_text().splitlines()]


def test_json(unpack, tmp_path):
    levels, values = stated("JSON from outside", behind=" levels"), stated(
        "JSON from outside", "and ", " values a request"
    )

    def nested(n):
        return '{"ids": [1], "x": ' + "[" * (n - 1) + "]" * (n - 1) + "}"

    def long(n):
        return '{"ids": [1], "x": [' + ",".join(["0"] * n) + "]}"

    bad = reasons(
        unpack, tmp_path, [nested(levels), nested(levels + 1), long(values - 10), long(values + 1)]
    )
    assert len(bad) == 2 and str(levels) in bad[0] and str(values) in bad[1], bad


def test_a_line_of_prompts(unpack, tmp_path):
    most = stated("line of a prompt file")
    pad = lambda size: '{"ids": [1], "x": "' + "a" * (size - 21) + '"}'  # noqa: E731
    assert len(pad(most)) == most
    assert len(reasons(unpack, tmp_path, [pad(most - 1), pad(most + 2)])) == 1


def large(path, size):
    with open(path, "wb") as file:  # a hole: it takes no room
        file.truncate(size)


def test_files_of_a_model(unpack, tmp_path):
    folder = checkpoints.copy(tmp_path)
    header = stated("safetensors header")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", header + 1))
    with open(folder / "model.safetensors", "ab") as file:
        file.truncate(header + 100)
    assert str(header + 1) in unpack.fails(1, "predict", "--ids", "1", "--model", folder)
    large(
        folder / "config.json",
        stated("JSON from outside", behind=" and 20 million values a file") + 1,
    )
    assert "config.json" in unpack.fails(1, "predict", "--ids", "1", "--model", folder)
    other = checkpoints.copy(tmp_path / "other")
    large(other / "tokenizer.json", stated("tokenizer file") + 1)
    assert "tokenizer.json" in unpack.fails(1, "predict", "word", "--model", other)


def test_values_of_a_file(unpack, tmp_path):
    folder, most = checkpoints.copy(tmp_path), stated(
        "JSON from outside", "MB and ", " values a file"
    )
    (folder / "config.json").write_text('{"x": [' + "0," * most + "0]}")
    assert f"{most} values" in unpack.fails(1, "predict", "--ids", "1", "--model", folder)


def test_a_file_of_our_own(unpack, tmp_path):
    most = stated("JSON from outside", "values a file; ", " and 1 million")
    (tmp_path / "s").mkdir()
    large(tmp_path / "s" / "run.json", most + 1)
    line = unpack.fails(1, "merge", tmp_path / "s", "--out", tmp_path / "m")
    assert "run.json" in line and str(most + 1) in line, line


@pytest.mark.parametrize("tensors, keys, what", [(0, 1, "key"), (1, 0, "tensor")])
def test_gguf(unpack, tmp_path, tensors, keys, what):
    most = {
        "key": stated("GGUF file", behind=" keys"),
        "tensor": stated("GGUF file", behind=" tensors"),
    }[what]
    (tmp_path / "m.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, tensors * (most + 1), keys * (most + 1)) + b"\0" * 64
    )
    line = unpack.fails(1, "predict", "--ids", "1", "--model", tmp_path / "m.gguf")
    assert what in line and str(most + 1) in line, line


def test_dimensions_of_a_gguf_tensor(unpack, tmp_path):
    most = stated("GGUF file", "at most ", " dimensions")
    for dimensions, said in ((most, False), (most + 1, True)):
        gguf_files.write(
            tmp_path / "m.gguf",
            {"general.architecture": "llama"},
            {"x": ("F32", (1,) * dimensions, b"\0" * 4)},
        )
        assert (
            f"{dimensions} dimensions"
            in unpack.fails(1, "predict", "--ids", "1", "--model", tmp_path / "m.gguf")
        ) == said


def test_a_pickle(unpack, tmp_path):
    levels, tensors = stated("pickle of weights", behind=" levels"), stated(
        "pickle of weights", "levels, ", " tensors"
    )
    # Tuples inside each other; entries of one dict, written at once.
    for levels_of, said in ((levels - 1, False), (levels + 1, True)):
        folder = as_torch(
            tmp_path / str(levels_of),
            body=state([("x", b"(" * levels_of + number(1) + b"t" * levels_of)]),
        )
        assert ("too deeply" in unpack.fails(1, "predict", "--ids", "1", "--model", folder)) == said
    folder = as_torch(
        tmp_path / "many", body=state([])[:-2] + (text("a") + number(1)) * (tensors + 1) + b"u."
    )
    assert "too many" in unpack.fails(1, "predict", "--ids", "1", "--model", folder)


def test_a_chat_template(unpack, tmp_path):
    def rendered(template):
        (tmp_path / "t.jinja").write_text(template)
        return unpack("predict", "Hi", "--chat-template", tmp_path / "t.jinja", "--chat")

    size, steps, text = (
        stated("chat template", behind=";"),
        stated("chat template", "; ", " steps"),
        stated("chat template", "steps, ", " of text"),
    )
    assert rendered("{# " + "x" * (size - 20) + " #}hello").returncode == 0
    for template in (
        "{# " + "x" * size + " #}hello",
        "{% for i in range(9999) %}{% for j in range("
        + str(steps // 9999 + 1)
        + ") %}{% endfor %}{% endfor %}",
        "{% set x = 'a' * " + str(text + 1) + " %}hello",
    ):
        assert rendered(template).returncode == 1, template[:60]


@pytest.mark.parametrize(
    "option, value, allowed",
    [("--top-paths", lambda: stated("paths"), "3"), ("--beta", lambda: 10**6, "1000000")],
)
def test_options(unpack, option, value, allowed):
    assert "1e6" in TABLE["options"]
    unpack.ok("trace", "--ids", "1,2", *TINY, option, allowed)
    unpack.fails(2, "trace", "--ids", "1,2", *TINY, option, value() + 1)


@pytest.mark.parametrize(
    "temperature, status", [("0", 0), ("1e-6", 0), ("9e-7", 2), ("1e6", 0), ("1.1e6", 2)]
)
def test_temperature(unpack, temperature, status):
    assert "temperature 0, or 1e-6 to 1e6" in TABLE["options"]
    assert (
        unpack(
            "generate", "--ids", "1,2", *TINY, "--max-tokens", "1", "--temperature", temperature
        ).returncode
        == status
    )


def test_shards_and_documents(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"ids": [1]}\n')
    most = stated("shards")
    unpack.ok("batch", tmp_path / "p.jsonl", *TINY, "--out", tmp_path / "a", "--shard", f"1/{most}")
    unpack.fails(
        2, "batch", tmp_path / "p.jsonl", *TINY, "--out", tmp_path / "b", "--shard", f"1/{most + 1}"
    )
    most = stated("documents of a question (`sources`)", "each, ")
    (tmp_path / "d.json").write_text(json.dumps(["a."] * (most + 1)))
    assert "documents" in unpack.fails(
        1, "sources", "Who?", "--documents", tmp_path / "d.json"
    ).replace(",", "")
    most = stated("documents of a question (`sources`)", behind=" each")
    large(tmp_path / "d.txt", most + 1)
    assert str(most + 1) in unpack.fails(1, "sources", "Who?", "--documents", tmp_path / "d.txt")


def test_a_search_along_a_threshold(unpack):
    steps, found = stated("paths", "listed; ", " steps"), stated(
        "paths", "threshold, ", " paths of rule"
    )
    line = unpack.fails(1, "trace", MARY, "--tau", "1e-12", "--tau-rule", "entry")
    assert str(steps) in line and str(found) in line, line


def test_weights(unpack):
    for value, status in (("1e6", 0), ("1000001", 2)):
        assert (
            unpack("trace", "--ids", "1,2", *TINY, "--weights", f"{value},1,1").returncode == status
        )
        assert (
            unpack("trace", "--ids", "1,2", *TINY, "--mlp-weights", f"{value},1").returncode
            == status
        )


def test_parts_and_answers(unpack, tmp_path):
    parts, tokens = stated("named parts of a prompt"), stated(
        "named parts of a prompt", "explain ", " tokens"
    )
    groups = [f"g{i}=0:1" for i in range(parts + 1)]
    bad = reasons(
        unpack,
        tmp_path,
        [
            json.dumps({"ids": [1, 2], "group": groups}),
            json.dumps({"ids": [1], "answer": [1] * (tokens + 1)}),
        ],
    )
    assert len(bad) == 2 and str(parts) in bad[0] and str(tokens) in bad[1], bad
    (tmp_path / "p.csv").write_text("ids,group\n1 2," + ";".join(groups) + "\n")
    assert unpack("batch", tmp_path / "p.csv", *TINY, "--out", tmp_path / "table").returncode == 1
    assert str(parts) in bad_lines(tmp_path / "table")[0]


def test_the_servers_numbers_are_those_it_has(unpack):
    defaults = {
        name: int(value)
        for name, value in re.findall(
            r"--([a-z-]+) [A-Z]+ .*\(default (\d+)\)", unpack.ok("serve", "--help")
        )
    }
    kept = stated("server's memory", r"`--cache` \(")
    want = {
        "max-waiting": stated("server", "turn, ", " requests waiting"),
        "max-tokens": stated("server", r"beyond\), ", " tokens"),
        "time-limit": stated("request to the server", "send it; ", " s to compute"),
        "cache": kept >> 20,
    }
    assert {name: defaults[name] for name in want} == want


@pytest.mark.parametrize(
    "row, before, behind, file, pattern",
    [
        (
            "tokenizer file",
            "MiB, ",
            " values",
            "src/tokenizer/parse.cc",
            r"kLimits = \{std::size_t\{256\} << 20, ([\d']+)\}",
        ),
        (
            "line of a prompt file",
            "stdin ",
            "",
            "src/batch/prompt_source.cc",
            r"kLargestStdin = std::size_t\{1\} << (30);",
        ),
        (
            "request to the server",
            "",
            " s to take",
            "server/server.cc",
            r"kToAnswer = std::chrono::milliseconds\(([\d']+)'000\)",
        ),
        (
            "server",
            "",
            " connections at a time",
            "include/unpack/serve.h",
            r"max_connections = (\d+);",
        ),
        ("server", "and ", " that wait", "server/task_threads.cc", r"kLine = (\d+);"),
    ],
)
def test_numbers_that_no_quick_test_can_reach_are_those_of_the_source(
    row, before, behind, file, pattern
):
    found = re.search(pattern, (ROOT / file).read_text())
    assert found
    n = int(found.group(1).replace("'", ""))
    assert stated(row, before, behind) == (1 << n if "<< (" in pattern else n)
