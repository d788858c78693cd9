"""Circuits as the paper's package finds them: seeds by direct effect, rerooting, and what most
prompts share.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set,
    Tuple
)

from .. import _arguments as check

if TYPE_CHECKING:
    from . import Tracer

PositionRule = Callable[[Mapping[str, int], int], int]


@dataclass(frozen=True)
class Circuit:
    """Components that belong together; `|`, `&` and `-` join two of them."""

    components: FrozenSet[str] = field(default_factory=frozenset)
    model_name: Optional[str] = None
    config_name: Optional[str] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", frozenset(self.components))

    @property
    def heads(self) -> List[str]:
        """Its attention heads, by layer."""
        return sorted((c for c in self.components if c.startswith("attn_")), key=_place)

    @property
    def mlps(self) -> List[str]:
        """Its MLPs, by layer."""
        return sorted((c for c in self.components if c.startswith("mlp_")), key=_place)

    def __len__(self) -> int:
        return len(self.components)

    def __contains__(self, component: object) -> bool:
        return component in self.components

    def __repr__(self) -> str:
        return f"Circuit({len(self)} components, {len(self.heads)} heads, {len(self.mlps)} MLPs)"

    def _with(self, components: Iterable[str]) -> "Circuit":
        return replace(self, components=frozenset(components))

    def __or__(self, other: "Circuit") -> "Circuit":
        return self._with(self.components | other.components)

    def __and__(self, other: "Circuit") -> "Circuit":
        return self._with(self.components & other.components)

    def __sub__(self, other: "Circuit") -> "Circuit":
        return self._with(self.components - other.components)


def _place(name: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in name.split("_") if part.isdigit())


def _layer(name: str) -> int:
    return _place(name)[0]


def position_by_layer(positions: Mapping[str, int], layer: int, cutoff: int = 7) -> int:
    """Late heads are rerooted at END, earlier ones at S2 where there is one."""
    return positions["END"] if layer >= cutoff else positions.get("S2", positions["END"])


def position_always_end(positions: Mapping[str, int], layer: int) -> int:
    """Every head is rerooted at END."""
    return positions["END"]


def _seeds(direct: Mapping[str, float], min_layer: int) -> Set[str]:
    """Late heads of large direct effect: those before the bend of the cumulated sizes, ten at most,
    none under a third of the largest.
    """
    ranked = sorted(
        (name for name in direct if _layer(name) >= min_layer), key=lambda name: -abs(direct[name])
    )
    if not ranked:
        return set()
    sizes = [abs(direct[name]) for name in ranked]
    whole, count = sum(sizes), len(sizes)
    cumulated, farthest, bend = 0.0, -1.0, count
    for i, size in enumerate(sizes, 1):
        cumulated += size
        distance = abs(whole * i - count * cumulated)  # from the straight line between the ends
        if distance > farthest:
            farthest, bend = distance, i
    large = sum(size >= sizes[0] / 3 for size in sizes)
    return set(ranked[: min(bend, 10, large)])


def _upstream(
    tracer: "Tracer", prep: Any, cfg: Any, root: str, top_k: int, scanned: int, excluded: Set[int]
) -> Dict[str, Dict[str, float]]:
    """The nearest heads behind a root, by the branch through which the root reads them: branch ->
    head -> size of its strongest path.
    """
    found: Dict[str, Dict[str, float]] = {"K": {}, "Q": {}, "V": {}}
    for path in tracer.trace_from_prep(prep, cfg, root=root).paths[:scanned]:
        if not path.modes or not path.components[0].startswith("attn_"):
            continue
        nearest = next((c for c in path.components[1:] if c.startswith("attn_")), None)
        if nearest is None or _layer(nearest) in excluded:
            continue
        bucket = found[path.modes[0]]
        bucket[nearest] = max(bucket.get(nearest, 0.0), abs(path.score))
    return {
        mode: dict(sorted(heads.items(), key=lambda item: -item[1])[:top_k])
        for mode, heads in found.items()
    }


def discover_one(
    tracer: "Tracer",
    prompt: Mapping[str, Any],
    config: Any = "kqv_aligned",
    seed_min_layer: int = 10,
    top_k_per_mode: int = 3,
    max_depth: int = 3,
    n_paths_scan: int = 200,
    exclude_layers: Optional[Set[int]] = None,
    mlp_flow_frac: Optional[float] = None,
    position_fn: PositionRule = position_by_layer,
) -> Dict[str, Any]:
    """The circuit of one prompt: a dict with text, target, distractor and positions (END, S2, ...).

    Returns circuit, attn_circuit, mlp_circuit, edges (reader, writer, mode, score), seeds,
    depth_map, dla and flow.
    """
    missing = [key for key in ("text", "target", "distractor", "positions") if key not in prompt]
    if missing:
        raise ValueError(
            f"prompt lacks {missing[0]!r}: it holds text, target, distractor and positions"
        )
    excluded = {0, 1} if exclude_layers is None else set(exclude_layers)
    prep, cfg = tracer.prepare(
        prompt["text"], target=prompt["target"], distractor=prompt["distractor"], config=config
    )
    cfg = replace(
        cfg, top_paths_k=max(cfg.top_paths_k, check.integer("n_paths_scan", n_paths_scan, 1))
    )
    result = tracer.trace_from_prep(prep, cfg)
    direct = {name: value for name, value in result.importance.items() if name.startswith("attn_")}
    flow = {
        name: value
        for name, value in result.component_flow.items()
        if name.startswith(("attn_", "mlp_"))
    }
    seeds = _seeds(direct, seed_min_layer)
    depth_map = {head: 0 for head in seeds}
    edges: List[Tuple[str, str, str, float]] = []
    queue = sorted(seeds, key=_place)
    for head in queue:  # grows while it is walked
        if depth_map[head] >= max_depth:
            continue
        root = f"{head}@{position_fn(prompt['positions'], _layer(head))}"
        for mode, heads in _upstream(
            tracer, prep, cfg, root, top_k_per_mode, n_paths_scan, excluded
        ).items():
            for name, score in heads.items():
                edges.append((head, name, mode, score))
                if name not in depth_map:
                    depth_map[name] = depth_map[head] + 1
                    queue.append(name)
    attention = {head for head in depth_map if _layer(head) not in excluded}
    mlps: Set[str] = set()
    if mlp_flow_frac is not None:
        sizes = {name: abs(value) for name, value in flow.items() if name.startswith("mlp_")}
        mlps = {name for name, size in sizes.items() if size >= mlp_flow_frac * max(sizes.values())}
    return {
        "circuit": attention | mlps,
        "attn_circuit": attention,
        "mlp_circuit": mlps,
        "edges": edges,
        "seeds": seeds,
        "depth_map": depth_map,
        "dla": direct,
        "flow": flow,
    }


def discover(
    tracer: "Tracer",
    prompts: Sequence[Mapping[str, Any]],
    config: Any = "kqv_aligned",
    freq_threshold: float = 0.5,
    verbose: bool = True,
    **settings: Any,
) -> Circuit:
    """What at least that share of the prompts have in common; further settings are those of
    `discover_one`.
    """
    if not prompts:
        raise ValueError("prompts is empty")
    seen: Counter[str] = Counter()
    for i, prompt in enumerate(prompts, 1):
        one = discover_one(tracer, prompt, config=config, **settings)
        seen.update(one["circuit"])
        if verbose:
            print(
                f"[{i}/{len(prompts)}] {len(one['seeds'])} seeds, {len(one['attn_circuit'])} heads,"
                f" {len(one['mlp_circuit'])} MLPs"
            )
    enough = max(1, int(len(prompts) * freq_threshold))
    return Circuit(
        frozenset(name for name, count in seen.items() if count >= enough),
        model_name=str(tracer.model.config["name"]) if "name" in tracer.model.config else None,
        config_name=config if isinstance(config, str) else None,
    )


def validate(
    tracer: "Tracer",
    text: str = "Mary and John went to the store. John gave a drink to",
    verbose: bool = True,
) -> bool:
    """The closure checks of the engine on a prompt; True where all of them hold."""
    checks = tracer.model.prepare(text).validate()
    for one in checks:
        if verbose:
            print(
                f"{'ok  ' if one.passed else 'FAIL'} {one.name}: {one.error:.2e} (limit"
                f" {one.limit:.0e})"
            )
    return all(one.passed for one in checks)
