"""Whatever is wrong with the input: exit 1 and one line that says what."""
import json
import os
import shutil
import subprocess

import checkpoints
import pytest
from conftest import GOLDEN, MARY, MODELS, PROGRAM

IDS = ["--ids", "1,2,3"]


def test_a_truncated_file_is_named(unpack, tmp_path):
    folder = checkpoints.copy(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in unpack.fails(1, "predict", "--model", folder, *IDS)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x05", b"\xff" * 8 + b"{}", b"\x00" * 64, b"\x04\x00\x00\x00\x00\x00\x00\x00nope"],
)
def test_a_file_that_is_no_safetensors_is_named(unpack, tmp_path, content):
    folder = checkpoints.copy(tmp_path)
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in unpack.fails(1, "predict", "--model", folder, *IDS)


def test_a_wrong_shape_is_named_with_what_was_expected(unpack, tmp_path):
    def swap(header):
        name = next(n for n in header if n.endswith("mlp.c_fc.weight"))
        header[name]["shape"].reverse()

    line = unpack.fails(
        1, "predict", "--model", checkpoints.edit_header(checkpoints.copy(tmp_path), swap), *IDS
    )
    assert "mlp.c_fc.weight" in line and "expected" in line


def test_a_missing_tensor_is_named(unpack, tmp_path):
    def rename(header):
        name = next(n for n in header if n.endswith("ln_f.weight"))
        header["other"] = header.pop(name)

    assert "ln_f.weight" in unpack.fails(
        1, "predict", "--model", checkpoints.edit_header(checkpoints.copy(tmp_path), rename), *IDS
    )


def test_overlapping_tensors_are_refused(unpack, tmp_path):
    def overlap(header):
        names = [n for n in header if n.endswith("mlp.c_fc.bias")]
        header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]

    assert "model.safetensors" in unpack.fails(
        1, "predict", "--model", checkpoints.edit_header(checkpoints.copy(tmp_path), overlap), *IDS
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(unpack, tmp_path, value):
    folder = checkpoints.copy(tmp_path)
    name = checkpoints.poison(folder, value)
    assert name in unpack.fails(1, "predict", "--model", folder, *IDS)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{\"model_type\": 3}", "{\"model_type\": \"gpt2\"}", "\x00\xff"]
)
def test_a_bad_config_is_named(unpack, tmp_path, text):
    folder = checkpoints.copy(tmp_path)
    (folder / "config.json").write_text(text)
    assert "config.json" in unpack.fails(1, "predict", "--model", folder, *IDS)


def test_an_unknown_family_lists_the_known_ones(unpack, tmp_path):
    line = unpack.fails(
        1,
        "predict",
        "--model",
        checkpoints.edit_config(checkpoints.copy(tmp_path), model_type="no-such-family"),
        *IDS,
    )
    assert "no-such-family" in line and "gpt_neox" in line


def test_a_bin_file_that_is_none_says_so(unpack, tmp_path):
    folder = checkpoints.copy(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    line = unpack.fails(1, "predict", "--model", folder, *IDS)
    assert "pytorch_model.bin" in line and "zip" in line


def test_a_model_that_is_not_there_says_where_it_looked(unpack):
    line = unpack.fails(1, "predict", "--model", "no-such-model", MARY)
    assert "no-such-model" in line and "pocket-gpt2" in line


@pytest.mark.parametrize("text", ["{", "{}", "{\"model\": {\"type\": \"Unigram\"}}"])
def test_a_bad_tokenizer_file_is_named(unpack, tmp_path, text):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        os.symlink(MODELS / "pocket-gpt2" / name, folder / name)
    (folder / "tokenizer.json").write_text(text)
    assert "tokenizer.json" in unpack.fails(1, "predict", "--model", folder, MARY)


def test_a_prompt_for_a_model_without_a_tokenizer_points_to_ids(unpack):
    assert "as ids" in unpack.fails(1, "predict", "--model", GOLDEN / "tiny-gpt2", "Mary")


def test_a_prompt_that_is_not_utf8_is_refused(unpack):
    line = unpack.fails(1, "predict", b"caf\xe9".decode(errors="surrogateescape"))
    assert "UTF-8" in line


def test_a_prompt_past_the_context_says_how_long_it_may_be(unpack):
    assert "512" in unpack.fails(1, "predict", " word" * 600)
    assert "512" in unpack.fails(1, "trace", " word" * 600)


@pytest.mark.parametrize("ids", ["8192", "-1", "0,5,99999"])
def test_ids_outside_the_vocabulary_are_refused(unpack, ids):
    for command in ("predict", "trace", "interactions", "generate", "attribute", "validate"):
        assert "8191" in unpack.fails(1, command, "--ids", ids)


@pytest.mark.parametrize("option", ["--target-id", "--versus-id"])
def test_target_ids_outside_the_vocabulary_are_refused(unpack, option):
    assert "8192" in unpack.fails(1, "trace", MARY, option, "8192")


def test_a_target_of_several_tokens_shows_how_it_splits(unpack):
    line = unpack.fails(1, "trace", MARY, "--target", " Constantinople")
    assert "Constantinople" in line and "token" in line and line.count('"') + line.count("'") >= 4


@pytest.mark.parametrize(
    "root",
    [
        "A0.H8@0", "A8.H0@0", "MLP8@0", "A0.H0@99", "MLP0@-99", "A0.H0", "nonsense@0", "emb@0",
        "A0.H0@x"
    ],
)
def test_a_root_that_is_not_there_is_refused(unpack, root):
    assert unpack.fails(1, "trace", MARY, "--root", root)


@pytest.mark.parametrize(
    "options", [["--position", "99"], ["--position", "-99"], ["--through", "A99.H0"]]
)
def test_a_place_that_is_not_there_is_refused(unpack, options):
    assert unpack.fails(1, "trace", MARY, *options)


def test_a_query_outside_the_prompt_is_refused(unpack):
    assert unpack.fails(1, "interactions", MARY, "--query", "99")


@pytest.mark.parametrize("option", ["--json", "--html", "--svg", "--tikz"])
def test_an_output_folder_that_is_not_there_is_named(unpack, tmp_path, option):
    assert "missing" in unpack.fails(1, "trace", MARY, option, tmp_path / "missing" / "out")


def test_a_full_disk_is_reported(unpack):
    with open("/dev/full", "w") as full:
        for command in (
            ["predict", MARY],
            ["trace", MARY, "--json", "-"],
            ["--version"],
            ["trace", "--help"],
            ["models"],
            ["generate", MARY],
        ):
            r = subprocess.run(
                [PROGRAM, *command],
                stdout=full,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            assert (
                r.returncode == 1 and "No space left" in r.stderr and r.stderr.count("\n") == 1
            ), (command, r)


def test_a_closed_pipe_is_reported_and_not_a_crash(unpack):
    read, write = os.pipe()
    os.close(read)
    r = subprocess.run(
        [PROGRAM, "trace", MARY, "--json", "-"],
        stdout=write,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    os.close(write)
    assert r.returncode == 1 and "stdout" in r.stderr


@pytest.mark.parametrize("lines", ["\"fine\"\nnot json\n", "3\n", "[\"a\"]\n", "\"\\ud800\"\n"])
def test_jsonl_lines_that_are_no_strings_are_numbered(unpack, lines):
    result = unpack("tokenize", "--jsonl", "-", stdin=lines)
    assert result.returncode == 1 and f"line {lines.count(chr(10))}" in result.stderr


def test_a_missing_jsonl_file_is_named(unpack, tmp_path):
    assert "none.jsonl" in unpack.fails(1, "tokenize", "--jsonl", tmp_path / "none.jsonl")


def test_a_failed_write_leaves_nothing_behind(unpack, tmp_path):
    shutil.copy(MODELS / "pocket-gpt2" / "config.json", tmp_path / "out")  # some old content
    before = (tmp_path / "out").read_bytes()
    unpack.fails(1, "trace", MARY, "--root", "A0.H8@0", "--json", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == before and os.listdir(tmp_path) == ["out"]
    assert json.loads(before)
