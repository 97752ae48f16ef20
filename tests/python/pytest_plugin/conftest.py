# SPDX-License-Identifier: Apache-2.0
"""Runs of pytest inside a test, with the plugin and with canned results instead of measurements."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fakes.benchmark_results import Bench
from gpuscope import _core

# An installed gpuscope is loaded by its entry point, and pytest takes no plugin twice.
ENTRY_POINTS = metadata.entry_points(group="pytest11", name="gpuscope")
PLUGIN = [] if ENTRY_POINTS else ["-p", "gpuscope.pytest_plugin"]

COMMIT = {"id": "0123456789abcdef", "time": None, "author_time": None, "dirty": False, "project": "x", "branch": "x"}

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """What `benchmark` answers."""
    bench = Bench()
    # By its module's name: gpuscope.benchmark itself is the function.
    monkeypatch.setattr(importlib.import_module("gpuscope.benchmark"), "benchmark", bench)
    monkeypatch.setattr(importlib.import_module("gpuscope.benchmark.compare"), "compare", bench.compare)
    return bench


@pytest.fixture
def run(pytester: pytest.Pytester, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs pytest in an empty folder, where each run's baselines are those saved by the runs before it."""
    monkeypatch.setattr(_core, "environment", lambda: {"devices": [], "driver_version": None})
    # These ask processes of their own, git among them, and would take most of the test's time.
    for module in ("plugin", "utils"):
        monkeypatch.setattr(f"pytest_benchmark.{module}.get_commit_info", lambda *_: dict(COMMIT))
    monkeypatch.setattr("pytest_benchmark.plugin.get_cpu_info", lambda: {"brand_raw": "Quick CPU"})
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # which turns pytest-benchmark off

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *arguments)

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
