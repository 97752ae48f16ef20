# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest

from gpuscope import errors, stats
from gpuscope.benchmarking import roofline


def took(value, low, high):
    return stats.Estimate(value, low, high, 100, 100.0, "median", 0.95)


TIME = took(100e-6, 80e-6, 125e-6)
SURE = took(TIME.value, TIME.value, TIME.value)
BANDWIDTH, COMPUTE = 4e12, 60e12


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch):
    def peak(kind, device):
        if kind == "tf32":
            return roofline.Peak(kind, "FLOP/s", None, None, "no torch here")
        measured = {"bandwidth": BANDWIDTH, "float32": COMPUTE}.get(kind, 700e12)
        return roofline.Peak(kind, "B/s" if kind == "bandwidth" else "FLOP/s", measured, 1.2 * measured)

    monkeypatch.setattr(roofline, "peak", peak)


def bandwidth(time=TIME, **options):
    return roofline.rates(time, **options)[0]


def test_a_rate_that_may_be_possible_raises_no_alarm():
    assert bandwidth(bytes=1.1 * BANDWIDTH * TIME.value).alarm == ""


def test_the_ends_of_the_time_become_the_other_ends_of_the_rate():
    rate = bandwidth(bytes=100e6)
    assert (rate.low, rate.value, rate.high) == pytest.approx((0.8e12, 1e12, 1.25e12))


def test_a_time_that_may_be_nothing_gives_a_rate_without_upper_end():
    (rate,) = roofline.rates(took(1e-6, -math.inf, math.inf), bytes=1)
    assert (rate.low, rate.high) == (0, math.inf)


def test_percent_is_of_the_measured_peak():
    assert bandwidth(bytes=100e6).percent_of_peak == pytest.approx(25)


def test_nothing_is_said_without_bytes_and_flops():
    assert roofline.rates(TIME) == ()


def test_flops_are_compared_with_the_peak_of_their_type():
    (rate,) = roofline.rates(TIME, flops=35e9, dtype="torch.bfloat16")
    assert (rate.kind, rate.unit, rate.percent_of_peak) == ("compute", "FLOP/s", pytest.approx(50))


@pytest.mark.parametrize("dtype", ["fp32", "float32", "torch.float32", "FLOAT32"])
def test_types_go_by_several_names(dtype):
    assert roofline.rates(TIME, flops=1e9, dtype=dtype)[0].peak == COMPUTE


def test_a_type_without_peak_has_the_reason():
    (rate,) = roofline.rates(TIME, flops=1e9, dtype="float64")
    assert (rate.peak, rate.percent_of_peak, rate.reason) == (None, None, "no peak is measured for float64")


def test_a_machine_without_gpu_has_rates_without_peaks(monkeypatch):
    def absent(kind, device):
        raise errors.NotAvailable("the GPU: no driver")

    monkeypatch.setattr(roofline, "peak", absent)
    rate = bandwidth(bytes=100e6)
    assert (rate.value, rate.peak, rate.reason) == (pytest.approx(1e12), None, "the GPU: no driver")


def test_a_possible_rate_raises_no_alarm():
    assert bandwidth(bytes=1.04 * BANDWIDTH * TIME.value).alarm == ""


def test_more_than_the_memory_delivers_raises_the_alarm():
    alarm = bandwidth(SURE, bytes=1.06 * BANDWIDTH * TIME.value).alarm
    assert alarm == (
        "more than the memory can deliver: the byte count is wrong, work was skipped, or the data stayed in the cache"
    )


def test_the_alarm_of_a_hot_run_names_the_cache_first():
    alarm = bandwidth(SURE, bytes=2 * BANDWIDTH * TIME.value, cold=False).alarm
    assert alarm.startswith("more than the memory can deliver: the data stayed in the cache, ")


def test_the_theoretical_limit_raises_the_alarm_where_no_peak_was_measured(monkeypatch):
    monkeypatch.setattr(roofline, "peak", lambda kind, device: roofline.Peak(kind, "B/s", None, 1e12, "out of memory"))
    assert bandwidth(SURE, bytes=1.01e12 * TIME.value).alarm
    assert not bandwidth(SURE, bytes=0.99e12 * TIME.value).alarm


def test_too_many_operations_raise_an_alarm_of_their_own():
    (rate,) = roofline.rates(SURE, flops=2 * COMPUTE * TIME.value)
    assert rate.alarm.startswith("more than the device can compute: ")
    assert "TensorFloat-32" in rate.alarm


@pytest.mark.parametrize(
    ("memory", "compute", "expected"),
    [(0.9, 0.3, "memory-bound"), (0.3, 0.9, "compute-bound"), (0.3, 0.3, "latency-bound")],
)
def test_the_verdict_is_the_rooflines(memory, compute, expected):
    found = roofline.rates(SURE, memory * BANDWIDTH * TIME.value, compute * COMPUTE * TIME.value)
    assert roofline.verdict(found) == expected


def test_there_is_no_verdict_without_both_peaks():
    assert roofline.verdict(roofline.rates(SURE, 1e6)) == ""
    assert roofline.verdict(roofline.rates(SURE, 1e6, 1e6, dtype="tf32")) == ""


@pytest.mark.parametrize("name", ["bytes", "flops"])
@pytest.mark.parametrize("work", [0, -1, math.nan, math.inf])
def test_impossible_work_is_refused(name, work):
    with pytest.raises(errors.InvalidArgument, match=f"^{name} is {work}; accepted are numbers above 0"):
        roofline.rates(SURE, **{name: work})
