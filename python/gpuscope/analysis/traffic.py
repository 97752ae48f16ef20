# SPDX-License-Identifier: Apache-2.0
"""Least bytes that operators of torch must move, from the shapes and types of their inputs.

Each input is read once and the result is written once. Cached data moves less. Data that is read again moves more, as
in a product of matrices larger than the cache. Only hardware counters know the real number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np

from gpuscope.analysis.flops import CONVOLUTIONS, FORMULAS
from gpuscope.analysis.rows import RegionRows, Shapes, is_shape

Array = np.ndarray[Any, Any]

ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int", "unsigned int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int"), 2),
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    "c10::complex<double>": 16,
}
"""Bytes of one element, by torch's name of the type."""

# Elementwise: the result has the broadcast shape of the inputs.
_ELEMENTWISE = (
    *("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "where", "addcmul", "addcdiv", "lerp", "pow"),
    *("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "square", "reciprocal"),
    *("clamp", "clamp_min", "clamp_max", "threshold", "leaky_relu", "elu", "hardswish", "sin", "cos", "erf"),
    *("threshold_backward", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward"),
    *("masked_fill", "softplus", "mish", "hardtanh", "erfinv", "floor", "round"),
)


def _broadcast(shapes: Shapes) -> int:
    return prod(np.broadcast_shapes(*shapes))


# Elements of the result by kind of operator. Other shapes raise ValueError, TypeError or IndexError.
_RESULTS: dict[str, Callable[[Shapes], int]] = {
    "aten::mm": lambda shapes: shapes[0][0] * shapes[1][1],
    "aten::addmm": lambda shapes: shapes[1][0] * shapes[2][1],
    "aten::bmm": lambda shapes: shapes[0][0] * shapes[0][1] * shapes[1][2],
    "aten::baddbmm": lambda shapes: shapes[1][0] * shapes[1][1] * shapes[2][2],
    **{
        name: lambda shapes: prod(shapes[0][:3]) * shapes[2][3]
        for name in FORMULAS
        if name.startswith("aten::_scaled_dot_product") and not name.endswith("_backward")
    },
    **{f"aten::{name}": _broadcast for name in _ELEMENTWISE},
}
_OVERWRITTEN = ("aten::copy_", "aten::fill_", "aten::zero_")  # the first input is written and not read
_ATTENTION_INPUTS = 3


def count_bytes(rows: RegionRows) -> Array:
    """Least bytes that the operator of each region must move; 0 if unknown."""
    counts = np.zeros(len(rows), dtype=np.int64)
    if not len(rows.trace.details):
        return counts
    names = rows.path_texts

    @cache
    def of(path: int, shapes: int, types: int, results: int, strides: int) -> int:
        inputs, result = rows.shapes_of(shapes), (*rows.shapes_of(results), None)[0]
        size = operator_bytes(names[path], inputs, rows.types_of(types), result, rows.shapes_of(strides))
        return size if size < 2**63 else 0  # of shapes without memory, as on torch's meta device

    chosen = np.flatnonzero(rows.has_shapes)
    columns = (column[chosen] for column in (rows.path, rows.shapes, rows.types, rows.results, rows.strides))
    counts[chosen] = [of(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return counts


def operator_bytes(name: str, shapes: Shapes, types: tuple[str, ...], result: Any = None, strides: Shapes = ()) -> int:
    """Least bytes that one operator, such as "aten::mm", must move; 0 if the operator, shapes or types are unknown.

    Args:
        name: torch's.
        shapes: of its inputs; () for a non-tensor.
        types: of its inputs, as torch writes them.
        result: the shape of its first result, if recorded.
        strides: of its inputs, if recorded.
    """
    sizes = [ITEM_BYTES.get(kind, 0) for kind in types]
    if len(strides) != len(shapes):
        strides = ((),) * len(shapes)
    tensors = [
        (shape, size, _stored(shape, steps) * size)
        for shape, size, steps in zip(shapes, sizes, strides, strict=False)
        if size and is_shape(shape) and prod(shape)
    ]
    if not tensors:
        return 0
    if "scaled_dot_product" in name:
        tensors = tensors[:_ATTENTION_INPUTS]
    read: int = sum(stored for *_, stored in tensors)
    if name in _OVERWRITTEN:
        return read
    plain = name.removesuffix("_")
    if plain != name and plain in _RESULTS:  # in place
        return read + int(prod(tensors[0][0])) * tensors[0][1]
    if name in CONVOLUTIONS:
        return read + int(prod(result)) * tensors[0][1] if is_shape(result) and result else 0
    if name not in _RESULTS:
        return 0
    try:
        written: int = _RESULTS[name](tuple(shape for shape in shapes if is_shape(shape)))
    except (ValueError, IndexError, TypeError):
        return 0
    # A tensor without dimensions, as torch makes from Python numbers, does not set the type if others have dimensions.
    item_bytes = max((size for shape, size, _ in tensors if shape), default=max(size for _, size, _ in tensors))
    return read + written * item_bytes


def _stored(shape: tuple[int, ...], strides: Any) -> int:
    """Elements of a tensor in memory: a dimension of stride 0, as `expand` makes, counts as one."""
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        return prod(shape)
    return prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0)
