# SPDX-License-Identifier: Apache-2.0
"""Power, clock and memory of a job's GPUs, and the ranks that differ."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from fakes.rank_recordings import GEMM, MS, START, RankRecording
from fakes.rank_tables import job_tables
from gpuscope.fleet.devices import find_devices, find_spreads, spread_lines
from gpuscope.fleet.job import Fleet
from gpuscope.recording import Recording

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
GIB = 1 << 30


def recording(rank=0, mhz=1740, **info):
    """Readings of GPU 0: three while it is busy, and one while it is idle."""
    made = RankRecording(40 * MS, process_rank=str(rank), process_world_size="8", **info)
    for step in range(4):
        made.step(step * 10 * MS, (step + 1) * 10 * MS, step)
        made.kernel(GEMM, step * 10 * MS + 10, step * 10 * MS + 5 * MS)
        made.clock(step * 10 * MS, mhz if step < 3 else 300, busy=100 if step < 3 else 0)
    return made


def devices(ranks=16, **columns):
    found = {name: np.full(ranks, value) for name, value in {"power_mw": 500_000, "sm_mhz": 1740}.items()}
    found |= {"rank": np.arange(ranks), "device": np.zeros(ranks, int), "peak_memory_bytes": np.full(ranks, 60 * GIB)}
    for name, values in columns.items():
        for rank, value in values.items():
            found[name][rank] = value
    return found


def lines(**columns):
    return spread_lines(find_spreads(devices(**columns)))


# -- of a recording ----------------------------------------------------------------------------------------------------
def test_a_gpus_clock_is_that_of_busy_times():
    found = find_devices(recording(mhz=1700).trace(), None)
    assert (found["device"].tolist(), found["sm_mhz"].tolist()) == ([0], [1700])
    assert (found["power_mw"].tolist(), found["peak_memory_bytes"].tolist()) == ([-1], [-1])


def test_memory_is_what_the_gpu_had_in_use_else_what_allocators_held():
    made = recording()
    row = {"bytes": 1, "address": 1, "region": 0xFFFFFFFF, "thread": 0, "flags": 0}
    for at, held in ((1, 3 * GIB), (2, 2 * GIB)):
        made._add("allocation", start_ns=START + at, allocated_bytes=1, reserved_bytes=held, ordinal=0, **row)
    assert find_devices(made.trace(), None)["peak_memory_bytes"].tolist() == [3 * GIB]
    made._rows["device_sample"][1]["memory_used_bytes"] = 5 * GIB
    assert find_devices(made.trace(), None)["peak_memory_bytes"].tolist() == [5 * GIB]


def test_a_recording_without_readings_has_no_device():
    assert len(find_devices(RankRecording(MS).trace(), None)["device"]) == 0


def test_only_the_gpu_of_a_rank_is_its_device():
    assert len(find_devices(recording().trace(), 1)["device"]) == 0


# -- of a job ----------------------------------------------------------------------------------------------------------
def test_a_slow_clock_is_said_with_that_of_the_others():
    assert lines(sm_mhz={12: 1410}) == [
        "rank 12 runs at 1.41 GHz, others at 1.74 GHz",
        "GPUs: power: 500 W, memory: 60.0 GiB",
    ]


def test_each_figure_has_one_line():
    found = lines(sm_mhz={12: 1410}, power_mw={12: 300_000}, peak_memory_bytes={3: 75 * GIB})
    assert found[1:] == ["rank 12 draws 300 W, others 500 W", "rank 3 uses 75.0 GiB, others 60.0 GiB"]


def test_a_slow_node_is_one_line():
    (first, _) = lines(sm_mhz=dict.fromkeys(range(8, 13), 1410))
    assert first == "ranks 8, 9, 10 and 2 more run at 1.41 GHz, others at 1.74 GHz"


def test_usual_differences_are_not_named():
    noisy = dict(enumerate((1740 + 120 * np.random.default_rng(1).standard_normal(16)).astype(int).tolist()))
    assert lines(sm_mhz=noisy)[0].startswith("GPUs: clock: 1.7")
    assert lines(sm_mhz={3: 1700}) == ["GPUs: clock: 1.74 GHz, power: 500 W, memory: 60.0 GiB"]


def test_few_ranks_have_no_usual_value():
    assert spread_lines(find_spreads(devices(3, sm_mhz={1: 900})))[0].startswith("GPUs: clock: 1.74 GHz")


def test_what_was_not_recorded_is_left_out():
    unknown = dict.fromkeys(range(16), -1)
    assert lines(power_mw=unknown, peak_memory_bytes=unknown) == ["GPUs: clock: 1.74 GHz"]
    assert lines(power_mw=unknown, peak_memory_bytes=unknown, sm_mhz=unknown) == []


def test_the_diagnosis_of_a_job_names_the_rank(tmp_path):
    for rank in range(8):
        made = recording(rank, 1410 if rank == 5 else 1740)
        Recording(made.trace().store).save(tmp_path / f"rank-{rank:05d}.gscope")
    job = gs.merge(tmp_path, tmp_path / "job")
    assert "rank 5 runs at 1.41 GHz, others at 1.74 GHz" in str(job.diagnose())
    assert job.diagnose().to_dict()["devices"][0]["ranks"] == [5]
    assert job.devices.column("sm_mhz").to_pylist() == [1410 if rank == 5 else 1740 for rank in range(8)]


def test_the_query_has_the_slowest_clock_first():
    pytest.importorskip("duckdb")
    job = Fleet({**job_tables(16), "device": devices(sm_mhz={12: 1410}, power_mw={12: -1})})
    found = job.sql("devices_by_rank")
    row = dict(zip(found.columns, found.rows[0], strict=True))
    assert (row["rank"], row["host"], row["clock_mhz"], row["power_w"]) == (12, "host1", 1410, None)
    assert row["of_mean_clock"] == pytest.approx(1410 / (1740 - 330 / 16))
