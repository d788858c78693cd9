"""The page's lock file is one that `npm ci` takes: it agrees with package.json and is whole. Read
here without npm.
"""
import json
import re

import pytest
from conftest import ROOT

PACKAGE = json.loads((ROOT / "web" / "package.json").read_text())
LOCK = json.loads((ROOT / "web" / "package-lock.json").read_text())
PACKAGES = LOCK["packages"]
KINDS = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies")


def found_by(place, name):
    """Where a package at `place` finds another: in its own node_modules, or in that of one it
    stands in.
    """
    while True:
        at = f"{place}/node_modules/{name}" if place else f"node_modules/{name}"
        if at in PACKAGES:
            return at
        if not place:
            return None
        place = place.rpartition("node_modules/")[0].rstrip("/")


def numbers(version):
    return tuple(int(n) for n in re.match(r"v?(\d+)\.(\d+)\.(\d+)", version).groups())


def fits(version, wanted):
    """Whether a release is in a range of npm: alternatives by ||, comparators by blanks, a - b, x
    and * for any.
    """
    return any(
        all(fits_one(version, part) for part in comparators(choice))
        for choice in wanted.split("||")
    )


def comparators(choice):
    between = re.fullmatch(r"\s*(\S+)\s+-\s+(\S+)\s*", choice)
    if between:
        return [f">={between[1]}", f"<={between[2]}"]
    return re.sub(r"([<>=^~]+)\s+", r"\1", choice).split() or ["*"]


def fits_one(version, part):
    sign, text = re.fullmatch(r"([<>=^~]*)v?(.*)", part).groups()
    given = [int(n) for n in re.match(r"(\d+(?:\.\d+){0,2})?", text)[0].split(".") if n]
    if not given:
        return True
    low, at = tuple(given + [0] * (3 - len(given))), numbers(version)
    past = lambda count: (
        *given[: count - 1],
        given[count - 1] + 1,
        *[0] * (3 - count),
    )  # the first release of another kind
    if sign == "^":
        return low <= at < past(next((i for i, n in enumerate(given, 1) if n > 0), len(given)))
    if sign == "~":
        return low <= at < past(min(2, len(given)))
    if sign in ("", "="):
        return low <= at < past(len(given)) if len(given) < 3 else at == low
    return {
        ">=": at >= low,
        ">": at >= past(len(given)),
        "<": at < low,
        "<=": at < past(len(given)),
    }[sign]


@pytest.mark.parametrize(
    "version, wanted, fit",
    [
        ("1.2.3", "1.2.3", True),
        ("1.2.4", "1.2.3", False),
        ("1.9.0", "^1.2.3", True),
        ("2.0.0", "^1.2.3", False),
        ("0.3.0", "^0.2.1", False),
        ("0.0.2", "^0.0.1", False),
        ("1.2.9", "~1.2.3", True),
        ("1.3.0", "~1.2.3", False),
        ("3.1.0", "1 - 3", True),
        ("4.0.0", "1 - 3", False),
        ("3.1.0", "1.0.0 - 3.0.0", False),
        ("5.0.0", "^4.0.0 || ^5.0.0", True),
        ("5.0.0", ">=4 <5", False),
        ("7.2.0", "*", True),
        ("4.9.1", "4", True),
        ("4.0.0", ">= 3.5", True),
    ],
)
def test_ranges_are_read_as_npm_reads_them(version, wanted, fit):
    assert fits(version, wanted) == fit


def test_the_lock_asks_for_what_the_package_asks_for():
    root = PACKAGES[""]
    assert LOCK["lockfileVersion"] == 3 and LOCK["name"] == root["name"] == PACKAGE["name"]
    for kind in KINDS:
        assert root.get(kind, {}) == PACKAGE.get(kind, {}), kind


def test_every_dependency_is_in_the_lock_in_a_release_that_fits():
    assert len(PACKAGES) > len(PACKAGE["dependencies"]) + len(PACKAGE["devDependencies"])
    for place, package in PACKAGES.items():
        may_lack = {
            name
            for name, meta in package.get("peerDependenciesMeta", {}).items()
            if meta.get("optional")
        }
        for kind in KINDS:
            if kind == "devDependencies" and place:
                continue
            for name, wanted in package.get(kind, {}).items():
                at = found_by(place, name)
                if at is None and kind == "peerDependencies" and name in may_lack:
                    continue
                assert at, f"{place or 'package.json'} needs {name}, which the lock has not"
                if name not in may_lack:
                    assert fits(PACKAGES[at]["version"], wanted), (
                        f"{place or 'package.json'} needs {name} {wanted}, and the lock has"
                        f" {PACKAGES[at]['version']}"
                    )


def test_no_package_is_there_for_nothing():
    reached, left = set(), [""]
    while left:
        place = left.pop()
        for kind in KINDS:
            for name in PACKAGES[place].get(kind, {}):
                at = found_by(place, name)
                if at and at not in reached:
                    reached.add(at)
                    left.append(at)
    assert reached == set(PACKAGES) - {""}


def test_packages_have_a_release_and_no_host():
    for place, package in PACKAGES.items():
        if place:
            numbers(package["version"])
        assert "resolved" not in package, place
