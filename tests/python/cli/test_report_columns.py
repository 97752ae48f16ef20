# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from gpuscope.cli.report import fit

TABLE = [
    "----  ------  ------  --------",
    "Name     p99     p50     Calls",
    "----  ------  ------  --------",
    "   a     1us     2us         3",
    "----  ------  ------  --------",
    "Total: 3us, which is a sentence and no row",
]


def test_a_table_that_fits_is_left_alone():
    assert fit(TABLE, 30) == (TABLE, [])


def test_without_a_terminal_nothing_is_left_out():
    assert fit(TABLE, None) == (TABLE, [])


def test_the_most_dispensable_columns_go_first():
    lines, hidden = fit(TABLE, 22)
    assert lines[1] == "Name     p50     Calls"
    assert hidden == ["p99"]


def test_the_name_stays_on_the_narrowest_terminal():
    lines, hidden = fit(TABLE, 3)
    assert lines[3] == "   a"
    assert hidden == ["p99", "p50", "Calls"]


def test_sentences_below_the_table_are_kept_whole():
    assert fit(TABLE, 10)[0][-1] == TABLE[-1]


def test_text_without_a_table_is_left_alone():
    assert fit(["a long line of text"], 5) == (["a long line of text"], [])
