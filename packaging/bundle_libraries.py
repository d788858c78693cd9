#!/usr/bin/env python3
"""Puts the shared libraries that a base system may lack beside the programs that need them.

    bundle_libraries.py [--runtime] [--also NAME...] LIB_FOLDER PROGRAM...

Every library that PROGRAM (and what --also names, which is opened at run time) needs and that is
not part of every Linux system is copied to LIB_FOLDER, and the programs are told to look there,
relative to where they lie. With the copies go the licences of the Debian packages they are from.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

# The C library's own parts stay the system's. So does the compiler's runtime in a wheel, since a
# process with other modules must hold one copy only; a program that is alone in its process takes
# it along (--runtime).
BASE = re.compile(
    r"^(ld-linux.*|linux-vdso|libc|libm|libdl|librt|libpthread|libutil|libresolv)\.so"
)
RUNTIME = re.compile(r"^(libgcc_s|libstdc\+\+)\.so")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(file):
    """name -> path of every library that `file` loads, directly or through others."""
    found = {}
    for line in output("ldd", str(file)).splitlines():
        match = re.match(r"\s*(\S+) => (\S+|not found)", line)
        if not match:
            continue
        if not match.group(2).startswith("/"):
            sys.exit(f"bundle: {file} needs {match.group(1)}, which is not installed")
        found[match.group(1)] = pathlib.Path(match.group(2))
    return found


def locate(name):
    """A library that nothing links: where the linker's cache has it."""
    for line in output("/sbin/ldconfig", "-p").splitlines():
        parts = line.split()
        if parts and parts[0] == name and ("x86-64" in line or "AArch64" in line):
            return pathlib.Path(parts[-1])
    return None


def licence(library):
    """The copyright file of the Debian package that owns `library`, and its name."""
    if shutil.which("dpkg-query") is None:
        return None, None
    real = library.resolve()
    for path in (
        real,
        pathlib.Path(str(real).replace("/usr/lib/", "/lib/", 1)),
        pathlib.Path("/usr" + str(real)),
    ):
        owner = (
            subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True)
            .stdout.split(":")[0]
            .strip()
        )
        text = pathlib.Path("/usr/share/doc") / owner / "copyright"
        if owner and text.is_file():
            return owner, text
    return None, None


def relative(target, folder):
    return os.path.join("$ORIGIN", os.path.relpath(target, folder))


def bundle(folder, programs, also=(), runtime=False):
    """Copies what is needed; returns the names of the copies."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for program in programs:
        wanted.update(needed(program))
    for names in also:
        path = next((found for found in map(locate, names.split("|")) if found), None)
        if path is None:
            sys.exit(f"bundle: none of {names} is installed")
        wanted[path.name] = path
        wanted.update(needed(path))
    copied = []
    for name, path in sorted(wanted.items()):
        if BASE.match(name) or not runtime and RUNTIME.match(name):
            continue
        copy = folder / name
        shutil.copy(path.resolve(), copy)
        copy.chmod(0o755)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", str(copy)], check=True)
        owner, text = licence(path)
        if text is None:
            print(
                (
                    f"bundle: no package says under which licence {name} is; THIRD_PARTY_NOTICES.md"
                    " is all that goes with it"
                ),
                file=sys.stderr,
            )
        else:
            licences = folder / "licences"
            licences.mkdir(exist_ok=True)
            shutil.copy(text, licences / owner)
        copied.append(name)
    for program in programs:
        subprocess.run(
            [
                "patchelf",
                "--set-rpath",
                relative(folder.resolve(), pathlib.Path(program).resolve().parent),
                str(program),
            ],
            check=True,
        )
    return copied


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("programs", nargs="+")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        help="a library that is opened at run time; a|b takes the first there is",
    )
    parser.add_argument("--runtime", action="store_true", help="libstdc++ and libgcc_s as well")
    arguments = parser.parse_args()
    print(
        "bundled:",
        ", ".join(bundle(arguments.folder, arguments.programs, arguments.also, arguments.runtime))
        or "nothing",
    )


if __name__ == "__main__":
    main()
