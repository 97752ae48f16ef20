# SPDX-License-Identifier: Apache-2.0
"""Holistic Trace Analysis (HTA) reads our Chrome traces as it reads torch.profiler's."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

from fakes.steps import STEP_NS, steps_store
from gpuscope.exporters import export_chrome_trace

GOLDEN = Path(__file__).parents[2] / "golden" / "hta"
AGREE = 0.02


@pytest.fixture(scope="module")
def analysis():
    """Opens a trace file in HTA; skips where it is not installed (it asks for all of Jupyter, so no extra has it)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
        from hta.trace_analysis import TraceAnalysis

    def read(path):
        logging.getLogger("hta").setLevel(logging.ERROR)
        return TraceAnalysis(trace_files={0: str(path)})

    return read


@pytest.fixture(autouse=True)
def _hta_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of pandas
        yield


@pytest.fixture
def steps(analysis, tmp_path):
    path = tmp_path / "steps.json"
    export_chrome_trace(steps_store(), path)
    return analysis(path)


def test_hta_finds_the_steps(steps):
    assert list(steps.get_profiler_steps()) == [0, 1, 2]


def test_temporal_breakdown_counts_the_gpu_time_of_whole_steps(steps):
    (row,) = steps.get_temporal_breakdown(visualize=False).to_dict("records")
    # HTA leaves the last step out.
    computed = 2 * (50 + 60)
    assert row["compute_time(us)"] == computed
    assert row["kernel_time(us)"] > STEP_NS / 1000
    assert row["idle_time(us)"] + row["compute_time(us)"] + row["non_compute_time(us)"] == row["kernel_time(us)"]


def test_idle_time_is_told_apart_by_its_cause(steps):
    (breakdown, _) = steps.get_idle_time_breakdown(visualize=False)
    idle = dict(zip(breakdown["idle_category"], breakdown["idle_time"], strict=True))
    assert idle["kernel_wait"] == 8 * 1  # gaps of 1 us within the two steps
    assert idle["host_wait"] > 300  # between steps, and before the first kernel of one


def test_kernel_breakdown_tells_computation_communication_and_memory(steps):
    kinds, kernels = steps.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    assert set(kinds["kernel_type"]) == {"COMPUTATION", "COMMUNICATION", "MEMORY"}
    sums = dict(zip(kernels["name"], kernels["sum (us)"], strict=True))
    assert sums["gemm"] == 100
    assert sums["ncclDevKernel_AllReduce"] == 60
    assert sums["Memcpy HtoD (Pinned -> Device)"] == 80 + 40  # HTA begins the last step at its first GPU work


def test_launch_statistics_join_every_launch_with_its_work(steps):
    stats = steps.get_cuda_kernel_launch_stats(visualize=False)[0]
    first = stats[stats["correlation"] == 1].iloc[0]
    assert (first["cpu_duration"], first["gpu_duration"], first["launch_delay"]) == (3, 40, 3)
    assert {"gemm", "fill", "copy"} <= {{50: "gemm", 2: "fill", 40: "copy"}.get(d) for d in stats["gpu_duration"]}


def test_queue_length_and_bandwidth_are_found(steps):
    assert steps.get_queue_length_summary().loc[(0, 7)]["queue_length"]["count"] == 22
    bandwidth = steps.get_memory_bw_summary()
    assert bandwidth.loc[(0, "Memcpy HtoD")]["memory_bw_gbps"]["max"] == pytest.approx((1 << 20) / 40_000, rel=1e-3)


def test_kernels_find_their_annotations(steps):
    kernels = steps.get_gpu_kernels_with_user_annotations(rank=0)
    found = dict(zip(kernels["s_name"], kernels["s_user_annotation"], strict=True))
    assert found["ncclDevKernel_AllReduce"] == "ncclAllReduce"
    assert found["Memset (Device)"] == "Optimizer.step#AdamW.step"


def test_rank_is_found_in_the_file(analysis, tmp_path):
    from hta.common.trace_file import create_rank_to_trace_dict

    path = tmp_path / "rank.json"
    export_chrome_trace(steps_store(info={"process.rank": "5", "process.world_size": "8"}), path)
    assert create_rank_to_trace_dict([str(path)]) == (True, {5: str(path)})


def test_ranks_are_as_far_apart_as_they_ran(tmp_path, analysis):
    apart_ns = 5_750_000_000

    def delay(tables):
        for table in tables.values():
            if "start_ns" in table:
                table["start_ns"] = [start + apart_ns for start in table["start_ns"]]

    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for path, change in zip(paths, (lambda tables: None, delay), strict=True):
        export_chrome_trace(steps_store(change), path)
    from hta.trace_analysis import TraceAnalysis

    ranks = TraceAnalysis(trace_files=dict(enumerate(map(str, paths)))).t
    first, second = (ranks.get_trace(rank)["ts"].min() for rank in range(2))
    assert second - first == apart_ns / 1000


# -- the same program under torch.profiler and under gpuscope ----------------------------------------------------------
@pytest.fixture(scope="module")
def pair(analysis):
    """HTA on torch's file and on ours, as tests/gpu/scripts/hta_pair.py made them on a GPU."""
    paths = [GOLDEN / f"{name}.json.gz" for name in ("torch", "gpuscope")]
    for path in paths:
        if not path.exists():
            pytest.skip(f"{path.name} has not been recorded yet: tests/gpu/scripts/hta_pair.py makes it on a GPU")
    from hta.trace_analysis import TraceAnalysis

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True) for path in paths)


def test_temporal_breakdown_agrees_with_torchs(pair):
    theirs, ours = (one.get_temporal_breakdown(visualize=False).iloc[0] for one in pair)
    for figure in ("idle_time(us)", "compute_time(us)", "kernel_time(us)"):
        assert ours[figure] == pytest.approx(theirs[figure], rel=AGREE), figure
    for figure in ("idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg"):
        assert ours[figure] == pytest.approx(theirs[figure], abs=100 * AGREE), figure


def test_idle_time_breakdown_agrees_with_torchs(pair):
    theirs, ours = (
        one.get_idle_time_breakdown(visualize=False)[0].set_index(["stream", "idle_category"]) for one in pair
    )
    assert set(ours.index) == set(theirs.index)
    for key in theirs.index:
        assert ours["idle_time_ratio"][key] == pytest.approx(theirs["idle_time_ratio"][key], abs=AGREE), key
    largest = theirs["idle_time"].idxmax()
    assert ours["idle_time"][largest] == pytest.approx(theirs["idle_time"][largest], rel=AGREE)


def test_kernel_breakdown_agrees_with_torchs(pair):
    every = {"visualize": False, "duration_ratio": 1.0, "num_kernels": 10_000, "include_memory_kernels": True}
    found = [one.get_gpu_kernel_breakdown(**every) for one in pair]
    their_kinds, our_kinds = (dict(zip(kinds["kernel_type"], kinds["percentage"], strict=True)) for kinds, _ in found)
    assert our_kinds == pytest.approx(their_kinds, abs=100 * AGREE)
    theirs, ours = (dict(zip(kernels["name"], kernels["sum (us)"], strict=True)) for _, kernels in found)
    assert set(ours) == set(theirs)
    total = sum(theirs.values())
    long = {name: time for name, time in theirs.items() if time > 0.01 * total}
    assert {name: ours[name] for name in long} == pytest.approx(long, rel=AGREE)
    assert sum(ours.values()) == pytest.approx(total, rel=AGREE)


def test_launch_delays_agree_with_torchs(pair):
    theirs, ours = (one.get_cuda_kernel_launch_stats(visualize=False)[0] for one in pair)
    # A library that calls the driver itself: HTA leaves these out of torch's file, and has all launches in ours.
    symbols, trace = pair[0].t.symbol_table.get_sym_id_map(), pair[0].t.get_trace(0)
    own = [symbols[name] for name in ("cuLaunchKernel", "cuLaunchKernelEx") if name in symbols]
    assert len(ours) == len(theirs) + int(trace["name"].isin(own).sum())
    # Sums of GPU time, for those launches are short; the delays of all are much alike.
    assert ours["gpu_duration"].sum() == pytest.approx(theirs["gpu_duration"].sum(), rel=AGREE)
    assert ours["launch_delay"].mean() == pytest.approx(theirs["launch_delay"].mean(), rel=AGREE)
    # The time of the call itself is not compared: ours is the driver call's, torch's that of the runtime's around it.
    assert ours["launch_delay"].median() == pytest.approx(theirs["launch_delay"].median(), rel=AGREE)
