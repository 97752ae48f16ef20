# SPDX-License-Identifier: Apache-2.0
"""``profile(profile_memory=True)`` beside torch.profiler's: the table and the trace file's events of memory."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise

import pytest

from gpuscope.profiler import profile

torch = pytest.importorskip("torch")

SIDE = 64
BYTES = 4 * SIDE * SIDE


def work():
    x = torch.ones(SIDE, SIDE)
    return (x @ x).relu().sum()


def theirs():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


@pytest.fixture(scope="module")
def recorded():
    """What torch.profiler and gpuscope recorded of the same work."""
    work()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is no CUDA
        with theirs() as expected:
            work()
    with profile(profile_memory=True) as prof:
        work()
    return expected, prof


def memory_events(profiler, path):
    profiler.export_chrome_trace(str(path))
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]


def test_the_table_has_columns_of_memory(recorded):
    heading = recorded[1].key_averages().table().splitlines()[1]
    assert "CPU Mem" in heading
    assert "Self CPU Mem" in heading


def test_the_table_has_none_without_memory():
    with profile() as prof:
        work()
    assert "Mem" not in prof.key_averages().table()


@pytest.mark.parametrize("key", ["self_cpu_memory_usage", "cpu_memory_usage"])
def test_rows_are_sorted_by_memory(recorded, key):
    rows = [line.split()[0] for line in recorded[1].key_averages().table(sort_by=key).splitlines()[3:]]
    values = {row.key: getattr(row, key) for row in recorded[1].key_averages()}
    shown = [values[name] for name in rows if name in values]
    assert len(shown) == len(values)
    assert shown == sorted(shown, reverse=True)


@pytest.mark.parametrize("key", ["self_cuda_memory_usage", "cuda_memory_usage", "self_device_memory_usage"])
def test_device_memory_sorts_where_there_is_no_gpu(recorded, key):
    assert "aten::mm" in recorded[1].key_averages().table(sort_by=key)


def test_operators_took_what_torch_says(recorded):
    expected, prof = ({row.key: row for row in one.key_averages()} for one in recorded)
    assert prof["aten::mm"].self_cpu_memory_usage == BYTES
    for name, row in expected.items():
        assert prof[name].self_cpu_memory_usage == row.self_cpu_memory_usage, name


def test_the_trace_has_torchs_events_of_memory(recorded, tmp_path):
    expected, found = (memory_events(one, tmp_path / f"{at}.json") for at, one in enumerate(recorded))
    assert [event["args"]["Bytes"] for event in found] == [event["args"]["Bytes"] for event in expected]
    read = ("Bytes", "Addr", "Device Type", "Device Id", "Total Allocated", "Total Reserved")
    for event in found:  # what the TensorBoard plugin and Holistic Trace Analysis read
        assert (event["ph"], event["cat"]) == (expected[0]["ph"], expected[0]["cat"])
        assert set(read) <= set(event["args"])
        assert (event["args"]["Device Type"], event["args"]["Device Id"]) == (0, -1)


def test_what_is_in_use_adds_up_in_the_trace(recorded, tmp_path):
    events = [event["args"] for event in memory_events(recorded[1], tmp_path / "trace.json")]
    in_use = [event["Total Allocated"] for event in events]
    assert [after - before for before, after in pairwise(in_use)] == [event["Bytes"] for event in events[1:]]


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_an_allocator_that_reports_nothing_is_named_by_the_audit(monkeypatch, backend):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    with profile(profile_memory=True) as prof:
        work()
    assert f"torch's allocations on GPUs are not recorded: its allocator is {backend}, which reports" in str(
        prof.audit()
    )


def test_torchs_own_allocator_needs_no_remark(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    with profile(profile_memory=True) as prof:
        work()
    assert "its allocator" not in str(prof.audit())
