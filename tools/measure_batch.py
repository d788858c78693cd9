#!/usr/bin/env python3
"""What a prompt of `unpack batch` costs: time, memory and bytes out, by model and length. The
numbers of docs/scale.md.

    tools/measure_batch.py --model pocket-gpt2 --tokens 8,16,64 --threads 2

Two runs of different size are compared, so that loading the model is not counted as part of a
prompt. CPU seconds are those of all threads together.
"""
import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(args, model, tokens, count, place):
    """Wall seconds, CPU seconds, peak memory in MiB and bytes of results.jsonl."""
    draw = random.Random(count)
    prompts, out = place / f"{tokens}-{count}.jsonl", place / f"out-{tokens}-{count}"
    prompts.write_text(
        "".join(
            json.dumps({"ids": [draw.randrange(args.vocabulary) for _ in range(tokens)]}) + "\n"
            for _ in range(count)
        )
    )
    begin = time.monotonic()
    process = subprocess.Popen(
        [
            args.unpack, "batch", prompts, "--out", out, "--model", model, "--threads",
            str(args.threads), "--top-paths", str(args.top_paths)
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"unpack batch failed on {model} with {tokens} tokens")
    return (
        time.monotonic() - begin,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        (out / "results.jsonl").stat().st_size,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--tokens", default="8,16,64")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--top-paths", type=int, default=20)
    parser.add_argument(
        "--prompts", type=int, default=32, help="of the larger run, the smaller has 16"
    )
    parser.add_argument("--vocabulary", type=int, default=4000, help="ids are drawn below this")
    parser.add_argument(
        "--unpack", default=os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
    )
    args = parser.parse_args()
    print(
        "| model | tokens | seconds a prompt | CPU seconds a prompt | seconds until the first |"
        " peak memory, MiB | bytes out |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for model in args.model or ["pocket-gpt2"]:
        for tokens in map(int, args.tokens.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                few = 16  # from here on weight products are used
                a, b = (run(args, model, tokens, n, Path(folder)) for n in (few, args.prompts))
            each = [(y - x) / (args.prompts - few) for x, y in zip(a, b)]
            name = os.path.basename(model.rstrip("/"))
            print(
                (
                    f"| {name} | {tokens} | {each[0]:.3f} | {each[1]:.3f} |"
                    f" {max(0, a[0] - few * each[0]):.1f} | {b[2]:.0f} |"
                    f" {b[3] / args.prompts:.0f} |"
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
