"""Parsing, exit statuses, where the prompt comes from, help and version."""
import json
import os
import pty
import signal
import subprocess
import time

import pytest
from conftest import GOLDEN, MARY, PROGRAM


def terminal():
    """A pseudo-terminal; a bare chroot has none."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminals here: {error}")


COMMANDS = [
    "trace", "predict", "tokenize", "interactions", "validate", "attribute", "generate", "models"
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(unpack, command):
    text = unpack.ok(command, "--help")
    assert "Example:" in text and f"unpack {command}" in text


def test_the_program_lists_its_commands(unpack):
    text = unpack.ok("--help")
    assert all(command in text for command in COMMANDS)


def test_the_version_names_build_kernels_and_devices(unpack):
    text = unpack.ok("--version")
    assert text.startswith("unpack ") and "kernels:" in text and "device: cpu" in text


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["no-such-command"],
        ["trace", "--no-such-option"],
        ["trace", "two", "prompts"],
        ["trace", MARY, "--ids", "1"],
        ["trace", MARY, "--target", " Mary", "--target-id", "3"],
        ["trace", MARY, "--versus", " Mary", "--versus-id", "3"],
        ["trace", MARY, "--versus", " Mary", "--raw-logit"],
        ["trace", MARY, "--versus-id", "3", "--raw-logit"],
        ["trace", MARY, "--position", "x"],
        ["trace", MARY, "--position", "1.5"],
        ["trace", MARY, "--position", "99999999999"],
        ["trace", MARY, "--position"],
        ["trace", MARY, "--beta", "-1"],
        ["trace", MARY, "--beta", "nan"],
        ["trace", MARY, "--beta", "much"],
        ["trace", MARY, "--beta", ""],
        ["trace", MARY, "--weights", "1,2"],
        ["trace", MARY, "--weights", "1,2,x"],
        ["trace", MARY, "--weights", "1,1,-1"],
        ["trace", MARY, "--mlp-weights", "1"],
        ["trace", MARY, "--dispatch", "other"],
        ["trace", MARY, "--mlp", "other"],
        ["trace", MARY, "--scores", "other"],
        ["trace", MARY, "--reroot", "other"],
        ["trace", MARY, "--branch", "X"],
        ["trace", MARY, "--sign", "0"],
        ["trace", MARY, "--tau", "0"],
        ["trace", MARY, "--tau", "-1"],
        ["trace", MARY, "--tau-rule", "x"],
        ["trace", MARY, "--top-paths", "-3"],
        ["trace", MARY, "--top-paths", "many"],
        ["trace", MARY, "--device", "tpu"],
        ["trace", MARY, "--threads", "0"],
        ["bench", "--prompts", "-1"],
        ["bench", "--tokens", "0"],
        ["trace", MARY, "--threads", "x"],
        ["trace", MARY, "--color", "blue"],
        ["trace", MARY, "--method", "other"],
        ["trace", MARY, "--graph", "paths.txt"],
        ["trace", MARY, "--json", "-", "--svg", "-"],
        ["trace", "--ids", "1,,2"],
        ["trace", "--ids", "one"],
        ["trace", "--ids", ""],
        ["predict", MARY, "--top", "0"],
        ["predict", MARY, "--top", "x"],
        ["interactions", MARY, "--query", "1", "--all"],
        ["attribute", MARY, "--continuation", " x", "--generate", "3"],
        ["attribute", MARY, "--generate", "0"],
        ["generate", MARY, "--max-tokens", "0"],
        ["generate", MARY, "--temperature", "-1"],
        ["generate", MARY, "--top-k", "0"],
        ["generate", MARY, "--seed", "x"],
        ["tokenize", "text", "--jsonl", "-"],
    ],
)
def test_a_bad_command_line_exits_with_2(unpack, args):
    unpack.fails(2, *args)


@pytest.mark.parametrize("command", ["trace", "predict", "interactions", "attribute", "generate"])
def test_no_prompt_at_all_exits_with_2(unpack, command):
    assert "prompt" in unpack.fails(2, command)  # stdin is empty


def test_no_prompt_on_a_terminal_exits_with_2_at_once():
    master, slave = terminal()
    result = subprocess.run(
        [PROGRAM, "trace"], stdin=slave, capture_output=True, text=True, timeout=20
    )
    os.close(master), os.close(slave)
    assert result.returncode == 2 and "no prompt" in result.stderr


def test_a_prompt_may_come_through_a_pipe(unpack):
    want = unpack.json("predict", MARY)
    assert unpack.json("predict", stdin=MARY) == want
    assert unpack.json("predict", stdin=MARY + "\n") == want  # the line end is not part of it
    assert unpack.json("predict", "-", stdin=MARY) == want


def test_values_may_start_with_a_dash(unpack):
    length = len(unpack.json("tokenize", MARY, "--bos")["tokens"])
    result = unpack.json("trace", MARY, "--position", "-2", "--from", "-3", "--root", "MLP3@-2")
    assert result["target"]["position"] == length - 2
    assert result["root"] == f"MLP3@{length - 2}"
    assert all(path["nodes"][0].endswith(f"@{length - 3}") for path in result["paths"])


def test_a_prompt_may_look_like_a_command_or_an_option(unpack):
    for text in ("models", "trace", "-5 degrees"):
        assert "".join(t["text"] for t in unpack.json("tokenize", text)["tokens"]) == text
    text = "--not-an-option"
    assert json.loads(unpack.ok("tokenize", "--json", "-", "--", text)) == unpack.json(
        "tokenize", stdin=text
    )


@pytest.mark.parametrize("spelling", ["A3.H2@5", "attn_3_head_2@5", "L3H2@5", "3.2@5", "A3.H2@-9"])
def test_nodes_have_several_spellings(unpack, spelling):
    length = len(unpack.json("tokenize", MARY, "--bos")["tokens"])
    spelling = spelling.replace("-9", str(5 - length))
    assert unpack.json("trace", MARY, "--root", spelling, "--top-paths", "1")["root"] == "A3.H2@5"


def test_colours_only_where_asked_for(unpack):
    assert "\033[" not in unpack.ok("trace", MARY)
    assert "\033[" in unpack.ok("trace", MARY, "--color", "always")
    assert "\033[" not in unpack.ok("trace", MARY, "--color", "never")


def on_a_terminal(args, env):
    master, slave = terminal()
    process = subprocess.Popen(
        [PROGRAM, *args],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
    )
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    assert process.wait() == 0
    os.close(master)
    return text


def test_colours_on_a_terminal_unless_no_color_is_set(unpack):
    assert b"\033[" in on_a_terminal(["trace", MARY], {"NO_COLOR": ""})
    assert b"\033[" not in on_a_terminal(["trace", MARY], {"NO_COLOR": "1"})


def test_an_interrupt_ends_the_work_and_writes_nothing(unpack, tmp_path):
    out = tmp_path / "out.json"
    ids = ",".join(str(i % 8000 + 1) for i in range(500))
    process = subprocess.Popen(
        [PROGRAM, "trace", "--ids", ids, "--json", out],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in error
    assert os.listdir(tmp_path) == []


def test_results_do_not_depend_on_the_number_of_threads(unpack):
    one, two = (unpack.json("trace", MARY, "--threads", n) for n in ("1", "2"))
    assert one["program"]["threads"] == 1 and two["program"]["threads"] == 2
    scale = max(map(abs, one["token_credit"]))
    assert all(abs(a - b) <= 1e-6 * scale for a, b in zip(one["token_credit"], two["token_credit"]))


def test_models_lists_what_is_bundled_and_what_is_given(unpack):
    text = unpack.ok("models", GOLDEN)
    for name in ("pocket-gpt2", "pocket-neox", "pocket-llama", "tiny-qwen3"):
        assert name in text
    assert "Supported families" in text and "qwen3" in text
