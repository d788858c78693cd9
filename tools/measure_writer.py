#!/usr/bin/env python3
"""What the one process costs that writes the lines of a Dask batch, opens a folder again, or merges
shards. The model's own work is left out: lines are copied.

    PYTHONPATH=build/release/python tools/measure_writer.py --model pocket-gpt2 --tokens 16 --lines
    2000
"""
import argparse
import json
import os
import pickle
import random
import sys
import tempfile
import time
from pathlib import Path

import unpack_engine as up
from unpack_engine import _native
from unpack_engine.batches import _fields


def renumbered(line, index):
    """The same answer under another number, its checksum made again."""
    import zlib

    text = line[2].decode()
    body = text[: text.rindex(',"crc32"')]
    body = f'{{"index":{index},"line":{index + 1}' + body[body.index(',"id"') :]
    return (index, False, f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'.encode(), *line[3:])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="pocket-gpt2")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--chunk", type=int, default=16)
    args = parser.parse_args()
    native = up.load(args.model)._native
    maker, options = _native.batch_maker(native), _native.batch_options(native, _fields({}))
    draw = random.Random(1)
    ids = [
        json.dumps({"ids": [draw.randrange(4000) for _ in range(args.tokens)]})
        for _ in range(args.lines)
    ]
    sample = _native.trace_records(native, options, [(0, 1, ids[0], "")], None)[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "prompts.jsonl").write_text("\n".join(ids) + "\n")
        pickled = [
            pickle.dumps(
                [renumbered(sample, i) for i in range(a, min(a + args.chunk, args.lines))], -1
            )
            for a in range(0, args.lines, args.chunk)
        ]
        size = len(sample[2]) + 1

        def report(what, seconds):
            print(
                f"{what:28} {1e6 * seconds / args.lines:9.1f} us a line"
                f" {args.lines / seconds:10.0f} lines/s"
                f" {args.lines * size / seconds / 1e6:8.1f} MB/s"
            )

        def clock():
            usage = os.times()
            return usage.user + usage.system

        print(
            f"{args.model}, {args.tokens} tokens: {size} bytes a line; CPU seconds of this process"
        )
        begin = clock()
        target = _native.BatchFolder(
            str(place / "prompts.jsonl"), "auto", str(place / "out"), options, "", False, False,
            maker
        )
        for chunk in pickled:
            target.append(pickle.loads(chunk))
        target.finish()
        report("unpickle and append", clock() - begin)
        del target
        begin = clock()
        _native.BatchFolder(
            str(place / "prompts.jsonl"), "auto", str(place / "out"), options, "", False, False,
            maker
        )
        report("open again (resume)", clock() - begin)
        for s in (1, 2):
            part = _native.BatchFolder(
                str(place / "prompts.jsonl"), "auto", str(place / f"part{s}"), options, f"{s}/2",
                False, False, maker
            )
            part.append(
                [line for chunk in pickled for line in pickle.loads(chunk) if line[0] % 2 == s - 1]
            )
            part.finish()
            del part
        begin = clock()
        up.merge([place / "part1", place / "part2"], place / "merged")
        report("merge two shards", clock() - begin)
        assert (place / "merged" / "results.jsonl").read_bytes() == (
            place / "out" / "results.jsonl"
        ).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
