# SPDX-License-Identifier: Apache-2.0
"""Runs of pytest inside a test, with the plugin and with canned results instead of measurements."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.benchmark_results import Bench
from gpuscope import _core

PLUGINS = ("-p", "gpuscope.pytest_plugin", "-p", "no:cacheprovider")

COMMIT = {"id": "0123456789abcdef", "time": None, "author_time": None, "dirty": False, "project": "x", "branch": "x"}

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """What `benchmark` answers."""
    bench = Bench()
    monkeypatch.setattr(importlib.import_module("gpuscope.benchmarking"), "benchmark", bench)
    monkeypatch.setattr(importlib.import_module("gpuscope.benchmarking.comparison"), "compare", bench.compare)
    return bench


@pytest.fixture
def run(pytester: pytest.Pytester, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs pytest in an empty folder, where each run's baselines are those saved by the runs before it."""
    monkeypatch.setattr(_core, "environment", lambda: {"devices": [], "driver_version": None})
    # These ask processes of their own, git among them, and would take most of the test's time.
    for module in ("plugin", "utils"):
        monkeypatch.setattr(f"pytest_benchmark.{module}.get_commit_info", lambda *_: dict(COMMIT))
    monkeypatch.setattr("pytest_benchmark.plugin.get_cpu_info", lambda: {"brand_raw": "Quick CPU"})
    # Other plugins, loaded anew by each run, would take the rest of it.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # which turns pytest-benchmark off

    def run(*arguments: str) -> pytest.RunResult:
        theirs = () if "no:benchmark" in arguments else ("-p", "benchmark")
        return pytester.runpytest_inprocess(*theirs, *PLUGINS, *arguments)

    return run


@pytest.fixture
def one_test(pytester: pytest.Pytester) -> str:
    """A file with one benchmark; its name for pytest-benchmark."""
    pytester.makepyfile(test_it="def test_gemm(gpu_benchmark):\n    assert gpu_benchmark(lambda: 42) == 42\n")
    return "test_it.py::test_gemm"


@pytest.fixture
def saved(pytester: pytest.Pytester) -> Callable[[], list[dict[str, Any]]]:
    """Reads the runs saved so far."""

    def saved() -> list[dict[str, Any]]:
        files: list[Path] = sorted(pytester.path.glob(".benchmarks/*/*.json"))
        return [json.loads(path.read_text()) for path in files]

    return saved
