"""What comes from the option parser: completion in three shells, the manual page; and what the
program says of itself.
"""
import json
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

UNPACK = os.environ["UNPACK"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def output(*arguments, **more):
    return subprocess.run(
        [UNPACK, *arguments], capture_output=True, text=True, check=True, **more
    ).stdout


def commands():
    """Names of all commands, from --help."""
    block = output("--help").split("Commands:")[1]
    return re.findall(r"^  (\w+)  ", block, re.M)


def options(command):
    return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", output(command, "--help"), re.M))


def need(shell):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The program as `unpack` in PATH, as completion expects it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "unpack").symlink_to(UNPACK)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def in_bash(environment, *words):
    need("bash")
    line = " ".join(f"'{word}'" for word in words)
    script = (
        f'source <("{UNPACK}" completion bash); COMP_WORDS=({line}); COMP_CWORD={len(words) - 1};'
        ' _unpack; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout.split()


def test_bash_knows_every_command_and_every_option(environment):
    assert set(in_bash(environment, "unpack", "")) == {*commands(), "--help", "--version"}
    assert in_bash(environment, "unpack", "interv") == ["intervene"]
    for command in commands():
        assert options(command) <= set(in_bash(environment, "unpack", command, "--")), command
    assert in_bash(environment, "unpack", "trace", "--versus-") == [
        "--versus-id",
        "--versus-answer",
    ]


def test_bash_knows_what_may_follow_an_option(environment, tmp_path):
    assert in_bash(environment, "unpack", "trace", "--color", "") == ["auto", "always", "never"]
    assert {"pocket-gpt2", "pocket-neox", "pocket-llama"} <= set(
        in_bash(environment, "unpack", "trace", "--model", "pocket")
    )
    (tmp_path / "prompts.jsonl").touch()
    assert in_bash(environment, "unpack", "batch", f"{tmp_path}/pr") == [
        f"{tmp_path}/prompts.jsonl"
    ]
    assert in_bash(environment, "unpack", "trace", "--json", f"{tmp_path}/pr") == [
        f"{tmp_path}/prompts.jsonl"
    ]
    assert in_bash(environment, "unpack", "trace", "--target", "") == []  # a text of the user's own
    assert in_bash(environment, "unpack", "completion", "z") == ["zsh"]
    assert "ioi" in in_bash(environment, "unpack", "experiment", "")


def in_fish(environment, line):
    need("fish")
    ran = subprocess.run(
        ["fish", "--no-config", "-c", f"'{UNPACK}' completion fish | source; complete -C '{line}'"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return [row.split("\t")[0] for row in ran.stdout.splitlines()]


def test_fish_knows_every_command_and_every_option(environment):
    assert set(commands()) <= set(in_fish(environment, "unpack "))
    for command in commands():
        assert options(command) <= set(in_fish(environment, f"unpack {command} --")), command
    assert set(in_fish(environment, "unpack trace --color ")) == {"auto", "always", "never"}
    assert "pocket-llama" in in_fish(environment, "unpack trace --model pocket")


def in_zsh(environment, *words):
    """What the script hands to zsh's own functions, one a line."""
    need("zsh")
    line = " ".join(f"'{word}'" for word in words)
    script = (
        "compdef() { }; _arguments() { print -rl -- \"$@\" }; _describe() { print -rl --"
        f" \"${{(@P)2}}\" }}; _alternative() {{ print -rl -- \"$@\" }}\nsource <('{UNPACK}'"
        f" completion zsh); words=({line}); CURRENT={len(words)}; _unpack"
    )
    ran = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout.splitlines()


def test_zsh_knows_every_command_and_every_option(environment):
    assert set(commands()) <= {row.split(":")[0] for row in in_zsh(environment, "unpack", "")}
    for command in commands():
        given = {
            re.match(r"\*?(-[\w-]+)", row).group(1)
            for row in in_zsh(environment, "unpack", command, "--")
            if re.match(r"\*?-", row)
        }
        assert options(command) <= given, command
    assert any(
        row.startswith("--color[") and row.endswith("(auto always never)")
        for row in in_zsh(environment, "unpack", "trace", "")
    )


def at_a_zsh_prompt(environment, folder, lines):
    """What becomes of each line, a tab at its end, in an interactive zsh that finds the script
    where a package puts it.
    """
    need("zsh")
    (folder / "_unpack").write_text(output("completion", "zsh"))
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**environment, "TERM": "dumb", "PS1": ""})

    def read_until(what, seconds):
        got, end = b"", time.monotonic() + seconds
        while what not in got and time.monotonic() < end:
            if select.select([terminal], [], [], 0.05)[0]:
                got += os.read(terminal, 65536)
        return got

    try:
        os.write(
            terminal,
            f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; print is''ready\n"
            .encode(),
        )
        assert b"isready" in read_until(b"isready", 30)
        became = []
        for line in lines:
            for seconds in (
                0.7,
                2,
                6,
            ):  # a busy machine takes longer to complete than it is given at first
                os.write(terminal, f"{line}\t".encode())
                read_until(b"no such thing", seconds)
                os.write(
                    terminal, b"\x01print -r -- is''now \n"
                )  # at the start of the line: it is printed, not run
                said = re.search(
                    rb"isnow ([^\r\n]*)", read_until(b"isnow ", 10) + read_until(b"\n", 1)
                )
                assert said, line
                if said.group(1).decode().strip() != line:
                    break
            became.append(said.group(1).decode().strip())
        return became
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def test_zsh_completes_what_is_typed(environment, tmp_path):
    typed = [
        "unpack interv", "unpack trace --versus-ans", "unpack trace --color alw",
        "unpack trace --model pocket-l"
    ]
    assert at_a_zsh_prompt(environment, tmp_path, typed) == [
        "unpack intervene", "unpack trace --versus-answer", "unpack trace --color always",
        "unpack trace --model pocket-llama"
    ]


def test_the_manual_page_names_every_option():
    page = output("manual")
    plain = re.sub(r"\\f[BIR]", "", page).replace("\\-", "-")
    for command in commands():
        part = plain.split(f'.SS "unpack {command}"')[1].split(".SS ")[0]
        for option in options(command):
            assert re.search(rf"^(-\w, )?{option}\b", part, re.M), (command, option)
    if shutil.which("groff"):
        ran = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True
        )
        assert ran.returncode == 0 and not ran.stderr, ran.stderr


def test_the_version_says_how_it_was_installed(tmp_path):
    lines = output("--version").splitlines()
    assert (
        lines[0].startswith("unpack " + (ROOT / "VERSION").read_text().strip())
        and "installed: built from source" in lines
    )
    # A folder with a marker of its packager is what the marker says, wherever it is moved.
    (tmp_path / "bin").mkdir()
    (tmp_path / "share" / "unpack").mkdir(parents=True)
    shutil.copy(UNPACK, tmp_path / "bin" / "unpack")
    (tmp_path / "share" / "unpack" / "installed_as").write_text("portable folder\n")
    said = subprocess.run(
        [tmp_path / "bin" / "unpack", "--version"], capture_output=True, text=True
    ).stdout
    assert "installed: portable folder" in said


def test_doctor_says_what_is_here_and_what_is_missing():
    page = output("doctor")
    for subject in (
        "program", "system", "processor", "kernels", "products", "GPU", "memory", "bundled models",
        "Hugging Face cache"
    ):
        assert re.search(rf"^{subject}  ", page, re.M), subject
    assert "pocket-gpt2" in page
    findings = json.loads(output("doctor", "--json", "-"))["findings"]
    assert {"subject", "found", "problem", "remedy", "fatal"} == set(findings[0])
    own = json.loads(output("doctor", "--json", "-", env={**os.environ, "UNPACK_ONEDNN": "off"}))[
        "findings"
    ]
    products = next(f for f in own if f["subject"] == "products")
    assert (
        "own products" in products["found"]
        and "right to" in products["found"]
        and products["remedy"] == "unset UNPACK_ONEDNN"
    )


def test_doctor_says_that_the_folder_of_own_models_is_not_there(tmp_path):
    def bundled(folder):
        page = output("doctor", "--json", "-", env={**os.environ, "UNPACK_MODELS": str(folder)})
        return next(
            f for f in json.loads(page)["findings"] if f["subject"] == "bundled models"
        )

    assert bundled(tmp_path)["problem"] == ""
    gone = bundled(tmp_path / "gone")
    assert gone["problem"] == f"UNPACK_MODELS names '{tmp_path}/gone', which is no folder"
    assert gone["remedy"].startswith("unset UNPACK_MODELS") and not gone["fatal"]


@pytest.mark.parametrize("offered", [True, False])
def test_setup_asks_for_no_browser_where_the_release_has_none(tmp_path, offered):
    """Ubuntu has Chromium as a snap alone: a script in its place would let the tests of the page
    fail.
    """
    programs = {
        "id": "echo 0",
        "dpkg-query": "exit 1",
        "apt-cache": (
            f'case "$2" in chromium) echo "  Candidate: {"120.1" if offered else "(none)"}" ;; *)'
            ' echo "  Candidate: 1.2" ;; esac'
        ),
        "apt-get": 'echo "apt-get $*"',
        "env": "shift; exec \"$@\"",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "setup.sh", "test"],
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    installed = next(
        line
        for line in ran.stdout.splitlines()
        if line.startswith("apt-get") and " install " in line
    ).split()
    assert {"g++", "python3-selenium"} <= set(installed)
    assert ("chromium" in installed, "chromium-driver" in installed) == (offered, offered)


def test_a_release_leaves_files_of_others_alone(tmp_path):
    ours = [
        "unpack-engine_0.1_amd64.deb", "libunpack-dev_0.1_amd64.deb",
        "python3-unpack-engine_0.1_amd64.deb", "unpack_engine-0.1.tar.gz", "CHANGES-0.1.md",
        "SHA256SUMS"
    ]
    for name in [*ours, "thesis.txt", "other_1.deb"]:
        (tmp_path / name).touch()
    (tmp_path / "unpack-folder").mkdir()
    subprocess.run(
        ["bash", "-c", '. "$0"; clear_dist', ROOT / "packaging" / "common.sh"],
        check=True,
        env={**os.environ, "DIST": str(tmp_path)},
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other_1.deb",
        "thesis.txt",
        "unpack-folder",
    ]
    assert "rm -rf \"$dist\"" not in (ROOT / "packaging" / "release.sh").read_text()


def test_without_onednn_the_values_are_the_same():
    question = [
        "trace", "Mary and John went to the store. John gave a drink to", "--target", " Mary",
        "--versus", " John", "--json", "-"
    ]
    with_it = json.loads(output(*question, env={**os.environ, "UNPACK_ONEDNN": "on"}))[
        "token_credit"
    ]
    without = json.loads(output(*question, env={**os.environ, "UNPACK_ONEDNN": "off"}))[
        "token_credit"
    ]
    assert without == pytest.approx(with_it, rel=1e-4, abs=1e-6)


def test_folders_include_only_what_stands_before_them(tmp_path):
    check = [sys.executable, str(ROOT / "scripts" / "check_order.py")]
    assert subprocess.run(check).returncode == 0
    for folder in ("src", "cli", "server", "python"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "ARCHITECTURE.md", tmp_path)
    (tmp_path / "src" / "base" / "wrong.cc").write_text('#include "credit/flow.h"\n')
    (tmp_path / "src" / "credit" / "wrong.h").write_text("namespace unpack {\nint wrong();\n}\n")
    (tmp_path / "src" / "credit" / "other.cc").write_text(
        "namespace unpack {\ndouble engine::other(int x,\n                      int y) {\n  return"
        " x + y;\n}\n}\n"
    )
    (tmp_path / "src" / "credit" / "opens.cc").write_text("namespace unpack::engine {\n}\n")
    (tmp_path / "src" / "credit" / "asks.cc").write_text(
        'bool gemma(const ModelConfig& c) { return c.family == "gemma2"; }\n'
    )
    ran = subprocess.run([*check, str(tmp_path)], capture_output=True, text=True)
    assert (
        ran.returncode != 0
        and "base comes before credit" in ran.stderr
        and "src/credit/asks.cc:1: asks for a family" in ran.stderr
    )
    assert (
        "src/credit/wrong.h: what it declares belongs into namespace unpack::credit" in ran.stderr
    )
    for name in ("other", "opens"):
        assert (
            f"src/credit/{name}.cc: what belongs into the namespace engine stands in its own folder"
            in ran.stderr
        )


def test_messages_of_the_library_name_fields_and_no_options(tmp_path):
    for folder in ("src", "cli", "server", "python"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "ARCHITECTURE.md", tmp_path)
    (tmp_path / "src" / "base" / "wrong.cc").write_text(
        '// as --help has it\nconst char* a = "--beta is wrong";\nint b = 10\'000 - --c;\nconst'
        ' char* d = R"(take --keys)";\nconst char* e = "var(--ink) a--b `--preset best`";\nconst'
        ' char* f = "\\"x\\" or (--no-bos)";\n'
    )
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_order.py"), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0 and [line.split(":")[1] for line in ran.stderr.splitlines()[1:]] == [
        "2",
        "4",
        "6",
    ], ran.stderr


# A system that seems to have a GPU's driver, to those who may have a /dev of their own.
DRIVER = [
    "unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /dev && touch /dev/dxg && exec "$0" "$@"'
]


def test_the_version_opens_no_gpu(tmp_path):
    """What a process loads while it runs, as its loader tells it. `doctor`, which asks the GPU,
    shows that it would be seen.
    """
    plugin = tmp_path / "libunpack_cuda.so"
    plugin.write_text("no library")
    may = shutil.which("unshare") and subprocess.run([*DRIVER, "true"]).returncode == 0

    def told(command):
        folder = tmp_path / command
        folder.mkdir()
        log = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(folder / "loads")}
        subprocess.run(
            [*(DRIVER if may else []), UNPACK, command],
            env={**os.environ, **log, "UNPACK_CUDA_PLUGIN": str(plugin)},
            stdout=subprocess.DEVNULL,
        )
        return "".join(path.read_text(errors="replace") for path in folder.iterdir())

    version = told("--version")
    assert "libc.so" in version and "libcuda" not in version and "libunpack_cuda" not in version
    assert not may or "libunpack_cuda" in told("doctor")


def test_what_only_some_systems_have_stands_in_few_files(tmp_path):
    for folder in ("src", "cli", "server", "python"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "ARCHITECTURE.md", tmp_path)
    (tmp_path / "src" / "base" / "wrong.cc").write_text(
        '#include <sys/mman.h>\nconst char* memory = "/proc/meminfo";\nint wrong ='
        ' epoll_create(1);\n'
    )
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_order.py"), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0 and [line.split(":")[1] for line in ran.stderr.splitlines()[1:]] == [
        "1",
        "2",
        "3",
    ], ran.stderr
