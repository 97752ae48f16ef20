# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of torch's operators, from their names and the shapes of their inputs.

A multiplication and an addition are two, so that a product of an (m, k) and a (k, n) matrix is 2 m n k: what
``torch.utils.flop_counter`` and ``torch.profiler(with_flops=True)`` count. What bias, scaling, softmax and masks add is
left out, as it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gpuscope.analysis.shapes import Shapes, is_shape

Formula = Callable[..., "int | None"]


def mm(a: Shapes, b: Shapes) -> int | None:
    """(m, k) times (k, n): 2 m n k (torch.utils.flop_counter, mm_flop)."""
    (m, k), (inner, n) = a, b
    return 2 * m * n * k if k == inner else None


def bmm(a: Shapes, b: Shapes) -> int | None:
    """(b, m, k) times (b, k, n): 2 b m n k (torch.utils.flop_counter, bmm_flop)."""
    (batch, m, k), (batches, inner, n) = a, b
    return 2 * batch * m * n * k if k == inner and batch == batches else None


def mv(a: Shapes, b: Shapes) -> int | None:
    """(m, k) times (k): 2 m k, a product of matrices with n = 1."""
    (m, k), (inner,) = a, b
    return 2 * m * k if k == inner else None


def dot(a: Shapes, b: Shapes) -> int | None:
    """(k) times (k): 2 k, a product of matrices with m = n = 1."""
    (k,), (inner,) = a, b
    return 2 * k if k == inner else None


def elementwise(a: Shapes, b: Shapes = ()) -> int | None:
    """One an element of the broadcast result; torch.profiler counts the elements of the first input."""
    total = 1
    for place in range(1, max(len(a), len(b)) + 1):
        first, second = (shape[-place] if place <= len(shape) else 1 for shape in (a, b))
        if first != second and 1 not in (first, second):
            return None
        total *= second if first == 1 else first
    return total


def embedding_backward(gradient: Shapes) -> int | None:
    """One addition an element of the gradient. The lookup itself computes nothing."""
    return prod(gradient)


def attention(q: Shapes, k: Shapes, v: Shapes) -> int | None:
    """The product q k^T and its product with v: 2 b h s_q s_k (d_q + d_v), of (batch, heads, length, width).

    torch.utils.flop_counter, sdpa_flop_count: a causal mask saves nothing, fewer heads of k and v are broadcast.
    """
    (batch, heads, length, width), (_, _, keys, key_width), (_, _, values, value_width) = q, k, v
    fits = batch == k[0] == v[0] and k[1] == v[1] and width == key_width and keys == values
    return 2 * batch * heads * length * keys * (width + value_width) if fits else None


def attention_backward(gradient: Shapes, q: Shapes, k: Shapes, v: Shapes) -> int | None:
    """The product q k^T once more, then the gradients of the scores, v, q and k: 2 b h s_q s_k (3 d_q + 2 d_v).

    torch.utils.flop_counter, sdpa_backward_flop_count.
    """
    fits = len(gradient) == len(q) == 4 and gradient[:3] == q[:3] and gradient[3] == v[3]
    return 2 * prod(q[:3]) * k[2] * (3 * q[3] + 2 * v[3]) if fits and attention(q, k, v) is not None else None


def convolution(x: Shapes, weight: Shapes, out: Shapes, transposed: bool | None) -> int | None:
    """2 for each weight at each point of the output, or of the input when transposed, of each sample.

    torch.utils.flop_counter, conv_flop_count: 2 N prod(points) C_out C_in / groups prod(kernel), borders as if inside.
    Without knowing whether it is transposed it is None where the two differ.
    """
    plain, other = ((2 * x[0] * prod(points[2:]) * prod(weight)) for points in (out, x))
    if transposed is None and plain != other:
        # The weight is (out, in / groups, ...), or (in, out / groups, ...) when transposed.
        could_be = (out[1] == weight[0], x[1] == weight[0])
        transposed = None if all(could_be) else could_be[1]
        if transposed is None:
            return None
    return int(other if transposed else plain)


def makes(x: Shapes, weight: Shapes, out: Shapes) -> bool:
    """Whether a convolution of ``x`` with ``weight`` can give ``out``."""
    return len(x) == len(weight) == len(out) >= 3 and x[0] == out[0] and weight[0] in (x[1], out[1])


def _first(formula: Formula, count: int, skip: int = 0) -> Callable[[Shapes], int | None]:
    """The formula of ``count`` inputs behind the first ``skip``; None of shapes that it is not about."""

    def of(shapes: Shapes) -> int | None:
        inputs: Any = shapes[skip : skip + count]
        if not inputs or not all(map(is_shape, inputs)):
            return None
        try:
            return formula(*inputs)
        except (ValueError, IndexError, TypeError):  # other dimensions or fewer inputs than it has
            return None

    return of


FORMULAS: dict[str, Callable[[Shapes], int | None]] = {
    **dict.fromkeys(("aten::mm", "aten::_int_mm", "aten::_scaled_mm"), _first(mm, 2)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _first(mm, 2, skip=1)),
    "aten::bmm": _first(bmm, 2),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_", "aten::addbmm"), _first(bmm, 2, skip=1)),
    "aten::mv": _first(mv, 2),
    **dict.fromkeys(("aten::addmv", "aten::addmv_"), _first(mv, 2, skip=1)),
    **dict.fromkeys(("aten::dot", "aten::vdot"), _first(dot, 2)),
    **{
        f"aten::{name}{in_place}": _first(elementwise, 2)
        for name in ("add", "sub", "rsub", "mul", "div")
        for in_place in ("", "_")
    },
    "aten::embedding_dense_backward": _first(embedding_backward, 1),
    **{
        f"aten::_scaled_dot_product_{which}": _first(attention, 3)
        for which in (
            *("flash_attention", "efficient_attention", "cudnn_attention"),
            *("flash_attention_for_cpu", "fused_attention_overrideable"),
        )
    },
    **{
        f"aten::_scaled_dot_product_{which}_backward": _first(attention_backward, 4)
        for which in (
            *("flash_attention", "efficient_attention", "cudnn_attention"),
            *("flash_attention_for_cpu", "fused_attention_overrideable"),
        )
    },
}
"""By operator. Those that only call others, as aten::linear and aten::matmul, are not here: the others count."""

CONVOLUTIONS: dict[str, bool | None] = {
    **{f"aten::conv{n}d": False for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": True for n in (1, 2, 3)},
    **dict.fromkeys(("aten::cudnn_convolution", "aten::cudnn_convolution_relu", "aten::_slow_conv2d_forward"), False),
    **dict.fromkeys(("aten::thnn_conv2d", "aten::_conv_depthwise2d", "aten::slow_conv3d"), False),
    **dict.fromkeys(("aten::mkldnn_convolution", "aten::miopen_convolution"), False),
    "aten::cudnn_convolution_transpose": True,
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")),
}
"""Whether each is transposed; None where the name does not say."""

CONVOLUTION_BACKWARD = "aten::convolution_backward"

UNKNOWN_SIZE = (
    "the size of its output is not known: shapes come without stride and padding, and neither its backward operator "
    "nor an operator that takes its output was recorded"
)
UNKNOWN_SHAPES = "its input shapes are not those that the formula is about"
UNKNOWN_GRADIENTS = "which gradients it made is not known: no operator that takes them was recorded"
