"""unpack for Python: where a transformer's prediction comes from, exactly.

    import unpack_engine as up

    m = up.load("pocket-gpt2")
    p = m.prepare("Mary and John went to the store. John gave a drink to")
    r = p.trace(target=" Mary", versus=" John")
    print(r)                      # tokens, paths and components for a person
    r                             # in a notebook: a picture
    r.token_credit, r.paths       # numbers for a program

A model is loaded once, a prompt prepared once; every further question is cheap. Long calls release
the interpreter lock, can be stopped with Ctrl-C and take `progress=True` or a function of (what,
done, total). Bad arguments raise ValueError or TypeError that names the argument, a model that is
not there FileNotFoundError, and a fault of the engine RuntimeError.
"""
from __future__ import annotations

import atexit
import json
from typing import Any, Dict, List, Sequence

from . import _arguments as check
from . import _native
from .batches import Batch, batch, merge
from .circuits import Circuit, Edge, Proof, circuit
from .experiments import Experiment, experiment, experiments
from .loading import from_state_dict, load, random
from .chat import Chat
from .model import Generation, Model
from .prepared import Cache, Prepared
from .results import (
    Answer, Attribution, ClosureCheck, Coverage, Interactions, Intervention, Path, Prediction,
    Predictions, Sources, Token, Trace
)

atexit.register(_native.close_down)  # daemon threads that still trace are stopped first

__version__: str = _native.version()

__all__ = [
    "Answer", "Attribution", "Batch", "Cache", "Chat", "Circuit", "ClosureCheck", "Coverage",
    "Edge", "Experiment", "Generation", "Interactions", "Intervention", "Model", "Path",
    "Prediction", "Predictions", "Prepared", "Proof", "Sources", "Token", "Trace", "about", "batch",
    "circuit", "doctor", "experiment", "experiments", "families", "from_state_dict", "load",
    "merge", "models", "random"
]


def about() -> Dict[str, Any]:
    """Version, build type, how it was installed, CPU kernels in use and devices. Opens no GPU.

    >>> sorted(about())
    ['build_type', 'devices', 'installed', 'kernels', 'version']
    """
    return _native.about()


def doctor() -> List[Dict[str, Any]]:
    """What the engine finds on this machine when it tries everything out: subject, found, problem,
    remedy, fatal.

    >>> [row["subject"] for row in doctor()][:2]
    ['program', 'system']
    """
    found: List[Dict[str, Any]] = json.loads(_native.diagnosis_json())["findings"]
    return found


def models(extra: Sequence[str] = ()) -> List[Dict[str, str]]:
    """What is bundled and cached, and what the folders in `extra` hold: name, folder, origin,
    family, problem ('' where it can be used).

    >>> "pocket-gpt2" in [m["name"] for m in models()]
    True
    """
    return _native.models([check.path(f"extra[{i}]", folder) for i, folder in enumerate(extra)])


def families() -> List[str]:
    """The supported model families, as config.json names them."""
    return _native.families()
