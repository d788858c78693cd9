"""Paths as a picture: positions along the bottom, layers upward."""
from __future__ import annotations

import html
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, Union

if TYPE_CHECKING:
    from . import Path, Tracer

File = Union[str, "os.PathLike[str]"]

_COLUMN, _ROW, _MARGIN = 92, 46, 60


class CircuitGraph:
    """The architecture, a prompt's tokens and the paths to be drawn."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.tokens: List[str] = []
        self.target_token: Optional[str] = None
        self.root: Optional[str] = None
        self.paths: List["Path"] = []

    @classmethod
    def from_tracer(cls, tracer: "Tracer") -> "CircuitGraph":
        """With the layers and heads of the tracer's model."""
        config = tracer.model.config
        return cls(int(config["n_layers"]), int(config["n_heads"]))

    def add_paths(self, paths: Iterable["Path"]) -> None:
        """Adds to what will be drawn."""
        self.paths += list(paths)

    def clear_paths(self) -> None:
        """Takes all paths out."""
        self.paths = []

    def _row(self, component: str) -> int:
        if component.endswith("embedding"):
            return 0
        layer = int(component.split("_")[1])
        return 1 + 2 * layer + (1 if component.startswith("mlp_") else 0)

    def to_dict(self) -> Dict[str, Any]:
        """Nodes, edges and paths; everything fit for JSON."""
        nodes: Dict[str, Dict[str, Any]] = {}
        edges: Dict[Tuple[str, str, str], float] = {}
        last = len(self.tokens) - 1
        top = self.root if self.root is not None else "target"
        for path in self.paths:
            steps = path.chain.split(" → ")
            reader, mode = ("", "")
            for step in steps:
                name, position = step.rsplit("@", 1)
                branch = name[-2] if name.endswith("]") else ""
                name = name[:-3] if branch else name
                node = f"{name}@{position}"
                nodes[node] = {
                    "id": node,
                    "component": name,
                    "position": int(position),
                    "row": self._row(name),
                }
                last = max(last, int(position))
                if reader:
                    edges[node, reader, mode] = edges.get((node, reader, mode), 0.0) + float(
                        path.raw_score
                    )
                elif self.root is None:
                    edges[node, "target", ""] = edges.get((node, "target", ""), 0.0) + float(
                        path.raw_score
                    )
                reader, mode = node, branch
        if self.root is None and nodes:
            nodes["target"] = {
                "id": "target",
                "component": "target",
                "position": last,
                "row": 2 * self.n_layers + 1,
            }
        return {
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "tokens": list(self.tokens),
            "target_token": self.target_token,
            "root": top,
            "nodes": sorted(nodes.values(), key=lambda n: (n["row"], n["position"], n["id"])),
            "edges": [
                {"source": a, "target": b, "mode": mode or None, "score": score}
                for (a, b, mode), score in edges.items()
            ],
            "paths": [
                {
                    "chain": p.chain,
                    "source_token": p.source_token,
                    "source_pos": p.source_pos,
                    "score": float(p.score),
                }
                for p in self.paths
            ],
        }

    def _places(
        self, data: Dict[str, Any]
    ) -> Tuple[Dict[str, Tuple[float, float]], Dict[int, float], float, float]:
        """Where nodes stand, where positions do, and the size of all; rows and columns without a
        node take no room.
        """
        rows = {row: i for i, row in enumerate(sorted({n["row"] for n in data["nodes"]}))}
        inside: Dict[Tuple[int, int], List[str]] = {}
        for node in data["nodes"]:
            inside.setdefault((node["row"], node["position"]), []).append(node["id"])
        widest: Dict[int, int] = {}
        for (_, position), ids in inside.items():
            widest[position] = max(widest.get(position, 1), len(ids))
        columns, x = {}, float(_MARGIN)
        for position in sorted(widest):
            columns[position] = x + _COLUMN * widest[position] / 2
            x += _COLUMN * widest[position]
        height = float(_ROW * len(rows) + 2 * _MARGIN)
        places: Dict[str, Tuple[float, float]] = {}
        for (row, position), ids in inside.items():
            for i, one in enumerate(ids):
                places[one] = (
                    columns[position] + _COLUMN * (i - (len(ids) - 1) / 2),
                    height - _MARGIN - _ROW * rows[row],
                )
        return places, columns, x + _MARGIN, height

    def _labels(self, data: Dict[str, Any]) -> Dict[str, str]:
        out = {}
        for node in data["nodes"]:
            name = (
                node["component"]
                .replace("attn_", "")
                .replace("_head_", ".")
                .replace("mlp_", "MLP ")
                .replace("pos_embedding", "position")
                .replace("embedding", "token")
            )
            out[node["id"]] = self.target_token or "target" if node["id"] == "target" else name
        return out

    def render_html(self) -> str:
        """A self-contained page."""
        data = self.to_dict()
        places, columns, width, height = self._places(data)
        largest = max((abs(e["score"]) for e in data["edges"]), default=1.0) or 1.0
        labels, parts = self._labels(data), []
        for edge in data["edges"]:
            (x1, y1), (x2, y2) = places[edge["source"]], places[edge["target"]]
            color = "#D55E00" if edge["score"] < 0 else "#0B5FA5"
            said = f"{edge['source']} {edge['mode'] or ''} {edge['target']}: {edge['score']:+.4f}"
            parts.append(
                '<path'
                f' d="M{x1:.1f} {y1 - 10:.1f}C{x1:.1f} {y1 - 30:.1f} {x2:.1f} {y2 + 32:.1f} '
                f'{x2:.1f} {y2 + 10:.1f}"'
                f' fill="none" stroke="{color}" '
                'stroke-opacity=".7"'
                f' stroke-width="{0.8 + 4 * abs(edge["score"]) / largest:.2f}"><title>'
                f'{html.escape(said)}</title></path>'
            )
            if edge["mode"]:
                parts.append(
                    f'<text x="{x2 + (x1 - x2) * 0.12:.1f}" y="{y2 + 22:.1f}"'
                    f' class="mode">{edge["mode"]}</text>'
                )
        for node, (x, y) in places.items():
            parts.append(
                f'<rect x="{x - 40:.1f}" y="{y - 10:.1f}" width="80" height="20" rx="4"/><text'
                f' x="{x:.1f}" y="{y + 4:.1f}">{html.escape(labels[node])}</text>'
            )
        for position, x in columns.items():
            text = self.tokens[position] if position < len(self.tokens) else ""
            parts.append(
                f'<text x="{x:.1f}" y="{height - 26:.1f}"'
                f' class="token">{html.escape(text)}</text><text x="{x:.1f}" y="{height - 10:.1f}"'
                f' class="mode">{position}</text>'
            )
        style = (
            "text{font:11px"
            " monospace;text-anchor:middle}rect{fill:#fff;stroke:#999}.mode{font-size:9px;fill:"
            "#666}.token{font-weight:bold}"
        )
        held = json.dumps(data).replace("</", "<\\/")
        return (
            '<!doctype html>\n<html lang="en"><head><meta'
            f' charset="utf-8"><title>paths</title><style>{style}</style></head><body>\n<svg'
            f' xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
            f' viewBox="0 0 {width:.0f} {height:.0f}">\n'
            + "\n".join(parts)
            + '\n</svg>\n<script type="application/json"'
            f' id="paths">{held}</script>\n</body></html>\n'
        )

    def render_tikz(self) -> str:
        """A standalone LaTeX document."""
        data = self.to_dict()
        places, columns, _, height = self._places(data)
        labels = self._labels(data)
        names = {node: f"n{i}" for i, node in enumerate(places)}
        lines = [
            r"\documentclass{article}",
            r"\usepackage{tikz}",
            r"\pagestyle{empty}",
            r"\newsavebox\thepicture",
            r"\begin{document}",
            r"\sbox\thepicture{%",
            r"\begin{tikzpicture}[x=1pt,y=1pt,every node/.style={font=\ttfamily\scriptsize}]",
        ]
        for node, (x, y) in places.items():
            lines.append(
                rf"\node[draw,rounded corners=2pt] ({names[node]}) at ({x:.1f},{height - y:.1f})"
                rf" {{{_tex(labels[node])}}};"
            )
        for position, x in columns.items():
            text = self.tokens[position] if position < len(self.tokens) else ""
            lines.append(rf"\node at ({x:.1f},26) {{{_tex(text)}}};")
        for edge in data["edges"]:
            color = "orange" if edge["score"] < 0 else "blue"
            mode = rf" node[pos=.85] {{{edge['mode']}}}" if edge["mode"] else ""
            lines.append(
                rf"\draw[->,{color}] ({names[edge['source']]})"
                rf" to[out=90,in=270]{mode} ({names[edge['target']]});"
            )
        # The page is as large as the picture; no class beyond the plainest LaTeX is needed for it.
        end = [
            r"\end{tikzpicture}}",
            r"\pdfpagewidth=\dimexpr\wd\thepicture+24pt\relax",
            r"\pdfpageheight=\dimexpr\ht\thepicture+\dp\thepicture+24pt\relax",
            r"\hoffset=\dimexpr12pt-1in\relax",
            r"\voffset=\dimexpr12pt-1in\relax",
            r"\shipout\box\thepicture",
            r"\end{document}",
            "",
        ]
        return "\n".join(lines + end)

    def save_html(self, file: File) -> None:
        """Writes the page."""
        with open(file, "w", encoding="utf-8") as out:
            out.write(self.render_html())

    def save_tikz(self, file: File) -> None:
        """Writes the document."""
        with open(file, "w", encoding="utf-8") as out:
            out.write(self.render_tikz())


def _tex(text: str) -> str:
    """Safe in any font; what is not ASCII is named by its number."""
    escaped = {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        " ": r"\ ",
    }
    out = []
    for c in text:
        if c in escaped:
            out.append(escaped[c])
        elif c in "#$%&_":
            out.append("\\" + c)
        else:
            out.append(c if " " < c <= "~" else f"U+{ord(c):04X}")
    return "".join(out)
