"""Answers of several tokens, groups of positions, and the sources of an answer."""
import json
import re
import shutil

import pytest

from conftest import MARY, MODELS


def close(a, b):
    assert len(a) == len(b)
    assert all(abs(x - y) <= 1e-6 * max(1, abs(y)) for x, y in zip(a, b)), (a, b)


def test_an_answer_is_the_sum_of_its_tokens_rows(unpack):
    answer = unpack.json("trace", MARY, "--answer", " Mary. She")
    rows = unpack.json("attribute", MARY, "--continuation", " Mary. She")["rows"]
    n = answer["prompt_length"]
    assert len(answer["answer"]["rows"]) == len(rows) > 1
    for a, b in zip(answer["answer"]["rows"], rows):
        close(a["token_credit"], b["token_credit"])
        assert abs(a["probability"] - b["probability"]) < 1e-6
    close(answer["token_credit"], [sum(r["token_credit"][s] for r in rows) for s in range(n)])
    close([answer["answer_credit"]], [sum(sum(r["token_credit"][n:]) for r in rows)])
    predicted = unpack.json("predict", MARY + " Mary. She")["tokens"][n:]
    close([answer["answer"]["log_probability"]], [sum(t["log_probability"] for t in predicted)])


def test_one_token_against_another_is_a_plain_trace(unpack):
    a = unpack.json("trace", MARY, "--answer", " Mary", "--versus-answer", " John")
    b = unpack.json("trace", MARY, "--target", " Mary", "--versus", " John")
    close(a["token_credit"], b["token_credit"])
    close([a["answer"]["rows"][0]["logit_difference"]], [b["target"]["logit_difference"]])


def test_answers_of_other_lengths_are_set_against_each_other_from_where_they_part(unpack):
    a = unpack.json("trace", MARY, "--answer", " Mary and John", "--versus-answer", " Mary.")
    assert a["answer"]["rows"][0]["versus_id"] is not None
    assert a["answer"]["rows"][0]["position"] == a["prompt_length"]
    assert a["versus_answer"]["rows"] == []


def test_groups_add_up(unpack):
    result = unpack.json("trace", MARY, "--group", "names=1:3", "--group", "end=-2:-1")
    credit = result["token_credit"]
    by_name = {g["name"]: g for g in result["groups"]}
    close([by_name["names"]["credit"]], [sum(credit[1:4])])
    close([by_name["end"]["credit"]], [sum(credit[-2:])])
    close([sum(g["credit"] for g in result["groups"])], [sum(credit)])


def test_sentences_lines_and_paragraphs(unpack):
    text = "Mary went home. John stayed.\nThe store was closed\n\nTom gave a drink to"
    names = lambda kind: [
        g["text"].strip()
        for g in unpack.json("trace", text, "--group-by", kind)["groups"]
        if not g["text"].startswith("<")
    ]
    assert names("sentence") == [
        "Mary went home.", "John stayed.", "The store was closed", "Tom gave a drink to"
    ]
    assert names("line") == [
        "Mary went home. John stayed.",
        "The store was closed",
        "Tom gave a drink to",
    ]
    assert names("paragraph") == [
        "Mary went home. John stayed.\nThe store was closed",
        "Tom gave a drink to",
    ]


@pytest.mark.parametrize(
    "args, status, word",
    [
        (["--versus-answer", " x"], 2, "versus_answer goes with answer"),
        (["--answer", ""], 1, "no tokens"),
        (["--answer", " a", "--versus-answer", " a"], 1, "same"),
        (["--answer", " a", "--target", " b"], 2, "target or answer, not both"),
        (["--answer", " a", "--svg", "x.svg"], 2, "svg does not go with answer"),
        (["--group", "a=1:99"], 1, "group: position 99"),
        (["--group", "a=3:1"], 1, "before"),
        (["--group", "a"], 2, "NAME"),
        (["--group", "a=x:2"], 2, "NAME"),
        (["--group-by", "word"], 2, "sentence"),
        (["--group-by", "turn"], 2, "goes with chat"),
        (["--group-by", "line", "--group", "a=1"], 2, "group or group_by, not both"),
    ],
)
def test_what_does_not_fit_is_refused(unpack, args, status, word):
    assert word in unpack.fails(status, "trace", MARY, *args)


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("Tom went to the park. He saw a dog.\n")
    (folder / "b.txt").write_text("Mary and John went to the store. John gave a drink to Mary.\n")
    return folder


def test_sources_give_every_document_and_sentence_its_credit(unpack, notes):
    result = unpack.json(
        "sources", "Who got the drink?", "--documents", notes, "--answer",
        "Mary got it. John gave it."
    )
    assert [d["name"] for d in result["documents"]] == ["a.txt", "b.txt"]
    assert [[s["text"].strip() for s in d["sentences"]] for d in result["documents"]] == [
        ["Tom went to the park.", "He saw a dog."],
        ["Mary and John went to the store.", "John gave a drink to Mary."],
    ]
    assert [s["text"].strip() for s in result["sentences"]] == ["Mary got it.", "John gave it."]
    answer = unpack.json("trace", result["prompt"], "--answer", " Mary got it. John gave it.")
    for sentence in result["sentences"]:
        rows = [
            r
            for r in answer["answer"]["rows"]
            if sentence["from"] <= r["position"] + 1 <= sentence["to"]
        ]
        for document, credits in zip(result["documents"], sentence["documents"]):
            inside = lambda span: sum(
                sum(r["token_credit"][span["from"] : span["to"] + 1]) for r in rows
            )
            close([credits["credit"]], [inside(document)])
            close(
                [c["credit"] for c in credits["sentences"]],
                [inside(s) for s in document["sentences"]],
            )
            close([credits["credit"]], [sum(c["credit"] for c in credits["sentences"])])


def test_sources_as_table_and_page_and_from_json(unpack, notes, tmp_path):
    out = unpack.ok("sources", "Who?", "--documents", notes, "--generate", "3")
    assert "b.txt" in out and "strongest tokens" in out and "earlier tokens of the answer" in out
    documents = tmp_path / "d.jsonl"
    documents.write_text(
        json.dumps({"name": "one </script>", "text": "Mary <b>left</b>."})
        + "\n"
        + json.dumps("John stayed.")
        + "\n"
    )
    unpack.ok(
        "sources", "Who left?", "--documents", documents, "--answer", "Mary", "--html",
        tmp_path / "s.html"
    )
    page = (tmp_path / "s.html").read_text()
    assert (
        page.count("</script>") == 2
        and "&lt;b&gt;" in page
        and "http" not in page
        and "prefers-color-scheme:dark" in page
    )
    template = tmp_path / "t.txt"
    template.write_text("Q: {question}\n{documents}\nA:")
    result = unpack.json(
        "sources", "Who left?", "--documents", documents, "--answer", "Mary", "--template", template
    )
    assert result["prompt"].startswith("Q: Who left?\n") and result["prompt"].endswith("A:")


def test_bad_documents_are_refused(unpack, tmp_path, notes):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"a\xff")
    empty = tmp_path / "empty"
    empty.mkdir()
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n")
    lines = tmp_path / "x.jsonl"
    lines.write_text("{")
    table = tmp_path / "x.json"
    table.write_text('[{"name": "a"}]')
    template = tmp_path / "t.txt"
    template.write_text("{question}")
    for documents, word in (
        (bad, "UTF-8"),
        (empty, "no files"),
        (blank, "no text"),
        (lines, "line 1"),
        (table, "text"),
        (tmp_path / "none", "no such"),
    ):
        assert word in unpack.fails(1, "sources", "Who?", "--documents", documents, "--answer", "x")
    assert "{documents}" in unpack.fails(
        1, "sources", "Who?", "--documents", notes, "--answer", "x", "--template", template
    )
    assert "--documents" in unpack.fails(2, "sources", "Who?")
    assert "question" in unpack.fails(1, "sources", " ", "--documents", notes, "--answer", "x")


def test_lines_of_a_batch_take_answers_groups_and_conversations(unpack, tmp_path):
    prompts = tmp_path / "p.jsonl"
    talk = [{"role": "user", "content": "Mary gave John a drink."}]
    lines = [
        {
            "prompt": MARY,
            "answer": " Mary. She",
            "versus_answer": " John",
            "group": "names=1:3;end=-1",
        },
        {"prompt": MARY, "group_by": "sentence"},
        {"messages": talk, "chat_template": "{{ messages[0].content }} Then", "group_by": "turn"},
        {"prompt": MARY, "answer": " Mary", "target": " Mary"},
        {"prompt": MARY, "answer": " Mary", "root": "A1.H0@2"},
        {"prompt": MARY, "group": ["a=1:99"]},
        {"prompt": MARY, "group_by": "turn"},
        {"messages": "no JSON", "chat_template": "x"},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, again = tmp_path / "first", tmp_path / "again"
    unpack("batch", prompts, "--out", first, "--arrays")
    results = [json.loads(line) for line in (first / "results.jsonl").read_text().splitlines()]
    errors = [
        json.loads(line)["reason"] for line in (first / "errors.jsonl").read_text().splitlines()
    ]
    assert len(results) == 3 and len(errors) == 5
    for word, reason in zip(("not both", "answer", "99", "chat", "messages"), errors, strict=True):
        assert word in reason
    alone = unpack.json(
        "trace", MARY, "--answer", " Mary. She", "--versus-answer", " John", "--group", "names=1:3",
        "--group", "end=-1"
    )
    close(results[0]["token_credit"], alone["token_credit"])
    close([g["credit"] for g in results[0]["groups"]], [g["credit"] for g in alone["groups"]])
    assert [g["text"].strip() for g in results[1]["groups"]][1:] == [
        "Mary and John went to the store.",
        "John gave a drink to",
    ]
    assert [g["name"] for g in results[2]["groups"]] == ["user 1", "(rest)"]
    # What an interrupted run left is read back, and ends as the whole run did.
    again.mkdir()
    kept = (first / "results.jsonl").read_text().splitlines(keepends=True)
    (again / "run.json").write_bytes((first / "run.json").read_bytes())
    (again / "results.jsonl").write_text("".join(kept[:1]))
    unpack("batch", prompts, "--out", again, "--arrays")
    assert (again / "results.jsonl").read_bytes() == (first / "results.jsonl").read_bytes()
    assert (again / "token_credit.npy").read_bytes() == (first / "token_credit.npy").read_bytes()
    assert (again / "summary.json").read_bytes() == (first / "summary.json").read_bytes()


def test_a_batch_takes_answers_and_conversations_from_the_command_line(unpack, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        json.dumps({"prompt": MARY}) + "\n" + json.dumps({"prompt": MARY, "answer": " John"}) + "\n"
    )
    unpack.ok(
        "batch", prompts, "--out", tmp_path / "answers", "--answer", " Mary. She", "--group",
        "names=1:3"
    )
    results = [
        json.loads(line)
        for line in (tmp_path / "answers" / "results.jsonl").read_text().splitlines()
    ]
    for result, text in zip(results, (" Mary. She", " John"), strict=True):
        alone = unpack.json("trace", MARY, "--answer", text, "--group", "names=1:3")
        close(result["token_credit"], alone["token_credit"])
        assert [g["name"] for g in result["groups"]] == ["names", "(rest)"]
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    (tmp_path / "p.txt").write_text("Who got it?\n")
    unpack.ok(
        "batch", tmp_path / "p.txt", "--out", tmp_path / "talks", "--chat-template", template,
        "--system", "Be kind.", "--group-by", "turn"
    )
    (talk,) = [
        json.loads(line) for line in (tmp_path / "talks" / "results.jsonl").read_text().splitlines()
    ]
    alone = unpack.json(
        "trace", "Who got it?", "--chat-template", template, "--system", "Be kind.", "--group-by",
        "turn"
    )
    close(talk["token_credit"], alone["token_credit"])
    assert [g["name"] for g in talk["groups"]] == ["system 1", "user 2", "(rest)"]
    for options, word in (
        (["--system", "x"], "goes with chat"),
        (["--group-by", "turn"], "goes with chat"),
        (["--versus-answer", "x"], "goes with answer"),
        (["--answer", "x", "--target", " Mary"], "target or answer"),
        (["--chat", "--no-bos"], "no_bos"),
        (["--group", "a=1:2", "--group-by", "line"], "not both"),
    ):
        assert word in unpack.fails(2, "batch", prompts, "--out", tmp_path / "bad", *options)
    assert unpack("batch", prompts, "--out", tmp_path / "none", "--chat").returncode == 1
    assert "chat template" in (tmp_path / "none" / "errors.jsonl").read_text()


def test_the_cost_is_said_and_nothing_is_computed(unpack, notes):
    short, long = (unpack.ok("trace", text, "--cost") for text in (MARY, " ".join([MARY] * 12)))
    flop = lambda text: float(text.split(": ")[1].split(" GFLOP")[0])
    assert (
        "14 tokens, 1 target:" in short
        and "memory" in short
        and " s\n" in short
        and flop(long) > 8 * flop(short)
    )
    answer = unpack.ok("trace", MARY, "--answer", " Mary. She", "--cost")
    assert "3 targets" in answer and flop(short) < flop(answer) < 3 * flop(short)
    both = unpack.ok(
        "trace", MARY, "--answer", " Mary. She", "--versus-answer", " John. He", "--cost"
    )
    assert (
        "6 targets" in both and abs(flop(both) / flop(answer) - 2) < 0.05
    ), "another answer is a prompt of its own"
    mib = lambda text: float(text.split("GFLOP, ")[1].split(" MiB")[0])
    assert mib(short) < 64, "no more than a short prompt takes"
    assert "7 targets" in unpack.ok("attribute", MARY, "--generate", "7", "--cost")
    assert "target" in unpack.ok(
        "sources", "Who?", "--documents", notes, "--answer", "Mary", "--cost"
    )
    assert "outside the vocabulary" in unpack.fails(1, "trace", "--ids", "999999", "--cost")


def test_a_prompt_that_memory_cannot_hold_is_refused_before_it_is_begun(unpack, tmp_path):
    folder = tmp_path / "long"
    shutil.copytree(MODELS / "pocket-llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 200_000}))
    text = "and so on " * 20_000
    line = unpack.fails(1, "trace", "-", "--model", folder, "--device", "cpu", stdin=text)
    assert re.search(
        r"\d+ tokens take about [\d.]+ GiB of memory .* up to some \d+ tokens would fit", line
    )
    assert "GiB of memory beside the weights, about" in unpack.ok(
        "trace", "-", "--model", folder, "--device", "cpu", "--cost", stdin=text
    )
