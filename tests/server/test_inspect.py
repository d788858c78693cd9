"""The routes that look closer, against the ones that were there before."""
import json
import threading
import time

import pytest
from serving import MARY

QUESTION = {"prompt": MARY, "target": " Mary", "versus": " John"}


@pytest.mark.parametrize("settings", [{}, {"preset": "paper"}, {"reroot": "target"}])
@pytest.mark.parametrize("root", ["A5.H3@13", "A2.H1@4", "MLP3@9"])
def test_what_a_node_reads_is_what_a_trace_rooted_there_sends_out(server, root, settings):
    reads = server.ok("reads", **QUESTION, **settings, root=root, top=5)
    rooted = server.ok("reroot", **QUESTION, **settings, root=root, top_paths=0)
    assert reads["node"] == root and reads.get("pattern") == rooted.get("pattern")
    if isinstance(rooted["entries"], list):
        assert reads["entries"] == pytest.approx(rooted["entries"], rel=1e-4, abs=1e-6)
    else:
        assert [entry["neuron"] for entry in reads["entries"]["neurons"][:5]] == [
            entry["neuron"] for entry in rooted["entries"]["neurons"][:5]
        ]
    assert reads["incoming"].keys() == rooted["incoming"].keys()
    for branch, listed in reads["incoming"].items():
        sent = {
            f"{name}@{position}": credit
            for name, row in rooted["incoming"][branch].items()
            for position, credit in enumerate(row)
            if credit
        }
        strongest = sorted(sent, key=lambda node: -abs(sent[node]))[:5]
        assert [entry["node"] for entry in listed] == strongest
        assert [entry["credit"] for entry in listed] == pytest.approx(
            [sent[node] for node in strongest], rel=1e-4
        )


def test_reads_are_those_of_a_head_or_an_mlp(server):
    for wrong, said in (
        ({}, "root"),
        ({"root": "emb@3"}, "emb"),
        ({"root": "A5.H3@99"}, "99"),
        ({"root": "A5.H3@3", "top": 0}, "top"),
        ({"root": "A5.H3@3", "top_paths": 3}, "top_paths"),
    ):
        status, answer = server.post("reads", {**QUESTION, **wrong})
        assert status == 400 and said in answer["error"], answer


def test_a_root_can_be_asked_for_without_every_node_that_it_reads(server):
    whole = server.ok("reroot", **QUESTION, root="A5.H3@13", top_paths=5)
    short = server.ok("reroot", **QUESTION, root="A5.H3@13", top_paths=5, incoming=False)
    assert whole["incoming"].keys() == {"K", "Q", "V"} and short["incoming"] == {}
    assert (
        short["paths"] == whole["paths"]
        and short["token_credit"] == whole["token_credit"]
        and short["entries"] == whole["entries"]
    )


def test_a_nodes_writing_is_its_direct_credit(server):
    written = server.ok("writes", prompt=MARY, node="A5.H3@-1", top=100)
    assert written["node"] == "A5.H3@13" and written["promoted"][0]["text"] == " Mary"
    effects = {entry["text"]: entry["logit"] for entry in written["promoted"] + written["lowered"]}
    other = next(text for text in effects if text != " Mary")
    trace = server.ok("trace", prompt=MARY, target=" Mary", versus=other, top_paths=0)
    assert effects[" Mary"] - effects[other] == pytest.approx(
        trace["importance"]["A5.H3"], rel=1e-3
    )


def test_an_mlps_neurons_are_listed_as_asked(server):
    written = server.ok("writes", prompt=MARY, node="MLP3@5", neurons=[7, 1023])
    assert [neuron["neuron"] for neuron in written["neurons"]] == [7, 1023]
    assert len(written["neurons"][0]["promoted"]) == 10


def test_patterns_are_those_of_the_root(server):
    answer = server.ok("attention", prompt=MARY, heads=["A5.H3", "A0.H1"])
    assert [head["head"] for head in answer["heads"]] == ["A5.H3", "A0.H1"]
    pattern = answer["heads"][0]["pattern"]
    assert [len(row) for row in pattern] == list(range(1, 15))
    rooted = server.ok("reroot", prompt=MARY, root="A5.H3@13", top_paths=0)
    assert pattern[13] == pytest.approx(rooted["pattern"], abs=1e-4)


def test_the_lens_agrees_with_predict(server):
    lens = server.ok("lens", prompt=MARY)
    assert lens["target"]["text"] == " Mary" and len(lens["layers"]) == 9
    for position in (3, -1):
        layers = server.ok("predict", prompt=MARY, lens=True, position=position)
        assert [row[position]["id"] for row in lens["layers"]][-1] == layers["predictions"][0]["id"]
    assert lens["layers"][-1][-1]["target"] == pytest.approx(lens["layers"][-1][-1]["probability"])


def test_both_spellings_are_suggested(server):
    found = server.ok("suggest", prompt=MARY, text="John")["suggestions"]
    assert [entry["text"] for entry in found][:2] == [" John", "John"] and found[0][
        "probability"
    ] > found[1]["probability"]
    assert server.ok("suggest", prompt=MARY, top=1)["suggestions"][0]["text"] == " Mary"


def test_a_trace_is_told_in_words(server):
    sentences = server.ok("words", **QUESTION, sentences=2)["sentences"]
    assert len(sentences) == 2 and sentences[1]["node"] == "A5.H3@13"
    sentences = server.ok("words", **QUESTION, sentences=2, preset="paper")["sentences"]
    assert len(sentences) == 2 and sentences[0]["node"] == "A5.H3@13"
    assert (
        "looks 83% at Mary and copies it (V)" in sentences[0]["text"]
        and "A1.H1 at Mary feeds its keys (K)" in sentences[0]["text"]
    )


def test_one_node_is_told_as_among_the_others(server):
    listed = server.ok("words", **QUESTION, sentences=6)["sentences"]
    for sentence in listed:
        assert server.ok("words", **QUESTION, node=sentence["node"])["sentences"] == [sentence]
    assert "heads and MLPs" in server.refused("words", {**QUESTION, "node": "emb@3"})
    assert "sentences" in server.refused("words", {**QUESTION, "node": "MLP3@3", "sentences": 2})


def test_an_answer_is_explained_token_by_token(server):
    own = server.ok("attribute", prompt=MARY, generate=2)
    assert [row["text"] for row in own["rows"]] == [" Mary", "."]
    given = server.ok("attribute", prompt=MARY, continuation=" Mary.")
    assert [row["token_credit"] for row in given["rows"]] == [
        row["token_credit"] for row in own["rows"]
    ]
    trace = server.ok("trace", prompt=MARY, target=" Mary", top_paths=0)
    assert own["rows"][0]["token_credit"] == pytest.approx(trace["token_credit"], rel=1e-4)


def test_what_a_head_writes_is_really_taken_out(server):
    zero = server.ok("intervene", **QUESTION, components=["A5.H3"], ablate="zero")
    hidden = server.ok("intervene", **QUESTION, cut="A5.H3")
    assert (
        zero["cut"]["target"] - zero["clean"]["target"]
        < -3
        < -0.5
        < hidden["cut"]["target"] - hidden["clean"]["target"]
    )
    assert [entry["text"] for entry in zero["clean"]["predictions"]][0] == " Mary" and len(
        zero["cut"]["predictions"]
    ) == 10
    same = server.ok(
        "intervene", **QUESTION, components=["A5.H3", "MLP2@7"], ablate="mean", scale=1
    )
    assert same["cut"]["target"] == pytest.approx(same["clean"]["target"], rel=1e-4)
    resampled = server.ok(
        "intervene", **QUESTION, components=["A5.H3@13"], ablate="resample", patch_prompt=MARY
    )
    assert resampled["cut"]["target"] == pytest.approx(resampled["clean"]["target"], rel=1e-4)


def test_nodes_are_proven_by_leaving_them_out_and_by_keeping_them_alone(server):
    nodes = ["A5.H3@13", "MLP0", "emb@2"]
    for way in (
        {"ablate": "zero"},
        {"ablate": "mean"},
        {"ablate": "resample", "patch_prompt": MARY.replace("Mary", "Anna")},
    ):
        proof = server.ok("prove", **QUESTION, components=nodes, **way)
        without = server.ok("intervene", **QUESTION, components=nodes, **way)
        only = server.ok("intervene", **QUESTION, components=nodes, keep=True, **way)
        none = server.ok("intervene", **QUESTION, components=[], keep=True, **way)
        values = {name: proof[name]["target"] for name in ("clean", "without", "only", "none")}
        assert values["clean"] == pytest.approx(without["clean"]["target"], rel=1e-5)
        for name, answer in (("without", without), ("only", only), ("none", none)):
            assert values[name] == pytest.approx(answer["cut"]["target"], rel=1e-4, abs=1e-4), name
        way_back = values["clean"] - values["none"]
        assert proof["faithfulness"] == pytest.approx((values["only"] - values["none"]) / way_back)
        assert proof["necessity"] == pytest.approx(
            1 - (values["without"] - values["none"]) / way_back
        )
        assert only["intervention"]["keep"] is True and "keep" not in without["intervention"]
    assert len({round(value, 3) for value in values.values()}) == 4
    everything = [f"A{layer}.H{head}" for layer in range(8) for head in range(8)] + [
        f"MLP{layer}" for layer in range(8)
    ]
    whole = server.ok("prove", **QUESTION, components=everything)
    assert whole["faithfulness"] == pytest.approx(1, abs=1e-4) and whole[
        "necessity"
    ] == pytest.approx(1, abs=1e-4)


REFUSED = [
    ("prove", {}, "components"),
    ("prove", {"components": []}, "components"),
    ("prove", {"components": ["A1.H0"], "ablate": "resample"}, "prompt to patch from"),
    ("prove", {"components": ["A1.H0"], "scale": 1}, "scale"),
    ("prove", {"components": ["A1.H0@99"]}, "99"),
    ("intervene", {"components": ["A1.H0"], "keep": "yes"}, "keep"),
    ("writes", {}, "node"),
    ("writes", {"node": "A99.H0@1"}, "A99.H0"),
    ("writes", {"node": "A1.H0@99"}, "99"),
    ("writes", {"node": "A1.H0@1", "neurons": [1]}, "neurons"),
    ("writes", {"node": "MLP1@1", "neurons": [100000]}, "does not exist"),
    ("writes", {"node": "MLP1@1", "top": 0}, "between"),
    ("attention", {}, "heads"),
    ("attention", {"heads": []}, "heads"),
    ("attention", {"heads": ["MLP1"]}, "only heads"),
    ("attention", {"heads": ["A77.H0"]}, "A77.H0"),
    ("lens", {"target": "two words"}, ""),
    ("suggest", {"text": 5}, "takes a text"),
    ("suggest", {"position": 99}, "99"),
    ("words", {"sentences": 0}, "between"),
    ("words", {"root": "emb@0"}, ""),
    ("words", {"root": "A1.H0@77"}, "77"),
    ("attribute", {"generate": 0}, "between"),
    ("attribute", {"generate": 2, "continuation": " x"}, "not both"),
    ("attribute", {"continuation": ""}, "no tokens"),
    ("intervene", {"ablate": "zero"}, "components"),
    ("intervene", {"components": ["A1.H0"], "ablate": "half"}, "one of zero, mean, resample"),
    ("intervene", {"components": ["A1.H0"], "scale": "much"}, "takes a number"),
    ("intervene", {"components": ["A1.H0"], "ablate": "resample"}, "prompt to patch from"),
    ("intervene", {"components": ["A1.H0"], "patch_prompt": "x"}, ""),
    ("intervene", {"components": "A1.H0"}, "takes a list"),
    ("intervene", {"components": ["Z1"]}, "Z1"),
]


@pytest.mark.parametrize("name, body, message", REFUSED, ids=range(len(REFUSED)))
def test_a_wrong_request_is_refused(server, name, body, message):
    assert message in server.refused(name, {"prompt": "one two three", **body})


@pytest.mark.parametrize("name", ["writes", "attention", "lens", "suggest", "words", "attribute"])
def test_unknown_fields_methods_and_models_are_refused(server, name):
    needed = {"writes": {"node": "MLP0@0"}, "attention": {"heads": ["A0.H0"]}}.get(name, {})
    assert "unknown field" in server.refused(name, {"prompt": "x", "nothing": 1, **needed})
    assert "not served" in server.refused(
        name, {"prompt": "x", "model": "other", **needed}, status=404
    )
    assert "limit of 512" in server.refused(name, {"prompt": "word " * 3000, **needed})
    assert server.raw("GET", f"/api/{name}")[0] == 405


def test_the_queue_tells_where_a_question_stands(start):
    server = start()
    first, second = "a" * 24, "b" * 24
    threads = [
        threading.Thread(
            target=lambda ticket=ticket: server.post(
                "trace",
                {"prompt": ticket + " word" * 380, "top_paths": 10},
                {"X-Unpack-Ticket": ticket},
            )
        )
        for ticket in (first, second)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    seen = {first: [], second: []}
    while any(thread.is_alive() for thread in threads):
        for ticket in seen:
            status, _, answer = server.raw("GET", f"/api/queue?ticket={ticket}")
            assert status == 200
            seen[ticket].append(json.loads(answer))
        time.sleep(0.02)
    assert any(
        place["state"] == "running" and place["what"] == "layers" and place["total"] == 8
        for place in seen[first]
    )
    assert any(place["state"] == "waiting" and place["before"] == 1 for place in seen[second])
    assert server.raw("GET", "/api/queue")[0] == 400
    assert server.raw("GET", "/api/queue?ticket=" + "c" * 100)[0] == 400
    assert b"unknown" in server.raw("GET", "/api/queue?ticket=nobody")[2]
    assert server.raw("POST", "/api/queue", b"{}", {"Content-Type": "application/json"})[0] == 405


def test_bytes_that_are_no_text_are_told_apart(server):
    tokens = server.ok("tokenize", prompt="🙂")["tokens"]
    assert "bytes" not in tokens[0] and any(
        set(token.get("bytes", "")) & set("0123456789ABCDEF") for token in tokens
    )
