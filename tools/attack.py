#!/usr/bin/env python3
"""A structured attacker: hostile input for every surface of the program, drawn from a seed.

    tools/attack.py                      # about 30 s, every surface once around, as in `make test`
    tools/attack.py --minutes 120        # by hand, for hours
    tools/attack.py --surface batch --seed 7 --cases 500

It knows what is allowed: exit 0, 1 or 2; on failure one line of UTF-8 under 500 characters; no
number that is not finite in a result; limits of time and memory. What breaks a rule is made smaller
for as long as it still does, and written to the folder --keep (default attack-findings). UNPACK
names the program (default: build/release/unpack). The surfaces are in tools/hostile.
"""
import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hostile import SURFACES
from hostile.rules import PROGRAM


def attempt(surface, case):
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        try:
            return surface.run(case, Path(place))
        finally:
            for name in os.listdir(place):  # whatever was made there can be removed
                (
                    os.chmod(os.path.join(place, name), 0o700, follow_symlinks=True)
                    if os.path.isdir(os.path.join(place, name))
                    else None
                )


def shrink(surface, case, found, seconds=30):
    """The smallest case seen that breaks the same rule."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for candidate in surface.smaller(case):
            if time.monotonic() >= end:
                break
            outcome = attempt(surface, candidate)
            if outcome.problem == found.problem:
                case = candidate
                break
        else:
            break
    return case


def attack(names, seed, seconds=None, cases=None, keep=None, out=sys.stderr):
    """(cases tried, findings). Surfaces take turns."""
    findings, tried = [], 0
    surfaces = {name: SURFACES[name]() for name in names}
    end = time.monotonic() + seconds if seconds else None
    try:
        turn = 0
        while (cases is None or turn < cases) and (end is None or time.monotonic() < end):
            for name, surface in surfaces.items():
                if end is not None and time.monotonic() >= end:
                    break
                case = surface.draw(random.Random(f"{seed} {name} {turn}"))
                tried += 1
                found = attempt(surface, case)
                if not found:
                    continue
                case = shrink(surface, case, found)
                findings.append((name, turn, found, case))
                print(
                    (
                        f"attack: {name}, seed {seed}, case {turn}: {found.problem}:"
                        f" {found.detail}\n    {str(case)[:600]}"
                    ),
                    file=out,
                )
                if keep:
                    Path(keep).mkdir(parents=True, exist_ok=True)
                    (Path(keep) / f"{name.replace(' ', '-')}-{seed}-{turn}.txt").write_text(
                        f"{found.problem}\n{found.detail}\n{case!r}\n", errors="replace"
                    )
            turn += 1
    finally:
        for surface in surfaces.values():
            if hasattr(surface, "close"):
                surface.close()
    return tried, findings


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="for how long (default: half a minute)")
    parser.add_argument("--cases", type=int, help="how many of each surface, instead of a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--surface", action="append", choices=list(SURFACES), help="only this one; may be repeated"
    )
    parser.add_argument("--keep", default="attack-findings", help="folder for what was found")
    args = parser.parse_args()
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"{PROGRAM} is not there: build it, or set UNPACK")
    seconds = None if args.cases else (args.minutes * 60 if args.minutes else 30)
    begin = time.monotonic()
    tried, findings = attack(
        args.surface or list(SURFACES), args.seed, seconds, args.cases, args.keep
    )
    print(
        f"{tried} cases in {time.monotonic() - begin:.0f} s, {len(findings)} findings"
        + (f", in {args.keep}" if findings else "")
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
