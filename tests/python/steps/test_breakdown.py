# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from fakes.recordings import cpu_only, make_trace
from gpuscope._core import MEMSET_NAME
from gpuscope.diagnosis import Steps, break_down
from gpuscope.recording import Recording

INFO = {"session.tier": "cupti", "session.start_ns": "0", "session.stop_ns": "1000"}
NAMES = ["ampere_sgemm_128x64_tn", "elementwise_kernel", "ncclDevKernel_AllReduce"]
PRODUCT, ELEMENTWISE, NCCL = range(3)


def steps(*borders):
    return Steps(np.array(borders[:-1]), np.array(borders[1:]), "given")


def recording(kernels=(), copies=(), fills=(), graphs=(), devices=1):
    """Kernels of (name, start, end), each with a device behind it where it is not the first; likewise the others."""

    def device_of(row, length):
        return row[length] if len(row) > length else 0

    return make_trace(
        {
            "device": {
                "ordinal": list(range(devices)),
                "name": [f"GPU of test {number}" for number in range(devices)],
                "multiprocessors": [100] * devices,
            },
            "track": {"device": list(range(devices))},
            "variant": {"name": NAMES, "grid_x": [50, 400, 10], "grid_y": [1, 1, 1], "grid_z": [1, 1, 1]},
            "kernel": {
                "start_ns": [start for _, start, *_ in kernels],
                "duration_ns": [row[2] - row[1] for row in kernels],
                "variant": [name for name, *_ in kernels],
                "track": [device_of(row, 3) for row in kernels],
            },
            "memcpy": {
                "start_ns": [start for start, *_ in copies],
                "duration_ns": [row[1] - row[0] for row in copies],
                "kind": [1] * len(copies),
                "source": [1] * len(copies),
                "destination": [3] * len(copies),
                "track": [device_of(row, 2) for row in copies],
            },
            "memset": {
                "start_ns": [start for start, _ in fills],
                "duration_ns": [end - start for start, end in fills],
            },
            "graph_launch": {
                "start_ns": [start for start, _ in graphs],
                "duration_ns": [end - start for start, end in graphs],
            },
        },
        info=INFO,
    )


def parts(device):
    """ns of each, idle time in one."""
    busy = {part.name: part.exclusive_ns for part in device.parts if part.kind != "idle"}
    return busy | {"idle": device.idle_ns}


def test_time_is_what_computes_first_and_the_rest_is_idle():
    trace = recording([(ELEMENTWISE, 100, 300), (PRODUCT, 200, 400)], copies=[(350, 500)], fills=[(490, 520)])
    (device,) = break_down(trace, steps(0, 1000)).devices
    assert parts(device) == {
        "other matmul, conv": 200,
        "elementwise, copying kernels": 100,
        "Memcpy HtoD (Pageable -> Device)": 100,
        MEMSET_NAME: 20,
        "idle": 580,
    }
    assert device["Memcpy HtoD (Pageable -> Device)"].overlapped_ns == 50
    assert device["elementwise, copying kernels"].overlapped_ns == 100


def test_communication_counts_only_where_nothing_is_computed_meanwhile():
    trace = recording([(NCCL, 0, 500), (PRODUCT, 100, 300)])
    (device,) = break_down(trace, steps(0, 1000)).devices
    assert device["communication"].exclusive_ns == 300
    assert device["communication"].overlapped_ns == 200


def test_work_counts_in_the_step_in_which_it_runs():
    (device,) = break_down(recording([(PRODUCT, 80, 130)]), steps(0, 100, 200)).devices
    assert device["other matmul, conv"].per_step_ns.tolist() == [20, 30]
    assert sum(part.per_step_ns for part in device.parts if part.kind == "idle").tolist() == [80, 70]


def test_copies_of_more_kinds_than_there_are_share_a_part():
    kinds = list(itertools.product(range(11), range(9), range(9)))
    columns = {name: [kind[at] for kind in kinds] for at, name in enumerate(("kind", "source", "destination"))}
    times = {"start_ns": list(range(len(kinds))), "duration_ns": [1] * len(kinds)}
    trace = make_trace({"track": {"device": [0]}, "memcpy": {**times, **columns}}, info=INFO)
    (device,) = break_down(trace, steps(0, len(kinds))).devices
    assert device["other copies"].exclusive_ns > 0
    assert sum(part.exclusive_ns for part in device.parts) == len(kinds)


def test_graphs_that_were_traced_as_a_whole_are_a_part():
    (device,) = break_down(recording(graphs=[(10, 30)]), steps(0, 100)).devices
    assert parts(device) == {"CUDA graphs as a whole": 20, "idle": 80}


def test_grids_fill_a_gpu_as_far_as_they_have_a_block_for_each_multiprocessor():
    (device,) = break_down(recording([(PRODUCT, 0, 100), (ELEMENTWISE, 100, 200)]), steps(0, 1000)).devices
    assert device["other matmul, conv"].fill == 0.5
    assert device["elementwise, copying kernels"].fill == 1.0
    assert [part.fill for part in device.parts if part.kind == "idle"] == [None]


def test_each_gpu_has_its_own_parts_and_no_gpu_works_where_all_are_idle():
    trace = recording([(PRODUCT, 0, 300, 0), (PRODUCT, 200, 600, 1)], copies=[(700, 800, 1)], devices=2)
    result = break_down(trace, steps(0, 1000))
    assert [device.name for device in result.devices] == ["GPU of test 0", "GPU of test 1"]
    assert [device.idle_ns for device in result.devices] == [700, 500]
    assert result.all_idle_ns.tolist() == [300]
    assert "no GPU did anything for 30 %" in str(result)


WORK = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1050), st.integers(0, 300), st.integers(0, 1)), max_size=12)
BORDERS = st.lists(st.integers(0, 1000), min_size=2, max_size=8, unique=True).map(sorted)


@given(work=WORK, copies=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)), max_size=6), borders=BORDERS)
def test_the_parts_of_a_step_add_up_to_the_step(work, copies, borders):
    kernels = [(name, start, start + duration, device) for name, start, duration, device in work]
    trace = recording(kernels, copies=[(start, start + duration) for start, duration in copies], devices=2)
    result = break_down(trace, steps(*borders))
    for device in result.devices:
        assert np.array_equal(sum(part.per_step_ns for part in device.parts), np.diff(borders))
        assert all(part.overlapped_ns >= 0 for part in device.parts)


def test_the_text_says_how_long_a_step_takes_and_where_its_time_went():
    trace = recording([(PRODUCT, 0, 300), (PRODUCT, 1000, 1300)])
    lines = str(break_down(trace, steps(0, 1000, 2000))).splitlines()
    assert lines[0] == "2 steps of 1.000us (p50 1.000us, p95 1.000us): given"
    columns = [[cell for cell in line.split("  ") if cell] for line in lines[2:5]]
    assert [cell.strip() for cell in columns[1]] == [
        "other matmul, conv",
        "0.300us",
        "30 %",
        "-",
        "50 %",
    ]
    assert [cell.strip() for cell in columns[2]] == ["idle", "0.700us", "70 %", "-", "-"]


def test_json_has_seconds_of_all_steps_and_the_median_of_single_ones():
    saved = json.loads(break_down(recording([(PRODUCT, 0, 300)]), steps(0, 1000, 2000)).to_json())
    assert saved["wall_s"] == pytest.approx(2e-6)
    (part, idle) = saved["devices"][0]["parts"]
    assert (part["exclusive_s"], part["share"], part["fill"]) == (pytest.approx(3e-7), pytest.approx(0.15), 0.5)
    assert idle["p50_s"] == pytest.approx(0.85e-6)


def test_a_recording_without_gpu_work_says_so_and_why():
    text = str(Recording(cpu_only().store).step_breakdown())
    assert "no GPU work was recorded" in text
    assert "no NVIDIA driver was found" in text


def test_a_profiler_has_the_breakdown_of_its_latest_window():
    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
        for _ in range(6):
            with gs.record_function("train"):
                pass
    result = prof.step_breakdown()
    assert (len(result.steps), result.left_out) == (5, 1)
    assert "5 steps (1 excluded: warm-up and the last)" in str(result)
    assert result.steps.source == 'the region "train"'
