"""Circuits: the edges that carry a behaviour, found over the prompts of a task and proven by
ablation.
"""
from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _arguments as check
from . import _native
from ._arguments import Progress
from .loading import load
from .model import Model

File = Union[str, "os.PathLike[str]"]
Task = Union[str, "os.PathLike[str]", Sequence[Mapping[str, Any]]]

__all__ = ["Circuit", "Edge", "Proof", "circuit"]


class Edge(NamedTuple):
    """A writer as one reader sees it ('A0.H0', at one position 'A0.H0@3'); branch is None for plain
    MLPs and the target.
    """

    writer: str
    reader: str
    branch: Optional[str]

    def __str__(self) -> str:
        return f"{self.writer} {'-[' + self.branch + ']' if self.branch else ''}-> {self.reader}"


class Proof(NamedTuple):
    """What ablation says of a circuit: edges of its connected part, mean difference of the logits,
    and both measures.
    """

    edges: int
    logit_difference: float
    faithfulness: float
    necessity: float


@contextlib.contextmanager
def _task_name(task: Task) -> Iterator[str]:
    """A generator's name or a file as it is; a list of prompts as a file that lasts as long as the
    call.
    """
    if isinstance(task, (str, os.PathLike)):
        yield check.path("task", task)
        return
    try:
        lines = [json.dumps(dict(prompt)) for prompt in task]
    except (TypeError, ValueError):
        raise TypeError(
            "task must be a name, a file, or a list of dicts with prompt or ids, target, versus and"
            " counterfactual"
        ) from None
    if not lines:
        raise ValueError("task has no prompts")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "task.jsonl")
        with open(file, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
        yield file


class Circuit:
    """A set of edges: `|`, `&`, `-`, `^`, `in`, `len` and iteration work as with any set. What
    `up.circuit` found also holds every ranked edge (`ranked`), the whole answer (`data`), `report`
    in Markdown and `mib`, the graph in the format of MIB.
    """

    def __init__(
        self,
        edges: Sequence[Any] = (),
        *,
        name: str = "circuit",
        model: Optional[Model] = None,
        data: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self._rows: Dict[Edge, Dict[str, Any]] = {}
        for edge in edges:
            row = (
                dict(edge)
                if isinstance(edge, Mapping)
                else dict(zip(("writer", "reader", "branch"), edge))
            )
            if not all(isinstance(row.get(key), str) for key in ("writer", "reader")):
                raise TypeError(
                    f"an edge is a writer, a reader and a branch, not {check.shown(edge)}"
                )
            self._rows[Edge(row["writer"], row["reader"], row.get("branch"))] = row
        self.name = name
        self.model = model
        self.data: Dict[str, Any] = dict(data) if data is not None else {}
        self.report = ""
        self.mib: Dict[str, Any] = {}

    @property
    def edges(self) -> List[Edge]:
        """Strongest first, where they come from a ranking."""
        return list(self._rows)

    @property
    def nodes(self) -> List[str]:
        """The components and the target, in the order in which edges name them."""
        return list(
            dict.fromkeys(name for edge in self._rows for name in (edge.writer, edge.reader))
        )

    @property
    def ranked(self) -> List[Dict[str, Any]]:
        """Every edge with credit, as circuit.json lists them."""
        return list(self.data.get("edges", []))

    @property
    def faithfulness(self) -> Optional[float]:
        """As it was measured when the circuit was found; None for one that was put together."""
        found = self.data.get("circuit")
        return None if found is None else float(found["faithfulness"])

    @property
    def cpr(self) -> Optional[float]:
        """Area under faithfulness over the size."""
        return self.data.get("cpr")

    @property
    def cmd(self) -> Optional[float]:
        """Area between faithfulness and 1."""
        return self.data.get("cmd")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self._rows)

    def __contains__(self, edge: object) -> bool:
        return edge in self._rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and set(self._rows) == set(other._rows)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Circuit({self.name!r}, {len(self)} edges)"

    def _joined(self, other: object, keep: Sequence[Edge], sign: str) -> "Circuit":
        assert isinstance(other, Circuit)
        rows = {**other._rows, **self._rows}
        return Circuit(
            [rows[edge] for edge in keep],
            name=f"{self.name} {sign} {other.name}",
            model=self.model or other.model,
        )

    def __or__(self, other: object) -> "Circuit":
        if not isinstance(other, Circuit):
            return NotImplemented
        return self._joined(
            other, list(self._rows) + [e for e in other._rows if e not in self._rows], "|"
        )

    def __and__(self, other: object) -> "Circuit":
        if not isinstance(other, Circuit):
            return NotImplemented
        return self._joined(other, [e for e in self._rows if e in other._rows], "&")

    def __sub__(self, other: object) -> "Circuit":
        if not isinstance(other, Circuit):
            return NotImplemented
        return self._joined(other, [e for e in self._rows if e not in other._rows], "-")

    def __xor__(self, other: object) -> "Circuit":
        if not isinstance(other, Circuit):
            return NotImplemented
        return self._joined(
            other,
            [e for e in self._rows if e not in other._rows]
            + [e for e in other._rows if e not in self._rows],
            "^",
        )

    def to_dict(self) -> Dict[str, Any]:
        """What `save` writes: circuit.json of what was found, or the edges alone."""
        if self.data:
            return dict(self.data)
        return {
            "version": 1,
            "task": self.name,
            "edges": [{**row, "in_circuit": True} for row in self._rows.values()],
        }

    def save(self, file: File) -> None:
        """As JSON, which `Circuit.load` reads."""
        with open(file, "w", encoding="utf-8") as out:
            json.dump(self.to_dict(), out, indent=1)
            out.write("\n")

    @classmethod
    def load(cls, file: File, model: Union[None, str, Model] = None) -> "Circuit":
        """From circuit.json of the command line or of `save`."""
        with open(file, encoding="utf-8") as text:
            try:
                data = json.load(text)
                rows = [row for row in data["edges"] if row["in_circuit"]]
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{os.fspath(file)} is no circuit: it lacks edges that say whether they are"
                    " in_circuit"
                ) from None
        held = model if model is None or isinstance(model, Model) else load(model)
        return cls(
            rows,
            name=str(data.get("task", "circuit")),
            model=held,
            data=data if "circuit" in data else None,
        )

    def _model(self, model: Union[None, str, Model]) -> Model:
        held = self.model if model is None else model
        if held is None:
            raise ValueError("name a model: this circuit was read from a file")
        return held if isinstance(held, Model) else load(held)

    def _edge_rows(self) -> List[Tuple[str, str, str, float, float, Optional[float]]]:
        out = []
        for edge, row in self._rows.items():
            credit = float(row.get("credit", 0.0))
            out.append(
                (
                    edge.writer,
                    edge.reader,
                    edge.branch or "",
                    credit,
                    float(row.get("absolute", abs(credit))),
                    row.get("drop"),
                )
            )
        return out

    def evaluate(
        self,
        task: Task,
        *,
        model: Union[None, str, Model] = None,
        n: Optional[int] = None,
        seed: int = 0,
        ablate: str = "counterfactual",
        progress: Progress = None,
    ) -> Proof:
        """Ablates all edges but these (their connected part) on the prompts of a task; the prompts
        are taken as they are.
        """
        with _task_name(task) as name, check.reporting(progress) as report:
            rows = _native.prove_circuits(
                self._model(model)._native,
                name,
                check.optional_integer("n", n, 1),
                check.wide_integer("seed", seed, 64),
                [self._edge_rows()],
                check.text("ablate", ablate),
                report,
            )
        return Proof(*rows[0])

    def draw(
        self,
        file: Optional[File] = None,
        *,
        model: Union[None, str, Model] = None,
        format: Optional[str] = None,
    ) -> str:
        """The picture as text, written to `file` where one is named: .svg, .dot or .graphml."""
        if format is None:
            format = "svg" if file is None else os.path.splitext(os.fspath(file))[1][1:]
        point = self.data.get("circuit", {})
        text = _native.draw_circuit(
            self._model(model)._native,
            check.text("name", self.name),
            self._edge_rows(),
            float(point.get("faithfulness", float("nan"))),
            float(point.get("necessity", float("nan"))),
            int(self.data.get("all_edges", len(self))),
            check.text("format", format),
        )
        if file is not None:
            with open(file, "w", encoding="utf-8") as out:
                out.write(text)
        return text


def circuit(
    task: Task,
    *,
    model: Union[str, Model] = "pocket-gpt2",
    n: Optional[int] = None,
    seed: int = 0,
    method: str = "ours",
    preset: str = "best",
    contrast: bool = False,
    steps: int = 5,
    ablate: str = "counterfactual",
    nodes: bool = False,
    positions: bool = False,
    patched: int = 0,
    sizes: Union[None, str, Sequence[str]] = None,
    size: Union[None, str, int] = None,
    faithful: float = 0.9,
    minimality: int = 100,
    out: Optional[File] = None,
    progress: Progress = None,
    **settings: Any,
) -> Circuit:
    """Finds the circuit of a task and proves it.

    task: 'ioi', 'greater-than', 'induction', a file (JSONL, CSV), or a list of dicts with prompt or
    ids, target or target_id, versus or versus_id and counterfactual or counterfactual_ids. method:
    ours, ifr, eap, eap-ig, patching, random. sizes: '0.5%' or numbers of edges. Settings of ours
    (beta, weights, ...) are those of `Prepared.trace`. positions: an edge at one position is an
    edge of its own, its writer named 'A0.H0@3'.
    patched: prompts that patching is measured on (0: all). out: a folder for what the command line
    writes there (circuit.json, report.md, pictures); a search that was interrupted goes on from it
    when it is asked for again.

    >>> found = circuit("ioi", n=2, minimality=0)
    >>> found.faithfulness > 0.9
    True
    """
    held = model if isinstance(model, Model) else load(model)
    wanted = (
        sizes if sizes is None or isinstance(sizes, str) else ",".join(str(one) for one in sizes)
    )
    with _task_name(task) as name, check.reporting(progress) as report:
        text, markdown, mib = _native.circuit(
            held._native,
            name,
            check.optional_integer("n", n, 1),
            check.wide_integer("seed", seed, 64),
            check.text("method", method),
            check.text("preset", preset),
            check.asked(None, None, {}, {"preset": preset, **settings}),
            check.flag("contrast", contrast),
            check.integer("steps", steps, 1),
            check.text("ablate", ablate),
            check.flag("nodes", nodes),
            check.flag("positions", positions),
            check.integer("patched", patched, 0),
            check.text("sizes", wanted or ""),
            "" if size is None else check.text("size", str(size)),
            float(faithful),
            check.integer("minimality", minimality, 0),
            "" if out is None else check.path("out", out),
            report,
        )
    data = json.loads(text)
    found = Circuit(
        [row for row in data["edges"] if row["in_circuit"]],
        name=data["task"],
        model=held,
        data=data,
    )
    found.report, found.mib = markdown, json.loads(mib)
    return found
