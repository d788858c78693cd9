"""What the engine answers, with the same words as the command line's JSON."""
from __future__ import annotations

import html
import importlib
import json
import shutil
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from . import _arguments as check
from . import _native as engine

Array = NDArray[np.float64]


class Token(NamedTuple):
    """A token of the prompt."""

    position: int
    id: int
    text: str


class Path(NamedTuple):
    """A route from the source (first node) to the root side (last node)."""

    nodes: List[str]
    branches: List[Optional[str]]  # of each node's own hop; None for emb, pos and plain MLPs
    text: str
    credit: float
    percent: float


class Coverage(NamedTuple):
    """How much of all paths the listed ones are."""

    paths: int
    absolute: float
    absolute_matching: float
    absolute_total: float


class Prediction(NamedTuple):
    """A candidate for the next token; `logit` is None where only the probability was kept."""

    id: int
    text: str
    probability: float
    logit: Optional[float] = None


class ClosureCheck(NamedTuple):
    """How well the parts add up to the whole, as the largest difference over the largest value."""

    name: str
    error: float
    limit: float
    passed: bool


def _frame(rows: Any, **more: Any) -> Any:
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise RuntimeError(
            "pandas is not installed: use to_dict(), or install it (apt: python3-pandas)"
        ) from None
    return pandas.DataFrame(rows, **more)


def _predictions(rows: List[Dict[str, Any]]) -> List[Prediction]:
    return [
        Prediction(row["id"], row["text"], row["probability"], row.get("logit")) for row in rows
    ]


class Result:
    """What every result can do: the command line's JSON, its text for a terminal, its pictures."""

    _native: Any

    def __init__(self, native: Any) -> None:
        self._native = native
        self._dict: Optional[Dict[str, Any]] = None

    @property
    def _data(self) -> Dict[str, Any]:
        if self._dict is None:
            self._dict = json.loads(self._native.json())
        return self._dict

    def to_json(self) -> str:
        """The same text that the command line writes with `--json`."""
        return str(self._native.json())

    def to_dict(self) -> Dict[str, Any]:
        """The same as a dictionary of one's own."""
        data: Dict[str, Any] = json.loads(self._native.json())
        return data

    def to_text(
        self, color: bool = False, width: Optional[int] = None, unicode: bool = True
    ) -> str:
        """What the command line prints for a person."""
        width = (
            shutil.get_terminal_size((100, 24)).columns
            if width is None
            else check.integer("width", width, 40)
        )
        return str(
            self._native.terminal(check.flag("color", color), width, check.flag("unicode", unicode))
        )

    @property
    def tokens(self) -> List[Token]:
        """The tokens of the prompt."""
        return [Token(t["position"], t["id"], t["text"]) for t in self._data["tokens"]]

    def __str__(self) -> str:
        return self.to_text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("..." if cycle else repr(self))


class _Pictured(Result):
    def to_svg(self) -> str:
        """The picture that the command line writes with `--svg`."""
        return str(self._native.svg())

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.to_svg()}</div>'


class Trace(_Pictured):
    """Where a prediction comes from: tokens, nodes and paths.

    >>> import unpack_engine as up
    >>> prompt = up.load("pocket-gpt2").prepare(
    ...     "Mary and John went to the store. John gave a drink to"
    ... )
    >>> r = prompt.trace(target=" Mary", versus=" John", top_paths=3)
    >>> least = int(r.token_credit.argmin())
    >>> r.tokens[least].text, least
    (' John', 3)
    >>> len(r.paths), r.paths[0].credit > 0, r.coverage.paths
    (3, True, 3)
    """

    _native: engine.TraceResult

    def __init__(self, native: engine.TraceResult) -> None:
        super().__init__(native)
        self._nodes: Optional[Array] = None
        self.groups: List[Dict[str, Any]] = (
            []
        )  # credit of the groups that were asked for: name, from, to, text, credit, percent

    def __repr__(self) -> str:
        versus = (
            f", versus={self.target['versus_text']!r}"
            if self.target["versus_text"] is not None
            else ""
        )
        return (
            f"Trace(target={self.target['text']!r}{versus}, root={self.root!r},"
            f" tokens={len(self._data['tokens'])}, paths={len(self._data.get('paths', []))})"
        )

    @property
    def method(self) -> str:
        """unpack, or the baseline that was asked for."""
        return str(self._data.get("method", "unpack"))

    @property
    def model(self) -> Dict[str, Any]:
        """name, family, layers, heads, d_model, dtype, fingerprint."""
        return dict(self._data["model"])

    @property
    def target(self) -> Dict[str, Any]:
        """position, ids, versus_ids, text, versus_text, logit, logit_difference, probability."""
        return dict(self._data["target"])

    @property
    def options(self) -> Dict[str, Any]:
        """beta, weights, mlp_weights, expert_weights, dispatch, mlp, scores, reroot."""
        return dict(self._data.get("options", {}))

    @property
    def root(self) -> str:
        """'target', or the node that was asked about."""
        return str(self._data.get("root", "target"))

    @property
    def predictions(self) -> List[Prediction]:
        """The ten likeliest next tokens at the target position."""
        return _predictions(self._data["predictions"])

    @property
    def token_credit(self) -> Array:
        """Credit per position, [S]; a read-only view of the engine's own memory."""
        return self._native.token_credit

    @property
    def token_percent(self) -> Array:
        """The same in percent of the total positive credit, [S]."""
        return self._native.token_percent

    @property
    def writers(self) -> List[str]:
        """Names of the rows of `node_array`: emb, pos (where there is one), A0.H0, ..., MLP0,
        ...
        """
        return self._native.writers

    @property
    def importance(self) -> Dict[str, float]:
        """Direct credit of every writer."""
        return {name: float(credit) for name, credit in zip(self.writers, self._native.importance)}

    @property
    def node_array(self) -> Array:
        """Total credit that reached each node, direct and indirect, [writers, S]."""
        if self._nodes is None:
            self._nodes = self._native.node_credit
        return self._nodes

    @property
    def node_credit(self) -> Dict[str, Array]:
        """The same by name: writer -> [S]."""
        return dict(zip(self.writers, self.node_array))

    @property
    def incoming(self) -> Optional[Dict[str, Dict[str, Array]]]:
        """With a root: branch -> writer -> [S], the credit that the root sends to each writer."""
        if self.root == "target":
            return None
        return {
            branch: dict(zip(self.writers, rows)) for branch, rows in self._native.incoming.items()
        }

    @property
    def entries(self) -> Optional[Array]:
        """With a root: its shares over source positions (a head) or over all its neurons (an MLP;
        of a mixture [experts, N], 0 where not used).
        """
        if self.root == "target":
            return None
        return self._native.neuron_shares if self.root.startswith("MLP") else self._native.entries

    @property
    def experts(self) -> Optional[List[List[Dict[str, Any]]]]:
        """Of a mixture: per layer the experts used at the position that is explained, dictionaries
        expert and weight; empty for dense layers.
        """
        return list(self._data["experts"]) if "experts" in self._data else None

    @property
    def composition(self) -> Optional[Dict[str, List[Dict[str, Any]]]]:
        """With a root: branch -> upstream components, largest mass first."""
        composition: Optional[Dict[str, List[Dict[str, Any]]]] = self._data.get("composition")
        return composition

    @property
    def paths(self) -> List[Path]:
        """The paths that were asked for, strongest first."""
        return [
            Path(p["nodes"], p["branches"], p["text"], p["credit"], p["percent"])
            for p in self._data.get("paths", [])
        ]

    @property
    def coverage(self) -> Coverage:
        """Absolute credit of the listed paths, of all that match the filters, and of all."""
        c = self._data.get("coverage", {})
        return Coverage(
            c.get("paths", 0),
            c.get("absolute", 0.0),
            c.get("absolute_matching", 0.0),
            c.get("absolute_total", 0.0),
        )

    @property
    def conservation(self) -> Dict[str, float]:
        """first: what was given out; reached: what arrived at the tokens."""
        return dict(self._data.get("conservation", {}))

    @property
    def warnings(self) -> List[str]:
        """What to mind when reading the numbers."""
        return list(self._data.get("warnings", []))

    def words(self) -> List[Dict[str, Any]]:
        """Credit of whole words: first, last (positions), text, credit, percent."""
        words: List[Dict[str, Any]] = json.loads(self._native.words())
        return words

    def to_html(self) -> str:
        """A self-contained page, the same as the command line's `--html`."""
        return self._native.html()

    def to_tikz(self) -> str:
        """A standalone LaTeX document of the listed paths."""
        return self._native.tikz()

    def to_graph(self, format: str = "graphml") -> str:
        """The listed paths as a graph for other tools: 'graphml', 'dot' or 'json'."""
        return self._native.graph(check.text("format", format))

    def to_pandas(self, what: str = "tokens") -> Any:
        """A pandas frame of 'tokens', 'paths', 'nodes' (writers x positions), 'importance' or
        'words'.
        """
        if what == "tokens":
            return _frame(
                [
                    {**t._asdict(), "credit": c, "percent": p}
                    for t, c, p in zip(self.tokens, self.token_credit, self.token_percent)
                ]
            )
        if what == "paths":
            return _frame([p._asdict() for p in self.paths], columns=list(Path._fields))
        if what == "nodes":
            return _frame(self.node_array, index=self.writers)
        if what == "importance":
            return _frame(
                {"writer": list(self.importance), "credit": list(self.importance.values())}
            )
        if what == "words":
            return _frame(self.words())
        raise ValueError(
            "what must be one of 'tokens', 'paths', 'nodes', 'importance', 'words', not"
            f" {check.shown(what)}"
        )


class Predictions(Result):
    """The next-token probabilities, and the log-probability of every token of the prompt."""

    _native: engine.PredictResult

    def __repr__(self) -> str:
        best = self.predictions[0]
        return (
            f"Predictions({best.text!r} {best.probability:.3f}, tokens={len(self._data['tokens'])})"
        )

    @property
    def predictions(self) -> List[Prediction]:
        """The likeliest next tokens, likeliest first."""
        return _predictions(self._data["predictions"])

    @property
    def log_probability(self) -> Array:
        """Of every token given those before it, [S]; nan for the first."""
        return np.array(
            [
                np.nan if t["log_probability"] is None else t["log_probability"]
                for t in self._data["tokens"]
            ]
        )

    @property
    def lens(self) -> Optional[List[List[Prediction]]]:
        """With `lens=True`: the predictions read off the stream before each layer and after the
        last.
        """
        return [_predictions(rows) for rows in self._data["lens"]] if "lens" in self._data else None

    @property
    def experts(self) -> Optional[List[List[List[Dict[str, Any]]]]]:
        """With `experts=True`, of a mixture: per layer (empty where it is dense) and position the
        experts used, dictionaries expert and weight.
        """
        return list(self._data["experts"]) if "experts" in self._data else None

    def to_pandas(self) -> Any:
        """A pandas frame of the predictions."""
        return _frame([p._asdict() for p in self.predictions])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{html.escape(repr(p.text))}</code></td><td>"
            f"{100 * p.probability:.2f}%</td></tr>"
            for p in self.predictions
        )
        return f"<table><tr><th>next token</th><th>probability</th></tr>{rows}</table>"


class Interactions(_Pictured):
    """How strongly every writer is read by every later head (`attention`) and MLP (`mlp`)."""

    _native: engine.InteractionResult

    def __repr__(self) -> str:
        return f"Interactions(attention={len(self.attention)}, mlp={len(self.mlp)})"

    @property
    def attention(self) -> List[Dict[str, Any]]:
        """reader, query (unless the mean was asked for), writer, score."""
        return list(self._data["attention"])

    @property
    def mlp(self) -> List[Dict[str, Any]]:
        """The same for MLP readers."""
        return list(self._data["mlp"])

    def to_pandas(self) -> Any:
        """A pandas frame of both kinds, a row per reader and writer."""
        return _frame(self.attention + self.mlp)


class Attribution(_Pictured):
    """Token credit of every token of a continuation."""

    _native: engine.AttributeResult

    def __repr__(self) -> str:
        return (
            f"Attribution({''.join(row['text'] for row in self.rows)!r},"
            f" tokens={len(self._data['tokens'])})"
        )

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """A row per token: position (of the predicting token), target_id, text, probability,
        token_credit, token_percent.
        """
        return list(self._data["rows"])

    @property
    def matrix(self) -> Array:
        """[rows, S] token credit; positions that come later are 0."""
        out = np.zeros((len(self.rows), len(self._data["tokens"])))
        for to, row in zip(out, self.rows):
            to[: len(row["token_credit"])] = row["token_credit"]
        return out

    def to_html(self) -> str:
        """A self-contained page, the same as the command line's `--html`."""
        return self._native.html()

    def to_pandas(self) -> Any:
        """A pandas frame, a row per explained token and a column per position."""
        return _frame(
            self.matrix,
            index=[row["text"] for row in self.rows],
            columns=[t.text for t in self.tokens],
        )


class Answer(Result):
    """A whole answer explained: the sum over its tokens, each by its own row. Made by
    `Model.answer`.
    """

    _native: engine.AnswerResult

    def __repr__(self) -> str:
        return f"Answer(rows={len(self.rows)}, log_probability={self.log_probability:.4f})"

    @property
    def log_probability(self) -> float:
        """Of the answer: the sum over its tokens."""
        return float(self._data["answer"]["log_probability"])

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """A row per token of the answer: position, target_id, text, versus_id, log_probability,
        logit_difference, token_credit.
        """
        return list(self._data["answer"]["rows"])

    @property
    def versus(self) -> Optional[Dict[str, Any]]:
        """The other answer, where there is one: tokens, log_probability, rows."""
        other: Optional[Dict[str, Any]] = self._data["versus_answer"]
        return other

    @property
    def token_credit(self) -> Array:
        """[prompt_length], the rows added up, those of the other answer taken off."""
        return np.asarray(self._data["token_credit"])

    @property
    def answer_credit(self) -> float:
        """What ends at the answer's own earlier tokens."""
        return float(self._data["answer_credit"])

    @property
    def groups(self) -> List[Dict[str, Any]]:
        """Credit of the groups that were asked for: name, from, to, text, credit, percent."""
        return list(self._data.get("groups", []))


class Sources(Result):
    """The credit of every document and sentence for every sentence of an answer. Made by
    `Model.sources`.
    """

    _native: engine.SourcesResult

    def __repr__(self) -> str:
        return (
            f"Sources(documents={len(self.documents)}, sentences={len(self.sentences)},"
            f" answer={self.answer!r})"
        )

    @property
    def prompt(self) -> str:
        """What the model was given."""
        return str(self._data["prompt"])

    @property
    def answer(self) -> str:
        """The answer, given or the model's own."""
        return str(self._data["answer"])

    @property
    def documents(self) -> List[Dict[str, Any]]:
        """name, from, to (positions), sentences: text, from, to."""
        return list(self._data["documents"])

    @property
    def sentences(self) -> List[Dict[str, Any]]:
        """Of the answer: text, from, to, log_probability, documents (credit, percent, sentences),
        other_credit, answer_credit, strongest.
        """
        return list(self._data["sentences"])

    def to_html(self) -> str:
        """A self-contained page, the same as the command line's `--html`."""
        return self._native.html()


class Intervention(Result):
    """A run with something taken away, beside the clean run: dictionaries `clean` and `cut` with
    nll, target, probability.
    """

    _native: engine.InterventionResult

    def __repr__(self) -> str:
        return (
            f"Intervention(target {self.clean['target']:+.4f} -> {self.cut['target']:+.4f}, nll"
            f" {self.clean['nll']:.4f} -> {self.cut['nll']:.4f})"
        )

    @property
    def clean(self) -> Dict[str, float]:
        """nll (summed over tokens 1..S-1), target (logit difference) and probability without the
        intervention.
        """
        return {name: self._data["clean"][name] for name in ("nll", "target", "probability")}

    @property
    def cut(self) -> Dict[str, float]:
        """The same with it."""
        return {name: self._data["cut"][name] for name in ("nll", "target", "probability")}

    @property
    def predictions(self) -> Dict[str, List[Dict[str, Any]]]:
        """The ten most likely next tokens before ('clean') and after ('cut'): id, text,
        probability.
        """
        return {name: list(self._data[name]["predictions"]) for name in ("clean", "cut")}

    def to_text(
        self, color: bool = False, width: Optional[int] = None, unicode: bool = True
    ) -> str:
        """One line: before and after."""
        return repr(self)

    def to_pandas(self) -> Any:
        """A pandas frame with the rows clean and cut."""
        return _frame([self.clean, self.cut], index=["clean", "cut"])

    def _repr_html_(self) -> str:
        names = list(self.clean)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = "".join(
            f"<tr><th>{label}</th>"
            + "".join(f"<td>{values[name]:.4f}</td>" for name in names)
            + "</tr>"
            for label, values in (("clean", self.clean), ("cut", self.cut))
        )
        return f"<table><tr><th></th>{head}</tr>{rows}</table>"
