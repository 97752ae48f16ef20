# SPDX-License-Identifier: Apache-2.0
"""Drawings of results: robust axes, the figures of the results, one sentence where Matplotlib is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gpuscope as gs
from fakes.memory_events import events
from fakes.monitors import series
from fakes.recordings import training
from fakes.results import POINT, recording, timings
from gpuscope import plots
from gpuscope.diagnosis.roofline import Roofline
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.figures import Distribution
from gpuscope.monitor.frames import frame_of_samples, plot_frame
from gpuscope.recording import Recording

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


DRAWN = {
    "key_averages": lambda: recording().key_averages().plot(),
    "step_breakdown": lambda: recording().step_breakdown().plot(),
    "roofline": lambda: Roofline(0, "H100", {"bandwidth": 3e12, "bfloat16": 8e14}, {}, (POINT,), (), ()).plot(),
    "diff": lambda: gs.diff(recording(), recording()).plot(),
    "memory events": lambda: events(("alloc", 1, 512), ("alloc", 2, 99), ("free", 1, 512)).plot(),
    "memory of a recording": lambda: recording().plot_memory_timeline(),
    "timings": lambda: timings().plot(),
    "latency": lambda: gs.measure_latency(lambda x: None, 1, 20, 1).plot(),
    "samples": lambda: Distribution([1.0, 2.0, 3.0]).plot(),
    "monitor": lambda: plot_frame(frame_of_samples(series(9, power_w=lambda at: 100 + at)))[0],
}


@pytest.mark.parametrize("name", DRAWN)
def test_results_with_a_shape_are_drawn_and_give_their_axes(name, tmp_path):
    ax = DRAWN[name]()
    assert isinstance(ax, matplotlib.axes.Axes)
    assert ax.patches or ax.lines or ax.collections
    ax.figure.savefig(tmp_path / "plot.png")


def test_axes_that_are_given_are_drawn_on():
    _, ax = pyplot.subplots()
    assert recording().key_averages().plot(ax=ax) is ax


@pytest.mark.parametrize("outlier", [1.0, 1e6])
def test_an_outlier_does_not_flatten_the_rest(outlier):
    times = np.random.default_rng(0).normal(1e-3, 1e-5, 200)
    times[17] = outlier
    for ax, side in ((Distribution(times).plot(), "x"), (plots.sequence(times), "y")):
        low, high = getattr(ax, f"get_{side}lim")()
        assert 0.9 < low < high < 1.1  # ms
        assert "1 of 200 outside, up to" in getattr(ax, f"get_{side}label")()


def test_a_slow_step_does_not_flatten_the_others():
    work = np.full(50, 1e-3) + np.arange(50) * 1e-6
    work[0] = 3.0
    ax = plots.stacked({"work": (work, False), "idle": (work / 10, True)})
    assert ax.get_ylim()[1] < 2  # ms
    assert "1 of 50 outside, up to 3.3e+03 ms" in ax.get_ylabel()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], (1.0, 3.0, 0)),
        ([5.0] * 9 + [500.0], (5.0, 5.0, 1)),
        ([-100.0, *range(20), 200.0], (0.0, 19.0, 2)),
        ([np.nan, 1.0, np.inf], (1.0, 1.0, 0)),
        ([], (0.0, 1.0, 0)),
    ],
)
def test_limits_are_those_of_the_bulk(values, expected):
    assert plots.robust_limits(values) == expected


def test_bars_have_the_figures_of_the_rows():
    averages = recording().key_averages()
    ax = averages.plot("self_device_time_total", top=3)
    longest = [row.self_device_time_total for row in averages.sorted_by("self_device_time_total")[:3]]
    widths = [bar.get_width() for bar in ax.patches]
    assert np.array(widths) / widths[0] == pytest.approx(np.array(longest) / longest[0])
    assert ax.get_xlabel().startswith("self_device_time_total (")


def test_the_parts_of_a_step_add_up_to_it():
    breakdown = recording().step_breakdown()
    ax = breakdown.plot()
    tops = {}
    for bar in ax.patches:
        at = round(bar.get_x() + bar.get_width() / 2)
        tops[at] = max(tops.get(at, 0.0), bar.get_y() + bar.get_height())
    tops = np.array([tops[at] for at in sorted(tops)])
    durations = breakdown.steps.durations_ns
    assert tops / tops[0] == pytest.approx(durations / durations[0])


def test_names_are_not_taken_for_formulas(tmp_path):
    ax = plots.bars(["$\\frac{", "a$b"], [1.0, 2.0])
    ax.figure.savefig(tmp_path / "plot.png")


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: recording().key_averages().plot("speed"), "sort_by is 'speed'"),
        (lambda: recording().key_averages().plot(top=0), "top is 0"),
        (lambda: recording().step_breakdown().plot(device=7), "device is 7; accepted are 0"),
        (lambda: Roofline(0, "", {}, {}, (), (), ()).plot("op"), "kind is 'op'"),
        (lambda: plots.distribution({"a": []}), "no samples to plot"),
        (lambda: events().plot(), "device is None"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(draw, words):
    with pytest.raises(InvalidArgument, match=words):
        draw()


def test_without_matplotlib_it_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (recording().key_averages().plot, Distribution([1.0]).plot):
        with pytest.raises(NotAvailable, match=r"Matplotlib is not installed; pip install 'gpuscope\[plot\]'"):
            draw()


def test_a_recording_without_allocations_says_what_records_them():
    with pytest.raises(NotAvailable, match="profile_memory=True"):
        Recording(training().store).plot_memory_timeline()
