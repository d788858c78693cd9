#!/usr/bin/env python3
"""Where the plans lie under this machine's roof: operations per byte against operations per second,
from the JSON of `unpack bench`.

    unpack bench --device cpu --threads 2 --tokens 16,64,256 --prompts 0 --json bench.json
    bench/roofline.py bench.json --svg roofline.svg
"""
import argparse
import json
import math

NAMES = ["forward pass", "one-shot trace", "with weight products", "another target", "another beta"]
COLOURS = {
    "forward pass": "#0b6e99",
    "one-shot trace": "#d9730d",
    "with weight products": "#0f7b6c",
    "another target": "#6940a5",
    "another beta": "#ad1a72",
}
LEFT, TOP, WIDTH, HEIGHT = 80, 30, 560, 300


def points_of(result):
    """name, tokens, operations per byte, GFLOP/s reached, and the roof there."""
    for length in result["lengths"]:
        for row in length["rows"]:
            if row["name"] in NAMES and row["gflop"] > 0:
                intensity = row["gflop"] / row["gbyte"]
                roof = min(result["gemm_gflops"], intensity * result["read_gbytes"])
                yield row["name"], length["tokens"], intensity, row["gflop"] / row["seconds"], roof


def picture(result, points):
    rate, bandwidth = result["gemm_gflops"], result["read_gbytes"]
    low_x = math.floor(math.log10(min(p[2] for p in points)))
    high_x = math.ceil(math.log10(max(p[2] for p in points)))
    low_y = math.floor(math.log10(min(p[3] for p in points)))
    high_y = math.ceil(math.log10(rate * 1.2))
    x = lambda value: LEFT + (math.log10(value) - low_x) / (high_x - low_x) * WIDTH
    y = lambda value: TOP + HEIGHT - (math.log10(value) - low_y) / (high_y - low_y) * HEIGHT
    out = []
    for tick in range(low_x, high_x + 1):
        out.append(
            f'<line x1="{x(10 ** tick):.1f}" x2="{x(10 ** tick):.1f}" y1="{TOP}"'
            f' y2="{TOP + HEIGHT}" stroke="#e3e3e3"/>'
        )
        out.append(
            f'<text x="{x(10 ** tick):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle"'
            f' class="small">{10 ** tick:g}</text>'
        )
    for tick in range(low_y, high_y + 1):
        out.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(10 ** tick):.1f}"'
            f' y2="{y(10 ** tick):.1f}" stroke="#e3e3e3"/>'
        )
        out.append(
            f'<text x="{LEFT - 6}" y="{y(10 ** tick) + 4:.1f}" text-anchor="end"'
            f' class="small">{10 ** tick:g}</text>'
        )
    ridge, start = rate / bandwidth, max(10.0**low_x, 10.0**low_y / bandwidth)
    roof = (
        f"{x(start):.1f},{y(start * bandwidth):.1f} {x(ridge):.1f},{y(rate):.1f} "
        f"{x(10 ** high_x):.1f},{y(rate):.1f}"
    )
    out.append(f'<polyline points="{roof}" fill="none" stroke="#444" stroke-width="1.5"/>')
    out.append(
        f'<text x="{LEFT + WIDTH - 4}" y="{y(rate) - 8:.1f}" text-anchor="end" class="small">R ='
        f' {rate:.0f} GFLOP/s</text>'
    )
    out.append(
        f'<text x="{x(start * 2) + 6:.1f}" y="{y(start * 2 * bandwidth) + 16:.1f}" class="small">M'
        f' = {bandwidth:.1f} GB/s</text>'
    )
    for name, tokens, intensity, reached, _ in points:
        out.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(reached):.1f}" r="4" fill="{COLOURS[name]}"/>'
        )
        out.append(
            f'<text x="{x(intensity):.1f}" y="{y(reached) + 16:.1f}" text-anchor="middle"'
            f' class="small">{tokens}</text>'
        )
    for i, name in enumerate(NAMES):
        out.append(
            f'<circle cx="{LEFT + WIDTH + 30}" cy="{TOP + 12 + 22 * i}" r="4"'
            f' fill="{COLOURS[name]}"/><text x="{LEFT + WIDTH + 42}"'
            f' y="{TOP + 16 + 22 * i}">{name}</text>'
        )
    out.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">operations per'
        ' byte that must be read (numbers: tokens)</text>'
    )
    out.append(
        f'<text transform="translate(24 {TOP + HEIGHT / 2}) rotate(-90)"'
        ' text-anchor="middle">GFLOP/s</text>'
    )
    body = "\n".join(out)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="860" height="390" viewBox="0 0 860 390"'
        ' font-family="sans-serif" font-size="13">\n'
        '<style>.small{font-size:11px;fill:#555}</style>'
        '<rect width="860" height="390" fill="#fff"/>\n'
        f'{body}\n</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench_json")
    parser.add_argument("--svg")
    args = parser.parse_args()
    result = json.load(open(args.bench_json))
    points = list(points_of(result))
    print(
        "| plan | tokens | operations per byte | GFLOP/s | of the roof |\n|---|---:|---:|---:|---:|"
    )
    for name, tokens, intensity, reached, roof in points:
        print(
            f"| {name} | {tokens} | {intensity:.2g} | {reached:.3g} | {100 * reached / roof:.0f}% |"
        )
    if args.svg:
        open(args.svg, "w").write(picture(result, points))


if __name__ == "__main__":
    main()
