"""Checks of what a caller passes in: every complaint names the argument."""
from __future__ import annotations

import importlib
import operator
import os
import reprlib
import sys
from collections.abc import Sequence as SequenceABC
from typing import Any, Callable, List, Mapping, Optional, Sequence, TypeVar, Union

import numpy as np

from . import _native

Prompt = Union[str, Sequence[int], "np.ndarray[Any, Any]"]
TokenSet = Union[str, int, Sequence[Union[str, int]], "np.ndarray[Any, Any]"]
OnProgress = Callable[[str, float, float], None]
Progress = Union[None, bool, OnProgress]

T = TypeVar("T")
SETTINGS = (
    "preset",
    *(name for name in _native.option_fields if name != "reroot"),
)  # that one goes with a root
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shown(value: Any) -> str:
    """A value inside a message: short, and one line."""
    return _repr.repr(value).replace("\n", " ")


_INT32 = 2**31


def settings(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a function's arguments, its `locals()`, that are settings of the method."""
    return {name: arguments[name] for name in SETTINGS}


def integer(name: str, value: Any, low: int = -_INT32, high: int = _INT32 - 1) -> int:
    return _native.read_integer(name, value, low, high)


def wide_integer(name: str, value: Any, bits: int) -> int:
    """A whole number of 0 or more that needs more than 32 bits: a seed, bytes."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < _INT32:
        return integer(name, value, 0)
    if number >= 2**bits:
        raise ValueError(f"{name} takes a whole number below 2**{bits}, not {shown(number)}")
    return number


def optional_integer(name: str, value: Any, low: int = -_INT32) -> Optional[int]:
    return None if value is None else integer(name, value, low)


def real(name: str, value: Any) -> float:
    return _native.read_number(name, value)


def text(name: str, value: Any) -> str:
    return _native.read_text(name, value)


def path(name: str, value: Any) -> str:
    try:
        wanted = os.fspath(value)
    except TypeError:
        wanted = None
    if not isinstance(wanted, str):
        raise TypeError(f"{name} must be a str or a path, not {type(value).__name__}")
    if "\0" in wanted:
        raise ValueError(f"{name} holds a NUL character, which no path does")
    return text(name, wanted)


def optional_path(name: str, value: Any) -> Optional[str]:
    return None if value is None else path(name, value)


def optional_text(name: str, value: Any) -> Optional[str]:
    return None if value is None else text(name, value)


def flag(name: str, value: Any) -> bool:
    return _native.read_flag(name, value)


def _listed(value: Any) -> Any:
    """What can be gone through, as a list; a text, bytes and all else stay what they are."""
    if hasattr(value, "tolist"):  # numpy, torch
        return value.tolist()
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__iter__"):
        return value
    return list(value)


def token_ids(name: str, value: Any) -> List[int]:
    """Ids, or none."""
    ids = _listed(value)
    return [] if ids == [] else _native.read_ids(name, ids, 0)


def prompt_ids(model: _native.Model, name: str, value: Any, bos: Any = True) -> List[int]:
    """A text gets the special tokens in front that the model expects; ids are used as they are."""
    flag("bos", bos)
    if isinstance(value, str):
        return named(name, model.encode_prompt, text(name, value), bos)
    return _native.read_ids(name, _listed(value), model.config["vocab_size"])


def position(name: str, value: Any, length: int) -> int:
    return named(name, _native.resolve_position, integer(name, value), length)


def layer(name: str, value: Any, count: int) -> int:
    at = integer(name, value)
    if not -count <= at < count:
        raise ValueError(f"{name} {at} does not exist: the model has layers 0 to {count - 1}")
    return at % count


def named(name: str, call: Callable[..., T], *args: Any) -> T:
    """Calls into the engine; a complaint about this argument starts with its name."""
    try:
        return call(*args)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(name) else f"{name}: {message}") from None


def asked(
    model: Optional[_native.Model],
    length: Optional[int],
    fields: Mapping[str, Any],
    optional: Mapping[str, Any] = {},
) -> _native.Asked:
    """A question, read by the engine's own codec. `optional` fields are left out where they are
    None.
    """
    given = {
        name: _plain(value)
        for name, value in {
            **fields,
            **{n: v for n, v in optional.items() if v is not None},
        }.items()
    }
    return _native.Asked(given, model, length)


def _plain(value: Any) -> Any:
    """Sequences of other kinds as lists; what is no sequence stays what it is."""
    if (
        isinstance(value, (str, bytes, bytearray, list, tuple, range))
        or hasattr(value, "tolist")
        or not isinstance(value, SequenceABC)
    ):
        return value
    return list(value)


class _Bar:
    """A tqdm bar per kind of work where tqdm is installed, a plain line on stderr elsewhere."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._what = ""
        try:
            self._make: Any = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            self._make = None

    def __call__(self, what: str, done: float, total: float) -> None:
        if self._make is None:
            print(
                f"\r{what}: {done:.0f}" + (f" of {total:.0f}" if total else ""),
                end="",
                file=sys.stderr,
                flush=True,
            )
            self._what = what
            return
        if self._bar is None or what != self._what:
            self.close()
            self._bar, self._what = self._make(total=total or None, desc=what), what
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._make is None and self._what:
            print(file=sys.stderr)


class reporting:
    """The callback for `progress=`: a function of one's own, True for a bar, None for nothing."""

    def __init__(self, progress: Progress) -> None:
        if progress is not None and not isinstance(progress, bool) and not callable(progress):
            raise TypeError(
                "progress must be True, False, None or a function of (what, done, total), not"
                f" {shown(progress)}"
            )
        self._bar = _Bar() if progress is True else None
        self._call: Optional[OnProgress] = (
            self._bar if progress is True else progress if callable(progress) else None
        )

    def __enter__(self) -> Optional[OnProgress]:
        return self._call

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()


def texts(name: str, value: Any) -> List[str]:
    if isinstance(value, str):
        return [text(name, value)]
    return [text(f"{name}[{i}]", x) for i, x in enumerate(value)]
