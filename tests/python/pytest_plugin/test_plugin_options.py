# SPDX-License-Identifier: Apache-2.0
"""Marker, command line and configuration."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

MARKED = """
import pytest

@pytest.mark.gpu_benchmark({arguments})
def test_it(gpu_benchmark):
    gpu_benchmark(int)
"""


def test_defaults_are_those_of_the_documentation(run, bench, one_test):
    run()
    assert bench.asked == [
        {
            "name": "test_gemm",
            "stream": None,
            "cold": True,
            "graph": False,
            "precision": 0.01,
            "budget": 2.0,
            "bytes": None,
            "flops": None,
        }
    ]


def test_marker_reaches_the_benchmark(run, bench, pytester):
    pytester.makepyfile(MARKED.format(arguments="cold=False, precision=0.05, budget=1, bytes=8, flops=9, graph=True"))
    run("--strict-markers")
    given = {"cold": False, "precision": 0.05, "budget": 1, "bytes": 8, "flops": 9, "graph": True}
    assert bench.asked[0] == bench.asked[0] | given


def test_command_line_reaches_the_benchmark(run, bench, one_test):
    run("--gpu-benchmark-precision=5%", "--gpu-benchmark-budget=500ms", "--gpu-benchmark-cache=hot")
    assert bench.asked[0] == bench.asked[0] | {"precision": 0.05, "budget": 0.5, "cold": False}


def test_configuration_reaches_the_benchmark(run, bench, one_test, pytester):
    pytester.makeini("[pytest]\ngpu_benchmark_precision = 0.02\ngpu_benchmark_budget = 7s\ngpu_benchmark_cache = hot\n")
    run()
    assert bench.asked[0] == bench.asked[0] | {"precision": 0.02, "budget": 7.0, "cold": False}


def test_marker_wins_over_command_line_and_that_over_configuration(run, bench, pytester):
    pytester.makepyfile(MARKED.format(arguments="precision=0.03"))
    pytester.makeini("[pytest]\ngpu_benchmark_precision = 0.02\ngpu_benchmark_budget = 7s\n")
    run("--gpu-benchmark-precision=0.05", "--gpu-benchmark-budget=1s")
    assert (bench.asked[0]["precision"], bench.asked[0]["budget"]) == (0.03, 1.0)


def test_marker_of_a_class_holds_where_the_test_says_nothing(run, bench, pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu_benchmark(cold=False, budget=3)
        class TestIt:
            @pytest.mark.gpu_benchmark(budget=4)
            def test_it(self, gpu_benchmark):
                gpu_benchmark(int)
        """
    )
    run()
    assert (bench.asked[0]["cold"], bench.asked[0]["budget"]) == (False, 4)


def test_quantity_chooses_what_the_table_shows(run, bench, pytester, saved):
    pytester.makepyfile(MARKED.format(arguments="quantity='wall'"))
    run("--benchmark-save=x")
    (entry,) = saved()[0]["benchmarks"]
    wall = bench.canned.result(None, True).quantities["wall"]
    assert entry["extra_info"]["gpuscope"]["quantity"] == "wall"
    assert entry["stats"]["min"] == wall.samples.min()


def test_quantity_that_was_not_measured_fails_with_the_reason(run, bench, pytester):
    bench.now(absent={"span": "CUPTI is not installed"})
    pytester.makepyfile(MARKED.format(arguments="quantity='span'"))
    result = run("-W", "error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*NotAvailable: no span time: CUPTI is not installed"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rounds=5", "@pytest.mark.gpu_benchmark has no argument rounds; accepted are cold, quantity, *"),
        ("0.01", "@pytest.mark.gpu_benchmark takes no positional arguments; name them"),
        (
            "quantity='time'",
            "*: quantity is 'time'; accepted are kernel, span, stream, launch, wall, *, or None",
        ),
        ("quantity=[1]", "*: quantity is [[]1[]]; accepted are kernel, *"),
        ("cold='no'", "*: cold is 'no'; accepted are True and False"),
        ("graph=0", "*: graph is 0; accepted are True and False"),
        ("margin=-1", "@pytest.mark.gpu_benchmark: margin is -1; accepted are fractions above 0"),
    ],
)
def test_wrong_marker_is_one_sentence(run, bench, pytester, arguments, said):
    pytester.makepyfile(MARKED.format(arguments=arguments))
    result = run("-W", "error")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])
    assert not bench.asked


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--gpu-benchmark-precision=2", "'2' is not a share above 0 and below 1, as 1% or 0.01"),
        ("--gpu-benchmark-budget=-1", "'-1' is not a time above 0 with its unit, as 5ms, 2s or 1min"),
        (
            "--gpu-benchmark-quantity=time",
            "'time' is not a quantity; accepted are kernel, span, stream, ",
        ),
        ("--gpu-benchmark-cache=warm", "'warm' is not a state of the cache; accepted are cold and hot"),
        ("--gpu-benchmark-fail=tests", "'tests' is not a share above 0 and below 1, as 1% or 0.01"),
    ],
)
def test_wrong_option_is_a_usage_error(run, bench, one_test, option, said):
    result = run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert not bench.asked


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "1e-400", "0", "-5%", "-1", "many", "", "9" * 500])
@pytest.mark.parametrize("option", ["precision", "budget", "fail"])
def test_wrong_number_of_an_option_is_a_usage_error_of_one_sentence(run, bench, one_test, option, text):
    result = run(f"--gpu-benchmark-{option}={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (error,) = [line for line in result.stderr.lines if "error:" in line]
    assert f"argument --gpu-benchmark-{option}: '{text[:9]}" in error
    assert error.endswith((" above 0 with its unit, as 5ms, 2s or 1min", " above 0 and below 1, as 1% or 0.01"))
    assert len(error) < 250
    assert not bench.asked


@pytest.mark.parametrize("text", ["lots", "nan", "inf", "1e400", "-1", "0"])
@pytest.mark.parametrize("setting", ["precision", "budget", "margin"])
def test_wrong_configuration_is_a_usage_error(run, bench, one_test, pytester, setting, text):
    pytester.makeini(f"[pytest]\ngpu_benchmark_{setting} = {text}\n")
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"gpu_benchmark_{setting}: '{text}' is not a " in result.stderr.str()
    assert not bench.asked


@pytest.mark.parametrize(
    "value", ["float('nan')", "float('inf')", "-float('inf')", "10**400", "-10**5000", "-1", "0", "'1'", "[1]", "True"]
)
@pytest.mark.parametrize("argument", ["precision", "budget", "bytes", "flops", "margin"])
def test_wrong_number_of_the_marker_is_the_error_of_its_test(run, bench, pytester, argument, value):
    pytester.makepyfile(MARKED.format(arguments=f"{argument}={value}") + "\ndef test_other(): pass\n")
    result = run("-W", "error")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.re_match_lines([rf"@pytest.mark.gpu_benchmark: {argument} is .{{1,90}}; accepted are .* above 0.*"])
    assert not bench.asked


def test_numbers_of_the_marker_may_be_of_any_type(run, bench, pytester):
    arguments = "precision=Fraction(1, 50), budget=np.float32(0.5), bytes=np.int64(8), margin=1e-300"
    imports = "from fractions import Fraction\nimport numpy as np\n"
    pytester.makepyfile(imports + MARKED.format(arguments=arguments))
    run("-W", "error").assert_outcomes(passed=1)
    assert bench.asked[0] == bench.asked[0] | {"precision": 0.02, "budget": 0.5, "bytes": 8}


def test_budget_of_the_command_line_may_have_a_unit(run, bench, one_test):
    run("--gpu-benchmark-budget=500ms")
    assert bench.asked[0]["budget"] == 0.5
