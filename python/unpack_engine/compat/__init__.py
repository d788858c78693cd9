"""The names that users of the paper's own package know, on this engine.

    from unpack_engine.compat import Tracer

    tracer = Tracer("pocket-gpt2")
    result = tracer.trace("Mary and John went to the store. John gave a drink to", target=" Mary", \
      distractor=" John")
    result.print()

`discover`, `discover_one`, `Circuit`, `validate` and `compat.viz.CircuitGraph` are there under
their names, too.

Settings are translated as follows: branches "k" follows keys alone, "kqv" all three branches;
mlp_rule "weighted" is mlp="linearized", "l2" is mlp="l2"; aligned is dispatch="aligned", otherwise
"gate". Key and query scores are centred and a root is explained in the target's direction, as in
that package's released program. The method as the paper states it is `Prepared.trace`, whose
defaults differ.
"""
from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from .. import _arguments as check
from ..loading import from_state_dict, load
from ..model import Model
from ..prepared import Prepared
from ..results import Trace

__all__ = [
    "PRESETS", "Circuit", "Path", "Prep", "TraceConfig", "TraceResult", "Tracer", "discover",
    "discover_one", "trace_from_prep", "validate", "viz"
]


@dataclass(frozen=True)
class TraceConfig:
    """Settings of a trace."""

    beta: float = 0.8
    branches: str = "kqv"
    branch_weights: Optional[Mapping[str, float]] = None
    aligned: bool = True
    mlp_rule: str = "weighted"
    top_paths_k: int = 20
    path_min_frac: float = 1e-4

    def __post_init__(self) -> None:
        if self.branches not in ("k", "kqv"):
            raise ValueError(
                f"branches must be one of 'k', 'kqv', not {check.shown(self.branches)}"
            )
        if self.mlp_rule not in ("weighted", "l2"):
            raise ValueError(
                f"mlp_rule must be one of 'weighted', 'l2', not {check.shown(self.mlp_rule)}"
            )
        if self.aligned and self.mlp_rule == "l2":
            raise ValueError("aligned goes with mlp_rule 'weighted', not with 'l2'")

    def weights(self) -> Tuple[float, float, float]:
        """Of the K, Q and V branches."""
        if self.branches == "k":
            return (1.0, 0.0, 0.0)
        given = (
            self.branch_weights
            if self.branch_weights is not None
            else {"K": 0.333, "Q": 0.333, "V": 0.333}
        )
        return (float(given.get("K", 0.0)), float(given.get("Q", 0.0)), float(given.get("V", 0.0)))


PRESETS: Dict[str, TraceConfig] = {
    "default": TraceConfig(),
    "k_only_weighted": TraceConfig(branches="k", aligned=False),
    "k_only_l2": TraceConfig(branches="k", aligned=False, mlp_rule="l2"),
    "k_only_aligned": TraceConfig(branches="k"),
    "kqv_weighted": TraceConfig(aligned=False),
    "kqv_l2": TraceConfig(aligned=False, mlp_rule="l2"),
    "kqv_aligned": TraceConfig(),
}


def _config(config: Union[None, str, TraceConfig], changes: Mapping[str, Any]) -> TraceConfig:
    if config is None:
        config = "kqv_aligned"
    if isinstance(config, str):
        if config not in PRESETS:
            raise ValueError(
                f"config must be one of {', '.join(map(repr, PRESETS))}, or a TraceConfig, not"
                f" {check.shown(config)}"
            )
        config = PRESETS[config]
    if not isinstance(config, TraceConfig):
        raise TypeError(f"config must be a str or a TraceConfig, not {type(config).__name__}")
    unknown = sorted(set(changes) - set(TraceConfig.__dataclass_fields__))
    if unknown:
        raise TypeError(
            f"{unknown[0]} is no setting of TraceConfig: use"
            f" {', '.join(TraceConfig.__dataclass_fields__)}"
        )
    return replace(config, **changes)


@contextlib.contextmanager
def _hub_cache(folder: Optional[str]) -> Iterator[None]:
    """Hugging Face's cache elsewhere, for one load."""
    before = os.environ.get("HF_HUB_CACHE")
    if folder is not None:
        os.environ["HF_HUB_CACHE"] = os.fspath(folder)
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop("HF_HUB_CACHE")
            if before is not None:
                os.environ["HF_HUB_CACHE"] = before


class Prep(NamedTuple):
    """A prepared prompt with the target that it will be asked about."""

    prepared: Prepared
    target: Union[None, str, int]
    distractor: Union[None, str, int]


class Path(NamedTuple):
    """A route; the component nearest the target comes first."""

    chain: str  # "attn_9_head_9[V]@13 → mlp_0@1 → embedding@1"
    components: List[str]
    source_pos: int
    source_token: str
    score: float  # percent of the positive token credit
    raw_score: float
    modes: List[str]  # of its heads

    @property
    def depth(self) -> int:
        """Hops between components."""
        return len(self.components) - 1


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
    def target_token(self) -> str:
        """The text of the token that is explained."""
        return str(self.trace.target["text"])

    @property
    def target_prob(self) -> float:
        """Its probability."""
        return float(self.trace.target["probability"])

    @property
    def root(self) -> str:
        """'target', or the node that was explained instead."""
        if self.trace.root == "target":
            return "target"
        name, position = self.trace.root.split("@")
        return f"{_old_name(name)}@{position}"

    @property
    def importance(self) -> Dict[str, float]:
        """Direct credit of each component."""
        return {_old_name(name): float(credit) for name, credit in self.trace.importance.items()}

    @property
    def component_flow(self) -> Dict[str, float]:
        """Credit that reached each component, summed over positions."""
        return {
            _old_name(name): float(credit.sum()) for name, credit in self.trace.node_credit.items()
        }

    @property
    def paths(self) -> List[Path]:
        """Routes, strongest first."""
        texts = self.tokens
        out = []
        for path in self.trace.paths:
            hops, components, modes = [], [], []
            for node, branch in zip(reversed(path.nodes), reversed(path.branches)):
                name, position = node.split("@")
                head = name.startswith("A")
                components.append(_old_name(name))
                hops.append(
                    f"{components[-1]}{f'[{branch}]' if head and branch else ''}@{position}"
                )
                modes += [branch] if head and branch else []
            source = int(path.nodes[0].split("@")[1])
            out.append(
                Path(
                    " → ".join(hops),
                    components,
                    source,
                    texts[source],
                    path.percent,
                    path.credit,
                    modes,
                )
            )
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
        print(
            f"target {target['text']!r}"
            + (f" against {target['versus_text']!r}" if target["versus_text"] is not None else "")
        )
        self.print_tokens()
        self.print_paths()
        self.print_components()


def _old_name(name: str) -> str:
    if name.startswith("MLP"):
        return f"mlp_{name[3:]}"
    if name.startswith("A"):
        layer, head = name[1:].split(".H")
        return f"attn_{layer}_head_{head}"
    return {"emb": "embedding", "pos": "pos_embedding"}[name]


def trace_from_prep(prep: Prep, cfg: TraceConfig, root: Optional[str] = None) -> TraceResult:
    """Answers for a prepared prompt, from the target or from a root: 'attn_9_head_9',
    'attn_9_head_9@13'.
    """
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
    >>> result = tracer.trace(
    ...     "Mary and John went to the store. John gave a drink to",
    ...     target=" Mary",
    ...     distractor=" John",
    ...     config="kqv_aligned",
    ... )
    >>> len(result.token_attribution)
    14
    """

    def __init__(
        self,
        model_name_or_path: Union[str, Model] = "pocket-gpt2",
        *,
        model: Any = None,
        tokenizer: Any = None,
        cache_dir: Optional[str] = None,
        **loading: Any,
    ) -> None:
        if model is not None and not isinstance(model, Model):
            if tokenizer is None:
                raise ValueError(
                    "a model in memory comes with its tokenizer: Tracer(model=..., tokenizer=...)"
                )
            model = from_state_dict(model.config, model.state_dict(), **loading)
        self.tokenizer = tokenizer
        if model is None:
            with _hub_cache(cache_dir):
                model = (
                    model_name_or_path
                    if isinstance(model_name_or_path, Model)
                    else load(model_name_or_path, **loading)
                )
        self.model: Model = model

    def _token(self, name: str, token: Union[None, str, int]) -> Union[None, str, int]:
        """A token's text as its id, where the tokenizer is not the model's own."""
        if self.tokenizer is None or not isinstance(token, str):
            return token
        ids = list(self.tokenizer(token)["input_ids"])
        if len(ids) != 1:
            raise ValueError(f"{name}: {check.shown(token)} is {len(ids)} tokens: give one")
        return int(ids[0])

    def __repr__(self) -> str:
        return f"compat.Tracer({self.model!r})"

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
        if self.tokenizer is not None and isinstance(text, str):
            text = [int(i) for i in self.tokenizer(text)["input_ids"]]
        return (
            Prep(
                self.model.prepare(text),
                self._token("target", target),
                self._token("distractor", distractor),
            ),
            cfg,
        )

    def trace_from_prep(
        self, prep: Prep, cfg: TraceConfig, root: Optional[str] = None
    ) -> TraceResult:
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


from . import viz  # noqa: E402  (they need what stands above)
from .discovery import Circuit, discover, discover_one, validate  # noqa: E402
