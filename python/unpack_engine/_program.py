"""The program `unpack`, where it came inside the wheel: the console script and
`python -m unpack_engine` start it.
"""
from __future__ import annotations

import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "unpack")
    if not os.path.exists(program):
        sys.exit(
            "unpack: the program is not part of this installation of the module; `unpack` itself"
            " may be in PATH"
        )
    os.execv(program, ["unpack", *sys.argv[1:]])
