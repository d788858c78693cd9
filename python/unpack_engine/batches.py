"""Many prompts from a file, in this process; `unpack_engine.distributed` has the same on many
machines.
"""
from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Union

from . import _arguments as check
from . import _native
from ._arguments import Progress
from .loading import _device, _threads, load
from .model import Model

File = Union[str, "os.PathLike[str]"]
Prompts = Union[File, Sequence[Union[str, Mapping[str, Any]]]]


class Batch(NamedTuple):
    """A finished batch: where its files lie and how many lines they have. Iterating reads the
    results one by one.
    """

    folder: str
    results: int
    errors: int
    done_before: int
    warnings: List[str]

    def read(self, name: str = "results.jsonl") -> Iterator[Dict[str, Any]]:
        """The lines of results.jsonl (or errors.jsonl) as dictionaries."""
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)

    def summary(self) -> Dict[str, Any]:
        """summary.json."""
        with open(os.path.join(self.folder, "summary.json"), encoding="utf-8") as file:
            answer: Dict[str, Any] = json.load(file)
        return answer

    def arrays(self) -> Dict[str, Any]:
        """token_credit, node_credit, offsets and index of a run with arrays=True, mapped from their
        files.
        """
        import numpy as np

        names = ("token_credit", "node_credit", "offsets", "index")
        return {
            name: np.load(os.path.join(self.folder, name + ".npy"), mmap_mode="r") for name in names
        }


def _fields(options: Mapping[str, Any]) -> str:
    """The options of a trace as the fields of a prompt's line."""
    fields = {name.rstrip("_"): value for name, value in options.items() if value is not None}
    try:
        return json.dumps(
            {
                name: value.tolist() if hasattr(value, "tolist") else value
                for name, value in fields.items()
            }
        )
    except TypeError as error:
        raise TypeError(f"options: {error}") from None


def _prompt_file(prompts: Prompts, out: str) -> str:
    """A list of prompts is written down beside its results."""
    if isinstance(prompts, (str, os.PathLike)):
        return check.path("prompts", prompts)
    lines = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, (str, Mapping)):
            raise TypeError(
                f"prompts[{i}] must be a str or a dictionary, not {type(prompt).__name__}"
            )
        lines.append(
            json.dumps({"prompt": prompt} if isinstance(prompt, str) else dict(prompt)) + "\n"
        )
    os.makedirs(out, exist_ok=True)
    file = os.path.join(out, "prompts.jsonl")
    with open(file + ".part", "w", encoding="utf-8") as part:
        part.writelines(lines)
    os.replace(file + ".part", file)
    return file


def batch(
    prompts: Prompts,
    out: File,
    *,
    model: Union[str, Model] = "pocket-gpt2",
    format: str = "auto",
    shard: str = "",
    strict: bool = False,
    arrays: bool = False,
    device: str = "auto",
    threads: Union[int, None] = None,
    progress: Progress = None,
    **options: Any,
) -> Batch:
    """Traces every prompt of a file (JSONL, CSV, TSV or text), or of a list, into the folder `out`;
    a second call resumes there.

    options: those of `Prepared.trace`, and no_bos; a prompt's own fields override them. shard:
    'I/N' does the I-th of N parts, `merge` joins them.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> done = batch(
    ...     ["Mary and John", {"prompt": "Mary and", "target": " John"}], folder.name, top_paths=3
    ... )
    >>> done.results, [line["target"]["text"] for line in done.read()][1]
    (2, ' John')
    """
    folder = check.path("out", out)
    if not isinstance(model, Model):
        model = load(model, device=device, threads=threads)
    file = _prompt_file(prompts, folder)
    with check.reporting(progress) as report:
        return Batch(
            *_native.batch(
                model._native,
                file,
                check.text("format", format),
                folder,
                _fields(options),
                check.text("shard", shard),
                check.flag("strict", strict),
                check.flag("arrays", arrays),
                report,
            )
        )


def merge(
    folders: Sequence[File],
    out: File,
    *,
    device: str = "auto",
    threads: Union[int, None] = None,
    progress: Progress = None,
) -> str:
    """Joins the shards of a batch or an experiment into what one run would have written. Returns
    what a person would want to read.
    """
    names = [check.path(f"folders[{i}]", folder) for i, folder in enumerate(folders)]
    with check.reporting(progress) as report:
        return str(
            _native.merge(
                names, check.path("out", out), _device(device), _threads(threads), report
            )[1]
        )
