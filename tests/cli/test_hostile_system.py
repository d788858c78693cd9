"""A system that gives no thread, no memory or no page of a file, and signals."""
import os
import resource
import signal
import subprocess
import time

import checkpoints
import pytest
from conftest import MARY, PROGRAM
from hostile_cases import IDS, TINY


def test_a_thread_that_cannot_be_started_is_one_line(unpack, within_reach):
    def few():
        os.setuid(65534) if os.getuid() == 0 else None
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    for command in (["predict", *IDS, *TINY, "--threads", "8"], ["serve", "--port", "0"]):
        r = subprocess.run(
            [PROGRAM, *command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            preexec_fn=few,
            timeout=60,
        )
        if os.getuid() == 0 and r.returncode == 0:
            pytest.skip("this user may start threads without a limit")
        assert r.returncode == 1 and r.stderr.count("\n") == 1 and "thread" in r.stderr, r


def test_a_server_that_cannot_start_its_threads_gives_no_address(unpack, within_reach):
    for processes in range(1, 10):

        def few():
            os.setuid(65534) if os.getuid() == 0 else None
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))

        server = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=few,
        )
        first = server.stderr.readline()
        if "http://" in first:
            time.sleep(0.3)
            assert server.poll() is None, first + server.stderr.read()
            server.terminate()
        rest = server.communicate(timeout=30)[1]
        assert "http://" in first or (server.returncode == 1 and "thread" in first and not rest), (
            first + rest
        )
        if "http://" in first:
            break


def test_little_memory_is_one_line(unpack, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"ids": [1, 2, 3]}\n' * 6)
    traced = [(megabytes << 20, ["trace", MARY]) for megabytes in (40, *range(80, 180, 5), 240)]
    # Small steps where the libraries just fit: the heap may grow there where nothing can be mapped.
    batches = [
        (
            kilobytes << 10,
            ["batch", tmp_path / "p.jsonl", *TINY, "--out", tmp_path / str(kilobytes)],
        )
        for kilobytes in range(100_000, 120_000, 500)
    ]
    for limit, command in traced + batches:
        r = subprocess.run(
            [PROGRAM, *command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
        loader = (
            r.returncode == 127 and "shared libraries" in r.stderr
        )  # not even the program could be loaded
        assert loader or r.returncode in (0, 1), (limit >> 10, r.returncode, r.stderr[-300:])
        assert loader or r.returncode == 0 or r.stderr.count("\n") == 1, r.stderr


def test_a_weight_file_that_is_cut_short_while_it_is_mapped(unpack, tmp_path):
    """Truncated between the reading of its header and that of its values, again and again until it
    falls into that moment.
    """
    folder = checkpoints.copy(tmp_path)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    seen = set()
    for wait in (0, 0.005, 0.01, 0.02, 0.04):
        file.write_bytes(data)
        process = subprocess.Popen(
            [PROGRAM, "generate", "--ids", "1,2,3", "--max-tokens", "200", "--model", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        time.sleep(wait)
        os.truncate(file, 4096)
        _, error = process.communicate(timeout=60)
        assert process.returncode in (0, 1), (process.returncode, error)
        assert process.returncode == 0 or error.count("\n") == 1, error
        seen.add(process.returncode)
    file.write_bytes(data)
    assert unpack.ok("predict", *IDS, "--model", folder, "--no-mmap", "--json", "-") == unpack.ok(
        "predict", *IDS, "--model", folder, "--json", "-"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_a_process_that_waits_for_input(number):
    process = subprocess.Popen(
        [PROGRAM, "trace", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(number)
    assert process.wait(10) == 128 + number and time.monotonic() - begin < 5
    process.stdin.close(), process.stderr.close()
