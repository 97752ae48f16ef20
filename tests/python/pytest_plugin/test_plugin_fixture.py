# SPDX-License-Identifier: Apache-2.0
"""The fixture gpu_benchmark, and how its samples come into pytest-benchmark."""

from __future__ import annotations

import importlib.util
import json

import pytest

from gpuscope.benchmarking.benchmarks import benchmark
from gpuscope.benchmarking.comparison import compare

pytest_plugins = ("pytester",)


def test_function_gets_its_arguments_and_its_value_comes_back(run, pytester):
    pytester.makepyfile(
        """
        def scale(x, by, *, stream):
            return x * by, stream

        def test_scale(gpu_benchmark):
            assert gpu_benchmark(scale, 2, by=3, stream="mine") == (6, "mine")
        """
    )
    run().assert_outcomes(passed=1)


def test_result_is_there_to_assert_on(run, pytester):
    pytester.makepyfile(
        """
        def test_quick(gpu_benchmark):
            gpu_benchmark(lambda: None)
            assert gpu_benchmark.result.median < 20e-6

        def test_slow(gpu_benchmark):
            gpu_benchmark(lambda: None)
            assert gpu_benchmark.result.median < 2e-6
        """
    )
    run().assert_outcomes(passed=1, failed=1)


def test_result_before_a_measurement_says_what_to_do(run, pytester):
    pytester.makepyfile("def test_early(gpu_benchmark, benchmark):\n    gpu_benchmark.result\n")
    result = run("-W", "ignore")
    result.stdout.fnmatch_lines(["*NotAvailable: nothing has been measured yet: call gpu_benchmark(function) first"])


def test_table_shows_the_samples_and_not_the_replay(run, bench, one_test, pytester):
    bench.now(seconds=3.0)
    run("--benchmark-json=out.json").assert_outcomes(passed=1)
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    expected = bench.canned.result(None, True).samples
    assert entry["stats"]["data"] == expected.tolist()


def test_table_is_pytest_benchmarks(run, one_test):
    run().stdout.fnmatch_lines(["*benchmark: 1 tests*", "test_gemm *200 *1*"])


def test_clock_has_a_name_in_the_file(run, one_test, pytester):
    run("--benchmark-json=out.json")
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert entry["options"]["timer"] == "gpu_time"


def test_times_of_zero_are_shown(run, bench, one_test):
    bench.now(seconds=0.0)
    run().stdout.fnmatch_lines(["test_it.py::test_gemm  0 s +-[?]  n=200  *"])


def test_many_samples_are_thinned_for_the_table(run, bench, one_test, pytester):
    bench.now(n=12_000)
    run("--benchmark-json=out.json")
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    samples = bench.canned.result(None, True).samples
    assert entry["stats"]["data"] == samples[::3].tolist()


def test_second_measurement_in_a_test_is_refused(run, bench, pytester):
    pytester.makepyfile("def test_two(gpu_benchmark):\n    gpu_benchmark(int)\n    gpu_benchmark(int)\n")
    result = run()
    result.stdout.fnmatch_lines(["*gpu_benchmark measures once a test: *"])
    assert len(bench.asked) == 1


def test_exception_of_the_function_comes_out_and_warns_of_nothing(run, pytester):
    pytester.makepyfile(
        """
        import pytest

        def test_raises(gpu_benchmark):
            with pytest.raises(ZeroDivisionError):
                gpu_benchmark(lambda: 1 // 0)
        """
    )
    run("-W", "error", "--benchmark-autosave").assert_outcomes(passed=1)


def test_failed_measurement_is_not_saved(run, pytester, saved):
    pytester.makepyfile(
        """
        def test_raises(gpu_benchmark):
            gpu_benchmark(lambda: 1 // 0)

        def test_works(gpu_benchmark):
            gpu_benchmark(int)
        """
    )
    run("--benchmark-save=x").assert_outcomes(passed=1, failed=1)
    assert [entry["name"] for entry in saved()[0]["benchmarks"]] == ["test_works"]


def test_group_and_parameters_reach_the_file(run, pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.benchmark(group="gemms")
        @pytest.mark.parametrize("n", [1, 2])
        def test_gemm(gpu_benchmark, n):
            gpu_benchmark(int)
        """
    )
    run("--benchmark-json=out.json").stdout.fnmatch_lines(["*benchmark 'gemms': 2 tests*"])
    entries = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert [(entry["group"], entry["params"]) for entry in entries] == [("gemms", {"n": 1}), ("gemms", {"n": 2})]


def test_timer_of_the_users_is_refused_in_one_sentence(run, pytester):
    pytester.makepyfile(
        """
        import pytest, time

        @pytest.mark.benchmark(timer=time.perf_counter)
        def test_it(gpu_benchmark):
            gpu_benchmark(int)
        """
    )
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["gpu_benchmark has a clock of its own: remove timer= from @pytest.mark.benchmark"])


def test_global_timer_is_left_to_the_other_tests(run, pytester):
    pytester.makepyfile(
        """
        def test_cpu(benchmark):
            benchmark(int)

        def test_gpu(gpu_benchmark):
            gpu_benchmark(int)
        """
    )
    run("--benchmark-timer=time.process_time", "--benchmark-json=out.json").assert_outcomes(passed=2)
    entries = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert [entry["options"]["timer"] for entry in entries] == ["process_time", "gpu_time"]


@pytest.mark.parametrize("call", ["benchmark(time.sleep, 1e-3)", "benchmark.pedantic(time.sleep, (1e-3,))"])
def test_benchmark_of_a_test_that_asks_for_both_has_the_hosts_clock(run, pytester, call):
    pytester.makepyfile(f"import time\n\ndef test_cpu(gpu_benchmark, benchmark):\n    {call}\n")
    run("--benchmark-max-time=0.01", "--benchmark-json=out.json").assert_outcomes(passed=1)
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert entry["stats"]["min"] >= 1e-3


def test_other_tests_of_a_session_are_as_without_the_plugin(run, pytester):
    pytester.makepyfile("def test_cpu(benchmark):\n    benchmark(int)\n")
    result = run("--benchmark-json=out.json")
    assert "gpuscope" not in result.stdout.str()
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert entry["extra_info"] == {}


@pytest.mark.parametrize(
    ("option", "passed", "skipped", "measured"),
    [("--benchmark-only", 1, 1, 1), ("--benchmark-skip", 1, 1, 0), ("--benchmark-disable", 2, 0, 0)],
)
def test_switches_of_pytest_benchmark_hold(run, bench, pytester, option, passed, skipped, measured):
    pytester.makepyfile(
        """
        def test_gpu(gpu_benchmark):
            gpu_benchmark(int)

        def test_other():
            pass
        """
    )
    run(option).assert_outcomes(passed=passed, skipped=skipped)
    assert len(bench.asked) == measured


def test_disabled_function_is_called_once_and_its_value_comes_back(run, pytester):
    pytester.makepyfile(
        """
        def test_gpu(gpu_benchmark):
            calls = []
            assert gpu_benchmark(lambda: calls.append(1) or len(calls)) == 1
            assert not gpu_benchmark.enabled
        """
    )
    run("--benchmark-disable", "-W", "error").assert_outcomes(passed=1)


def test_asking_for_a_result_where_nothing_is_measured_skips(run, pytester):
    pytester.makepyfile(
        """
        def test_gpu(gpu_benchmark):
            gpu_benchmark(int)
            assert gpu_benchmark.result.median < 20e-6
        """
    )
    result = run("--benchmark-disable", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*not measured: pytest-benchmark is disabled*"])


@pytest.mark.parametrize("measure", ["gpu_benchmark(int)", "gpu_benchmark.compare(int, int)"])
def test_ctrl_c_ends_the_run(run, bench, pytester, measure):
    bench.now(interrupted=True)
    pytester.makepyfile(
        f"""
        def test_a(gpu_benchmark):
            {measure}

        def test_b(gpu_benchmark):
            {measure}
        """
    )
    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(bench.asked) == 1


def test_cprofile_profiles_the_function(run, pytester):
    pytester.makepyfile(
        """
        def worker():
            return sorted([3, 1, 2])

        def test_gpu(gpu_benchmark):
            assert gpu_benchmark(worker) == [1, 2, 3]
        """
    )
    run("--benchmark-cprofile=cumtime").stdout.fnmatch_lines(["*(worker)*"])


def test_histogram_is_drawn(one_test, pytester):
    if importlib.util.find_spec("pygal") is None:
        pytest.skip("pytest-benchmark draws with pygal, which is not installed")
    # What pygal imports changes how a process finds its plugins.
    pytester.runpytest_subprocess("--benchmark-histogram=chart").assert_outcomes(passed=1)
    assert list(pytester.path.glob("chart*.svg"))


ASKED_FOR_BY_NAME = """
    import pytest

    @pytest.mark.gpu_benchmark({arguments})
    def test_gemm(request):
        assert request.getfixturevalue("gpu_benchmark")(lambda: 42) == 42
"""


def test_fixture_asked_for_by_name_shows_its_samples(run, bench, pytester):
    pytester.makepyfile(ASKED_FOR_BY_NAME.format(arguments="budget=0.5"))
    run("--benchmark-json=out.json").assert_outcomes(passed=1)
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert entry["stats"]["data"] == bench.canned.result(None, True).samples.tolist()


def test_fixture_asked_for_by_name_has_the_options_of_the_marker(run, bench, pytester):
    pytester.makepyfile(ASKED_FOR_BY_NAME.format(arguments="budget=0.5"))
    run()
    assert bench.asked[0]["budget"] == 0.5


def test_fixture_asked_for_by_name_works_without_pytest_benchmark(run, pytester):
    pytester.makepyfile(ASKED_FOR_BY_NAME.format(arguments=""))
    run("-p", "no:benchmark").assert_outcomes(passed=1)


def test_several_tests_under_xdist_are_called_and_not_measured(run, pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(
        """
        def test_a(gpu_benchmark):
            assert gpu_benchmark(int) == 0
            assert not gpu_benchmark.enabled

        def test_b(gpu_benchmark):
            assert gpu_benchmark(int) == 0
        """
    )
    run("-p", "xdist", "-n1", "-W", "ignore").assert_outcomes(passed=2)


SORTS = """
    import pytest

    pytestmark = pytest.mark.gpu_benchmark(budget=0.1)

    def sort(values):
        assert values != sorted(values)
        values.sort()
        return values

    def test_sort(gpu_benchmark):
        assert gpu_benchmark(sort, setup=[3, 1, 2].copy, teardown=list.clear) == []

    def test_given(gpu_benchmark):
        seen = []
        gpu_benchmark(lambda *args, by: seen.append((args, by)), 1, by=2, teardown=lambda *args, by: seen.pop())
        assert seen == []

    def test_compare(gpu_benchmark):
        gpu_benchmark.compare(sort, lambda values: values.reverse(), setup=[3, 1, 2].copy)
    """


def test_each_call_is_prepared(run, pytester, monkeypatch):
    monkeypatch.setattr("gpuscope.benchmarking.benchmark", benchmark)
    monkeypatch.setattr("gpuscope.benchmarking.comparison.compare", compare)
    pytester.makepyfile(SORTS)
    run().assert_outcomes(passed=3)


def test_the_one_call_is_prepared_where_nothing_is_measured(run, pytester):
    pytester.makepyfile(SORTS)
    run("--benchmark-disable").assert_outcomes(passed=2, skipped=1)
