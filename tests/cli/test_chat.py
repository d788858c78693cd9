"""--chat on the commands: templates from the model's files or a file, conversations, what is
refused.
"""
import json
import shutil

import pytest

from conftest import MODELS

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt"
    " %}assistant:{% endif %}"
)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "chatty"
    shutil.copytree(MODELS / "pocket-gpt2", folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": {"content": "<|endoftext|>"}})
    )
    return folder


def text(result):
    return "".join(t["text"] for t in result["tokens"])


def test_a_prompt_becomes_the_users_turn_with_a_system_message(unpack, model):
    assert (
        text(
            unpack.json(
                "predict", "Hello there", "--chat", "--system", "Be kind.", "--model", model
            )
        )
        == "system: Be kind.\nuser: Hello there\nassistant:"
    )


def test_messages_come_from_json_and_from_a_file(unpack, model, tmp_path):
    talk = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]
    expected = "user: One\nassistant: Two\nuser: Three\nassistant:"
    assert text(unpack.json("predict", json.dumps(talk), "--chat", "--model", model)) == expected
    (tmp_path / "talk.json").write_text(json.dumps({"messages": talk, "tools": []}))
    assert (
        text(unpack.json("predict", "--messages", tmp_path / "talk.json", "--model", model))
        == expected
    )


def test_a_last_turn_of_the_assistant_is_gone_on_with(unpack, model):
    talk = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two and"}]
    assert text(unpack.json("predict", json.dumps(talk), "--chat", "--model", model)).endswith(
        "assistant: Two and"
    )


def test_a_template_in_a_file_goes_before_the_models_own(unpack, model, tmp_path):
    (model / "chat_template.jinja").write_text("J {{ messages[0].content }}")
    assert text(unpack.json("predict", "x", "--chat", "--model", model)) == "J x"
    (tmp_path / "t.jinja").write_text("T {{ messages[0].content }}")
    assert (
        text(
            unpack.json(
                "predict", "x", "--chat-template", tmp_path / "t.jinja", "--model", "pocket-llama"
            )
        )[-3:]
        == "T x"
    )


def test_trace_attribute_and_generate_take_conversations(unpack, model):
    result = unpack.json(
        "trace", "Mary gave John a drink.", "--chat", "--model", model, "--group-by", "turn"
    )
    assert [g["name"] for g in result["groups"]] == ["user 1", "(rest)"]
    assert result["groups"][0]["text"].strip() == "Mary gave John a drink."
    assert unpack.json("attribute", "Hello", "--chat", "--model", model, "--generate", "2")["rows"]
    assert "user:" not in unpack.ok(
        "generate", "Hello", "--chat", "--model", model, "--max-tokens", "3"
    )


@pytest.mark.parametrize(
    "args, status, word",
    [
        (["x", "--system", "y"], 2, "system goes with chat"),
        (["--ids", "1,2", "--chat"], 2, "not ids"),
        (["x", "--chat", "--no-bos"], 2, "no_bos does not go with chat"),
        (["--messages", "/nowhere.json"], 1, "nowhere"),
        (["x", "--chat-template", "/nowhere.jinja"], 1, "nowhere"),
        (['{"messages": 3}', "--chat"], 1, "messages"),
        (
            [
                '[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]', "--chat",
                "--system", "c"
            ],
            1,
            "system",
        ),
    ],
)
def test_what_does_not_fit_is_refused(unpack, model, args, status, word):
    assert word in unpack.fails(status, "predict", *args, "--model", model)


def test_a_model_without_a_template_and_a_template_that_refuses(unpack, model):
    assert "chat template" in unpack.fails(1, "predict", "x", "--chat")
    (model / "chat_template.jinja").write_text("{{ raise_exception('not today') }}")
    assert "not today" in unpack.fails(1, "predict", "x", "--chat", "--model", model)
    (model / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    assert "too long" in unpack.fails(1, "predict", "x", "--chat", "--model", model)
