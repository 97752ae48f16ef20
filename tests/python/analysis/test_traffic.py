# SPDX-License-Identifier: Apache-2.0
"""Bytes that operators must move at least, by hand."""

from __future__ import annotations

import pytest

from fakes.recordings import make_trace
from gpuscope.analysis.rows import RegionRows
from gpuscope.analysis.traffic import count_bytes, operator_bytes

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
        # Numbers of Python are tensors of no dimension, which leave the type of the result alone:
        ("mul", ((4, 8), ()), (F, "double"), 4 * 32 + 8 + 4 * 32),
        ("mul", ((4, 8), ()), (H, "long int"), 2 * 32 + 8 + 2 * 32),
        ("mul", ((), ()), (F, "double"), 4 + 8 + 8),
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


def test_an_expanded_input_is_read_as_often_as_it_lies_in_memory():
    shapes, types = ((4, 8), (4, 8)), (F, F)
    assert operator_bytes("aten::mul", shapes, types, strides=((8, 1), (0, 1))) == 4 * (32 + 8 + 32)
    assert operator_bytes("aten::mul", shapes, types, strides=((8, 1), (0, 0))) == 4 * (32 + 1 + 32)


def test_shapes_that_no_memory_holds_have_no_bytes():
    sizes = {"region": [0], "shapes": ["[[8589934592, 8589934592], []]"], "types": ["['float', 'Scalar']"]}
    tables = {
        "path": {"name": ["aten::add"], "kind": [1]},
        "thread": {"system_id": [1]},
        "region": {"path": [0]},
        "detail": sizes,
    }
    assert count_bytes(RegionRows(make_trace(tables))).tolist() == [0]


def test_a_convolution_needs_its_result():
    shapes = ((1, 3, 8, 8), (4, 3, 3, 3))
    expected = 4 * (192 + 108 + 4 * 36)
    assert operator_bytes("aten::cudnn_convolution", shapes, (F, F), (1, 4, 6, 6)) == expected
