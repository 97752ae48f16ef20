# SPDX-License-Identifier: Apache-2.0
"""What sampled counters say of kernels and regions: by overlap, against a sum over every pair."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gscope import NONE, make_store
from gpuscope.counters.sampled import LEAST_SAMPLES, SampledCounters
from gpuscope.counters.timelines import Timeline
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.recording import Recording
from gpuscope.trace import Trace

BUSY, BYTES = "sm__busy.avg.pct_of_peak_sustained_elapsed", "dram__bytes.sum"


def make_trace(kernels, samples, info=None, devices=(0,)):
    """`kernels`: (start, duration, region, name); `samples`: (start, duration, busy, bytes)."""
    columns = list(zip(*kernels, strict=True)) or [(), (), (), ()]
    times = list(zip(*samples, strict=True)) or [(), (), (), ()]
    values = np.column_stack((times[2], times[3])).ravel() if samples else []
    return Trace(
        make_store(
            {
                "path": {"name": ["step", "inner", "other"], "parent": [NONE, 0, NONE]},
                "thread": {"system_id": [1]},
                "region": {"start_ns": [0, 1, 2], "duration_ns": [9, 5, 3], "path": [0, 1, 2]},
                "variant": {"name": ["gemm", "copy"]},
                "track": {"device": list(devices), "context": [1] * len(devices), "stream": [7] * len(devices)},
                "kernel": {
                    "start_ns": columns[0],
                    "duration_ns": columns[1],
                    "region": columns[2],
                    "variant": columns[3],
                },
                "counter": {"name": [BUSY, BYTES], "unit": ["percent", "byte"], "description": ["", ""]},
                "counter_sample": {"start_ns": times[0], "duration_ns": times[1]},
                "counter_value": {
                    "sample": np.repeat(np.arange(len(samples)), 2),
                    "counter": [0, 1] * len(samples),
                    "value": values,
                },
                "info": {
                    "key": list({"session.mode": "full", **(info or {})}),
                    "value": list({"session.mode": "full", **(info or {})}.values()),
                },
            }
        )
    )


def steady(count=20, length=100, busy=lambda at: at, read=1000):
    return [(1000 + length * at, length, float(busy(at)), float(read)) for at in range(count)]


def test_a_kernel_with_samples_inside_has_the_mean_of_what_overlaps():
    trace = make_trace([(1050, 700, 1, 0)], steady())
    values = SampledCounters(trace).kernel_values()
    # Half of the first and of the last of eight samples, and six whole ones.
    assert values[0, 0] == pytest.approx((0.5 * 0 + sum(range(1, 7)) + 0.5 * 7) / 7)
    assert values[0, 1] == pytest.approx(1000 / 100e-9)  # bytes a second


def test_a_kernel_with_fewer_than_five_samples_inside_has_none():
    length = 100 * LEAST_SAMPLES
    trace = make_trace([(1000, length, 1, 0), (1001, length, 1, 0), (1000, length - 1, 1, 0)], steady())
    values = SampledCounters(trace).kernel_values()
    assert np.isfinite(values[0]).all()
    assert np.isnan(values[1:]).all()


def test_regions_have_the_mean_over_their_kernels_and_those_inside():
    kernels = [(1000, 100, 0, 0), (1300, 200, 1, 1), (1900, 50, NONE, 1)]
    step, inner = SampledCounters(make_trace(kernels, steady())).regions()
    assert (step.name, step.count, step.time_ns, step.covered_ns) == ("step", 2, 300, 300)
    assert (inner.name, inner.count) == ("step/inner", 1)
    assert inner.values[0] == pytest.approx(3.5)
    assert step.values[0] == pytest.approx((0 * 100 + 3.5 * 200) / 300)


def test_names_of_kernels_are_those_with_samples_of_their_own():
    (gemm,) = SampledCounters(make_trace([(1000, 600, 1, 0), (1700, 10, 1, 1)], steady())).kernels()
    assert (gemm.name, gemm.count, gemm.time_ns) == ("gemm", 1, 600)


def test_gaps_between_samples_count_for_nothing():
    samples = [sample for at, sample in enumerate(steady()) if at not in (3, 4)]
    found = SampledCounters(make_trace([(1000, 1000, 0, 0)], samples))
    assert found.regions()[0].covered_ns == 800
    assert found.regions()[0].values[0] == pytest.approx((sum(range(10)) - 3 - 4) / 8)


def test_work_outside_every_sample_has_no_values():
    (step,) = SampledCounters(make_trace([(10, 20, 0, 0)], steady())).regions()
    assert step.covered_ns == 0
    assert np.isnan(step.values).all()


def test_the_mean_of_a_span_and_of_all():
    found = SampledCounters(make_trace([], steady(4)))
    assert found.mean()[BUSY] == pytest.approx(1.5)
    assert found.mean(1100, 1200)[BUSY] == 1
    assert np.isnan(found.mean(0, 10)[BUSY])
    start_ns, values = found.timeline(BUSY)
    assert (start_ns.tolist(), values.tolist()) == ([1000, 1100, 1200, 1300], [0, 1, 2, 3])
    with pytest.raises(InvalidArgument, match="metric is 'x'; sampled were sm__busy"):
        found.timeline("x")
    with pytest.raises(InvalidArgument, match="device is 3; sampled were 0"):
        found.timeline(BUSY, 3)


def test_without_samples_the_text_has_the_reason():
    found = SampledCounters(make_trace([(0, 5, 0, 0)], [], {"counters.why": "administrators alone"}))
    assert "administrators alone" in str(found)
    assert len(found) == 0
    assert found.to_dict()["why"] == "administrators alone"


def test_the_text_and_the_json_have_each_counter():
    info = {"counters.left_out": "a.sum b.sum", "audit.counter_overflows": "2"}
    found = SampledCounters(make_trace([(1000, 600, 0, 0)], steady(), info))
    text = str(found)
    assert "20 samples of 2 hardware counters" in text
    assert BUSY in text
    assert "byte/s" in text
    assert "gemm" in text
    assert "a.sum, b.sum" in text
    assert "lost 2 times" in text
    saved = json.loads(found.to_json())
    assert saved["means"]["0"][0] == pytest.approx(9.5)
    assert saved["regions"][0]["values"][1] == pytest.approx(1e10)


def test_samples_that_became_longer_after_a_loss_are_told():
    info = {
        "counters.interval_ns": "20000",
        "audit.counter_interval_ns": "80000",
        "audit.counter_overflows": "1",
    }
    trace = make_trace([(1000, 600, 0, 0)], steady(), info)
    found = SampledCounters(trace)
    assert "lost 1 time, as they came faster than they were read; they are 80 us long since, not 20" in str(found)
    assert found.to_dict()["interval_seconds"] == [2e-5, 8e-5]
    (reason,) = (each for each in Recording(trace.store).audit().reasons if "hardware counters" in each)
    assert reason.endswith("80 us long since, not 20")


def test_recordings_hand_them_out():
    trace = make_trace([], steady())
    assert len(Recording(trace.store).counters()) == 20
    aggregate = make_trace([], [], {"session.mode": "aggregate"})
    with pytest.raises(NotAvailable, match="mode='aggregate'"):
        Recording(aggregate.store).counters()


def test_lost_samples_make_the_audit_incomplete_and_a_refusal_does_not():
    lost = Recording(make_trace([], steady(), {"audit.counter_overflows": "2"}).store).audit()
    assert any("hardware counters were lost 2 times" in reason for reason in lost.reasons)
    assert not any("long since" in reason for reason in lost.reasons)
    refused = Recording(make_trace([], [], {"counters.why": "no privileges"}).store).audit()
    assert refused.complete
    assert any("no privileges" in remark for remark in refused.remarks)


SPANS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1500)), min_size=1, max_size=20)


@given(
    gaps=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 200), st.integers(-9, 9)), min_size=1, max_size=30),
    spans=SPANS,
)
def test_integrals_are_the_sum_over_every_pair(gaps, spans):
    samples, at = [], 100
    for gap, length, value in gaps:
        samples.append((at + gap, at + gap + length, value))
        at += gap + length
    start, end, value = (np.array(column) for column in zip(*samples, strict=True))
    begins = np.array([begin for begin, _ in spans])
    ends = begins + np.array([length for _, length in spans])
    covered, sums, weights = Timeline(start, end, value[:, None].astype(float)).sums(begins, ends)
    for row, (begin, finish) in enumerate(zip(begins, ends, strict=True)):
        overlap = np.maximum(np.minimum(end, finish) - np.maximum(start, begin), 0)
        assert covered[row] == weights[row, 0] == pytest.approx(overlap.sum(), abs=1e-6)
        assert sums[row, 0] == pytest.approx((overlap * value).sum(), abs=1e-6)


def test_samples_that_overlap_are_cut():
    timeline = Timeline(np.array([0, 90]), np.array([100, 200]), np.array([[1.0], [2.0]]))
    covered, sums, _ = timeline.sums(np.array([0]), np.array([200]))
    assert (covered[0], sums[0, 0]) == (200, 90 + 2 * 110)


def test_a_counter_without_a_value_was_not_sampled_there():
    samples = steady(10, busy=lambda at: float("nan") if at in (2, 3) else at)
    found = SampledCounters(make_trace([(1000, 800, 0, 0)], samples))
    (step,) = found.regions()
    assert step.values[0] == pytest.approx((0 + 1 + 4 + 5 + 6 + 7) / 6)
    assert step.values[1] == pytest.approx(1e10)
    assert step.covered_ns == 800
    assert found.mean(1200, 1400)[BUSY] != found.mean(1200, 1400)[BUSY]
    assert found.to_dict()["means"]["0"][0] == pytest.approx((45 - 5) / 8)


@pytest.mark.parametrize(
    ("info", "said"), [({}, "no sample was complete"), ({"counters.why": "another profiler"}, "another profiler")]
)
def test_counters_that_were_asked_for_and_have_no_samples_are_told_so(info, said):
    found = SampledCounters(make_trace([(1000, 800, 0, 0)], [], info))
    assert said in str(found)
    with pytest.raises(NotAvailable, match=said):
        found.timeline(BUSY)
