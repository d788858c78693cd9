"""What the API answers: the same fields as the command line."""
import json
import math
import subprocess

import pytest
from serving import MARY, PROGRAM

TRACE_FIELDS = {
    "version", "program", "model", "tokens", "target", "options", "root", "predictions",
    "importance", "token_credit", "token_percent", "node_credit", "paths", "coverage",
    "conservation", "warnings"
}


def command_line(*args):
    run = subprocess.run(
        [PROGRAM, *args, "--json", "-"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return json.loads(run.stdout)


def close(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return a == b


def test_models_lists_what_is_served_with_the_default_first(server):
    status, headers, body = server.raw("GET", "/api/models")
    answer = json.loads(body)
    assert status == 200 and headers["content-type"] == "application/json"
    names = [model["name"] for model in answer["models"]]
    assert names == ["pocket-gpt2", "pocket-neox", "pocket-llama"] or set(names) == {
        "pocket-gpt2",
        "pocket-neox",
        "pocket-llama",
    }
    assert [model["default"] for model in answer["models"]] == [True, False, False]
    assert answer["models"][0]["info"]["layers"] == 8
    presets = {options["preset"]: options for options in answer["presets"]}
    assert (
        list(presets) == ["paper", "released", "best"]
        and presets["best"] == answer["options"]
        and presets["best"]["direction"] == "read"
    )
    assert (
        answer["options"]["preset"] == "best"
        and presets["paper"]["beta"] == 0.8
        and answer["limits"]["max_tokens"] == 512
    )


def test_tokenize_puts_the_special_token_in_front(server):
    tokens = server.ok("tokenize", prompt="Hello there")["tokens"]
    assert (
        tokens[0]["text"] == "<|endoftext|>"
        and "".join(token["text"] for token in tokens[1:]) == "Hello there"
    )
    assert (
        server.ok("tokenize", prompt="Hello there", no_bos=True)["tokens"][0]["text"]
        != "<|endoftext|>"
    )


def test_predict_is_what_the_command_line_says(server):
    answer = server.ok("predict", prompt=MARY, top=5)
    expected = command_line("predict", MARY, "--top", "5")
    assert close(answer["predictions"], expected["predictions"]) and close(
        answer["tokens"], expected["tokens"]
    )


def test_predict_at_an_earlier_position_sees_only_what_stands_before(server):
    early = server.ok("predict", prompt=MARY, position=4)["predictions"]
    ids = [token["id"] for token in server.ok("tokenize", prompt=MARY)["tokens"]][:5]
    assert early[0]["id"] == server.ok("predict", ids=ids)["predictions"][0]["id"]


def test_trace_is_what_the_command_line_says(server):
    answer = server.ok("trace", prompt=MARY, target=" Mary", versus=" John", top_paths=7)
    expected = command_line(
        "trace", MARY, "--target", " Mary", "--versus", " John", "--top-paths", "7"
    )
    assert set(answer) >= TRACE_FIELDS and len(answer["paths"]) == 7
    for field in TRACE_FIELDS - {"program"}:
        assert close(answer[field], expected[field]), field


def test_trace_takes_every_option(server):
    answer = server.ok(
        "trace", prompt=MARY, beta=0.5, weights=[1, 0, 0], mlp_weights=[1, 0], dispatch="gate",
        mlp="linearized", scores="centered", reroot="target", position=-2, raw_logit=True,
        top_paths=3, sign="positive", min_layer=1
    )
    assert (
        answer["options"]["beta"] == 0.5
        and answer["options"]["dispatch"] == "gate"
        and answer["options"]["mlp"] == "linearized"
    )
    assert (
        answer["target"]["position"] == len(answer["tokens"]) - 2
        and answer["target"]["logit_difference"] is None
    )
    assert all(path["credit"] > 0 for path in answer["paths"])


def test_paths_answers_the_filters_alone(server):
    answer = server.ok("paths", prompt=MARY, branch="V", top_paths=10, **{"from": 1})
    assert "node_credit" not in answer and answer["paths"]
    assert all(
        path["branches"][-1] == "V" and path["nodes"][0].endswith("@1") for path in answer["paths"]
    )
    cover = answer["coverage"]
    assert (
        cover["absolute"]
        <= cover["absolute_matching"] * (1 + 1e-9)
        <= cover["absolute_total"] * (1 + 2e-9)
    )


def test_reroot_tells_what_a_head_reads(server):
    answer = server.ok("reroot", prompt=MARY, root="A5.H1@-1")
    last = len(answer["tokens"]) - 1
    assert answer["root"] == f"A5.H1@{last}" and set(answer["incoming"]) == {"K", "Q", "V"}
    assert len(answer["pattern"]) == len(answer["entries"]) == last + 1
    assert math.isclose(sum(answer["pattern"]), 1, rel_tol=1e-4)
    assert "pattern" not in server.ok("reroot", prompt=MARY, root="MLP3@2")


def test_reroot_needs_a_root(server):
    assert "root" in server.refused("reroot", {"prompt": MARY})


def test_interactions_cover_every_reader(server):
    answer = server.ok("interactions", prompt="A short one")
    assert {entry["reader"] for entry in answer["attention"]} == {
        f"A{layer}.H{head}" for layer in range(8) for head in range(8)
    }
    one = server.ok("interactions", prompt="A short one", query=-1)
    assert one["attention"] and one["attention"] != answer["attention"]


@pytest.mark.parametrize(
    "model, branches", [("pocket-neox", {"MLP"}), ("pocket-llama", {"G", "U"})]
)
def test_other_families_are_loaded_when_they_are_asked_for(server, model, branches):
    answer = server.ok("reroot", model=model, prompt="Once upon a time", root="MLP2@-1")
    assert answer["model"]["name"] == model and set(answer["incoming"]) == branches
    models = json.loads(server.raw("GET", "/api/models")[2])["models"]
    info = next(entry["info"] for entry in models if entry["name"] == model)
    assert info["gated"] == (model == "pocket-llama")


@pytest.mark.parametrize(
    "form, start, kind",
    [
        ("html", b"<!", "text/html"),
        ("svg", b"<svg", "image/svg+xml"),
        ("tikz", b"\\documentclass", "text/plain"),
    ],
)
def test_a_trace_comes_as_a_picture_too(server, form, start, kind):
    status, headers, body = server.raw(
        "POST",
        "/api/trace",
        json.dumps({"prompt": "Hello there", "format": form}),
        {"Content-Type": "application/json"},
    )
    assert status == 200 and headers["content-type"].startswith(kind)
    assert start.lower() in body[:400].lower()


def test_the_same_question_twice_gets_the_same_answer(server):
    body = {"prompt": MARY, "top_paths": 50}
    assert server.ok("trace", **body) == server.ok("trace", **body)


def test_intervene_is_what_the_command_line_says(server):
    answer = server.ok(
        "intervene", prompt=MARY, target=" Mary", versus=" John", cut="A5.H3", channel="attention"
    )
    expected = command_line(
        "intervene", MARY, "--target", " Mary", "--versus", " John", "--cut", "A5.H3", "--channel",
        "attention"
    )
    assert close(answer["clean"], expected["clean"]) and close(answer["cut"], expected["cut"])
    assert answer["clean"]["target"] != answer["cut"]["target"]


def test_intervene_zeroes_tokens_and_patches_edges(server):
    zeroed = server.ok("intervene", prompt=MARY, zero=[1])
    assert zeroed["cut"]["nll"] != zeroed["clean"]["nll"]
    patched = server.ok(
        "intervene",
        prompt=MARY,
        edges=["A5.H3@13 -> target"],
        patch_prompt=MARY.replace("Mary", "Anna"),
    )
    assert patched["cut"]["target"] != patched["clean"]["target"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, ""),
        ({"cut": "A99.H0"}, ""),
        ({"cut": 3}, "cut takes a text"),
        ({"cut": "A5.H3", "channel": "both"}, "one of attention, mlp"),
        ({"zero": [99]}, ""),
        ({"zero": [1.5]}, "zero takes a whole number"),
        ({"zero": 1}, "zero takes"),
        ({"edges": ["nonsense"], "patch_prompt": MARY}, ""),
        ({"edges": ["A5.H3@13 -> target"]}, ""),
        ({"edges": [1], "patch_prompt": MARY}, "edges takes a text"),
        ({"edges": ["A5.H3@13 -> target"], "patch_prompt": "short"}, ""),
    ],
)
def test_an_intervention_that_makes_no_sense_is_refused(server, change, message):
    assert message in server.refused("intervene", {"prompt": MARY, **change})


def test_answers_go_out_as_they_are(server):
    """A browser offers Brotli, and packing an answer took fifty times as long as finding it."""
    offer = {"Accept-Encoding": "gzip, deflate, br", "Content-Type": "application/json"}
    for method, path, body in [
        ("POST", "/api/trace", json.dumps({"prompt": "Hello there", "top_paths": 300})),
        ("GET", "/", None),
        ("GET", "/api/models", None),
    ]:
        status, headers, answer = server.raw(method, path, body, offer)
        assert status == 200 and "content-encoding" not in headers
        assert int(headers["content-length"]) == len(answer) > 0


def test_those_who_watch_over_it_are_answered(server):
    status, headers, body = server.raw("GET", "/health")
    assert status == 200 and json.loads(body) == {"status": "ok"}
    server.ok("trace", prompt="Hello there", top_paths=1)
    status, headers, body = server.raw("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    values = dict(
        line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")
    )
    assert float(values['unpack_answers_total{status="2xx"}']) >= 1 and 0 < float(
        values["unpack_cache_bytes"]
    ) <= float(values["unpack_cache_limit_bytes"])


def test_a_token_is_asked_for_where_one_is_set(start):
    running = start("--token", "a-secret-of-8")
    body = json.dumps({"prompt": "Hello"})
    kind = {"Content-Type": "application/json"}
    assert running.raw("GET", "/health")[0] == 200
    for path in ("/", "/api/models", "/metrics", "/?token=a-secret-of-9", "/?token="):
        assert running.raw("GET", path)[0] == 401, path
    assert running.raw("POST", "/api/predict", body, kind)[0] == 401
    assert (
        running.raw("POST", "/api/predict", body, {**kind, "Authorization": "Bearer a-secret-of-"})[
            0
        ]
        == 401
    )
    assert (
        running.raw(
            "POST", "/api/predict", body, {**kind, "Authorization": "Bearer a-secret-of-8"}
        )[0]
        == 200
    )
    assert running.raw("GET", "/?token=a-secret-of-8")[0] == 200
    # A browser gets the page with the refusal: it asks for the token, and holds nothing secret.
    status, headers, page = running.raw("GET", "/", headers={"Accept": "text/html,*/*"})
    assert (
        status == 401
        and headers["content-type"].startswith("text/html")
        and page == running.raw("GET", "/?token=a-secret-of-8")[2]
    )
    assert running.raw("GET", "/api/models", headers={"Accept": "text/html"})[0] == 401
