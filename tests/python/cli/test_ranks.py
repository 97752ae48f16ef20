# SPDX-License-Identifier: Apache-2.0
"""``run -o DIR/`` under a launcher: each rank has a recording, also if the job fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.recording import load
from gpuscope.trace import Trace

RANKS = 8
KILLED, TERMINATED, RAISES = 2, 5, 6
TRAIN = f"""
import os, signal, time
import torch
import torch.distributed
import gpuscope

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
for step in range(3):
    with gpuscope.record_function("reduce"):
        torch.distributed.all_reduce(torch.ones(8))
    gpuscope.step()
torch.distributed.barrier()
if rank == {KILLED}:
    open("killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists("killed"):  # else the launcher may end that rank first
    time.sleep(0.01)
if rank == {TERMINATED}:
    os.kill(os.getpid(), signal.SIGTERM)
if rank == {RAISES}:
    raise RuntimeError("a rank failed")
time.sleep(300)  # until the launcher ends the job
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job with failures: one rank was killed, one got SIGTERM, and one raised."""
    pytest.importorskip("torch.distributed.run")
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(TRAIN)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    done = subprocess.run(
        [*launcher, "-m", "gpuscope", "run", "-o", "new/ranks/", "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"local_rank: {KILLED}" in done.stderr, done.stderr
    return folder / "new" / "ranks"


@pytest.fixture(scope="module")
def traces(job: Path) -> dict[str, Trace]:
    return {path.name: load(path).trace for path in job.glob("*.gscope")}


def test_each_rank_but_the_killed_one_has_a_file(job):
    expected = {f"rank-{rank:05d}.gscope" for rank in range(RANKS) if rank != KILLED}
    assert {path.name for path in job.iterdir()} == expected


def test_each_file_has_the_steps_up_to_the_failure(traces):
    for name, trace in traces.items():
        steps = trace.info["session.steps"]
        assert int(steps) == 3, name


def test_each_file_knows_its_process(traces):
    for name, trace in traces.items():
        number = str(int(name.removeprefix("rank-").removesuffix(".gscope")))
        known = {key.removeprefix("process."): value for key, value in trace.info.items()}
        facts = [known[key] for key in ("rank", "world_size", "local_rank", "launcher", "host")]
        assert facts == [number, str(RANKS), number, "torchrun", socket.gethostname()]
    assert len({trace.info["process.id"] for trace in traces.values()}) == RANKS - 1
