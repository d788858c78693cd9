"""Conversations, answers, groups and sources in Python: what the command line says, and what is
refused.
"""
import re

import numpy as np
import pytest
from conftest import MARY

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt"
    " %}assistant:{% endif %}"
)
NOTES = {
    "a": "Tom went to the park. He saw a dog.",
    "b": "Mary and John went to the store. John gave a drink to Mary.",
}


def test_an_answer_is_what_the_command_line_says(pocket, command_line):
    r = pocket.answer(MARY, " Mary. She", " John", group={"names": (1, 3), "end": -1})
    expected = command_line(
        "trace", MARY, "--answer", " Mary. She", "--versus-answer", " John", "--group", "names=1:3",
        "--group", "end=-1"
    )
    assert np.allclose(r.token_credit, expected["token_credit"], rtol=1e-6, atol=1e-9)
    assert (
        [g["name"] for g in r.groups]
        == [g["name"] for g in expected["groups"]]
        == ["names", "end", "(rest)"]
    )
    assert (
        np.isclose(r.log_probability, expected["answer"]["log_probability"])
        and r.versus["rows"] == []
        and "Answer" in str(r)
    )
    ids = [row["target_id"] for row in r.rows]
    assert np.allclose(pocket.answer(MARY, ids, " John").token_credit, r.token_credit)


def test_the_cost_is_said_before_anything_is_computed(pocket):
    short, long = (pocket.cost(text) for text in (MARY, " ".join([MARY] * 8)))
    assert (
        (short["tokens"], short["targets"]) == (14, 1)
        and 5 * short["gflop"] < long["gflop"]
        and short["seconds"] > 0
    )
    assert (
        pocket.cost(MARY, " Mary. She", " John")["tokens"],
        pocket.cost(MARY, " Mary. She", " John")["targets"],
    ) == (16, 4)
    assert short["text"].startswith("14 tokens, 1 target: ")
    with pytest.raises(ValueError, match="answer"):
        pocket.cost(MARY, "")


def test_the_cost_of_sources_is_said_before_they_are_looked_for(pocket):
    said = pocket.sources_cost("Who got the drink?", NOTES, answer="Mary got it. John gave it.")
    found = pocket.sources("Who got the drink?", NOTES, answer="Mary got it. John gave it.")
    prompt = found.to_dict()["prompt_length"]
    assert said["targets"] == len(found.tokens) - prompt and said["tokens"] == len(found.tokens) - 1
    assert (
        said["gflop"] > 0
        and said["seconds"] > 0
        and said["text"].startswith(f"{said['tokens']} tokens, {said['targets']} targets: ")
    )
    assert pocket.sources_cost("Who?", {"a": NOTES["a"] * 5}, generate=3)["targets"] == 3
    with pytest.raises(ValueError, match="documents"):
        pocket.sources_cost("Who?", [])
    with pytest.raises(TypeError, match="sources_cost has no argument width"):
        pocket.sources_cost("Who?", NOTES, width=3)


def test_a_conversation_is_a_prompt(pocket):
    talk = pocket.chat(
        [{"role": "user", "content": "Mary gave John a drink."}],
        system="Be kind.",
        chat_template=TEMPLATE,
    )
    assert (
        talk.text == "system: Be kind.\nuser: Mary gave John a drink.\nassistant:"
        and pocket.decode(talk) == talk.text
    )
    assert [t.name for t in talk.turns] == ["system 1", "user 2"] and len(talk) == len(list(talk))
    r = pocket.prepare(talk).trace(group_by="turn")
    assert [g["name"] for g in r.groups] == ["system 1", "user 2", "(rest)"]
    assert np.isclose(sum(g["credit"] for g in r.groups), r.token_credit.sum())
    assert pocket.predict(talk).tokens[-1].text == ":" and pocket.generate(talk, max_tokens=2).ids
    assert len(pocket.answer(talk, " Mary", group_by="turn").groups) == 3
    assert pocket.has_chat_template is False


def test_sources_are_what_the_command_line_says(pocket, command_line, tmp_path):
    for name, text in NOTES.items():
        (tmp_path / name).write_text(text)
    r = pocket.sources("Who got the drink?", NOTES, answer="Mary got it. John gave it.")
    expected = command_line(
        "sources", "Who got the drink?", "--documents", str(tmp_path), "--answer",
        "Mary got it. John gave it."
    )
    assert [d["name"] for d in r.documents] == ["a", "b"] and r.prompt == expected["prompt"]
    for ours, theirs in zip(r.sentences, expected["sentences"], strict=True):
        assert np.allclose(
            [d["credit"] for d in ours["documents"]],
            [d["credit"] for d in theirs["documents"]],
            rtol=1e-6,
            atol=1e-9,
        )
    assert r.to_html().startswith("<!") and "strongest" in str(r)
    assert pocket.sources("Who?", ["Mary left."], generate=2).answer


@pytest.mark.parametrize(
    "call, kind, named",
    [
        (lambda m: m.answer(MARY, ""), ValueError, "answer"),
        (lambda m: m.answer(MARY, " a", " a"), ValueError, "same"),
        (lambda m: m.answer(MARY, 5), TypeError, "answer"),
        (lambda m: m.answer(MARY, " a", target=" b"), TypeError, "target"),
        (lambda m: m.answer(MARY, " a", beta=-1), ValueError, "beta"),
        (lambda m: m.answer(MARY, " a", group="a=1:99"), ValueError, "99"),
        (lambda m: m.answer(MARY, " a", group="a"), ValueError, "NAME"),
        (lambda m: m.answer(MARY, " a", group_by="turn"), ValueError, "chat"),
        (lambda m: m.answer(MARY, " a", group="a=1", group_by="line"), ValueError, "group"),
        (lambda m: m.prepare(MARY).trace(group_by="word"), ValueError, "sentence"),
        (lambda m: m.chat("x"), ValueError, "chat template"),
        (lambda m: m.chat(3, chat_template="x"), ValueError, "messages"),
        (lambda m: m.chat([{}], chat_template="x"), ValueError, "messages"),
        (lambda m: m.chat("x", chat_template="{% foo %}"), ValueError, "foo"),
        (lambda m: m.chat("x", system=5, chat_template="x"), TypeError, "system"),
        (lambda m: m.sources("q", []), ValueError, "list"),
        (lambda m: m.sources("q", "text"), TypeError, "documents"),
        (lambda m: m.sources(" ", ["a"]), ValueError, "question"),
        (lambda m: m.sources("q", [3]), ValueError, "text"),
        (lambda m: m.sources("q", ["a"], template="x"), ValueError, "{documents}"),
        (lambda m: m.sources("q", ["a"], generate=0), ValueError, "generate"),
        (lambda m: m.sources("q", ["a"], answer=3), TypeError, "answer"),
        (lambda m: m.sources("q", ["a"], root="A1.H0@1"), TypeError, "root"),
    ],
)
def test_what_does_not_fit_is_named(pocket, call, kind, named):
    with pytest.raises(kind, match=re.escape(named)) as caught:
        call(pocket)
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)
