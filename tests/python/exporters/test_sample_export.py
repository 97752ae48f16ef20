# SPDX-License-Identifier: Apache-2.0
"""Samples of Python in every format, and what a format has no place for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes.gscope import NONE, Tables, make_store
from fakes.interchange import check_speedscope, pprof_message
from fakes.stores import INFO, START
from gpuscope import _core
from gpuscope.cli import main
from gpuscope.cli.export import left_out
from gpuscope.errors import GpuscopeWarning
from gpuscope.recording import Recording

MS = 1_000_000
# main:1 -> load:10 ; main:2 -> train:20, which is there at two instructions, -> step:30
STACKS: dict[str, list[Any]] = {
    "parent": [NONE, 0, NONE, 2, 2, 3],
    "function": ["main", "load", "main", "train", "train", "step"],
    "file": ["/p/run.py", "/p/data.py", "/p/run.py", "/p/train.py", "/p/train.py", "/p/train.py"],
    "line": [1, 10, 2, 20, 20, 30],
    "instruction": [NONE, 4, NONE, NONE, 8, 6],
}
LOAD, TRAIN, STEP = 1, 4, 5
ROWS = [  # start, duration, on a CPU, stack, samples, thread
    (0, 10, 2, LOAD, 10, 0),
    (10, 5, 5, TRAIN, 5, 0),
    (15, 20, 20, STEP, 18, 0),
    (40, 10, 10, STEP, 10, 0),  # after 5 ms without samples
    (0, 50, 8, LOAD, 50, 1),
]


def tables_of(rows: Sequence[tuple[int, ...]], **others: Any) -> Tables:
    start, duration, cpu, stack, count, thread = (list(column) for column in zip(*rows, strict=True))
    return {
        "thread": {"system_id": [4242, 4243], "name": ["MainThread", "loader"]},
        "stack": STACKS,
        "python_sample": {
            "start_ns": [START + at * MS for at in start],
            "duration_ns": [each * MS for each in duration],
            "cpu_ns": [each * MS for each in cpu],
            "stack": stack,
            "count": count,
            "thread": thread,
        },
        **others,
    }


def sampled(info: dict[str, str] | None = None, **others: Any) -> Recording:
    return Recording(make_store(tables_of(ROWS, **others), info={**INFO, **(info or {})}))


def in_region(start: int, duration: int) -> dict[str, Any]:
    """A region of the main thread."""
    return {
        "path": {"name": ["epoch"], "parent": [NONE]},
        "region": {"start_ns": [START + start * MS], "duration_ns": [duration * MS], "path": [0], "thread": [0]},
    }


# -- Chrome --------------------------------------------------------------------------------------------------------


def chrome(recording: Recording) -> dict[str, Any]:
    pieces: list[bytes] = []
    _core.write_chrome(recording.trace.store, pieces.append)
    document: dict[str, Any] = json.loads(b"".join(pieces))
    return document


def slices(document: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """Track, name, and begin and end in ms of what samples found."""
    found = document["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    base = document["baseTimeNanoseconds"]
    return [
        (tracks[event["tid"]], event["name"], begin, begin + round(event["dur"] / 1000))
        for event in found
        if event.get("cat") == "python_sample"
        for begin in [round((event["ts"] * 1000 + base - START) / MS)]
    ]


def test_chrome_has_a_track_a_thread_of_the_functions_that_samples_share() -> None:
    main, loader = "MainThread (Python samples)", "loader (Python samples)"
    assert slices(chrome(sampled())) == [
        (main, "main", 0, 10),
        (main, "load", 0, 10),
        (main, "main", 10, 35),
        (main, "train", 10, 35),
        (main, "step", 15, 35),
        (main, "main", 40, 50),
        (main, "train", 40, 50),
        (main, "step", 40, 50),
        (loader, "main", 0, 50),
        (loader, "load", 0, 50),
    ]


def test_slices_of_samples_say_line_count_and_time_on_a_cpu() -> None:
    (first, _) = [event for event in chrome(sampled())["traceEvents"] if event["name"] == "train"]
    assert first["args"] == {"file": "/p/train.py", "line": 20, "samples": 23, "on CPU us": 25_000.0}


@pytest.mark.parametrize("earlier_ns", [0, 5 * 10**15], ids=["late in a quarter", "early in it"])
def test_slices_of_samples_nest_for_readers_that_add_times_as_floating_point_numbers(earlier_ns: int) -> None:
    rows = [(at, 1, 1, (LOAD, TRAIN, STEP)[at % 3], 1, 0) for at in range(500)]
    tables = tables_of(rows)
    start_ns = [START - earlier_ns + (MS + 7) * at for at in range(len(rows))]
    sample = {**tables["python_sample"], "start_ns": start_ns, "duration_ns": [MS + 7] * len(rows)}
    recording = Recording(make_store({**tables, "python_sample": sample}, info=INFO))
    open_until: list[float] = []
    for event in chrome(recording)["traceEvents"]:
        if event.get("cat") == "python_sample":
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_samples_that_overlap_as_in_no_recording_of_ours_still_nest() -> None:
    rows = [(0, 10, 0, STEP, 1, 0), (4, 2, 0, LOAD, 1, 0), (5, 20, 0, STEP, 1, 0)]
    recording = Recording(make_store(tables_of(rows), info=INFO))
    open_until: list[int] = []
    for _, _, begin, end in slices(chrome(recording)):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)


def test_slices_of_samples_are_not_read_back_as_regions(tmp_path: Path) -> None:
    recording = sampled(**in_region(0, 50))
    recording.export_chrome_trace(tmp_path / "run.json")
    again = gs.load(tmp_path / "run.json")
    assert len(again.trace.regions) == 1
    assert "in the file and not read: 10 of 'python_sample'" in again.audit().remarks


# -- speedscope ----------------------------------------------------------------------------------------------------


def speedscope(recording: Recording, folder: Path) -> dict[str, Any]:
    recording.export_speedscope(folder / "run.speedscope.json")
    document: dict[str, Any] = json.loads((folder / "run.speedscope.json").read_text())
    return document


def test_speedscope_has_every_sample_in_a_profile_a_thread(tmp_path: Path) -> None:
    document = speedscope(sampled(), tmp_path)
    frames = document["shared"]["frames"]
    main, loader = document["profiles"]
    assert [main["name"], loader["name"]] == [
        "thread 4242 MainThread (Python samples)",
        "thread 4243 loader (Python samples)",
    ]
    named = [[(frames[each]["name"], frames[each]["line"]) for each in sample] for sample in main["samples"]]
    assert named == [
        [("main", 1), ("load", 10)],
        [("main", 2), ("train", 20)],
        [("main", 2), ("train", 20), ("step", 30)],
        [],
        [("main", 2), ("train", 20), ("step", 30)],
    ]
    assert main["weights"] == [10 * MS, 5 * MS, 20 * MS, 5 * MS, 10 * MS]
    assert (main["type"], main["unit"], main["startValue"], main["endValue"]) == ("sampled", "nanoseconds", 0, 50 * MS)
    assert {frame["file"] for frame in frames} == {"/p/run.py", "/p/data.py", "/p/train.py"}


def test_speedscope_cuts_samples_too_where_there_are_more_than_it_can_read(tmp_path: Path) -> None:
    from gpuscope.exporters.speedscope import export_speedscope

    rows = [(at, 1, 1, (LOAD, TRAIN, STEP)[at % 3], 1, 0) for at in range(2000)]
    recording = Recording(make_store(tables_of(rows), info=INFO))
    path = tmp_path / "run.speedscope.json"
    export_speedscope(recording.trace, path)
    half = path.stat().st_size // 2
    export_speedscope(recording.trace, path, most_bytes=half)
    assert half // 4 < path.stat().st_size <= half
    document = json.loads(path.read_text())
    assert "% of the events, as more cannot be read" in document["name"]
    (profile,) = document["profiles"]
    assert len(profile["samples"]) == len(profile["weights"])


def test_speedscope_has_functions_of_python_around_regions(tmp_path: Path) -> None:
    function: dict[str, list[Any]] = {
        "start_ns": [START, START + 10 * MS],
        "duration_ns": [50 * MS, 10 * MS],
        "name": ["run.py(1): main", "run.py(7): step"],
        "parent": [NONE, 0],
        "module": [NONE] * 2,
    }
    recording = Recording(
        make_store({"thread": {"system_id": [4242]}, **in_region(5, 40), "python_function": function})
    )
    document = speedscope(recording, tmp_path)
    check_speedscope(document)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    (profile,) = document["profiles"]
    assert [names[event["frame"]] for event in profile["events"] if event["type"] == "O"] == [
        "run.py(1): main",
        "epoch",
        "run.py(7): step",
    ]


# -- call paths: pprof and flame graphs --------------------------------------------------------------------------------


def folded(recording: Recording, folder: Path, *metric: str) -> dict[str, int]:
    recording.export_stacks(folder / "run.folded", *metric)  # type: ignore[arg-type]
    lines = (line.rpartition(" ") for line in (folder / "run.folded").read_text().splitlines())
    return {path: int(time_us) for path, _, time_us in lines}


STEP_PATH = "main (run.py:2);train (train.py:20);step (train.py:30)"


def test_stacks_without_gpu_work_are_the_time_of_samples(tmp_path: Path) -> None:
    """All of the main thread's, as it may wait for something; of others what they were on a CPU."""
    assert folded(sampled(), tmp_path) == {
        "main (run.py:1);load (data.py:10)": 10_000 + 8_000,
        "main (run.py:2);train (train.py:20)": 5_000,
        STEP_PATH: 30_000,
    }


def test_stacks_have_samples_under_the_region_that_they_were_in(tmp_path: Path) -> None:
    call = {"start_ns": [START + 20 * MS], "duration_ns": [10 * MS], "region": [0], "call": [0], "thread": [0]}
    calls: dict[str, Any] = {"api": call, "call": {"name": ["cuLaunchKernel"], "kind": [1]}}
    found = folded(sampled(**in_region(12, 40), **calls), tmp_path)
    assert found == {
        "main (run.py:1);load (data.py:10)": 18_000,
        "main (run.py:2);train (train.py:20)": 2_000,
        "epoch;main (run.py:2);train (train.py:20)": 3_000,
        f"epoch;{STEP_PATH}": 20_000,
        "epoch;cudaLaunchKernel": 10_000,
        "epoch": 7_000,  # for which there are no samples
    }


@pytest.mark.parametrize("metric", ["self_device_time_total", "self_cuda_time_total"])
def test_stacks_of_gpu_time_without_gpu_work_have_cpu_time_and_say_so(tmp_path: Path, metric: str) -> None:
    with pytest.warns(GpuscopeWarning, match=f"no GPU work: .* self_cpu_time_total, instead of {metric}") as said:
        found = folded(sampled(), tmp_path, metric)
    assert found == folded(sampled(), tmp_path)
    assert [warning.filename for warning in said] == [__file__]


def pprof(recording: Recording, folder: Path) -> dict[tuple[str, ...], list[int]]:
    """The values of each stack, whose frames are written as ``function file:line``."""
    recording.export_pprof(folder / "run.pb.gz")
    profile = pprof_message()
    profile.ParseFromString(gzip.decompress((folder / "run.pb.gz").read_bytes()))
    text = profile.string_table
    functions = {each.id: (text[each.name], text[each.filename]) for each in profile.function}
    places = {}
    for location in profile.location:
        name, file = functions[location.line[0].function_id]
        places[location.id] = f"{name} {file}:{location.line[0].line}"
    return {
        tuple(places[each] for each in reversed(sample.location_id)): list(sample.value) for sample in profile.sample
    }


def test_pprof_has_files_and_lines_of_samples(tmp_path: Path) -> None:
    assert pprof(sampled(), tmp_path) == {
        ("main /p/run.py:1", "load /p/data.py:10"): [60, 18 * MS, 0],
        ("main /p/run.py:2", "train /p/train.py:20"): [5, 5 * MS, 0],
        ("main /p/run.py:2", "train /p/train.py:20", "step /p/train.py:30"): [28, 30 * MS, 0],
    }


def test_samples_of_a_region_leave_its_whole_time_as_it_was(tmp_path: Path) -> None:
    recording = sampled(**in_region(12, 40))
    own = sum(node.self_cpu_ns for node in recording.tree() if node.kind != "recording")
    assert sum(values[1] for values in pprof(recording, tmp_path).values()) == own


AGGREGATE = {"session.mode": "aggregate"}
TOTAL: dict[str, Any] = {
    "path": {"name": ["epoch"], "parent": [NONE]},
    "region_total": {"path": [0], "count": [1], "total_ns": [9 * MS], "min_ns": [9 * MS], "max_ns": [9 * MS]},
}


def test_sums_of_samples_make_stacks_where_there_are_no_regions(tmp_path: Path) -> None:
    assert folded(sampled(AGGREGATE), tmp_path) == folded(sampled(), tmp_path)


def test_sums_of_samples_beside_totals_of_regions_are_left_out_and_that_is_told(tmp_path: Path) -> None:
    recording = sampled(info=AGGREGATE, **TOTAL)
    assert folded(recording, tmp_path) == {"epoch": 9_000}
    assert left_out(recording, tmp_path / "run.folded") == ["python samples"]


# -- what is left out ----------------------------------------------------------------------------------------------

USAGE: dict[str, Any] = {"process_usage": {"start_ns": [START], "duration_ns": [50 * MS], "process": [4242]}}
NAMES = ("run.json", "run.pftrace", "run.speedscope.json", "run.pb.gz", "run.folded")


def test_the_command_says_in_a_line_a_file_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sampled(**USAGE).save("all.gscope")
    outputs = [word for name in (*NAMES, "run.gscope", "run.html") for word in ("-o", name)]
    assert main(["export", "all.gscope", *outputs]) == 0
    assert capsys.readouterr().err.splitlines() == [f"note: {name} leaves out process usages" for name in NAMES]


def test_the_command_says_nothing_where_a_file_has_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampled().save(tmp_path / "all.gscope")
    outputs = [word for name in NAMES for word in ("-o", str(tmp_path / name))]
    assert main(["export", str(tmp_path / "all.gscope"), *outputs]) == 0
    assert capsys.readouterr().err == ""


BASE: Tables = {
    "device": {"ordinal": [0], "name": ["NVIDIA H100"]},
    "thread": {"system_id": [4242], "name": ["MainThread"]},
    "track": {"device": [0], "context": [1], "stream": [7]},
    "path": {"name": ["epoch"], "parent": [NONE]},
    "variant": {"name": ["relu"]},
    "call": {"name": ["cuLaunchKernel"], "kind": [1]},
    "stack": STACKS,
    "counter": {"name": ["sm__cycles_active.avg"], "unit": ["cycle"]},
}
TIME = {"start_ns": [START], "duration_ns": [5000]}
AT = {"start_ns": [START]}
EVENTS: Tables = {
    "kernel": TIME,
    "graph_node": {"event": [0], "graph": [3], "node": [1], "kind": [int(_core.Work.KERNEL)]},
    "graph_launch": TIME,
    "memcpy": {**TIME, "bytes": [64], "kind": [1], "peer": [255]},
    "memset": {**TIME, "bytes": [64]},
    "overhead": {**TIME, "kind": [1], "system_id": [4242]},
    "sync": {**TIME, "kind": [1]},
    "region": {**TIME, "path": [0]},
    "region_gpu": {"region": [0], "path": [0], "duration_ns": [3000]},
    "mark": {**AT, "name": ["here"]},
    "detail": {"region": [0], "sequence": [5]},
    "resumption": {"suspended_ns": [10], "region": [0], "first": [0]},
    "payload": {"region": [0], "name": ["bytes"], "value": [5], "type": [1]},
    "collective": {**AT, "communicator": [7], "sequence": [1], "bytes": [64], "kind": [1]},
    "communicator": {**AT, "id": [7], "ranks": [8]},
    "anchor": {**AT, "realtime_ns": [5], "monotonic_ns": [5]},
    "loss": {**AT, "duration_ns": [5], "lost_rows": [3], "reason": [0]},
    "allocation": {**AT, "bytes": [64], "address": [4096], "ordinal": [0]},
    "failed_allocation": {**AT, "bytes": [64], "ordinal": [0]},
    "device_memory": {**AT, "bytes": [64], "address": [4096], "kind": [3]},
    "memory_pool": {**AT, "pool": [16], "reserved_bytes": [64], "operation": [1]},
    "api": {**TIME, "correlation": [1]},
    "call_stack": {"api": [0], "stack": [LOAD]},
    "python_function": {**TIME, "name": ["run.py(1): main"], "parent": [NONE], "module": [NONE]},
    "python_sample": {**TIME, "cpu_ns": [5000], "stack": [LOAD], "count": [1]},
    "counter_sample": TIME,
    "counter_value": {"sample": [0], "counter": [0], "value": [2.0]},
    "device_sample": {**AT, "power_mw": [300_000]},
    "device_counter": {**AT, "energy_mj": [9]},
    "thread_wait": {**TIME, "wait_ns": [9]},
    "process_usage": {**TIME, "process": [4242]},
    "control_group_usage": {**TIME, "throttled_ns": [9]},
}
NEEDED = {
    "graph_node": "kernel",
    "call_stack": "api",
    "counter_value": "counter_sample",
    **dict.fromkeys(("region_gpu", "detail", "resumption", "payload"), "region"),
}


def test_these_are_all_tables_of_events() -> None:
    assert set(EVENTS) == {table.name for table in _core.schema() if table.role == _core.Role.EVENT}


@pytest.mark.parametrize("name", NAMES)
# Samples of counters say nothing without a value; readings of the clock are no events of the program.
@pytest.mark.parametrize("table", sorted(EVENTS.keys() - {"counter_sample", "anchor", "loss"}))
def test_a_file_has_what_it_does_not_say_it_leaves_out(tmp_path: Path, table: str, name: str) -> None:
    clock = "thread_wait" if table == "process_usage" else "process_usage"  # when the recording begins
    known = {**BASE, **{each: EVENTS[each] for each in (clock, NEEDED.get(table, clock))}}
    written = []
    for tables in (known, {**known, table: EVENTS[table]}):
        recording = Recording(make_store(tables, info=INFO))
        recording.save(tmp_path / "all.gscope")
        assert main(["export", str(tmp_path / "all.gscope"), "-o", str(tmp_path / name)]) == 0
        content = (tmp_path / name).read_bytes()
        written.append(gzip.decompress(content) if name.endswith("gz") else content)
    attribute = next(each.attribute for each in _core.schema() if each.name == table).replace("_", " ")
    assert (written[0] != written[1]) == (attribute not in left_out(recording, tmp_path / name))
