"""tools/simulate_cluster.py against cases that can be worked out by hand, and against the
arithmetic of docs/scale.md.
"""
import importlib.util
import json
import subprocess
import sys

import pytest
from conftest import ROOT

TOOL = ROOT / "tools" / "simulate_cluster.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("simulate_cluster", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_accidents_the_time_is_known_exactly(tool):
    s = tool.Setting(prompts=1600, machines=10, seconds=2.0, spread=0, start=100, slow=0, deaths=0)
    for simulate in (tool.simulate_queue, tool.simulate_shards):
        got = simulate(s)
        assert got.hours * 3600 == pytest.approx(100 + 160 * 2) and (got.lost, got.deaths) == (0, 0)
        assert got.machine_hours == pytest.approx(10 * got.hours)


def test_a_straggler_holds_up_its_own_shard_and_hardly_a_queue(tool):
    s = tool.Setting(
        prompts=100_000, machines=20, seconds=0.1, spread=0, start=0, slow=1, slowness=3, deaths=0
    )
    everyone = tool.simulate_shards(s).hours
    assert everyone == pytest.approx(3 * 500 / 3600)
    some = s._replace(slow=0.1)
    assert tool.simulate_shards(some).hours == pytest.approx(everyone)  # one slow machine is enough
    assert tool.simulate_queue(some).hours < 0.45 * everyone
    assert (
        tool.simulate_shards(some._replace(shards=400)).hours < 0.5 * everyone
    )  # small shards help


def test_the_dead_cost_their_start_and_a_chunk_each(tool):
    s = tool.Setting(
        prompts=200_000, machines=20, seconds=1.0, spread=0, start=600, slow=0, deaths=1.0
    )
    for simulate in (tool.simulate_queue, tool.simulate_shards):
        calm, rough = simulate(s._replace(deaths=0)), simulate(s)
        assert rough.deaths > 20 and 0 < rough.lost <= rough.deaths * s.chunk
        assert rough.hours > calm.hours + rough.deaths * s.start / 3600 / s.machines * 0.5


def test_one_writer_bounds_the_queue(tool):
    s = tool.Setting(prompts=10_000, machines=100, seconds=0.01, start=0, collect=0.005)
    assert tool.simulate_queue(s).hours * 3600 == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize("machines", [10, 100, 300])
@pytest.mark.parametrize(
    "more", [{}, {"shards": 5000}, {"deaths": 0.05, "slow": 0.1}, {"seconds": 5.0, "chunk": 4}]
)
def test_the_arithmetic_holds_within_a_tenth(tool, machines, more):
    s = tool.Setting(**{"prompts": 500_000, "machines": machines, "seconds": 0.5, **more})
    expected = tool.arithmetic(s)
    assert tool.simulate_queue(s).hours == pytest.approx(expected["queue"], rel=0.1)
    assert tool.simulate_shards(s).hours == pytest.approx(expected["shards"], rel=0.12)


def test_the_same_seed_gives_the_same_answer():
    run = lambda: subprocess.run(
        [
            sys.executable, TOOL, "--prompts", "5000", "--machines", "7", "--seconds", "0.3",
            "--json"
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    first = run().stdout
    assert run().stdout == first and json.loads(first)["queue"]["cost"] > 0
