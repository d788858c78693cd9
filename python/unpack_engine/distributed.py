"""Batches and experiments on a Dask cluster (Debian: python3-distributed).

    from dask.distributed import Client
    from unpack_engine import distributed

    client = Client("tcp://scheduler:8786")
    distributed.batch("prompts.jsonl", "results", client=client, model="openai-community/gpt2", \
      progress=True)

Every worker process loads the model once, from a place that it can see itself. Prompts travel in
chunks, lines come back as they are done and are written here, in order, into the same files that
one process would write. A chunk that fails is tried again on another worker; a second call resumes.
"""
from __future__ import annotations

import json
import os
import shutil
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from . import _arguments as check
from . import _native
from ._arguments import Progress
from .batches import Batch, File, Prompts, _fields, _prompt_file, merge
from .experiments import Experiment, experiments, read_folder
from .experiments import experiment as _experiment_here
from .loading import load

__all__ = ["batch", "experiment"]

_Chosen = Tuple[str, str, int, int]  # model, device, threads, and how many prompts there are
_models: Dict[Tuple[str, str, int, bool], Any] = {}
_models_lock = threading.Lock()


def _model(name: str, device: str, threads: int, prompts: int) -> Any:
    """The model of this worker process, loaded by the first task that needs it."""
    with _models_lock:
        plain = (name, device, threads, False)
        if plain not in _models:
            _models[plain] = load(name, device=device, threads=threads)._native
        if not _native.products_pay(_models[plain], prompts):
            return _models[plain]
        fast = (name, device, threads, True)
        if fast not in _models:
            _models[fast] = _native.for_batch(_models[plain], prompts)
        return _models[fast]


def _here() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _attempt(work: Callable[..., Any], *args: Any) -> Tuple[str, bool, Any]:
    """Runs on a worker: (where, whether it went well, the answer or what went wrong)."""
    try:
        return _here(), True, work(*args)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise error  # wrong everywhere
    except Exception as error:  # noqa: BLE001: whatever it was, another machine may do better
        return _here(), False, f"{type(error).__name__}: {error}"


def _describe(model: _Chosen, options: str) -> Tuple[Any, str]:
    native = _model(*model)
    return _native.batch_maker(native), _native.batch_options(native, options)


def _trace(model: _Chosen, options: str, records: List[Any]) -> List[Any]:
    return _native.trace_records(_model(*model), options, records, None)


class _Pool:
    """Keeps the cluster busy with a bounded number of tasks and hands answers back in the order in
    which they were asked for.
    """

    def __init__(self, client: Any, retries: int) -> None:
        self._client = client
        self._retries = retries
        self._order: List[int] = []  # tasks not handed back yet
        self._tasks: Dict[int, Tuple[Tuple[Any, ...], int, Set[str]]] = (
            {}
        )  # what it is, tries, where it failed
        self._futures: Dict[Any, int] = {}
        self._answers: Dict[int, Any] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._order)

    def submit(self, *task: Any) -> None:
        number, self._next = self._next, self._next + 1
        self._order.append(number)
        self._tasks[number] = (task, 0, set())
        self._start(number)

    def _start(self, number: int) -> None:
        task, _, failed = self._tasks[number]
        others = (
            [w for w in self._client.scheduler_info()["workers"] if w not in failed]
            if failed
            else None
        )
        self._futures[self._client.submit(_attempt, *task, pure=False, workers=others or None)] = (
            number
        )

    def _again(self, number: int, where: str, why: str) -> None:
        task, tries, failed = self._tasks[number]
        if tries >= self._retries:
            raise RuntimeError(
                f"a task failed {tries + 1} times, last on {where or 'a worker that died'}: {why};"
                " the same call goes on from here"
            )
        self._tasks[number] = (task, tries + 1, failed | ({where} if where else set()))
        self._start(number)

    def _wait(self) -> None:
        from distributed import wait
        from distributed.scheduler import KilledWorker

        done, _ = wait(list(self._futures), return_when="FIRST_COMPLETED")
        for future in done:
            number = self._futures.pop(future)
            try:
                where, good, answer = future.result()
            except KilledWorker as error:
                self._again(number, "", str(error))
                continue
            if good:
                self._answers[number] = answer
            else:
                self._again(number, where, answer)

    def ready(self) -> List[Any]:
        """Waits for something to be done; the answers that can be handed back now."""
        if self._futures:
            self._wait()
        out = []
        while self._order and self._order[0] in self._answers:
            number = self._order.pop(0)
            del self._tasks[number]
            out.append(self._answers.pop(number))
        return out

    def cancel(self) -> None:
        self._client.cancel(list(self._futures))


def _threads_of(client: Any) -> int:
    workers = client.scheduler_info()["workers"]
    if not workers:
        raise RuntimeError("the cluster has no workers yet: wait with client.wait_for_workers(1)")
    return sum(int(w["nthreads"]) for w in workers.values())


def batch(
    prompts: Prompts,
    out: File,
    *,
    client: Any,
    model: str = "pocket-gpt2",
    format: str = "auto",
    shard: str = "",
    strict: bool = False,
    arrays: bool = False,
    device: str = "auto",
    threads: int = 1,
    chunk: int = 16,
    retries: int = 3,
    progress: Progress = None,
    **options: Any,
) -> Batch:
    """`unpack_engine.batch` on the workers of a Dask `client`; the folder's files are the same,
    byte for byte.

    threads: of the engine, for each task; Dask runs as many tasks at a time on a worker as that has
    threads. chunk: prompts a task. model: a name or a folder that every worker can see. prompts and
    out are files of this machine.
    """
    folder = check.path("out", out)
    file = _prompt_file(prompts, folder)
    count = _native.count_prompts(file, check.text("format", format))
    chosen = (
        check.text("model", model),
        check.text("device", device),
        check.integer("threads", threads, 1, 4096),
        count,
    )
    check.integer("chunk", chunk, 1)
    pool = _Pool(client, check.integer("retries", retries, 0))
    at_once = 4 * _threads_of(client)
    pool.submit(_describe, chosen, _fields(options))
    described: List[Any] = []
    while not described:
        described = pool.ready()
    maker, settled = described[0]
    target = _native.BatchFolder(
        file, format, folder, settled, check.text("shard", shard), check.flag("strict", strict),
        check.flag("arrays", arrays), maker
    )
    with check.reporting(progress) as report:
        try:
            more = True
            while more or len(pool):
                while more and len(pool) < at_once:
                    records = target.next(chunk)
                    more = bool(records)
                    if more:
                        pool.submit(_trace, chosen, settled, records)
                for lines in pool.ready():
                    target.append(lines)
                if report is not None:
                    report("prompts", target.done, target.total)
        except BaseException:
            pool.cancel()
            raise
    return Batch(*target.finish())


def _run_shard(arguments: Dict[str, Any]) -> Dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        _experiment_here(**arguments, out=folder)
        files = {}
        for name in ("run.json", "results.jsonl"):
            with open(os.path.join(folder, name), "rb") as file:
                files[name] = file.read()
    return files


def experiment(
    name: str, *, client: Any, out: File, shards: Optional[int] = None, threads: int = 1,
    retries: int = 3, progress: Progress = None, **arguments: Any
) -> Experiment:
    """`unpack_engine.experiment` on the workers of a Dask `client`, in `shards` parts (default: two
    for every thread of the cluster).

    Finished parts are kept in `<out>.shards` until all are there, so that a second call resumes.
    Models, corpus and prompts must be visible, under the same names, to the workers and to this
    process, which puts the parts together.
    """
    if check.text("name", name) not in experiments():
        raise ValueError(
            f"name must be one of {', '.join(map(repr, experiments()))}, not {check.shown(name)}"
        )
    folder = check.path("out", out)
    count = check.integer("shards", shards, 1) if shards is not None else 2 * _threads_of(client)
    if count == 1:
        return _experiment_here(name, out=folder, threads=threads, progress=progress, **arguments)
    parts = folder.rstrip("/") + ".shards"
    pool = _Pool(client, check.integer("retries", retries, 0))
    places: List[str] = []
    missing: List[str] = []
    for i in range(1, count + 1):
        place = os.path.join(parts, f"{i}-of-{count}")
        places.append(place)
        if os.path.exists(os.path.join(place, "results.jsonl")):
            continue
        missing.append(place)
        pool.submit(
            _run_shard, {**arguments, "name": name, "threads": threads, "shard": f"{i}/{count}"}
        )
    with check.reporting(progress) as report:
        try:
            while missing:
                for files in pool.ready():
                    place = missing.pop(0)
                    os.makedirs(place, exist_ok=True)
                    for (
                        file,
                        content,
                    ) in files.items():  # results.jsonl last: it says that the part is whole
                        with open(os.path.join(place, file + ".part"), "wb") as part:
                            part.write(content)
                        os.replace(os.path.join(place, file + ".part"), os.path.join(place, file))
                if report is not None:
                    report("shards", count - len(missing), count)
        except BaseException:
            pool.cancel()
            raise
    text = merge(places, folder, device=arguments.get("device", "auto"), threads=threads)
    shutil.rmtree(parts, ignore_errors=True)
    return read_folder(name, folder, text)
