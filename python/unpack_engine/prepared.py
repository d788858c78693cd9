"""A prepared prompt, and what its forward pass kept."""
from __future__ import annotations

import json
from typing import (
    TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union
)

import numpy as np
from numpy.typing import NDArray

from . import _arguments as check
from . import _native
from . import chat as conversations
from ._arguments import Progress, TokenSet
from .results import ClosureCheck, Interactions, Token, Trace

if TYPE_CHECKING:
    from .model import Model

Array = NDArray[np.float64]
Weights3 = Sequence[float]
Weights2 = Sequence[float]


class Prepared:
    """One prompt after its forward pass; `trace`, `interactions`, `scores` and `cache` are cheap
    and may be called from several threads.
    """

    def __init__(
        self, model: Model, native: _native.Prepared, chat: Optional[_native.MadePrompt] = None
    ) -> None:
        self._model = model
        self._native = native
        self._chat = chat

    def __repr__(self) -> str:
        return f"Prepared({self._model.name!r}, tokens={len(self)})"

    def __len__(self) -> int:
        return len(self._native.ids)

    @property
    def model(self) -> Model:
        """The model it was prepared with."""
        return self._model

    @property
    def ids(self) -> List[int]:
        """The ids of the prompt, special tokens included."""
        return self._native.ids

    @property
    def tokens(self) -> List[Token]:
        """The tokens of the prompt."""
        return self._model._tokens(self.ids)

    def trace(
        self,
        *,
        target: Optional[TokenSet] = None,
        versus: Optional[TokenSet] = None,
        raw_logit: bool = False,
        position: int = -1,
        root: Optional[str] = None,
        reroot: Optional[str] = None,
        top_paths: Optional[int] = None,
        tau: Optional[float] = None,
        tau_rule: str = "named",
        branch: Optional[str] = None,
        through: Optional[str] = None,
        from_: Optional[int] = None,
        min_layer: Optional[int] = None,
        sign: Optional[str] = None,
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
        method: str = "unpack",
        group: Any = None,
        group_by: Optional[str] = None,
        progress: Progress = None,
    ) -> Trace:
        """Which tokens, components and paths a prediction comes from.

        target, versus: a text of one token, an id, or a list of these (a group). Default: the
        model's own top prediction, against the mean of the vocabulary; raw_logit leaves the
        contrast out. root: a head or MLP to explain instead, 'A5.H3@-1'.
        top_paths: how many paths (default 20; with tau: every path above the threshold). branch,
        through, from_, min_layer, sign filter the paths. method: 'unpack', or a baseline: 'ifr',
        'attnlrp', 'cplrp'. group ("NAME=from:to", or positions by name) and group_by ('sentence',
        'line', 'paragraph', 'turn') add credit up in `groups`.

        >>> import unpack_engine as up
        >>> p = up.load("pocket-gpt2").prepare(
        ...     "Mary and John went to the store. John gave a drink to"
        ... )
        >>> p.trace(target=" Mary", versus=" John").target["logit_difference"] > 0
        True
        >>> p.trace(root="A1.H0@-1", top_paths=2).root
        'A1.H0@13'
        """
        settings = check.settings(locals())
        asked = check.asked(
            self._model._native,
            len(self),
            {
                "raw_logit": raw_logit,
                "position": position,
                "tau_rule": tau_rule,
                "method": method,
            },
            {
                "reroot": reroot,
                **settings,
                "target": target,
                "versus": versus,
                "root": root,
                "top_paths": top_paths,
                "tau": tau,
                "branch": branch,
                "through": through,
                "from": from_,
                "min_layer": min_layer,
                "sign": sign,
                **conversations.group_fields(group, group_by),
            },
        )
        with check.reporting(progress) as report:
            result = Trace(self._native.trace(asked, report))
        if group is not None or group_by is not None:
            made = self._chat or conversations.made(self._model._native, self.ids, True)
            result.groups = json.loads(
                _native.groups(self._model._native, made, asked, result._native)
            )
        return result

    def edge_credit(
        self,
        *,
        target: Optional[TokenSet] = None,
        versus: Optional[TokenSet] = None,
        raw_logit: bool = False,
        position: int = -1,
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
    ) -> List[Dict[str, Any]]:
        """What each reader passes to each writer by each branch, summed over the positions of both,
        the largest first.

        >>> import unpack_engine as up
        >>> p = up.load("pocket-gpt2").prepare(
        ...     "Mary and John went to the store. John gave a drink to"
        ... )
        >>> sorted(p.edge_credit(target=" Mary", preset="best")[0])
        ['branch', 'credit', 'reader', 'writer']
        """
        settings = check.settings(locals())
        asked = check.asked(
            self._model._native,
            len(self),
            {"raw_logit": raw_logit, "position": position},
            {"target": target, "versus": versus, **settings},
        )
        with check.reporting(progress) as report:
            rows = self._native.edge_credit(asked, report)
        rows.sort(key=lambda row: -abs(row[3]))
        return [{"writer": w, "reader": r, "branch": b, "credit": c} for w, r, b, c in rows]

    def sentences(
        self,
        count: int = 5,
        *,
        target: Optional[TokenSet] = None,
        versus: Optional[TokenSet] = None,
        raw_logit: bool = False,
        position: int = -1,
        root: Optional[str] = None,
        preset: Optional[str] = None,
        beta: Optional[float] = None,
        scores: Optional[str] = None,
        progress: Progress = None,
    ) -> List[Dict[str, Any]]:
        """What the components with the most credit do, in words, the strongest first (a root before
        all): node, credit, text.

        >>> import unpack_engine as up
        >>> p = up.load("pocket-gpt2").prepare(
        ...     "Mary and John went to the store. John gave a drink to"
        ... )
        >>> p.sentences(2, target=" Mary", versus=" John")[1]["text"].startswith(
        ...     "A5.H3 at ·to (13) looks 83% at Mary"
        ... )
        True
        """
        most = check.integer("count", count, 1, 1000)
        asked = check.asked(
            self._model._native,
            len(self),
            {"raw_logit": raw_logit, "position": position, "top_paths": 0},
            {
                "target": target,
                "versus": versus,
                "root": root,
                "preset": preset,
                "beta": beta,
                "scores": scores,
            },
        )
        with check.reporting(progress) as report:
            sentences: List[Dict[str, Any]] = json.loads(
                self._native.sentences(asked, most, report)
            )["sentences"]
        return sentences

    def interactions(
        self, query: Optional[int] = None, *, all: bool = False, progress: Progress = None
    ) -> Interactions:
        """How strongly every writer is read: at one query position, at all, or (default) the mean
        over all.
        """
        check.flag("all", all)
        if all and query is not None:
            raise ValueError("query names one position; it cannot go with all=True")
        at = None if query is None else check.position("query", query, len(self))
        with check.reporting(progress) as report:
            return Interactions(self._native.interactions(at, all, report))

    def scores(self, layer: int, branch: str) -> Array:
        """Raw scores of every visible writer for the readers of a layer: K, Q [writers, heads, q,
        s], V [writers, heads, s], MLP, G, U [writers, q, neurons].

        >>> import unpack_engine as up
        >>> up.load("pocket-gpt2").prepare("Mary and John").scores(0, "V").shape[0]   # emb and pos
        2
        """
        return self._native.scores(
            check.layer("layer", layer, self._model.config["n_layers"]),
            check.text("branch", branch),
        )

    @property
    def cache(self) -> Cache:
        """The forward pass by name: `cache["pattern", 3]`, `cache["blocks.3.attn.hook_pattern"]`,
        `cache["logits"]`.
        """
        return Cache(self)

    def validate(self, progress: Progress = None) -> List[ClosureCheck]:
        """Whether the parts add up to the whole on this prompt."""
        with check.reporting(progress) as report:
            return [ClosureCheck(*row) for row in self._native.validate(report)]


_WHOLE = ("embed", "pos_embed", "resid_final", "logits")
_BY_LAYER = {
    "resid_pre": "hook_resid_pre",
    "resid_mid": "hook_resid_mid",
    "resid_post": "hook_resid_post",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "z": "attn.hook_z",
    "pattern": "attn.hook_pattern",
    "pre": "mlp.hook_pre",
    "up": "mlp.hook_pre_linear",
    "post": "mlp.hook_post",
    "ln1_scale": "ln1.hook_scale",
    "ln2_scale": "ln2.hook_scale",
}
_BY_HOOK = {hook: name for name, hook in _BY_LAYER.items()}

Key = Union[str, Tuple[str, int]]


class Cache(Mapping[Key, Array]):
    """The forward pass under TransformerLens-like names, without a batch dimension; each look-up
    gives an array of one's own.

    `cache["resid_pre", 0]` and `cache["blocks.0.hook_resid_pre"]` are the same. A layer may be
    negative. attn_out and mlp_out are what the sublayer wrote without its bias.

    >>> import unpack_engine as up
    >>> p = up.load("pocket-gpt2").prepare("Mary and John")
    >>> pattern = p.cache["pattern", 0]
    >>> pattern.shape[1:] == (len(p), len(p)), bool(abs(pattern.sum(-1) - 1).max() < 1e-5)
    (True, True)
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        config = prepared.model.config
        self._layers = int(config["n_layers"])
        self._whole = [
            name for name in _WHOLE if name != "pos_embed" or config["positions"] == "learned"
        ]
        self._by_layer = [name for name in _BY_LAYER if name != "up" or config["mlp"] == "gated"]

    def __iter__(self) -> Iterator[Key]:
        yield from self._whole
        for layer in range(self._layers):
            yield from ((name, layer) for name in self._by_layer)

    def __len__(self) -> int:
        return len(self._whole) + self._layers * len(self._by_layer)

    def __repr__(self) -> str:
        return f"Cache({', '.join(self._whole)}; per layer: {', '.join(self._by_layer)})"

    def __getitem__(self, key: Key) -> Array:
        name, layer = self._resolve(key)
        return self._prepared._native.cache(name, layer)

    def _resolve(self, key: Key) -> Tuple[str, int]:
        if (
            isinstance(key, tuple) and len(key) in (2, 3) and isinstance(key[0], str)
        ):  # ("pattern", 3), ("pattern", 3, "attn")
            if key[0] in self._by_layer and -self._layers <= key[1] < self._layers:
                return key[0], key[1] % self._layers
        elif isinstance(key, str):
            if key.startswith("hook_"):
                key = key[len("hook_") :]
            if key in self._whole:
                return key, 0
            parts = key.split(".", 2)
            if (
                len(parts) == 3
                and parts[0] == "blocks"
                and parts[1].isdigit()
                and int(parts[1]) < self._layers
            ):
                name = _BY_HOOK.get(parts[2])
                if name in self._by_layer:
                    return str(name), int(parts[1])
        raise KeyError(
            f"{check.shown(key)}: use {', '.join(self._whole)}, or a pair of a layer's name and its"
            f" number: {', '.join(self._by_layer)}"
        )
