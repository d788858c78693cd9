"""unpack for Python: where a transformer's prediction comes from, exactly.

    import unpack_engine as up

    m = up.load("pocket-gpt2")
    p = m.prepare("Mary and John went to the store. John gave a drink to")
    r = p.trace(target=" Mary", versus=" John")
    print(r)                      # tokens, paths and components for a person; in a notebook, `r` alone is a picture
    r.token_credit, r.paths       # numbers for a program

A model is loaded once, a prompt prepared once; every further question is cheap. Long calls release the interpreter lock, can be stopped with
Ctrl-C and take `progress=True` or a function of (what, done, total). Bad arguments raise ValueError or TypeError that names the argument, a
model that is not there FileNotFoundError, and a fault of the engine RuntimeError.
"""
from __future__ import annotations

import atexit
from typing import Any, Dict, List, Sequence

from . import _native
from .batches import Batch, batch, merge
from .experiments import Experiment, experiment, experiments
from .loading import from_state_dict, load, random
from .model import Cache, Generation, Model, Prepared
from .results import Attribution, ClosureCheck, Coverage, Interactions, Intervention, Path, Prediction, Predictions, Token, Trace

atexit.register(_native.close_down)  # daemon threads that still trace are stopped first

__version__: str = _native.about()["version"]

__all__ = [
    "Attribution",
    "Batch",
    "Cache",
    "ClosureCheck",
    "Coverage",
    "Experiment",
    "Generation",
    "Interactions",
    "Intervention",
    "Model",
    "Path",
    "Prediction",
    "Predictions",
    "Prepared",
    "Token",
    "Trace",
    "about",
    "batch",
    "experiment",
    "experiments",
    "families",
    "from_state_dict",
    "load",
    "merge",
    "models",
    "random",
]


def about() -> Dict[str, Any]:
    """Version, build type, CPU kernels in use and devices.

    >>> sorted(about())
    ['build_type', 'devices', 'kernels', 'version']
    """
    return _native.about()


def models(extra: Sequence[str] = ()) -> List[Dict[str, str]]:
    """What is bundled and cached, and what the folders in `extra` hold: name, folder, origin, family, problem ('' where it can be used).

    >>> "pocket-gpt2" in [m["name"] for m in models()]
    True
    """
    return _native.models(list(extra))


def families() -> List[str]:
    """The supported model families, as config.json names them."""
    return _native.families()
