"""What is allowed: exit 0, 1 or 2, one line on failure, finite numbers, limits of time and
memory.
"""
import json
import os
import re
import resource
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("UNPACK", str(ROOT / "build" / "release" / "unpack"))
GOLDEN = ROOT / "tests" / "golden"
# A GPU's driver takes more addresses than a case may have, and is none of ours.
os.environ.setdefault("UNPACK_CUDA_PLUGIN", "")
TIME_LIMIT = float(
    os.environ.get("UNPACK_ATTACK_SECONDS", "20")
)  # of one case; a slow machine may raise it
# So many times that on the clock: a busy machine makes a program wait, which is not what is
# measured.
PATIENCE = 4
MEMORY_LIMIT = 4 << 30  # address space
LONGEST_LINE = 500


class Outcome:
    def __init__(self, problem="", detail=""):
        self.problem, self.detail = problem, detail

    def __bool__(self):
        return bool(self.problem)


def finite(value):
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, dict):
        return all(finite(x) for x in value.values())
    return not isinstance(value, list) or all(finite(x) for x in value)


def no_constant(name):
    raise ValueError(f"{name} in JSON")


def judge_json(text):
    """A result: JSON without NaN or Infinity."""
    try:
        value = json.loads(text, parse_constant=no_constant)
    except ValueError as error:
        return Outcome("a result that is no JSON", str(error))
    return Outcome() if finite(value) else Outcome("a number that is not finite", text[:200])


def judge_message(data):
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Outcome("a message that is no UTF-8", repr(data[:200]))
    lines = [line for line in text.split("\n") if line]
    if len(lines) != 1:
        return Outcome(f"{len(lines)} lines of message", text[:400])
    if len(lines[0]) >= LONGEST_LINE:
        return Outcome("a message of 500 characters or more", lines[0][:200])
    if re.search(r"[\x00-\x1f\x7f-\x9f]", lines[0]):
        return Outcome("a control character in a message", repr(lines[0][:200]))
    if "internal error" in lines[0]:
        return Outcome("an internal error", lines[0])
    return Outcome()


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limited_in_time():
    limited()
    resource.setrlimit(resource.RLIMIT_CPU, (int(TIME_LIMIT), int(TIME_LIMIT) + 5))


def run_program(args, stdin=b"", results=None, place=None):
    """One call of the program, in the folder `place`. `results`: files of JSON that it may
    leave.
    """
    try:
        done = subprocess.run(
            [
                os.fsencode(PROGRAM),
                *[a if isinstance(a, bytes) else os.fsencode(str(a)) for a in args],
            ],
            input=stdin,
            capture_output=True,
            timeout=PATIENCE * TIME_LIMIT,
            preexec_fn=limited_in_time,
            cwd=place,
        )
    except subprocess.TimeoutExpired:
        return Outcome("over the time limit", f"{PATIENCE * TIME_LIMIT} s on the clock")
    except (
        ValueError,
        OSError,
    ) as error:  # a NUL or too long an argument: the system refuses it, not the program
        return (
            Outcome()
            if not isinstance(error, FileNotFoundError)
            else Outcome("the program is not there", str(error))
        )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome("over the time limit", f"{TIME_LIMIT} s of a processor")
    if done.returncode not in (0, 1, 2):
        return Outcome(f"exit {done.returncode}", done.stderr.decode(errors="replace")[:400])
    if done.returncode != 0:
        found = judge_message(done.stderr)
        if found:
            return found
    for file in results or []:
        if file == "-" and done.returncode == 0:
            found = judge_json(done.stdout.decode(errors="replace"))
            if found:
                return found
        elif file != "-" and Path(file).exists():
            for line in Path(file).read_text(errors="replace").splitlines():
                found = judge_json(line)
                if found:
                    return found
    return Outcome()
