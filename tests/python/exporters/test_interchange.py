# SPDX-License-Identifier: Apache-2.0
"""Files for speedscope, pprof and flame graphs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes.interchange import check_speedscope, pprof_message
from fakes.other_traces import proton_tree
from fakes.recordings import nested, training
from fakes.stores import START, training_store
from fakes.versions import version
from gpuscope._core import NONE, Flag
from gpuscope.errors import InvalidArgument
from gpuscope.exporters.speedscope import export_speedscope
from gpuscope.recording import Recording
from gpuscope.trace import program_name

KERNELS = {"void gemm<float>(int)": 2e6, "relu": 1e6}


def speedscope(recording: Recording, folder: Path, **options: Any) -> dict[str, Any]:
    export_speedscope(recording.trace, folder / "run.speedscope.json", **options)
    document: dict[str, Any] = json.loads((folder / "run.speedscope.json").read_text())
    return document


def total_ns(document: dict[str, Any], name: str) -> int:
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    events = [event for profile in document["profiles"] for event in profile["events"]]
    wanted = [event for event in events if frames[event["frame"]] == name]
    return sum(event["at"] * (1 if event["type"] == "C" else -1) for event in wanted)


def test_speedscope_has_a_profile_for_each_thread_and_stream(tmp_path: Path) -> None:
    recording = version(KERNELS, steps=6)
    document = speedscope(recording, tmp_path)
    check_speedscope(document)
    names = [profile["name"] for profile in document["profiles"]]
    assert len(names) == 2
    assert names[0].startswith("thread ")
    assert names[1] == "GPU 0 stream 7"
    kernels = recording.trace.kernels
    for row, name in enumerate(recording.trace.kernel_names()):
        assert total_ns(document, name) == int(kernels.duration_ns[kernels.variant == row].sum())
    assert total_ns(document, "ProfilerStep#0") == int(recording.trace.regions.duration_ns[0])


def test_copies_and_graphs_are_in_speedscope(tmp_path: Path) -> None:
    recording = Recording(training().store)
    document = speedscope(recording, tmp_path)
    check_speedscope(document)
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    assert any(name.startswith("Memcpy") for name in frames) == bool(len(recording.trace.memcpy))


def test_graphs_that_were_traced_as_a_whole_are_in_speedscope(tmp_path: Path) -> None:
    def as_a_whole(tables: dict[str, dict[str, list[Any]]]) -> None:
        tables["graph_launch"] = {"start_ns": [START + 20_000], "duration_ns": [30_000], "graph": [4], "track": [0]}

    document = speedscope(Recording(training_store(as_a_whole)), tmp_path)
    check_speedscope(document)
    assert total_ns(document, "CUDA graph 4") == 30_000


def test_work_without_timestamps_is_not_in_speedscope(tmp_path: Path) -> None:
    def without_times(tables: dict[str, dict[str, list[Any]]]) -> None:
        kernels = tables["kernel"]
        kernels["flags"] = [int(Flag.ZERO_TIME), 0]
        kernels["start_ns"][0] = kernels["duration_ns"][0] = 0

    document = speedscope(Recording(training_store(without_times)), tmp_path)
    check_speedscope(document)
    assert {profile["startValue"] for profile in document["profiles"]} == {0, 1500}


def test_spans_of_a_thread_that_overlap_are_cut_and_counted(tmp_path: Path) -> None:
    def overlapping(tables: dict[str, dict[str, list[Any]]]) -> None:
        tables["region"]["duration_ns"] = [90_000, 100_000]

    document = speedscope(Recording(training_store(overlapping)), tmp_path)
    check_speedscope(document)
    assert "1 spans cut where they overlap" in document["name"]


def test_work_of_a_stream_that_runs_at_one_time_has_all_its_time(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"device": 0, "context": 1, "stream": 7}}
    events = [
        event | {"name": name, "ts": ts, "dur": 10}
        for name, ts in (("a", 0), ("b", 5), ("c", 10), ("d", 15), ("e", 16))
    ]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    document = speedscope(gs.load(tmp_path / "trace.json"), tmp_path)
    check_speedscope(document)
    assert [total_ns(document, name) for name in "abcde"] == [10_000] * 5
    assert [profile["name"] for profile in document["profiles"]] == [
        "GPU 0 stream 7",
        "GPU 0 stream 7 (lane 2)",
        "GPU 0 stream 7 (lane 3)",
    ]
    assert "cut" not in document["name"]


def test_ranges_that_nest_in_nothing_have_all_their_time(tmp_path: Path) -> None:
    def with_ranges(tables: dict[str, dict[str, list[Any]]]) -> None:
        tables["path"] = {"name": ["step", "load", "send"], "parent": [NONE] * 3}
        tables["region"] = {
            "start_ns": [START, START + 1000, START + 2000],
            "duration_ns": [90_000, 100_000, 200_000],
            "parent": [NONE] * 3,
            "path": [0, 1, 2],
            "thread": [0] * 3,
            "flags": [0, int(Flag.ASYNC), int(Flag.ASYNC)],
        }

    document = speedscope(Recording(training_store(with_ranges)), tmp_path)
    check_speedscope(document)
    assert [total_ns(document, name) for name in ("step", "load", "send")] == [90_000, 100_000, 200_000]
    assert "cut" not in document["name"]


def test_speedscope_has_a_cap_and_says_so(tmp_path: Path) -> None:
    recording = version(KERNELS, steps=400)
    whole = speedscope(recording, tmp_path)
    size = (tmp_path / "run.speedscope.json").stat().st_size
    cap = size // 2
    document = speedscope(recording, tmp_path, most_bytes=cap)
    check_speedscope(document)
    assert cap // 4 < (tmp_path / "run.speedscope.json").stat().st_size <= cap
    assert "% of the events, as more cannot be read" in document["name"]
    assert "events" not in whole["name"]


def test_totals_alone_are_nothing_for_speedscope(tmp_path: Path) -> None:
    (tmp_path / "t.hatchet").write_text(json.dumps(proton_tree()))
    with pytest.raises(InvalidArgument, match="mode='aggregate', which has no events"):
        gs.load(tmp_path / "t.hatchet").export_speedscope(tmp_path / "x.json")
    with pytest.raises(InvalidArgument, match=r"\.json"):
        version(KERNELS, steps=2).export_speedscope(tmp_path / "x.txt")


@pytest.mark.parametrize("name", ["run.pb.gz", "run.pprof"])
def test_pprof_has_the_call_tree(tmp_path: Path, name: str) -> None:
    recording = version(KERNELS, steps=6)
    recording.export_pprof(tmp_path / name)
    profile = pprof_message()
    profile.ParseFromString(gzip.decompress((tmp_path / name).read_bytes()))
    size = profile.ByteSize()
    profile.DiscardUnknownFields()
    assert profile.ByteSize() == size  # there were none
    strings = profile.string_table
    assert strings[0] == ""
    types = [(strings[each.type], strings[each.unit]) for each in profile.sample_type]
    assert types == [("count", "count"), ("cpu", "nanoseconds"), ("gpu", "nanoseconds")]
    assert strings[profile.default_sample_type] == "gpu"
    functions = {function.id: strings[function.name] for function in profile.function}
    locations = {place.id: functions[place.line[0].function_id] for place in profile.location}
    assert 0 not in locations
    gpu: dict[str, int] = {}
    for sample in profile.sample:
        assert len(sample.value) == 3
        gpu[locations[sample.location_id[0]]] = gpu.get(locations[sample.location_id[0]], 0) + sample.value[2]
    kernels = recording.trace.kernels
    for row, kernel in enumerate(recording.trace.kernel_names()):
        assert gpu[kernel] == int(kernels.duration_ns[kernels.variant == row].sum())
    stacks = {";".join(locations[each] for each in reversed(sample.location_id)) for sample in profile.sample}
    assert any(stack.startswith("ProfilerStep") and stack.endswith("relu") for stack in stacks)
    total_cpu = sum(sample.value[1] for sample in profile.sample)
    assert total_cpu == sum(node.self_cpu_ns for node in recording.tree().root if node.kind != "recording")


def test_pprof_leaves_names_whole_and_looks_for_no_binary(tmp_path: Path) -> None:
    """Its `demangle` shortens what has one name twice; what has functions is not symbolized."""
    recording = version(KERNELS, steps=2)
    recording.export_pprof(tmp_path / "run.pb.gz")
    profile = pprof_message()
    profile.ParseFromString(gzip.decompress((tmp_path / "run.pb.gz").read_bytes()))
    assert not any(function.system_name for function in profile.function)
    assert [(each.id, each.has_functions) for each in profile.mapping] == [(1, 1)]
    assert profile.string_table[profile.mapping[0].filename] == program_name(recording.trace.info)
    assert {place.mapping_id for place in profile.location} == {1}


def test_pprof_has_the_innermost_names_of_deep_paths(tmp_path: Path) -> None:
    names = [f"region_{number}" for number in range(600)]
    Recording(nested(names).store).export_pprof(tmp_path / "run.pb.gz")
    profile = pprof_message()
    profile.ParseFromString(gzip.decompress((tmp_path / "run.pb.gz").read_bytes()))
    functions = {function.id: profile.string_table[function.name] for function in profile.function}
    deepest = profile.sample[-1].location_id
    assert [functions[each] for each in deepest] == names[: -512 - 1 : -1]


def test_totals_alone_make_a_profile_of_pprof(tmp_path: Path) -> None:
    (tmp_path / "t.hatchet").write_text(json.dumps(proton_tree()))
    gs.load(tmp_path / "t.hatchet").export_pprof(tmp_path / "t.pb.gz")
    profile = pprof_message()
    profile.ParseFromString(gzip.decompress((tmp_path / "t.pb.gz").read_bytes()))
    assert sum(sample.value[2] for sample in profile.sample) == 4_300_000


def test_the_command_writes_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpuscope.cli import main

    version(KERNELS, steps=5).save(tmp_path / "run.gscope")
    names = ("run.speedscope.json", "run.pb.gz", "run.pprof", "run.folded")
    outputs = [word for name in names for word in ("-o", str(tmp_path / name))]
    assert main(["export", str(tmp_path / "run.gscope"), *outputs]) == 0
    check_speedscope(json.loads((tmp_path / "run.speedscope.json").read_text()))
    assert gzip.decompress((tmp_path / "run.pb.gz").read_bytes()) == gzip.decompress(
        (tmp_path / "run.pprof").read_bytes()
    )
    lines = (tmp_path / "run.folded").read_text().splitlines()
    assert any(line.split(" ")[0].endswith("relu") for line in lines)
    assert "run.folded" in capsys.readouterr().out
