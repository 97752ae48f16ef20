# SPDX-License-Identifier: Apache-2.0
"""Jobs of two processes on two GPUs, merged: collectives are complete, and each has its wait and its transfer."""

from __future__ import annotations

import numpy as np
import pytest
from child import run_ranks

import gpuscope as gs

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip(f"this needs 2 GPUs and there are {torch.cuda.device_count()}", allow_module_level=True)

WORLD = 2
PROGRAMS = ("ddp", "fsdp", "tensor", "graph")


@pytest.fixture(scope="module", params=PROGRAMS)
def job(request, tmp_path_factory):
    """The merged job of a program, and what its processes printed."""
    folder = tmp_path_factory.mktemp(request.param)
    printed = run_ranks(WORLD, "job.py", folder, request.param)
    return gs.merge(folder), printed, request.param


def calls_of(fleet, rank):
    collective = fleet.table("collective")
    rows = collective["rank"] == rank
    return sorted(zip(collective["communicator"][rows].tolist(), collective["sequence"][rows].tolist(), strict=True))


def test_both_ranks_have_the_same_collectives(job):
    fleet, _, _ = job
    assert calls_of(fleet, 0)
    assert calls_of(fleet, 0) == calls_of(fleet, 1)


def test_sequences_are_complete(job):
    fleet, _, _ = job
    collective = fleet.table("collective")
    for communicator in np.unique(collective["communicator"]).tolist():
        rows = (collective["communicator"] == communicator) & (collective["rank"] == 0)
        found = np.unique(collective["sequence"][rows])
        assert np.diff(found).tolist() == [1] * (len(found) - 1)


def test_collectives_are_known_by_nccls_own_ranges(job):
    fleet, printed, _ = job
    assert set(fleet.table("collective")["source"].tolist()) == {"nvtx"}
    assert all(sum(each["collectives"]) > 0 and each["complete"] for each in printed)


def test_replays_of_a_graph_are_collectives_of_their_own(job):
    fleet, _, program = job
    if program != "graph":
        pytest.skip("this is about graphs")
    assert len(calls_of(fleet, 0)) >= 2 * 12


def test_wait_and_transfer_are_the_duration(job):
    fleet, _, _ = job
    collective, waits = fleet.table("collective"), fleet.waits()
    for place, rank in enumerate(waits.ranks.tolist()):
        rows = collective["rank"] == rank
        spent = int((collective["end_ns"][rows] - collective["start_ns"][rows]).sum())
        assert waits.wait_ns[place] + waits.transfer_ns[place] == pytest.approx(spent, abs=len(calls_of(fleet, rank)))
    assert waits.early == 0


def test_processes_of_one_host_share_a_clock(job):
    fleet, _, _ = job
    assert len(fleet.clock.nodes) == 1
    assert fleet.clock.usable
    assert not fleet.clock.steps_ns
