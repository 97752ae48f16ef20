# SPDX-License-Identifier: Apache-2.0
"""Measures and compares times of functions and models on GPU and host, with intervals."""

from __future__ import annotations

from gpuscope.benchmarking.benchmarks import benchmark
from gpuscope.benchmarking.comparison import Comparison, compare
from gpuscope.benchmarking.crossovers import Crossover, crossover
from gpuscope.benchmarking.dataloader import DataLoaderResult, DataLoaderWorkers, benchmark_dataloader
from gpuscope.benchmarking.latency import Latency, measure_latency
from gpuscope.benchmarking.result import BenchmarkResult, Measured
from gpuscope.benchmarking.rounds import SweepPoint
from gpuscope.benchmarking.sweeps import Sweep, sweep
from gpuscope.benchmarking.throughput import Throughput, measure_throughput
from gpuscope.benchmarking.tuning import Tuned, triton_bench, tune

__all__ = [
    "BenchmarkResult",
    "Comparison",
    "Crossover",
    "DataLoaderResult",
    "DataLoaderWorkers",
    "Latency",
    "Measured",
    "Sweep",
    "SweepPoint",
    "Throughput",
    "Tuned",
    "benchmark",
    "benchmark_dataloader",
    "compare",
    "crossover",
    "measure_latency",
    "measure_throughput",
    "sweep",
    "triton_bench",
    "tune",
]


def __dir__() -> list[str]:
    return __all__
