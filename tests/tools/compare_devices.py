#!/usr/bin/python3
"""Whether two devices give the same numbers, through the program's JSON.

    compare_devices.py PROGRAM DEVICE DEVICE FOLDER ...

Every FOLDER holds a model and an expected.json with the ids and targets to ask for. Numbers are
compared list by list, a difference counting against the list's largest. Prints the worst of every
folder; exit 1 where one exceeds TOL (1e-4) or nothing was compared.
"""
import json
import os
import subprocess
import sys

LIMIT = float(os.environ.get("TOL", "1e-4"))
# What says how a result came about, and numbers in words.
SKIPPED = {"program", "device", "threads", "seconds", "command", "timing", "warnings"}


def run(program, device, args):
    done = subprocess.run(
        [program, *args, "--device", device, "--json", "-"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(
            f"FAILED: exit {done.returncode}: {program} {' '.join(args)} --device"
            f" {device}\n{done.stderr.strip()}"
        )
    return json.loads(done.stdout)


def is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def worst(a, b, where):
    """(largest relative difference, where) of two results of one form"""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return float("inf"), f"{where}: other keys"
        return max(
            (worst(a[k], b[k], f"{where}.{k}") for k in a if k not in SKIPPED), default=(0.0, where)
        )
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return float("inf"), f"{where}: {len(a)} and {len(b)} of them"
        if a and all(is_number(x) for x in a + b):
            size = max(max(map(abs, a)), 1e-12)
            return max((abs(x - y) / size, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)))
        if a and all(isinstance(x, dict) and is_number(x.get("credit")) for x in a + b):
            # Entries and paths: those of one size may stand in either order.
            size = lambda rows: sorted((abs(x["credit"]) for x in rows), reverse=True)
            return worst(size(a), size(b), where + ".credit")
        return max(
            (worst(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b))),
            default=(0.0, where),
        )
    if is_number(a) and is_number(b):
        return abs(a - b) / max(abs(a), 1e-3), where
    return (0.0, where) if a == b else (float("inf"), f"{where}: {a!r} and {b!r}")


def questions(folder):
    with open(os.path.join(folder, "expected.json")) as file:
        case = json.load(file)
    number_list = lambda values: ",".join(map(str, values))
    model = ["--model", folder, "--ids", number_list(case["ids"])]
    target = ["--target-id", number_list(case["target_ids"])]
    if case.get("versus_ids"):
        target += ["--versus-id", number_list(case["versus_ids"])]
    last = len(case["ids"]) - 1
    yield ["predict", *model]
    yield ["interactions", *model]
    for extra in (
        [],
        ["--scores", "centered"],
        ["--dispatch", "gate"],
        ["--mlp", "linearized"],
        ["--mlp", "l2"],
        ["--beta", "0.2"],
        ["--scores", "centered", "--mlp", "linearized"],
        ["--weights", "1,0,0"],
        ["--root", f"MLP0@{last}"],
        ["--root", f"A0.H0@{last}"],
        ["--tau", "0.01", "--tau-rule", "entry"],
    ):
        yield ["trace", *model, *target, *extra]
    for extra in (
        ["--cut", "A0.H0", "--channel", "mlp"],
        ["--cut", "MLP0", "--channel", "attention"],
        ["--zero", "0"],
        ["--edge", f"MLP0@{last} -> target", "--patch-ids", number_list(reversed(case["ids"]))],
    ):
        yield ["intervene", *model, *target, *extra]


def main():
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    program, first, second, *folders = sys.argv[1:]
    compared = failed = 0
    for folder in folders:
        results = []
        for args in questions(folder):
            difference, where = worst(run(program, first, args), run(program, second, args), "")
            results.append((difference, " ".join(args[:1] + args[5:]) + where))
            compared += 1
        difference, where = max(results)
        failed += difference > LIMIT
        verdict = "FAILED" if difference > LIMIT else "ok"
        print(
            f"{os.path.basename(folder.rstrip('/'))}: {difference:.2e} in {where} {verdict}",
            flush=True,
        )
    if not compared:
        raise SystemExit("FAILED: nothing was compared")
    print(f"{compared} questions on {first} and {second}: {failed} folders differ; limit {LIMIT}")
    sys.exit(1 if failed else 0)


main()
