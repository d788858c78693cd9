"""The names that users of the paper's own package know, on this engine.

    from unpack_engine.compat import Tracer

    tracer = Tracer("pocket-gpt2")
    result = tracer.trace("Mary and John went to the store. John gave a drink to", target=" Mary", distractor=" John")
    result.print()

Settings are translated as follows: branches "k" follows keys alone, "kqv" all three branches; mlp_rule "weighted" is mlp="linearized", "l2" is
mlp="l2"; aligned is dispatch="aligned", otherwise "gate". Key and query scores are centred and a root is explained in the target's direction,
as in that package's released program. The method as the paper states it is `Prepared.trace`, whose defaults differ.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from . import _arguments as check
from .loading import load
from .model import Model, Prepared
from .results import Trace

__all__ = ["PRESETS", "Path", "Prep", "TraceConfig", "TraceResult", "Tracer", "trace_from_prep"]


@dataclass(frozen=True)
class TraceConfig:
    """Settings of a trace."""

    beta: float = 0.8
    branches: str = "k"
    branch_weights: Optional[Mapping[str, float]] = None
    aligned: bool = False
    mlp_rule: str = "weighted"
    top_paths_k: int = 2000
    path_min_frac: float = 1e-4

    def __post_init__(self) -> None:
        if self.branches not in ("k", "kqv"):
            raise ValueError(f"branches must be one of 'k', 'kqv', not {self.branches!r}")
        if self.mlp_rule not in ("weighted", "l2"):
            raise ValueError(f"mlp_rule must be one of 'weighted', 'l2', not {self.mlp_rule!r}")

    def weights(self) -> Tuple[float, float, float]:
        """Of the K, Q and V branches."""
        if self.branches == "k":
            return (1.0, 0.0, 0.0)
        given = self.branch_weights if self.branch_weights is not None else {"K": 0.3, "Q": 0.3, "V": 0.4}
        return (float(given.get("K", 0.0)), float(given.get("Q", 0.0)), float(given.get("V", 0.0)))


PRESETS: Dict[str, TraceConfig] = {
    "default": TraceConfig(),
    "k_only_l2": TraceConfig(mlp_rule="l2"),
    "k_only_aligned": TraceConfig(aligned=True),
    "kqv_weighted": TraceConfig(branches="kqv"),
    "kqv_l2": TraceConfig(branches="kqv", mlp_rule="l2"),
    "kqv_aligned": TraceConfig(branches="kqv", aligned=True),
}


def _config(config: Union[None, str, TraceConfig], changes: Mapping[str, Any]) -> TraceConfig:
    if config is None:
        config = "default"
    if isinstance(config, str):
        if config not in PRESETS:
            raise ValueError(f"config must be one of {', '.join(map(repr, PRESETS))}, or a TraceConfig, not {config!r}")
        config = PRESETS[config]
    if not isinstance(config, TraceConfig):
        raise TypeError(f"config must be a str or a TraceConfig, not {type(config).__name__}")
    unknown = sorted(set(changes) - set(TraceConfig.__dataclass_fields__))
    if unknown:
        raise TypeError(f"{unknown[0]} is no setting of TraceConfig: use {', '.join(TraceConfig.__dataclass_fields__)}")
    return replace(config, **changes)


class Prep(NamedTuple):
    """A prepared prompt with the target that it will be asked about."""

    prepared: Prepared
    target: Union[None, str, int]
    distractor: Union[None, str, int]


class Path(NamedTuple):
    """A route; the component nearest the target comes first."""

    chain: str
    source_token: str
    source_position: int
    score: float  # percent
    modes: List[str]


class TraceResult:
    """A trace under the names of the paper's package; `.trace` is the whole answer."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __repr__(self) -> str:
        return f"compat.{self.trace!r}"

    def _repr_html_(self) -> str:
        return self.trace._repr_html_()

    @property
    def token_attribution(self) -> NDArray[np.float64]:
        """Signed percent per token."""
        return self.trace.token_percent

    @property
    def tokens(self) -> List[str]:
        """The texts of the tokens."""
        return [token.text for token in self.trace.tokens]

    @property
    def component_flow(self) -> Dict[str, float]:
        """Credit that reached each component, summed over positions."""
        return {_old_name(name): float(credit.sum()) for name, credit in self.trace.node_credit.items()}

    @property
    def paths(self) -> List[Path]:
        """Routes, strongest first."""
        texts = self.tokens
        out = []
        for path in self.trace.paths:
            source = int(path.nodes[0].split("@")[1])
            hops = [_old_name(node.split("@")[0]) + (f"[{branch}]" if branch else "") for node, branch in zip(path.nodes, path.branches)]
            modes = [branch for branch in reversed(path.branches) if branch]
            out.append(Path(" → ".join(reversed(hops)), texts[source], source, path.percent, modes))
        return out

    def print_tokens(self) -> None:
        """The tokens with their percent."""
        for token, percent in zip(self.trace.tokens, self.token_attribution):
            print(f"{token.position:4d} {token.text!r:>16} {percent:+8.1f}%")

    def print_paths(self, top_k: int = 20) -> None:
        """The strongest routes."""
        for path in self.paths[: check.integer("top_k", top_k, 0)]:
            print(f"{path.score:+8.1f}% {path.source_token!r:>16}  {path.chain}")

    def print_components(self, top_k: int = 20) -> None:
        """The components that most credit passed through."""
        flow = sorted(self.component_flow.items(), key=lambda item: -abs(item[1]))
        for name, credit in flow[: check.integer("top_k", top_k, 0)]:
            print(f"{credit:+10.4f}  {name}")

    def print(self) -> None:
        """Everything."""
        target = self.trace.target
        print(f"target {target['text']!r}" + (f" against {target['versus_text']!r}" if target["versus_text"] is not None else ""))
        self.print_tokens()
        self.print_paths()
        self.print_components()


def _old_name(name: str) -> str:
    if name.startswith("MLP"):
        return f"mlp_{name[3:]}"
    if name.startswith("A"):
        layer, head = name[1:].split(".H")
        return f"attn_{layer}_head_{head}"
    return {"emb": "embedding", "pos": "position_embedding"}[name]


def trace_from_prep(prep: Prep, cfg: TraceConfig, root: Optional[str] = None) -> TraceResult:
    """Answers for a prepared prompt, from the target or from a root: 'attn_9_head_9', 'attn_9_head_9@13'."""
    if not isinstance(prep, Prep):
        raise TypeError(f"prep must come from Tracer.prepare, not {type(prep).__name__}")
    if root is not None and "@" not in check.text("root", root):
        root += "@-1"
    return TraceResult(
        prep.prepared.trace(
            target=prep.target,
            versus=prep.distractor,
            root=root,
            reroot="target",
            top_paths=cfg.top_paths_k,
            beta=cfg.beta,
            weights=cfg.weights(),
            dispatch="aligned" if cfg.aligned else "gate",
            mlp="linearized" if cfg.mlp_rule == "weighted" else "l2",
            preset="paper",
            scores="centered",
        )
    )


class Tracer:
    """A model under the paper's package's name.

    >>> tracer = Tracer("pocket-gpt2")
    >>> result = tracer.trace("Mary and John went to the store. John gave a drink to", target=" Mary", distractor=" John", config="kqv_aligned")
    >>> len(result.token_attribution)
    14
    """

    def __init__(self, model: Union[str, Model] = "pocket-gpt2", **loading: Any) -> None:
        self.model = model if isinstance(model, Model) else load(model, **loading)

    def prepare(
        self,
        text: Union[str, List[int]],
        target: Union[None, str, int] = None,
        distractor: Union[None, str, int] = None,
        config: Union[None, str, TraceConfig] = None,
        **settings: Any,
    ) -> Tuple[Prep, TraceConfig]:
        """The costly part, once; then `trace_from_prep` for any number of roots."""
        cfg = _config(config, settings)
        return Prep(self.model.prepare(text), target, distractor), cfg

    def trace_from_prep(self, prep: Prep, cfg: TraceConfig, root: Optional[str] = None) -> TraceResult:
        """See `trace_from_prep` of this module."""
        return trace_from_prep(prep, cfg, root)

    def trace(
        self,
        text: Union[str, List[int]],
        target: Union[None, str, int] = None,
        distractor: Union[None, str, int] = None,
        config: Union[None, str, TraceConfig] = None,
        root: Optional[str] = None,
        **settings: Any,
    ) -> TraceResult:
        """Prepares and traces in one go."""
        prep, cfg = self.prepare(text, target, distractor, config, **settings)
        return trace_from_prep(prep, cfg, root)
