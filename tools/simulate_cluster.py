#!/usr/bin/env python3
"""How long a million prompts take on many machines: a simulation with measured task times,
stragglers and deaths of workers.

    tools/simulate_cluster.py --prompts 1000000 --machines 100 --seconds 0.35 --spread 0.1 --chunk \
      16 --price 0.10

Two ways to divide the work are simulated: `queue` (Dask: a machine that is free takes the next
chunk, a chunk whose machine died is given to another) and `shards` (a SLURM array: prompt i belongs
to shard i mod N; a shard whose machine died is queued again and resumes with what it had written).
Beside each stands what the page of arithmetic in docs/scale.md says; the simulation has nothing in
common with it but the measured numbers.
"""
import argparse
import heapq
import json
import math
import random
from typing import Dict, List, NamedTuple, Tuple


class Setting(NamedTuple):
    prompts: int
    machines: int
    seconds: float  # a prompt, on a machine that is in order
    spread: float = 0.1  # standard deviation of a chunk's time over its mean
    chunk: int = 16  # prompts a task of the queue, or between two writes of a shard
    start: float = 60.0  # seconds until a machine works: boot, load the model
    slow: float = 0.02  # share of machines that are stragglers
    slowness: float = 3.0  # how many times slower these are
    deaths: float = 0.002  # of a machine, an hour
    collect: float = (
        0.0  # seconds that the one process which writes the results of the queue needs for a prompt
    )
    shards: int = 0  # 0: one a machine
    seed: int = 1
    times: Tuple[
        float, ...
    ] = ()  # measured times of chunks over their mean, drawn in place of a normal distribution


class Outcome(NamedTuple):
    hours: float  # until the last result
    machine_hours: float  # paid for: every machine until the end
    lost: int  # prompts traced twice because a machine died
    deaths: int


class Machine:
    """One machine: how slow it is, and when it dies next."""

    def __init__(self, s: Setting, draw: random.Random) -> None:
        self._s, self._draw = s, draw
        self.slowness = s.slowness if draw.random() < s.slow else 1.0

    def lifetime(self) -> float:
        return self._draw.expovariate(self._s.deaths / 3600) if self._s.deaths > 0 else math.inf

    def chunk_time(self, prompts: int) -> float:
        noise = (
            self._draw.choice(self._s.times)
            if self._s.times
            else max(0.05, self._draw.gauss(1, self._s.spread))
        )
        return prompts * self._s.seconds * self.slowness * noise


def simulate_queue(s: Setting) -> Outcome:
    """Event by event. A machine that dies is replaced by a fresh one, which takes `start` to come
    up; its chunk goes back to the front of the queue.
    """
    draw = random.Random(s.seed)
    waiting: List[int] = []  # chunks that came back
    left = s.prompts
    lost = deaths = 0
    events: List[tuple] = []  # (time, number, machine, chunk that ends, when it dies)
    number = 0
    end = 0.0  # when the last line is written; lines are written one after the other

    def free(now: float, machine: Machine, dies: float) -> None:
        nonlocal left, number
        if waiting:
            chunk = waiting.pop()
        elif left > 0:
            chunk = min(s.chunk, left)
            left -= chunk
        else:
            idle.append((machine, dies))
            return
        number += 1
        heapq.heappush(
            events, (min(now + machine.chunk_time(chunk), dies), number, machine, chunk, dies)
        )

    idle: List[tuple] = []
    for _ in range(s.machines):
        machine = Machine(s, draw)
        free(s.start, machine, s.start + machine.lifetime())
    while events:
        now, _, machine, chunk, dies = heapq.heappop(events)
        if now < dies:
            end = max(end, now) + chunk * s.collect
            free(now, machine, dies)
            continue
        deaths += 1
        lost += chunk
        waiting.append(chunk)
        if idle:
            free(now, *idle.pop())
        fresh = Machine(s, draw)
        free(now + s.start, fresh, now + s.start + fresh.lifetime())
    return Outcome(end / 3600, s.machines * end / 3600, lost, deaths)


def simulate_shards(s: Setting) -> Outcome:
    """Machine by machine: shards wait for a free machine; a dead machine's shard waits again, with
    what it has on disk done.
    """
    draw = random.Random(s.seed)
    count = s.shards or s.machines
    queue = [s.prompts // count + (i < s.prompts % count) for i in range(count)]
    machines = [(s.start, i, Machine(s, draw)) for i in range(s.machines)]
    heapq.heapify(machines)
    number = s.machines
    lost = deaths = 0
    end = 0.0
    while queue:
        left = queue.pop(0)
        now, _, machine = heapq.heappop(machines)
        dies = now + machine.lifetime()
        while left > 0:
            chunk = min(s.chunk, left)
            took = machine.chunk_time(chunk)
            if now + took > dies:
                break
            now += took
            left -= chunk
        number += 1
        if left == 0:
            end = max(end, now)
            heapq.heappush(machines, (now, number, machine))
        else:
            deaths += 1
            lost += min(s.chunk, left)
            queue.append(left)
            heapq.heappush(machines, (dies + s.start, number, Machine(s, draw)))
    return Outcome(end / 3600, s.machines * end / 3600, lost, deaths)


def arithmetic(s: Setting) -> Dict[str, float]:
    """The page of arithmetic of docs/scale.md, in hours."""
    work = s.prompts * s.seconds / 3600  # machine-hours on machines that are in order
    speed = s.machines * (
        1 - s.slow + s.slow / s.slowness
    )  # machines, a slow one counted for what it does
    up = 1 - s.deaths * s.start / 3600  # a death costs a start
    begin = s.start / 3600
    tail = (
        s.chunk * s.seconds * (s.slowness if s.slow * s.machines >= 0.5 else 1) / 3600
    )  # the last chunk, on the slowest machine
    queue = begin + max(work / (speed * up) + tail / 2, s.prompts * s.collect / 3600)
    count = s.shards or s.machines
    waves = math.ceil(count / s.machines)
    shard = work / count
    slowest = s.slowness if s.slow * s.machines >= 0.5 else 1.0
    # With one shard a machine the slowest machine is the last; with many, each takes what it can
    # and the last shard on a slow one ends it.
    shards = begin + (shard * slowest if waves == 1 else work / (speed * up) + shard * slowest / 2)
    return {"machine_hours_of_work": work, "queue": queue, "shards": shards}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field, kind in Setting.__annotations__.items():
        if field == "times":
            continue
        default = Setting._field_defaults.get(field)
        parser.add_argument(
            f"--{field}",
            type=int if kind in (int, "int") else float,
            default=default,
            required=default is None and field != "seconds",
        )
    parser.add_argument(
        "--times",
        help=(
            "what tools/measure_times.py wrote; seconds is then its mean over --cores, unless given"
        ),
    )
    parser.add_argument("--cores", type=int, default=2, help="of a machine, with --times")
    parser.add_argument("--price", type=float, default=0.10, help="of a machine, an hour")
    parser.add_argument("--json", action="store_true")
    args = vars(parser.parse_args())
    price, as_json, file, cores = (
        args.pop("price"),
        args.pop("json"),
        args.pop("times"),
        args.pop("cores"),
    )
    if file:
        with open(file, encoding="utf-8") as text:
            measured = json.load(text)["cpu_seconds_a_prompt"]
        mean = sum(measured) / len(measured)
        args["times"] = tuple(t / mean for t in measured)
        args["seconds"] = args["seconds"] or mean / cores
    if not args["seconds"]:
        parser.error("give --seconds or --times")
    s = Setting(**args)
    expected = arithmetic(s)
    rows = {"queue": simulate_queue(s), "shards": simulate_shards(s)}
    if as_json:
        print(
            json.dumps(
                {
                    name: {
                        **row._asdict(),
                        "arithmetic_hours": expected[name],
                        "cost": row.machine_hours * price,
                    }
                    for name, row in rows.items()
                },
                indent=2,
            )
        )
        return
    print(
        f"{s.prompts} prompts of {s.seconds:g} s on {s.machines} machines:"
        f" {expected['machine_hours_of_work']:.1f} machine-hours of work"
    )
    print(
        f"{'':8}{'arithmetic':>12}{'simulated':>12}{'off by':>9}{'machine-h':>11}{'cost':>9}"
        f"{'deaths':>8}{'twice':>8}"
    )
    for name, row in rows.items():
        print(
            f"{name:8}{expected[name]:>10.3f} h{row.hours:>10.3f} "
            f"h{100 * (row.hours / expected[name] - 1):>+8.1f}%{row.machine_hours:>11.1f}"
            f"{row.machine_hours * price:>9.2f}{row.deaths:>8}{row.lost:>8}"
        )


if __name__ == "__main__":
    main()
