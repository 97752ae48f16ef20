# SPDX-License-Identifier: Apache-2.0
"""The floating-point operations of every operator of a recording, each counted on the operator that stands for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.analysis import flops
from gpuscope.analysis.convolutions import UNKNOWN, count_convolutions
from gpuscope.analysis.region_rows import RegionRows

Array = np.ndarray[Any, Any]


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
