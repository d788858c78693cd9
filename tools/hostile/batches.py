"""Prompt files of every kind, and folders of shards that somebody changed."""
import json
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

from hostile.material import NUMBERS, STRINGS, bend, fields, mangle, smaller_bytes, text_of
from hostile.rules import GOLDEN, LONGEST_LINE, PROGRAM, Outcome, run_program


def sealed(line):
    """A line with the right checksum of what is in it."""
    body = line[:-1]
    return body + b',"crc32":"%08x"}' % (zlib.crc32(body) & 0xFFFFFFFF)


class BatchLines:
    """Lines of a prompt file."""

    def draw(self, rng):
        lines = []
        for _ in range(rng.randint(1, 6)):
            line = text_of(fields(rng)).encode("utf-8", "surrogatepass")
            lines.append(mangle(rng, line) if rng.random() < 0.3 else line)
        return lines

    def run(self, case, place):
        (place / "p.jsonl").write_bytes(b"\n".join(case) + b"\n")
        out = place / "out"
        args = ["batch", place / "p.jsonl", "--out", out, "--top-paths", "2", "--arrays"]
        found = run_program(
            args,
            results=[
                out / "results.jsonl",
                out / "errors.jsonl",
            ],
        )
        if found:
            return found
        for line in (
            (out / "errors.jsonl").read_bytes().splitlines()
            if (out / "errors.jsonl").exists()
            else []
        ):
            reason = json.loads(line)["reason"]
            if len(reason) >= LONGEST_LINE or re.search(r"[\x00-\x1f]", reason):
                return Outcome("a reason that is no line", reason[:200])
        return run_program(args)  # once more: it resumes

    def smaller(self, case):
        for i in range(len(case)):
            if len(case) > 1:
                yield case[:i] + case[i + 1 :]
        if len(case) == 1:
            for data in smaller_bytes(case[0]):
                yield [data]


class Tables:
    """Tables and texts of prompts."""

    def draw(self, rng):
        rows = [["prompt", "ids", "position", "target", "top_paths"][: rng.randint(1, 5)]]
        for _ in range(rng.randint(0, 4)):
            rows.append(
                [
                    rng.choice(STRINGS + NUMBERS + ["Mary", "3 17", "\"x", "a,b"]).replace(
                        "\ud800", "?"
                    )
                    for _ in range(rng.randint(1, 6))
                ]
            )
        text = "\n".join(rng.choice([",", "\t"]).join(row) for row in rows).encode()
        return {
            "name": rng.choice(["p.csv", "p.tsv", "p.txt", "p.json"]),
            "data": mangle(rng, text) if rng.random() < 0.5 else text,
        }

    def run(self, case, place):
        (place / case["name"]).write_bytes(case["data"])
        return run_program(
            ["batch", place / case["name"], "--out", place / "out", "--top-paths", "1"]
        )

    def smaller(self, case):
        for data in smaller_bytes(case["data"]):
            yield {**case, "data": data}


class Merges:
    """run.json and records of shards, which the program wrote and somebody changed."""

    def __init__(self):
        self.shards = None

    def shard_files(self):
        if self.shards is None:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "p.jsonl").write_text(
                    "".join(json.dumps({"ids": [i + 1, 2]}) + "\n" for i in range(5)) + "bad\n"
                )
                self.shards = []
                for i in (1, 2):
                    out = Path(folder) / f"s{i}"
                    subprocess.run(
                        [
                            PROGRAM, "batch", str(Path(folder) / "p.jsonl"), "--model",
                            str(GOLDEN / "tiny-gpt2"), "--out", str(out), "--shard", f"{i}/2",
                            "--arrays", "--top-paths", "1"
                        ],
                        check=True,
                        capture_output=True,
                    )
                    self.shards.append(
                        {
                            name: (out / name).read_bytes()
                            for name in ("run.json", "results.jsonl", "errors.jsonl")
                        }
                    )
        return self.shards

    def draw(self, rng):
        shards = [dict(s) for s in self.shard_files()]
        shard = rng.choice(shards)
        if rng.random() < 0.5:
            run = json.loads(shard["run.json"])
            bend(rng, run)
            changed = text_of(run).encode("utf-8", "surrogatepass")
            for s in shards if rng.random() < 0.6 else [shard]:
                own = json.loads(s["run.json"])["shard"]
                s["run.json"] = changed.replace(b'"1/2"', json.dumps(own).encode()).replace(
                    b'"2/2"', json.dumps(own).encode()
                )
        else:
            lines = shard["results.jsonl"].splitlines()
            kind = rng.randrange(4)
            at = rng.randrange(len(lines))
            if kind == 0:
                rng.shuffle(lines)
            elif kind == 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
            elif kind == 2:
                lines[at] = mangle(rng, lines[at])
            else:
                record = json.loads(lines[at])
                del record["crc32"]
                bend(rng, record)
                lines[at] = sealed(text_of(record).encode("utf-8", "surrogatepass"))
            shard["results.jsonl"] = b"\n".join(lines) + b"\n"
        return shards

    def run(self, case, place):
        for i, files in enumerate(case):
            (place / f"s{i}").mkdir()
            for name, data in files.items():
                (place / f"s{i}" / name).write_bytes(data)
        return run_program(
            ["merge", place / "s0", place / "s1", "--out", place / "m"],
            results=[place / "m" / "results.jsonl"],
        )

    def smaller(self, case):
        for i, files in enumerate(case):
            lines = files["results.jsonl"].splitlines(keepends=True)
            for at in range(len(lines)):
                yield [
                    *case[:i],
                    {**files, "results.jsonl": b"".join(lines[:at] + lines[at + 1 :])},
                    *case[i + 1 :],
                ]
