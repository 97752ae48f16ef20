# SPDX-License-Identifier: Apache-2.0
"""`measure_counters` with a range profiler that counts calls."""

from __future__ import annotations

import json
import math

import pytest

import gpuscope
from gpuscope import _core
from gpuscope.counters import CounterMeasurement
from gpuscope.counters.measuring import unit_of
from gpuscope.errors import InvalidArgument


class RangeCounters:
    """Two passes; a metric's value is how many calls were made inside passes."""

    chip = "GH100"
    passes = 2

    def __init__(self, device, metrics):
        self.device, self.metrics = device, metrics
        self.calls, self.open, self.done, self.closed = 0, False, 0, False
        RangeCounters.latest = self

    def begin_pass(self):
        self.open = True

    def end_pass(self):
        self.open = False
        self.done += 1
        return self.done < self.passes

    def close(self):
        self.closed = True

    def read(self):
        assert not self.closed
        return [float(self.calls)] * (len(self.metrics) - 1) + [math.nan]


@pytest.fixture
def gpu(monkeypatch):
    listed = [("dram__bytes_read", 0, "dram", "byte", ""), ("sm__inst", 0, "sm", "inst", "")]
    monkeypatch.setattr(_core, "counter_chip", lambda device=0: "GH100")
    monkeypatch.setattr(_core, "counter_chips", lambda: ["GH100"])
    monkeypatch.setattr(_core, "list_counters", lambda chip, sampling: listed)
    monkeypatch.setattr(_core, "counter_endings", lambda *_, **__: [".sum", ".avg"])
    monkeypatch.setattr(_core, "choose_counters", lambda chip, sampling, wanted: (wanted[:2], wanted[2:3], wanted[3:]))
    monkeypatch.setattr(_core, "RangeCounters", RangeCounters, raising=False)


def work(calls):
    def fn():
        calls.append(RangeCounters.latest.open if hasattr(RangeCounters, "latest") else False)
        if calls[-1]:
            RangeCounters.latest.calls += 1

    return fn


def test_the_call_is_made_once_before_and_once_a_pass(gpu):
    calls = []
    measured = gpuscope.measure_counters(work(calls), ["dram__bytes_read.sum", "sm__inst.sum"], device=1)
    assert calls == [False, True, True]
    assert (measured.chip, measured.device, measured.passes) == ("GH100", 1, 2)
    assert measured["dram__bytes_read.sum"] == 2
    assert measured.units == {"dram__bytes_read.sum": "byte", "sm__inst.sum": "inst"}


def test_the_counters_are_given_back_on_every_way_out(gpu):
    gpuscope.measure_counters(work([]), ["dram__bytes_read.sum"])
    assert RangeCounters.latest.closed
    calls = iter([None, None, ZeroDivisionError()])

    def fail_later():
        if (error := next(calls)) is not None:
            raise error

    with pytest.raises(ZeroDivisionError) as caught:  # which keeps the frames, and what they hold
        gpuscope.measure_counters(fail_later, ["dram__bytes_read.sum"])
    assert RangeCounters.latest.closed
    assert caught.tb is not None


def test_the_text_and_the_json_say_each_value(gpu):
    measured = gpuscope.measure_counters(work([]), ["dram__bytes_read.sum", "sm__inst.sum"])
    text = str(measured)
    assert "over 2 calls" in text
    assert any(line.split() == ["dram__bytes_read.sum", "2", "byte"] for line in text.splitlines())
    assert any(line.split() == ["sm__inst.sum", "not", "available", "inst"] for line in text.splitlines())
    assert json.loads(measured.to_json())["values"] == {"dram__bytes_read.sum": 2, "sm__inst.sum": None}


def test_a_set_says_what_it_leaves_out(gpu):
    measured = gpuscope.measure_counters(work([]))
    assert len(measured.values) == 2
    assert len(measured.left_out) == len(gpuscope.counters.names.OVERVIEW) - 2
    assert "left out" in str(measured)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "fn is 3"),
        ((print, "why"), "metrics is 'why'; accepted is 'overview', or a list"),
        ((print, ["dram__byte.sum"]), "nearest are dram__bytes_read"),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(gpu, arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        gpuscope.measure_counters(*arguments)


def test_a_metric_that_was_not_measured_is_refused():
    measured = CounterMeasurement({"a.sum": 1.0}, {}, "GH100", 0, 1)
    with pytest.raises(InvalidArgument, match=r"metric is 'b.sum'; measured were a.sum"):
        _ = measured["b.sum"]


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("dram__bytes.sum", "byte"),
        ("dram__bytes.sum.per_second", "byte/s"),
        ("dram__bytes.avg.pct_of_peak_sustained_elapsed", "percent"),
        ("dram__bytes_read.sum.per_cycle_active", "byte/cycle"),
        ("dram__bytes.sum.peak_sustained", "byte/cycle"),
        ("dram__bytes.sum.peak_sustained_active", "byte"),
        ("dram__bytes.sum.peak_sustained_active.per_second", "byte/s"),
        ("unknown.sum", ""),
    ],
)
def test_endings_change_the_unit(metric, unit):
    assert unit_of(metric, {"dram__bytes": "byte", "dram__bytes_read": "byte"}) == unit
