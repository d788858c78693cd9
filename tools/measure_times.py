#!/usr/bin/env python3
"""CPU seconds a prompt of many small chunks, as a worker would see them: what
tools/simulate_cluster.py --times draws from.

    PYTHONPATH=build/release/python tools/measure_times.py --model FOLDER --shortest 8 --longest 24
    > times.json
"""
import argparse
import json
import os
import random
import sys

import unpack_engine as up
from unpack_engine import _native
from unpack_engine.batches import _fields


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="pocket-gpt2")
    parser.add_argument("--shortest", type=int, default=8)
    parser.add_argument("--longest", type=int, default=24)
    parser.add_argument("--chunk", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=24)
    args = parser.parse_args()
    native = _native.for_batch(up.load(args.model, threads=1)._native, 1000)
    options = _native.batch_options(native, _fields({}))
    draw = random.Random(1)
    prompt = lambda i: (
        i,
        i + 1,
        json.dumps(
            {
                "ids": [
                    draw.randrange(4000) for _ in range(draw.randint(args.shortest, args.longest))
                ]
            }
        ),
        "",
    )
    _native.trace_records(
        native, options, [prompt(0)], None
    )  # packs the weights, makes the products
    times = []
    for _ in range(args.chunks):
        records = [prompt(i) for i in range(args.chunk)]
        begin = sum(os.times()[:2])
        _native.trace_records(native, options, records, None)
        times.append(round((sum(os.times()[:2]) - begin) / args.chunk, 4))
    json.dump(
        {
            "model": os.path.basename(args.model.rstrip("/")),
            "tokens": [args.shortest, args.longest],
            "chunk": args.chunk,
            "cpu_seconds_a_prompt": times,
        },
        sys.stdout,
    )
    print()


if __name__ == "__main__":
    main()
