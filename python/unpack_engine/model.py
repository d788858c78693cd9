"""A loaded model."""
from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import _arguments as check
from . import _native
from . import chat as conversations
from ._arguments import Progress, Prompt, TokenSet
from .chat import Chat
from .prepared import Prepared, Weights2, Weights3
from .results import Answer, Attribution, Intervention, Predictions, Sources, Token, Trace

_MEMORY = 1 << 30
_DEFAULT = _native.defaults


class Generation(NamedTuple):
    """New tokens: their ids, and their text where the model has a tokenizer."""

    ids: List[int]
    text: Optional[str]

    def __str__(self) -> str:
        return self.text if self.text is not None else " ".join(map(str, self.ids))


class Model:
    """A model ready to answer; made by `load`, `random` or `from_state_dict`.

    >>> import unpack_engine as up
    >>> m = up.load("pocket-gpt2")
    >>> m.family, m.config["n_layers"] > 0, m.writers[:2]
    ('gpt2', True, ['emb', 'pos'])
    """

    def __init__(self, native: _native.Model) -> None:
        self._native = native

    def __repr__(self) -> str:
        c = self.config
        return (
            f"Model({c['name']!r}, {c['family']}, layers={c['n_layers']}, heads={c['n_heads']},"
            f" d_model={c['d_model']}, device={self.device!r})"
        )

    @property
    def config(self) -> Dict[str, Any]:
        """Shape and kind: n_layers, n_heads, d_model, norm, block, mlp, ..."""
        return self._native.config

    @property
    def name(self) -> str:
        """What it was loaded as."""
        return str(self.config["name"])

    @property
    def family(self) -> str:
        """model_type of its config.json: gpt2, llama, gemma2, mixtral, ..."""
        return str(self.config["family"])

    @property
    def fingerprint(self) -> str:
        """A fast hash of headers and samples of every tensor."""
        return self._native.fingerprint

    @property
    def device(self) -> str:
        """Where it computes."""
        return self._native.device

    @property
    def threads(self) -> int:
        """How many threads it computes with."""
        return self._native.threads

    @property
    def writers(self) -> List[str]:
        """The writers of the residual stream in canonical order."""
        return self._native.writers

    @property
    def has_tokenizer(self) -> bool:
        """Whether prompts may be texts."""
        return self._native.has_tokenizer

    def tokenize(self, text: str, *, bos: bool = False, special: bool = False) -> List[Token]:
        """How a text splits. With `bos` as a prompt would; with `special`, special tokens in the
        text are recognised.

        >>> import unpack_engine as up
        >>> [t.text for t in up.load("pocket-gpt2").tokenize("Mary and John")]
        ['Mary', ' and', ' John']
        """
        check.flag("bos", bos)
        ids = self._native.encode(check.text("text", text), check.flag("special", special))
        return self._tokens((self._native.prefix() if bos else []) + ids)

    def encode(self, text: str, *, bos: bool = True) -> List[int]:
        """The ids of a prompt, with the special tokens in front that this model expects unless
        bos=False.
        """
        return self._native.encode_prompt(check.text("text", text), check.flag("bos", bos))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._native.decode(check.token_ids("ids", ids))

    def _tokens(self, ids: Sequence[int]) -> List[Token]:
        return [Token(*token) for token in self._native.tokens(ids)]

    def predict(
        self,
        prompt: Prompt,
        *,
        top: int = _DEFAULT["top"],
        lens: bool = False,
        experts: bool = False,
        position: int = -1,
        bos: bool = True,
        progress: Progress = None,
    ) -> Predictions:
        """The likeliest next tokens, and the log-probability of every token of the prompt; with
        experts=True (mixtures) the experts it used.

        >>> import unpack_engine as up
        >>> r = up.load("pocket-gpt2").predict(
        ...     "Mary and John went to the store. John gave a drink to", top=3
        ... )
        >>> r.predictions[0].text
        ' Mary'
        """
        ids = check.prompt_ids(self._native, "prompt", prompt, bos)
        top, at = check.integer("top", top, 1), check.position("position", position, len(ids))
        with check.reporting(progress) as report:
            return Predictions(
                self._native.predict(
                    ids, top, check.flag("lens", lens), check.flag("experts", experts), at, report
                )
            )

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = _DEFAULT["max_tokens"],
        temperature: float = 0.0,
        top_k: int = 0,
        seed: int = 0,
        bos: bool = True,
        on_token: Optional[Callable[[int], Optional[bool]]] = None,
    ) -> Generation:
        """Continues a prompt; temperature 0 is greedy, top_k 0 samples from all. `on_token` sees
        every id and may return False to stop.

        >>> import unpack_engine as up
        >>> up.load("pocket-gpt2").generate(
        ...     "Mary and John went to the store. John gave a drink to", max_tokens=1
        ... ).text
        ' Mary'
        """
        ids = check.prompt_ids(self._native, "prompt", prompt, bos)
        heat = check.real("temperature", temperature)
        if on_token is not None and not callable(on_token):
            raise TypeError(
                f"on_token must be a function of a token id, not {check.shown(on_token)}"
            )
        new = self._native.generate(
            ids,
            check.integer("max_tokens", max_tokens, 0),
            heat,
            check.integer("top_k", top_k, 0),
            check.wide_integer("seed", seed, 64),
            on_token,
            conversations.stops(prompt),
        )
        if not self.has_tokenizer:
            return Generation(new, None)
        return Generation(new, self._native.decode(ids + new)[len(self._native.decode(ids)) :])

    def prepare(
        self,
        prompt: Prompt,
        *,
        bos: bool = True,
        memory_budget: int = _MEMORY,
        progress: Progress = None,
    ) -> Prepared:
        """The forward pass and the denominators; any number of targets and roots are then cheap."""
        ids = check.prompt_ids(self._native, "prompt", prompt, bos)
        with check.reporting(progress) as report:
            made = self._native.prepare(
                [ids], check.wide_integer("memory_budget", memory_budget, 63), report
            )[0]
        return Prepared(self, made, prompt._native if isinstance(prompt, Chat) else None)

    def prepare_many(
        self,
        prompts: Sequence[Prompt],
        *,
        bos: bool = True,
        memory_budget: int = _MEMORY,
        progress: Progress = None,
    ) -> List[Prepared]:
        """The same for many prompts, sharing the weights; order is kept."""
        if isinstance(prompts, str):
            raise TypeError(
                "prompts must be a list of prompts, not a str: use prepare for one prompt"
            )
        all_ids = [
            check.prompt_ids(self._native, f"prompts[{i}]", prompt, bos)
            for i, prompt in enumerate(prompts)
        ]
        with check.reporting(progress) as report:
            made = self._native.prepare(
                all_ids, check.wide_integer("memory_budget", memory_budget, 63), report
            )
        return [Prepared(self, one) for one in made]

    def trace(self, prompt: Prompt, *, bos: bool = True, **question: Any) -> Trace:
        """`prepare` and `Prepared.trace` in one go."""
        return self.prepare(prompt, bos=bos, progress=question.get("progress")).trace(**question)

    def attribute(
        self,
        prompt: Prompt,
        continuation: Union[None, str, Sequence[int]] = None,
        *,
        generate: int = _DEFAULT["attribute"],
        bos: bool = True,
        preset: Optional[str] = None,
        beta: Optional[float] = None,
        weights: Optional[Weights3] = None,
        mlp_weights: Optional[Weights2] = None,
        expert_weights: Optional[Weights3] = None,
        dispatch: Optional[str] = None,
        mlp: Optional[str] = None,
        scores: Optional[str] = None,
        direction: Optional[str] = None,
        floor: Optional[float] = None,
        keys: Optional[str] = None,
        progress: Progress = None,
    ) -> Attribution:
        """Token credit of every token of a continuation; without one, of `generate` tokens of the
        model's own.

        >>> import unpack_engine as up
        >>> r = up.load("pocket-gpt2").attribute(
        ...     "Mary and John went to the store. John gave", " a drink to Mary"
        ... )
        >>> [row["text"] for row in r.rows]
        [' a', ' drink', ' to', ' Mary']
        """
        options = check.asked(None, None, {}, check.settings(locals()))
        ids = check.prompt_ids(self._native, "prompt", prompt, bos)
        if continuation is None:
            new = self._native.generate(
                ids,
                check.integer("generate", generate, 1),
                0.0,
                0,
                0,
                None,
                conversations.stops(prompt),
            )
        elif isinstance(continuation, str):
            new = self._continuation(prompt, check.text("continuation", continuation), ids, bos)
        else:
            new = check.prompt_ids(self._native, "continuation", continuation)
        if not new:
            raise ValueError(
                "continuation has no tokens"
                if continuation is not None
                else "generate: the model ends the text at once, or its context is full"
            )
        with check.reporting(progress) as report:
            return Attribution(self._native.attribute(ids, new, options, report))

    def _continuation(
        self, prompt: Prompt, continuation: str, ids: List[int], bos: bool
    ) -> List[int]:
        """As it splits after the prompt; on its own where the prompt's last token would change."""
        if isinstance(prompt, str):
            whole = self._native.encode_prompt(prompt + continuation, bos)
            if len(whole) > len(ids) and whole[: len(ids)] == ids:
                return whole[len(ids) :]
        return self._native.encode(continuation, False)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` needs no template of its own."""
        return _native.has_chat_template(self._native)

    def chat(
        self,
        conversation: Union[str, Sequence[Mapping[str, Any]], Mapping[str, Any]],
        *,
        system: Optional[str] = None,
        chat_template: Optional[str] = None,
    ) -> Chat:
        """A conversation as a prompt: a text (the user's turn), a list of messages, or a dictionary
        with `messages` and further names for the template.

        >>> import unpack_engine as up
        >>> template = (
        ...     "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
        ...     "assistant:"
        ... )
        >>> talk = up.load("pocket-gpt2").chat("Hello", system="Be kind.", chat_template=template)
        >>> talk.text, [turn.name for turn in talk.turns]
        ('system: Be kind.\\nuser: Hello\\nassistant:', ['system 1', 'user 2'])
        """
        return conversations.make(self._native, conversation, system, chat_template)

    def answer(
        self,
        prompt: Prompt,
        answer: Union[str, Sequence[int]],
        versus_answer: Union[None, str, Sequence[int]] = None,
        *,
        group: Any = None,
        group_by: Optional[str] = None,
        bos: bool = True,
        progress: Progress = None,
        **options: Any,
    ) -> Answer:
        """A continuation of several tokens explained as a whole, against another one if given.
        `options` are those of `trace` that set the method.

        group: texts "NAME=from:to", or a dictionary of positions by name. group_by: 'sentence',
        'line', 'paragraph', or 'turn' of a `chat`.

        >>> import unpack_engine as up
        >>> r = up.load("pocket-gpt2").answer(
        ...     "Mary and John went to the store. John gave a drink to",
        ...     " Mary. She",
        ...     group={"names": (1, 3)},
        ... )
        >>> len(r.rows), [g["name"] for g in r.groups]
        (3, ['names', '(rest)'])
        """
        made = conversations.made(self._native, prompt, bos)
        fields = {
            "answer": answer,
            "versus_answer": versus_answer,
            **conversations.group_fields(group, group_by),
            **conversations.method_options("answer", options),
        }
        asked = check.asked(self._native, len(made.ids), {}, fields)
        with check.reporting(progress) as report:
            return Answer(_native.answer(self._native, made, asked, report))

    def cost(
        self,
        prompt: Prompt,
        answer: Union[None, str, Sequence[int]] = None,
        versus_answer: Union[None, str, Sequence[int]] = None,
        *,
        bos: bool = True,
        progress: Progress = None,
    ) -> Dict[str, Any]:
        """What a question about a prompt will take, before it is asked: 'tokens', 'targets',
        'gflop', 'memory_mib' beside the weights, 'seconds' from what a part of it takes here, and
        all of it as a 'text'.

        >>> import unpack_engine as up
        >>> cost = up.load("pocket-gpt2").cost(
        ...     "Mary and John went to the store. John gave a drink to", " Mary. She"
        ... )
        >>> cost["tokens"], cost["targets"], cost["seconds"] > 0
        (16, 3, True)
        """
        made = conversations.made(self._native, prompt, bos)
        asked = check.asked(
            self._native, len(made.ids), {}, {"answer": answer, "versus_answer": versus_answer}
        )
        with check.reporting(progress) as report:
            said: Dict[str, Any] = json.loads(_native.cost(self._native, made, asked, report))
        return said

    def sources(
        self,
        question: str,
        documents: Union[Sequence[Union[str, Mapping[str, str]]], Mapping[str, str]],
        *,
        answer: Optional[str] = None,
        generate: int = _DEFAULT["generate"],
        template: Optional[str] = None,
        document_template: Optional[str] = None,
        chat: bool = False,
        progress: Progress = None,
        **options: Any,
    ) -> Sources:
        """Which document, and which sentence of it, every sentence of an answer came from; without
        an answer, of the model's own.

        >>> import unpack_engine as up
        >>> r = up.load("pocket-gpt2").sources(
        ...     "Who got it?",
        ...     {"a": "Tom saw a dog.", "b": "John gave a drink to Mary."},
        ...     answer="Mary",
        ... )
        >>> [d["name"] for d in r.documents], len(r.sentences[0]["documents"])
        (['a', 'b'], 2)
        """
        asked = conversations.about_documents(
            "sources", question, documents, answer, generate, template, document_template, chat,
            options
        )
        with check.reporting(progress) as report:
            return Sources(_native.sources(self._native, asked, report))

    def sources_cost(
        self,
        question: str,
        documents: Union[Sequence[Union[str, Mapping[str, str]]], Mapping[str, str]],
        *,
        answer: Optional[str] = None,
        generate: int = _DEFAULT["generate"],
        template: Optional[str] = None,
        document_template: Optional[str] = None,
        chat: bool = False,
        progress: Progress = None,
        **options: Any,
    ) -> Dict[str, Any]:
        """What `sources` with the same arguments will take, as `cost` says it; the writing of an
        answer of the model's own is not counted.

        >>> import unpack_engine as up
        >>> cost = up.load("pocket-gpt2").sources_cost(
        ...     "Who got it?",
        ...     {"a": "Tom saw a dog.", "b": "John gave a drink to Mary."},
        ...     answer="Mary",
        ... )
        >>> cost["targets"], cost["seconds"] > 0
        (1, True)
        """
        asked = conversations.about_documents(
            "sources_cost", question, documents, answer, generate, template, document_template,
            chat, options
        )
        with check.reporting(progress) as report:
            said: Dict[str, Any] = json.loads(_native.sources_cost(self._native, asked, report))
        return said

    def intervene(
        self,
        prompt: Prompt,
        *,
        cut: Optional[str] = None,
        channel: str = "attention",
        edges: Union[str, Sequence[str]] = (),
        patch_from: Optional[Prompt] = None,
        zero: Sequence[int] = (),
        components: Union[str, Sequence[str]] = (),
        keep: bool = False,
        ablate: str = "zero",
        scale: float = 0.0,
        target: Optional[TokenSet] = None,
        versus: Optional[TokenSet] = None,
        raw_logit: bool = False,
        position: int = -1,
        bos: bool = True,
        progress: Progress = None,
    ) -> Intervention:
        """What the model would do otherwise.

        components: what they write is ablated, at every position ('A5.H3') or at one ('MLP2@7'): by
        nothing ('zero'), by their mean over the prompt's positions ('mean') or by what they write
        in `patch_from` ('resample'); `scale` keeps that much of the original (2: doubled).
        keep=True: they alone stay, and every other head and MLP is ablated so.
        cut: a component that the attention (or mlp) sublayers no longer see; what it writes to the
        output stays. edges: texts such as 'A5.H1@9 -[K]-> A7.H2@13', whose writer is taken from the
        prompt `patch_from` of the same length. zero: positions whose token embedding is set to
        zero.

        >>> import unpack_engine as up
        >>> r = up.load("pocket-gpt2").intervene(
        ...     "Mary and John went to the store. John gave a drink to",
        ...     cut="emb",
        ...     channel="attention",
        ...     target=" Mary",
        ...     versus=" John",
        ... )
        >>> r.cut["target"] < r.clean["target"]
        True
        >>> r = up.load("pocket-gpt2").intervene(
        ...     "Mary and John went to the store. John gave a drink to",
        ...     components="A5.H3",
        ...     ablate="mean",
        ...     target=" Mary",
        ...     versus=" John",
        ... )
        >>> r.cut["target"] < r.clean["target"]
        True
        """
        ids = check.prompt_ids(self._native, "prompt", prompt, bos)
        other = self._patch_ids(patch_from, bos)
        if cut is not None:
            check.named("cut", self._native.check_component, check.text("cut", cut))
        ablated = self._components(components, len(ids))
        goal = check.asked(
            self._native,
            len(ids),
            {"raw_logit": raw_logit, "position": position},
            {"target": target, "versus": versus},
        )
        places = [check.position(f"zero[{i}]", p, len(ids)) for i, p in enumerate(zero)]
        with check.reporting(progress) as report:
            return Intervention(
                self._native.intervene(
                    ids, cut, check.text("channel", channel), check.texts("edges", edges), other,
                    places, ablated, check.flag("keep", keep), check.text("ablate", ablate),
                    check.real("scale", scale), goal, report
                )
            )

    def _patch_ids(self, patch_from: Optional[Prompt], bos: bool) -> List[int]:
        if patch_from is None:
            return []
        return check.prompt_ids(self._native, "patch_from", patch_from, bos)

    def _components(self, components: Union[str, Sequence[str]], length: int) -> List[str]:
        names = check.texts("components", components)
        for i, name in enumerate(names):
            if "@" in name:
                check.named(
                    f"components[{i}]", lambda text: self._native.check_node(text, length), name
                )
            else:
                check.named(f"components[{i}]", self._native.check_component, name)
        return names

    def prove(
        self,
        prompt: Prompt,
        components: Union[str, Sequence[str]],
        *,
        ablate: str = "zero",
        patch_from: Optional[Prompt] = None,
        target: Optional[TokenSet] = None,
        versus: Optional[TokenSet] = None,
        raw_logit: bool = False,
        position: int = -1,
        bos: bool = True,
        progress: Progress = None,
    ) -> Dict[str, Any]:
        """Whether components ('A5.H3') and nodes ('MLP2@7') carry a prediction: it is measured as
        it is ('clean'), 'without' them, with them 'only' (every other head and MLP ablated) and
        with 'none'. 'faithfulness' and 'necessity' say what of the way from none to clean they keep
        alone, and what of it is lost without them. ablate and patch_from: as of `intervene`.

        >>> import unpack_engine as up
        >>> m = up.load("pocket-gpt2")
        >>> proof = m.prove(
        ...     "Mary and John went to the store. John gave a drink to",
        ...     ["A5.H3"],
        ...     target=" Mary",
        ...     versus=" John",
        ... )
        >>> proof["without"]["target"] < proof["clean"]["target"], proof["necessity"] > 0
        (True, True)
        """
        ids = check.prompt_ids(self._native, "prompt", prompt, bos)
        goal = check.asked(
            self._native,
            len(ids),
            {"raw_logit": raw_logit, "position": position},
            {"target": target, "versus": versus},
        )
        with check.reporting(progress) as report:
            said: Dict[str, Any] = json.loads(
                self._native.prove(
                    ids,
                    self._components(components, len(ids)),
                    check.text("ablate", ablate),
                    self._patch_ids(patch_from, bos),
                    goal,
                    report,
                )
            )
        return said
