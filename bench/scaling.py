#!/usr/bin/env python3
"""How the cost of a one-shot trace grows with tokens, layers and width: five sizes each around half
of GPT-2 small, as a table and a picture.

    bench/scaling.py UNPACK [--threads 2] [--svg FILE] [--json FILE]
"""
import argparse
import json
import math
import subprocess
import sys

# Around a middle that is small enough for every machine.
MIDDLE = {"tokens": 32, "layers": 6, "width": 512}
SIZES = {
    "tokens": [8, 16, 32, 64, 128],
    "layers": [2, 4, 6, 9, 12],
    "width": [256, 384, 512, 640, 768],
}
COLOURS = {"measured": "#0b6e99", "bound": "#d9730d"}


def shape(layers, width):
    return json.dumps(
        {
            "model_type": "gpt2",
            "n_layer": layers,
            "n_head": width // 64,
            "n_embd": width,
            "n_inner": 4 * width,
            "vocab_size": 50257,
            "n_positions": 1024,
            "activation_function": "gelu_new",
        }
    )


def measure(unpack, threads, tokens, layers, width):
    command = [
        unpack, "bench", "--device", "cpu", "--threads", str(threads),
        "--shape", shape(layers, width), "--tokens", str(tokens), "--prompts", "0",
        "--repeat", "3", "--json", "-",
    ]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = {row["name"]: row for row in result["lengths"][0]["rows"]}
    one = rows["one-shot trace"]
    return {
        "tokens": tokens,
        "layers": layers,
        "width": width,
        "seconds": one["seconds"],
        "gflop": one["gflop"],
        "bound": one["bound"],
        "forward": rows["forward pass"]["seconds"],
        "memory_mib": result["peak_memory_mib"],
    }


def slope(points, key, what):
    """The exponent between the two largest sizes."""
    (x0, y0), (x1, y1) = [(point[key], point[what]) for point in points[-2:]]
    return math.log(y1 / y0) / math.log(x1 / x0)


def panel(points, key, left):
    width, height, top = 250, 190, 40
    xs = [math.log(point[key]) for point in points]
    values = [math.log10(point[what]) for point in points for what in ("seconds", "bound")]
    low, high = math.floor(min(values) * 2) / 2, math.ceil(max(values) * 2) / 2
    x = lambda value: left + (value - xs[0]) / (xs[-1] - xs[0]) * width
    y = lambda value: top + height - (value - low) / (high - low) * height
    out = [
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">{key}</text>'
    ]
    for tick in range(int(low * 2), int(high * 2) + 1):
        level = tick / 2
        out.append(
            f'<line x1="{left}" x2="{left + width}" y1="{y(level):.1f}" y2="{y(level):.1f}"'
            ' stroke="#e3e3e3"/>'
        )
        out.append(
            f'<text x="{left - 6}" y="{y(level) + 4:.1f}" text-anchor="end"'
            f' class="small">{10 ** level:.2g} s</text>'
        )
    for point, at in zip(points, xs):
        out.append(
            f'<text x="{x(at):.1f}" y="{top + height + 18}" text-anchor="middle"'
            f' class="small">{point[key]}</text>'
        )
    for what, name in (("bound", "bound"), ("seconds", "measured")):
        line = " ".join(
            f"{x(at):.1f},{y(math.log10(point[what])):.1f}" for point, at in zip(points, xs)
        )
        dash = ' stroke-dasharray="5 4"' if what == "bound" else ""
        out.append(
            f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}"'
            f' stroke-width="2"{dash}/>'
        )
        if what == "seconds":
            out += [
                f'<circle cx="{x(at):.1f}" cy="{y(math.log10(point[what])):.1f}" r="3.5"'
                f' fill="{COLOURS[name]}"/>'
                for point, at in zip(points, xs)
            ]
    return "\n".join(out)


def picture(results):
    panels = "\n".join(
        panel(points, key, 70 + 330 * index) for index, (key, points) in enumerate(results.items())
    )
    legend = (
        f'<line x1="70" x2="94" y1="20" y2="20" stroke="{COLOURS["measured"]}" stroke-width="2"/>'
        '<text x="100" y="24">one-shot trace</text>'
        f'<line x1="210" x2="234" y1="20" y2="20" stroke="{COLOURS["bound"]}" stroke-width="2"'
        ' stroke-dasharray="5 4"/><text x="240" y="24">bound B of its plan</text>'
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="290" viewBox="0 0 1000 290"'
        ' font-family="sans-serif" font-size="13">\n'
        '<style>.small{font-size:11px;fill:#666}</style>'
        '<rect width="1000" height="290" fill="#fff"/>\n'
        f'{legend}\n{panels}\n</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("unpack")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--svg")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {}
    for key, sizes in SIZES.items():
        results[key] = []
        for size in sizes:
            results[key].append(measure(args.unpack, args.threads, **{**MIDDLE, key: size}))
            print(f"{key} {size}: {results[key][-1]['seconds']:.3f} s", file=sys.stderr, flush=True)
    print(
        "| tokens | layers | width | one-shot, s | GFLOP | B, s | ratio | forward pass, s |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for points in results.values():
        for p in points:
            print(
                f"| {p['tokens']} | {p['layers']} | {p['width']} | {p['seconds']:.3f} |"
                f" {p['gflop']:.1f} | {p['bound']:.3f} | {p['seconds'] / p['bound']:.2f} |"
                f" {p['forward']:.4f} |"
            )
    for key, points in results.items():
        print(
            f"\n{key}: time grows with the power {slope(points, key, 'seconds'):.2f} of it between"
            f" the two largest sizes, operations with {slope(points, key, 'gflop'):.2f}."
        )
    if args.svg:
        open(args.svg, "w").write(picture(results))
    if args.json:
        json.dump(results, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
