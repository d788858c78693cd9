"""Many at once, those who leave, and the end."""
import json
import socket
import sys
import threading
import time

import pytest
from serving import MARY, ROOT, Server

sys.path.insert(0, str(ROOT / "tools"))
import soak

LONG = " ".join(f"The number {n} comes after the number {n - 1}." for n in range(1, 40))


def in_parallel(count, work):
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_too_many_waiting_requests_are_told_to_come_back(start):
    running = start("--max-waiting", 1)
    statuses = []
    waits = []

    def ask(i):
        status, headers, _ = running.raw(
            "POST",
            "/api/trace",
            json.dumps({"prompt": f"{LONG[:900]} {i}"}),
            {"Content-Type": "application/json"},
        )
        statuses.append(status)
        if status == 429:
            waits.append(headers.get("retry-after"))

    in_parallel(16, ask)
    assert len(waits) == statuses.count(429) and all(
        wait and int(wait) >= 1 for wait in waits
    ), waits
    assert set(statuses) == {200, 429} and statuses.count(200) >= 2
    assert running.ok("predict", prompt="still there")


def test_one_model_does_not_wait_for_another(server):
    server.ok("predict", model="pocket-neox", prompt="load it")
    busy = threading.Thread(
        target=lambda: server.post("trace", {"prompt": LONG, "top_paths": 2000})
    )
    busy.start()
    begin = time.monotonic()
    server.ok("predict", model="pocket-neox", prompt="quick")
    took = time.monotonic() - begin
    busy.join()
    assert took < 5


def test_a_request_over_the_time_limit_is_given_up(start):
    """The limit counts the wait: of many that come at once, the later ones run over it, some
    while they wait and one in the middle of its work.
    """
    running = start("--time-limit", 1, "--max-tokens", 512, "--max-waiting", 16)
    text = LONG
    while len(running.ok("tokenize", prompt=text)["tokens"]) < 400:
        text += " " + LONG[:200]
    answers = []

    def ask(i):
        begin = time.monotonic()
        status, answer = running.post(
            "trace", {"prompt": f"{i} {text}", "top_paths": 5000, "preset": "paper"}
        )
        answers.append((status, answer, time.monotonic() - begin))

    in_parallel(16, ask)
    given_up = [answer["error"] for status, answer, _ in answers if status == 504]
    assert {status for status, _, _ in answers} <= {200, 504}
    assert all("limit of 1000 ms" in error for error in given_up), given_up
    assert max(took for _, _, took in answers) < 10
    assert running.ok("predict", prompt="still there")
    if not given_up:
        pytest.skip("this machine answers all of them within the limit")


def test_closing_the_connection_stops_the_work(start):
    running = start()
    text = LONG
    while len(running.ok("tokenize", prompt=text)["tokens"]) < 400:
        text += " " + LONG[:200]
    for index in range(4):
        body = json.dumps(
            {"prompt": f"{index} {text}", "top_paths": 5000, "preset": "paper"}
        ).encode()
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(
                b"POST /api/trace HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
                b" application/json\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            time.sleep(0.3)
    # None of the four may go on: the next one would wait for them.
    begin = time.monotonic()
    running.ok("predict", prompt="next")
    assert time.monotonic() - begin < 5


def metric(running, name):
    body = running.raw("GET", "/metrics")[2].decode()
    return float(next(line.split()[1] for line in body.splitlines() if line.startswith(name + " ")))


def test_kept_prompts_stay_within_their_bound(start):
    """What is counted is what is kept: edge sets of several options included. The bound holds for
    the counter, and for the process with what one question takes.
    """
    running = start("--cache", 64)
    settled = None
    for index in range(24):
        for beta in (0.8, 0.5):
            running.ok("trace", prompt=f"{index} {LONG[:400]}", top_paths=5, beta=beta)
        assert metric(running, "unpack_cache_bytes") <= 64 << 20
        if index == 8:
            settled = running.memory()
    assert metric(running, "unpack_cache_prompts") >= 1
    assert running.memory() < settled + (64 << 20)


def test_what_questions_leave_behind_is_counted(start):
    """Edges for the settings of a question are kept for the next one with the same."""
    running = start("--cache", 512)
    counted = []
    for beta in (0.8, 0.5, 0.8):
        running.ok("trace", prompt=LONG[:400], top_paths=1, preset="paper", beta=beta)
        counted.append(metric(running, "unpack_cache_bytes"))
    first, second, again = counted
    assert second > 1.02 * first and again == second


def test_memory_stays_within_its_bound_under_load():
    """tools/soak.py for a few seconds: eight clients, three models, wrong and cut-off requests
    among them.
    """
    seen = soak.soak(8, cache=32)
    assert seen["answers"][200] > 5 and seen["kept"] > 0


def test_a_long_prompt_is_kept(start):
    """Counted at twice its size it never was."""
    running = start("--cache", 512)
    prompt = LONG[:1000]
    for _ in range(2):
        running.ok("trace", prompt=prompt, top_paths=1)
    assert metric(running, "unpack_cache_hits") >= 1


def test_connections_that_drip_do_not_lock_others_out(start):
    running = start()
    slow = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(64)]
    try:
        begin = time.monotonic()
        answered = None
        head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 200

        def ask():
            nonlocal answered
            running.ok("predict", prompt="quick")
            answered = time.monotonic() - begin

        worker = None
        for at in range(40):
            for connection in slow:
                try:
                    connection.sendall(head[at : at + 1])
                except OSError:
                    pass
            if at == 1:
                worker = threading.Thread(target=ask)
                worker.start()
            time.sleep(1)
            if answered is not None:
                break
        worker.join(60)
        assert answered is not None and answered < 25
    finally:
        for connection in slow:
            connection.close()


def test_a_client_that_closes_its_own_direction_gets_its_answer(server):
    body = json.dumps({"prompt": LONG[:600], "top_paths": 500}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(
            b"POST /api/trace HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
            b" application/json\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert b"HTTP/1.1 200" in answer and b"token_credit" in answer


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_ends_it_cleanly_even_in_the_middle_of_work(number):
    running = Server()
    try:
        statuses = []

        def ask():
            try:
                statuses.append(
                    running.post(
                        "trace",
                        {
                            "prompt": LONG,
                            "top_paths": 5000,
                            "tau": 1e-9,
                            "tau_rule": "entry",
                            "preset": "paper",
                        },
                    )[0]
                )
            except OSError:
                statuses.append("closed")

        worker = threading.Thread(target=ask)
        worker.start()
        time.sleep(0.3)
        begin = time.monotonic()
        assert running.stop(number) == 0
        assert time.monotonic() - begin < 8
        worker.join()
        assert statuses[0] in (200, 503, "closed")
    finally:
        running.close()


def test_a_taken_port_is_said_in_one_line():
    running = Server()
    try:
        with pytest.raises(RuntimeError, match=f"port {running.port}"):
            Server("--port", running.port)
    finally:
        running.close()


def test_the_first_answers_match_while_many_ask(server):
    expected = server.ok("trace", prompt=MARY, top_paths=5)
    answers = []
    in_parallel(8, lambda _: answers.append(server.post("trace", {"prompt": MARY, "top_paths": 5})))
    for status, answer in answers:
        assert status == 429 or answer == expected
    assert any(status == 200 for status, _ in answers)
