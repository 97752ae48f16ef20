# SPDX-License-Identifier: Apache-2.0
"""Targets of times and rates, and when they are met."""

from __future__ import annotations

import math

import pytest

from gpuscope.errors import InvalidArgument
from gpuscope.targets import Target


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((18.2e-3, 18.9e-3), "target 20 ms: met (18.2 to 18.9 ms)"),
        ((21e-3, 22e-3), "target 20 ms: not met (21.0 to 22.0 ms)"),
        ((19e-3, 21e-3), "target 20 ms: not certain (19.0 to 21.0 ms)"),
        ((0.9e-3, math.inf), "target 20 ms: not certain (there is no 95 % interval)"),
        (None, "target 20 ms: not certain (there is no 95 % interval)"),
    ],
)
def test_a_time_is_judged_by_its_whole_interval(interval, text):
    assert str(Target.of("20 ms").judged(interval)) == text


@pytest.mark.parametrize(("interval", "met"), [((510, 520), True), ((480, 490), False), ((490, 510), None)])
def test_a_rate_is_to_be_at_least_the_target(interval, met):
    assert Target.of("500 samples/s", of_rates=True).judged(interval, rate=True).met is met


@pytest.mark.parametrize(("text", "bound"), [("+25 %", 8.0), ("-20%", 8.0), ("+100%", 5.0)])
def test_faster_is_relative_to_the_time_of_the_baseline(text, bound):
    assert Target.of(text).judged((1.0, 2.0), (10.0, 9.9, 10.1)).bound == pytest.approx(bound)


def test_faster_is_relative_to_the_rate_of_the_baseline():
    found = Target.of("+30 %", of_rates=True).judged((131.0, 132.0), (100.0, 100.0, 100.0), rate=True)
    assert (found.bound, found.met) == (130.0, True)


def test_the_interval_of_the_baseline_makes_it_uncertain():
    assert Target.of("+25 %").judged((7.8, 7.9), (10.0, 10.0, 10.0)).met is True
    assert Target.of("+25 %").judged((7.8, 7.9), (10.0, 9.0, 11.0)).met is None


@pytest.mark.parametrize(
    "text", ["", "-20 ms", "fast", "+30", "0 ms", "nan ms", "inf s", "+0 %", "-100 %", "500 samples/s", 20, None]
)
def test_a_target_that_makes_no_sense_is_refused_in_one_sentence(text):
    with pytest.raises(InvalidArgument, match=r"^target is .*; accepted are '20 ms'"):
        Target.of(text)


@pytest.mark.parametrize("text", ["0 samples/s", "500"])
def test_rates_have_their_own_targets(text):
    with pytest.raises(InvalidArgument, match="'500 samples/s'"):
        Target.of(text, of_rates=True)


def test_a_relative_target_asks_for_its_baseline():
    with pytest.raises(InvalidArgument, match="baseline is missing"):
        Target.of("+30 %", has_baseline=False)
