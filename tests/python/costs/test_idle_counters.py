# SPDX-License-Identifier: Apache-2.0
"""What the counters of the front end say of gaps that were made for the host or for the device. Times are in us."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fakes.recordings import make_trace
from gpuscope._core import CallKind
from gpuscope.costs.idle_counters import idle_by_counters
from gpuscope.counters.names import ENGINE_ACTIVE, NOTHING_QUEUED, WAITS_AT_SEMAPHORE
from gpuscope.diagnosis import Steps, break_down, diagnose

US = 1000
LENGTH = 100
NAMES = [NOTHING_QUEUED, WAITS_AT_SEMAPHORE, ENGINE_ACTIVE]
INFO = {"session.tier": "cupti", "session.mode": "full", "session.start_ns": "0", "session.stop_ns": "100000000"}


def trace_of(work, front_end, names=NAMES, until=20_000, devices=(0,), correlations=1):
    """`work`: (begin and end of the launching call, begin and end of the kernel); `front_end`: percents at a moment."""
    calls, kernels = zip(*((each[:2], each[2:]) for each in work), strict=True)
    times = np.arange(0, until, LENGTH)
    values = np.array([front_end(at, at + LENGTH) for at in times.tolist()], float)[:, : len(names)]
    return make_trace(
        {
            "thread": {"system_id": [1]},
            "track": {"device": [0]},
            "variant": {"name": ["kernel"]},
            "call": {"name": ["cuLaunchKernel"], "kind": [int(CallKind.LAUNCH)]},
            "api": {
                "start_ns": [begin * US for begin, _ in calls],
                "duration_ns": [(end - begin) * US for begin, end in calls],
                "correlation": [correlations * number for number in range(1, len(work) + 1)],
            },
            "kernel": {
                "start_ns": [begin * US for begin, _ in kernels],
                "duration_ns": [(end - begin) * US for begin, end in kernels],
                "correlation": list(range(1, len(work) + 1)),
            },
            "counter": {"name": list(names), "unit": ["percent"] * len(names), "description": [""] * len(names)},
            "counter_sample": {
                "start_ns": (times * US).tolist(),
                "duration_ns": [LENGTH * US] * len(times),
                "device": (list(devices) * len(times))[: len(times)],
            },
            "counter_value": {
                "sample": np.repeat(np.arange(len(times)), len(names)).tolist(),
                "counter": list(range(len(names))) * len(times),
                "value": values.ravel().tolist(),
            },
        },
        info=INFO,
    )


def compared(trace, until=20_000):
    steps = Steps(np.array([0]), np.array([until * US]), "given")
    return idle_by_counters(trace, break_down(trace, steps))


LATE = [(0, 5, 10, 1010), (9000, 9005, 9010, 10_010), (18_000, 18_005, 18_010, 20_000)]
"""The host launches the next kernel 8 ms after the end of the one before."""

HELD = [(0, 5, 10, 1010), (6, 9, 9010, 10_010), (10, 15, 18_010, 20_000)]
"""The host is far ahead, and the GPU begins late all the same."""


def running(work, at, end):
    return 100 * sum(max(min(end, until) - max(at, begin), 0) for *_, begin, until in work) / (end - at)


def test_a_late_host_has_queued_nothing():
    (found,) = compared(trace_of(LATE, lambda at, end: (100, 0, running(LATE, at, end))))
    assert found.nothing_queued == found.host_by_causes == 1
    assert found.held_back == found.device_by_causes == 0
    assert found.engine_active == 0  # samples that reach over the edge of a gap are left out
    assert found.samples == 79 + 79
    assert found.sampled_ns == 158 * LENGTH * US
    assert found.agreement_points == 0


def test_work_that_is_held_back_waits_at_a_semaphore():
    (found,) = compared(trace_of(HELD, lambda at, end: (0, 100, running(HELD, at, end))))
    assert found.held_back == found.device_by_causes == 1
    assert found.nothing_queued == found.host_by_causes == 0


def test_a_gap_of_both_is_divided_as_the_causes_divide_it():
    work = [(0, 5, 10, 1010), (5000, 5005, 9010, 10_010)]  # 4 ms of the host's, then 4 ms held back

    def front_end(at, end):
        host = 100.0 if end <= 5005 else 0.0
        return host, 100 - host, running(work, at, end)

    (found,) = compared(trace_of(work, front_end, until=10_100), until=10_010)
    assert found.host_by_causes == pytest.approx(0.5, abs=0.02)
    assert found.nothing_queued == pytest.approx(0.5, abs=0.02)
    assert found.agreement_points < 2


def test_what_the_counters_do_not_confirm_is_said():
    (found,) = compared(trace_of(LATE, lambda at, end: (40, 60, 0)))
    assert found.agreement_points == pytest.approx(60)


def test_gaps_whose_launch_was_not_recorded_are_left_out():
    assert compared(trace_of(LATE, lambda at, end: (100, 0, 0), correlations=0)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"names": NAMES[:2]},  # a chip that does not count all three
        {"devices": [1]},
    ],
)
def test_without_samples_of_the_front_end_nothing_is_said(change):
    assert compared(trace_of(LATE, lambda at, end: (100, 0, 0), **change)) == ()


def test_gaps_shorter_than_a_sample_say_nothing():
    work = [(at, at + 5, at + 10, at + 60) for at in range(0, 20_000, 100)]
    assert compared(trace_of(work, lambda at, end: (100, 0, 50))) == ()


def test_the_page_and_the_json_have_both():
    work = [(at, at + 5, at + 10, at + 1010) for at in range(0, 100_000, 5000)]
    trace = trace_of(work, lambda at, end: (98, 2, 1), until=100_000)
    found = diagnose(trace)
    page = " ".join(found.page(120).split())
    assert "idle by counters: nothing was queued 98 % (causes: the host 100 %)" in page
    assert "queued work held back 2.0 % (causes: 0.0 %)" in page
    assert "2.0 points apart" in page
    (said,) = json.loads(found.to_json())["idle_by_counters"]
    assert said["agreement_points"] == pytest.approx(2)
    assert said["sampled_s"] <= said["idle_s"]


def test_few_samples_are_said_to_be_few():
    work = [(at, at + 5, at + 10, at + 1010) for at in range(0, 100_000, 5000)]
    found = diagnose(
        trace_of(work, lambda at, end: (98, 2, 1), until=100_000, devices=[*[1] * 165, *[0] * 5, *[1] * 900])
    )
    assert "too few to tell" in " ".join(found.page(200).split())


def test_without_counters_the_page_does_not_speak_of_them():
    work = [(at, at + 5, at + 10, at + 1010) for at in range(0, 100_000, 5000)]
    found = diagnose(trace_of(work, lambda at, end: (98,), names=["sm__cycles.sum"], until=100_000))
    assert "by counters" not in found.page()
    assert found.to_dict()["idle_by_counters"] == []
