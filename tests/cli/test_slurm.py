"""The job-array scripts of examples/slurm: on a real SLURM of one node where slurm-wlm and munge
are installed and we are root, and with a stand-in for sbatch.
"""
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import PROGRAM, ROOT
from test_batch import files, short_prompts

SCRIPTS = ROOT / "examples" / "slurm"
ONE_NODE = ROOT / "tests" / "slurm" / "one_node.sh"

# Does what sbatch would, one task after the other, and keeps its command lines. A job waits for
# none: the one that it depends on is done.
STAND_IN = """#!/bin/sh
set -eu
echo "$@" >> "$STAND_IN_LOG"
array="" output=""
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --array=1-*) array=${1#--array=1-} ;;
    --output=*) output=${1#--output=} ;;
    --dependency=afterok:17|--parsable|--kill-on-invalid-dep=yes|--partition=short) ;;
    *) echo "sbatch: unknown option $1" >&2; exit 1 ;;
  esac
  shift
done
if [ -n "$array" ]; then
  for i in $(seq "$array"); do
    SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=$array SLURM_CPUS_PER_TASK=1 \\
      sh "$@" > "$(echo "$output" | sed "s/%a/$i/")" 2>&1
  done
else
  sh "$@" > "$output" 2>&1
fi
echo "17;cluster"
"""


@pytest.fixture()
def prompts(unpack, tmp_path):
    (tmp_path / "prompts.jsonl").write_text(short_prompts(30))
    unpack.ok("batch", tmp_path / "prompts.jsonl", "--out", tmp_path / "whole", "--top-paths", "2")
    return tmp_path / "prompts.jsonl"


def submit(env, *args):
    return subprocess.run(
        [SCRIPTS / "submit.sh", *map(str, args)],
        env={**os.environ, "UNPACK": PROGRAM, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_scripts_split_and_merge(prompts, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(STAND_IN)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    env = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "STAND_IN_LOG": str(tmp_path / "log"),
        "SBATCH_OPTIONS": "--partition=short",
    }
    result = submit(env, 4, tmp_path / "out", "batch", prompts, "--top-paths", "2")
    assert result.returncode == 0, result.stderr
    assert "array 17, merge 17" in result.stdout
    assert files(tmp_path / "out" / "merged") == files(tmp_path / "whole")
    array, merge = (tmp_path / "log").read_text().splitlines()
    assert "--array=1-4" in array and "--dependency=afterok:17" in merge
    result = submit(env, 2, tmp_path / "sink", "experiment", "sink", "--n", "1")
    assert (
        result.returncode == 0 and (tmp_path / "sink" / "merged" / "report.md").exists()
    ), result.stderr


@pytest.mark.parametrize("args", [[], [4, "out"], [4, "out", "trace", "Mary"]])
def test_a_wrong_call_is_refused(args):
    result = submit({}, *args)
    assert result.returncode == 2 and result.stderr


def test_a_real_slurm_of_one_node_runs_an_array_of_four(prompts, tmp_path):
    if os.geteuid() != 0 or not shutil.which("slurmctld") or not shutil.which("munged"):
        pytest.skip("needs root, slurm-wlm and munge")
    # Daemons want a folder that everybody can enter.
    node = Path("/tmp") / f"unpack-slurm-{os.getpid()}"
    started = subprocess.run([ONE_NODE, "start", node], capture_output=True, text=True, timeout=120)
    try:
        if started.returncode:
            pytest.skip(f"SLURM does not start here: {started.stderr.strip()}")
        env = {"SLURM_CONF": str(node / "slurm.conf"), "SBATCH_OPTIONS": "--cpus-per-task=1"}
        result = submit(env, 4, tmp_path / "out", "batch", prompts, "--top-paths", "2")
        assert result.returncode == 0, result.stderr
        for _ in range(1200):
            queue = subprocess.run(
                ["squeue", "-h"], env={**os.environ, **env}, capture_output=True, text=True
            )
            if queue.returncode == 0 and not queue.stdout:
                break
            time.sleep(0.1)
        logs = {path.name: path.read_text() for path in (tmp_path / "out" / "logs").iterdir()}
        assert files(tmp_path / "out" / "merged") == files(tmp_path / "whole"), logs
        assert sorted(logs) == [
            "merge.log", "shard-1.log", "shard-2.log", "shard-3.log", "shard-4.log"
        ]
    finally:
        subprocess.run([ONE_NODE, "stop", node], timeout=60)
        shutil.rmtree(node, ignore_errors=True)
