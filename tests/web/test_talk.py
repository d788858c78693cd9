"""A conversation on the page: through the model's template, its turns as groups."""
import json
import shutil

import pytest
from asking import MARY
from conftest import Page
from serving import ROOT, Server

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}{% if add_generation_prompt"
    " %}<assistant>{% endif %}"
)
TURNS = [
    ["user", "Mary and John went to the store."],
    ["assistant", "John gave a drink to Mary."],
    ["user", "Who got a drink from John?"],
]
MESSAGES = [{"role": "system", "content": "Be kind."}] + [
    {"role": role, "content": content} for role, content in TURNS
]


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(ROOT / "models" / "pocket-gpt2", folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"})
    )
    running = Server("--model", folder)
    yield running
    running.close()


@pytest.fixture
def chat(driver, talking):
    opened = Page(driver, talking.url)
    yield opened
    assert [problem for problem in opened.problems() if "400" not in problem] == []


def write(page, selector, text):
    page.wait(lambda: page.all(selector))
    page.js(
        (
            "const e = [...document.querySelectorAll(arguments[0])].at(-1); e.value = arguments[1];"
            " e.dispatchEvent(new Event('input', {bubbles: true}))"
        ),
        selector,
        text,
    )


def converse(page):
    page.open()
    page.click("#as-talk")
    write(page, "#chat-system", "Be kind.")
    for index, (_, content) in enumerate(TURNS):
        if index:
            page.click("#add-turn")
        page.wait(lambda: len(page.all(".turn-text")) == index + 1)
        write(page, ".turn-text", content)
    page.wait(
        lambda: page.texts(".turn[data-turn]")
        and page.js("return document.querySelectorAll('.turn[data-turn]').length") == 4
    )


def shown(text):
    return float(text.replace("\u2212", "-").replace("?", ""))


def test_a_conversation_is_traced_through_the_template_with_its_turns_as_groups(chat, talking):
    converse(chat)
    chat.shot("talk-written")
    chat.click("#ask-talk")
    chat.wait(lambda: chat.all(".answer"))
    chat.settled()
    want = talking.ok("trace", messages=MESSAGES, group_by="turn")
    chat.wait(lambda: len(chat.texts(".turn b")) == 4)
    assert "".join(chat.texts(".chips .chip:not(.plain)")).startswith("<system>·Be·kind.")
    assert [shown(text) for text in chat.texts(".turn b")] == pytest.approx(
        [group["credit"] for group in want["groups"][:4]], rel=0.01, abs=0.001
    )
    assert chat.js(
        "return [...document.querySelectorAll('.turn[data-turn]')].map((e) => e.dataset.turn)"
    ) == [group["name"] for group in want["groups"][:4]]
    assert chat.driver.title.endswith("Who got a drink from John? · unpack")
    chat.shot("talk-asked")
    # The link shows the same, and the conversation can be changed and taken back.
    address = chat.js("return location.hash")
    chat.driver.get("about:blank")
    chat.driver.get(f"{chat.url}/{address}")
    chat.wait(lambda: len(chat.texts(".turn b")) == 4)
    chat.click("#edit")
    chat.wait(
        lambda: [e.get_attribute("value") for e in chat.all(".turn-text")]
        == [content for _, content in TURNS]
    )
    chat.click("[aria-label='Remove turn 2']")
    chat.wait(lambda: len(chat.all(".turn-text")) == 2 and chat.all(".of-before"))
    chat.click("#ask-talk")
    chat.wait(lambda: len(chat.texts(".turn b")) == 3)


def test_the_second_conversation_differs_in_its_last_turn(chat, talking):
    converse(chat)
    chat.click("#ask-talk")
    chat.wait(lambda: chat.all("#tab-compare"))
    chat.settled()
    chat.click("#tab-compare")
    other = "Who got a drink from Mary?"
    chat.type("#other", other)
    chat.click("#compare")
    chat.wait(lambda: chat.texts(".tokens .changed .word") == ["·John", "·Mary"], seconds=30)
    # What a component writes in it can be put in its place.
    patched = [*MESSAGES[:3], {"role": "user", "content": other}]
    got = talking.ok(
        "intervene",
        messages=MESSAGES,
        patch_messages=patched,
        components=["MLP0"],
        ablate="resample",
        target=" Mary",
    )
    assert got["clean"]["target"] != got["cut"]["target"]
    same = talking.ok(
        "intervene",
        messages=MESSAGES,
        patch_messages=MESSAGES,
        components=["MLP0"],
        ablate="resample",
        target=" Mary",
    )
    assert same["clean"]["target"] == pytest.approx(same["cut"]["target"], abs=1e-4)
    for bad, message in (
        ("x", "messages"),
        ([{"role": "user", "content": "Hi"}], "one length"),
        ([], "message"),
        ([7], "message"),
    ):
        assert message in talking.refused(
            "intervene",
            {
                "messages": MESSAGES,
                "patch_messages": bad,
                "components": ["MLP0"],
                "ablate": "resample",
                "target": " Mary",
            },
        )


def test_a_token_of_the_models_turn_is_explained_in_the_graph(chat):
    converse(chat)
    chat.click("#ask-talk")
    chat.wait(lambda: chat.all("#tab-answer"))
    chat.settled()
    chat.click("#tab-answer")
    chat.wait(lambda: len(chat.all(".output .chip")) > 2)
    wanted = chat.texts(".output .chip")[2]
    chat.js("document.querySelectorAll('.output .chip')[2].click()")
    chat.wait(lambda: chat.all(".output .chip")[2].get_attribute("aria-pressed") == "true")
    before = len(chat.all(".strip .token"))
    chat.click("#answer-why")
    chat.wait(lambda: chat.all("#graph .node.target"))
    chat.settled()
    chat.wait(lambda: chat.text("#graph .node.target").startswith(wanted))
    assert len(chat.all(".chips .chip:not(.plain)")) == before


def test_a_model_without_a_template_says_so_and_a_wrong_template_is_named(page):
    page.open(f"#prompt={MARY}")
    page.click("#edit")
    page.click("#as-talk")
    page.wait(lambda: "has no chat template" in page.text(".template"))
    assert "message.role" in page.one("#chat-template").get_attribute("value")
    page.click("#ask-talk")
    page.wait(lambda: page.texts(".turn[data-turn]"))
    page.settled()
    page.click("#edit")
    write(page, "#chat-template", "{% frobnicate %}")
    page.wait(lambda: "frobnicate" in page.text(".ask"))
    assert len([problem for problem in page.problems() if "400" in problem]) >= 1
    page.click("#as-text")
    page.wait(lambda: page.one("#prompt").get_attribute("value") == MARY)
