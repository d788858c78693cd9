"""Nothing that comes in from outside ends in a crash, a hang or an internal error: what once did, and the attacker over every surface."""
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import checkpoints
import pytest
from conftest import GOLDEN, MARY, PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "tools"))
import attack
from hostile.batches import sealed
from hostile.rules import judge_message

TINY = ["--model", str(GOLDEN / "tiny-gpt2")]
IDS = ["--ids", "1,2,3"]


class processor_time:
    """Seconds that the programs started inside have computed: a busy machine makes them wait, which is not what is measured."""

    def __enter__(self):
        self.before = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self

    def __exit__(self, *_):
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = after.ru_utime + after.ru_stime - self.before.ru_utime - self.before.ru_stime


def batch(unpack, place, text, *options, name="p.jsonl"):
    (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return unpack("batch", place / name, *TINY, "--out", place / "out", "--top-paths", "1", *options)


def reasons(place):
    return [json.loads(line)["reason"] for line in (place / "out" / "errors.jsonl").read_text().splitlines()]


# JSON -----------------------------------------------------------------------------------------------------------------


def test_a_header_of_many_tensors_is_read_in_linear_time(unpack, tmp_path):
    header = {f"t{i}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(40_000)}
    folder = checkpoints.copy(tmp_path)
    checkpoints.write(folder / "model.safetensors", header, b"\0" * 160_000)
    with processor_time() as took:
        unpack.fails(1, "predict", "--model", folder, *IDS)
    assert took.seconds < 20


@pytest.mark.parametrize("field", ["tau", "unknown", "beta"])
@pytest.mark.parametrize("value", ["1e400", "9" * 400])
def test_a_number_that_no_double_holds_is_a_bad_line_and_not_the_end(unpack, tmp_path, field, value):
    result = batch(unpack, tmp_path, f'{{"ids": [1], "{field}": {value}}}\n{{"ids": [2]}}\n')
    if field == "unknown" and value != "1e400":
        assert result.returncode == 0
        return
    assert result.returncode == 0 and len(reasons(tmp_path)) == 1, result.stderr
    assert batch(unpack, tmp_path, f'{{"ids": [1], "{field}": {value}}}\n{{"ids": [2]}}\n').returncode == 0  # it resumes


def test_a_batch_that_fails_wholly_says_so_in_one_line(unpack, tmp_path):
    (tmp_path / "p.csv").write_text("ids,note\nx,1\ny,2\n")
    result = unpack("batch", tmp_path / "p.csv", *TINY, "--out", tmp_path / "o")
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result
    assert "2 bad lines" in result.stderr and "note" in result.stderr, result.stderr


def test_a_value_of_great_depth_is_a_bad_line(unpack, tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    result = batch(unpack, tmp_path, f'{{"ids": [1], "tau": {deep}}}\n{{"id": {deep}}}\n{{"ids": [2]}}\n')
    assert result.returncode == 0 and all("nested" in reason for reason in reasons(tmp_path))


TEMPLATE = "{{ messages[0].content }}"
DEEP_TALK = '[{"role": "user", "content": ' + "[" * 100_000 + "1" + "]" * 100_000 + "}]"


def test_a_conversation_of_great_depth_is_refused(unpack, tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    (tmp_path / "talk.json").write_text(DEEP_TALK)
    assert "messages is no JSON list" in unpack.fails(1, "predict", "--messages", tmp_path / "talk.json", "--chat-template", tmp_path / "t.jinja")
    # As the text of a prompt it is a text.
    assert unpack("predict", DEEP_TALK[:100_000], "--chat-template", tmp_path / "t.jinja").returncode in (0, 1)
    line = {"prompt": DEEP_TALK, "chat_template": TEMPLATE}
    (tmp_path / "p.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "prompt": "Hi", "chat": True}) + "\n")
    assert unpack("batch", tmp_path / "p.jsonl", "--out", tmp_path / "out", "--top-paths", "1").returncode == 0
    (tmp_path / "documents.json").write_text('[{"text": "A drink.", "more": ' + "[" * 100_000 + "]" * 100_000 + "}]")
    assert "nested" in unpack.fails(1, "sources", "Who?", "--documents", tmp_path / "documents.json")


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
    command = {"--messages": ["predict"], "--chat-template": ["predict", "Hi"], "--documents": ["sources", "Who?"], "--template": ["sources", "Who?", "--documents", tmp_path / "d.txt"]}[option]
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


@pytest.mark.parametrize("position", [18446744073709551614, 18446744073709551615, 2**63, -(2**63) - 1, 2**31])
def test_a_position_past_32_bits_is_not_taken_for_another(unpack, tmp_path, position):
    batch(unpack, tmp_path, f'{{"ids": [1, 2, 3], "position": {position}}}\n')
    assert "position takes a whole number" in reasons(tmp_path)[0]


# Files that the program wrote are foreign input when it reads them again ---------------------------------------------------


@pytest.fixture(scope="module")
def shards(unpack, tmp_path_factory):
    place = tmp_path_factory.mktemp("shards")
    (place / "p.jsonl").write_text("".join(json.dumps({"ids": [i + 1, 2]}) + "\n" for i in range(6)))
    for i in (1, 2):
        unpack.ok("batch", place / "p.jsonl", *TINY, "--out", place / f"s{i}", "--shard", f"{i}/2", "--arrays", "--top-paths", "1")
    return [{name: (place / f"s{i}" / name).read_bytes() for name in ("run.json", "results.jsonl", "errors.jsonl")} for i in (1, 2)]


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


@pytest.mark.parametrize("change", [
    lambda run: run.update(writers=3), lambda run: run.update(writers=10**9), lambda run: run.update(writers="x"), lambda run: run.update(writers=-1), lambda run: run.pop("writers"),
    lambda run: run.update(arrays=7), lambda run: run.pop("arrays"), lambda run: run.update(prompts=3), lambda run: run["prompts"].update(records="6"),
    lambda run: run["prompts"].update(records=10**12), lambda run: run.update(kind=[]), lambda run: run.pop("kind"), lambda run: run.update(kind="experiment"),
    lambda run: run.update(shard="2/2000000000"), lambda run: run.update(shard="2/0"), lambda run: run.update(shard=7),
])
def test_merge_does_not_trust_run_json(unpack, shards, tmp_path, change):
    merge(unpack, tmp_path, changed_runs(shards, change))


def with_line(shards, at, change):
    lines = shards[0]["results.jsonl"].splitlines()
    record = json.loads(lines[at])
    del record["crc32"]
    change(record)
    lines[at] = sealed(json.dumps(record, separators=(",", ":")).encode())
    return [{**shards[0], "results.jsonl": b"\n".join(lines) + b"\n"}, shards[1]]


@pytest.mark.parametrize("change", [
    lambda r: r["token_credit"].__setitem__(0, None), lambda r: r["node_credit"]["emb"].__setitem__(1, None), lambda r: r["node_credit"]["emb"].append(1.0),
    lambda r: r["node_credit"].pop("emb"), lambda r: r.pop("target"), lambda r: r.update(node_credit=3), lambda r: r.pop("token_credit"), lambda r: r.update(index=-1),
    lambda r: r.update(index="0"), lambda r: r.pop("index"), lambda r: r.update(tokens=[]), lambda r: r.update(conservation={}),
])
def test_merge_does_not_trust_records_with_a_good_checksum(unpack, shards, tmp_path, change):
    merge(unpack, tmp_path, with_line(shards, 1, change))


def test_swapped_and_foreign_lines_are_found(unpack, shards, tmp_path):
    lines = shards[0]["results.jsonl"].splitlines(keepends=True)
    assert "s0" in merge(unpack, tmp_path / "a", [{**shards[0], "results.jsonl": b"".join([lines[1], lines[0], *lines[2:]])}, shards[1]])
    assert "s1" in merge(unpack, tmp_path / "b", [shards[0], {**shards[1], "results.jsonl": shards[1]["results.jsonl"] + lines[0]}])
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
    assert result.returncode == 1 and "line 2 is damaged" in result.stderr and "head -n 1" in result.stderr
    assert results.read_bytes() == damaged
    results.write_bytes(lines[0])  # as it says
    assert batch(unpack, tmp_path, text).returncode == 0 and results.read_bytes() == good


@pytest.mark.parametrize("name", ["summary.json", "index.npy", "token_credit.npy"])
def test_batch_overwrites_no_files_of_others(unpack, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    result = batch(unpack, tmp_path, '{"ids": [1]}\n', "--arrays")
    assert result.returncode == 1 and name in result.stderr
    assert sorted(os.listdir(tmp_path / "out")) == [name] and (tmp_path / "out" / name).read_text() == "mine"


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


# Threads, memory, signals ------------------------------------------------------------------------------------------------


def test_a_thread_that_cannot_be_started_is_one_line(unpack):
    def few():
        os.setuid(65534) if os.getuid() == 0 else None
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    for command in (["predict", *IDS, *TINY, "--threads", "8"], ["serve", "--port", "0"]):
        r = subprocess.run([PROGRAM, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=few, timeout=60)
        if os.getuid() == 0 and r.returncode == 0:
            pytest.skip("this user may start threads without a limit")
        assert r.returncode == 1 and r.stderr.count("\n") == 1 and "thread" in r.stderr, r


def test_a_server_that_cannot_start_its_threads_gives_no_address(unpack):
    for processes in range(1, 10):
        def few():
            os.setuid(65534) if os.getuid() == 0 else None
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))

        server = subprocess.Popen([PROGRAM, "serve", "--port", "0"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=few)
        first = server.stderr.readline()
        if "http://" in first:
            time.sleep(0.3)
            assert server.poll() is None, first + server.stderr.read()
            server.terminate()
        rest = server.communicate(timeout=30)[1]
        assert "http://" in first or (server.returncode == 1 and "thread" in first and not rest), first + rest
        if "http://" in first:
            break


def test_little_memory_is_one_line(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"ids": [1, 2, 3]}\n' * 6)
    traced = [(megabytes << 20, ["trace", MARY]) for megabytes in (40, *range(80, 180, 5), 240)]
    # Small steps where the libraries just fit: the heap may grow there where nothing can be mapped.
    batches = [(kilobytes << 10, ["batch", tmp_path / "p.jsonl", *TINY, "--out", tmp_path / str(kilobytes)]) for kilobytes in range(100_000, 120_000, 500)]
    for limit, command in traced + batches:
        r = subprocess.run([PROGRAM, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        loader = r.returncode == 127 and "shared libraries" in r.stderr  # not even the program could be loaded
        assert loader or r.returncode in (0, 1), (limit >> 10, r.returncode, r.stderr[-300:])
        assert loader or r.returncode == 0 or r.stderr.count("\n") == 1, r.stderr


def test_a_weight_file_that_is_cut_short_while_it_is_mapped(unpack, tmp_path):
    """Truncated between the reading of its header and that of its values, again and again until it falls into that moment."""
    folder = checkpoints.copy(tmp_path)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    seen = set()
    for wait in (0, 0.005, 0.01, 0.02, 0.04):
        file.write_bytes(data)
        process = subprocess.Popen([PROGRAM, "generate", "--ids", "1,2,3", "--max-tokens", "200", "--model", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        time.sleep(wait)
        os.truncate(file, 4096)
        _, error = process.communicate(timeout=60)
        assert process.returncode in (0, 1), (process.returncode, error)
        assert process.returncode == 0 or error.count("\n") == 1, error
        seen.add(process.returncode)
    file.write_bytes(data)
    assert unpack.ok("predict", *IDS, "--model", folder, "--no-mmap", "--json", "-") == unpack.ok("predict", *IDS, "--model", folder, "--json", "-")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_a_process_that_waits_for_input(number):
    process = subprocess.Popen([PROGRAM, "trace", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(number)
    assert process.wait(10) == 128 + number and time.monotonic() - begin < 5
    process.stdin.close(), process.stderr.close()


# Numbers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--weights", "1e300,0,0"], ["--weights", "0,0,0"], ["--mlp-weights", "0,0"], ["--beta", "1e300"], ["--top-paths", "100000000"], ["--weights", "1e7,1,1"]])
def test_options_have_upper_bounds(unpack, options):
    line = unpack.fails(2, "trace", MARY, *options)
    assert options[0][2:].replace("-", "_") in line and "--" not in line


@pytest.mark.parametrize("case", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("scale", [1e20, 1e38])
def test_weights_that_overflow_are_an_error_that_names_layer_and_quantity(unpack, tmp_path, case, scale):
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
    assert took.seconds < 20 and len(listed["paths"]) == 3 and any("above the threshold" in w for w in listed["warnings"])
    plain = unpack.json("trace", MARY, "--top-paths", "3")
    assert [p["text"] for p in listed["paths"]] == [p["text"] for p in plain["paths"]]


@pytest.mark.parametrize("rule", ["named", "entry"])
def test_a_threshold_that_lets_everything_through_has_a_stated_limit(unpack, rule):
    result = unpack("trace", MARY, "--tau", "1e-12", "--tau-rule", rule, timeout=600)
    assert result.returncode == 1 and "tau" in result.stderr and re.search(r"\d{6,}", result.stderr), result.stderr


def test_filters_that_cannot_match_say_so_everywhere(unpack, tmp_path):
    for filters, word in ((("--from", "99"), "position 99"), (("--branch", "G"), "branch G")):
        answer = unpack.json("trace", MARY, *filters)
        assert not answer["paths"] and any(word in line for line in answer["warnings"])
    batch(unpack, tmp_path, '{"ids": [1, 2], "from": 99}\n{"ids": [1, 2], "branch": "G"}\n')
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [bool(re.search("position 99|branch G", " ".join(line["warnings"]))) for line in lines] == [True, True]


# Paths ------------------------------------------------------------------------------------------------------------------------


def test_strange_paths_are_named_and_never_an_internal_error(unpack, tmp_path):
    os.symlink("loop", tmp_path / "loop")
    for name in (tmp_path / "loop", tmp_path / ("x" * 300), "/" + "y" * 5000):
        for command in (["predict", "--model", name, *IDS], ["tokenize", "a", "--model", name], ["batch", name, "--out", tmp_path / "o"],
                        ["batch", ROOT / "README.md", "--out", name, "--format", "text"], ["predict", *IDS, *TINY, "--json", name], ["merge", name], ["models", name]):
            line = unpack.fails(1, *command)
            assert "internal" not in line, (command, line)


def test_a_folder_without_permission_is_not_one_without_a_config(unpack, tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs another user")
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    os.chmod(folder, 0o700)
    for parent in [tmp_path, *tmp_path.parents][:-1]:
        os.chmod(parent, os.stat(parent).st_mode | 0o055)
    r = subprocess.run([PROGRAM, "predict", "--model", str(folder), *IDS], capture_output=True, text=True, user=65534, cwd="/")
    if "Permission denied" not in r.stderr and not os.access(PROGRAM, os.X_OK):
        pytest.skip("the program cannot be started by another user")
    assert r.returncode == 1 and "Permission denied" in r.stderr and "no config.json" not in r.stderr, r


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_pipes_and_devices_are_no_model_files(unpack, tmp_path, name, kind):
    folder = checkpoints.copy(tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name) if kind == "fifo" else os.symlink("/dev/zero", folder / name)
    assert name in unpack.fails(1, "predict", "--model", folder, *IDS, timeout=120)


def test_a_pipe_of_prompts_is_refused_with_the_way_out(unpack, tmp_path):
    os.mkfifo(tmp_path / "p.jsonl")
    assert "pipe" in unpack.fails(1, "batch", tmp_path / "p.jsonl", "--out", tmp_path / "o", timeout=120)


def test_a_file_size_limit_leaves_nothing_behind(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"ids": [1, 2]}\n' * 3)

    def small():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    for command in (["trace", *IDS, *TINY, "--json", tmp_path / "out.json"], ["batch", tmp_path / "p.jsonl", *TINY, "--out", tmp_path / "o", "--arrays"]):
        r = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=small)
        assert r.returncode == 1 and r.stderr.count("\n") == 1, r
    assert not [p for p in tmp_path.rglob("*.part*")] and not (tmp_path / "out.json").exists()


def test_a_prompt_file_that_shrinks_is_said_so(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"ids": [i % 50 + 1] * 3}) + "\n" for i in range(4000)))
    process = subprocess.Popen([PROGRAM, "batch", str(tmp_path / "p.jsonl"), *TINY, "--out", str(tmp_path / "o"), "--top-paths", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "o" / "results.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    os.truncate(tmp_path / "p.jsonl", 2000)
    _, error = process.communicate(timeout=120)
    assert process.returncode in (0, 1) and "internal" not in error
    if process.returncode == 1:
        assert "changed while it was read" in error


# Messages ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [
    ["trace", MARY, "--root", "\x1b[31mred\n"], ["trace", MARY, "--target", "x\ny z" * 20000], ["\x1b[2Jnonsense\n"], ["predict", MARY, "--model", "a\nb\x1b[0m"], ["trace", MARY, "--branch", "\u202eK"],
    ["trace", MARY, "--tau", "9" * 50000], ["trace", MARY, "--\n", "x"], ["predict", *IDS, *TINY, "--json", "/nowhere\n/x"], ["trace", "extra", "\x1b", "\n"],
])
def test_messages_echo_nothing_raw(unpack, args):
    r = subprocess.run([PROGRAM, *args], capture_output=True, stdin=subprocess.DEVNULL)
    assert r.returncode in (1, 2) and not judge_message(r.stderr), r.stderr[:600]


def test_invalid_utf8_is_escaped(unpack):
    r = subprocess.run([os.fsencode(PROGRAM), b"trace", b"a", b"--root", b"\xff\xfe"], capture_output=True, stdin=subprocess.DEVNULL)
    assert r.returncode == 1 and rb"\xff" in r.stderr and not judge_message(r.stderr), r.stderr


def test_an_unknown_command_is_repeated(unpack):
    assert "nonsense" in unpack.fails(2, "nonsense")


def test_messages_name_fields_as_every_front_end_does(unpack, tmp_path):
    line = unpack.fails(2, "trace", MARY, "--tau", "0")
    batch(unpack, tmp_path, '{"ids": [1], "tau": "0"}\n')
    assert line == "unpack: " + reasons(tmp_path)[0] == 'unpack: tau takes a number above 0, not "0"'


def test_the_end_of_the_text_is_not_a_complaint_about_a_number(unpack, tmp_path):
    line = unpack("attribute", ".", "--generate", "5")
    assert line.returncode == 0 or "number" not in line.stderr
    for command, option in ((["intervene", MARY], "--zero"), (["bench"], "--tokens")):
        assert "token id" not in unpack.fails(2, *command, option, "x")


def test_generate_prints_nothing_before_it_refuses(unpack):
    unpack.fails(1, "generate", " word" * 600)  # looks at stdout as well


@pytest.mark.parametrize("args", [["serve", "--cache", "-1"], ["serve", "--time-limit", "0"], ["serve", "--token", "a b"], ["generate", "x", "--temperature", "1e-300"]])
def test_values_out_of_range_are_refused(unpack, args):
    unpack.fails(2, *args)


def test_outputs_are_tried_before_the_work(unpack, tmp_path):
    with processor_time() as took:
        assert "nowhere" in unpack.fails(1, "bench", "--shape", "gpt2-small", "--json", tmp_path / "nowhere" / "x.json")
    assert took.seconds < 5


# safetensors ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["hole", "front", "trailing", "tabs", "lead"])
def test_safetensors_rules_are_those_of_the_formats_own_library(unpack, tmp_path, change):
    folder = checkpoints.copy(tmp_path)
    path = folder / "model.safetensors"
    header, body = checkpoints.read(path)
    text = json.dumps(header).encode()
    if change in ("hole", "front"):
        first = min((e["data_offsets"][0] for n, e in header.items() if n != "__metadata__")) if change == "front" else 64
        for name, entry in header.items():
            if name != "__metadata__" and entry["data_offsets"][0] >= first:
                entry["data_offsets"] = [x + 4 for x in entry["data_offsets"]]
        at = 0 if change == "front" else min(e["data_offsets"][0] for n, e in header.items() if n != "__metadata__" and e["data_offsets"][0] >= first + 4) - 4
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


# Everything else ------------------------------------------------------------------------------------------------------------------------


def test_the_attacker_knows_every_command_option_and_endpoint(unpack):
    """What is added to the program must not stay untried."""
    commands = attack.SURFACES["command line"]().known()
    listed = set(re.findall(r"^  ([a-z]+) {2,}", unpack.ok("--help").split("\nCommands:")[1], re.M))
    assert listed == set(commands) - {next(iter(commands))} | {"serve", "bench"}
    assert "--group-by" in dict(commands["trace"]) and "turn" in dict(commands["trace"])["--group-by"]
    documented = set(re.findall(r"/api/([a-z]+)", (ROOT / "docs" / "api.md").read_text())) - {"models", "queue"}
    assert documented <= set(attack.SURFACES["requests"].ENDPOINTS)
    from hostile.material import FIELDS

    batch_fields = re.findall(r'^      \{"([a-z_]+)",', (ROOT / "src" / "question" / "codec.cc").read_text(), re.M)
    assert len(batch_fields) > 30 and set(batch_fields) <= set(FIELDS)


def test_the_attacker_finds_nothing(unpack):
    """tools/attack.py, a fixed seed, every surface in turn for half a minute."""
    tried, findings = attack.attack(list(attack.SURFACES), seed=26, seconds=float(os.environ.get("UNPACK_ATTACK", "25")))
    assert tried > len(attack.SURFACES)
    assert not findings, [(name, turn, found.problem, found.detail, str(case)[:300]) for name, turn, found, case in findings]
