# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import pytest

from fakes.gscope import NONE, make_store
from fakes.steps import steps_store
from fakes.stores import START, add_overlapping_functions, aggregate_store, training_store
from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.exporters import export_perfetto

trace_pb2 = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the perfetto package is not installed"
)
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
SIZE_BYTES = 3


@dataclass
class Slice:
    name: str
    start: int
    depth: int
    end: int = -1
    flows: list[int] = field(default_factory=list)
    category: str = ""
    notes: dict[str, object] = field(default_factory=dict)


@dataclass
class Track:
    name: str
    parent: int
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)
    counts: list[tuple[int, float]] = field(default_factory=list)
    unit: int = 0
    unit_name: str = ""


def packets(data):
    """All packets, those within compressed ones in their place."""
    trace = trace_pb2.Trace()
    trace.ParseFromString(data)
    for packet in trace.packet:
        if packet.HasField("compressed_packets"):
            yield from packets(zlib.decompress(packet.compressed_packets))
        else:
            yield packet


def read_tracks(data):
    """What a trace viewer makes of the packets; fails where a viewer would drop something."""
    tracks = {}
    states = {}
    for packet in packets(data):
        sequence = packet.trusted_packet_sequence_id
        assert sequence != 0
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            name = track.name or track.thread.thread_name or track.process.process_name
            units = {"unit": track.counter.unit, "unit_name": track.counter.unit_name}
            tracks[track.uuid] = Track(name, track.parent_uuid, **units)
        if packet.sequence_flags & 1:
            (delta,) = [clock for clock in packet.clock_snapshot.clocks if clock.clock_id == 64]
            assert delta.is_incremental
            assert delta.timestamp in [c.timestamp for c in packet.clock_snapshot.clocks if c.clock_id == 6]
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
            track = tracks[packet.trace_packet_defaults.track_event_defaults.track_uuid]
            states[sequence] = {
                "now": delta.timestamp,
                "track": track,
                "names": {},
                "categories": {},
                "labels": {},
                "texts": {},
                "open": [],
            }
        if not packet.HasField("track_event"):
            continue
        state = states[sequence]
        for kind, entries in (
            ("names", [(e.iid, e.name) for e in packet.interned_data.event_names]),
            ("categories", [(e.iid, e.name) for e in packet.interned_data.event_categories]),
            ("labels", [(e.iid, e.name) for e in packet.interned_data.debug_annotation_names]),
            ("texts", [(e.iid, e.str.decode()) for e in packet.interned_data.debug_annotation_string_values]),
        ):
            for iid, text in entries:
                assert iid not in state[kind]
                state[kind][iid] = text
        state["now"] += packet.timestamp
        event = packet.track_event
        if event.type == END:
            state["open"].pop().end = state["now"]
            continue
        if event.type == COUNTER:
            if event.HasField("double_counter_value"):
                assert state["track"].unit_name
                state["track"].counts.append((state["now"], event.double_counter_value))
                continue
            assert state["track"].unit == SIZE_BYTES
            state["track"].counts.append((state["now"], event.counter_value))
            continue
        new = Slice(state["names"][event.name_iid], state["now"], len(state["open"]), flows=list(event.flow_ids_old))
        new.category = " ".join(state["categories"][iid] for iid in event.category_iids)
        for note in event.debug_annotations:
            label = state["labels"][note.name_iid]
            new.notes[label] = state["texts"][note.string_value_iid] if note.string_value_iid else note.uint_value
        if event.type == BEGIN:
            state["track"].slices.append(new)
            state["open"].append(new)
        else:
            assert event.type == INSTANT
            state["track"].instants.append(new)
    assert all(not state["open"] for state in states.values())
    return {track.name: track for track in tracks.values()}


def exported(store):
    pieces = []
    _core.write_perfetto(store, pieces.append)
    return read_tracks(b"".join(pieces))


def described(store):
    """Each track's name, and that of the one that it is part of."""
    pieces = []
    _core.write_perfetto(store, pieces.append)
    found = [p.track_descriptor for p in packets(b"".join(pieces)) if p.HasField("track_descriptor")]
    names = {d.uuid: d.name or d.thread.thread_name or d.process.process_name for d in found}
    return [(names[d.uuid], names.get(d.parent_uuid)) for d in found]


def test_tracks_are_named_and_nested():
    assert described(training_store()) == [
        ("train.py", None),
        ("MainThread", "train.py"),
        ("GPU 0: NVIDIA H100", None),
        ("stream 7", "GPU 0: NVIDIA H100"),
        ("stream 7 (lane 2)", "GPU 0: NVIDIA H100"),
    ]


@pytest.mark.parametrize("listed", [(1, 2), (1, 0)])
def test_streams_are_of_their_device_in_whatever_order_devices_are_listed(listed):
    def change(tables):
        tables["device"] = {"ordinal": listed, "name": [f"number {ordinal}" for ordinal in listed]}
        tables["track"] = {"device": listed, "context": [1, 1], "stream": [10 + ordinal for ordinal in listed]}
        tables["kernel"]["track"] = [0, 1]
        del tables["memcpy"]

    tracks = described(training_store(change))
    for ordinal in listed:
        assert (f"stream {10 + ordinal}", f"GPU {ordinal}: number {ordinal}") in tracks


def functions_that_overlap(tables):
    """Nothing else."""
    for table in ("region", "api", "kernel", "memcpy", "mark"):
        del tables[table]
    add_overlapping_functions(tables)


def test_functions_that_overlap_without_nesting_stand_in_lanes():
    tracks = exported(training_store(functions_that_overlap))
    assert [(name, s.name, s.start - START, s.end - START) for name, track in tracks.items() for s in track.slices] == [
        ("MainThread", "f", 1000, 11_000),
        ("MainThread (lane 2)", "g", 6000, 16_000),
        ("MainThread (lane 3)", "h", 7000, 27_000),
    ]


def test_times_of_a_sequence_never_go_back():
    pieces = []
    _core.write_perfetto(training_store(functions_that_overlap), pieces.append)
    steps = [p.timestamp for p in packets(b"".join(pieces)) if p.HasField("track_event")]
    assert len(steps) == 6
    assert max(steps) < 1 << 63  # unsigned: those back would lie above


def test_samples_have_a_track_a_thread_of_the_functions_that_they_share():
    def sampled(tables):
        tables["stack"] = {
            "parent": [NONE, 0, 0],
            "function": ["main", "load", "load"],
            "file": ["run.py", "data.py", "data.py"],
            "line": [3, 7, 8],
        }
        tables["python_sample"] = {
            "start_ns": [START, START + 2000, START + 3000],
            "duration_ns": [2000, 1000, 500],
            "cpu_ns": [1500, 1000, 500],
            "stack": [1, 2, 2],
            "count": [2, 1, 1],
        }

    track = exported(training_store(sampled))["MainThread (Python samples)"]
    assert [(s.name, s.start - START, s.end - START, s.depth) for s in track.slices] == [
        ("main", 0, 3500, 0),
        ("load", 0, 2000, 1),
        ("load", 2000, 3500, 1),
    ]
    assert track.slices[2].notes == {"file": "data.py", "line": 8, "samples": 2, "on CPU ns": 1500}
    assert {s.category for s in track.slices} == {"python_sample"}


def test_thread_has_regions_and_calls_nested():
    thread = exported(training_store())["MainThread"]
    assert [(s.name, s.start - START, s.end - START, s.depth) for s in thread.slices] == [
        ("step", 0, 90_000, 0),
        ("forward", 1000, 81_000, 1),
        ("cuMemcpyHtoDAsync", 1100, 1900, 2),
        ("cuLaunchKernel", 2000, 2500, 2),
        ("cuLaunchKernel", 4001, 4500, 2),
    ]
    assert [(s.name, s.start - START) for s in thread.instants] == [("epoch", 7000)]


def test_overlapping_kernels_stand_in_lanes():
    tracks = exported(training_store())
    assert [(s.name, s.start - START, s.end - START, s.depth) for s in tracks["stream 7"].slices] == [
        ("Memcpy HtoD (Pinned -> Device)", 1500, 2500, 0),
        ("gemm(float const*, float const*, float*, int)", 3001, 5003, 0),
    ]
    assert [(s.name, s.start - START, s.end - START) for s in tracks["stream 7 (lane 2)"].slices] == [
        ("triton_add", 4500, 9500)
    ]


def test_kernel_tells_its_launch_and_region():
    kernel = exported(training_store())["stream 7"].slices[1]
    assert kernel.notes == {
        "region": "forward",
        "launch": "grid [4, 2, 1], block [128, 1, 1], 32 registers, 1536 B shared memory",
    }


def test_flows_join_calls_with_their_work():
    tracks = exported(training_store())
    calls = [s.flows for s in tracks["MainThread"].slices if s.name.startswith("cu")]
    work = [s.flows for s in tracks["stream 7"].slices + tracks["stream 7 (lane 2)"].slices]
    assert calls == work == [[11], [12], [13]]


def test_region_without_gpu_work_has_no_flow():
    tracks = exported(training_store(lambda tables: tables.pop("kernel")))
    assert [s.flows for s in tracks["MainThread"].slices if s.name == "cuLaunchKernel"] == [[], []]


def test_names_of_any_content_survive():
    name = 'a"b\n \u4f60 \U0001f600'
    tracks = exported(training_store(lambda tables: tables["path"].update(name=["step", name])))
    assert tracks["MainThread"].slices[1].name == name


def test_many_slices_keep_count_order_and_times(tmp_path):
    rows = 60_000

    def grow(tables):
        tables["kernel"] = {
            "start_ns": [START + 1000 * row for row in range(rows)],
            "duration_ns": [row % 1000 for row in range(rows)],
            "variant": [row % 2 for row in range(rows)],
            "track": [0] * rows,
        }
        tables.pop("memcpy")

    path = tmp_path / "a.pftrace"
    export_perfetto(training_store(grow), path)
    slices = read_tracks(path.read_bytes())["stream 7"].slices
    assert [(s.start, s.end) for s in slices] == [
        (START + 1000 * row, START + 1000 * row + row % 1000) for row in range(rows)
    ]


def test_file_is_compressed_packets(tmp_path):
    path = tmp_path / "a.perfetto-trace"
    export_perfetto(training_store(), path)
    trace = trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    assert all(packet.HasField("compressed_packets") for packet in trace.packet)
    assert read_tracks(path.read_bytes()).keys() == exported(training_store()).keys()


def test_regions_have_the_category_of_their_kind():
    thread = exported(steps_store())["MainThread"]
    assert {s.name: s.category for s in thread.slices if not s.name.startswith(("ProfilerStep", "cu"))} == {
        "nn.Module: Linear_0": "python_function",
        "aten::linear": "cpu_op",
        "aten::addmm": "cpu_op",
        "Optimizer.step#AdamW.step": "user_annotation",
        "ncclAllReduce": "user_annotation",
    }


def test_operators_tell_shapes_sequence_and_stack():
    addmm = next(s for s in exported(steps_store())["MainThread"].slices if s.name == "aten::addmm")
    assert addmm.notes == {
        "input shapes": "[[16], [64, 32], [32, 16], [], []]",
        "sequence number": 0,
        "call stack": "net.py(33): forward;train.py(9): <module>",
    }


def test_flows_join_backward_with_forward_and_with_nothing_else():
    tracks = exported(steps_store())
    forward = [s.flows for s in tracks["MainThread"].slices if s.name == "aten::addmm"]
    backward = [s.flows for s in tracks["autograd"].slices if s.name == "AddmmBackward0"]
    assert forward == backward
    assert len({flow for flows in forward for flow in flows}) == 3
    assert not {flow for flows in forward for flow in flows} & {f for s in tracks["stream 7"].slices for f in s.flows}


def test_payload_stands_at_the_range_and_at_its_kernels():
    tracks = exported(steps_store())
    found = [s for track in tracks.values() for s in track.slices if s.name.startswith("nccl")]
    assert len(found) == 6
    assert all(s.notes["Message size [bytes]"] == 4096 for s in found)


def test_allocations_are_counters_of_their_device():
    tracks = exported(steps_store(lambda tables: tables["allocation"].update(allocated_bytes=[1, 2, 3])))
    at = [START + step * 400_000 + 13_000 for step in range(3)]
    assert tracks["memory allocated"].counts == list(zip(at, [1, 2, 3], strict=True))
    assert tracks["memory reserved"].counts == [(time, 1 << 21) for time in at]


def test_allocations_on_the_host_have_counters_of_their_own():
    tracks = exported(steps_store(lambda tables: tables["allocation"].update(ordinal=[0xFFFFFFFF, 0, 0])))
    assert len(tracks["host memory allocated"].counts) == 1
    assert len(tracks["memory allocated"].counts) == 2


FAILED = {"start_ns": [START + 5000], "bytes": [1 << 40], "region": [0xFFFFFFFF], "ordinal": [0]}


def test_an_allocation_that_failed_is_an_instant_of_its_thread():
    tracks = exported(training_store(lambda tables: tables.update(failed_allocation=FAILED)))
    (failed,) = [s for s in tracks["MainThread"].instants if s.name == "[OutOfMemory]"]
    assert failed.start == START + 5000


def test_memory_of_the_driver_is_counters_of_its_device_and_process():
    def add(tables):
        tables["device_memory"] = {
            "start_ns": [START + 5000, START + 6000, START + 7000],
            "bytes": [1 << 20, -4096, 512],
            "address": [1, 2, 3],
            "region": [0xFFFFFFFF] * 3,
            "library": [0xFFFFFFFF] * 3,
            "track": [0, 0, 0],
            "kind": [3, 3, 2],
        }

    tracks = exported(training_store(add))
    live = tracks["GPU 0 memory, driver"]
    assert live.counts == [(START, 4096), (START + 5000, (1 << 20) + 4096), (START + 6000, 1 << 20)]
    assert tracks["pinned memory, driver"].counts == [(START, 0), (START + 7000, 512)]


def test_hardware_counters_are_counters_of_their_device():
    tracks = exported(training_store(sampled))
    busy, read = tracks["sm__busy.pct"], tracks["dram__bytes.sum"]
    assert busy.parent == read.parent == tracks["stream 7"].parent
    assert (busy.unit_name, read.unit_name) == ("percent", "byte/s")
    assert busy.counts == [(START, 50), (START + 100, 75), (START + 200, 0), (START + 1000, 25), (START + 1100, 0)]
    assert read.counts[:2] == [(START, pytest.approx(1e11)), (START + 100, pytest.approx(2e11))]


def sampled(tables):
    """Two samples that follow each other and one later, in which the hit rate has no value."""
    tables["counter"] = {
        "name": ["sm__busy.pct", "dram__bytes.sum", "lts__hits.pct"],
        "unit": ["percent", "byte", "percent"],
        "description": [""] * 3,
    }
    tables["counter_sample"] = {"start_ns": [START, START + 100, START + 1000], "duration_ns": [100] * 3}
    values = [50, 10_000, 90, 75, 20_000, float("nan"), 25, 0, float("nan")]
    tables["counter_value"] = {"sample": [0, 0, 0, 1, 1, 1, 2, 2, 2], "counter": [0, 1, 2] * 3, "value": values}


def test_ranges_that_nest_in_nothing_stand_on_a_track_of_their_own():
    (prefetch,) = exported(steps_store())["MainThread (ranges)"].slices
    assert (prefetch.name, prefetch.start - START, prefetch.end - START) == ("prefetch", 20_000, 700_000)


def test_empty_recording_has_a_process():
    assert list(exported(make_store({}))) == ["python"]


def test_aggregate_recording_is_refused_in_words(tmp_path):
    with pytest.raises(InvalidArgument, match="has totals, no events"):
        export_perfetto(aggregate_store(), tmp_path / "a.pftrace")
    assert list(tmp_path.iterdir()) == []
