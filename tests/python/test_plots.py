# SPDX-License-Identifier: Apache-2.0
"""Drawings of results: robust axes, the figures of the results, one sentence where Matplotlib is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gpuscope as gs
from fakes.gscope import make_store
from fakes.memory_events import events
from fakes.monitors import series
from fakes.recordings import training
from fakes.results import POINT, recording, timings
from gpuscope import plots
from gpuscope.benchmarking.dataloader import DataLoaderResult, DataLoaderWorkers
from gpuscope.costs.energy import DeviceEnergy, Energy, EnergyReport, EnergyRow
from gpuscope.costs.roofline import Roofline
from gpuscope.counters.sampled import SampledCounters
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.figures import Distribution
from gpuscope.memory.history.events import Frame
from gpuscope.memory.history.growth import Growth
from gpuscope.memory.history.leaks import Leak, LeakReport
from gpuscope.memory.history.peak import peak_memory
from gpuscope.memory.host import host_memory
from gpuscope.memory.usage.ledger import LedgerRow, MemoryLedger
from gpuscope.monitor.frames import frame_of_samples, plot_frame
from gpuscope.recording import Recording
from gpuscope.trace import Trace

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


MIB = 1 << 20


IDLE = Energy(20.0, 18.0, 22.0)


def joules(*regions, idle=IDLE, why=None):
    """`regions`: name and energy."""
    rows = tuple(EnergyRow(name, 1, 0.1, energy, None, None, {}) for name, energy in regions)
    total = Energy(100.0, 99.0, 101.0)
    return DeviceEnergy(0, "H100", 1.0, total, idle, None, 90.0, 100.0, rows, 0, None, (), {}, why or {})


def leak(line, size):
    stack = (Frame("step", "/me/train.py", line),)
    return Leak((Growth(stack[0], stack, "torch", 0, 10, 10, size, 10, ()),))


def leaks():
    return LeakReport((leak(12, 20 * MIB), leak(14, 10 * MIB)), 13, 3, 100)


def ledger(why=""):
    rows = (LedgerRow("torch", "allocated", 3 * MIB, region="train"), LedgerRow("driver", "CUDA context", MIB))
    return MemoryLedger(0, rows, 4 * MIB, "", (), (), host_memory(), why)


def peak():
    frames = {1: (("step", "/me/train.py", 12),), 2: (("load", "/me/train.py", 3),)}
    return peak_memory(events(("alloc", 1, 512, {"stack": 1}), ("alloc", 2, 2048, {"stack": 2}), frames=frames))


def counters(values=(10.0, 20.0, 30.0)):
    count = len(values)
    tables = {
        "counter": {"name": ["sm__busy", "dram__bytes"], "unit": ["percent", "byte"], "description": ["", ""]},
        "counter_sample": {"start_ns": [1000 + 100 * at for at in range(count)], "duration_ns": [100] * count},
        "counter_value": {
            "sample": [at // 2 for at in range(2 * count)],
            "counter": [0, 1] * count,
            "value": [value for each in values for value in (each, 1.0)],
        },
    }
    return SampledCounters(Trace(make_store(tables)))


def workers(**milliseconds):
    """By number of workers, as w2=5.0."""
    found = {int(name[1:]): each / 1e3 for name, each in milliseconds.items()}
    results = {count: DataLoaderResult(Distribution([each] * 9), each, (), count, ()) for count, each in found.items()}
    return DataLoaderWorkers(results, min(found, key=found.get), "the fastest", ())


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
    "energy": lambda: EnergyReport((joules(("forward", Energy(60.0, 50.0, 70.0))),)).plot(),
    "leaks": lambda: leaks().plot(),
    "ledger": lambda: ledger().plot(),
    "peak": lambda: peak().plot(),
    "counters": lambda: counters().plot()[0],
    "workers": lambda: workers(w0=9.0, w2=5.0).plot(),
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


def test_a_counter_that_leaps_once_does_not_flatten_the_rest():
    busy, read = counters([10.0 + at % 7 for at in range(50)] + [1e9]).plot()
    assert (busy.get_title(loc="left"), busy.get_ylabel()) == ("sm__busy", "percent\n1 outside")
    assert busy.get_ylim()[1] < 20
    assert busy.lines[-1].get_marker() == "^"
    assert read.get_xlabel() == "time (s)"


def test_counters_that_are_named_are_drawn_alone():
    (ax,) = counters().plot(["dram__bytes"])
    assert ax.get_title(loc="left") == "dram__bytes"


def test_a_region_of_uncertain_energy_does_not_flatten_the_others():
    ax = joules(("a", Energy(3000.0, 2900.0, 3100.0)), ("b", Energy(1000.0, 0.0, 1e9))).plot()
    assert ax.get_xlabel() == "energy (kJ)"
    assert ax.get_xlim() == (0, pytest.approx(1.12 * 6))


def test_energy_has_the_figures_of_the_regions_and_of_idle_time():
    found = joules(("a", Energy(60.0, 50.0, 70.0)), ("unknown", None), ("b", Energy(30.0, 25.0, 35.0)))
    ax = found.plot(top=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "(idle)"]
    assert [bar.get_width() for bar in ax.patches] == [60.0, 30.0, 20.0]


def test_leaks_peaks_and_ledgers_have_a_bar_a_row():
    assert [bar.get_width() for bar in leaks().plot().patches] == [2.0, 1.0]  # MiB a step
    assert [bar.get_width() for bar in leaks().plot(top=1).patches] == [2.0]
    assert [bar.get_width() for bar in ledger().plot().patches] == [3.0, 1.0]
    assert [bar.get_width() for bar in peak().plot().patches] == [2.0, 0.5]
    assert ledger().plot().get_yticklabels()[0].get_text() == "torch allocated train"


def test_no_leaks_are_an_empty_drawing_that_says_so():
    ax = LeakReport((), 13, 3, 100).plot()
    assert ax.get_title(loc="left").startswith("no leaks in 13 steps")
    assert not ax.patches


def test_workers_that_are_slow_do_not_flatten_the_others():
    ax = workers(w0=5000.0, w1=9.0, w2=5.0, w4=4.0, w8=3.0, w16=3.1).plot()
    assert ax.get_ylim()[1] < 20
    assert ax.get_ylabel() == "time of a batch (ms)\n2 outside"
    assert "recommended: 8" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: ledger("no driver").plot(), "no memory of a GPU to plot: no driver"),
        (lambda: EnergyReport((), "no power was read").plot(), "no energy is known: no power was read"),
        (lambda: joules(idle=None, why={"energy": "no counter"}).plot(), "regions on GPU 0 is not known: no counter"),
        (lambda: counters([]).plot(), "no hardware counters were sampled"),
    ],
)
def test_what_is_not_there_is_a_sentence(draw, words):
    with pytest.raises(NotAvailable, match=words):
        draw()


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


def test_times_that_differ_by_rounding_alone_are_in_one_bar():
    ax = Distribution([0.3e-3, 3 * 0.1e-3] * 30).plot()
    assert [bar.get_height() for bar in ax.patches] == [60]


def test_a_wide_interval_flattens_no_difference():
    ax = plots.differences(["a", "b"], [1e-3, -2e-3], [(0.9e-3, 1.1e-3), (-9.0, 9.0)], ["slower", "inconclusive"])
    assert ax.get_xlim() == pytest.approx((-4.4, 4.4))  # ms


def test_bars_have_the_figures_of_the_rows():
    averages = recording().key_averages()
    ax = averages.plot("self_device_time_total", top=3)
    longest = [row.self_device_time_total for row in averages.sorted_by("self_device_time_total")[:3]]
    widths = [bar.get_width() for bar in ax.patches]
    assert np.array(widths) / widths[0] == pytest.approx(np.array(longest) / longest[0])
    assert ax.get_xlabel().startswith("self_device_time_total (")


@pytest.mark.parametrize(
    ("values", "label"),
    [([4096.0] + [0.0] * 9, "size (KiB)"), ([0.0, 0.0], "size (B)")],
)
def test_the_unit_is_that_of_the_values(values, label):
    names = [str(at) for at in range(len(values))]
    assert plots.bars(names, values, quantity="B", what="size").get_xlabel() == label


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
        (lambda: recording().key_averages().plot("speed"), "metric is 'speed'; accepted are cpu_time, device_time"),
        (lambda: recording().key_averages().plot("count"), "metric is 'count'"),
        (lambda: recording().key_averages().plot("flops"), "metric is 'flops'"),
        (lambda: recording().key_averages().plot("key"), "metric is 'key'"),
        (lambda: recording().key_averages().plot(top=0), "top is 0"),
        (lambda: recording().step_breakdown().plot(device=7), "device is 7; accepted are 0"),
        (lambda: Roofline(0, "", {}, {}, (), (), ()).plot("op"), "kind is 'op'"),
        (lambda: plots.distribution({"a": []}), "no samples to plot"),
        (lambda: events().plot(), "device is None"),
        (lambda: EnergyReport((joules(),)).plot(device=3), "device is 3; accepted are 0"),
        (lambda: joules().plot(top=0), "top is 0"),
        (lambda: leaks().plot(top=0), "top is 0"),
        (lambda: peak().plot(top=0), "top is 0"),
        (lambda: counters().plot(["speed"]), "metric is 'speed'; sampled were sm__busy, dram__bytes"),
        (lambda: counters().plot([]), r"metrics is \[\]; sampled were sm__busy"),
        (lambda: counters().plot(device=5), "device is 5; sampled were 0"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(draw, words):
    with pytest.raises(InvalidArgument, match=words):
        draw()


def test_without_matplotlib_it_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    drawn = (
        recording().key_averages(),
        Distribution([1.0]),
        joules(),
        leaks(),
        ledger(),
        peak(),
        counters(),
        workers(w0=1),
    )
    for draw in (result.plot for result in drawn):
        with pytest.raises(NotAvailable, match=r"Matplotlib is not installed; pip install matplotlib"):
            draw()


def test_a_recording_without_allocations_says_what_records_them():
    with pytest.raises(NotAvailable, match="profile_memory=True"):
        Recording(training().store).plot_memory_timeline()
