# SPDX-License-Identifier: Apache-2.0
"""The recordings of some ranks as one timeline."""

from __future__ import annotations

import json
import tarfile

import numpy as np
import pytest

from fakes.rank_recordings import ALL_REDUCE, GEMM, START, RankRecording
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters import save
from gpuscope.fleet.job import merge
from gpuscope.fleet.merged_trace import cut
from gpuscope.trace import NONE, Trace

STEPS, LONG, AHEAD = 60, 100_000, 3_030_000


def recording(rank, ahead=0, host="n0"):
    """A rank whose steps are a product and an all-reduce; its clock is ahead by so many ns."""
    end = ahead + STEPS * LONG
    made = RankRecording(end, process_rank=str(rank), process_world_size="2", process_host=host, process_id=str(40))
    made.creation_of_nccl(ahead, 5, 2, rank)
    for number in range(STEPS):
        begin = ahead + number * LONG
        step = made.step(begin, begin + LONG, number)
        inner = made.region("work", begin + 10, begin + 50_000, step, size=3)
        made.kernel(GEMM, begin + 1_000 + 500 * rank, begin + 40_000 + 500 * rank, region=inner)
        call = made.call_of_nccl("ncclAllReduce", begin + 200, 5, 4096, parent=step)
        made.kernel(ALL_REDUCE, begin + 50_000 + 100 * rank, begin + 60_000, region=call, stream=9)
    return made.trace()


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "job"
    where.mkdir()
    save(recording(0).store, where / "rank-0.gscope")
    save(recording(1, AHEAD, "n1").store, where / "rank-1.gscope")
    return where


def members(path):
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}


def test_an_archive_has_a_trace_for_each_rank_and_names_their_machines(folder, tmp_path):
    merge(folder).export_perfetto(tmp_path / "a.tar", [0, 1], (20, 22))
    found = members(tmp_path / "a.tar")
    assert list(found) == ["perfetto_manifest.json", "rank-00000.pftrace", "rank-00001.pftrace"]
    manifest = json.loads(found["perfetto_manifest.json"])["perfetto_manifest"]
    assert manifest["version"] == 1
    assert [(each["path"], each["machine"]["name"]) for each in manifest["files"]] == [
        ("rank-00000.pftrace", "n0"),
        ("rank-00001.pftrace", "n1"),
    ]


def test_recordings_are_on_aligned_clocks(folder, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("gpuscope.fleet.merged_trace.write_perfetto", lambda store, write: written.append(Trace(store)))
    merge(folder).export_perfetto(tmp_path / "a.tar", [0, 1], (20, 22))
    first, second = (each.kernels.start_ns[np.argsort(each.kernels.start_ns)] for each in written)
    assert len(first) == len(second) == 6
    assert np.abs(second[::2] - first[::2] - 500).max() < 20  # products; their clocks were 3 ms apart
    assert written[1].info["process.argv"].startswith("rank 1")


def names_of(trace, regions):
    return [trace.store.string(trace.paths.name[path]) for path in trace.regions.path[regions]]


def test_what_reaches_into_the_window_is_kept():
    found = Trace(cut(recording(0).store, START + 20 * LONG + 20_000, START + 21 * LONG, 7))
    assert found.kernels.start_ns.tolist() == [START + 20 * LONG + 1_007, START + 20 * LONG + 50_007]


def test_work_keeps_the_regions_and_calls_that_launched_it():
    trace = recording(0)
    found = Trace(cut(trace.store, START + 20 * LONG + 55_000, START + 20 * LONG + 58_000))
    assert names_of(found, found.kernels.region) == ["ncclAllReduce"]  # which ended before
    assert sorted(names_of(found, slice(None))) == ["ProfilerStep#20", "ncclAllReduce"]
    assert names_of(found, found.regions.parent[found.regions.parent != NONE]) == ["ProfilerStep#20"]
    assert found.api.correlation.tolist() == found.kernels.correlation.tolist()


def test_payloads_follow_their_regions():
    trace = recording(0)
    found = Trace(cut(trace.store, START + 20 * LONG, START + 22 * LONG - 1))
    assert names_of(found, found.payloads.region) == ["work", "work"]


@pytest.mark.parametrize(
    ("ranks", "steps", "words"),
    [
        ([7], (1, 2), "ranks has 7; accepted are numbers of the 2 ranks with a recording"),
        ([], None, "ranks is empty"),
        ([0], (90, 99), "steps is 90:99; accepted are steps that one of the ranks has"),
    ],
)
def test_ranks_and_steps_that_do_not_exist_are_refused(folder, tmp_path, ranks, steps, words):
    with pytest.raises(InvalidArgument, match=words):
        merge(folder).export_perfetto(tmp_path / "a.tar", ranks, steps)


def test_a_recording_that_is_gone_is_named(folder, tmp_path):
    job = merge(folder)
    (folder / "rank-1.gscope").unlink()
    with pytest.raises(NotAvailable, match="the recording of rank 1 is not at "):
        job.export_perfetto(tmp_path / "a.tar", [0, 1])
    assert not (tmp_path / "a.tar").exists()
