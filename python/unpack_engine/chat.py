"""Conversations as prompts."""
from __future__ import annotations

import json
from typing import Any, List, NamedTuple, Optional, Sequence, overload

from . import _arguments as check
from . import _native


class Turn(NamedTuple):
    """Where the content of a message stands: positions, both included."""

    name: str
    first: int
    last: int


class Chat(Sequence[int]):
    """A conversation through a model's chat template, made by `Model.chat`; a prompt like any
    other, as the ids it is made of.
    """

    def __init__(self, native: _native.MadePrompt) -> None:
        self._native = native
        self._ids = native.ids

    def __repr__(self) -> str:
        return f"Chat(tokens={len(self)}, turns={len(self.turns)})"

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> int:
        ...

    @overload
    def __getitem__(self, at: slice) -> List[int]:
        ...

    def __getitem__(self, at: Any) -> Any:
        return self._ids[at]

    @property
    def text(self) -> str:
        """What the template made."""
        return self._native.text

    @property
    def turns(self) -> List[Turn]:
        """Where the messages stand among the tokens."""
        return [Turn(*turn) for turn in self._native.turns]

    @property
    def stops(self) -> List[int]:
        """Tokens that end the model's turn."""
        return self._native.stops


def make(model: _native.Model, conversation: Any, system: Any, chat_template: Any) -> Chat:
    text, messages = None, None
    if isinstance(conversation, str):
        text = check.text("conversation", conversation)
    else:
        try:
            messages = json.dumps(conversation)
        except (TypeError, ValueError):
            raise TypeError(
                "conversation must be a text or a list of messages, not"
                f" {check.shown(conversation)}"
            ) from None
    return Chat(
        _native.MadePrompt(
            model, text, None, messages, True, True, check.optional_text("system", system),
            check.optional_text("chat_template", chat_template)
        )
    )


def made(model: _native.Model, prompt: Any, bos: Any) -> _native.MadePrompt:
    """What the engine made of a prompt, whatever it is."""
    if isinstance(prompt, Chat):
        return prompt._native
    if isinstance(prompt, str):
        return check.named(
            "prompt", _native.MadePrompt, model, check.text("prompt", prompt), None, None,
            check.flag("bos", bos), False, None, None
        )
    return _native.MadePrompt(
        model, None, check.prompt_ids(model, "prompt", prompt), None, True, False, None, None
    )


def method_options(function: str, options: Any) -> Any:
    """Those that set the method; any other name is an error."""
    for name in options:
        if name not in check.SETTINGS:
            raise TypeError(
                f"{function} has no argument {name}: the options of the method are"
                f" {', '.join(check.SETTINGS)}"
            )
    return options


def stops(prompt: Any) -> List[int]:
    return prompt.stops if isinstance(prompt, Chat) else []


def documents(value: Any) -> str:
    """Texts, or dictionaries with name and text, or a dictionary of texts by name."""
    if isinstance(value, str):
        raise TypeError("documents must be a list of texts, not a str")
    if isinstance(value, dict):
        value = [{"name": name, "text": text} for name, text in value.items()]
    try:
        return json.dumps(list(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"documents must be texts, or objects with name and text, not {check.shown(value)}"
        ) from None


def about_documents(
    function: str, question: Any, given: Any, answer: Any, generate: Any, template: Any,
    document_template: Any, chat: Any, options: Any
) -> _native.AboutDocuments:
    """A question about documents, checked."""
    return _native.AboutDocuments(
        check.text("question", question),
        documents(given),
        check.optional_text("answer", answer),
        check.integer("generate", generate, 1),
        check.optional_text("template", template),
        check.optional_text("document_template", document_template),
        check.flag("chat", chat),
        check.asked(None, None, {}, method_options(function, options)),
    )


def group_fields(group: Any, group_by: Optional[str]) -> Any:
    """As the codec takes them: {"names": (1, 3)} is "names=1:3"."""
    if group is not None and group_by is not None:
        raise ValueError("give group or group_by, not both")
    if isinstance(group, dict):
        group = [
            (
                f"{name}={places[0]}:{places[1]}"
                if isinstance(places, (tuple, list))
                else f"{name}={places}"
            )
            for name, places in group.items()
        ]
    return {"group": group, "group_by": group_by}
