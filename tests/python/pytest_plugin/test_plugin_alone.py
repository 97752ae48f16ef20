# SPDX-License-Identifier: Apache-2.0
"""The plugin where pytest-benchmark is not, or is not itself, and in runs that have nothing to do with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope
from fakes.machines import WITH_GPU
from gpuscope import _core

pytest_plugins = ("pytester",)

ALONE = ("-p", "no:benchmark")

REPLACER = """
import pytest

class Foreign:
    calls = 0

    @property
    def __class__(self):  # as pytest-codspeed's, which passes for pytest-benchmark's fixture
        from pytest_benchmark.fixture import BenchmarkFixture
        return BenchmarkFixture

    def __call__(self, function, *args, **kwargs):
        Foreign.calls += 1
        return function(*args, **kwargs)

@pytest.fixture
def benchmark():
    return Foreign()
"""


def test_without_pytest_benchmark_it_measures_all_the_same(run, bench, one_test):
    result = run(*ALONE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*gpuscope: NVIDIA H100*", "test_it.py::test_gemm  10.0* us +-*%  n=200  kernel, cold"]
    )


def test_without_pytest_benchmark_a_failing_function_fails_the_test(run, pytester):
    pytester.makepyfile("def test_it(gpu_benchmark):\n    gpu_benchmark(lambda: 1 // 0)\n")
    run(*ALONE).stdout.fnmatch_lines(["*ZeroDivisionError*"])


def test_gate_without_pytest_benchmark_says_what_to_install(run, one_test):
    result = run(*ALONE, "--gpu-benchmark-fail")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpu-benchmark-fail needs pytest-benchmark, *: pip install pytest-benchmark"])


@pytest.mark.parametrize("arguments", [ALONE, ()], ids=["alone", "beside pytest-benchmark"])
def test_replaced_benchmark_is_called_with_the_function(run, bench, pytester, arguments):
    pytester.makeconftest(REPLACER)
    pytester.makepyfile(
        """
        def test_it(gpu_benchmark, benchmark):
            assert gpu_benchmark(lambda x, y: x - y, 5, y=2) == 3
            assert type(benchmark).calls == 1
            assert not gpu_benchmark.enabled
        """
    )
    run(*arguments).assert_outcomes(passed=1)
    assert not bench.asked


def test_replaced_benchmark_times_until_the_gpu_is_done(run, pytester, monkeypatch):
    waited = []
    monkeypatch.setattr(_core, "synchronize", waited.append, raising=False)
    pytester.makeconftest(REPLACER)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu_benchmark(stream=7)
        def test_it(gpu_benchmark):
            assert gpu_benchmark(int) == 0
        """
    )
    # Set only now, for run() makes it a machine without a GPU.
    monkeypatch.setattr("gpuscope.streams._device_of", lambda handle: 3)
    monkeypatch.setattr(_core, "environment", lambda: WITH_GPU)
    run(*ALONE).assert_outcomes(passed=1)
    assert waited == [3]


def test_asking_a_replaced_benchmark_for_a_result_skips(run, pytester):
    pytester.makeconftest(REPLACER)
    pytester.makepyfile("def test_it(gpu_benchmark):\n    gpu_benchmark(int)\n    gpu_benchmark.result\n")
    result = run(*ALONE, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*not measured: conftest has taken pytest-benchmark's place"])


def test_machine_without_a_gpu_says_that_it_measured_the_cpu(run, bench, one_test):
    bench.now(gpu=None, quantity="wall", kernels=(), absent={"kernel": "this machine has no NVIDIA GPU"})
    result = run()
    result.stdout.fnmatch_lines(
        ["*gpuscope: wall time on the CPU (this machine has no NVIDIA GPU)*", "test_it.py::test_gemm * n=200  wall"]
    )


def test_warnings_of_a_result_stand_under_its_line(run, bench, one_test):
    bench.now(warnings=("the clock moved by 12 %",))
    run().stdout.fnmatch_lines(["test_it.py::test_gemm *", "    warning: the clock moved by 12 %"], consecutive=True)


def test_run_without_benchmarks_loads_nothing_heavy(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_it():
            loaded = {"numpy", "gpuscope._core", "gpuscope.benchmarking", "gpuscope.stats"} & set(sys.modules)
            assert not loaded
        """
    )
    package = Path(gpuscope.__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-p", "gpuscope.pytest_plugin", "-p", "no:cacheprovider", "-q"]
    variables = os.environ | {"PYTHONPATH": str(package), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=pytester.path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpuscope" not in done.stdout


def test_marker_is_known_to_pytest(run):
    run("--markers").stdout.fnmatch_lines(["@pytest.mark.gpu_benchmark(cold=True, *"])


def test_fixture_is_listed_with_its_documentation(run):
    run("--fixtures").stdout.fnmatch_lines(["*gpu_benchmark*", "*Measures a function on the GPU; *"])
