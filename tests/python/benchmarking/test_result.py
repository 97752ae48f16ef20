# SPDX-License-Identifier: Apache-2.0
"""A result says itself in a line, in many and in a chart, and survives being saved to the last bit."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

from gpuscope import stats
from gpuscope.benchmarking.kernel_times import Kernel
from gpuscope.benchmarking.result import BenchmarkResult, Measured, Processes
from gpuscope.benchmarking.roofline import Rate
from gpuscope.conditions import Conditions
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.figures import format_half_width
from gpuscope.units import format_seconds


def measured(quantity, centre, count=60):
    samples = np.random.default_rng(1).normal(centre, centre / 50, count)
    valid = np.arange(count) != 3
    samples[3] = np.nan
    return Measured(quantity, samples, valid, stats.estimate(samples[valid]))


def rate(value=2.41e12):
    return Rate("bandwidth", value, value * 0.99, value * 1.01, "B/s", 100 * value / 3.05e12, 3.05e12, 3.35e12, "", "")


def result(**changes):
    quantities = {name: measured(name, time) for name, time in (("kernel", 12.34e-6), ("stream", 14.1e-6))}
    throttled = np.zeros(60, bool)
    throttled[:6] = True
    made = BenchmarkResult(
        name="matmul",
        quantity="kernel",
        quantities=quantities,
        absent={"marginal": "the function cannot be captured"},
        kernels=(Kernel("gemm", 1.0, 12e-6), Kernel("add", 2.0, 0.34e-6)),
        converged=True,
        stopped="precision",
        warnings=("the time drifted by +2.0 % over the run",),
        cold=True,
        clock_hz=np.full(60, 1.755e9),
        throttled=throttled,
        bytes=29_700_000,
        flops=None,
        rates=(rate(),),
        environment={"gpu": "Simulated GPU", "on_gpu": True, "driver": "580.0"},
        seconds=0.2,
        value=object(),
        capped=np.ones(60, bool),
    )
    return dataclasses.replace(made, **changes)


def test_a_line_says_the_time_its_interval_and_what_it_is():
    line = str(result())
    assert line.startswith("matmul: kernel 12.3")
    for part in ("+-0.", "(95 % within this process, n=59, n_eff=", ", cold)", " | stream 14."):
        assert part in line
    assert " | 2.41 TB/s = 79 % of measured peak" in line
    assert " | SM 1755 MHz, power-capped 100 %, throttled or shifted 10 % | converged | 1 warning" in line
    assert "\n" not in line


def test_the_interval_says_whether_it_is_of_one_process_or_of_several():
    several = Processes(3, (result().estimate,) * 3, (0.1,) * 3)
    one = dataclasses.replace(several, estimates=several.estimates[:1])
    scopes = [result(processes=each).scope for each in (None, one, several)]
    assert scopes == ["within this process", "within this process", "between processes"]
    assert "(95 % between processes, n=59" in str(result(processes=several))
    assert json.loads(result(processes=several).to_json())["scope"] == "between processes"
    assert BenchmarkResult.from_json(result().to_json()).scope == "within this process"


def test_the_interval_says_how_much_between_processes_it_allows_for():
    allowing = result(processes_differ=0.0025)
    assert "(95 % with 0.25 % between processes, n=59" in str(allowing)
    assert BenchmarkResult.from_json(allowing.to_json()).processes_differ == 0.0025


@pytest.mark.parametrize(
    ("half", "line", "cell"),
    [(5.12, "+-510 %", "+-512.0 %"), (0.0123, "+-1.2 %", "+-1.2 %"), (4e-4, "+-0.04 %", "+-0.04 %")],
)
def test_wide_intervals_have_no_exponent_and_narrow_ones_are_not_0(half, line, cell):
    estimate = stats.Estimate(1.0, 1 - half, 1 + half, 60, 60.0, "median", 0.95)
    assert f" {line} (95 %" in repr(dataclasses.replace(measured("wall", 1.0), estimate=estimate))
    assert format_half_width(estimate) == cell


@pytest.mark.parametrize(
    ("stopped", "words"),
    [("budget", "NOT converged: the budget ran out"), ("interrupted", "NOT converged: interrupted")],
)
def test_a_line_says_that_the_target_was_missed(stopped, words):
    assert words in str(result(converged=False, stopped=stopped))


def test_the_report_has_quantities_kernels_and_warnings():
    report = result().report()
    assert "stream    14." in report
    assert "marginal  not measured: the function cannot be captured" in report
    assert "97.2 %" in report
    assert "2 x  add" in report
    assert "warning: the time drifted" in report
    assert "without the 5 tagged samples" in report


def test_the_report_has_the_spread_of_each_quantity():
    made = result()
    assert f"min {format_seconds(made.min, 4)}, p5 {format_seconds(made.p5, 4)}, p95 " in made.report()


def test_one_outlier_does_not_flatten_the_chart():
    samples = np.append(np.random.default_rng(1).normal(1e-5, 1e-7, 300), 1e-2)
    one = Measured("kernel", samples, np.ones(301, bool), stats.estimate(samples))
    chart = result(quantities={"kernel": one}, throttled=np.zeros(301, bool)).plot()
    low, high = chart.views[0].y.shown
    assert 0.9e-5 < low < high < 1.2e-5


def test_statistics_are_of_the_headlines_valid_samples():
    made = result()
    samples = made.headline.samples[made.headline.valid]
    assert made.n == 59
    assert made.median == made.estimate.value
    assert made.ci == (made.estimate.low, made.estimate.high)
    assert made.mean == samples.mean()
    assert made.min == samples.min() == made.quantile(0)
    assert made.quantile(0.99) == np.quantile(samples, 0.99)


def test_a_quantile_is_of_a_fraction():
    with pytest.raises(InvalidArgument, match=r"^q is 99; accepted"):
        result().quantile(99)


def test_bandwidth_can_be_asserted():
    result().assert_bandwidth(0.7)
    with pytest.raises(AssertionError, match=r"79.0% of the measured peak, 90.0% were wanted"):
        result().assert_bandwidth(0.9)


def test_bandwidth_cannot_be_asserted_without_bytes():
    with pytest.raises(InvalidArgument, match=r"^bytes was not given"):
        result(rates=()).assert_bandwidth(0.5)


@pytest.mark.parametrize(
    ("time", "text"),
    [(1.5, "1.500 s"), (12.34e-6, "12.34 us"), (0.99999, "1.000 s"), (123.4e-9, "123.4 ns"), (0.0, "0 s")],
)
def test_times_are_in_the_unit_that_fits(time, text):
    assert format_seconds(time, 4) == text


# -- saved -----------------------------------------------------------------------------------------------------------


def assert_same(one, other):
    for field in dataclasses.fields(BenchmarkResult):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "value":
            continue
        if field.name == "quantities":
            assert list(mine) == list(theirs)
            for name in mine:
                np.testing.assert_array_equal(mine[name].samples, theirs[name].samples)
                np.testing.assert_array_equal(mine[name].valid, theirs[name].valid)
                assert mine[name].estimate == theirs[name].estimate
        elif isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine == theirs, field.name


def test_json_keeps_everything_but_the_value():
    made = result()
    assert_same(made, BenchmarkResult.from_json(made.to_json()))


def test_json_keeps_intervals_without_ends_and_unknown_clocks():
    samples = np.array([1e-5, 2e-5])
    one = Measured("wall", samples, np.ones(2, bool), stats.estimate(samples))
    tags = np.zeros(2, bool)
    made = result(quantity="wall", quantities={"wall": one}, clock_hz=np.full(2, np.nan), throttled=tags, capped=tags)
    assert made.ci == (-np.inf, np.inf)
    assert_same(made, BenchmarkResult.from_json(made.to_json()))


def test_json_is_strict_and_has_a_version():
    content = json.loads(result().to_json(), parse_constant=lambda constant: pytest.fail(constant))
    assert (content["schema"], content["version"]) == ("gpuscope.benchmark", 1)
    assert content == json.loads(json.dumps(result().to_dict()))


def test_a_file_is_written_and_read(tmp_path):
    path = tmp_path / "result.json"
    made = result()
    made.to_json(path)
    assert_same(made, BenchmarkResult.from_json(path))
    assert_same(made, BenchmarkResult.from_json(str(path)))


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(GpuscopeError, match="cannot write"):
        result().to_json(tmp_path / "missing" / "result.json")


def spoilt(**changes):
    return json.dumps({**result().to_dict(), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "gpuscope.bench', r"^source is no JSON"),
        ('{"schema": "other"}', r"^source is no benchmark of gpuscope; accepted is what to_json\(\) gave$"),
        (spoilt(version=2), r"^source has version 2; accepted are versions up to 1$"),
        (spoilt(quantities={"kernel": {"samples": [1.0]}}), r"^source is a damaged benchmark \(KeyError: 'estimate'\)"),
        (spoilt(throttled=3), r"^source is a damaged benchmark"),
        (spoilt(clock_hz=["fast"]), r"^source is a damaged benchmark"),
        ("no/such/file.json", r"^source is 'no/such/file.json', which cannot be read"),
        ("/dev/zero", r"^source is '/dev/zero', which cannot be read: .* is a device; accepted are regular files$"),
        ('{"schema": ' + "[" * 100_000, r"^source is no JSON"),
        ('{"schema": ' + "9" * 5_000 + "}", r"^source is no (JSON|benchmark)"),
        (spoilt(clock_hz=[10**400]), r"^source is a damaged benchmark"),
        (spoilt(environment=3), r"^source is a damaged benchmark"),
        (spoilt(stopped="later", converged=False), r"^source is a damaged benchmark \(KeyError: 'later'\)"),
        (spoilt(throttled=[]), r"^source is a damaged benchmark"),
    ],
    ids=[
        *("cut off", "other", "newer", "no estimate", "no list", "no numbers", "no file", "a device"),
        *("nested deep", "many digits", "a large number", "no mapping", "an unknown word", "no marks"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(text, message):
    with pytest.raises(InvalidArgument, match=message):
        BenchmarkResult.from_json(text)


def test_a_named_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(InvalidArgument, match="is a named pipe; accepted are regular files"):
        BenchmarkResult.from_json(tmp_path / "result.json")


# -- chart -----------------------------------------------------------------------------------------------------------


def test_a_chart_has_a_view_of_every_quantity_and_tagged_samples_apart():
    views = result().plot().views
    assert [view.name for view in views] == ["kernel", "stream"]
    samples, tagged = views[0].lines
    assert (samples.name, tagged.name) == ("samples", "throttled or shifted clock")
    assert len(samples.x) + len(tagged.x) == 59
    assert [line.name for line in views[1].lines] == ["samples"]
    (across,) = views[0].marks
    assert across.value == result().estimate.value


def test_a_page_has_the_name_above_and_the_figures_below_it():
    page = result(name="attention").plot().to_html()
    assert "<h1>attention</h1>" in page
    assert "<dt>kernel</dt><dd>12.3" in page
    assert "<dt>sampling</dt><dd>converged</dd>" in page


def test_conditions_are_read_again_and_older_files_have_none():
    made = result(conditions=Conditions(gpu="H100", dtype="float16", absent={"mode": "not known"}))
    text = made.to_json()
    assert BenchmarkResult.from_json(text).conditions == made.conditions
    older = {name: value for name, value in json.loads(text).items() if name not in ("conditions", "target")}
    assert BenchmarkResult.from_json(json.dumps(older)).conditions == Conditions()


def test_an_older_file_that_reached_its_precision_has_converged():
    older = json.loads(result().to_json()) | {"stopped": "target"}
    assert " converged " in f" {BenchmarkResult.from_json(json.dumps(older))} ".replace("|", " ").replace(",", " ")
