"""Where models come from: files, memory, or a seed."""
from __future__ import annotations

import json
import os
from typing import Any, List, Mapping, Tuple, Union

import numpy as np

from . import _arguments as check
from . import _native
from .model import Model

_DTYPES = ("float32", "float16", "bfloat16", "float64")
_BUFFERS = (
    ".attn.bias", ".attention.bias", "masked_bias", "inv_freq", "position_ids"
)  # what a state dict holds beside weights


def _threads(threads: Any) -> int:
    return 0 if threads is None else check.integer("threads", threads, 1, 4096)


def _device(device: Any) -> str:
    if check.text("device", device) not in ("auto", "cpu", "cuda", "reference"):
        raise ValueError(
            f"device must be one of 'auto', 'cpu', 'cuda', 'reference', not {check.shown(device)}"
        )
    return str(device)


def load(
    name: Union[str, "os.PathLike[str]"] = "pocket-gpt2",
    *,
    device: str = "auto",
    threads: Union[int, None] = None,
    weight_products: bool = False,
    mmap: bool = True,
) -> Model:
    """A model by its folder, its name in the local Hugging Face cache, or the name of a bundled
    one. Nothing is downloaded.

    device: 'auto', 'cpu', 'cuda', or 'reference' (double precision, slow). threads: default all
    cores. weight_products: keep products of weights in memory, a one-time cost that makes every
    prompt cheaper. mmap: weight files are mapped; a file that is cut short while it is mapped ends
    the process, and with mmap=False it is read into memory instead.

    >>> load("pocket-gpt2", threads=1)  # doctest: +ELLIPSIS
    Model('pocket-gpt2', gpt2, layers=...)
    >>> load("no-such-model")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: ...no-such-model...
    """
    wanted = check.path("name", name)
    device, count = _device(device), _threads(threads)
    try:
        _native.locate(wanted)
    except ValueError as error:
        raise FileNotFoundError(f"name: {error}") from None
    return Model(
        _native.Model.load(
            wanted,
            device,
            count,
            check.flag("weight_products", weight_products),
            check.flag("mmap", mmap),
        )
    )


def random(
    shape: Union[str, Mapping[str, Any]] = "gpt2-small",
    seed: int = 0,
    *,
    device: str = "auto",
    threads: Union[int, None] = None,
    dtype: str = "float32",
) -> Model:
    """A model of a well-known shape ('gpt2-small', ...) or of a config dictionary, with random
    weights: for tests and timing.
    """
    wanted = check.text("shape", shape) if isinstance(shape, str) else _config(shape)
    return Model(
        _native.Model.random(
            wanted,
            check.wide_integer("seed", seed, 64),
            _device(device),
            _threads(threads),
            check.text("dtype", dtype),
        )
    )


def from_state_dict(
    config: Union[str, Mapping[str, Any], Any],
    tensors: Mapping[str, Any],
    *,
    device: str = "auto",
    threads: Union[int, None] = None,
    copy: bool = True,
) -> Model:
    """A model from memory: its Hugging Face config (a dictionary, JSON, or an object with to_dict)
    and its state dict of numpy arrays or torch tensors.

    For a live Hugging Face model `hf`: `from_state_dict(hf.config, hf.state_dict())`. The values
    are copied, so that what is done to the arrays later changes nothing here; with copy=False those
    that are contiguous and on the CPU are shared and must not be changed. Prompts are then given as
    ids: `m.prepare(tokenizer(text).input_ids)`.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a dictionary of arrays, not {type(tensors).__name__}")
    refs: List[Tuple[str, str, List[int], int]] = []
    owners: List[Any] = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"tensors: the key {check.shown(name)} is not a str")
        check.text("tensors: a key", name)
        if name.endswith(_BUFFERS) and not _is_float(tensor):
            continue
        owner, dtype, address = _pin(name, tensor, check.flag("copy", copy))
        owners.append(owner)
        refs.append((name, dtype, [int(n) for n in owner.shape], address))
    return Model(
        _native.Model.from_tensors(
            _config(config), refs, owners, _device(device), _threads(threads)
        )
    )


def _config(config: Any) -> str:
    if isinstance(config, str):
        return check.text("config", config)
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError(
            "config must be a dictionary, JSON or an object with to_dict, not"
            f" {type(config).__name__}"
        )
    return json.dumps(dict(config), default=str)


def _is_float(tensor: Any) -> bool:
    return str(getattr(tensor, "dtype", "")).replace("torch.", "") in _DTYPES


def _pin(name: str, tensor: Any, copy: bool) -> Tuple[Any, str, int]:
    """Something that owns the values in row-major order on the CPU, their dtype and where they
    lie.
    """
    if hasattr(tensor, "data_ptr"):  # torch
        held = tensor.detach().cpu().contiguous()
        if copy and held.data_ptr() == tensor.data_ptr():
            held = held.clone()
        address = int(held.data_ptr())
    else:
        held = np.array(tensor, order="C") if copy else np.ascontiguousarray(tensor)
        if held.dtype.byteorder == ">":
            held = held.astype(held.dtype.newbyteorder("="))
        address = int(held.ctypes.data)
    if not _is_float(held):
        raise TypeError(
            f"tensors[{check.shown(name)}] has dtype {held.dtype}: use one of {', '.join(_DTYPES)}"
        )
    return held, str(held.dtype).replace("torch.", ""), address
