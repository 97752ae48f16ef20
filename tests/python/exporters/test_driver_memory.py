# SPDX-License-Identifier: Apache-2.0
"""Memory that libraries took from the driver: in tables, frames and exported traces."""

from __future__ import annotations

import json

import pytest

from fakes.gscope import NONE, make_store
from fakes.steps import steps_store
from fakes.stores import INFO, START, training_tables
from gpuscope import _core
from gpuscope.exporters import save
from gpuscope.readers.files import load_store
from gpuscope.trace import MemoryKind, PoolOperation, Trace

MIB = 1 << 20
DRIVER = "GPU 0 memory, driver"


def add_memory(tables):
    """A segment taken, a piece of before given back, pinned memory, and a pool that is created and used."""
    tables["track"] = {"device": [0, 0], "context": [1, 1], "stream": [7, NONE]}
    tables["device_memory"] = {
        "start_ns": [START + 100, START + 200, START + 300, START + 400],
        "bytes": [20 * MIB, -2 * MIB, MIB, 4 * MIB],
        "address": [0x7000, 0x5000, 0x1000, 0x8000],
        "pool": [0, 0, 0, 0x9000],
        "pool_reserved_bytes": [0, 0, 0, 32 * MIB],
        "pool_used_bytes": [0, 0, 0, 4 * MIB],
        "region": [1, NONE, 0, 1],
        "library": ["/lib/libtorch_cuda.so", NONE, NONE, "/lib/libcupy.so"],
        "track": [1, 1, 1, 0],
        "kind": [MemoryKind.DEVICE, MemoryKind.DEVICE, MemoryKind.PINNED, MemoryKind.DEVICE],
    }
    tables["memory_pool"] = {
        "start_ns": [START + 350],
        "pool": [0x9000],
        "release_threshold_bytes": [MIB],
        "region": [1],
        "operation": [PoolOperation.CREATED],
    }


def memory_store(change=lambda tables: None):
    tables = training_tables()
    add_memory(tables)
    change(tables)
    return make_store(tables, info=INFO)


def chrome(store):
    pieces = []
    _core.write_chrome(store, pieces.append)
    return json.loads(b"".join(pieces))


def counted(store):
    """By process and name, the bytes of each counter at its times, in ns after START."""
    counters = {}
    trace = chrome(store)
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            at_ns = round(event["ts"] * 1000) + trace["baseTimeNanoseconds"] - START
            counters.setdefault((event["pid"], event["name"]), []).append((at_ns, event["args"]["bytes"]))
    return counters


def test_trace_has_the_memory_and_the_pools():
    trace = Trace(memory_store())
    assert trace.device_memory.bytes.tolist() == [20 * MIB, -2 * MIB, MIB, 4 * MIB]
    assert trace.memory_pools.operation.tolist() == [PoolOperation.CREATED]


def test_recording_keeps_them_in_its_file(tmp_path):
    save(memory_store(), tmp_path / "a.gscope")
    trace = Trace(load_store(tmp_path / "a.gscope"))
    assert trace.device_memory.address.tolist() == [0x7000, 0x5000, 0x1000, 0x8000]
    assert trace.string(int(trace.device_memory.library[0])) == "/lib/libtorch_cuda.so"
    assert trace.memory_pools.release_threshold_bytes.tolist() == [MIB]


def test_file_of_before_they_were_recorded_opens_without_them():
    trace = Trace(make_store(training_tables(), info=INFO))
    assert (len(trace.device_memory), len(trace.memory_pools)) == (0, 0)


def test_windows_are_joined_with_their_libraries():
    merged = Trace(_core.merge([memory_store(), memory_store()]))
    assert len(merged.device_memory) == 8
    assert merged.string(int(merged.device_memory.library[4])) == "/lib/libtorch_cuda.so"
    assert int(merged.device_memory.library[5]) == NONE
    assert len(merged.memory_pools) == 2


def test_frame_spells_region_library_and_stream():
    pytest.importorskip("pandas")
    frame = Trace(memory_store()).device_memory.to_pandas()
    first, second = frame.iloc[0], frame.iloc[1]
    assert (first.region, first.library, first.device) == ("forward", "/lib/libtorch_cuda.so", 0)
    assert frame.library.isna().tolist() == [False, True, True, False]
    assert (second.stream, frame.stream[3]) == (NONE, 7)


def test_arrow_spells_the_library():
    pa = pytest.importorskip("pyarrow")
    column = pa.table(Trace(memory_store()).device_memory).column("library")
    assert column.to_pylist()[:2] == ["/lib/libtorch_cuda.so", ""]


def test_counters_hold_what_each_device_had_in_use():
    # What was given back lay there from the beginning; times count from the first event, a region at START.
    assert counted(memory_store())[0, DRIVER] == [
        *((0, 2 * MIB), (100, 22 * MIB), (200, 20 * MIB)),
        (400, 24 * MIB),
    ]


def test_counters_are_of_the_device_of_their_stream_in_whatever_order_devices_are_listed():
    def change(tables):
        tables["device"] = {"ordinal": [1, 0], "name": ["number 1", "number 0"]}
        tables["track"]["device"] = [0, 1]

    counters = counted(memory_store(change))
    assert {key for key in counters if key[0] != 4242} == {
        *((0, DRIVER), (0, "GPU 0 pool 0x9000 reserved"), (0, "GPU 0 pool 0x9000 used")),
        (1, "GPU 1 memory, driver"),
    }


def test_pinned_memory_is_the_process():
    assert counted(memory_store())[4242, "pinned memory, driver"] == [(0, 0), (300, MIB)]


def test_pools_have_counters_of_their_own():
    counters = counted(memory_store())
    assert counters[0, "GPU 0 pool 0x9000 reserved"] == [(350, 0), (400, 32 * MIB)]
    assert counters[0, "GPU 0 pool 0x9000 used"] == [(350, 0), (400, 4 * MIB)]


def test_every_other_event_is_as_without_them():
    def others(store):
        return [event for event in chrome(store)["traceEvents"] if event["ph"] != "C"]

    assert others(steps_store(add_memory_only)) == others(steps_store())


def add_memory_only(tables):
    tracks = {name: list(values) for name, values in tables["track"].items()}
    add_memory(tables)
    tables["track"] = {
        name: [*tracks[name], value] for name, value in (("device", 0), ("context", 1), ("stream", NONE))
    }
    tables["device_memory"]["track"] = [len(tracks["device"])] * 4
    for table in ("device_memory", "memory_pool"):
        tables[table]["start_ns"] = [at + 100_000 for at in tables[table]["start_ns"]]


def test_counters_are_what_readers_of_torchs_traces_pass_over():
    # Holistic Trace Analysis and TensorBoard keep events that have a category and a duration, or are [memory] instants.
    for event in chrome(memory_store())["traceEvents"]:
        if event["ph"] == "C":
            assert "cat" not in event
            assert "dur" not in event
            assert set(event) == {"ph", "name", "pid", "tid", "ts", "args"}


def test_device_without_work_is_named_for_its_memory():
    def forget(tables):
        for table in ("kernel", "memcpy", "api", "mark"):
            del tables[table]

    found = chrome(memory_store(forget))["traceEvents"]
    names = [event for event in found if event["name"] == "process_name" and event["pid"] == 0]
    assert [event["args"]["name"] for event in names] == ["NVIDIA H100"]


def test_time_begins_with_the_first_piece_taken():
    def early(tables):
        tables["device_memory"]["start_ns"][0] = START - 500

    assert counted(memory_store(early))[0, DRIVER][:2] == [(-500, 2 * MIB), (-500, 22 * MIB)]


def test_averages_and_tree_have_no_memory_of_the_driver():
    trace = Trace(memory_store())
    plain = Trace(make_store(training_tables(), info=INFO))
    assert trace.instances.self_device_bytes.tolist() == plain.instances.self_device_bytes.tolist()
