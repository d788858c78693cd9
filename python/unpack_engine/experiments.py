"""Measurements over many prompts."""
from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from . import _arguments as check
from . import _native
from ._arguments import Progress
from .loading import _device, _threads

File = Union[str, "os.PathLike[str]"]


class Experiment(NamedTuple):
    """What an experiment found: `summary` and `records` as its files hold them, `report` in
    Markdown, `folder` where they lie (None: not kept).
    """

    name: str
    summary: Dict[str, Any]
    records: List[Dict[str, Any]]
    report: str
    warnings: List[str]
    folder: Optional[str]

    def __str__(self) -> str:
        return self.report

    def _repr_markdown_(self) -> str:
        return self.report

    def to_dict(self) -> Dict[str, Any]:
        """The summary: settings, and what was found for every model."""
        return dict(self.summary)

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.summary)

    def to_pandas(self) -> Any:
        """A pandas frame of the records."""
        from .results import _frame

        return _frame(self.records)


def experiments() -> List[str]:
    """The names that `experiment` takes.

    >>> "faithfulness" in experiments()
    True
    """
    return _native.experiment_names()


def experiment(
    name: str,
    *,
    models: Union[str, Sequence[str]] = "pocket-gpt2",
    out: Optional[File] = None,
    n: Optional[int] = None,
    seed: int = 0,
    corpus: Optional[File] = None,
    prompts: Optional[File] = None,
    roles: Optional[File] = None,
    claims: Optional[File] = None,
    readout: str = "probability",
    raw_logit: bool = False,
    whole_sentences: bool = False,
    narrow_paths: bool = False,
    all: bool = False,
    stop_at_bad_line: bool = False,
    preset: Optional[str] = "paper",
    beta: Optional[float] = None,
    weights: Optional[Sequence[float]] = None,
    mlp_weights: Optional[Sequence[float]] = None,
    expert_weights: Optional[Sequence[float]] = None,
    dispatch: Optional[str] = None,
    mlp: Optional[str] = None,
    scores: Optional[str] = None,
    direction: Optional[str] = None,
    floor: Optional[float] = None,
    keys: Optional[str] = None,
    device: str = "auto",
    threads: Optional[int] = None,
    shard: str = "",
    progress: Progress = None,
) -> Experiment:
    """Runs an experiment of the paper on one or more models.

    out: a folder for records, summary, report and plots; a second call with the same settings
    resumes there. Without it nothing is kept.
    shard: 'I/N' makes the records of the I-th of N parts alone; `merge` joins the folders of all of
    them.
    n: how many prompts (default: as many as in the paper). corpus, prompts: files with a text a
    line in place of the ones that come with the program.
    whole_sentences (faithfulness, beta): whole sentences as prompts, in place of sentences cut
    before a content word.
    narrow_paths (ioi, greater-than): path patching into queries, keys and values leaves out the
    MLPs between. roles (ioi), claims (greater-than): a table, "gpt2" for the published one, "find"
    for path patching (default: published for GPT-2 small, found otherwise).

    >>> experiment("sinks")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: name must be one of ...
    """
    settings = check.asked(None, None, {}, check.settings(locals()))
    if check.text("name", name) not in experiments():
        raise ValueError(
            f"name must be one of {', '.join(map(repr, experiments()))}, not {check.shown(name)}"
        )
    asked = check.texts("models", models)
    with tempfile.TemporaryDirectory() as scratch, check.reporting(progress) as report:
        folder = scratch if out is None else check.path("out", out)
        text, warnings = _native.experiment(
            name,
            asked,
            folder,
            check.optional_integer("n", n, 1),
            check.wide_integer("seed", seed, 64),
            check.optional_path("corpus", corpus),
            check.optional_path("prompts", prompts),
            check.optional_path("roles", roles),
            check.optional_path("claims", claims),
            check.text("readout", readout),
            check.flag("raw_logit", raw_logit),
            check.flag("whole_sentences", whole_sentences),
            check.flag("narrow_paths", narrow_paths),
            check.flag("all", all),
            check.flag("stop_at_bad_line", stop_at_bad_line),
            settings,
            _device(device),
            _threads(threads),
            check.text("shard", shard),
            report,
        )
        found = read_folder(name, folder, text, warnings)
    return found if out is not None else found._replace(folder=None)


def read_folder(name: str, folder: str, report: str, warnings: Sequence[str] = ()) -> Experiment:
    """What the files of a finished run (or shard, which has no summary) hold."""
    summary: Dict[str, Any] = {}
    if os.path.exists(os.path.join(folder, "summary.json")):
        with open(os.path.join(folder, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)
    with open(os.path.join(folder, "results.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line) for line in file][1:]  # the first line holds the settings
    for record in records:
        record.pop("crc32", None)
    return Experiment(name, summary, records, report, list(warnings), folder)
