"""Conversations, answers of several tokens, groups and sources over the API: as on the command
line, and refused as there.
"""
import json
import shutil
import subprocess

import pytest
from serving import MARY, PROGRAM, ROOT
from test_api import close, command_line

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt"
    " %}assistant:{% endif %}"
)
DOCUMENTS = [
    {"name": "a", "text": "Tom went to the park. He saw a dog."},
    "Mary and John went to the store. John gave a drink to Mary.",
]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(ROOT / "models" / "pocket-gpt2", folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"})
    )
    return folder


@pytest.fixture(scope="module")
def talking(chatty):
    from serving import Server

    running = Server("--model", chatty, "--max-tokens", "200")
    yield running
    running.close()


def joined(tokens):
    return "".join(token["text"] for token in tokens)


def test_an_answer_with_groups_is_what_the_command_line_says(server):
    fields = {"answer": " Mary. She", "versus_answer": " John", "group": ["names=1:3", "end=-1"]}
    got = server.ok("trace", prompt=MARY, **fields)
    expected = command_line(
        "trace", MARY, "--answer", " Mary. She", "--versus-answer", " John", "--group", "names=1:3",
        "--group", "end=-1"
    )
    assert close(
        {k: v for k, v in got.items() if k != "program"},
        {k: v for k, v in expected.items() if k != "program"},
    )
    assert [g["name"] for g in got["groups"]] == ["names", "end", "(rest)"]
    ids = [
        row["target_id"]
        for row in server.ok("trace", prompt=MARY, answer=" Mary. She")["answer"]["rows"]
    ]
    assert close(
        server.ok("trace", prompt=MARY, answer=ids)["token_credit"],
        server.ok("trace", prompt=MARY, answer=" Mary. She")["token_credit"],
    )


def test_the_cost_is_said_before_anything_is_computed(server):
    short, long = (server.ok("cost", prompt=text) for text in (MARY, " ".join([MARY] * 8)))
    assert (
        (short["tokens"], short["targets"]) == (14, 1)
        and 5 * short["gflop"] < long["gflop"]
        and short["seconds"] > 0
    )
    answer = server.ok("cost", prompt=MARY, answer=" Mary. She", versus_answer=" John", beta=0.2)
    assert (answer["tokens"], answer["targets"]) == (16, 4) and answer["gflop"] > short["gflop"]
    said = subprocess.run(
        [PROGRAM, "trace", MARY, "--answer", " Mary. She", "--versus-answer", " John", "--cost"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    ).stdout
    assert answer["text"].split(", about")[0] == said.split(", about")[0]
    sources = server.ok("cost", question="Who gave it?", documents=[MARY], answer="Mary")
    assert (
        sources["tokens"] > short["tokens"] and sources["targets"] >= 1 and sources["seconds"] > 0
    )
    assert "question" in server.refused("cost", {"documents": [MARY]})
    for body, word in (
        ({}, "prompt"),
        ({"prompt": MARY, "beta": -1}, "beta"),
        ({"prompt": MARY, "answer": ""}, "answer"),
        ({"prompt": MARY, "rows": 3}, "unknown field"),
        ({"prompt": "word " * 2000}, "limit"),
    ):
        assert word in server.refused("cost", body)


def test_groups_of_a_trace(server):
    got = server.ok("trace", prompt=MARY, target=" Mary", group_by="sentence")
    assert [g["text"].strip() for g in got["groups"]][1:] == [
        "Mary and John went to the store.",
        "John gave a drink to",
    ]
    assert close(sum(g["credit"] for g in got["groups"]), sum(got["token_credit"]))


def test_a_conversation_goes_through_the_template(talking):
    messages = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]
    got = talking.ok("tokenize", messages=messages)
    assert (
        got["text"] == joined(got["tokens"]) == "user: One\nassistant: Two\nuser: Three\nassistant:"
    )
    assert [t["name"] for t in got["turns"]] == ["user 1", "assistant 2", "user 3"]
    assert (
        joined(talking.ok("predict", prompt="Hi", chat=True, system="Be kind.")["tokens"])
        == "system: Be kind.\nuser: Hi\nassistant:"
    )
    assert (
        joined(
            talking.ok(
                "predict",
                messages={"messages": messages, "tools": []},
                chat_template="{{ messages[2].content }}!",
            )["tokens"]
        )
        == "Three!"
    )
    traced = talking.ok("trace", messages=messages, group_by="turn")
    assert [g["name"] for g in traced["groups"]] == ["user 1", "assistant 2", "user 3", "(rest)"]
    assert talking.ok("attribute", prompt="Hi", chat=True, generate=2)["rows"]
    assert talking.ok("trace", prompt="Hi", chat=True, answer=" Mary")["answer"]["rows"]
    info = json.loads(talking.raw("GET", "/api/models")[2])["models"][0]["info"]
    assert info["chat"] is True


def test_sources_are_what_the_command_line_says(server, tmp_path):
    (tmp_path / "d.json").write_text(json.dumps(DOCUMENTS))
    got = server.ok(
        "sources", question="Who got the drink?", documents=DOCUMENTS,
        answer="Mary got it. John gave it."
    )
    expected = command_line(
        "sources",
        "Who got the drink?",
        "--documents",
        str(tmp_path / "d.json"),
        "--answer",
        "Mary got it. John gave it.",
    )
    assert close(
        {k: v for k, v in got.items() if k != "program"},
        {k: v for k, v in expected.items() if k != "program"},
    )
    assert len(got["sentences"]) == 2 and [d["name"] for d in got["documents"]] == [
        "a",
        "document 2",
    ]
    made = server.ok(
        "sources",
        question="Who?",
        documents=["Mary left."],
        generate=3,
        template="{question} {documents}:",
        document_template="[{text}]",
        beta=0.5,
    )
    assert made["generated"] and made["prompt"] == "Who? [Mary left.]:"
    status, headers, page = server.raw(
        "POST",
        "/api/sources",
        json.dumps(
            {"question": "Who?", "documents": ["a b."], "answer": "c", "format": "html"}
        ).encode(),
        {"Content-Type": "application/json"},
    )
    assert (
        status == 200 and headers["content-type"].startswith("text/html") and page.startswith(b"<!")
    )


ANSWERS = [
    ({"versus_answer": " x"}, "goes with answer"),
    ({"answer": ""}, "no tokens"),
    ({"answer": " a", "versus_answer": " a"}, "same"),
    ({"answer": " a", "target": " b"}, "not both"),
    ({"answer": " a", "root": "A1.H0@1"}, "answer"),
    ({"answer": " a", "raw_logit": True}, "answer"),
    ({"answer": " a", "position": 1}, "answer"),
    ({"answer": " a", "format": "svg"}, "JSON"),
    ({"answer": 5}, "answer takes a text"),
    ({"answer": [999999]}, "vocabulary"),
    ({"answer": " a" * 600}, "limit of 512"),
    ({"group": "a=1:99"}, "99"),
    ({"group": ["a=3:1"]}, "before"),
    ({"group": "a"}, "NAME"),
    ({"group": ["a=x:2"]}, "NAME"),
    ({"group": 5}, "group takes"),
    ({"group_by": "word"}, "sentence"),
    ({"group_by": "turn"}, "chat"),
    ({"group": "a=1", "group_by": "line"}, "not both"),
]


@pytest.mark.parametrize("body, word", ANSWERS, ids=range(len(ANSWERS)))
def test_answers_and_groups_that_do_not_fit_are_refused(server, body, word):
    assert word in server.refused("trace", {"prompt": MARY, **body})


def test_an_answer_goes_with_a_trace_alone(server):
    assert "/api/trace" in server.refused("paths", {"prompt": MARY, "answer": " a"})
    assert "unknown field" in server.refused("predict", {"prompt": MARY, "answer": " a"})


CHATS = [
    ({"prompt": "x", "system": "y"}, "goes with chat"),
    ({"ids": [1, 2], "chat": True}, "ids"),
    ({"prompt": "x", "chat": True, "no_bos": True}, "no_bos"),
    ({"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, "not both"),
    ({"messages": 3}, "messages takes"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "y"}]}, "messages"),
    ({"messages": {"messages": 3}}, "messages"),
    (
        {
            "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
            "system": "c",
        },
        "system",
    ),
    ({"prompt": "x", "chat": 1}, "true or false"),
    ({"prompt": "x", "chat_template": "{% foo %}"}, "foo"),
    ({"prompt": "x", "chat_template": "{{ raise_exception('not today') }}"}, "not today"),
    (
        {
            "prompt": "x",
            "chat_template": (
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
            ),
        },
        "too long",
    ),
    ({"prompt": "x", "chat_template": "{% for a in range(9999) %}abcdefgh {% endfor %}"}, "limit"),
]


@pytest.mark.parametrize("body, word", CHATS, ids=range(len(CHATS)))
def test_conversations_that_do_not_fit_are_refused(talking, body, word):
    assert word in talking.refused("predict", body)


def test_a_model_without_a_template_says_so(server):
    assert "chat template" in server.refused("predict", {"prompt": "x", "chat": True})
    assert json.loads(server.raw("GET", "/api/models")[2])["models"][0]["info"]["chat"] is False


SOURCES = [
    ({"documents": ["a"]}, "question"),
    ({"question": "q"}, "documents"),
    ({"question": " ", "documents": ["a"]}, "empty"),
    ({"question": "q", "documents": []}, "list"),
    ({"question": "q", "documents": "a"}, "list"),
    ({"question": "q", "documents": [3]}, "text"),
    ({"question": "q", "documents": [{"name": "a"}]}, "text"),
    ({"question": "q", "documents": [" "]}, "no text"),
    ({"question": "q", "documents": ["a"], "template": "{question}"}, "{documents}"),
    ({"question": "q", "documents": ["a"], "document_template": "x"}, "{text}"),
    ({"question": "q", "documents": ["a"], "answer": "x", "generate": 3}, "not both"),
    ({"question": "q", "documents": ["a"], "generate": 0}, "generate"),
    ({"question": "q", "documents": ["a"], "answer": ""}, "no tokens"),
    ({"question": "q", "documents": ["word " * 2000], "answer": "x"}, "limit"),
    ({"question": "q", "documents": ["x" * 200000], "answer": "x"}, "bytes"),
    ({"question": "q", "documents": ["a"], "answer": "x", "beta": -1}, "beta"),
    ({"question": "q", "documents": ["a"], "file": "/etc/passwd"}, "unknown field"),
    ({"question": "q", "documents": ["a"], "answer": "x", "chat": True}, "chat template"),
    ({"question": "q", "documents": ["a"], "format": "svg"}, "json, html"),
]


@pytest.mark.parametrize("body, word", SOURCES, ids=range(len(SOURCES)))
def test_sources_that_do_not_fit_are_refused(server, body, word):
    assert word in server.refused("sources", body)
