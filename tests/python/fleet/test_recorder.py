# SPDX-License-Identifier: Apache-2.0
"""Collectives that only torch's Flight Recorder numbered: of NCCL that began before the profiler, and of gloo."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fakes.rank_recordings import ALL_REDUCE, START, RankRecording
from gpuscope.fleet.reduce import reduce
from gpuscope.frameworks.torch_flight_recorder import FACT, dump_flight_recorder, read_flight_recorder

GROUPS = json.dumps({"pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "3", "ranks": [0, 2]}]})


def recording(*calls, groups=GROUPS):
    """A recording with these calls of groups: group, sequence, name, bytes and ns."""
    rank = RankRecording()
    rank.info |= {FACT: json.dumps([[*call[:4], START + call[4]] for call in calls])}
    rank.info |= {"metadata.distributedInfo": groups}
    rank.step(0, 1000)
    return rank


def found(rank):
    table = reduce(rank.trace())["collective"]
    return list(zip(*(table[name].tolist() for name in ("sequence", "size", "bytes", "source")), strict=True))


def test_a_kernel_is_the_last_call_of_its_kind_before_its_launch():
    rank = recording(
        ("0", 41, "nccl:all_reduce", 256, 90),
        ("0", 42, "nccl:all_gather", 512, 95),
        ("0", 43, "nccl:all_reduce", 1024, 190),
    )
    rank.kernel(ALL_REDUCE, 100, 150)
    rank.kernel(ALL_REDUCE, 200, 250)
    assert found(rank) == [(41, 2, 256, "recorder"), (43, 2, 1024, "recorder")]


def test_groups_have_communicators_of_their_own():
    rank = recording(("0", 1, "nccl:all_reduce", 4, 90), ("3", 1, "nccl:all_reduce", 4, 190))
    rank.kernel(ALL_REDUCE, 100, 150)
    rank.kernel(ALL_REDUCE, 200, 250)
    communicators = reduce(rank.trace())["collective"]["communicator"].tolist()
    assert communicators[0] != communicators[1]


def test_a_call_before_two_launches_is_neither():
    rank = recording(("0", 1, "nccl:all_reduce", 4, 90))
    rank.kernel(ALL_REDUCE, 100, 150)
    rank.kernel(ALL_REDUCE, 200, 250)
    assert {source for *_, source in found(rank)} == {"order"}


def test_the_recorders_clock_is_the_system_s():
    rank = recording(("0", 7, "nccl:all_reduce", 4, 590))
    rank.anchor(0, 500)
    rank.kernel(ALL_REDUCE, 100, 150)
    assert found(rank) == [(7, 2, 4, "recorder")]


def test_gloo_is_numbered_too():
    rank = recording(("0", 5, "gloo:all_reduce", 4, 90))
    rank.region("gloo:all_reduce", 100, 300)
    assert found(rank) == [(5, 2, 4, "recorder")]


@pytest.mark.parametrize("text", ["", "{", "[1]", '[["0", "x", "nccl:all_reduce", 4, 5]]', "null", "7"])
def test_other_texts_are_no_calls(text):
    assert read_flight_recorder(text, GROUPS) == []


def test_groups_that_torch_does_not_tell_have_no_size():
    (call,) = read_flight_recorder('[["9", 1, "nccl:all_reduce", 4, 5]]', "{}")
    assert (call.group, call.size) == ("9", -1)


def test_torch_without_a_process_group_has_no_calls():
    assert dump_flight_recorder(0) is None


def test_calls_of_gloo_are_in_the_recording_of_its_process():
    pytest.importorskip("torch")
    code = """
import os, torch, torch.distributed as dist, gpuscope as gs
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
values = torch.ones(4)
dist.all_reduce(values)
with gs.profile() as prof:
    dist.all_reduce(values)
print(prof.trace.info.get("torch.flight_recorder", "[]"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    calls = json.loads(done.stdout.splitlines()[-1])
    assert [call[1:4] for call in calls] == [[2, "gloo:all_reduce", 16]]
