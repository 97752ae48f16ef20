# SPDX-License-Identifier: Apache-2.0
"""The floating-point operations of every operator of a recording, each counted on the operator that stands for it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from gpuscope.analysis import flops
from gpuscope.analysis.region_rows import RegionRows
from gpuscope.analysis.shapes import Shapes, is_shape

Array = np.ndarray[Any, Any]
UNKNOWN = -1


def count_flops(rows: RegionRows) -> Array:
    """For each region its floating-point operations; 0 for what has none, UNKNOWN where they cannot be told.

    Nothing counts twice down the call tree: an operator inside one that is counted is not counted. So "aten::addmm"
    counts and "aten::linear" around it does not, and of the several convolutions inside each other the outermost does.
    """
    counts = np.zeros(len(rows), dtype=np.int64)
    names = rows.path_texts
    formula_of = {path: flops.FORMULAS[name] for path, name in enumerate(names) if name in flops.FORMULAS}
    if not len(rows.trace.details):
        return counts
    for path, shapes, members in _by_path_and_shapes(rows, formula_of):
        value = formula_of[path](rows.shapes_of(shapes))
        counts[members] = UNKNOWN if value is None else value
    _Convolutions(rows, names).count(counts)
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
    """Takes the counts from all that lies inside something counted."""
    counted = np.flatnonzero(counts)
    known = np.append(counts > 0, False)  # NONE and rows that are not there read the last
    inside = np.zeros(len(counted), dtype=bool)
    above = parents[counted]
    climbing = np.arange(len(counted))
    while len(climbing):
        inside[climbing[known[above]]] = True
        on = (above < len(parents)) & ~known[above]
        climbing, above = climbing[on], parents[above[on]]
    counts[counted[inside]] = 0


class _Convolutions:
    """Convolutions, whose work depends on the size of their output, which stands elsewhere.

    It is the gradient that the backward operator of the convolution takes, or the first input of an operator that takes
    the output.
    """

    def __init__(self, rows: RegionRows, names: list[str]) -> None:
        self.rows = rows
        self.names = names
        self.outputs: dict[int, Shapes] = {}

    def count(self, counts: Array) -> None:
        rows = self.rows
        forward = self._rows_named(flops.CONVOLUTIONS)
        backward = self._rows_named({flops.CONVOLUTION_BACKWARD: None})
        taken = self._taken_from([*forward, *backward])
        for row in forward:
            for shape in taken.get(int(rows.op[row]), ()):
                self._note(row, shape)
        for row in backward:
            shapes = rows.shapes_of(int(rows.shapes[row]))
            origin = next((f for f in map(rows.forward.__getitem__, rows.ancestry(row)) if f < len(rows)), None)
            if origin is not None and shapes and is_shape(shapes[0]):
                self._note(int(origin), shapes[0])
        for row in forward:
            counts[row] = _or_unknown(self._forward(row))
        for row in backward:
            counts[row] = _or_unknown(self._backward(row, taken))

    def _rows_named(self, names: dict[str, Any]) -> list[int]:
        wanted = np.array([*(name in names for name in self.names), False])
        return np.flatnonzero(wanted[self.rows.path] & self.rows.has_shapes).tolist()

    def _taken_from(self, makers: list[int]) -> dict[int, list[Shapes]]:
        """The first inputs of the operators whose first input one of the rows made, by the maker's number."""
        rows = self.rows
        numbers = rows.op[makers]
        takers = np.flatnonzero((rows.producer > 0) & rows.has_shapes & np.isin(rows.producer, numbers))
        taken: defaultdict[int, list[Shapes]] = defaultdict(list)
        for row in takers.tolist():
            shapes = rows.shapes_of(int(rows.shapes[row]))
            if shapes and is_shape(shapes[0]):
                taken[int(rows.producer[row])].append(shapes[0])
        return taken

    def _note(self, row: int, output: Shapes) -> None:
        """The output of a convolution is that of the convolutions around it."""
        for around in self.rows.ancestry(row):
            if self.names[self.rows.path[around]] in flops.CONVOLUTIONS:
                self.outputs.setdefault(around, output)

    def _forward(self, row: int) -> int | None:
        shapes = self.rows.shapes_of(int(self.rows.shapes[row]))
        out = self.outputs.get(row, ())
        if len(shapes) < 2 or not all(map(is_shape, shapes[:2])) or not flops.makes(shapes[0], shapes[1], out):
            return None
        return flops.convolution(shapes[0], shapes[1], out, flops.CONVOLUTIONS[self.names[self.rows.path[row]]])

    def _backward(self, row: int, taken: dict[int, list[Shapes]]) -> int | None:
        """As much as the forward one for the gradient of the input, if it was wanted, and for that of the weight."""
        shapes = self.rows.shapes_of(int(self.rows.shapes[row]))
        if len(shapes) < 3 or not all(map(is_shape, shapes[:3])) or not flops.makes(shapes[1], shapes[2], shapes[0]):
            return None
        out, x, weight = shapes[:3]
        gradients = taken.get(int(self.rows.op[row]), [])
        made = (x in gradients) + (weight in gradients)
        each = flops.convolution(x, weight, out, self._is_transposed(row))
        return made * each if each is not None and made else None

    def _is_transposed(self, row: int) -> bool | None:
        """What the names of the forward operator and of those around it say."""
        rows = self.rows
        for inside in rows.ancestry(row):
            forward = int(rows.forward[inside])
            if forward < len(rows):
                names = (self.names[rows.path[around]] for around in rows.ancestry(forward))
                told = (flops.CONVOLUTIONS.get(name) for name in names)
                return next((transposed for transposed in told if transposed is not None), None)
        return None


def _or_unknown(count: int | None) -> int:
    return UNKNOWN if count is None else count
