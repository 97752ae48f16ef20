# SPDX-License-Identifier: Apache-2.0
"""An exploration as text and as JSON."""

from __future__ import annotations

import json
import math

import pytest

from fakes.explorations import SIZES, exploration
from gpuscope.benchmarking.backends import OPERATIONS
from gpuscope.stats import Estimate
from gpuscope.units import format_rate, format_times


def test_the_table_has_a_row_for_each_size_and_fits_a_terminal():
    lines = exploration().table().splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.lstrip()[:1].isdigit()]) == 2 * len(SIZES)


def test_the_table_tells_both_crossovers_of_an_operation():
    text = exploration(names=["copy"]).table()
    assert "  data on the GPU: the GPU is faster from 100 (95 %: 90 to 110)\n" in text
    assert "  with transfers: the GPU is faster from 268 (95 %: 241 to 295)\n" in text


def test_the_table_of_a_cpu_has_no_columns_for_a_gpu_and_says_why():
    text = exploration(gpu=False).table()
    assert "GPU  none: PyTorch finds no GPU\n" in text
    assert "speed-up" not in text


def test_the_table_ends_with_what_was_left_out_and_warnings():
    text = exploration(remarks=("one",), warnings=("two",), interrupted=True).table()
    assert text.endswith("interrupted: only what was measured until then is shown\nleft out: one\nwarning: two\n")


def test_a_point_that_is_missing_is_a_dash():
    found = exploration(names=["copy"], sizes=[64])
    text = exploration(names=["copy"], sizes=[64], points=found.points[:1]).table()
    assert text.splitlines()[-3].split() == ["64", "9.192", "us", "+-5.0%", "-", "-", "-", "-"]


def test_json_holds_points_crossovers_and_environment():
    content = json.loads(exploration().to_json())
    assert len(content["points"]) == 2 * 3 * len(SIZES)
    assert content["crossovers"][0]["crossings"][0]["value"] == 100.0
    assert content["environment"]["GPU"] == "Fake GPU"


def test_json_is_written_where_it_was_asked_for(tmp_path):
    text = exploration().to_json(tmp_path / "x.json")
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == text + "\n"


def test_an_interval_without_ends_is_null_in_json():
    found = exploration(sizes=[64], gpu=False)
    open_ended = Estimate(1.0, -math.inf, math.inf, 3, 3.0, "median", 0.95)
    point = type(found.points[0])("copy", 64, "cpu", open_ended, 1.0, None, False)
    content = json.loads(exploration(points=(point,), gpu=False).to_json())
    assert (content["points"][0]["wall"]["low"], content["points"][0]["wall"]["value"]) == (None, 1.0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234e13, "FLOP", "12.3 TFLOP/s"),
        (999.96e9, "B", "1.00 TB/s"),
        (5e6, "items", "5.00 M items/s"),
        (12.0, "B", "12.0 B/s"),
    ],
)
def test_rates_are_written_with_three_digits(value, unit, text):
    assert format_rate(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.4584, "0.458x"), (94.4, "94.4x"), (12345.0, "12,345x"), (9.999, "10.0x")]
)
def test_speedups_are_written_with_three_digits(value, text):
    assert format_times(value) == text


def test_the_work_of_a_matrix_product_is_two_n_cubed():
    matmul = OPERATIONS[0]
    assert (matmul.work(10, 4), matmul.memory(10, 4)) == (2000.0, 1200)
