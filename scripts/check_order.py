#!/usr/bin/env python3
"""Folders stand in an order (ARCHITECTURE.md), and a file includes only from its own folder and
those before it. The order is read from that page. What a folder's headers declare stands in the
folder's own namespace; `unpack` itself holds what include/unpack declares, and a folder's other
files define nothing that belongs to another folder. A message of the library names the field that
is wrong, as every front end calls it, never an option of the command line: no text under src/ holds
`--word`. Whatever a model family differs in is data in its config: outside src/model nothing
compares the family's name. JSON has one reader (src/base/json_reader.h), with one limit of depth
and size: no other file calls that of the JSON library. What ends the process where memory runs out
is used nowhere. And what only some systems have stands where docs/packaging.md says, so that a port
knows its files."""
import pathlib
import re
import sys

ROOT = (
    pathlib.Path(sys.argv[1])
    if len(sys.argv) > 1
    else pathlib.Path(__file__).resolve().parent.parent
)
# What one folder may read of a later one: plain data that its interface is written in.
ALLOWED = {
    ("backend", "model/weights.h"),
    ("backend", "model/weight_block.h"),
    ("backend", "model/value_checks.h"),
}
# `unpack::intervene` is a public function.
NAMESPACES = {"intervene": "interventions"}
# The inside of a public class, and the one word that every folder says.
IN_UNPACK = {"src/tokenizer/impl.h", "src/base/index.h"}
# What was written by the program itself a moment ago, or has passed the reader.
OWN_JSON = {"src/base/json_reader.cc", "src/base/fields.cc"}
# A program of others has options as well, and CSS calls its own values by such names.
OTHERS = "huggingface-cli"
CSS = re.compile(r"var\(--\w+|[{;]--\w+:")
LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\((?P<raw>.*?)\)\1"|"(?P<text>(?:\\.|[^"\\\n])*)"|'(?:\\\w{1,4}|\\.|[^'\\\n])'""",
    re.S,
)
# What Windows, or any system but Linux, has not: in these files alone.
SYSTEM = {
    r'"/proc|<(sched|dlfcn|gnu/.*|linux/.*|mach.*|sys/(resource|sysctl|utsname))\.h>|'
    r"\b(sched_|madvise\(.*HUGE|getrusage|fdatasync)": {"src/base/system.cc"},
    r"<sys/mman\.h>": {"src/base/system.cc", "src/model/safetensors.cc"},
    r"<(fcntl|sys/stat|sys/file)\.h>": {
        "src/base/files.cc", "src/report/part_file.cc", "src/report/line_log.cc",
        "src/report/write_file.cc"
    },
    r"<dirent\.h>": {"src/base/files.cc", "server/connection.cc"},
    # Ends the process where memory runs out: base/files.h lists folders.
    r"directory_iterator": set(),
    # Likewise, in a destructor: unpack/json.h has the values.
    r"nlohmann::(ordered_)?json\b|<nlohmann/": set(),
    r"<(csignal|(signal|pthread)\.h)>": {"cli/main.cc"},
    r"<(sys/socket|netinet/.*|arpa/.*|poll)\.h>": {
        "server/server.cc",
        "server/connection.cc",
        "server/guard.cc",
    },
    r"<sys/ioctl\.h>": {"cli/context.cc", "server/connection.cc"},
    r"<malloc\.h>": {"src/base/system.cc", "cli/allocator.cc", "server/prepared_cache.cc"},
    r"<unistd\.h>": {
        "src/base/system.cc", "src/base/files.cc", "src/model/safetensors.cc",
        "src/report/part_file.cc", "src/report/line_log.cc", "src/report/write_file.cc",
        "cli/context.cc", "cli/arguments.cc", "cli/main.cc"
    },
    r"\b(epoll_|inotify_|eventfd|signalfd|timerfd|sigtimedwait|sigwaitinfo|prctl|accept4|pipe2|"
    r"memfd_|renameat2|sendfile)\w*\(": set(),
}


def order():
    """folder -> rank; those between two arrows share one and may include each other."""
    for block in (ROOT / "ARCHITECTURE.md").read_text().split("\n\n"):
        if block.startswith("    ") and block.count("->") > 4:
            return {
                name.strip(): rank
                for rank, group in enumerate(block.split("->"))
                for name in re.split(r"[,|]", group)
            }
    sys.exit("order: ARCHITECTURE.md has lost the paragraph with the order of folders")


def options_in_texts(text):
    """(line, option) of every literal that names an option of the command line; a report's
    `--preset best`, in backticks, names a command.
    """
    for literal in LITERAL.finditer(text):
        content = literal["raw"] or literal["text"]
        if not content or OTHERS in content:
            continue
        if found := re.search(r"(?<![`\w-])--[a-z]\w*", CSS.sub("", content)):
            yield text.count("\n", 0, literal.start()) + 1, found[0]


def strange_namespaces(folder, folders, text):
    """Namespaces of other folders that a source file opens or defines something in."""
    names = {NAMESPACES.get(name, name): name for name in folders}
    for opened in re.findall(r"^namespace (?:unpack::)?(\w+)[\w:]* \{", text, re.M) + re.findall(
        r"^[\w][^\n(;=]*?\b(\w+)::(?:\w+::)*~?\w+\([^\n]*(?:\n[^\n;{}]*)*\{$", text, re.M
    ):
        if names.get(opened, folder) != folder:
            yield opened


def main():
    ranks = order()
    wrong = []
    files = [
        path
        for top in ("src", "cli", "server", "python/native")
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in (".h", ".cc", ".inl", ".cu")
    ]
    seen = set()
    for path in files:
        parts = path.relative_to(ROOT).parts
        folder = parts[1] if parts[0] == "src" else parts[0]
        if folder not in ranks:
            wrong.append(
                f"{path.relative_to(ROOT)}: the folder {folder} is not in ARCHITECTURE.md's order"
            )
            continue
        seen.add(folder)
        text = path.read_text()
        opened = set(re.findall(r"^namespace (unpack[\w:]*) \{", text, re.M))
        own = f"unpack::{NAMESPACES.get(folder, folder)}"
        if (
            parts[0] == "src"
            and path.suffix == ".h"
            and opened
            and str(path.relative_to(ROOT)) not in IN_UNPACK
        ):
            if "unpack" in opened or not any(
                name == own or name.startswith(own + "::") for name in opened
            ):
                wrong.append(
                    f"{path.relative_to(ROOT)}: what it declares belongs into namespace {own}"
                )
        if parts[0] == "src":
            name = str(path.relative_to(ROOT))
            wrong += [
                f"{name}:{number}: {option} is an option of the command line; a message names the"
                " field"
                for number, option in options_in_texts(text)
            ]
            if path.suffix != ".h":
                wrong += [
                    f"{name}: what belongs into the namespace {opened} stands in its own folder"
                    for opened in strange_namespaces(folder, ranks, text)
                ]
        for number, line in enumerate(text.splitlines(), 1):
            if folder != "model" and re.search(
                r"\bfamily\s*[=!]=|[=!]=\s*[\w.>()-]*\bfamily\b", line
            ):
                wrong.append(
                    f"{path.relative_to(ROOT)}:{number}: asks for a family; what differs belongs"
                    " into LayerConfig or ModelConfig"
                )
            if (
                re.search(r"[jJ]son::(parse|sax_parse|accept)\(", line)
                and str(path.relative_to(ROOT)) not in OWN_JSON
            ):
                wrong.append(
                    f"{path.relative_to(ROOT)}:{number}: JSON from outside goes through"
                    " base/json_reader.h"
                )
            wrong += [
                f"{path.relative_to(ROOT)}:{number}: {found.group(0)} is not to be used everywhere,"
                " and this file is not among its places"
                for what, places in SYSTEM.items()
                if (found := re.search(what, line)) and str(path.relative_to(ROOT)) not in places
            ]
            match = re.match(r'#include "([a-z_]+)/', line)
            if not match or match.group(1) == "unpack":
                continue
            target = match.group(1)
            included = line.split('"')[1]
            if not (ROOT / "src" / target).is_dir() or (folder, included) in ALLOWED:
                continue
            if parts[0] != "src":
                wrong.append(
                    f"{path.relative_to(ROOT)}:{number}: a front end includes {included}; it may"
                    " use include/unpack alone"
                )
            elif ranks.get(target, 0) > ranks[folder]:
                wrong.append(
                    f"{path.relative_to(ROOT)}:{number}: {folder} comes before {target}, and"
                    f" includes {included}"
                )
    wrong += [
        f"ARCHITECTURE.md: the order names {name}, which is no folder"
        for name in sorted(set(ranks) - seen)
    ]
    if wrong:
        sys.exit("order:\n  " + "\n  ".join(wrong))
    print(f"order: ok, {len(files)} files in {len(seen)} folders")


if __name__ == "__main__":
    main()
