"""What each command answers, field by field."""
import math
import shutil
import subprocess

import pytest
from conftest import GOLDEN, MARY, MODELS

POCKET = ["pocket-gpt2", "pocket-neox", "pocket-llama"]


@pytest.mark.parametrize("model", POCKET)
def test_predict_puts_mary_first(unpack, model):
    result = unpack.json("predict", MARY, "--model", model)
    assert result["predictions"][0]["text"] == " Mary"
    assert len(result["predictions"]) == 10
    assert set(result["predictions"][0]) == {"id", "text", "logit", "probability"}
    assert result["tokens"][0]["log_probability"] is None
    assert all(t["log_probability"] < 0 for t in result["tokens"][1:])
    assert [t["position"] for t in result["tokens"]] == list(range(len(result["tokens"])))


def test_predict_over_the_whole_vocabulary_sums_to_one(unpack):
    predictions = unpack.json("predict", MARY, "--top", "8192")["predictions"]
    assert len(predictions) == 8192
    assert math.isclose(sum(p["probability"] for p in predictions), 1, rel_tol=1e-5)
    assert predictions == sorted(predictions, key=lambda p: -p["logit"])


def test_predict_for_a_person_shows_the_lens(unpack):
    assert "Mary" in unpack.ok("predict", MARY)
    assert unpack.ok("predict", MARY, "--lens").count("\n") > unpack.ok("predict", MARY).count("\n")


def test_the_lens_ends_in_the_prediction(unpack):
    result = unpack.json("predict", MARY, "--lens")
    layers = result["lens"]
    assert len(layers) == 9  # the embedding and eight layers
    last = layers[-1]["predictions"] if isinstance(layers[-1], dict) else layers[-1]
    assert last[0]["text"] == " Mary"


@pytest.mark.parametrize("model", POCKET)
def test_bos_goes_in_front_unless_left_out(unpack, model):
    with_bos = unpack.json("predict", MARY, "--model", model)["tokens"]
    without = unpack.json("predict", MARY, "--model", model, "--no-bos")["tokens"]
    assert with_bos[0]["id"] == 0 and [t["id"] for t in with_bos[1:]] == [t["id"] for t in without]
    ids = ",".join(str(t["id"]) for t in without)
    assert [t["id"] for t in unpack.json("predict", "--ids", ids, "--model", model)["tokens"]] == [
        t["id"] for t in without
    ]


def test_tokenize_gives_ids_and_texts(unpack):
    tokens = unpack.json("tokenize", MARY)["tokens"]
    assert "".join(t["text"] for t in tokens) == MARY
    assert set(tokens[0]) == {"position", "id", "text"}
    assert unpack.json("tokenize", MARY, "--bos")["tokens"][0]["id"] == 0
    assert str(tokens[0]["id"]) in unpack.ok("tokenize", MARY)


def test_special_tokens_are_recognised_only_when_asked(unpack):
    text = "a<|endoftext|>b"
    assert 0 not in [t["id"] for t in unpack.json("tokenize", text)["tokens"]]
    assert 0 in [t["id"] for t in unpack.json("tokenize", text, "--special")["tokens"]]


def test_tokenize_many_lines(unpack, tmp_path):
    lines = '"Mary"\n"two\\nlines"\n""\n'
    want = "".join(
        f"[{','.join(str(t['id']) for t in unpack.json('tokenize', text)['tokens'])}]\n"
        for text in ("Mary", "two\nlines", "")
    )
    assert unpack.ok("tokenize", "--jsonl", "-", stdin=lines) == want
    (tmp_path / "texts.jsonl").write_text(lines)
    assert unpack.ok("tokenize", "--jsonl", tmp_path / "texts.jsonl") == want


def test_a_folder_with_a_tokenizer_alone_will_do(unpack, tmp_path):
    (tmp_path / "tokenizer.json").symlink_to(MODELS / "pocket-gpt2" / "tokenizer.json")
    assert unpack.json("tokenize", MARY, "--model", tmp_path) == unpack.json("tokenize", MARY)


def test_trace_has_every_field(unpack):
    result = unpack.json(
        "trace", MARY, "--target", " Mary", "--versus", " John", "--preset", "paper"
    )
    assert result["version"] == 1
    assert set(result["program"]) == {"version", "device", "threads"}
    assert set(result["model"]) == {
        "name", "family", "layers", "heads", "d_model", "dtype", "fingerprint"
    }
    assert (
        result["model"]["name"],
        result["model"]["family"],
        result["model"]["layers"],
        result["model"]["heads"],
    ) == ("pocket-gpt2", "gpt2", 8, 8)
    target = result["target"]
    assert set(target) == {
        "position", "ids", "versus_ids", "text", "versus_text", "logit", "logit_difference",
        "probability"
    }
    assert (target["text"], target["versus_text"]) == (" Mary", " John")
    assert result["options"] == {
        "beta": 0.8,
        "weights": [1 / 3] * 3,
        "mlp_weights": [0.5, 0.5],
        "dispatch": "aligned",
        "mlp": "per-neuron",
        "scores": "raw",
        "reroot": "output",
    } or math.isclose(result["options"]["weights"][0], 1 / 3, rel_tol=1e-8)
    assert result["root"] == "target"
    length = len(result["tokens"])
    assert len(result["predictions"]) == 10 and set(result["predictions"][0]) >= {
        "id",
        "text",
        "probability",
    }
    assert len(result["token_credit"]) == len(result["token_percent"]) == length
    assert (
        list(result["node_credit"])[:3] == ["emb", "pos", "A0.H0"]
        and len(result["node_credit"]["MLP7"]) == length
    )
    assert set(result["importance"]) == set(result["node_credit"])
    assert len(result["paths"]) == 20
    path = result["paths"][0]
    assert set(path) >= {"nodes", "branches", "text", "credit", "percent"} and path[
        "text"
    ].endswith("-> target")
    assert set(result["coverage"]) == {"paths", "absolute", "absolute_matching", "absolute_total"}
    assert set(result["conservation"]) >= {"first", "reached"}
    assert math.isclose(
        result["conservation"]["reached"], sum(result["token_credit"]), rel_tol=1e-6
    )
    assert isinstance(result["warnings"], list)
    for field in ("incoming", "entries", "composition"):
        assert field not in result


def test_trace_finds_the_names(unpack):
    for model in POCKET:
        result = unpack.json(
            "trace", MARY, "--target", " Mary", "--versus", " John", "--model", model, "--preset",
            "paper"
        )
        credit = {
            (t["text"].strip(), t["position"]): c
            for t, c in zip(result["tokens"], result["token_credit"])
        }
        mary = next(c for (text, _), c in credit.items() if text == "Mary")
        johns = [
            c for (text, _), c in sorted(credit.items(), key=lambda x: x[0][1]) if text == "John"
        ]
        assert mary == max(credit.values()), model
        assert johns[0] < 0, model


def test_the_default_target_is_the_prediction_at_the_position(unpack):
    for position in ("-1", "5"):
        result = unpack.json("trace", MARY, "--position", position, "--top-paths", "0")
        assert (
            result["target"]["ids"] == [result["predictions"][0]["id"]]
            and result["target"]["versus_ids"] is None
        )
        assert result["paths"] == []


def test_without_a_contrast_there_is_no_difference(unpack):
    result = unpack.json("trace", MARY, "--raw-logit", "--top-paths", "0")
    assert result["target"]["logit_difference"] is None


def test_a_root_has_fields_of_its_own(unpack):
    head = unpack.json("trace", MARY, "--root", "A4.H1@-1")
    assert set(head["incoming"]) == {"K", "Q", "V"} and set(head["composition"]) == {
        "K", "Q", "V", "all"
    }
    assert len(head["entries"]) == len(head["tokens"])
    mlp = unpack.json("trace", MARY, "--root", "MLP4@-1")
    assert set(mlp["incoming"]) == {"MLP"} and len(mlp["entries"]["neurons"]) == 20
    gated = unpack.json("trace", MARY, "--root", "MLP4@-1", "--model", "pocket-llama")
    assert set(gated["incoming"]) == {"G", "U"}
    assert not gated["paths"][0]["text"].endswith("target") and gated["paths"][0]["nodes"][
        -1
    ].startswith("MLP4@")


def test_every_output_is_written(unpack, tmp_path):
    names = {
        "--json": "t.json",
        "--html": "t.html",
        "--svg": "t.svg",
        "--tikz": "t.tex",
        "--graph": "t.graphml",
    }
    assert (
        unpack.ok(
            "trace", MARY, *(x for option, name in names.items() for x in (option, tmp_path / name))
        )
        == ""
    )
    assert (tmp_path / "t.svg").read_text().lstrip().startswith("<")
    assert "http://" not in (tmp_path / "t.html").read_text().replace("http://www.w3.org", "")
    assert "tikzpicture" in (tmp_path / "t.tex").read_text()
    for name in names.values():
        assert (tmp_path / name).stat().st_size > 100


def test_graphs_are_read_by_other_tools(unpack, tmp_path):
    networkx = pytest.importorskip("networkx")
    unpack.ok("trace", MARY, "--graph", tmp_path / "t.graphml")
    graph = networkx.read_graphml(tmp_path / "t.graphml")
    paths = unpack.json("trace", MARY)["paths"]
    assert {node for path in paths for node in path["nodes"]} <= set(graph.nodes) | {
        d.get("label") or d.get("name") for _, d in graph.nodes(data=True)
    }


def test_graphviz_reads_the_dot_file(unpack, tmp_path):
    if not shutil.which("dot"):
        pytest.skip("Graphviz is not installed")
    unpack.ok("trace", MARY, "--graph", tmp_path / "t.dot")
    assert (
        "<svg"
        in subprocess.run(
            ["dot", "-Tsvg", tmp_path / "t.dot"], capture_output=True, text=True, check=True
        ).stdout
    )


def test_interactions_by_query_and_in_the_mean(unpack):
    mean = unpack.json("interactions", MARY)
    one = unpack.json("interactions", MARY, "--query", "-1")
    every = unpack.json("interactions", MARY, "--all")
    length = len(unpack.json("predict", MARY)["tokens"])
    assert "query" not in mean["attention"][0] and set(mean["mlp"][0]) == {
        "reader",
        "writer",
        "score",
    }
    assert {x["query"] for x in one["attention"]} == {length - 1}
    assert {x["query"] for x in every["attention"]} == set(range(length))
    scores = [x["score"] for x in every["mlp"] if (x["reader"], x["writer"]) == ("MLP3", "MLP0")]
    average = next(
        x["score"] for x in mean["mlp"] if (x["reader"], x["writer"]) == ("MLP3", "MLP0")
    )
    assert len(scores) == length and math.isclose(sum(scores) / length, average, rel_tol=1e-5)


@pytest.mark.parametrize("model", POCKET + [str(GOLDEN / "small-gpt2"), str(GOLDEN / "tiny-qwen3")])
def test_validate_passes(unpack, model):
    text = unpack.ok("validate", "--model", model)
    assert text.count(" ok\n") >= 6 and "FAILED" not in text


def test_attribute_has_a_row_for_every_token_of_the_continuation(unpack):
    result = unpack.json(
        "attribute", "Mary and John went to the store. John gave", "--continuation",
        " a drink to Mary"
    )
    assert "".join(row["text"] for row in result["rows"]) == " a drink to Mary"
    for row in result["rows"]:
        assert len(row["token_credit"]) == row["position"] + 1
        assert result["tokens"][row["position"] + 1]["id"] == row["target_id"]
    alone = unpack.json(
        "trace", "Mary and John went to the store. John gave a drink to", "--target", " Mary"
    )
    last = result["rows"][-1]["token_credit"]
    assert all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4) for a, b in zip(alone["token_credit"], last)
    )


def test_attribute_generates_what_generate_generates(unpack):
    rows = unpack.json("attribute", MARY, "--generate", "4")["rows"]
    assert (
        unpack.ok("generate", MARY, "--max-tokens", "4")
        == MARY + "".join(row["text"] for row in rows) + "\n"
    )


def test_generate_is_greedy_and_sampling_follows_the_seed(unpack):
    greedy = unpack.ok("generate", MARY, "--max-tokens", "12")
    assert greedy.startswith(MARY + " Mary") and greedy == unpack.ok(
        "generate", MARY, "--max-tokens", "12", "--top-k", "1", "--temperature", "1"
    )
    sampled = [
        unpack.ok("generate", MARY, "--max-tokens", "12", "--temperature", "1.5", "--seed", s)
        for s in ("1", "1", "2")
    ]
    assert sampled[0] == sampled[1] != sampled[2]


def test_generate_without_a_tokenizer_prints_ids(unpack):
    ids = (
        unpack.ok(
            "generate", "--model", GOLDEN / "tiny-gpt2", "--ids", "1,2,3", "--max-tokens", "4"
        )
        .strip()
        .split(",")
    )
    assert 1 <= len(ids) <= 4 and all(i.isdigit() for i in ids)


def test_a_threshold_lists_every_path_above_it(unpack):
    result = unpack.json("trace", MARY, "--tau", "0.05")
    assert len(result["paths"]) == result["coverage"]["paths"] > 0
    assert all(abs(path["credit"]) >= 0.05 for path in result["paths"])
    assert len(unpack.json("trace", MARY, "--tau", "0.05", "--top-paths", "3")["paths"]) == min(
        3, len(result["paths"])
    )
