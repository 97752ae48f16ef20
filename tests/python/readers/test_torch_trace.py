# SPDX-License-Identifier: Apache-2.0
"""Traces of torch.profiler, and our own in its format, read as recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from fakes.operators import training_step
from fakes.recordings import make_trace, training
from fakes.steps import START, steps_store
from fakes.versions import version
from gpuscope._core import NONE, CallKind, Flag, RegionKind, Work
from gpuscope.errors import CorruptTrace, GpuscopeError
from gpuscope.recording import Recording

MS = 1e6
KERNELS = {"void gemm<float>(int)": 2 * MS, "relu": 1 * MS, "norm*4": 0.1 * MS}


def through_json(recording: Recording, folder: Path, name: str = "trace.json") -> Recording:
    recording.export_chrome_trace(folder / name)
    return gs.load(folder / name)


def rows(recording: Recording, table: str, *columns: str) -> list[tuple[Any, ...]]:
    read = getattr(recording.trace, table)
    return sorted(zip(*(read[column].tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_was_written_is_read_to_the_nanosecond(tmp_path: Path, name: str) -> None:
    before = version(KERNELS, steps=5)
    after = through_json(before, tmp_path, name)
    for table in ("kernels", "api", "regions"):
        assert rows(after, table, "start_ns", "duration_ns") == rows(before, table, "start_ns", "duration_ns")
    names = before.trace.kernel_names(short=True)
    for recording in (before, after):
        kernels = recording.trace.kernels
        assert sorted(recording.trace.kernel_names(short=True)[row] for row in kernels.variant) == sorted(
            names[row] for row in before.trace.kernels.variant
        )
    assert set(after.trace.store.path_texts()) == set(before.trace.store.path_texts())


def test_tables_and_diagnosis_are_those_of_the_recording(tmp_path: Path) -> None:
    launches = str(12 * 6)
    before = version(KERNELS, steps=12, waits_ns=3 * MS, info={"audit.launches": launches, "audit.kernels": launches})
    after = through_json(before, tmp_path)
    assert after.table() == before.table()
    assert [finding.id for finding in after.diagnose().findings] == [
        finding.id for finding in before.diagnose().findings
    ]
    assert not gs.diff(before, after, findings=False).changes


def test_operators_have_their_shapes_and_sequence_numbers(tmp_path: Path) -> None:
    before = Recording(training_step().store)
    after = through_json(before, tmp_path)
    kept = [
        {row.key: (row.count, row.cpu_time_total) for row in each.key_averages() if row.kind == "op"}
        for each in (before, after)
    ]
    assert kept[0]
    assert kept[0] == kept[1]
    shapes = {after.trace.string(int(row)) for row in after.trace.details.shapes if row != 0xFFFFFFFF}
    assert shapes == {before.trace.string(int(row)) for row in before.trace.details.shapes if row != 0xFFFFFFFF}


def test_copies_and_graphs_are_in_their_regions(tmp_path: Path) -> None:
    store = training().store
    after = through_json(Recording(store), tmp_path)
    before = Recording(store)
    assert rows(after, "memcpy", "start_ns", "duration_ns", "bytes") == rows(
        before, "memcpy", "start_ns", "duration_ns", "bytes"
    )
    assert len(after.trace.kernels) == len(before.trace.kernels)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_memory_and_marks_are_those_of_the_recording(tmp_path: Path, name: str) -> None:
    failed = {"start_ns": [START + 5000], "bytes": [1 << 40], "allocated_bytes": [4096], "reserved_bytes": [8192]}

    def change(tables: dict[str, Any]) -> None:
        tables["allocation"].update(ordinal=[0, NONE, 1], bytes=[4096, -64, 1])
        tables["failed_allocation"] = failed | {"region": [1], "ordinal": [1]}
        tables["mark"] = {"start_ns": [START + 6000], "name": ["here"], "region": [1]}

    before = Recording(steps_store(change))
    after = through_json(before, tmp_path, name)
    figures = ["start_ns", "bytes", "allocated_bytes", "reserved_bytes", "ordinal", "region", "thread"]
    for table, columns in (
        ("memory", [*figures, "address"]),
        ("failed_allocations", figures),
        ("marks", ["start_ns", "name", "region", "thread"]),
    ):
        frames = [getattr(each.trace, table).to_pandas()[columns].astype(object) for each in (before, after)]
        assert len(frames[0])
        assert frames[1].equals(frames[0])
    memory = [
        {row.key: (row.self_cpu_memory_usage, row.self_device_memory_usage) for row in each.key_averages()}[
            "aten::addmm"
        ]
        for each in (before, after)
    ]
    assert memory == [(-64, 4097), (-64, 4097)]


def test_memory_of_operators_is_what_torch_says_of_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model, x = torch.nn.Linear(64, 8), torch.randn(16, 64)
    model(x).sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as theirs:
        kept = torch.ones(1000)
        model(x).sum().backward()
        del kept
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    read = gs.load(tmp_path / "theirs.json")
    given = {row.key: (row.cpu_memory_usage, row.self_cpu_memory_usage) for row in theirs.key_averages()}
    assert given["aten::ones"] == (4000, 0)
    assert {row.key: (row.cpu_memory_usage, row.self_cpu_memory_usage) for row in read.key_averages()} == given
    assert "Self CPU Mem" in read.table()
    read.export_memory_timeline(tmp_path / "memory.json")


def test_a_trace_without_memory_says_that_it_has_none(tmp_path: Path) -> None:
    recording = load_events([event("cpu_op", "aten::add", 10)], tmp_path)
    assert any("allocations, without profile_memory" in each for each in recording.audit().remarks)
    assert "Mem" not in recording.table()


def test_instants_of_other_kinds_are_left_out(tmp_path: Path) -> None:
    instant = {"ph": "i", "s": "t", "ts": 2.0, "pid": 1, "tid": 1}
    memory = {"cat": "cpu_instant_event", "name": "[memory]"}
    document = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1.5, "dur": 2, "pid": 1, "tid": 1},
        instant | {"name": "Record Window End"},
        instant | memory,
        instant | memory | {"args": {"Bytes": "many", "Device Type": 0}},
        instant | memory | {"ts": -1, "args": {"Bytes": 8, "Device Type": 0}},
        instant | memory | {"args": {"Bytes": 16, "Device Type": 0, "Device Id": -1}},
    ]
    (tmp_path / "list.json").write_text(json.dumps(document))
    trace = gs.load(tmp_path / "list.json").trace
    assert trace.memory.to_pandas()[["bytes", "path", "ordinal"]].values.tolist() == [[16, "aten::add", NONE]]
    assert len(trace.marks) == 0


def test_a_trace_of_torch_profiler_has_its_figures(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    x = torch.randn(16, 64)
    activities = [torch.profiler.ProfilerActivity.CPU]
    model(x).sum().backward()
    with torch.profiler.profile(activities=activities, record_shapes=True) as theirs:
        for _ in range(6):
            with torch.profiler.record_function("forward"):
                loss = model(x).sum()
            loss.backward()
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    read = gs.load(tmp_path / "theirs.json")
    ours = {row.key: row for row in read.key_averages()}
    for row in theirs.key_averages():
        if row.key in ("aten::addmm", "aten::linear", "forward", "aten::relu", "AddmmBackward0"):
            assert ours[row.key].count == row.count
            assert ours[row.key].cpu_time_total == pytest.approx(row.cpu_time_total, rel=0.02, abs=2)
            assert ours[row.key].self_cpu_time_total == pytest.approx(row.self_cpu_time_total, rel=0.05, abs=6)
    assert any("[[8], [16, 64], [64, 8]" in read.trace.string(int(each)) for each in read.trace.details.shapes[:400])
    assert any("does not report lost events" in each for each in read.audit().remarks)


def test_functions_of_python_have_their_callers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as theirs:
        model(x)
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    trace = gs.load(tmp_path / "theirs.json").trace
    functions = trace.python_functions
    names = [trace.string(int(name)) for name in functions.name]
    forward = next(row for row, name in enumerate(names) if name.endswith(": forward"))
    assert "_call_impl" in names[functions.parent[forward]]


def test_what_is_read_can_be_saved_and_exported(tmp_path: Path) -> None:
    read = through_json(version(KERNELS, steps=5), tmp_path)
    read.save(tmp_path / "read.gscope")
    assert gs.load(tmp_path / "read.gscope").table() == read.table()
    read.export_perfetto(tmp_path / "read.pftrace")


def test_launches_without_a_kernel_are_missing(tmp_path: Path) -> None:
    version(KERNELS, steps=5).export_chrome_trace(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    kernels = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
    document["traceEvents"].remove(kernels[3])
    del document["gpuscope"]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    audit = gs.load(tmp_path / "trace.json").audit()
    assert (audit.complete, audit.missing) == (False, 1)


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1.5, "dur": 2, "pid": 1, "tid": 1}
    (tmp_path / "list.json").write_text(json.dumps([event, 3, None]))
    assert len(gs.load(tmp_path / "list.json").trace.regions) == 1


def test_times_since_1970_keep_operators_within_those_around_them(tmp_path: Path) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    document = []
    for number in range(300):
        at = 1_700_000_000_000_000 + 41 * number  # us, as older versions of torch write them: a double has no ns then
        document.append(operator | {"name": "outer", "ts": at, "dur": 37})
        document.append(operator | {"name": "inner", "ts": at + 3, "dur": 34})
    (tmp_path / "list.json").write_text(json.dumps(document))
    recording = gs.load(tmp_path / "list.json")
    assert {row.key: (row.count, row.cpu_time_total, row.self_cpu_time_total) for row in recording.key_averages()} == {
        "outer": (300, 300 * 37, 300 * 3),
        "inner": (300, 300 * 34, 300 * 34),
    }
    assert set(recording.trace.regions.to_pandas().path) == {"outer", "outer/inner"}


def wait(**place: int) -> dict[str, Any]:
    arguments = {"device": 0, "context": 1, "correlation": 5, **place}
    return {"ph": "X", "cat": "cuda_sync", "name": "Context Sync", "ts": 1, "dur": 2, "pid": 0, "tid": 0} | {
        "args": arguments
    }


@pytest.mark.parametrize(("place", "stream"), [({"stream": -1}, NONE), ({"stream": 7}, 7), ({}, 0)])
def test_a_wait_is_on_the_stream_that_is_told(tmp_path: Path, place: dict[str, int], stream: int) -> None:
    (tmp_path / "list.json").write_text(json.dumps([wait(**place)]))
    trace = gs.load(tmp_path / "list.json").trace
    assert trace.tracks.stream[trace.sync.track].tolist() == [stream]


def test_a_wait_for_all_streams_is_exported_as_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([wait(stream=-1)]))
    gs.load(tmp_path / "list.json").export_chrome_trace(tmp_path / "again.json")
    written = json.loads((tmp_path / "again.json").read_text())["traceEvents"]
    assert [event["args"]["stream"] for event in written if event.get("cat") == "cuda_sync"] == [-1]


def event(category: str, name: str, ts: float, tid: int = 1, **arguments: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": 1, "pid": 1, "tid": tid, "args": arguments}


def load_events(events: list[dict[str, Any]], folder: Path) -> Recording:
    (folder / "list.json").write_text(json.dumps(events))
    return gs.load(folder / "list.json")


def test_a_listed_gpu_without_a_number_is_none(tmp_path: Path) -> None:
    listed = [{"name": "A"}, {"id": "0", "name": "B"}, {"id": 2, "name": "C"}, {"id": -1, "name": "D"}]
    document = {"deviceProperties": listed, "traceEvents": [event("kernel", "gemm", 10, device=2)]}
    (tmp_path / "trace.json").write_text(json.dumps(document))
    assert gs.load(tmp_path / "trace.json").trace.devices.ordinal.tolist() == [2]


CAPTURE = [
    event("cuda_runtime", "cudaStreamBeginCapture", 10, correlation=1),
    event("cuda_runtime", "cudaLaunchKernel", 20, correlation=2),
    event("cuda_runtime", "cudaLaunchKernel", 30, tid=2, correlation=3),  # of autograd's thread
    event("cuda_runtime", "cudaStreamEndCapture", 40, correlation=4),
    event("cuda_runtime", "cudaGraphLaunch", 50, correlation=5),
    event("kernel", "gemm", 60, correlation=5),
]


def test_launches_into_a_graph_are_not_missing(tmp_path: Path) -> None:
    recording = load_events(CAPTURE, tmp_path)
    audit = recording.audit()
    assert (audit.complete, audit.missing, audit.launches) == (True, 0, 0)
    calls = recording.trace.calls
    captured = (calls.flags[recording.trace.api.call] & Flag.CAPTURED) != 0
    assert sorted(recording.trace.api.correlation[captured].tolist()) == [2, 3]


@pytest.mark.parametrize("at", [5, 45])
def test_launches_before_and_behind_a_capture_are_missing(tmp_path: Path, at: float) -> None:
    audit = load_events([*CAPTURE, event("cuda_runtime", "cudaLaunchKernel", at, correlation=9)], tmp_path).audit()
    assert (audit.missing, audit.launches) == (1, 1)


def test_a_launch_with_a_kernel_while_a_graph_is_captured_ran(tmp_path: Path) -> None:
    audit = load_events([*CAPTURE, event("kernel", "relu", 25, correlation=3)], tmp_path).audit()
    assert (audit.missing, audit.launches) == (0, 1)


def test_launches_of_a_trace_without_kernels_are_missing(tmp_path: Path) -> None:
    launch = event("cuda_runtime", "cudaLaunchKernel", 20, correlation=2)
    assert load_events([launch, event("gpu_memset", "Memset", 30, correlation=3)], tmp_path).audit().missing == 1


def test_launches_without_a_correlation_are_not_missing(tmp_path: Path) -> None:
    launch = event("cuda_runtime", "cudaLaunchKernel", 20)
    assert load_events([launch, event("kernel", "gemm", 30, correlation=3)], tmp_path).audit().missing == 0


def test_nodes_of_graphs_are_in_their_table(tmp_path: Path) -> None:
    node = {"correlation": 5, "graph id": 3}
    events = [
        event("kernel", "gemm", 10, correlation=1),
        event("kernel", "relu", 20, **node | {"graph node id": 41}),
        event("gpu_memset", "Memset", 30, **node | {"graph node id": 42}),
    ]
    trace = load_events(events, tmp_path).trace
    assert rows(Recording(trace.store), "graph_nodes", "kind", "event", "graph", "node") == [
        (Work.KERNEL, 1, 3, 41),
        (Work.MEMSET, 0, 3, 42),
    ]
    assert ((trace.kernels.flags & Flag.IN_GRAPH) != 0).tolist() == [False, True]


@pytest.mark.parametrize(
    ("group", "rank"),
    [
        ({"backend": "nccl", "rank": 3, "world_size": 8}, ("3", "8")),
        ({"backend": "nccl"}, (None, None)),
        ({"rank": 8, "world_size": 8}, (None, None)),
        ({"rank": "0", "world_size": 8}, (None, None)),
    ],
)
def test_the_rank_is_the_one_that_torch_tells(
    tmp_path: Path, group: dict[str, Any], rank: tuple[str | None, str | None]
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event], "distributedInfo": group}))
    info = gs.load(tmp_path / "trace.json").trace.info
    assert (info.get("process.rank"), info.get("process.world_size")) == rank


def test_launches_of_whole_graphs_are_those_of_the_recording(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "path": {"name": ["step"]},
        "thread": {"system_id": [100]},
        "region": {"start_ns": [1000], "duration_ns": [10_000], "path": [0], "parent": [NONE]},
        "track": {"device": [0], "context": [1], "stream": [7]},
        "call": {"name": ["cuGraphLaunch"], "kind": [CallKind.GRAPH_LAUNCH]},
        "api": {"start_ns": [2000], "duration_ns": [100], "correlation": [5], "region": [0], "call": [0]},
        "graph_launch": {"start_ns": [4000], "duration_ns": [700], "correlation": [5], "graph": [3], "region": [0]},
    }
    before = Recording(make_trace(tables, info={"session.tier": "cupti"}).store)
    after = through_json(before, tmp_path)
    columns = ("start_ns", "duration_ns", "correlation", "graph", "region", "track", "flags")
    assert rows(after, "graph_launches", *columns) == rows(before, "graph_launches", *columns)
    (step,) = (row for row in after.key_averages() if row.key == "step")
    assert step.device_time_total == 0.7


def test_ranges_that_overlap_are_those_of_the_recording(tmp_path: Path) -> None:
    kinds = [RegionKind.REGION] * 3
    tables: dict[str, Any] = {
        "path": {"name": ["step", "load", "send"], "parent": [NONE] * 3, "kind": kinds},
        "thread": {"system_id": [100, 200], "name": ["main", "beside"]},
        "region": {
            "start_ns": [1000, 5000, 6000, 7000],
            "duration_ns": [10_000, 20_000, 30_000, 10],
            "path": [0, 1, 2, 1],
            "parent": [NONE] * 4,
            "thread": [0, 0, 0, 1],
            "flags": [0, Flag.ASYNC, Flag.ASYNC, Flag.ASYNC],
        },
    }
    before = Recording(make_trace(tables).store)
    after = through_json(before, tmp_path)
    frames = [
        each.trace.regions.to_pandas().sort_values("start_ns")[["start_ns", "duration_ns", "path", "parent", "flags"]]
        for each in (before, after)
    ]
    assert frames[1].astype(object).values.tolist() == frames[0].astype(object).values.tolist()
    assert after.trace.threads.system_id[after.trace.regions.thread].tolist()[:3] == [100] * 3


def test_calls_that_were_suspended_are_no_regions_of_their_own(tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "gscope" / "program.gscope"
    before = gs.load(golden)
    assert len(before.trace.resumptions)
    after = through_json(before, tmp_path)
    assert rows(after, "regions", "start_ns", "duration_ns") == rows(before, "regions", "start_ns", "duration_ns")


def test_an_operator_is_not_its_own_forward_one(tmp_path: Path) -> None:
    arrows = [arrow("s", 1, 51), arrow("f", 1, 51)]
    assert set(load_events([*BACKWARD, *arrows], tmp_path).trace.details.forward.tolist()) == {NONE}


def test_what_our_own_traces_do_not_keep_is_told_once(tmp_path: Path) -> None:
    before = version(KERNELS, steps=5, info={"session.notes": "slow machine"})
    again = through_json(through_json(before, tmp_path), tmp_path)
    remarks = again.audit().remarks
    assert [each for each in remarks if "call stacks, modules, samples" in each] == [remarks[-1]]
    assert "slow machine" in remarks
    assert not any("torch.profiler" in each for each in remarks)


def test_steps_and_overhead_are_those_of_the_recording(tmp_path: Path) -> None:
    def with_steps(recording: Recording) -> Recording:
        starts = np.sort(recording.trace.kernels.start_ns)
        edges = [int(starts[0]), *np.diff(starts[:: len(starts) // 4]).tolist()]
        recording.trace.store.set_info("session.step_edges_ns", " ".join(map(str, edges)))
        recording.trace.store.set_info("session.start_ns", str(edges[0] - 10_000_000))
        recording.trace.store.set_info("session.stop_ns", str(int(starts[-1]) + 10_000_000))
        return recording

    before = with_steps(version(KERNELS, steps=8, info={"audit.overhead_ns": "1000000"}))
    after = through_json(before, tmp_path)
    assert after.audit().overhead_percent == before.audit().overhead_percent
    assert str(after.step_breakdown()).splitlines()[0] == str(before.step_breakdown()).splitlines()[0]


def operator(name: str, ts: float, dur: float, sequence: int) -> dict[str, Any]:
    return event("cpu_op", name, ts, **{"Sequence number": sequence}) | {"dur": dur}


def arrow(phase: str, number: int, ts: float) -> dict[str, Any]:
    return {"ph": phase, "id": number, "cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 1, "ts": ts}


BACKWARD = [
    operator("aten::linear", 10, 10, 6),
    operator("aten::addmm", 10, 5, 7),  # begins with the one around it
    operator("aten::relu", 30, 5, 8),
    operator("autograd::engine::evaluate_function: ReluBackward0", 50, 9, 8),
    operator("ReluBackward0", 51, 5, 8),
    operator("autograd::engine::evaluate_function: AddmmBackward0", 60, 9, 7),
    operator("AddmmBackward0", 61, 5, 7),
]
ARROWS = [arrow("s", 1, 30), arrow("f", 1, 51), arrow("s", 2, 10), arrow("f", 2, 61)]


def test_backward_operators_have_their_forward_ones(tmp_path: Path) -> None:
    recording = load_events([*BACKWARD, *ARROWS], tmp_path)
    names, details = recording.trace.regions.to_pandas().name, recording.trace.details
    joined = [
        (names[region], names[forward])
        for region, forward in zip(details.region.tolist(), details.forward.tolist(), strict=True)
        if forward != NONE
    ]
    assert sorted(joined) == [("AddmmBackward0", "aten::addmm"), ("ReluBackward0", "aten::relu")]
    assert not any("could not be joined" in each for each in recording.audit().remarks)


@pytest.mark.parametrize("phase", ["s", "f"])
def test_arrows_of_one_end_alone_join_nothing(tmp_path: Path, phase: str) -> None:
    arrows = [each for each in ARROWS if each["ph"] == phase]
    assert set(load_events([*BACKWARD, *arrows], tmp_path).trace.details.forward.tolist()) == {NONE}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no JSON, or cut off"),
        (b'{"traceEvents": [{"ph"', "is no JSON, or cut off"),
        (b"[" * 100_000, "is no JSON, or cut off"),
        (b"\xff\xfe\x00", "is no JSON, or cut off"),
        (b'{"events": []}', "has no list of traceEvents"),
        (b'{"traceEvents": []}', "is no trace of torch.profiler"),
        (b'{"traceEvents": [{"ph": "X", "name": "x", "cat": "other", "ts": 1}]}', "is no trace of torch.profiler"),
        (b"3", "has no list of traceEvents"),
        (gzip.compress(b"x" * 100, mtime=0)[:20], "is no JSON, or cut off"),
        (gzip.compress(b'{"traceEvents": [', mtime=0)[:20], "cannot be decompressed: it was cut off"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-8] + bytes(8), "cannot be decompressed"),
    ],
)
def test_what_is_no_trace_gets_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(CorruptTrace, match=sentence):
        gs.load(path)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NUMBERS = st.integers(-5, 50) | st.floats() | ANY
EVENT = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "M", "i"]),
        "name": st.text(max_size=6) | st.sampled_from(["[memory]", "[OutOfMemory]"]) | ANY,
    },
    optional={
        "cat": st.just("python_function")
        | st.sampled_from(
            ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_sync", "mark")
        )
        | st.just("cpu_instant_event"),
        "ts": NUMBERS,
        "dur": NUMBERS,
        "pid": st.integers(0, 2) | ANY,
        "tid": st.integers(-1, 2) | ANY,
        "args": st.dictionaries(
            st.sampled_from(("Python id", "Python parent id", "Sequence number", "Input type")), NUMBERS
        )
        | st.dictionaries(
            st.sampled_from(
                ("correlation", "External id", "stream", "device", "grid", "block", "bytes", "Input Dims", "name")
            ),
            NUMBERS,
        )
        | st.dictionaries(
            st.sampled_from(("Bytes", "Addr", "Device Type", "Device Id", "Total Allocated", "Total Reserved")), NUMBERS
        )
        | ANY,
    },
)


@settings(max_examples=300, deadline=None)
@given(
    document=st.fixed_dictionaries({"traceEvents": st.lists(EVENT, max_size=12)}, optional={"deviceProperties": ANY})
)
def test_events_that_make_no_sense_are_left_out(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    path.write_text(json.dumps(document))
    try:
        read = gs.load(path)
    except GpuscopeError:
        return
    read.table()
    str(read.tree())
    assert np.all(read.trace.regions.duration_ns >= 0)


def test_the_commands_take_traces(tmp_path: Path) -> None:
    import subprocess
    import sys

    version(KERNELS, steps=8).export_chrome_trace(tmp_path / "trace.json.gz")
    for command in (["report"], ["diagnose"], ["diff", "trace.json.gz"]):
        arguments = [sys.executable, "-m", "gpuscope", *command, "trace.json.gz"]
        ran = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert "ProfilerStep" in ran.stdout
