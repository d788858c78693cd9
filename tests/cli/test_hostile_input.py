"""Nothing that comes in from outside ends in a crash, a hang or an internal error: what once did,
and the attacker over every surface. Files and paths: test_hostile_files.py; threads, memory and
signals: test_hostile_system.py."""
import json
import os
import re
import struct
import subprocess
import sys

import checkpoints
import pytest
from conftest import MARY, PROGRAM, ROOT
from hostile_cases import IDS, TINY, batch, processor_time, reasons

sys.path.insert(0, str(ROOT / "tools"))
import attack
from hostile.rules import judge_message

# JSON ---------------------------------------------------------------------------------------------


def test_a_header_of_many_tensors_is_read_in_linear_time(unpack, tmp_path):
    header = {
        f"t{i}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i in range(40_000)
    }
    folder = checkpoints.copy(tmp_path)
    checkpoints.write(folder / "model.safetensors", header, b"\0" * 160_000)
    with processor_time() as took:
        unpack.fails(1, "predict", "--model", folder, *IDS)
    assert took.seconds < 20


@pytest.mark.parametrize("field", ["tau", "unknown", "beta"])
@pytest.mark.parametrize("value", ["1e400", "9" * 400])
def test_a_number_that_no_double_holds_is_a_bad_line_and_not_the_end(
    unpack, tmp_path, field, value
):
    result = batch(unpack, tmp_path, f'{{"ids": [1], "{field}": {value}}}\n{{"ids": [2]}}\n')
    if field == "unknown" and value != "1e400":
        assert result.returncode == 0
        return
    assert result.returncode == 0 and len(reasons(tmp_path)) == 1, result.stderr
    assert (
        batch(unpack, tmp_path, f'{{"ids": [1], "{field}": {value}}}\n{{"ids": [2]}}\n').returncode
        == 0
    )  # it resumes


def test_a_batch_that_fails_wholly_says_so_in_one_line(unpack, tmp_path):
    (tmp_path / "p.csv").write_text("ids,note\nx,1\ny,2\n")
    result = unpack("batch", tmp_path / "p.csv", *TINY, "--out", tmp_path / "o")
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result
    assert "2 bad lines" in result.stderr and "note" in result.stderr, result.stderr


def test_a_value_of_great_depth_is_a_bad_line(unpack, tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    result = batch(
        unpack, tmp_path, f'{{"ids": [1], "tau": {deep}}}\n{{"id": {deep}}}\n{{"ids": [2]}}\n'
    )
    assert result.returncode == 0 and all("nested" in reason for reason in reasons(tmp_path))


TEMPLATE = "{{ messages[0].content }}"
DEEP_TALK = '[{"role": "user", "content": ' + "[" * 100_000 + "1" + "]" * 100_000 + "}]"


def test_a_conversation_of_great_depth_is_refused(unpack, tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    (tmp_path / "talk.json").write_text(DEEP_TALK)
    assert "messages is no JSON list" in unpack.fails(
        1, "predict", "--messages", tmp_path / "talk.json", "--chat-template", tmp_path / "t.jinja"
    )
    # As the text of a prompt it is a text.
    assert unpack(
        "predict", DEEP_TALK[:100_000], "--chat-template", tmp_path / "t.jinja"
    ).returncode in (0, 1)
    line = {"prompt": DEEP_TALK, "chat_template": TEMPLATE}
    (tmp_path / "p.jsonl").write_text(
        json.dumps(line) + "\n" + json.dumps({**line, "prompt": "Hi", "chat": True}) + "\n"
    )
    assert (
        unpack(
            "batch", tmp_path / "p.jsonl", "--out", tmp_path / "out", "--top-paths", "1"
        ).returncode
        == 0
    )
    (tmp_path / "documents.json").write_text(
        '[{"text": "A drink.", "more": ' + "[" * 100_000 + "]" * 100_000 + "}]"
    )
    assert "nested" in unpack.fails(
        1, "sources", "Who?", "--documents", tmp_path / "documents.json"
    )


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.parametrize("option", ["--messages", "--chat-template", "--documents", "--template"])
def test_a_file_that_goes_with_a_prompt_is_a_plain_file(unpack, tmp_path, kind, option):
    strange = tmp_path / "strange"
    if kind == "fifo":
        os.mkfifo(strange)
    elif kind == "device":
        os.symlink("/dev/zero", strange)
    else:
        strange.mkdir()
    (tmp_path / "d.txt").write_text("A drink.")
    command = {
        "--messages": ["predict"],
        "--chat-template": ["predict", "Hi"],
        "--documents": ["sources", "Who?"],
        "--template": ["sources", "Who?", "--documents", tmp_path / "d.txt"],
    }[option]
    assert "strange" in unpack.fails(1, *command, option, strange)


def test_a_line_without_end_is_an_error(unpack):
    assert "bytes" in unpack.fails(1, "tokenize", "--jsonl", "/dev/zero")
    assert "folder" in unpack.fails(1, "tokenize", "--jsonl", ROOT)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("behind", [b"\0", b"\0more", b" {}", b"x"])
def test_bytes_behind_the_value_are_an_error_in_every_file(unpack, tmp_path, name, behind):
    folder = checkpoints.copy(tmp_path)
    source = folder / name if (folder / name).exists() else ROOT / "models" / "pocket-gpt2" / name
    data = source.read_bytes()
    (folder / name).write_bytes(data.rstrip() + behind)
    assert name in unpack.fails(1, "predict", "--model", folder, *IDS)


@pytest.mark.parametrize(
    "position", [18446744073709551614, 18446744073709551615, 2**63, -(2**63) - 1, 2**31]
)
def test_a_position_past_32_bits_is_not_taken_for_another(unpack, tmp_path, position):
    batch(unpack, tmp_path, f'{{"ids": [1, 2, 3], "position": {position}}}\n')
    assert "position takes a whole number" in reasons(tmp_path)[0]


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--weights", "1e300,0,0"],
        ["--weights", "0,0,0"],
        ["--mlp-weights", "0,0"],
        ["--beta", "1e300"],
        ["--top-paths", "100000000"],
        ["--weights", "1e7,1,1"],
    ],
)
def test_options_have_upper_bounds(unpack, options):
    line = unpack.fails(2, "trace", MARY, *options)
    assert options[0][2:].replace("-", "_") in line and "--" not in line


@pytest.mark.parametrize("case", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("scale", [1e20, 1e38])
def test_weights_that_overflow_are_an_error_that_names_layer_and_quantity(
    unpack, tmp_path, case, scale
):
    folder = checkpoints.copy(tmp_path, case)
    path = folder / "model.safetensors"
    header, body = checkpoints.read(path)
    body = bytearray(body)
    for name, entry in header.items():
        if name == "__metadata__" or len(entry["shape"]) < 2 or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        for at in range(begin, end, 4):
            (x,) = struct.unpack_from("<f", body, at)
            struct.pack_into("<f", body, at, max(-3e38, min(3e38, x * scale)))
    checkpoints.write(path, header, bytes(body))
    for command in ("trace", "predict", "generate"):
        line = unpack.fails(1, command, "--model", folder, *IDS)
        assert "finite" in line and re.search(r"layer \d|credit|logit|embedding", line), line


def test_a_small_threshold_costs_no_more_than_what_is_listed(unpack):
    with processor_time() as took:
        listed = unpack.json("trace", MARY, "--tau", "1e-12", "--top-paths", "3")
    assert (
        took.seconds < 20
        and len(listed["paths"]) == 3
        and any("above the threshold" in w for w in listed["warnings"])
    )
    plain = unpack.json("trace", MARY, "--top-paths", "3")
    assert [p["text"] for p in listed["paths"]] == [p["text"] for p in plain["paths"]]


@pytest.mark.parametrize("rule", ["named", "entry"])
def test_a_threshold_that_lets_everything_through_has_a_stated_limit(unpack, rule):
    result = unpack("trace", MARY, "--tau", "1e-12", "--tau-rule", rule, timeout=600)
    assert (
        result.returncode == 1 and "tau" in result.stderr and re.search(r"\d{6,}", result.stderr)
    ), result.stderr


def test_filters_that_cannot_match_say_so_everywhere(unpack, tmp_path):
    for filters, word in ((("--from", "99"), "position 99"), (("--branch", "G"), "branch G")):
        answer = unpack.json("trace", MARY, *filters)
        assert not answer["paths"] and any(word in line for line in answer["warnings"])
    batch(unpack, tmp_path, '{"ids": [1, 2], "from": 99}\n{"ids": [1, 2], "branch": "G"}\n')
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    ]
    assert [
        bool(re.search("position 99|branch G", " ".join(line["warnings"]))) for line in lines
    ] == [True, True]


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["trace", MARY, "--root", "\x1b[31mred\n"],
        ["trace", MARY, "--target", "x\ny z" * 20000],
        ["\x1b[2Jnonsense\n"],
        ["predict", MARY, "--model", "a\nb\x1b[0m"],
        ["trace", MARY, "--branch", "\u202eK"],
        ["trace", MARY, "--tau", "9" * 50000],
        ["trace", MARY, "--\n", "x"],
        ["predict", *IDS, *TINY, "--json", "/nowhere\n/x"],
        ["trace", "extra", "\x1b", "\n"],
    ],
)
def test_messages_echo_nothing_raw(unpack, args):
    r = subprocess.run([PROGRAM, *args], capture_output=True, stdin=subprocess.DEVNULL)
    assert r.returncode in (1, 2) and not judge_message(r.stderr), r.stderr[:600]


def test_invalid_utf8_is_escaped(unpack):
    r = subprocess.run(
        [os.fsencode(PROGRAM), b"trace", b"a", b"--root", b"\xff\xfe"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert r.returncode == 1 and rb"\xff" in r.stderr and not judge_message(r.stderr), r.stderr


def test_an_unknown_command_is_repeated(unpack):
    assert "nonsense" in unpack.fails(2, "nonsense")


def test_messages_name_fields_as_every_front_end_does(unpack, tmp_path):
    line = unpack.fails(2, "trace", MARY, "--tau", "0")
    batch(unpack, tmp_path, '{"ids": [1], "tau": "0"}\n')
    assert (
        line == "unpack: " + reasons(tmp_path)[0] == 'unpack: tau takes a number above 0, not "0"'
    )


def test_the_end_of_the_text_is_not_a_complaint_about_a_number(unpack, tmp_path):
    line = unpack("attribute", ".", "--generate", "5")
    assert line.returncode == 0 or "number" not in line.stderr
    for command, option in ((["intervene", MARY], "--zero"), (["bench"], "--tokens")):
        assert "token id" not in unpack.fails(2, *command, option, "x")


def test_generate_prints_nothing_before_it_refuses(unpack):
    unpack.fails(1, "generate", " word" * 600)  # looks at stdout as well


@pytest.mark.parametrize(
    "args",
    [
        ["serve", "--cache", "-1"],
        ["serve", "--time-limit", "0"],
        ["serve", "--token", "a b"],
        ["generate", "x", "--temperature", "1e-300"],
    ],
)
def test_values_out_of_range_are_refused(unpack, args):
    unpack.fails(2, *args)


def test_outputs_are_tried_before_the_work(unpack, tmp_path):
    with processor_time() as took:
        assert "nowhere" in unpack.fails(
            1, "bench", "--shape", "gpt2-small", "--json", tmp_path / "nowhere" / "x.json"
        )
    assert took.seconds < 5


# safetensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["hole", "front", "trailing", "tabs", "lead"])
def test_safetensors_rules_are_those_of_the_formats_own_library(unpack, tmp_path, change):
    folder = checkpoints.copy(tmp_path)
    path = folder / "model.safetensors"
    header, body = checkpoints.read(path)
    text = json.dumps(header).encode()
    if change in ("hole", "front"):
        first = (
            min((e["data_offsets"][0] for n, e in header.items() if n != "__metadata__"))
            if change == "front"
            else 64
        )
        for name, entry in header.items():
            if name != "__metadata__" and entry["data_offsets"][0] >= first:
                entry["data_offsets"] = [x + 4 for x in entry["data_offsets"]]
        at = (
            0
            if change == "front"
            else min(
                e["data_offsets"][0]
                for n, e in header.items()
                if n != "__metadata__" and e["data_offsets"][0] >= first + 4
            )
            - 4
        )
        text, body = json.dumps(header).encode(), body[:at] + b"\0" * 4 + body[at:]
    elif change == "trailing":
        body += b"\0"
    elif change == "tabs":
        text += b"\t"
    else:
        text = b" " + text
    checkpoints.write(path, text, body)
    assert "model.safetensors" in unpack.fails(1, "predict", "--model", folder, *IDS)
    if change == "tabs":
        checkpoints.write(path, text[:-1] + b"   ", body)
        unpack.ok("predict", "--model", folder, *IDS)


# Everything else ----------------------------------------------------------------------------------


def test_the_attacker_knows_every_command_option_and_endpoint(unpack):
    """What is added to the program must not stay untried."""
    commands = attack.SURFACES["command line"]().known()
    listed = set(re.findall(r"^  ([a-z]+) {2,}", unpack.ok("--help").split("\nCommands:")[1], re.M))
    assert listed == set(commands) - {next(iter(commands))} | {"serve", "bench"}
    assert (
        "--group-by" in dict(commands["trace"]) and "turn" in dict(commands["trace"])["--group-by"]
    )
    documented = set(re.findall(r"/api/([a-z]+)", (ROOT / "docs" / "api.md").read_text())) - {
        "models",
        "queue",
    }
    assert documented <= set(attack.SURFACES["requests"].ENDPOINTS)
    from hostile.material import FIELDS

    batch_fields = re.findall(
        r'^      \{"([a-z_]+)",', (ROOT / "src" / "question" / "codec.cc").read_text(), re.M
    )
    assert len(batch_fields) > 30 and set(batch_fields) <= set(FIELDS)


def test_the_attacker_finds_nothing(unpack):
    """tools/attack.py, a fixed seed, every surface in turn for half a minute."""
    tried, findings = attack.attack(
        list(attack.SURFACES), seed=26, seconds=float(os.environ.get("UNPACK_ATTACK", "25"))
    )
    assert tried > len(attack.SURFACES)
    assert not findings, [
        (name, turn, found.problem, found.detail, str(case)[:300])
        for name, turn, found, case in findings
    ]
