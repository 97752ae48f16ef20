# SPDX-License-Identifier: Apache-2.0
"""--gpu-benchmark-fail: what fails a run, and what never does."""

from __future__ import annotations

import pytest

from fakes.benchmark_results import Canned

pytest_plugins = ("pytester",)

GATE = ("--benchmark-compare", "--gpu-benchmark-fail")
ALL_RUNS = ("--benchmark-compare=0*", "--gpu-benchmark-fail")
SAVE = "--benchmark-save=x"


def save_runs(run, bench, times):
    for seed, seconds in enumerate(times):
        bench.now(seconds=seconds, seed=seed)
        run(SAVE)


def test_slowdown_of_ten_percent_fails_and_names_its_kernel(run, bench, one_test):
    bench.now(kernels=(("gemm", 1.0, 8e-6), ("bias", 1.0, 2e-6)))
    run(SAVE)
    bench.now(seconds=11e-6, seed=1, kernels=(("gemm", 1.0, 8e-6), ("bias", 1.0, 3e-6)))
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*1 benchmark is slower than its baseline*",
            "SLOWER test_it.py::test_gemm: slower: +10.*allowed +5.0%: kernel bias takes 3.000 us per call, 2.000 us*",
        ]
    )


def test_without_the_option_a_slowdown_is_said_and_does_not_fail(run, bench, one_test):
    run(SAVE)
    bench.now(seconds=11e-6, seed=1)
    result = run("--benchmark-compare")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * slower: +10*"])


@pytest.mark.parametrize("seed", range(1, 9))
def test_noisy_runs_of_the_same_code_do_not_fail(run, bench, one_test, seed):
    bench.now(noise=0.3, n=60)
    run(SAVE)
    bench.now(seed=seed)
    assert run(*GATE).ret == pytest.ExitCode.OK


def test_slowdown_within_the_margin_does_not_fail(run, bench, one_test):
    run(SAVE)
    bench.now(seconds=10.3e-6, seed=1)
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * same: +3*"])


def test_margin_of_the_command_line_counts(run, bench, one_test):
    run(SAVE)
    bench.now(seconds=10.5e-6, seed=1)
    assert run("--benchmark-compare", "--gpu-benchmark-fail=2%").ret == pytest.ExitCode.TESTS_FAILED


def test_margin_of_the_marker_wins(run, bench, pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu_benchmark(margin=0.3)
        def test_gemm(gpu_benchmark):
            gpu_benchmark(int)
        """
    )
    run(SAVE)
    bench.now(seconds=12e-6, seed=1)
    assert run("--benchmark-compare", "--gpu-benchmark-fail=2%").ret == pytest.ExitCode.OK


def test_interval_across_the_margin_is_inconclusive(run, bench, one_test):
    bench.now(noise=0.2, n=50)
    run(SAVE)
    bench.now(seconds=10.7e-6, seed=1)
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * inconclusive: *", "*reaches across the margin of 5%"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"converged": False}, "did not reach the requested precision (budget)"),
        ({"throttled": 0.2}, "was throttled in 20% of its samples"),
    ],
)
@pytest.mark.parametrize("side", ["this run", "the baseline"])
def test_sure_slowdown_fails_whatever_is_doubtful_and_says_it(run, bench, one_test, change, said, side):
    sure = bench.canned
    if side == "the baseline":
        bench.now(**change)
    run(SAVE)
    bench.canned = sure
    bench.now(seconds=20e-6, **(change if side == "this run" else {}))
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * slower: +100*", f"*{side} {said}"])


@pytest.mark.parametrize("side", ["this run", "the baseline"])
def test_throttled_run_that_is_not_slower_is_inconclusive(run, bench, one_test, side):
    sure = bench.canned
    if side == "the baseline":
        bench.now(throttled=0.2)
    run(SAVE)
    bench.canned = sure
    bench.now(seed=1, throttled=0.2 if side == "this run" else 0.0)
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * inconclusive: *", f"*{side} was throttled *"])


def test_interval_decides_that_an_imprecise_run_is_the_same(run, bench, one_test):
    run(SAVE)
    bench.now(seed=1, converged=False)
    run(*GATE).stdout.fnmatch_lines(["test_it.py::test_gemm * same: *"])


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_calls_of_which_few_fit_into_the_budget_reach_the_gate(run, bench, one_test, n):
    bench.now(seconds=2.0 / n, n=n, converged=False)
    run(SAVE)
    bench.now(seconds=4.0 / n, seed=1)
    assert run(*GATE).ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_calls_of_which_few_fit_into_the_budget_do_not_fail_when_nothing_changed(run, bench, one_test, n):
    bench.now(seconds=2.0 / n, n=n, converged=False)
    run(SAVE)
    bench.now(seed=1)
    assert run(*GATE).ret == pytest.ExitCode.OK


def test_faster_is_mentioned(run, bench, one_test):
    run(SAVE)
    bench.now(seconds=8e-6, seed=1)
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * faster: -20*"])


def test_spread_between_the_baselines_is_taken_into_account(run, bench, one_test):
    # Each run's own samples are certain to a permille; the runs differ by several percent.
    save_runs(run, bench, [9.5e-6, 10.5e-6, 9.7e-6, 10.3e-6])
    bench.now(seconds=11e-6, seed=9)
    result = run(*ALL_RUNS)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * inconclusive: +10* 4 runs*"])


def test_slowdown_beyond_the_spread_of_the_baselines_fails(run, bench, one_test):
    save_runs(run, bench, [9.98e-6, 10.02e-6, 9.97e-6, 10.03e-6])
    bench.now(seconds=11e-6, seed=9)
    assert run(*ALL_RUNS).ret == pytest.ExitCode.TESTS_FAILED


def test_of_two_baselines_the_slower_one_decides(run, bench, one_test):
    save_runs(run, bench, [10e-6, 10.8e-6])
    bench.now(seconds=11e-6, seed=9)
    assert run(*ALL_RUNS).ret == pytest.ExitCode.OK


def test_accepted_speedup_does_not_hide_a_regression(run, bench, one_test):
    save_runs(run, bench, [10e-6, 10.02e-6, 9.98e-6, 5e-6, 5.01e-6])
    bench.now(seconds=7e-6, seed=9)
    result = run(*ALL_RUNS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*3 older runs were left out: the time changed by -49.9% with the baseline of 20*"])


def test_accepted_slowdown_is_the_new_level(run, bench, one_test):
    save_runs(run, bench, [10e-6, 10.02e-6, 9.98e-6, 15e-6])
    bench.now(seconds=15e-6, seed=9)
    result = run(*ALL_RUNS)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * same: *"])


def test_runs_from_folders_of_several_machines_are_taken_in_their_order_of_time(run, bench, one_test, pytester):
    save_runs(run, bench, [10e-6, 10.02e-6, 9.98e-6, 5e-6, 5.01e-6])
    files = sorted(pytester.path.glob(".benchmarks/*/*.json"))
    other = pytester.mkdir(".benchmarks/another machine")
    for number, file in enumerate(files[3:], 1):  # which the other machine counts from 1
        file.rename(other / f"{number:04}_x.json")
    bench.now(seconds=9e-6, seed=9)
    assert run("--benchmark-compare=*/0*", "--gpu-benchmark-fail").ret == pytest.ExitCode.TESTS_FAILED


def test_doubtful_baseline_is_left_out_when_there_are_others(run, bench, one_test):
    run(SAVE)
    bench.now(seconds=50e-6, converged=False)
    run(SAVE)
    bench.now(seconds=11e-6, converged=True, seed=1)
    result = run(*ALL_RUNS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*1 run)*"])


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ({"gpu": "NVIDIA L4"}, "was measured on NVIDIA L4, this run on NVIDIA H100 80GB HBM3"),
        ({"gpu": None, "quantity": "kernel"}, "was measured on the CPU, this run on NVIDIA H100 80GB HBM3"),
        ({"driver": "550.54.14"}, "was measured with driver 550.54.14, this run with 580.65.06"),
        ({"power_limit_w": 350.0}, "was measured at a power limit of 350 W, this run at 700 W"),
        ({"quantity": "stream"}, "holds stream times, this run kernel times"),
    ],
)
def test_baseline_of_other_conditions_is_refused(run, bench, one_test, then, said):
    bench.now(seconds=1e-6, **then)
    run(SAVE)
    bench.canned = Canned()
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_gemm * not compared",
            f"*the baseline of 20* (commit 01234567) {said}",
            "*--gpu-benchmark-fail could not compare*",
            f"NOT COMPARED test_it.py::test_gemm: the baseline of 20* (commit 01234567) {said}",
        ]
    )


def test_baseline_of_other_conditions_fails_nothing_without_the_option(run, bench, one_test):
    bench.now(gpu="NVIDIA L4")
    run(SAVE)
    bench.canned = Canned()
    assert run("--benchmark-compare").ret == pytest.ExitCode.OK


def test_another_minor_driver_is_compared(run, bench, one_test):
    bench.now(driver="580.10.01")
    run(SAVE)
    bench.now(driver="580.65.06", seed=1)
    run(*GATE).stdout.fnmatch_lines(["test_it.py::test_gemm * same: *"])


def test_unknown_power_limit_is_compared(run, bench, one_test):
    bench.now(power_limit_w=None)
    run(SAVE)
    bench.now(power_limit_w=700.0, seed=1)
    run(*GATE).stdout.fnmatch_lines(["test_it.py::test_gemm * same: *"])


def test_cold_is_not_compared_with_hot(run, bench, one_test):
    run(SAVE, "--gpu-benchmark-cache=hot")
    run(*GATE).stdout.fnmatch_lines(["*was measured with a hot cache, this run with a cold cache"])


def test_wall_times_of_another_processor_are_not_compared(run, bench, one_test, monkeypatch):
    bench.now(gpu=None, quantity="wall", kernels=())
    run(SAVE)
    monkeypatch.setattr("pytest_benchmark.plugin.get_cpu_info", lambda: {"brand_raw": "Other CPU"})
    run(*GATE, "-W", "ignore").stdout.fnmatch_lines(["*was measured on Quick CPU, this run on Other CPU"])


def test_new_test_is_said_and_does_not_fail(run, pytester, one_test):
    run(SAVE)
    pytester.makepyfile(test_new="def test_relu(gpu_benchmark):\n    gpu_benchmark(int)\n")
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["test_new.py::test_relu * no baseline"])


def test_baseline_of_plain_pytest_benchmark_is_refused(run, pytester):
    pytester.makepyfile(test_it="def test_gemm(benchmark):\n    benchmark(int)\n")
    run(SAVE)
    pytester.makepyfile(test_it="def test_gemm(gpu_benchmark):\n    gpu_benchmark(int)\n")
    run(*GATE).stdout.fnmatch_lines(["*was not measured with gpu_benchmark"])


def test_gate_without_a_source_of_baselines_is_a_usage_error(run, one_test):
    result = run("--gpu-benchmark-fail")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpu-benchmark-fail needs a baseline: add --benchmark-compare, *"])


def test_failed_test_keeps_its_exit_status(run, bench, pytester):
    pytester.makepyfile("def test_gemm(gpu_benchmark):\n    gpu_benchmark(int)\n    assert False\n")
    run(SAVE)
    bench.now(seconds=20e-6)
    assert run(*GATE).ret == pytest.ExitCode.TESTS_FAILED
