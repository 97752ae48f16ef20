# SPDX-License-Identifier: Apache-2.0
"""The floating-point operations of convolutions, whose work depends on the size of their output.

Shapes come without stride and padding. The output's size is that of the result where results were recorded. Else it is
that of the gradient that the backward operator takes, or of the first input of an operator that takes the output.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpuscope.analysis import flops
from gpuscope.analysis.region_rows import RegionRows
from gpuscope.analysis.shapes import Shapes, is_shape
from gpuscope.trace import NONE

Array = np.ndarray[Any, Any]
UNKNOWN = -1
NO_SHAPE = -1


def count_convolutions(rows: RegionRows, counts: Array) -> None:
    """Writes the count of each convolution, forward and backward, into its row; UNKNOWN where it cannot be told."""
    named = [name in flops.CONVOLUTIONS for name in rows.path_texts]
    forward = np.flatnonzero(np.array(named)[rows.path] & rows.has_shapes)
    named = [name == flops.CONVOLUTION_BACKWARD for name in rows.path_texts]
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
        """The number of the shape of each row's input at a place; NO_SHAPE where it has none."""
        return self._of_texts(self._rows.shapes[chosen], place)

    def of_results(self, chosen: Array, place: int) -> Array:
        """The same of each row's results."""
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
    """The number of each region's output shape, as far as it is a convolution; the last is for what is no row."""
    outputs = np.full(len(rows) + 1, NO_SHAPE, dtype=np.int64)
    outputs[makers] = shapes.of(takers, 0)
    origins = rows.origin[backward]
    outputs[np.minimum(origins, len(rows))] = shapes.of(backward, 0)
    results = shapes.of_results(forward, 0)
    outputs[forward[results != NO_SHAPE]] = results[results != NO_SHAPE]
    # It is also that of the convolutions around. Innermost first, so that what an outer one was told itself stays.
    is_forward = np.zeros(len(rows) + 1, dtype=bool)
    is_forward[forward] = True
    outputs[~is_forward] = NO_SHAPE
    known = np.flatnonzero(outputs != NO_SHAPE)
    above = rows.parent[known]
    while len(known):
        tell = is_forward[above] & (outputs[above] == NO_SHAPE)
        outputs[above[tell]] = outputs[known[tell]]
        inside = above < len(rows)
        known, above = known[inside], rows.parent[above[inside]]
    return outputs


def _count_forward(rows: RegionRows, shapes: _InputShapes, forward: Array, outputs: Array) -> list[int]:
    @cache
    def count(path: int, text: int, output: int) -> int:
        x, weight = (*rows.shapes_of(text), (), ())[:2]
        out = shapes.known[output] if output != NO_SHAPE else ()
        if not (is_shape(x) and is_shape(weight) and flops.makes(x, weight, out)):
            return UNKNOWN
        return _or_unknown(flops.convolution(x, weight, out, flops.CONVOLUTIONS[rows.path_texts[path]]))

    columns = (rows.path[forward], rows.shapes[forward], outputs[forward])
    return [count(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _count_backward(rows: RegionRows, shapes: _InputShapes, backward: Array, makers: Array, takers: Array) -> list[int]:
    """As much as the forward one for the gradient of the input, if something took it, and for that of the weight."""
    taken = shapes.of(takers, 0)
    wanted = []
    for place in (1, 2):  # the input and the weight, behind the gradient of the output
        has_taker = np.zeros(len(rows), dtype=bool)
        has_taker[makers[(shapes.of(makers, place) == taken) & (taken != NO_SHAPE)]] = True
        wanted.append(has_taker[backward])
    made = wanted[0].astype(np.int64) + wanted[1]
    told = rows.results[backward] != NONE  # which gradients there were
    results = [shapes.of_results(backward, place) != NO_SHAPE for place in (0, 1)]
    made[told] = (results[0].astype(np.int64) + results[1])[told]

    @cache
    def count(origin_path: int, text: int, gradients: int) -> int:
        out, x, weight = (*rows.shapes_of(text), (), (), ())[:3]
        if not gradients or not all(map(is_shape, (out, x, weight))) or not flops.makes(x, weight, out):
            return UNKNOWN
        each = flops.convolution(x, weight, out, _is_transposed(rows, origin_path))
        return UNKNOWN if each is None else gradients * each

    origin_paths = np.append(rows.path, len(rows.path_texts) - 1)[np.minimum(rows.origin[backward], len(rows))]
    columns = (origin_paths, rows.shapes[backward], made)
    return [count(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _is_transposed(rows: RegionRows, path: int) -> bool | None:
    """What the name of the forward operator and of those around it say."""
    parents = rows.trace.paths.parent
    while path < len(parents):
        transposed = flops.CONVOLUTIONS.get(rows.path_texts[path])
        if transposed is not None:
            return transposed
        path = int(parents[path])
    return None


def _or_unknown(count: int | None) -> int:
    return UNKNOWN if count is None else count
