#!/usr/bin/env python3
"""Draws what a command prints, colours included, as an SVG: terminal_svg.py OUT.svg COMMAND
[ARG...]

The first line of the picture is the command itself. Used for the pictures in the README.
"""
import html
import re
import shlex
import subprocess
import sys
import unicodedata

CELL, LINE, SIZE, MARGIN = 8.4, 18, 14, 16
BACKGROUND, FOREGROUND = "#16191d", "#d7dae0"


def color_256(n):
    basic = ["#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5"]
    if n < 16:
        return basic[n % 8]
    if n >= 232:
        level = 8 + 10 * (n - 232)
        return f"#{level:02x}{level:02x}{level:02x}"
    steps = [0, 95, 135, 175, 215, 255]
    n -= 16
    return "#" + "".join(f"{steps[i]:02x}" for i in (n // 36, n // 6 % 6, n % 6))


def apply(codes, style):
    codes = [int(c or 0) for c in codes.split(";")]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = {}
        elif code == 1:
            style = {**style, "font-weight": "bold"}
        elif code == 2:
            style = {**style, "fill-opacity": "0.6"}
        elif code == 38 and codes[:1] == [5]:
            style = {**style, "fill": color_256(codes[1])}
            codes = codes[2:]
        elif 30 <= code <= 37:
            style = {**style, "fill": color_256(code - 30)}
    return style


def width_of(text):
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    out, command = sys.argv[1], sys.argv[2:]
    text = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout
    shown = ["unpack" if i == 0 else a for i, a in enumerate(command)]
    if "--color" in shown:
        at = shown.index("--color")
        del shown[at : at + 2]
    prompt = f"\033[1m$ {' '.join(shlex.quote(a) for a in shown)}\033[0m"
    lines = [prompt, ""] + text.rstrip("\n").split("\n")
    parts, widest = [], 0
    for row, line in enumerate(lines):
        column, style = 0, {}
        y = MARGIN + SIZE + row * LINE
        for i, piece in enumerate(re.split(r"\033\[([0-9;]*)m", line)):
            if i % 2:
                style = apply(piece, style)
            elif piece:
                # One element a run, placed by its column: no font is as wide as we think.
                attributes = "".join(f' {k}="{v}"' for k, v in style.items())
                length = (
                    f' textLength="{width_of(piece) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
                )
                if piece.strip():
                    parts.append(
                        f'<text x="{MARGIN + column * CELL:.1f}" y="{y}"{attributes}{length}'
                        f' xml:space="preserve">{html.escape(piece)}</text>'
                    )
                column += width_of(piece)
        widest = max(widest, column)
    w, h = widest * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    with open(out, "w") as f:
        f.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w:.0f}" height="{h}"'
            f' viewBox="0 0 {w:.0f} {h}"'
            ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"'
            f' font-size="{SIZE}" fill="{FOREGROUND}">\n'
            f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n'
            + "\n".join(parts)
            + "\n</svg>\n"
        )


if __name__ == "__main__":
    main()
