# SPDX-License-Identifier: Apache-2.0
"""What goes into pytest-benchmark's files, and what its own comparisons make of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fakes.machines import WITH_GPU
from gpuscope import _core
from gpuscope.conditions import UNKNOWN
from gpuscope.results import plain_values

pytest_plugins = ("pytester",)


def facts_of(run_json):
    return run_json["benchmarks"][0]["extra_info"]["gpuscope"]


def test_saved_run_carries_samples_without_save_data(run, bench, one_test, saved):
    run("--benchmark-save=x")
    (stored,) = saved()
    assert "data" not in stored["benchmarks"][0]["stats"]
    assert facts_of(stored)["samples"] == bench.canned.result(None, True).samples.tolist()


def test_saved_samples_are_thinned_in_their_order(run, bench, one_test, saved):
    bench.now(n=5000)
    run("--benchmark-save=x")
    assert facts_of(saved()[0])["samples"] == bench.canned.result(None, True).samples[::3].tolist()


def test_saved_facts_say_what_was_measured_and_where(run, bench, one_test, saved):
    bench.now(warnings=("it was windy",), calls_per_sample=500)
    run("--benchmark-save=x")
    facts = facts_of(saved()[0])
    estimate = bench.canned.result(None, True).quantities["kernel"].estimate
    assert facts | {"samples": []} == {
        "quantity": "kernel",
        "cold": True,
        "estimate": estimate.value,
        "ci": [estimate.low, estimate.high],
        "confidence": 0.95,
        "method": "median",
        "n": 200,
        "n_eff": estimate.n_eff,
        "calls_per_sample": 500,
        "converged": True,
        "stopped": "precision",
        "throttled": 0.0,
        "clock_hz": 1.98e9,
        "gpu": "NVIDIA H100 80GB HBM3",
        "driver": "580.65.06",
        "power_limit_w": 700.0,
        "conditions": plain_values(UNKNOWN),
        "kernels": [{"name": "gemm", "count": 1.0, "seconds": 10e-6}],
        "warnings": ["it was windy"],
        "samples": [],
    }


def test_file_is_strict_json_even_when_nothing_is_known_of_the_interval(run, bench, one_test, pytester):
    bench.now(n=2)
    run("--benchmark-json=out.json")
    text = (pytester.path / "out.json").read_text()
    assert facts_of(json.loads(text, parse_constant=pytest.fail))["ci"] == [None, None]


def test_users_own_extra_info_stays(run, pytester, saved):
    pytester.makepyfile(
        """
        def test_it(gpu_benchmark, benchmark):
            benchmark.extra_info["shape"] = 4096
            gpu_benchmark(int)
        """
    )
    run("--benchmark-save=x")
    extra = saved()[0]["benchmarks"][0]["extra_info"]
    assert (extra["shape"], extra["gpuscope"]["n"]) == (4096, 200)


def test_machine_info_gets_only_what_stays_the_same(run, one_test, saved, monkeypatch):
    monkeypatch.setattr(_core, "environment", lambda: WITH_GPU)
    run("--benchmark-save=x")
    machine = saved()[0]["machine_info"]
    assert machine["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "memory_bytes": 85_520_809_984}]
    assert machine["gpu_driver"] == "580.159.04"


def test_machine_info_of_a_machine_without_a_gpu_is_left_alone(run, one_test, saved):
    run("--benchmark-save=x")
    assert not [name for name in saved()[0]["machine_info"] if "gpu" in name]


def test_pytest_benchmark_compares_with_a_saved_run(run, one_test):
    run("--benchmark-save=first")
    result = run("--benchmark-compare")
    result.stdout.fnmatch_lines(["test_gemm (0001_first)*", "test_gemm (NOW)*"], consecutive=False)


def test_gate_of_pytest_benchmark_still_fails_and_our_section_is_still_there(run, bench, one_test):
    run("--benchmark-save=first")
    bench.now(seconds=20e-6)
    result = run("--benchmark-compare", "--benchmark-compare-fail=median:5%")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*gpuscope: NVIDIA H100*", "test_it.py::test_gemm *slower: +100*"])


def test_compare_command_reads_the_files(run, one_test, pytester):
    run("--benchmark-save=first")
    run("--benchmark-save=second")
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "--csv=out.csv", "--columns=median,rounds"]
    done = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (pytester.path / "out.csv").read_text().count("test_gemm") == 2
