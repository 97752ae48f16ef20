# SPDX-License-Identifier: Apache-2.0
"""The search for the largest size that fits: exact, and in few tries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.memory.limits.batch_size import Search, line


def found(largest, start=8, limit=None, predict=lambda search: None):
    search = Search(start, limit)
    tried = []
    while (number := search.next(predict(search))) is not None:
        tried.append(number)
        search.add(number, number <= largest)
    return search.fits, tried


@given(st.integers(0, 10**7), st.integers(1, 5000), st.none() | st.integers(1, 10**7))
def test_the_answer_is_the_largest_that_fits(largest, start, limit):
    assert found(largest, start, limit)[0] == (largest if limit is None else min(largest, limit))


@given(st.integers(0, 10**7), st.integers(1, 5000), st.data())
def test_no_prediction_spoils_the_answer(largest, start, data):
    guesses = st.none() | st.integers(-5, 2 * 10**7)
    assert found(largest, start, predict=lambda search: data.draw(guesses))[0] == largest


@given(st.integers(0, 10**7), st.integers(1, 5000), st.integers(1, 10**8))
def test_tries_are_of_the_order_of_the_logarithm(largest, start, predicted):
    tried = found(largest, start, predict=lambda search: predicted)[1]
    assert len(tried) <= 4 * math.log2(max(largest, start) + 2) + 10


@given(st.integers(0, 10**6), st.integers(1, 5000), st.integers(1, 10**7))
def test_no_size_is_tried_twice(largest, start, predicted):
    tried = found(largest, start, predict=lambda search: predicted)[1]
    assert len(tried) == len(set(tried))


@given(st.integers(100, 10**6))
def test_a_true_prediction_leaves_one_failure(largest):
    tried = found(largest, predict=lambda search: largest if search.fits >= 16 else None)[1]
    assert sum(number > largest for number in tried) == 1


@given(st.integers(1000, 10**6), st.floats(0.97, 1.03))
def test_a_prediction_that_is_nearly_true_saves_tries(largest, factor):
    guided = found(largest, predict=lambda search: int(largest * factor) if search.fits >= 16 else None)[1]
    assert sum(abs(number - largest) > largest / 8 for number in guided) <= 6


def test_a_prediction_that_creeps_does_not_slow_it_down():
    assert len(found(10**5, predict=lambda search: search.fits + 1)[1]) < 60


def test_the_first_size_that_does_not_fit_is_halved():
    assert found(3, start=64)[1][:5] == [64, 32, 16, 8, 4]


def test_zero_is_the_answer_when_one_does_not_fit():
    assert found(0) == (0, [8, 4, 2, 1])


def test_no_size_above_the_limit_is_tried():
    assert found(10**6, limit=100) == (100, [8, 16, 32, 64, 100])


def test_the_line_goes_through_points_on_it():
    assert line([(8, 180), (16, 260), (32, 420)]) == pytest.approx((100, 10))


def test_there_is_no_line_through_one_size():
    assert line([(8, 180), (8, 190)]) is None
    assert line([]) is None
