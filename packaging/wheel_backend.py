"""A build backend (PEP 517) of the standard library alone: CMake makes module and program, this
puts them into a wheel.

`python3 -m build --wheel --no-isolation`, `pip wheel .` and `make wheel` call it. The wheel holds
module, program, page, models and the shared libraries that a base system may lack
(bundle_libraries.py). Its tag names the C library of the machine that built it.

UNPACK_PACKAGE_BUILD: the folder to build in (default build/package). CMAKE_BUILD_PARALLEL_LEVEL:
how many compilers at once.
"""
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile

import bundle_libraries

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME = (2020, 1, 1, 0, 0, 0)  # the same bytes from the same sources


def get_requires_for_build_wheel(config_settings=None):
    return []


def get_requires_for_build_sdist(config_settings=None):
    return []


def project():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table["version"] = (ROOT / "VERSION").read_text().strip()
    return table


def base_name(table):
    return f"{table['name'].replace('-', '_')}-{table['version']}"


def tag():
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = sysconfig.get_platform().split("-")[-1].replace(".", "_")
    library, _, version = (
        (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if hasattr(os, "confstr")
        else ("", "", "")
    )
    if library == "glibc":
        platform = f"manylinux_{'_'.join(version.split('.')[:2])}_{machine}"
    else:
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{python}-{python}-{platform}"


def metadata(table):
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {table['name']}",
        f"Version: {table['version']}",
        f"Summary: {table['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {table['requires-python']}",
        "Classifier: License :: OSI Approved :: Apache Software License",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: C++",
        "Classifier: Programming Language :: Python :: 3",
    ]
    lines += [f"Requires-Dist: {name}" for name in table["dependencies"]]
    for extra, names in table["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {name}; extra == '{extra}'" for name in names]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "README.md").read_text()]
    return "\n".join(lines)


def check_tools():
    """Before minutes of compiling: what only the last step would ask for."""
    wanted = ["cmake", "strip"] + (["patchelf", "ldd"] if sys.platform == "linux" else [])
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        sys.exit(
            f"packaging: these programs are missing: {', '.join(missing)}; on Debian and Ubuntu"
            " `scripts/setup.sh wheel` installs them"
        )


def compile_all(build):
    jobs = os.environ.get(
        "CMAKE_BUILD_PARALLEL_LEVEL",
        str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
    )
    options = [
        "-DCMAKE_BUILD_TYPE=Release", "-DUNPACK_PYTHON=ON", "-DUNPACK_TESTS=OFF",
        "-DUNPACK_PACKAGED=ON", f"-DPython_EXECUTABLE={sys.executable}"
    ]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    subprocess.run(
        ["cmake", *generator, "-S", str(ROOT), "-B", str(build), "--log-level=WARNING", *options],
        check=True,
    )
    subprocess.run(
        ["cmake", "--build", str(build), "-j", jobs, "--target", "unpack_python", "unpack_cli"],
        check=True,
    )


def assemble(build, package):
    """The package as it will lie in site-packages."""
    shutil.copytree(
        build / "python" / "unpack_engine", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "bin").mkdir()
    program = package / "bin" / "unpack"
    shutil.copy(build / "unpack", program)
    share = package / "share" / "unpack"
    for folder in ("models", "data"):
        shutil.copytree(ROOT / folder, share / folder)
    (share / "installed_as").write_text("wheel\n")
    binaries = [program, *package.glob("_native*")]
    binaries = [path for path in binaries if path.suffix != ".pyi"]
    for path in binaries:
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
    if sys.platform == "linux":
        onednn = [
            "libdnnl.so.3",
            *(f"libdnnl.so.3.{minor}" for minor in range(15, -1, -1)),
            "libdnnl.so.2",
        ]  # as onednn.cc tries them
        bundle_libraries.bundle(package / "lib", binaries, ["|".join(onednn)])


def write_wheel(file, top, info):
    record = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:

        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")

        for path in sorted(top.rglob("*")):
            if path.is_file():
                add(
                    path.relative_to(top).as_posix(),
                    path.read_bytes(),
                    0o755 if os.access(path, os.X_OK) else 0o644,
                )
        for name, text in info.items():
            add(name, text.encode(), 0o644)
        folder = next(iter(info)).split("/")[0]
        out.writestr(
            zipfile.ZipInfo(f"{folder}/RECORD", TIME),
            "\n".join([*record, f"{folder}/RECORD,,", ""]),
        )


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    check_tools()
    table = project()
    build = ROOT / os.environ.get("UNPACK_PACKAGE_BUILD", "build/package")
    compile_all(build)
    folder = f"{base_name(table)}.dist-info"
    info = {
        f"{folder}/METADATA": metadata(table),
        f"{folder}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: unpack\nRoot-Is-Purelib: false\nTag: {tag()}\n"
        ),
        f"{folder}/entry_points.txt": "[console_scripts]\nunpack = unpack_engine._program:main\n",
        f"{folder}/LICENSE": (ROOT / "LICENSE").read_text(),
        f"{folder}/THIRD_PARTY_NOTICES.md": (ROOT / "THIRD_PARTY_NOTICES.md").read_text(),
    }
    name = f"{base_name(table)}-{tag()}.whl"
    with tempfile.TemporaryDirectory() as scratch:
        assemble(build, pathlib.Path(scratch) / "unpack_engine")
        part = pathlib.Path(wheel_directory) / f"{name}.part"  # it has its name when it is whole
        write_wheel(part, pathlib.Path(scratch), info)
        part.replace(pathlib.Path(wheel_directory) / name)
    return name


def build_sdist(sdist_directory, config_settings=None):
    """What git tracks; where there is no git (sources of a release), all but what was built."""
    table = project()
    name = f"{base_name(table)}.tar.gz"
    if (ROOT / ".git").exists():
        files = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True, text=True
        ).stdout.split("\0")
    else:
        paths = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        files = [
            path.as_posix()
            for path in paths
            if path.parts[0] not in ("build", "dist", "PKG-INFO")
            and not {"node_modules", "__pycache__"} & set(path.parts)
        ]
    with (
        tempfile.TemporaryDirectory() as scratch,
        tarfile.open(pathlib.Path(sdist_directory) / name, "w:gz") as out,
    ):
        for file in filter(None, files):
            out.add(ROOT / file, f"{base_name(table)}/{file}", recursive=False)
        info = pathlib.Path(scratch) / "PKG-INFO"
        info.write_text(metadata(table))
        out.add(info, f"{base_name(table)}/PKG-INFO")
    return name
