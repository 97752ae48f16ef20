# SPDX-License-Identifier: Apache-2.0
"""Bytes that operators must move at least, by hand."""

from __future__ import annotations

import pytest

from gpuscope.analysis.traffic import operator_bytes

F, H, B = "float", "c10::Half", "bool"


@pytest.mark.parametrize(
    ("name", "shapes", "types", "expected"),
    [
        ("mm", ((4, 8), (8, 2)), (F, F), 4 * (32 + 16 + 8)),
        ("mm", ((4, 8), (8, 2)), (H, H), 2 * (32 + 16 + 8)),
        ("addmm", ((2,), (4, 8), (8, 2), (), ()), (F, F, F, "Scalar", "Scalar"), 4 * (2 + 32 + 16 + 8)),
        ("bmm", ((3, 4, 8), (3, 8, 2)), (F, F), 4 * 3 * (32 + 16 + 8)),
        ("baddbmm", ((3, 4, 2), (3, 4, 8), (3, 8, 2)), (F, F, F), 4 * 3 * (8 + 32 + 16 + 8)),
        ("add", ((4, 8), (8,), ()), (F, F, "Scalar"), 4 * (32 + 8 + 32)),
        ("relu", ((4, 8),), (H,), 2 * 64),
        ("add_", ((4, 8), (4, 8), ()), (F, F, "Scalar"), 4 * 96),
        ("relu_", ((4, 8),), (F,), 4 * 64),
        ("copy_", ((4, 8), (4, 8), ()), (F, H, "Scalar"), 32 * (4 + 2)),
        ("fill_", ((4, 8), ()), (F, "Scalar"), 4 * 32),
        ("where", ((4, 8), (4, 8), (4, 8)), (B, F, F), 32 * (1 + 4 + 4 + 4)),
        (
            "_scaled_dot_product_flash_attention",
            ((2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13)),
            (H, H, H),
            2 * 6 * (5 * 7 + 11 * 7 + 11 * 13 + 5 * 13),
        ),
        # What is not known:
        ("mm", ((4, 8), (8, 2)), ("", ""), 0),
        ("mm", ((4, 8),), (F,), 0),
        ("add", ((4, 8), (3,)), (F, F), 0),
        ("linear", ((4, 8), (2, 8)), (F, F), 0),
        ("cudnn_convolution", ((1, 3, 8, 8), (4, 3, 3, 3)), (F, F), 0),
    ],
)
def test_each_input_is_read_once_and_the_result_written_once(name, shapes, types, expected):
    assert operator_bytes(f"aten::{name}", shapes, types) == expected


def test_a_convolution_needs_its_result():
    shapes = ((1, 3, 8, 8), (4, 3, 3, 3))
    expected = 4 * (192 + 108 + 4 * 36)
    assert operator_bytes("aten::cudnn_convolution", shapes, (F, F), (1, 4, 6, 6)) == expected
