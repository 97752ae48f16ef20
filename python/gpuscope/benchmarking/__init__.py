# SPDX-License-Identifier: Apache-2.0
"""The time of functions on the GPU and on the host, with intervals, and how it compares."""

from __future__ import annotations

from gpuscope.benchmarking.result import BenchmarkResult, Measured
from gpuscope.benchmarking.runner import benchmark

__all__ = ["BenchmarkResult", "Measured", "benchmark"]
