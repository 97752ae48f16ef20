# SPDX-License-Identifier: Apache-2.0
"""Charts of sweeps and comparisons: their figures, on axes that no outlier flattens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes.benchmark_results import Canned
from fakes.browser import opened
from gpuscope import stats
from gpuscope.benchmarking.rounds import SweepPoint
from gpuscope.benchmarking.sweeps import Sweep
from gpuscope.figures import Distribution

HOSTILE = "</script><img src=x onerror=\"document.title = 'taken'\">\u202e"


def point(seconds=None, **parameters):
    estimate = seconds and stats.Estimate(seconds, 0.9 * seconds, 1.1 * seconds, 9, 9.0, "median", 0.95)
    error = None if seconds else "MemoryError: too large"
    times = np.array([0.99, 1.0, 1.01]) * seconds if seconds else np.empty(0)
    return SweepPoint(parameters, estimate, "kernel" if seconds else None, times, True, (), error, times)


def swept(*points):
    axes = {axis: tuple(dict.fromkeys(each.parameters[axis] for each in points)) for axis in points[0].parameters}
    return Sweep(axes, points, "precision", 0.02)


def compared(outlier=None):
    found = Canned().comparison(1.2, ("old", "new"), 0.01)
    if outlier is None:
        return found
    return replace(found, b=Distribution([*found.b.samples, outlier]))


def test_a_sweep_has_a_line_for_each_choice_of_the_other_axes():
    points = [point(1e-6 * n, dtype=dtype, n=n) for dtype in ("half", "float") for n in (4, 1, 64)]
    (view,) = swept(*points).plot().views
    assert [line.name for line in view.lines] == ["dtype=half", "dtype=float"]
    assert (view.x.title, view.y.title) == ("n", "kernel time")
    for line in view.lines:
        assert line.x == [1, 4, 64]
        assert line.y == pytest.approx([1e-6, 4e-6, 64e-6])
        assert line.low == pytest.approx([0.9e-6, 3.6e-6, 57.6e-6])
    assert len({(line.slot, line.symbol, line.dash) for line in view.lines}) == 2


@pytest.mark.parametrize(("longest", "log"), [(2e-6, False), (1.0, True)])
def test_one_long_time_does_not_flatten_the_rest(longest, log):
    (view,) = swept(point(1e-6, n=1), point(1.5e-6, n=2), point(longest, n=3)).plot().views
    assert view.y.log == log
    assert not view.x.log


def test_points_that_failed_are_left_out():
    (view,) = swept(point(1e-6, n=1), point(n=2), point(3e-6, n=3)).plot().views
    assert view.lines[0].x == [1, 3]
    assert "1 not measured" in view.text


def test_values_that_are_no_numbers_have_places():
    (view,) = swept(point(1e-6, kind="a", batched=True), point(2e-6, kind="b", batched=True)).plot().views
    assert view.x.title == "kind: 0 a, 1 b"
    assert (view.lines[0].x, view.lines[0].joined, view.x.log) == ([0.0, 1.0], False, False)


def test_a_sweep_of_nothing_has_an_empty_chart(browser, tmp_path):
    made = swept(point(n=1)).plot()
    assert made.views[0].lines == ()
    made.write_html(tmp_path / "chart.html")
    with opened(browser, tmp_path / "chart.html") as page:
        assert page.is_visible("#chart")


def test_a_comparison_has_the_calls_of_both_and_their_centres():
    found = compared()
    (view,) = found.plot().views
    assert [line.name for line in view.lines] == ["old", "new"]
    for line, times, mark in zip(view.lines, (found.a, found.b), view.marks, strict=True):
        assert line.y == times.samples.tolist()
        assert mark.low <= times.median <= mark.high
    assert view.text == str(found)
    assert view.bars


def test_an_outlier_is_beyond_what_a_comparison_shows():
    low, high = compared(outlier=1.0).plot().views[0].y.shown
    assert 0 < low < high < 20e-6


@pytest.mark.parametrize("name", [HOSTILE, "x" * 10_000])
def test_names_break_no_page(browser, tmp_path, name):
    charts = (replace(compared(), names=("a", name)).plot(), swept(point(1e-6, kind=name, n=1)).plot())
    for made in charts:
        made.write_html(tmp_path / "chart.html")
        with opened(browser, tmp_path / "chart.html", width=360) as page:
            assert page.title() != "taken"
            assert page.locator("img").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_intervals_that_are_not_known_are_none_on_the_page():
    one = point(1e-6, n=1)
    wide = replace(one, estimate=replace(one.estimate, low=-math.inf, high=math.inf))
    (line,) = swept(wide, point(2e-6, n=2)).plot().to_dict()["views"][0]["lines"]
    assert line["low"][0] is None
