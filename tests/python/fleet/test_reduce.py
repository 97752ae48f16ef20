# SPDX-License-Identifier: Apache-2.0
"""The fleet's tables of one recording."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from fakes.rank_recordings import ALL_REDUCE, GEMM, START, RankRecording
from fakes.recordings import aggregate, cpu_only
from gpuscope.errors import NotAvailable
from gpuscope.fleet.reduce import GpuWork, reduce
from gpuscope.fleet.tables import SCHEMA
from gpuscope.trace import Trace

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
NSYS = SHARED / "nsys" / "h100_2gpu_1s.sqlite"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not on this machine")


def rows(trace: Trace, table: str, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of a table, row by row."""
    columns = reduce(trace)[table]
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


def overlapped() -> RankRecording:
    """A step with a product, an all-reduce that overlaps with it, and a copy that overlaps with that."""
    rank = RankRecording()
    rank.step(0, 1000)
    rank.kernel(GEMM, 100, 300)
    rank.kernel(ALL_REDUCE, 200, 600, stream=9)
    rank.copy(550, 700)
    return rank


def with_two_collectives() -> RankRecording:
    """Products before, between and after two all-reduces of one step."""
    rank = RankRecording()
    rank.step(0, 1000)
    rank.kernel(GEMM, 100, 200)
    rank.kernel(ALL_REDUCE, 250, 400)
    rank.kernel(GEMM, 430, 500)
    rank.copy(500, 520)
    rank.kernel(ALL_REDUCE, 600, 700)
    rank.kernel(GEMM, 800, 850)
    return rank


def test_every_table_has_its_columns_and_types():
    tables = reduce(overlapped().trace())
    assert {name: {key: each.dtype for key, each in columns.items()} for name, columns in tables.items()} == {
        name: {key: np.dtype(kind) for key, (kind, _) in columns.items()} for name, columns in SCHEMA.items()
    }


def test_a_recording_without_a_gpu_has_the_same_columns():
    tables = reduce(cpu_only())
    assert {name: list(columns) for name, columns in tables.items()} == {
        name: list(columns) for name, columns in SCHEMA.items()
    }


def test_sums_alone_are_refused():
    with pytest.raises(NotAvailable, match='mode "full" or "ring"'):
        reduce(aggregate())


# -- steps -------------------------------------------------------------------------------------------------------------
def test_the_parts_of_a_step_add_up():
    parts = ("compute_ns", "exposed_ns", "copy_ns", "idle_ns", "duration_ns")
    assert rows(overlapped().trace(), "step", *parts) == [(200, 300, 100, 400, 1000)]


def test_all_communication_counts_what_overlaps_too():
    assert rows(overlapped().trace(), "step", "communication_ns") == [(400,)]


def test_steps_keep_their_numbers():
    rank = RankRecording()
    for number in (7, 8):
        rank.step(500 * (number - 7), 500 * (number - 6), number)
    assert rows(rank.trace(), "step", "step", "start_ns", "duration_ns") == [
        (7, START, 500),
        (8, START + 500, 500),
    ]


def test_a_recording_without_steps_is_one():
    rank = RankRecording(end=1000)
    rank.kernel(GEMM, 100, 200)
    assert rows(rank.trace(), "step", "step", "duration_ns", "compute_ns") == [(0, 1000, 100)]


def test_the_replay_of_a_graph_is_one_launch():
    rank = RankRecording()
    rank.step(0, 1000)
    rank.kernel(GEMM, 50, 90)
    rank.replay([(GEMM, 100, 200), (GEMM, 200, 300), (GEMM, 300, 400)])
    assert rows(rank.trace(), "step", "launches") == [(2,)]


# -- collectives and segments ------------------------------------------------------------------------------------------
def test_a_collective_lasts_from_arrival_to_release():
    expected = [(START + 250, START + 400, 0), (START + 600, START + 700, 0)]
    assert rows(with_two_collectives().trace(), "collective", "start_ns", "end_ns", "step") == expected


def test_before_a_collective_is_the_time_since_the_previous_release():
    expected = [(100, 150), (70, 110)]
    assert rows(with_two_collectives().trace(), "collective", "before_compute_ns", "before_idle_ns") == expected


def test_nothing_is_before_a_collective_that_starts_during_another():
    rank = RankRecording()
    rank.step(0, 1000)
    rank.kernel(ALL_REDUCE, 100, 500)
    rank.kernel(GEMM, 150, 250)
    rank.kernel(ALL_REDUCE, 300, 400, stream=9)
    found = rows(rank.trace(), "collective", "before_compute_ns", "before_idle_ns")
    assert found == [(0, 100), (0, 0)]


def test_time_that_was_not_recorded_is_not_before_a_collective():
    rank = RankRecording(session_windows_ns=f"{START} 200 5000 200", end=5400)
    for at in (0, 5200):
        rank.step(at, at + 200, at)
        rank.kernel(ALL_REDUCE, at + 50, at + 100)
    assert rows(rank.trace(), "collective", "before_idle_ns") == [(50,), (50,)]


def test_a_collective_outside_of_all_steps_has_none():
    rank = RankRecording()
    rank.step(300, 1000)
    rank.kernel(ALL_REDUCE, 100, 200)
    assert rows(rank.trace(), "collective", "step") == [(-1,)]


def test_segments_are_the_pieces_around_collectives():
    found = rows(with_two_collectives().trace(), "segment", "position", "compute_ns", "copy_ns", "host_ns")
    assert found == [(0, 100, 0, 150), (1, 70, 20, 110), (2, 50, 0, 250)]


def test_concurrent_collectives_leave_an_empty_segment():
    rank = RankRecording()
    rank.step(0, 1000)
    rank.kernel(ALL_REDUCE, 100, 500)
    rank.kernel(ALL_REDUCE, 200, 400, stream=9)
    found = rows(rank.trace(), "segment", "position", "compute_ns", "host_ns")
    assert found == [(0, 0, 100), (1, 0, 0), (2, 0, 500)]


def test_a_collective_over_the_end_of_a_step_shortens_the_next():
    rank = RankRecording()
    for number in (0, 1):
        rank.step(500 * number, 500 * number + 500, number)
    rank.kernel(ALL_REDUCE, 400, 600)
    rank.kernel(GEMM, 700, 800)
    rank.kernel(GEMM, 850, 1000)
    found = rows(rank.trace(), "segment", "step", "position", "compute_ns", "host_ns")
    assert found == [(0, 0, 0, 400), (0, 1, 0, 0), (1, 0, 250, 150)]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from("kcm")), max_size=12)


@given(spans=SPANS, length=st.integers(5, 40))
def test_segments_and_communication_fill_each_step(spans: list[tuple[int, int, str]], length: int):
    rank = RankRecording(end=2 * length)
    for number in (0, 1):
        rank.step(length * number, length * (number + 1), number)
    for start, lasts, kind in spans:
        if kind == "m":
            rank.copy(start, start + lasts)
        else:
            rank.kernel(GEMM if kind == "k" else ALL_REDUCE, start, start + lasts, launched=0, stream=start)
    tables = reduce(rank.trace())
    steps, segments = tables["step"], tables["segment"]
    pieces = segments["compute_ns"] + segments["copy_ns"] + segments["host_ns"]
    filled = np.bincount(segments["step"], pieces, len(steps["step"])) + steps["communication_ns"]
    assert filled.tolist() == steps["duration_ns"].tolist()


def test_collectives_of_gloo_are_communication():
    rank = RankRecording(session_tier="cpu")
    rank.step(0, 1000)
    rank.region("gloo:all_reduce", 100, 300)
    assert rows(rank.trace(), "step", "communication_ns", "exposed_ns", "idle_ns") == [(200, 200, 800)]


def test_gloo_on_the_host_of_a_gpu_does_not_fill_its_idle_time():
    rank = RankRecording()
    rank.step(0, 1000)
    rank.kernel(GEMM, 100, 200)
    rank.region("gloo:barrier", 300, 900)
    assert rows(rank.trace(), "step", "exposed_ns", "idle_ns") == [(0, 900)]


# -- kernels and ranks -------------------------------------------------------------------------------------------------
def test_kernels_of_one_name_are_one_row():
    rank = RankRecording()
    for blocks, lasts in ((1, 10), (2, 30), (2, 20)):
        rank.kernel(GEMM, 100 * lasts, 101 * lasts, blocks=blocks)
    names = ("name", "count", "total_ns", "min_ns", "max_ns")
    assert rows(rank.trace(), "kernel_stat", *names) == [(GEMM, 3, 60, 10, 30)]


def test_the_rank_is_that_of_the_recording():
    facts = {"process_rank": "341", "process_world_size": "1024", "process_local_rank": "5", "process_host": "node-42"}
    names = ("rank", "world_size", "local_rank", "host", "source")
    columns = reduce(RankRecording(**facts).trace(), "rank-00341.gscope")["rank"]
    assert [columns[name][0] for name in names] == [341, 1024, 5, "node-42", "rank-00341.gscope"]


def test_what_is_not_known_of_a_rank_is_marked():
    assert rows(RankRecording().trace(), "rank", "local_rank", "host", "device") == [(-1, "", "")]


def on_two_gpus(**info: str) -> Trace:
    rank = RankRecording(**info)
    for device in (2, 5):
        rank.kernel(GEMM, 100, 200 + device, device=device)
    return rank.trace()


def test_without_a_rank_each_gpu_is_one():
    assert rows(on_two_gpus(), "rank", "rank", "world_size", "local_rank") == [(0, 2, 2), (1, 2, 5)]


def test_each_rank_has_the_work_of_its_gpu():
    assert rows(on_two_gpus(), "kernel_stat", "rank", "total_ns") == [(0, 102), (1, 105)]


def test_a_process_with_a_rank_is_one_rank_on_all_its_gpus():
    found = rows(on_two_gpus(process_rank="3", process_world_size="8"), "rank", "rank", "device")
    assert found == [(3, "GPU 5")]


def role(kernels: list[str], starts: int = 100) -> int:
    rank = RankRecording()
    rank.step(0, 1000)
    for number, name in enumerate(kernels):
        at = starts + 50 * number
        rank.kernel(name, at, at + 10)
    return int(reduce(rank.trace())["rank"]["role"][0])


def test_ranks_with_the_same_kernels_have_one_role():
    assert role([GEMM, "relu", GEMM], starts=100) == role([GEMM, GEMM, "relu"], starts=300)


def test_another_number_of_kernels_is_another_role():
    assert role([GEMM, "relu"]) != role([GEMM, GEMM, "relu"])


# -- clocks ------------------------------------------------------------------------------------------------------------
def test_the_anchors_are_those_of_the_recording():
    rank = RankRecording()
    for at in (660, 900):
        rank.anchor(at, at + 40)
    expected = [(START + 660, START + 700), (START + 900, START + 940)]
    assert rows(rank.trace(), "anchor", "time_ns", "realtime_ns") == expected


def test_a_trace_of_another_tool_is_on_the_time_of_day():
    assert rows(RankRecording().trace(), "anchor", "time_ns", "realtime_ns") == [(START, START)]


def test_times_from_a_start_of_the_program_have_no_anchor():
    assert rows(cpu_only(), "anchor", "time_ns") == []


# -- real traces -------------------------------------------------------------------------------------------------------
def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in merged(spans))


def by_hand(path: Path) -> dict[str, float]:
    """HTA's temporal breakdown and overlap, computed from the events: the span of GPU events is the whole.

    HTA itself also counts waits (cuda_sync) as kernels, rounds to us, and leaves out the last step by default.
    """
    spans: dict[str, list[tuple[int, int]]] = {"compute": [], "communication": [], "memory": []}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        category = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or category not in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            continue
        start = round(event["ts"] * 1000)
        span = (start, start + round(event.get("dur", 0) * 1000))
        kind = "communication" if "nccl" in event["name"].lower() else "compute"
        spans[kind if category == "kernel" else "memory"].append(span)
    everything = [span for each in spans.values() for span in each]
    whole = max(end for _, end in everything) - min(start for start, _ in everything)
    compute, communication = length(spans["compute"]), length(spans["communication"])
    both = compute + communication - length(spans["compute"] + spans["communication"])
    return {
        "whole": whole,
        "idle": whole - length(everything),
        "compute": compute,
        "overlap": both / communication if communication else 0.0,
    }


def with_gpu_work() -> list[Path]:
    """The shared traces of torch.profiler in which a GPU ran something."""
    paths = sorted((SHARED / "traces").glob("*.json.gz"))
    return [path for path in paths if "cupti_profiler" not in path.name and "non_gpu" not in path.name]


@needs_shared
@pytest.mark.parametrize("path", with_gpu_work(), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_breakdown_and_overlap_are_those_of_hta(path: Path):
    work = GpuWork(gs.load(path).trace, None)
    starts, ends = (np.concatenate([span[at] for span in work.spans]) for at in (0, 1))
    whole = ends.max() - starts.min()
    (found,) = work.divide((starts.min(keepdims=True), ends.max(keepdims=True)))
    communication, exposed = int(found["communication_ns"][0]), int(found["exposed_ns"][0])
    expected = by_hand(path)
    ours = {"whole": whole, "idle": found["idle_ns"][0], "compute": found["compute_ns"][0]}
    assert ours == pytest.approx({name: expected[name] for name in ours}, rel=1e-3, abs=1000)
    overlap = 1 - exposed / communication if communication else 0.0
    assert overlap == pytest.approx(expected["overlap"], abs=1e-3)


@needs_shared
@pytest.mark.parametrize("path", [*with_gpu_work(), NSYS], ids=lambda path: path.name)
def test_steps_of_real_traces_add_up(path: Path):
    steps = reduce(gs.load(path).trace)["step"]
    parts = sum(steps[name] for name in ("compute_ns", "exposed_ns", "copy_ns", "idle_ns"))
    assert (parts == steps["duration_ns"]).all()


@needs_shared
def test_collectives_of_torch_are_those_of_its_arguments():
    tables = reduce(gs.load(SHARED / "traces" / "hta_nccl_parser_config_nccl_data.json.gz").trace)
    found = tables["collective"]
    assert set(found["source"]) == {"arguments"}
    assert set(found["size"]) == {2}
    assert found["bytes"].tolist()[:3] == [53120 * 4, 106 * 4, 2049000 * 4]


@needs_shared
def test_an_export_of_two_gpus_has_two_ranks_of_one_role():
    ranks = reduce(gs.load(NSYS).trace)["rank"]
    assert ranks["local_rank"].tolist() == [0, 1]
    assert len(set(ranks["role"].tolist())) == 1
