# SPDX-License-Identifier: Apache-2.0
"""GPUs watched in the background: samples, files, and what goes wrong with files."""

from __future__ import annotations

import atexit
import csv
import json
import os
import resource
import subprocess
import sys
import threading
import time

import pytest

import gpuscope as gs
from fakes.machines import COST, INSTANCES, XIDS, gpu, sample
from gpuscope import _core
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument
from gpuscope.monitor import gpu_monitor
from gpuscope.monitor.schema import COLUMNS


class FakeSampler:
    """The core's sampler of GPUs that are not there: each take gives what was put in."""

    why = ""
    ends = True

    def __init__(self, interval_ns):
        self.interval_ns = interval_ns
        self.samples = []
        self.stopped = False
        FakeSampler.made = self

    def add(self, *gpus):
        for facts in gpus or [gpu()]:
            self.samples.append(sample(facts))

    def take(self):
        taken, self.samples = self.samples, []
        return taken

    def cost(self):
        return COST

    def stop(self):
        self.stopped = True
        return self.ends


@pytest.fixture
def sampler(monkeypatch):
    """What the next monitor's sampler gives, once it has started."""
    monkeypatch.setattr(_core, "GpuSampler", FakeSampler)
    return lambda: FakeSampler.made


def rows_of(path):
    with path.open() as file:
        return [*csv.DictReader(file)]


def test_a_log_begins_with_the_columns_of_scripts_around_nvidia_smi(sampler, tmp_path):
    path = tmp_path / "gpu.csv"
    with gs.GPUMonitor(log_path=path, interval=5.0):
        sampler().add(gpu(0), gpu(1, temperature_c=50.5))
    first, second = rows_of(path)
    names = ["timestamp", "gpu_idx", "util_pct", "mem_used_mb", "mem_total_mb", "temp_c", "power_w"]
    assert [*first][:7] == names
    assert [first[name] for name in names[1:]] == ["0", "99", "62464", "81920", "67", "612.4"]
    assert (second["gpu_idx"], second["temp_c"]) == ("1", "50.5")
    assert first["timestamp"].startswith("2001-09-")
    assert first["timestamp"][-6] in "+-"


def test_a_log_has_every_figure_and_empty_cells_for_what_is_not_known(sampler, tmp_path):
    path = tmp_path / "gpu.csv"
    with gs.GPUMonitor(path, interval=1):
        sampler().add(gpu(throttle_reasons=["sw_power_cap", "sync_boost"], busy_ratio=None))
    (row,) = rows_of(path)
    assert tuple(row) == COLUMNS
    assert {*_core.GPU_FIGURES} < {*COLUMNS}
    assert (row["sm_hz"], row["throttle_reasons"]) == ("1755000000", "sw_power_cap+sync_boost")
    assert row["throttled_sw_power_cap_s"] == "1.5"
    assert (row["util_pct"], row["busy_ratio"], row["fan_ratio"]) == ("", "", "")
    assert (row["process_cpu_s"], row["process_resident_bytes"]) == ("1.5", "4096")


def test_json_lines_leave_out_what_is_not_known_and_tell_why_once(sampler, tmp_path):
    path = tmp_path / "gpu.jsonl"
    with gs.GPUMonitor(path):
        sampler().add(*[gpu(why={"fan_ratio": "Not Supported"})] * 2)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["gpu_idx"], first["util_pct"], first["memory_used_bytes"]) == (0, 99, 61 << 30)
    assert first["why"] == {"fan_ratio": "Not Supported"}
    assert "fan_ratio" not in first
    assert "why" not in second


def test_a_log_is_appended_to(sampler, tmp_path):
    path = tmp_path / "gpu.csv"
    for _ in range(2):
        with gs.GPUMonitor(path):
            sampler().add()
    assert len(rows_of(path)) == 2


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_spoils_no_other(sampler, tmp_path, cut):
    path = tmp_path / "gpu.csv"
    with gs.GPUMonitor(path):
        sampler().add(gpu(), gpu())
    path.write_bytes(path.read_bytes()[:-cut])
    with gs.GPUMonitor(path):
        sampler().add(gpu(5))
    rows = rows_of(path)
    assert [rows[0]["gpu_idx"], rows[-1]["gpu_idx"], rows[-1]["temp_c"]] == ["0", "5", "67"]


def test_a_file_that_is_removed_begins_anew_with_its_header(sampler, tmp_path):
    path = tmp_path / "gpu.csv"
    monitor = gs.GPUMonitor(path, interval=3600)  # which writes nothing by itself meanwhile
    with monitor:
        sampler().add()
        monitor._collect(sampler())
        path.unlink()
        sampler().add(gpu(3))
    assert [row["gpu_idx"] for row in rows_of(path)] == ["3"]


def test_a_file_that_cannot_be_written_for_a_while_loses_nothing(sampler, tmp_path, monkeypatch):
    path = tmp_path / "gpu.csv"
    monitor = gs.GPUMonitor(path, interval=3600)
    append = monitor._log.append

    def fail(samples):
        raise GpuscopeError("cannot write gpu.csv: No space left on device")

    with monitor:
        monkeypatch.setattr(monitor._log, "append", fail)
        sampler().add(gpu(0))
        with pytest.warns(GpuscopeWarning, match="goes on, but cannot write gpu.csv: No space left"):
            monitor._collect(sampler())
        sampler().add(gpu(1))
        monitor._collect(sampler())  # warned of once
        assert "No space left" in monitor.error
        monkeypatch.setattr(monitor._log, "append", append)
        sampler().add(gpu(2))
    assert [row["gpu_idx"] for row in rows_of(path)] == ["0", "1", "2"]
    assert (monitor.error, monitor.cost.dropped) == ("", 2)


@pytest.fixture
def room():
    """A function that gives files so many bytes at most, as a disk that fills; None ends that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, before if size is None else (size, before[1]))

    yield allow
    allow(None)


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_write_that_was_cut_short_leaves_nothing_and_is_repeated_as_a_whole(sampler, tmp_path, room, name, is_new):
    path = tmp_path / name
    with gs.GPUMonitor(path, interval=3600) as monitor:
        if not is_new:
            sampler().add(gpu(7))
            monitor._collect(sampler())
        before = path.read_bytes() if path.exists() else b""
        sampler().add(gpu(0, why={"fan_ratio": "Not Supported"}), gpu(1))
        room(len(before) + 100)
        with pytest.warns(GpuscopeWarning, match="bytes were written"):
            monitor._collect(sampler())
        room(None)
        assert path.read_bytes() == before
    found = gs.monitor.read_log(path)
    assert ([each.gpu.index for each in found.samples], found.damaged) == ([7] * (not is_new) + [0, 1], 0)
    if name.endswith("jsonl"):
        assert found.samples[-2].gpu.why["fan_ratio"] == "Not Supported"


@pytest.mark.filterwarnings("error")
def test_where_warnings_are_errors_a_failed_write_loses_nothing(sampler, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_monitor, "_WRITE_SECONDS", 0.01)
    path = tmp_path / "gpu.csv"
    monitor = gs.GPUMonitor(path, interval=0.01)
    append, tried = monitor._log.append, threading.Semaphore(0)

    def fail(samples):
        tried.release()
        raise GpuscopeError("no space")

    monkeypatch.setattr(monitor._log, "append", fail)
    with monitor:
        sampler().add(gpu(0))
        assert all(tried.acquire(timeout=60) for _ in range(2)), "the thread tries again"
        assert monitor.error == "no space"
        monkeypatch.setattr(monitor._log, "append", append)
        sampler().add(gpu(1))
    assert [row["gpu_idx"] for row in rows_of(path)] == ["0", "1"]


def test_samples_may_be_asked_for_while_it_stops(sampler):
    monitor = gs.GPUMonitor(None)
    monitor.start()
    sampler().add()

    class Lock:
        """One that was had only after the monitor had stopped."""

        def __enter__(self):
            monitor._sampler = None

        def __exit__(self, *error):
            pass

    monitor._lock = Lock()
    atexit.unregister(monitor.stop)
    assert monitor.latest() == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_told_in_a_sentence():
    from pathlib import Path

    from gpuscope.paths import append_text

    with pytest.raises(GpuscopeError, match="cannot write /dev/full"):
        append_text(Path("/dev/full"), "line\n")


@pytest.mark.parametrize("interval", [0, -1, 0.001, 4000, float("nan"), float("inf"), "1", None, True])
def test_other_intervals_are_refused(interval, tmp_path):
    with pytest.raises(InvalidArgument, match=r"interval is .*; accepted are 0.01 to 3600 seconds"):
        gs.GPUMonitor(tmp_path / "gpu.csv", interval=interval)


@pytest.mark.parametrize("name", ["gpu.txt", "gpu", "gpu.pftrace"])
def test_other_suffixes_are_refused(name, tmp_path):
    with pytest.raises(InvalidArgument, match=r"\.csv or \.parquet or \.jsonl or \.ndjson or \.gscope"):
        gs.GPUMonitor(tmp_path / name)


def test_streams_are_refused():
    with pytest.raises(InvalidArgument, match="accepted are files"):
        gs.GPUMonitor("/dev/null")


def test_a_file_with_other_columns_is_refused_and_kept(tmp_path):
    path = tmp_path / "gpu.csv"
    path.write_text("timestamp,gpu_idx,mine\n1,2,3\n")
    with pytest.raises(InvalidArgument, match=r"a file with other columns \('mine'\)"):
        gs.GPUMonitor(path)
    assert path.read_text() == "timestamp,gpu_idx,mine\n1,2,3\n"


def test_nothing_runs_before_the_start(tmp_path, sampler):
    monitor = gs.GPUMonitor(tmp_path / "gpu.csv")
    assert not monitor.running
    monitor.stop()
    assert not (tmp_path / "gpu.csv").exists()


def test_start_and_stop_may_be_called_again_and_again(sampler, tmp_path):
    monitor = gs.GPUMonitor(tmp_path / "gpu.csv", interval=0.5)
    for _ in range(3):
        monitor.start()
        first = sampler()
        monitor.start()
        assert sampler() is first
        assert (monitor.running, first.interval_ns) == (True, 500_000_000)
        monitor.stop()
        monitor.stop()
        assert (monitor.running, first.stopped) == (False, True)


def test_without_a_file_samples_are_taken(sampler):
    monitor = gs.GPUMonitor(None)
    with monitor:
        sampler().add(gpu(4))
        (sample,) = monitor.take()
        assert monitor.take() == []
        sampler().add(gpu(5))
    assert sample.gpu.index == 4
    assert [sample.gpu.index for sample in monitor.take()] == [5]


def test_without_a_file_the_latest_samples_are_kept_and_others_counted_as_dropped(sampler):
    with gs.GPUMonitor(None) as monitor:
        before = monitor.cost.dropped
        for number in range(3):
            sampler().add(*[gpu(number)] * 5_000)
            monitor.latest()
        assert monitor.cost.dropped - before == 5_000
        assert [sample.gpu.index for sample in monitor.take()] == [1] * 5_000 + [2] * 5_000


def test_a_gpu_that_does_not_answer_is_told_and_what_there_is_is_written(sampler, tmp_path):
    monitor = gs.GPUMonitor(tmp_path / "gpu.csv")
    monitor.start()
    sampler().ends = False
    sampler().add()
    with pytest.warns(GpuscopeWarning, match="a GPU does not answer"):
        monitor.stop()
    assert len(rows_of(tmp_path / "gpu.csv")) == 1
    assert monitor.hangs.startswith("a GPU does not answer")


def test_its_cost_is_told(sampler):
    with gs.GPUMonitor(None) as monitor:
        pass
    cost = monitor.cost
    assert (cost.rounds, cost.skipped, cost.dropped, cost.cpu_s, cost.longest_s) == (3, 1, 2, 1.0, 0.001)
    assert (cost.cpu_ratio, cost.mean_s, cost.p99_s) == (0.002, 3e-05, 9e-05)


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl", "gpu.parquet"])
def test_every_log_states_what_sampling_took(sampler, tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with gs.GPUMonitor(tmp_path / name):
        sampler().add()
    (found,) = gs.monitor.read_log(tmp_path / name).samples
    assert found.cost == gs.monitor.SamplingCost(cpu_ratio=0.002, mean_s=3e-05, p99_s=9e-05, skipped=1)


def test_a_log_of_an_earlier_version_says_what_it_read_less_often(sampler, tmp_path):
    path = tmp_path / "gpu.csv"
    with gs.GPUMonitor(path):
        sampler().add()
    head, line = path.read_text().splitlines()
    assert head.endswith(",sampler_limited")
    path.write_text(f"{head}\n{line}memory/8\n")
    (found,) = gs.monitor.read_log(path).samples
    assert found.cost.limited == "memory/8"


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl", "gpu.parquet"])
def test_errors_and_instances_are_logged_and_come_back(sampler, tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with gs.GPUMonitor(tmp_path / name):
        sampler().add(gpu(0, xid_errors=XIDS, instances=INSTANCES), gpu(1), gpu(2, xid_errors=None))
    split, whole, unknown = (sample.gpu for sample in gs.monitor.read_log(tmp_path / name).samples)
    assert split.xid_errors == tuple(gs.monitor.XidErrors(*error) for error in XIDS)
    assert split.instances == tuple(gs.monitor.MigInstance(**instance) for instance in INSTANCES)
    assert (whole.xid_errors, whole.instances) == ((), None)
    assert unknown.xid_errors is None


@pytest.mark.parametrize("interval", [0.01, 3600])
def test_the_file_grows_while_it_runs(sampler, tmp_path, monkeypatch, interval):
    monkeypatch.setattr(gpu_monitor, "_WRITE_SECONDS", 0.01)
    path = tmp_path / "gpu.csv"
    with gs.GPUMonitor(path, interval=interval):
        sampler().add()
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert path.exists()


LOGS = """
import sys, time
import gpuscope as gs
monitor = gs.GPUMonitor({path!r}, interval=0.01)
monitor.start()
while not monitor.latest():
    time.sleep(0.01)
{ending}
"""


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(0)", "1 / 0", "raise KeyboardInterrupt"])
def test_a_program_that_ends_without_stop_has_its_log(ending, tmp_path):
    path = tmp_path / "gpu.csv"
    subprocess.run(
        [sys.executable, "-c", LOGS.format(path=str(path), ending=ending)], stderr=subprocess.DEVNULL, timeout=300
    )
    rows = rows_of(path)
    assert rows
    if not gs.gpu_snapshot().gpus:  # this process alone is known
        assert {row["gpu_idx"] for row in rows} == {""}
        assert float(rows[0]["process_resident_bytes"]) > 1e6


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "1 / 0"])
def test_a_program_that_ends_without_stop_has_its_log_in_parquet_too(ending, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "gpu.parquet"
    subprocess.run(
        [sys.executable, "-c", LOGS.format(path=str(path), ending=ending)], stderr=subprocess.DEVNULL, timeout=300
    )
    assert gs.monitor.read_log(path).samples
    assert not path.with_name("gpu.parquet.part").exists()


def test_a_machine_without_a_gpu_says_so_once_at_the_line_that_starts(sampler, monkeypatch):
    monkeypatch.setattr(FakeSampler, "why", "libnvidia-ml was not found")
    monitor = gs.GPUMonitor(None)
    with pytest.warns(GpuscopeWarning, match="samples no GPU, .*: libnvidia-ml was not found") as warned, monitor:
        assert monitor.why == "libnvidia-ml was not found"
    assert [warning.filename for warning in warned] == [__file__]
    monitor.start()  # where a warning is an error
    monitor.stop()


def test_where_warnings_are_errors_a_machine_without_a_gpu_starts_nothing(sampler, monkeypatch):
    monkeypatch.setattr(FakeSampler, "why", "libnvidia-ml was not found")
    monitor = gs.GPUMonitor(None)
    with pytest.raises(GpuscopeWarning):
        monitor.start()
    assert not monitor.running


def test_a_reading_of_the_same_moment_has_no_negative_age(sampler, tmp_path):
    path = tmp_path / "gpu.csv"
    with gs.GPUMonitor(path):
        now_ns = 1_000_000_000_000_246_564
        sampler().samples.append(sample(None) | {"time_ns": now_ns, "slow_time_ns": now_ns, "host_time_ns": now_ns})
    (row,) = rows_of(path)
    assert (row["slow_age_s"], row["host_age_s"]) == ("0", "0")


def test_importing_it_starts_nothing():
    code = "import threading, gpuscope.monitor.gpu_monitor as m; print(threading.active_count())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"
