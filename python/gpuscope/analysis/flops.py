# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of torch's operators, from their names and the shapes of their inputs.

A multiplication and an addition are two operations: (m, k) times (k, n) is 2 m n k. This is the count of
``torch.utils.flop_counter`` and ``torch.profiler(with_flops=True)``, which also leave out bias, scaling, softmax and
masks.

A convolution's work depends on the size of its output, and shapes come without stride and padding. The size is that of
the recorded result. Without results it is the size of the gradient that the backward operator takes, or of the first
input of an operator that takes the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np

from gpuscope.analysis.rows import RegionRows, Shapes, is_shape
from gpuscope.trace import NONE

Array = np.ndarray[Any, Any]

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
    """One an element of the broadcast result."""
    total = 1
    for place in range(1, max(len(a), len(b)) + 1):
        first, second = (shape[-place] if place <= len(shape) else 1 for shape in (a, b))
        if first != second and 1 not in (first, second):
            return None
        total *= second if first == 1 else first
    return total


def first_input(a: Shapes) -> int | None:
    """One an element of the first input, even if broadcast: torch.profiler's count for additions and products."""
    return prod(a)


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
    """Recomputes q k^T; then gradients of the scores, v, q and k: 2 b h s_q s_k (3 d_q + 2 d_v).

    torch.utils.flop_counter, sdpa_backward_flop_count.
    """
    fits = len(gradient) == len(q) == 4 and gradient[:3] == q[:3] and gradient[3] == v[3]
    return 2 * prod(q[:3]) * k[2] * (3 * q[3] + 2 * v[3]) if fits and attention(q, k, v) is not None else None


def convolution(x: Shapes, weight: Shapes, out: Shapes, transposed: bool | None) -> int | None:
    """2 for each weight, at each point of the output (of the input if transposed), for each sample.

    torch.utils.flop_counter, conv_flop_count: 2 N prod(points) C_out C_in / groups prod(kernel), borders as if inside.
    None if it is unknown whether the convolution is transposed and the two counts differ.
    """
    plain, other = ((2 * x[0] * prod(points[2:]) * prod(weight)) for points in (out, x))
    if transposed is None and plain != other:
        # The weight is (out, in / groups, ...). Of a transposed convolution it is (in, out / groups, ...).
        could_be = (out[1] == weight[0], x[1] == weight[0])
        transposed = None if all(could_be) else could_be[1]
        if transposed is None:
            return None
    return int(other if transposed else plain)


def makes(x: Shapes, weight: Shapes, out: Shapes) -> bool:
    """Whether a convolution of ``x`` with ``weight`` can give ``out``."""
    return len(x) == len(weight) == len(out) >= 3 and x[0] == out[0] and weight[0] in (x[1], out[1])


def _first(formula: Formula, count: int, skip: int = 0) -> Callable[[Shapes], int | None]:
    """Applies the formula to ``count`` inputs after the first ``skip``; None for other shapes."""

    def of(shapes: Shapes) -> int | None:
        inputs: Any = shapes[skip : skip + count]
        if not inputs or not all(map(is_shape, inputs)):
            return None
        try:
            return formula(*inputs)
        except (ValueError, IndexError, TypeError):  # other dimensions or fewer inputs than it has
            return None

    return of


_ATTENTIONS = (
    *("flash_attention", "efficient_attention", "cudnn_attention"),
    *("flash_attention_for_cpu", "fused_attention_overrideable"),
)

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
    **dict.fromkeys(("aten::add", "aten::mul"), _first(first_input, 1)),
    "aten::embedding_dense_backward": _first(embedding_backward, 1),
    **{f"aten::_scaled_dot_product_{which}": _first(attention, 3) for which in _ATTENTIONS},
    **{f"aten::_scaled_dot_product_{which}_backward": _first(attention_backward, 4) for which in _ATTENTIONS},
}
"""By operator. Operators that only call others (aten::linear, aten::matmul) are absent: the others count."""

CONVOLUTIONS: dict[str, bool | None] = {
    **{f"aten::conv{n}d": False for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": True for n in (1, 2, 3)},
    **dict.fromkeys(("aten::cudnn_convolution", "aten::cudnn_convolution_relu", "aten::_slow_conv2d_forward"), False),
    **dict.fromkeys(("aten::thnn_conv2d", "aten::_conv_depthwise2d", "aten::slow_conv3d"), False),
    **dict.fromkeys(("aten::mkldnn_convolution", "aten::miopen_convolution"), False),
    "aten::cudnn_convolution_transpose": True,
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")),
}
"""Whether each is transposed; None if the name does not say."""

CONVOLUTION_BACKWARD = "aten::convolution_backward"

UNKNOWN_SIZE = (
    "the size of its output is not known: shapes come without stride and padding, and neither its backward operator "
    "nor an operator that takes its output was recorded"
)
UNKNOWN_SHAPES = "the formula does not cover its input shapes"
UNKNOWN_GRADIENTS = "it is not known which gradients it made: no operator that takes them was recorded"


def count_flops(rows: RegionRows) -> Array:
    """Floating-point operations of each region; 0 if it has none, UNKNOWN if they cannot be determined.

    Nothing counts twice down the call tree: "aten::addmm" counts, "aten::linear" around it does not. Of nested
    convolutions the outermost counts.
    """
    counts = np.zeros(len(rows), dtype=np.int64)
    names = rows.path_texts
    formula_of = {path: FORMULAS[name] for path, name in enumerate(names) if name in FORMULAS}
    if not len(rows.trace.details):
        return counts
    for path, shapes, members in _by_path_and_shapes(rows, formula_of):
        counts[members] = _or_unknown(formula_of[path](rows.shapes_of(shapes)))
    count_convolutions(rows, counts)
    _only_outermost(counts, rows.parent)
    return counts


def _by_path_and_shapes(rows: RegionRows, paths: dict[int, Any]) -> list[tuple[int, int, Array]]:
    """Rows with shapes on one of the paths, together with those that have the same path and shapes."""
    wanted = np.zeros(len(rows.path_texts) + 1, dtype=bool)
    wanted[list(paths)] = True
    chosen = np.flatnonzero(wanted[rows.path] & rows.has_shapes)
    if not len(chosen):
        return []
    keys = rows.path[chosen].astype(np.uint64) << 32 | rows.shapes[chosen]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] + np.uint64(1)))
    groups = np.split(chosen[order], starts[1:])
    return [(int(rows.path[group[0]]), int(rows.shapes[group[0]]), group) for group in groups]


def _only_outermost(counts: Array, parents: Array) -> None:
    """Sets the counts inside a counted region to 0."""
    counted = np.flatnonzero(counts)
    known = np.append(counts > 0, False)  # NONE and absent rows read the last
    inside = np.zeros(len(counted), dtype=bool)
    above = parents[counted]
    climbing = np.arange(len(counted))
    while len(climbing):
        inside[climbing[known[above]]] = True
        on = (above < len(parents)) & ~known[above]
        climbing, above = climbing[on], parents[above[on]]
    counts[counted[inside]] = 0


UNKNOWN = -1
NO_SHAPE = -1


def count_convolutions(rows: RegionRows, counts: Array) -> None:
    """Writes the count of each convolution, forward and backward, into its row; UNKNOWN if that fails."""
    named = [name in CONVOLUTIONS for name in rows.path_texts]
    forward = np.flatnonzero(np.array(named)[rows.path] & rows.has_shapes)
    named = [name == CONVOLUTION_BACKWARD for name in rows.path_texts]
    backward = np.flatnonzero(np.array(named)[rows.path] & rows.has_shapes)
    if len(forward) or len(backward):
        shapes = _InputShapes(rows)
        makers, takers = _handovers(rows, np.concatenate([forward, backward]))
        outputs = _outputs(rows, shapes, forward, backward, makers, takers)
        counts[forward] = _count_forward(rows, shapes, forward, outputs)
        counts[backward] = _count_backward(rows, shapes, backward, makers, takers)


class _InputShapes:
    """The shapes of single inputs as numbers, so that arrays of rows can be compared."""

    def __init__(self, rows: RegionRows) -> None:
        self._rows = rows
        self._numbers: dict[Shapes, int] = {}
        self.known: list[Shapes] = []

    def of(self, chosen: Array, place: int) -> Array:
        """The number of the shape of each row's input at a place; NO_SHAPE without one."""
        return self._of_texts(self._rows.shapes[chosen], place)

    def of_results(self, chosen: Array, place: int) -> Array:
        """The same for each row's results."""
        return self._of_texts(self._rows.results[chosen], place)

    def _of_texts(self, column: Array, place: int) -> Array:
        texts, which = np.unique(column, return_inverse=True)
        return np.array([self._number(text, place) for text in texts.tolist()], dtype=np.int64)[which.reshape(-1)]

    def _number(self, text: int, place: int) -> int:
        inputs = self._rows.shapes_of(text)
        if place >= len(inputs) or not is_shape(inputs[place]) or not inputs[place]:
            return NO_SHAPE
        number = self._numbers.setdefault(inputs[place], len(self.known))
        if number == len(self.known):
            self.known.append(inputs[place])
        return number


def _handovers(rows: RegionRows, makers: Array) -> tuple[Array, Array]:
    """Pairs of rows: one of the makers, and an operator whose first input it made."""
    makers = makers[rows.op[makers] > 0]
    takers = np.flatnonzero((rows.producer > 0) & rows.has_shapes)
    if not len(makers) or not len(takers):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    makers = makers[np.argsort(rows.op[makers], kind="stable")]
    numbers = rows.op[makers]
    place = np.minimum(np.searchsorted(numbers, rows.producer[takers]), len(numbers) - 1)
    matched = numbers[place] == rows.producer[takers]
    return makers[place[matched]], takers[matched]


def _outputs(
    rows: RegionRows, shapes: _InputShapes, forward: Array, backward: Array, makers: Array, takers: Array
) -> Array:
    """The number of each convolution's output shape by region; the last entry is for NONE."""
    outputs = np.full(len(rows) + 1, NO_SHAPE, dtype=np.int64)
    outputs[makers] = shapes.of(takers, 0)
    origins = rows.trace.instances.forward[backward]
    outputs[np.minimum(origins, len(rows))] = shapes.of(backward, 0)
    results = shapes.of_results(forward, 0)
    outputs[forward[results != NO_SHAPE]] = results[results != NO_SHAPE]
    # Convolutions around it have the same output. Innermost first; an outer one's own shape is kept.
    is_forward = np.zeros(len(rows) + 1, dtype=bool)
    is_forward[forward] = True
    outputs[~is_forward] = NO_SHAPE
    known = np.flatnonzero(outputs != NO_SHAPE)
    above = rows.parent[known]
    while len(known):
        unknown = is_forward[above] & (outputs[above] == NO_SHAPE)
        outputs[above[unknown]] = outputs[known[unknown]]
        inside = above < len(rows)
        known, above = known[inside], rows.parent[above[inside]]
    return outputs


def _count_forward(rows: RegionRows, shapes: _InputShapes, forward: Array, outputs: Array) -> list[int]:
    @cache
    def count(path: int, text: int, output: int) -> int:
        x, weight = (*rows.shapes_of(text), (), ())[:2]
        out = shapes.known[output] if output != NO_SHAPE else ()
        if not (is_shape(x) and is_shape(weight) and makes(x, weight, out)):
            return UNKNOWN
        return _or_unknown(convolution(x, weight, out, CONVOLUTIONS[rows.path_texts[path]]))

    columns = (rows.path[forward], rows.shapes[forward], outputs[forward])
    return [count(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _count_backward(rows: RegionRows, shapes: _InputShapes, backward: Array, makers: Array, takers: Array) -> list[int]:
    """The forward count for the gradient of the input, if something took it, plus the same for the weight's."""
    taken = shapes.of(takers, 0)
    wanted = []
    for place in (1, 2):  # the input and the weight, after the gradient of the output
        has_taker = np.zeros(len(rows), dtype=bool)
        has_taker[makers[(shapes.of(makers, place) == taken) & (taken != NO_SHAPE)]] = True
        wanted.append(has_taker[backward])
    made = wanted[0].astype(np.int64) + wanted[1]
    recorded = rows.results[backward] != NONE  # which gradients there were
    results = [shapes.of_results(backward, place) != NO_SHAPE for place in (0, 1)]
    made[recorded] = (results[0].astype(np.int64) + results[1])[recorded]

    @cache
    def count(origin_path: int, text: int, gradients: int) -> int:
        out, x, weight = (*rows.shapes_of(text), (), (), ())[:3]
        if not gradients or not all(map(is_shape, (out, x, weight))) or not makes(x, weight, out):
            return UNKNOWN
        each = convolution(x, weight, out, _is_transposed(rows, origin_path))
        return _or_unknown(None if each is None else gradients * each)

    origin_paths = np.append(rows.path, len(rows.path_texts) - 1)[
        np.minimum(rows.trace.instances.forward[backward], len(rows))
    ]
    columns = (origin_paths, rows.shapes[backward], made)
    return [count(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _is_transposed(rows: RegionRows, path: int) -> bool | None:
    """Whether a convolution is transposed, from the names of the forward operator and those around it."""
    parents = rows.trace.paths.parent
    while path < len(parents):
        transposed = CONVOLUTIONS.get(rows.path_texts[path])
        if transposed is not None:
            return transposed
        path = int(parents[path])
    return None


def _or_unknown(count: int | None) -> int:
    return UNKNOWN if count is None or count >= 2**63 else count  # of shapes without memory, as on torch's meta device
