# SPDX-License-Identifier: Apache-2.0
"""Curves over a report's timeline: what NVML told, counters' growth, hardware counters, on the axis of the events."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fakes.browser import chromium, opened
from fakes.gscope import NONE
from fakes.powered import MS, START, PoweredGpu
from fakes.recordings import make_trace
from gpuscope.analysis import key_averages
from gpuscope.analysis.device_samples import DeviceReadings
from gpuscope.diagnosis import break_down
from gpuscope.exporters.page import report_series
from gpuscope.exporters.page.report import export_report
from gpuscope.exporters.page.report_events import TICK_NS, Lanes
from gpuscope.exporters.page.report_names import Names

TIMES = [START + 100 * MS * turn for turn in range(12)]
MIB = 1 << 20
POWER_MW = [90_000, 400_000, 650_000, -1] * 3


def powered(**tables):
    gpu = PoweredGpu()
    for _ in range(30):
        gpu.run("gemm", 30 * MS, 600, "forward")
        gpu.idle(10 * MS)
    counters = gpu.tables()["device_counter"]
    counters["sw_power_cap_ns"] = [20 * MS * turn for turn in range(len(counters["start_ns"]))]
    nothing = [-1] * len(TIMES)
    samples = {
        "start_ns": TIMES,
        "device": [0] * len(TIMES),
        "power_mw": POWER_MW,
        "power_limit_mw": [700_000] * len(TIMES),
        "power_limit_default_mw": nothing,
        "sm_mhz": [1980, 1755] * 6,
        "sm_max_mhz": [1980] * len(TIMES),
        "memory_mhz": [2619] * len(TIMES),
        "temperature_c": list(range(40, 52)),
        "busy_percent": [75] * len(TIMES),
        "memory_busy_percent": nothing,
        "memory_used_bytes": [3 << 30] * len(TIMES),
        "throttle_reasons": [0] * len(TIMES),
    }
    return gpu.trace(device_sample=samples, device_counter=counters, **tables)


def sampled(starts, values):
    """Two hardware counters, a share and a sum, in samples of 1 ms."""
    count = len(starts)
    return {
        "counter": {"name": ["sm__busy.pct", "dram__bytes.sum"], "unit": ["percent", "byte"], "description": ["", ""]},
        "counter_sample": {
            "start_ns": [START + start * MS for start in starts],
            "duration_ns": [MS] * count,
            "device": [0] * count,
        },
        "counter_value": {
            "sample": list(range(count)) * 2,
            "counter": [0] * count + [1] * count,
            "value": [*values, *(1e6 * value for value in values)],
        },
    }


def lanes_of(trace):
    return Lanes(trace, break_down(trace), Names(trace, key_averages(trace)))


def curves(trace):
    """By title, the curve and its points: ns after the first event, and values."""
    lanes = lanes_of(trace)
    found = {}
    for curve in report_series.series_of(trace, lanes):
        ticks = itertools.accumulate(curve["ticks"].tolist())
        moments = [lanes.zero_ns - START + tick * TICK_NS for tick in ticks]
        found[curve["title"]] = (curve, list(zip(moments, curve["values"], strict=True)))
    return found


def test_each_figure_of_nvml_is_a_curve_in_its_unit_and_those_never_read_are_none():
    found = curves(powered())
    units = {title: curve["unit"] for title, (curve, _) in found.items()}
    assert units == {
        "GPU 0 power": "W",
        "GPU 0 clock of the multiprocessors": "Hz",
        "GPU 0 clock of the memory": "Hz",
        "GPU 0 temperature": "°C",
        "GPU 0 time in which kernels ran": "%",
        "GPU 0 memory used by all processes": "B",
        "GPU 0 power, by its energy counter": "W",
        "GPU 0 clocks held back: sw power cap": "%",
    }
    assert found["GPU 0 clock of the multiprocessors"][1][1][1] == 1.755e9
    assert found["GPU 0 memory used by all processes"][1][0][1] == pytest.approx(3 * 2**30, rel=1e-3)


def test_memory_of_several_threads_is_one_curve_in_the_order_of_time():
    memory = {
        "start_ns": [START + 20 * MS, START + 30 * MS, START + 10 * MS],  # each thread's follow each other
        "bytes": [200, 300, 100],
        "allocated_bytes": [300, 600, 100],
        "region": [NONE] * 3,
        "ordinal": [0] * 3,
        "thread": [0, 0, 1],
    }
    trace = powered(allocation=memory, thread={"system_id": [1, 2]})
    _, points = curves(trace)["GPU 0 memory in use"]
    assert [value for _, value in points] == [100, 300, 600]
    assert [moment for moment, _ in points] == pytest.approx([10 * MS, 20 * MS, 30 * MS], abs=TICK_NS)


def memory_of_lines(has_stacks):
    """Two lines of a script take memory, the first of which gives it back."""
    return make_trace(
        {
            "path": {"name": ["aten::empty"], "parent": [NONE], "kind": [1]},
            "thread": {"system_id": [1]},
            "region": {"start_ns": [MS, 3 * MS], "duration_ns": [MS] * 2, "path": [0, 0], "parent": [NONE] * 2},
            "stack": {
                "function": ["load", "step"],
                "file": ["/home/me/a.py"] * 2,
                "line": [3, 9],
                "parent": [NONE] * 2,
            },
            "detail": {"region": [0, 1], "stack": [0, 1] if has_stacks else [NONE] * 2, "forward": [NONE] * 2},
            "allocation": {
                "start_ns": [MS, 3 * MS, 4 * MS],
                "address": [1, 2, 1],
                "bytes": [MIB, 3 * MIB, -MIB],
                "allocated_bytes": [MIB, 4 * MIB, 3 * MIB],
                "region": [0, 1, 1],
                "ordinal": [0] * 3,
            },
        },
        info={"session.start_ns": "0", "session.stop_ns": str(5 * MS)},
    )


def test_memory_is_shown_by_line_of_code_first():
    trace = memory_of_lines(has_stacks=True)
    chart, text = report_series.memory_of(trace, lanes_of(trace))
    bands = {band["name"]: np.cumsum(band["values"]).tolist() for band in chart["bands"]}
    assert bands == {"a.py:9 step": [0, 3 * MIB, 3 * MIB], "a.py:3 load": [MIB, MIB, 0]}
    assert 0 < text.index("by line of code") < text.index("a.py:9 step") < text.index("by category")


def test_memory_without_stacks_is_shown_by_category():
    trace = memory_of_lines(has_stacks=False)
    chart, text = report_series.memory_of(trace, lanes_of(trace))
    assert "by line of code" not in text
    assert not any(band["name"].startswith("a.py") for band in chart["bands"])


def test_samples_lie_on_the_axis_of_the_events():
    curve, points = curves(powered())["GPU 0 power"]
    read = [(moment - START, mw / 1000) for moment, mw in zip(TIMES, POWER_MW, strict=True) if mw >= 0]
    assert [value for _, value in points] == [value for _, value in read]
    for (shown, _), (moment, _) in zip(points, read, strict=True):
        assert 0 <= moment - shown < TICK_NS
    assert curve["most"] == 700  # its limit


def test_power_between_readings_of_the_energy_counter_is_what_was_used():
    trace = powered()
    energy, _ = DeviceReadings(trace, 0).energy
    _, points = curves(trace)["GPU 0 power, by its energy counter"]
    watts = np.array([value for _, value in points[:-1]])
    used = float((watts * np.diff(energy.time_ns)).sum()) / 1e9
    assert used == pytest.approx(energy.values[-1] - energy.values[0], rel=1e-3)
    assert points[-1][1] is None  # behind the last reading nothing is known


def test_clocks_held_back_are_shares_of_the_time_between_readings():
    trace = powered()
    _, points = curves(trace)["GPU 0 clocks held back: sw power cap"]
    gaps = np.diff(trace.device_counters.start_ns)
    shares = [value for _, value in points[:-1]]
    assert shares == pytest.approx(np.minimum(100 * 20 * MS / gaps, 100).tolist(), rel=1e-3)


def test_hardware_counters_have_gaps_where_nothing_was_sampled_and_sums_are_rates():
    found = curves(powered(**sampled([0, 1, 2, 50], [10.0, 20.0, 30.0, 40.0])))
    share, points = found["GPU 0 sm__busy.pct"]
    assert share["unit"] == "%"
    assert [value for _, value in points] == [10, 20, 30, None, 40, None]
    assert points[3][0] == pytest.approx(3 * MS, abs=TICK_NS)
    rate, points = found["GPU 0 dram__bytes.sum"]
    assert rate["unit"] == "B/s"
    assert [value for _, value in points[:3]] == pytest.approx([1e10, 2e10, 3e10])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of sums that take in what is infinite
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_counter_without_a_finite_value_was_not_sampled_there(value):
    _, points = curves(powered(**sampled([0, 1, 2], [10.0, value, 30.0])))["GPU 0 sm__busy.pct"]
    assert [value for _, value in points] == [10, 30, None]


def test_values_of_a_curve_that_are_not_finite_are_none():
    curve = report_series._curve("reads", "B", np.arange(3), np.array([1.0, math.inf, math.nan]))
    assert curve["values"] == [1, None, None]


def test_of_many_samples_no_peak_is_lost():
    count = 20_000
    values = np.full(count, 5.0)
    values[12_345] = 99.0
    found = curves(powered(**sampled(np.arange(count) / 20, values.tolist())))
    _, points = found["GPU 0 sm__busy.pct"]
    assert len(points) <= 1_502
    assert max(value for _, value in points if value is not None) == 99


def test_an_event_tells_what_the_curves_said_when_it_began(tmp_path):
    trace = powered()
    export_report(trace, tmp_path / "report.html")
    with chromium() as browser, opened(browser, tmp_path / "report.html", "/timeline") as page:
        page.focus("#lanes")
        page.keyboard.press("Enter")
        text = page.inner_text("#details")
        assert "then GPU 0 power" in text
        assert "90.0 W" in text
        assert "1.98 GHz" in text
        box = page.locator("#lanes canvas").bounding_box()
        seen = set()
        for down in range(40, int(box["height"]), 8):
            page.mouse.move(box["x"] + 30, box["y"] + down)
            if page.locator(".tip").is_visible():
                seen.add(page.inner_text(".tip").partition("\n")[0])
        assert {"GPU 0 power", "GPU 0 temperature"} <= seen
