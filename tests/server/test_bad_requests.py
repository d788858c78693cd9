"""Requests that must be refused: each with one clear line, and the server goes on."""
import gzip
import json
import random
import re
import socket

import pytest
from serving import MARY

JSON = {"Content-Type": "application/json"}

BAD_BODIES = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b'{"prompt": "x"} trailing', "not valid JSON"),
    (b"[]", "JSON object"),
    (b'"text"', "JSON object"),
    (b"null", "JSON object"),
    (b'{"prompt": "\xff\xfe"}', "not valid JSON"),
    (b'{"prompt": "x", "beta": 1e999}', "not valid JSON"),
    (b'{"prompt": "x", "beta": NaN}', "not valid JSON"),
    (b'{"prompt": "x", "prompt": "y"}', "occurs twice"),
    (b'{"prompt": ' + b"[" * 50000 + b"]" * 50000 + b"}", "nested"),
    (b'{"a": ' * 50000 + b"1" + b"}" * 50000, "nested"),
]

BAD_FIELDS = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "takes a text, not 5"),
    ({"prompt": ["x"]}, "takes a text, not ["),
    ({"prompt": "x", "ids": [1]}, "not both"),
    ({"prompt": "x", "promt": "y"}, 'unknown field "promt"; known here'),
    ({"prompt": "x", "__proto__": 1}, "unknown field"),
    ({"ids": []}, "at least one"),
    ({"ids": [1.5]}, "takes token ids, not 1.5"),
    ({"ids": [-1]}, "vocabulary"),
    ({"ids": [8192]}, "vocabulary"),
    ({"ids": [18446744073709551615]}, "vocabulary"),
    ({"ids": [1] * 513}, "limit of 512"),
    ({"prompt": "word " * 3000}, "limit of 512"),
    ({"prompt": "x" * 900000}, "bytes"),
    ({"prompt": "x", "no_bos": 1}, "true or false"),
    ({"prompt": "x", "position": "last"}, "position takes a whole number"),
    ({"prompt": "x", "position": 1.0}, "position takes a whole number"),
    ({"prompt": "x", "position": 99}, ""),
    ({"prompt": "x", "position": 10**18}, "position takes a whole number"),
    ({"prompt": "x", "position": 2**64 - 1}, "position takes a whole number"),
    ({"prompt": "x", "root": "A99.H0@0"}, ""),
    ({"prompt": "x", "root": "emb@0"}, ""),
    ({"prompt": "x", "root": "A1.H0@77"}, ""),
    ({"prompt": "x", "root": "nonsense"}, ""),
    ({"prompt": "x", "root": 5}, "root takes a text"),
    ({"prompt": "x", "target": "two whole words"}, ""),
    ({"prompt": "x", "target": " a", "target_ids": [1]}, "not both"),
    ({"prompt": "x", "target_ids": [999999]}, "vocabulary"),
    ({"prompt": "x", "versus": " a", "raw_logit": True}, "not both"),
    ({"prompt": "x", "beta": -1}, ""),
    ({"prompt": "x", "beta": "0.8"}, "beta takes a number"),
    ({"prompt": "x", "weights": [1, 2]}, "weights takes 3 numbers"),
    ({"prompt": "x", "weights": [1, 2, "3"]}, "weights takes a number"),
    ({"prompt": "x", "weights": [-1, 0, 0]}, ""),
    ({"prompt": "x", "dispatch": "other"}, "one of aligned, gate"),
    ({"prompt": "x", "mlp": "none"}, "one of per-neuron"),
    ({"prompt": "x", "scores": True}, "scores takes one of raw, centered"),
    ({"prompt": "x", "top_paths": -1}, "between 0 and 5000"),
    ({"prompt": "x", "top_paths": 5001}, "between 0 and 5000"),
    ({"prompt": "x", "tau": 0}, "above 0"),
    ({"prompt": "x", "branch": "Z"}, "one of K, Q, V"),
    ({"prompt": "x", "through": "A77.H1"}, ""),
    ({"prompt": "x", "through": "../../etc/passwd"}, ""),
    ({"prompt": "x", "from": -50}, ""),
    ({"prompt": "x", "min_layer": -1}, "min_layer takes a whole number of 0 or more"),
    ({"prompt": "x", "sign": "+"}, "positive, negative"),
    ({"prompt": "x", "format": "exe"}, "one of json"),
]


@pytest.mark.parametrize("body, message", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_malformed_body_is_refused(server, body, message):
    assert message in server.refused("trace", body)


@pytest.mark.parametrize("body, message", BAD_FIELDS, ids=lambda value: None)
def test_a_wrong_field_is_refused(server, body, message):
    assert message in server.refused("trace", body)


def test_every_endpoint_refuses_unknown_fields(server):
    for name in ("tokenize", "predict", "trace", "paths", "reroot", "interactions", "intervene"):
        assert "unknown field" in server.refused(
            name,
            (
                {"prompt": "x", "root": "MLP0@0", "nothing": 1}
                if name == "reroot"
                else {"prompt": "x", "nothing": 1}
            ),
        )


def test_only_the_served_models_can_be_named(server):
    for name in ("/etc", "../models/pocket-gpt2", "gpt2", ""):
        assert "not served" in server.refused("predict", {"model": name, "prompt": "x"}, status=404)


def test_a_body_over_the_limit_is_refused(server):
    status, _, answer = server.raw(
        "POST", "/api/predict", b'{"prompt": "' + b"x" * (1 << 20) + b'"}', JSON
    )
    assert status == 413 and b"error" in answer


def test_a_conversation_of_great_depth_as_a_prompt_does_not_end_the_server(server):
    deep = '[{"role": "user", "content": ' + "[" * 16_000 + "1" + "]" * 16_000 + "}]"
    status, answer = server.post(
        "predict", {"prompt": deep, "chat_template": "{{ messages[0].content }}"}
    )
    assert status == 400 and "\n" not in answer["error"], answer
    assert server.ok("predict", prompt="still there")


def test_a_small_body_that_unpacks_to_a_large_one_is_refused(server):
    bomb = gzip.compress(b'{"prompt": "' + b"x" * (64 << 20) + b'"}')
    before = server.memory()
    status, _, _ = server.raw("POST", "/api/predict", bomb, {**JSON, "Content-Encoding": "gzip"})
    assert status in (400, 413, 415)
    assert server.memory() - before < 32 << 20


def test_anything_but_json_is_refused(server):
    for kind in (
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "application/jsonp"
    ):
        assert (
            server.raw("POST", "/api/predict", b'{"prompt": "x"}', {"Content-Type": kind})[0] == 415
        )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "",
        "[::1", "localhost:port"
    ],
)
def test_a_foreign_host_name_is_refused(server, host):
    assert server.raw("GET", "/", headers={"Host": host})[0] == 403
    assert server.raw("POST", "/api/predict", b'{"prompt": "x"}', {**JSON, "Host": host})[0] == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "127.0.0.1:80", "[::1]:7860", "LocalHost"]
)
def test_this_machine_is_allowed_under_all_its_names(server, host):
    assert server.raw("GET", "/api/models", headers={"Host": host})[0] == 200


def test_another_host_name_can_be_allowed(start):
    running = start("--allow-host", "lab.example", "--allow-host", "second.example")
    assert running.raw("GET", "/", headers={"Host": "lab.example:7860"})[0] == 200
    assert running.raw("GET", "/", headers={"Host": "second.example"})[0] == 200
    assert running.raw("GET", "/", headers={"Host": "third.example"})[0] == 403


def test_requests_of_other_sites_pages_are_refused(server):
    body = json.dumps({"prompt": "x"})
    for origin in (
        "http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}",
        f"http://127.0.0.1:{server.port}.evil.example"
    ):
        assert server.raw("POST", "/api/predict", body, {**JSON, "Origin": origin})[0] == 403
    assert server.raw("POST", "/api/predict", body, {**JSON, "Origin": server.url})[0] == 200


def test_nothing_is_served_but_the_page_and_the_api(server):
    for path in (
        "/etc/passwd", "/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/index.html", "/api",
        "/api/", "/api/models/", "//etc/passwd", "/.git/config"
    ):
        status, _, body = server.raw("GET", path)
        assert status == 404 and b"root:" not in body, path


def test_a_wrong_method_is_told_the_right_one(server):
    assert server.raw("GET", "/api/trace")[0] == 405
    assert server.raw("POST", "/api/models", b"{}", JSON)[0] == 405
    assert server.raw("DELETE", "/")[0] in (404, 405)


def test_every_answer_carries_the_policy(server):
    for path in ("/", "/api/models", "/nowhere"):
        headers = server.raw("GET", path)[1]
        policy = headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy
            and "connect-src 'self'" in policy
            and "frame-ancestors 'none'" in policy
            and "unsafe" not in policy
        )
        assert (
            headers["x-content-type-options"] == "nosniff"
            and "access-control-allow-origin" not in headers
        )


def test_the_page_is_one_file_that_asks_for_nothing_else(server):
    page = server.raw("GET", "/")[2].decode()
    assert "<title>unpack</title>" in page and len(page) < 400_000
    assert (
        "src=" not in page.split("<script")[0]
        and 'rel="stylesheet"' not in page
        and "@import" not in page
    )


def test_half_a_request_does_no_harm(server):
    for text in (
        b"",
        b"GET",
        b"POST /api/trace HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        (
            b"POST /api/trace HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
            b" application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n"
        ),
        b"POST /api/trace HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            try:
                connection.sendall(text)
            except OSError:
                pass
    assert server.ok("predict", prompt="still there")["predictions"]


def mangled(rng, body):
    data = bytearray(body)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            data[at:at] = bytes(
                rng.choices(b'{}[]",:0123456789-+.eE\\unltrfas \x00\xff', k=rng.randint(1, 4))
            )
        elif kind == 1:
            del data[at : at + rng.randint(1, 5)]
        elif kind == 2 and at < len(data):
            data[at] = rng.randrange(256)
        else:
            data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randint(1, 30)]
    return bytes(data)


def test_mangled_bodies_are_answered_in_order_or_refused(server):
    rng = random.Random(11)
    good = json.dumps(
        {
            "prompt": MARY,
            "target_ids": [5],
            "versus_ids": [6],
            "root": "A3.H1@4",
            "beta": 0.8,
            "weights": [1, 1, 1],
            "top_paths": 3,
            "from": 1,
        }
    ).encode()
    for _ in range(300):
        status, _, body = server.raw(
            "POST",
            (
                "/api/"
                + rng.choice(
                    [
                        "tokenize", "predict", "trace", "paths", "reroot", "interactions",
                        "intervene",
                    ]
                )
            ),
            mangled(rng, good),
            JSON,
        )
        assert status in (200, 400, 404), (status, body)
        json.loads(body)


def test_a_body_of_many_objects_costs_no_time(server):
    """Each end of an object used to look through all that came before: 38 s of one thread for a
    megabyte.
    """
    body = b'{"ids":[' + b"{}," * 340_000 + b"{}]}"
    begin = server.processor_time()
    assert "ids" in server.refused("predict", body)
    assert server.processor_time() - begin < 10
    keys = ("{\"prompt\":\"x\"," + ",".join(f'"k{i}":1' for i in range(70_000)) + "}").encode()
    begin = server.processor_time()
    assert "unknown field" in server.refused("predict", keys)
    assert server.processor_time() - begin < 10


def test_messages_echo_nothing_raw(server):
    for body in (
        {"prompt": "x", "\x1b[31m\n" + "k" * 5000: 1},
        {"prompt": "x", "root": "\x1b\n\u202e" * 3000},
        {"model": "\n" * 400, "prompt": "x"},
    ):
        _, answer = server.post("trace", body)
        assert len(answer["error"]) < 500 and not re.search(
            r"[\x00-\x1f\x7f-\x9f\u202e]", answer["error"]
        ), answer


def test_a_field_has_the_message_of_every_front_end(server):
    assert (
        server.refused("trace", {"prompt": "x", "tau": -1}) == "tau takes a number above 0, not -1"
    )
    assert server.refused("trace", {"prompt": "x", "from": -50}).startswith("from: ")
