# SPDX-License-Identifier: Apache-2.0
"""How figures are printed and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import tables, units
from gpuscope.errors import InvalidArgument


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (20 << 20, "20.0 MiB"),
        (-(20 << 20), "-20.0 MiB"),
        (999.6 * 2**20, "0.98 GiB"),
        (3 << 50, "3072 TiB"),
    ],
)
def test_bytes_are_printed_with_three_digits(size, text):
    assert units.format_bytes(size) == text


def test_a_plus_stands_only_before_growth():
    assert [units.format_bytes(size, signed=True) for size in (2048, 0, -2048)] == ["+2.00 KiB", "0 B", "-2.00 KiB"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.4e-9, "0.40 ns"),
        (1.5e-9, "1.50 ns"),
        (123.4e-9, "123 ns"),
        (12.34e-6, "12.3 us"),
        (999.6e-6, "1.00 ms"),
        (0.0012345, "1.23 ms"),
        (12.34e-3, "12.3 ms"),
        (0.9995e-3, "1.00 ms"),
        (0.99996, "1.00 s"),
        (-0.002, "-2.00 ms"),
        (1.5, "1.50 s"),
        (120, "120 s"),
        (3600.0, "3600 s"),
    ],
)
def test_seconds_are_printed_in_the_unit_that_suits(seconds, text):
    assert units.format_seconds(seconds) == text


@given(st.floats(1e-9, 1e4))
def test_printed_seconds_are_within_half_a_percent(seconds):
    number, unit = units.format_seconds(seconds).split()
    assert float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit] == pytest.approx(seconds, rel=0.0051)
    assert float(number) < 1000 or unit == "s"


def test_table_times_are_torchs():
    assert [units.format_time(time) for time in (0.5, 1500.0, 2e6)] == ["0.500us", "1.500ms", "2.000s"]
    assert units.format_time(1500.0, "us") == "1500.000us"


def test_rates_and_factors_have_three_digits():
    assert units.format_rate(1.234e12, "FLOP") == "1.23 TFLOP/s"
    assert units.format_rate(4560, "items") == "4.56 k items/s"
    assert units.format_times(3.2149) == "3.21x"
    assert units.format_digits(0.07891) == "0.0789"


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.9949, "9.99"), (9.9951, "10.0"), (0.99949, "0.999"), (0.9996, "1.00"), (99.96, "100"), (999.6, "1,000")],
)
def test_digits_are_three_also_of_what_is_rounded_up(value, text):
    assert units.format_digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0451, "0.045"), (1.23, "1.2"), (99.4, "99"), (100.0, "100"), (1234.0, "1200"), (-170.3, "-170")],
)
def test_rough_figures_have_two_digits_and_no_exponent(value, text):
    assert units.format_rough(value) == text


def test_columns_are_as_wide_as_a_terminal_shows_their_cells():
    rows = [["name", "time"], ["\u65e5\u672c\u8a9e", "1 s"], ["e\u0301", "20 s"]]
    assert tables.align_columns(rows, left=1) == ["name    time", "\u65e5\u672c\u8a9e   1 s", "e\u0301       20 s"]


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError


def test_first_line_of_an_error_names_its_class():
    assert units.first_line(ValueError("one\ntwo")) == "ValueError: one"
    assert units.first_line(ValueError()) == "ValueError"
    assert units.first_line(UnprintableError()) == "UnprintableError"
    assert units.first_line("\n one \ntwo") == "one"


@pytest.mark.parametrize(
    ("given", "size"), [(5, 5), ("512MB", 512 * 10**6), (" 1.5 GiB", 3 << 29), ("7B", 7), ("2kib", 2048)]
)
def test_bytes_are_read_as_people_write_them(given, size):
    assert units.parse_bytes("cap", given) == size


@pytest.mark.parametrize("given", ["x", "1 XB", "-5", "7", True, 1.5, None, "0", "9" * 400, 10**30, "9EB"])
def test_anything_else_is_no_number_of_bytes(given):
    with pytest.raises(InvalidArgument, match=r"^cap is .*; accepted are text with a unit, as '512MB'"):
        units.parse_bytes("cap", given)


def test_a_number_of_bytes_that_is_too_long_is_cut_in_the_sentence():
    with pytest.raises(InvalidArgument) as raised:
        units.parse_bytes("cap", "9" * 400)
    assert len(str(raised.value)) < 200


def test_times_and_shares_are_read_as_people_write_them():
    assert [units.parse_seconds(text) for text in ("2s", "500ms", "1min", "7us")] == [2, 0.5, 60, 7e-6]
    assert [units.parse_share(text) for text in ("1%", "0.01")] == [0.01, 0.01]


@pytest.mark.parametrize("text", ["", "0", "2", "0.5", "-1s", "inf", "1h", "ms"])
def test_anything_else_is_no_time(text):
    with pytest.raises(InvalidArgument, match="is not a time above 0"):
        units.parse_seconds(text)


@pytest.mark.parametrize("text", ["", "0", "1", "100%", "1%%", "nan"])
def test_anything_else_is_no_share(text):
    with pytest.raises(InvalidArgument, match="is not a share above 0 and below 1"):
        units.parse_share(text)


def test_a_date_is_of_the_time_of_day_alone():
    assert units.format_date(1_790_000_000 * 10**9).startswith("2026-09-2")
    assert [units.format_date(time_ns) for time_ns in (0, 53_398, 4_628_340_881_851_731)] == ["", "", ""]
