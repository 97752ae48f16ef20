# SPDX-License-Identifier: Apache-2.0
"""Every table is a frame of pandas and a Parquet file."""

from __future__ import annotations

import math
import sys

import pytest

import gpuscope as gs
from fakes.explorations import exploration
from fakes.memory_events import events
from fakes.monitors import series
from fakes.recordings import aggregate, cpu_only, training
from fakes.results import POINT, recording, timings
from gpuscope import _core, diffing
from gpuscope.costs.energy import DeviceEnergy, EnergyReport, EnergyRow
from gpuscope.costs.roofline import Roofline
from gpuscope.counters.measuring import CounterMeasurement
from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.memory.history.leaks import LeakReport
from gpuscope.memory.limits.batch_size import MaxBatchSize
from gpuscope.monitor.frames import frame_of_samples
from gpuscope.monitor.log import Log
from gpuscope.recording import Recording
from gpuscope.results import Result
from gpuscope.trace import Trace

pd = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")


def energy():
    row = EnergyRow("forward", 1, 0.5, None, 300.0, 1980.0, {"power_cap": 0.1})
    rest = (None, None, None, None, 300.0, (row,), 0, None, (), {})
    return EnergyReport((DeviceEnergy(0, "H100", 1.0, *rest),))


# What makes the result, how many rows its frame has (None: at least one), and columns among those.
TABLES = {
    "key_averages": (lambda: recording().key_averages(), None, ["key", "device_time_total", "p50", "device_type"]),
    "key_averages of a CPU": (lambda: Recording(cpu_only().store).key_averages(), None, ["key", "self_cpu_time_total"]),
    "by shape": (lambda: recording().key_averages(group_by_input_shape=True), None, ["input_shapes"]),
    "by stack": (lambda: recording().key_averages(group_by_stack_n=2), None, ["stack"]),
    "events": (lambda: recording().events(), None, ["name", "cpu_time_total"]),
    "tree": (lambda: recording().tree(), None, ["name", "parent", "device_ns"]),
    "samples": (lambda: recording().samples(), 0, ["function", "self_ns"]),
    "modules": (lambda: recording().modules(), None, []),
    "step_breakdown": (lambda: recording().step_breakdown(), None, ["device", "name", "exclusive_s", "share"]),
    "diagnose": (lambda: recording().diagnose(), 1, ["id", "saving", "share"]),
    "audit": (lambda: recording().audit(), 1, ["verdict", "launches", "overhead_percent"]),
    "counters": (lambda: recording().counters(), 0, []),
    "measure_counters": (
        lambda: CounterMeasurement({"a.sum": 1.0, "b.sum": math.nan}, {"a.sum": "B"}, "GH100", 0, 1),
        2,
        ["metric", "value", "unit"],
    ),
    "energy": (energy, 1, ["device", "name", "power_w", "throttled.power_cap"]),
    "roofline": (
        lambda: Roofline(0, "H100", {}, {}, (POINT,), (POINT,), ()),
        2,
        ["name", "kind", "bandwidth", "intensity"],
    ),
    "diff": (lambda: diffing.diff(recording(), recording()), None, ["name", "before_s", "after_s", "low_s", "high_s"]),
    "timings": (timings, 1, ["name", "wall_mean"]),
    "memory events": (lambda: events(("alloc", 0x100, 512), ("free", 0x100, 512)), 2, ["bytes", "source"]),
    "peak_memory": (lambda: gs.peak_memory(events(("alloc", 0x100, 512))), 1, ["place", "bytes"]),
    "memory_snapshot": (gs.memory_snapshot, None, []),
    "memory_stages": (gs.memory_stages, None, []),
    "find_leaks": (lambda: LeakReport((), 9, 3, 100), 0, []),
    "find_max_batch_size": (lambda: MaxBatchSize(3), 0, []),
    "gpu_snapshot": (gs.gpu_snapshot, None, []),
    "exploration": (exploration, 42, ["operation", "n", "side", "wall.value", "wall.low", "rate", "speedup.value"]),
    "sweep": (lambda: gs.sweep(lambda n: None, n=[1, 2], budget=0.2), 2, ["n", "seconds"]),
    "latency": (lambda: gs.measure_latency(lambda x: None, 1, 5, 1), 1, []),
    "compare": (lambda: gs.compare(lambda: sum(range(99)), lambda: sum(range(98)), budget=0.5), 1, ["verdict"]),
    **{
        f"trace.{table.attribute}": (lambda name=table.attribute: getattr(Trace(training().store), name), None, [])
        for table in _core.schema()
        if table.role != _core.Role.INFO
    },
}


@pytest.mark.parametrize("name", TABLES)
def test_it_is_a_frame_and_a_parquet_file(name, tmp_path):
    make, rows, columns = TABLES[name]
    result = make()
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == rows if rows is not None else len(frame) >= (0 if not columns else 1)
    assert set(columns) <= {*frame.columns}
    result.to_parquet(tmp_path / "table.parquet")
    read = parquet.read_table(tmp_path / "table.parquet")
    assert read.num_rows == len(frame)
    assert read.column_names == [*map(str, frame.columns)]


def every_result(kind):
    for each in kind.__subclasses__():
        yield each
        yield from every_result(each)


def test_there_is_no_result_without():
    for module in gs.__dir__():
        getattr(gs, module)
    names = {each.__name__ for each in every_result(Result)}
    assert {"Averages", "Diff", "StepBreakdown", "BenchmarkResult", "Crossover"} <= names
    for kind in (*every_result(Result), type(training().kernels), gs.memory.MemoryEvents, gs.GPUMonitor):
        assert callable(kind.to_pandas)
        assert callable(kind.to_parquet)


def test_figures_are_those_of_the_table():
    averages = recording().key_averages()
    frame = averages.to_pandas().set_index("key")
    for row in averages:
        assert frame.loc[[row.key], "count"].sum() == sum(each.count for each in averages if each.key == row.key)
    breakdown = recording().step_breakdown()
    assert breakdown.to_pandas()["share"].sum() == pytest.approx(1.0)


def test_a_recording_of_totals_has_frames_too():
    assert len(Recording(aggregate().store).key_averages().to_pandas())


def test_samples_of_gpus_are_rows():
    frame = frame_of_samples([*series(3, index=0), *series(3, index=1)])
    assert frame["gpu_idx"].tolist() == [0, 0, 0, 1, 1, 1]
    assert str(frame["timestamp"].dtype).startswith("datetime64")


@pytest.mark.filterwarnings("ignore:GPUMonitor samples no GPU")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", None])
def test_what_a_monitor_saw_is_a_frame(tmp_path, suffix):
    log = None if suffix is None else tmp_path / f"log{suffix}"
    monitor = gs.GPUMonitor(log, interval=0.01)
    with monitor:
        while len(monitor.latest()) == 0:
            pass
    frame = monitor.to_pandas()
    assert len(frame) >= 1
    assert {"timestamp", "process_resident_bytes"} <= {*frame.columns}


def test_the_frame_of_a_parquet_log_has_earlier_runs_and_the_one_that_goes_on(tmp_path):
    path = tmp_path / "log.parquet"
    log = Log(path)
    log.append(series(3))
    log.close()
    log.append(series(2, begin_s=2e9))
    frame = gs.GPUMonitor(path).to_pandas()
    assert frame["timestamp"].dt.year.tolist() == [2001] * 3 + [2033] * 2
    assert frame["gpu_idx"].tolist() == [0] * 5
    gs.GPUMonitor(path).to_parquet(tmp_path / "all.parquet")


def test_reasons_of_a_parquet_log_that_goes_on_are_text_everywhere(tmp_path):
    path = tmp_path / "log.parquet"
    for begin_s in (1e9, 2e9):
        log = Log(path)
        log.append(series(2, begin_s=begin_s, why={"fan_ratio": "Not Supported"}))
        if begin_s == 1e9:
            log.close()
    frame = gs.GPUMonitor(path).to_pandas()
    assert frame["why"].dropna().tolist() == ['{"fan_ratio": "Not Supported"}'] * 2
    gs.GPUMonitor(path).to_parquet(tmp_path / "all.parquet")


def test_without_pandas_or_pyarrow_it_is_a_sentence(monkeypatch, tmp_path):
    averages = recording().key_averages()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotAvailable, match=r"pyarrow is not installed; pip install pyarrow"):
        averages.to_parquet(tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotAvailable, match="pandas is not installed; pip install pandas"):
        recording().audit().to_pandas()
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(GpuscopeError, match="absent"):
        recording().key_averages().to_parquet(tmp_path / "absent" / "x.parquet")
