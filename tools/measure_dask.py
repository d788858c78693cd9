#!/usr/bin/env python3
"""What Dask costs: a batch in one process with N threads against the same on N worker processes of
one thread each.

    PYTHONPATH=build/release/python tools/measure_dask.py --prompts 1000 --tokens 4 --workers 2

Beside the time stand the CPU seconds of all processes (workers, scheduler and client), which other
users of the machine hardly change.
"""
import argparse
import filecmp
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def one_process(file, out, args):
    """A process of its own, as each worker is one; timed from when its model is ready."""
    code = (
        f"import os, sys, time, unpack_engine as up\nm = up.load({args.model!r},"
        f" threads={args.workers})\nup.batch([{{'ids': [1]}}] * 16, sys.argv[2] + '.warm', model=m,"
        " top_paths=2)\ncpu = lambda: sum(os.times()[:2])\nbegin, used = time.monotonic(), cpu();"
        " up.batch(sys.argv[1], sys.argv[2], model=m,"
        f" top_paths={args.top_paths})\nprint(time.monotonic() - begin, cpu() - used)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, file, out], check=True, capture_output=True, text=True
    )
    return tuple(map(float, run.stdout.split()[-2:]))


def cpu_seconds():
    return sum(os.times()[:2])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="pocket-gpt2")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--top-paths", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()

    from distributed import Client, LocalCluster

    from unpack_engine import distributed

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        draw = random.Random(1)
        file = place / "prompts.jsonl"
        file.write_text(
            "".join(
                json.dumps({"ids": [draw.randrange(4000) for _ in range(args.tokens)]}) + "\n"
                for _ in range(args.prompts)
            )
        )
        options = {"model": args.model, "chunk": args.chunk, "top_paths": args.top_paths}
        with (
            LocalCluster(
                n_workers=args.workers, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            alone, dask = [], []
            for i in range(args.repeat):  # by turns, so that a busy machine is busy for both
                alone.append(one_process(str(file), str(place / f"one-{i}"), args))
                distributed.batch(
                    [{"ids": [1]}] * 16 * args.workers,
                    place / f"warm-{i}",
                    client=client,
                    **{**options, "chunk": 1},
                )
                everywhere = lambda: cpu_seconds() + sum(client.run(cpu_seconds).values())
                begin, used = time.monotonic(), everywhere()
                distributed.batch(file, place / f"dask-{i}", client=client, **options)
                dask.append((time.monotonic() - begin, everywhere() - used))
                assert filecmp.cmp(
                    place / f"one-{i}" / "results.jsonl",
                    place / f"dask-{i}" / "results.jsonl",
                    shallow=False,
                )
                print(f"one process {alone[-1]}, Dask {dask[-1]}", file=sys.stderr, flush=True)
    print(
        f"{args.prompts} prompts of {args.tokens} tokens, {args.model}; one process with"
        f" {args.workers} threads, {args.workers} Dask workers; medians of {args.repeat}"
    )
    for column, what in enumerate(("seconds", "CPU seconds")):
        a, b = (statistics.median(run[column] for run in runs) for runs in (alone, dask))
        print(f"{what:12} {a:8.2f} {b:8.2f} {100 * (b / a - 1):+6.1f}%")


if __name__ == "__main__":
    main()
