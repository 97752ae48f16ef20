# SPDX-License-Identifier: Apache-2.0
"""gpu_benchmark.compare: two functions in one test."""

from __future__ import annotations

import pytest

from fakes.machines import WITH_GPU
from gpuscope import _core

pytest_plugins = ("pytester",)

COMPARING = """
def old(): pass
def new(): pass

def test_faster(gpu_benchmark):
    comparison = gpu_benchmark.compare(old, new, margin=0.02)
    assert comparison.verdict == "{verdict}"
"""


@pytest.fixture(autouse=True)
def h100(run, monkeypatch):
    """Whatever `run` made of the machine, it has a GPU here."""
    monkeypatch.setattr(_core, "environment", lambda: WITH_GPU)
    monkeypatch.setattr(_core, "stream_device", lambda handle: 0, raising=False)


def test_comparison_comes_back_to_assert_on(run, bench, pytester):
    bench.slower = 1.5
    pytester.makepyfile(COMPARING.format(verdict="slower"))
    run().assert_outcomes(passed=1)


def test_marker_and_margin_reach_the_comparison(run, bench, pytester):
    marker = (
        "import pytest\npytestmark = pytest.mark.gpu_benchmark(cold=False, budget=3, quantity='stream', stream=7)\n"
    )
    pytester.makepyfile(marker + COMPARING.format(verdict="same"))
    run().assert_outcomes(passed=1)
    assert bench.asked == [
        {"names": None, "stream": 7, "cold": False, "quantity": "stream", "margin": 0.02, "budget": 3}
    ]


def test_table_shows_the_second_function(run, bench, pytester, saved):
    bench.slower = 2.0
    pytester.makepyfile(COMPARING.format(verdict="slower"))
    run("--benchmark-save=x")
    (entry,) = saved()[0]["benchmarks"]
    assert entry["stats"]["min"] == bench.canned.comparison(2.0, None, 0.02).b.min
    assert entry["extra_info"]["gpuscope"]["samples"] == bench.canned.comparison(2.0, None, 0.02).b.samples.tolist()


def test_first_function_and_ratio_are_saved_beside(run, bench, pytester, saved):
    bench.slower = 1.5
    bench.now(calls_per_sample=20)
    pytester.makepyfile(COMPARING.format(verdict="slower"))
    run("--benchmark-save=x")
    facts = saved()[0]["benchmarks"][0]["extra_info"]["gpuscope"]
    comparison = facts["comparison"]
    assert facts["calls_per_sample"] == 20
    assert comparison["samples"] == bench.canned.result(None, True).samples.tolist()
    assert (comparison["ratio"], comparison["verdict"]) == (1.5, "slower")
    assert comparison["ci"] == pytest.approx([1.4985, 1.5015])


def test_section_says_the_comparison(run, bench, pytester):
    bench.slower = 1.5
    pytester.makepyfile(COMPARING.format(verdict="slower"))
    run().stdout.fnmatch_lines(["*gpuscope: NVIDIA H100*", "    b is 1.500x slower than a (*"])


def test_gate_watches_the_second_function(run, bench, pytester):
    pytester.makepyfile(COMPARING.format(verdict="same"))
    run("--benchmark-save=x")
    bench.now(seconds=12e-6)
    result = run("--benchmark-compare", "--gpu-benchmark-fail")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SLOWER *test_faster: slower: +20.0%*"])


def test_both_functions_are_called_once_and_the_test_skipped_where_nothing_is_measured(run, pytester):
    pytester.makepyfile(
        """
        def test_it(gpu_benchmark):
            calls = []
            try:
                gpu_benchmark.compare(lambda: calls.append("a"), lambda: calls.append("b"))
            finally:
                assert calls == ["a", "b"]
        """
    )
    result = run("--benchmark-disable", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*not measured: pytest-benchmark is disabled*"])


def test_result_of_a_comparison_is_not_a_benchmarks(run, pytester):
    pytester.makepyfile("def test_it(gpu_benchmark):\n    gpu_benchmark.compare(int, int)\n    gpu_benchmark.result\n")
    run().stdout.fnmatch_lines(["*NotAvailable: nothing has been measured yet*"])


def test_comparison_that_was_settled_early_is_still_judged(run, bench, pytester):
    bench.now(noise=0.1, n=40)  # less precise than a benchmark would have to be
    pytester.makepyfile(COMPARING.format(verdict="same"))
    run("--benchmark-save=x")
    bench.now(seconds=20e-6, seed=1)
    result = run("--benchmark-compare", "--gpu-benchmark-fail")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
