"""Batches and experiments on a real Dask scheduler with two worker processes."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import MARY, PACKAGE

pytest.importorskip("distributed", reason="python3-distributed is not installed")
FEW = {"top_paths": 2}


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class Cluster:
    """A scheduler and its workers, each a process of its own, on free ports of localhost. Workers
    have no nanny: one that is killed stays dead.
    """

    def __init__(self, place):
        self.place = place
        self.processes = []
        self.env = {
            **os.environ,
            "PYTHONPATH": f"{PACKAGE}:{Path(__file__).parent}",
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s",
        }
        log = self.start(
            "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"
        )
        self.address = self.wait_for(log, r"(tcp://127\.0\.0\.1:\d+)")
        self.workers = [self.start_worker() for _ in range(2)]

    def start(self, module, *args):
        log = self.place / f"{len(self.processes)}.log"
        with open(log, "w") as out:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *args],
                    stdout=out,
                    stderr=out,
                    env=self.env,
                    cwd=self.place,
                )
            )
        return log

    def start_worker(self):
        self.start(
            "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-nanny",
            "--no-dashboard"
        )
        return self.processes[-1]

    @staticmethod
    def wait_for(log, pattern):
        for _ in range(600):
            found = re.search(pattern, log.read_text())
            if found:
                return found.group(1)
            time.sleep(0.1)
        pytest.fail(log.read_text())

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("dask"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def client(cluster):
    from distributed import Client

    with Client(cluster.address, timeout="60s") as made:
        made.wait_for_workers(2, timeout=60)
        yield made


def write_prompts(file, count, longest):
    draw = random.Random(7)
    with open(file, "w") as out:
        for i in range(count):
            out.write(
                "bad\n"
                if i == count // 3
                else json.dumps(
                    {
                        "id": i,
                        "ids": [
                            draw.randrange(4000) for _ in range(draw.choice((1, 1, 1, longest)))
                        ],
                    }
                )
                + "\n"
            )


def test_an_experiment_gives_the_files_of_one_process(up, client, tmp_path):
    from unpack_engine import distributed

    arguments = {"n": 2, "seed": 3}
    up.experiment("sink", out=tmp_path / "here", **arguments)
    seen = []
    got = distributed.experiment(
        "sink",
        client=client,
        out=tmp_path / "there",
        shards=3,
        progress=lambda *args: seen.append(args),
        **arguments,
    )
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert got.records and got.summary["models"]["pocket-gpt2"] and seen[-1] == ("shards", 3, 3)
    assert not (tmp_path / "there.shards").exists()


def test_wrong_arguments_are_refused_at_once(client, tmp_path):
    from unpack_engine import distributed

    with pytest.raises(ValueError, match="betta"):
        distributed.batch([MARY], tmp_path / "a", client=client, betta=1)
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        distributed.batch([MARY], tmp_path / "b", client=client, model="no-such-model")
    with pytest.raises(ValueError, match="name must be"):
        distributed.experiment("nothing", client=client, out=tmp_path / "c")
    with pytest.raises(ValueError, match="3 tokens"):
        distributed.batch(
            [MARY, {"prompt": MARY, "target": "Mary and John"}],
            tmp_path / "d",
            client=client,
            strict=True,
            **FEW,
        )


def _fails_on_the_first(addresses):
    from distributed import get_worker

    if get_worker().address == addresses[0]:
        raise OSError("this machine has a broken disk")
    return get_worker().address


def test_a_task_that_fails_is_tried_on_another_worker(client):
    from unpack_engine import distributed

    addresses = sorted(client.scheduler_info()["workers"])
    pool = distributed._Pool(client, retries=1)
    for _ in range(6):
        pool.submit(_fails_on_the_first, addresses)
    answers = []
    while len(pool):
        answers += pool.ready()
    assert answers == [addresses[1]] * 6
    pool = distributed._Pool(client, retries=1)
    pool.submit(_always_fails)
    with pytest.raises(RuntimeError, match="2 times.*broken"):
        while len(pool):
            pool.ready()


def _always_fails():
    raise OSError("every disk is broken")


def _loaded_models():
    from unpack_engine import distributed

    return sorted(distributed._models)


def test_2000_prompts_and_a_worker_killed_on_the_way(up, cluster, client, tmp_path):
    """The last test of the module: one worker is dead behind it."""
    from unpack_engine import distributed

    write_prompts(tmp_path / "prompts.jsonl", 2000, longest=2)
    begin = time.monotonic()
    here = up.batch(tmp_path / "prompts.jsonl", tmp_path / "here", arrays=True, threads=2, **FEW)
    alone = time.monotonic() - begin
    assert (here.results, here.errors) == (1999, 1)
    killed = []

    def watch(what, done, total):
        if not killed and done >= 1000:
            cluster.workers[0].send_signal(signal.SIGKILL)
            killed.append((done, total))

    there = distributed.batch(
        tmp_path / "prompts.jsonl", tmp_path / "there", client=client, arrays=True, progress=watch,
        **FEW
    )
    print(
        f"one process {alone:.1f} s, two workers less one {time.monotonic() - begin - alone:.1f} s"
    )
    assert (
        killed
        and killed[0][0] < killed[0][1]
        and cluster.workers[0].wait(timeout=10) == -signal.SIGKILL
    )
    assert len(client.scheduler_info()["workers"]) == 1
    assert (there.results, there.errors) == (1999, 1)
    assert files(tmp_path / "there") == files(tmp_path / "here")
    # However many chunks it had, the worker loaded the model once, and made its weight products
    # once.
    assert list(client.run(_loaded_models).values()) == [
        [("pocket-gpt2", "auto", 1, False), ("pocket-gpt2", "auto", 1, True)]
    ]
