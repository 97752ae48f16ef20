# SPDX-License-Identifier: Apache-2.0
"""--gpu-benchmark-fail fails where it cannot watch; what is wrong with the stored runs is one sentence."""

from __future__ import annotations

import json

import pytest

pytest_plugins = ("pytester",)

GATE = ("--benchmark-compare", "--gpu-benchmark-fail", "-W", "ignore")
ALL_RUNS = ("--benchmark-compare=0*", "--gpu-benchmark-fail", "-W", "ignore")
SAVE = "--benchmark-save=x"


@pytest.fixture
def stored(pytester, run, one_test):
    """The path of the latest of two saved runs, and a change of what is in it."""
    run(SAVE)
    run(SAVE)
    path = sorted(pytester.path.glob(".benchmarks/*/*.json"))[-1]

    def change(edit):
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))

    return path, change


def facts(content):
    return content["benchmarks"][0]["extra_info"]["gpuscope"]


def assert_refused_at_once(result, bench, said):
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert not bench.asked


def test_no_saved_run_ends_the_run_before_anything_is_measured(run, bench, one_test):
    said = "--gpu-benchmark-fail has nothing to compare with: --benchmark-compare found no saved run; save one with *"
    assert_refused_at_once(run(*GATE), bench, said)


@pytest.mark.parametrize("text", ["", "{", '{"benchmarks": [', "[]", "null", "\x00\x01"])
@pytest.mark.parametrize("arguments", [GATE, ALL_RUNS], ids=["latest", "all"])
def test_file_that_cannot_be_read_ends_the_run(run, bench, stored, text, arguments):
    path, _ = stored
    path.write_text(text)
    bench.asked.clear()
    said = f"--gpu-benchmark-fail: *{path.name} cannot be read as a saved run of pytest-benchmark; delete it or save*"
    assert_refused_at_once(run(*arguments), bench, said)


def test_saved_run_without_a_test_ends_the_run(run, bench, stored):
    stored[1](lambda content: content["benchmarks"].clear())
    bench.asked.clear()
    said = (
        "--gpu-benchmark-fail has nothing to compare with: the saved runs that --benchmark-compare found hold no test"
    )
    assert_refused_at_once(run(*GATE), bench, said)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda content: content.pop("machine_info"), "it has no machine_info"),
        (lambda content: content["benchmarks"][0].pop("fullname"), "a test has no fullname"),
        (lambda content: content["benchmarks"].insert(0, {"stats": {"ops": 1}}), "a test has no fullname"),
        (lambda content: content["benchmarks"][0]["stats"].pop("median"), "test_it.py::test_gemm has no median"),
    ],
)
@pytest.mark.parametrize("arguments", [GATE, ("--benchmark-compare", "-W", "ignore")], ids=["gate", "no gate"])
def test_run_that_pytest_benchmark_would_break_on_is_one_sentence(run, bench, stored, edit, said, arguments):
    stored[1](edit)
    bench.asked.clear()
    said = f"the baseline of 20* (commit 01234567) is damaged: {said}; delete its file or save it again"
    assert_refused_at_once(run(*arguments), bench, said)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("estimate", None, "its estimate is None"),
        ("estimate", "fast", "its estimate is 'fast'"),
        ("estimate", 0, "its estimate is 0"),
        ("estimate", -1e-6, "its estimate is -1e-06"),
        ("estimate", float("nan"), "its estimate is nan"),
        ("estimate", 10**400, "its estimate is 1000000000000000000000000000000000000[.][.][.]"),
        ("ci", [1], "its ci is [[]1[]]"),
        ("ci", [2.0, 1.0], "its ci is [[]2.0, 1.0[]]"),
        ("confidence", 1.5, "its confidence is 1.5"),
        ("samples", [], "its samples is [[][]]"),
        ("samples", ["x"], "its samples is [[]'x'[]]"),
        ("converged", "yes", "its converged is 'yes'"),
        ("throttled", None, "its throttled is None"),
        ("kernels", [{}], "its kernels is [[]{}[]]"),
        ("gpu", 7, "its gpu is 7"),
    ],
)
def test_damaged_field_is_said_and_fails(run, stored, field, value, said):
    stored[1](lambda content: facts(content).update({field: value}))
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"NOT COMPARED test_it.py::test_gemm: *(commit 01234567) is damaged: {said}"])


def test_missing_field_is_said_and_fails(run, stored):
    stored[1](lambda content: facts(content).pop("quantity"))
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT COMPARED *is damaged: it has no quantity"])


def test_damaged_field_fails_nothing_without_the_gate(run, stored):
    stored[1](lambda content: facts(content).pop("estimate"))
    result = run("--benchmark-compare", "-W", "ignore")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*is damaged: it has no estimate"])


def test_damaged_run_fails_though_others_can_be_compared(run, stored):
    stored[1](lambda content: facts(content).update(estimate=None))
    result = run(*ALL_RUNS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_gemm * 1 run)",
            "NOT COMPARED test_it.py::test_gemm: *(commit 01234567) is damaged: its estimate is None",
        ]
    )


def test_other_runs_are_compared_where_one_is_damaged(run, bench, stored):
    stored[1](lambda content: facts(content).pop("estimate"))
    bench.now(seconds=20e-6, seed=1)
    result = run(*ALL_RUNS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_it.py::test_gemm * slower: *1 run)*"])


def test_baseline_of_other_tests_alone_fails(run, pytester, stored):
    pytester.path.joinpath("test_it.py").unlink()
    pytester.makepyfile(test_new="def test_relu(gpu_benchmark):\n    gpu_benchmark(int)\n")
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no baseline has any of the tests that were measured"])


def test_baseline_of_plain_pytest_benchmark_fails(run, pytester):
    pytester.makepyfile(test_it="def test_gemm(benchmark):\n    benchmark(int)\n")
    run(SAVE)
    pytester.makepyfile(test_it="def test_gemm(gpu_benchmark):\n    gpu_benchmark(int)\n")
    assert run(*GATE).ret == pytest.ExitCode.TESTS_FAILED


def test_tests_that_measured_nothing_fail(run, pytester, stored):
    pytester.makepyfile(
        test_it="import pytest\n\ndef test_gemm(gpu_benchmark):\n    pytest.skip('no GPU')\n",
    )
    result = run(*GATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["nothing was measured, so that nothing was compared"])


def test_run_without_benchmarks_passes(run, pytester, stored):
    pytester.makepyfile(test_it="def test_plain():\n    pass\n")
    assert run(*GATE).ret == pytest.ExitCode.OK


def test_collecting_alone_passes(run, stored):
    assert run(*GATE, "--collect-only").ret == pytest.ExitCode.OK


def test_gate_with_measuring_disabled_is_a_usage_error(run, bench, stored):
    bench.asked.clear()
    said = "--gpu-benchmark-fail needs measurements, and pytest-benchmark measures nothing with --benchmark-disable *"
    assert_refused_at_once(run(*GATE, "--benchmark-disable"), bench, said)


def test_gate_takes_measuring_that_is_enabled_after_all(run, stored):
    assert run(*GATE, "--benchmark-disable", "--benchmark-enable").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("margin", ["float('nan')", "float('inf')", "10**400", "0", "'5%'", "None"])
def test_margin_that_is_no_number_is_one_sentence(run, bench, pytester, margin):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.gpu_benchmark(margin={margin})
        def test_gemm(gpu_benchmark):
            gpu_benchmark(int)
        """
    )
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["@pytest.mark.gpu_benchmark: margin is *; accepted are fractions above 0*"])


def test_smallest_margin_is_accepted(run, bench, pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu_benchmark(margin=1e-300)
        def test_gemm(gpu_benchmark):
            gpu_benchmark(int)
        """
    )
    run(SAVE)
    bench.now(seconds=20e-6, seed=1)
    assert run(*GATE).ret == pytest.ExitCode.TESTS_FAILED
