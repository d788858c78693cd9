"""Checks of what a caller passes in: every complaint names the argument."""
from __future__ import annotations

import importlib
import operator
import sys
from typing import Any, Callable, List, Optional, Sequence, TypeVar, Union

import numpy as np

from . import _native

Prompt = Union[str, Sequence[int], "np.ndarray[Any, Any]"]
TokenSet = Union[str, int, Sequence[Union[str, int]], "np.ndarray[Any, Any]"]
OnProgress = Callable[[str, float, float], None]
Progress = Union[None, bool, OnProgress]

T = TypeVar("T")
_INT32 = 2**31


def integer(name: str, value: Any, low: Optional[int] = None, high: int = _INT32 - 1) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if low is not None and number < low:
        raise ValueError(f"{name} must be {low} or more, not {number}")
    if not -_INT32 <= number <= high:
        raise ValueError(f"{name} is out of range: {number}")
    return number


def optional_integer(name: str, value: Any, low: Optional[int] = None) -> Optional[int]:
    return None if value is None else integer(name, value, low)


def real(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise TypeError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None


def reals(name: str, value: Any, count: int) -> List[float]:
    try:
        values = list(value)
    except TypeError:
        raise TypeError(f"{name} must be {count} numbers, not {value!r}") from None
    if isinstance(value, (str, bytes)) or len(values) != count:
        raise ValueError(f"{name} must be {count} numbers, not {value!r}")
    return [real(name, x) for x in values]


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def optional_text(name: str, value: Any) -> Optional[str]:
    return None if value is None else text(name, value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def _listed(name: str, value: Any) -> List[Any]:
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
        return named(name, model.encode_prompt, value, bos)
    ids = token_ids(name, value)
    if not ids:
        raise ValueError(f"{name} has no tokens")
    size = model.config["vocab_size"]
    for i, token in enumerate(ids):
        if token >= size:
            raise ValueError(f"{name}[{i}] is {token}, outside the vocabulary (0 to {size - 1})")
    return ids


def token_set(model: _native.Model, name: str, value: Any) -> List[int]:
    """One token or several, as texts of one token each or as ids."""
    if isinstance(value, str):
        return [named(name, model.single_token, value)]
    members = _listed(name, value) if not _is_number(value) else [value]
    if not members:
        raise ValueError(f"{name} names no token")
    size = model.config["vocab_size"]
    ids = []
    for member in members:
        token = named(name, model.single_token, member) if isinstance(member, str) else integer(name, member, 0)
        if token >= size:
            raise ValueError(f"{name} {token} is outside the vocabulary (0 to {size - 1})")
        ids.append(token)
    return ids


def _is_number(value: Any) -> bool:
    try:
        operator.index(value)
        return True
    except TypeError:
        return False


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


def options(
    preset: Any,
    beta: Any,
    weights: Any,
    mlp_weights: Any,
    dispatch: Any,
    mlp: Any,
    scores: Any,
    direction: Any,
    floor: Any,
    keys: Any,
    reroot: Any = None,
) -> _native.Options:
    """What is None is the preset's."""

    def word(name: str, value: Any) -> Any:
        return None if value is None else text(name, value)

    return _native.Options(
        word("preset", preset),
        None if beta is None else real("beta", beta),
        None if weights is None else reals("weights", weights, 3),
        None if mlp_weights is None else reals("mlp_weights", mlp_weights, 2),
        word("dispatch", dispatch),
        word("mlp", mlp),
        word("scores", scores),
        word("reroot", reroot),
        word("direction", direction),
        None if floor is None else real("floor", floor),
        word("keys", keys),
    )


def target(model: _native.Model, length: int, target_: Any, versus: Any, raw_logit: Any, position_: Any) -> _native.Target:
    flag("raw_logit", raw_logit)
    if raw_logit and versus is not None:
        raise ValueError("raw_logit leaves the contrast out; it cannot go with versus")
    return _native.Target(
        [] if target_ is None else token_set(model, "target", target_),
        None if versus is None else token_set(model, "versus", versus),
        raw_logit,
        position("position", position_, length),
    )


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
            raise TypeError(f"progress must be True, False, None or a function of (what, done, total), not {progress!r}")
        self._bar = _Bar() if progress is True else None
        self._call: Optional[OnProgress] = self._bar if progress is True else progress if callable(progress) else None

    def __enter__(self) -> Optional[OnProgress]:
        return self._call

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()


def texts(name: str, value: Any) -> List[str]:
    if isinstance(value, str):
        return [value]
    return [text(f"{name}[{i}]", x) for i, x in enumerate(value)]


