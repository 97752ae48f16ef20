# SPDX-License-Identifier: Apache-2.0
"""GPU profiling and benchmarking.

Each name is imported from its module when it is first used, so that importing the package costs next to nothing.

PYTEST_DONT_REWRITE: nothing here is a test of the program that pytest runs.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope._core import __version__
    from gpuscope.analysis import DeviceType
    from gpuscope.benchmarking import BenchmarkResult, benchmark
    from gpuscope.benchmarking.compare import compare
    from gpuscope.benchmarking.comparison import Comparison
    from gpuscope.benchmarking.sweeps.crossover import Crossover, crossover
    from gpuscope.benchmarking.sweeps.sweep import Sweep, sweep
    from gpuscope.benchmarking.workloads.dataloader import benchmark_dataloader
    from gpuscope.benchmarking.workloads.dataloader_results import DataLoaderResult, DataLoaderWorkers
    from gpuscope.benchmarking.workloads.latency import Latency, measure_latency
    from gpuscope.benchmarking.workloads.throughput import measure_throughput
    from gpuscope.benchmarking.workloads.throughput_result import Throughput
    from gpuscope.environment import environment
    from gpuscope.errors import (
        CorruptTrace,
        CudaError,
        CuptiError,
        GpuscopeError,
        GpuscopeWarning,
        IncompleteCapture,
        InvalidArgument,
        LibraryError,
        NotAvailable,
        NvmlError,
    )
    from gpuscope.exporters.memory_page import export_memory_page
    from gpuscope.memory.batch_size import MaxBatchSize, find_max_batch_size
    from gpuscope.memory.fragments import Fragmentation, fragmentation
    from gpuscope.memory.history import MemoryHistory, record_memory_history
    from gpuscope.memory.leaks import LeakReport, find_leaks
    from gpuscope.memory.ledger import MemoryLedger, memory_ledger
    from gpuscope.memory.out_of_memory import OutOfMemory
    from gpuscope.memory.out_of_memory_reports import OutOfMemoryReports, report_out_of_memory
    from gpuscope.memory.peak import PeakReport, peak_memory
    from gpuscope.memory.peak_counters import reset_peak
    from gpuscope.memory.snapshot import MemorySnapshot, memory_snapshot
    from gpuscope.memory.snapshot_reader import load_memory_snapshot
    from gpuscope.memory.snapshot_writer import dump_memory_snapshot
    from gpuscope.memory.stages import MemoryStages
    from gpuscope.memory.summary import memory_summary
    from gpuscope.memory.tracking import memory_stages, reset_memory_stages, track_memory
    from gpuscope.profiler import (
        ProfilerAction,
        ProfilerActivity,
        kineto_available,
        profile,
        schedule,
        step,
        supported_activities,
        tensorboard_trace_handler,
    )
    from gpuscope.profiler.execution_trace import ExecutionTraceObserver, itt
    from gpuscope.recording import Recording, load
    from gpuscope.regions import mark, record_function
    from gpuscope.timing.events import Event, synchronize
    from gpuscope.timing.timer import Timer
    from gpuscope.timing.totals import reset_timings, timed, timings

__all__ = [
    "BenchmarkResult",
    "Comparison",
    "CorruptTrace",
    "Crossover",
    "CudaError",
    "CuptiError",
    "DataLoaderResult",
    "DataLoaderWorkers",
    "DeviceType",
    "Event",
    "ExecutionTraceObserver",
    "Fragmentation",
    "GpuscopeError",
    "GpuscopeWarning",
    "IncompleteCapture",
    "InvalidArgument",
    "Latency",
    "LeakReport",
    "LibraryError",
    "MaxBatchSize",
    "MemoryHistory",
    "MemoryLedger",
    "MemorySnapshot",
    "MemoryStages",
    "NotAvailable",
    "NvmlError",
    "OutOfMemory",
    "OutOfMemoryReports",
    "PeakReport",
    "ProfilerAction",
    "ProfilerActivity",
    "Recording",
    "Sweep",
    "Throughput",
    "Timer",
    "__version__",
    "benchmark",
    "benchmark_dataloader",
    "compare",
    "crossover",
    "dump_memory_snapshot",
    "environment",
    "export_memory_page",
    "find_leaks",
    "find_max_batch_size",
    "fragmentation",
    "itt",
    "kineto_available",
    "load",
    "load_memory_snapshot",
    "mark",
    "measure_latency",
    "measure_throughput",
    "memory_ledger",
    "memory_snapshot",
    "memory_stages",
    "memory_summary",
    "peak_memory",
    "profile",
    "record_function",
    "record_memory_history",
    "report_out_of_memory",
    "reset_memory_stages",
    "reset_peak",
    "reset_timings",
    "schedule",
    "step",
    "supported_activities",
    "sweep",
    "synchronize",
    "tensorboard_trace_handler",
    "timed",
    "timings",
    "track_memory",
]

_HOMES = {
    "_core": ("__version__",),
    "analysis": ("DeviceType",),
    "benchmarking": (
        "BenchmarkResult",
        "benchmark",
    ),
    "benchmarking.compare": ("compare",),
    "benchmarking.comparison": ("Comparison",),
    "benchmarking.sweeps.crossover": (
        "Crossover",
        "crossover",
    ),
    "benchmarking.workloads.dataloader": ("benchmark_dataloader",),
    "benchmarking.workloads.dataloader_results": (
        "DataLoaderResult",
        "DataLoaderWorkers",
    ),
    "benchmarking.workloads.latency": (
        "Latency",
        "measure_latency",
    ),
    "benchmarking.sweeps.sweep": (
        "Sweep",
        "sweep",
    ),
    "benchmarking.workloads.throughput": ("measure_throughput",),
    "benchmarking.workloads.throughput_result": ("Throughput",),
    "environment": ("environment",),
    "errors": (
        "CorruptTrace",
        "CudaError",
        "CuptiError",
        "GpuscopeError",
        "GpuscopeWarning",
        "IncompleteCapture",
        "InvalidArgument",
        "LibraryError",
        "NotAvailable",
        "NvmlError",
    ),
    "exporters.memory_page": ("export_memory_page",),
    "memory.batch_size": (
        "MaxBatchSize",
        "find_max_batch_size",
    ),
    "memory.fragments": (
        "Fragmentation",
        "fragmentation",
    ),
    "memory.history": (
        "MemoryHistory",
        "record_memory_history",
    ),
    "memory.leaks": (
        "LeakReport",
        "find_leaks",
    ),
    "memory.ledger": (
        "MemoryLedger",
        "memory_ledger",
    ),
    "memory.out_of_memory": ("OutOfMemory",),
    "memory.out_of_memory_reports": (
        "OutOfMemoryReports",
        "report_out_of_memory",
    ),
    "memory.peak": (
        "PeakReport",
        "peak_memory",
    ),
    "memory.peak_counters": ("reset_peak",),
    "memory.snapshot": (
        "MemorySnapshot",
        "memory_snapshot",
    ),
    "memory.snapshot_reader": ("load_memory_snapshot",),
    "memory.snapshot_writer": ("dump_memory_snapshot",),
    "memory.stages": ("MemoryStages",),
    "memory.summary": ("memory_summary",),
    "memory.tracking": (
        "memory_stages",
        "reset_memory_stages",
        "track_memory",
    ),
    "profiler": (
        "ProfilerAction",
        "ProfilerActivity",
        "kineto_available",
        "profile",
        "schedule",
        "step",
        "supported_activities",
        "tensorboard_trace_handler",
    ),
    "profiler.execution_trace": ("ExecutionTraceObserver", "itt"),
    "recording": ("Recording", "load"),
    "regions": ("mark", "record_function"),
    "timing": ("Event", "Timer", "reset_timings", "synchronize", "timed", "timings"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    # To import gpuscope.environment would put that module in the place of the function of the same name.
    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
