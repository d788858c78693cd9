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
_SETTINGS = ("preset", "beta", "weights", "mlp_weights", "expert_weights", "dispatch", "mlp", "scores", "direction", "floor", "keys")
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shown(value: Any) -> str:
    """A value inside a message: short, and one line."""
    return _repr.repr(value).replace("\n", " ")


_INT32 = 2**31


def settings(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a function's arguments, its `locals()`, that are settings of the method."""
    return {name: arguments[name] for name in _SETTINGS}


def integer(name: str, value: Any, low: Optional[int] = None, high: int = _INT32 - 1) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a whole number, not {shown(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {shown(value)}") from None
    if low is not None and number < low:
        raise ValueError(f"{name} must be {low} or more, not {shown(number)}")
    if not -_INT32 <= number <= high:
        raise ValueError(f"{name} is out of range: {shown(number)}")
    return number


def optional_integer(name: str, value: Any, low: Optional[int] = None) -> Optional[int]:
    return None if value is None else integer(name, value, low)


def real(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise TypeError(f"{name} takes a number, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is out of range") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} takes a number, not {shown(value)}") from None


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds a lone surrogate at {error.start}, which is no character") from None
    return value


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
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def _listed(name: str, value: Any) -> List[Any]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be a text or token ids, not {type(value).__name__}: decode it first")
    if hasattr(value, "tolist"):  # numpy, torch
        value = value.tolist()
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} must be a text or token ids, not {type(value).__name__}") from None


def token_ids(name: str, value: Any) -> List[int]:
    return [integer(f"{name}[{i}]", x, 0) for i, x in enumerate(_listed(name, value))]


def prompt_ids(model: _native.Model, name: str, value: Any, bos: Any = True) -> List[int]:
    """A text gets the special tokens in front that the model expects; ids are used as they are."""
    flag("bos", bos)
    if isinstance(value, str):
        return named(name, model.encode_prompt, text(name, value), bos)
    ids = token_ids(name, value)
    if not ids:
        raise ValueError(f"{name} has no tokens")
    size = model.config["vocab_size"]
    for i, token in enumerate(ids):
        if token >= size:
            raise ValueError(f"{name}[{i}] is {token}, outside the vocabulary (0 to {size - 1})")
    return ids


def position(name: str, value: Any, length: int) -> int:
    at = integer(name, value)
    if not -length <= at < length:
        raise ValueError(f"{name} {at} is outside the prompt: it has positions 0 to {length - 1} (negative ones count from the end)")
    return at % length


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


def asked(model: Optional[_native.Model], length: Optional[int], fields: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> _native.Asked:
    """A question, read by the engine's own codec. `optional` fields are left out where they are None."""
    given = {name: _plain(value) for name, value in {**fields, **{n: v for n, v in optional.items() if v is not None}}.items()}
    return _native.Asked(given, model, length)


def _plain(value: Any) -> Any:
    """Sequences of other kinds as lists; what is no sequence stays what it is."""
    if isinstance(value, (str, bytes, bytearray, list, tuple, range)) or hasattr(value, "tolist") or not isinstance(value, SequenceABC):
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
            print(f"\r{what}: {done:.0f}" + (f" of {total:.0f}" if total else ""), end="", file=sys.stderr, flush=True)
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
            raise TypeError(f"progress must be True, False, None or a function of (what, done, total), not {shown(progress)}")
        self._bar = _Bar() if progress is True else None
        self._call: Optional[OnProgress] = self._bar if progress is True else progress if callable(progress) else None

    def __enter__(self) -> Optional[OnProgress]:
        return self._call

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()


def texts(name: str, value: Any) -> List[str]:
    if isinstance(value, str):
        return [text(name, value)]
    return [text(f"{name}[{i}]", x) for i, x in enumerate(value)]
