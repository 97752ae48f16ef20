# SPDX-License-Identifier: Apache-2.0
"""What the page of a history is drawn from, as plain numbers and texts for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.exporters.memory_page.steps import Steps
from gpuscope.memory.call_stacks import library, line_text, program_line
from gpuscope.memory.categories import CATEGORIES, WITHOUT_PYTHON, backward_without_stack, category_text
from gpuscope.memory.events import SOURCES, Frame

GROUPS, PIECES, DEPTH = 40, 2000, 40
OTHER, BEFORE, NO_REGION = "smaller ones", "from before the history", "no region"


def page_data(steps: Steps, categories: NDArray[np.uint8]) -> dict[str, Any]:
    """Steps, the ways to group what lives at them, and the pieces that weigh most.

    By region only where the program was in one.

    Sizes at steps are written as differences to the step before, which are mostly 0 and short. Times are whole us.

    Args:
        steps: the memory of one device.
        categories: of each lifetime.
    """
    stacks = _Stacks(steps)
    names = tuple(category_text(name) for name in CATEGORIES)
    sources = steps.lifetimes.source.astype(np.int64)
    frameworks = [f"{SOURCES[source]}: {library}" for source in range(len(SOURCES)) for library in stacks.libraries]
    start = int(steps.events.time_ns[0])
    views = {
        "category": _view(steps, categories.astype(np.int64), names, None, ordered=True),
        "line": _view(steps, stacks.line, stacks.lines, stacks.of_line),
        "library": _view(steps, sources * len(stacks.libraries) + stacks.library, frameworks, None),
    }
    region = steps.events.region[steps.lifetimes.born].astype(np.int64)
    if region.any():
        views["region"] = _view(steps, region, (NO_REGION, *steps.events.regions[1:]), None)
    return {
        "times": _differences((steps.events.time_ns[steps.chosen] - start) // 1000),
        "used": _differences(steps.used),
        "reserved": _differences(steps.reserved) if steps.reserved.any() else None,
        "peak": steps.peak,
        "views": views,
        "pieces": _pieces(steps, categories, stacks),
        "categories": names,
        "lines": stacks.lines,
        "stacks": stacks.texts(),
    }


class _Stacks:
    """Lines and libraries of the lifetimes' call stacks; each stack is looked at once."""

    def __init__(self, steps: Steps) -> None:
        numbers, self._of_piece = np.unique(steps.lifetimes.stack, return_inverse=True)
        self._frames = [steps.events.frames(int(number)) for number in numbers]
        lines: dict[Frame | None, int] = {}
        libraries: dict[str, int] = {}
        line = [lines.setdefault(program_line(frames), len(lines)) for frames in self._frames]
        found = [libraries.setdefault(library(frames), len(libraries)) for frames in self._frames]
        self._of_piece = self._of_piece.reshape(-1)
        self.line = np.array(line, dtype=np.int64)[self._of_piece]
        self.library = np.array(found, dtype=np.int64)[self._of_piece]
        self.lines = [line_text(frame) for frame in lines]
        self.libraries = list(libraries)
        self._largest = self._largest_of_each(line, steps)
        autograds = backward_without_stack(steps.events)[steps.lifetimes.born]
        if autograds.any():
            self._largest.append(int(self._of_piece[np.argmax(autograds)]))
            self.line[autograds] = len(self.lines)
            self.lines.append(WITHOUT_PYTHON)
        self._used: dict[int, int] = {}

    def _largest_of_each(self, line: list[int], steps: Steps) -> list[int]:
        """The stack by which most came to each line."""
        bytes_ = np.bincount(self._of_piece, weights=steps.lifetimes.bytes, minlength=len(line))
        largest = [0] * len(self.lines)
        for stack in np.argsort(bytes_).tolist():
            largest[line[stack]] = stack
        return largest

    def of_line(self, line: int) -> int:
        """The number, in the page, of the stack by which most came to a line."""
        return self._used.setdefault(self._largest[line], len(self._used))

    def of_piece(self, piece: int) -> int:
        """The number, in the page, of a lifetime's stack."""
        return self._used.setdefault(int(self._of_piece[piece]), len(self._used))

    def texts(self) -> list[list[str]]:
        """The frames of the stacks that were asked for, innermost first."""
        return [[str(frame) for frame in self._frames[stack][:DEPTH]] for stack in self._used]


def _view(
    steps: Steps,
    groups: NDArray[np.int64],
    names: Sequence[str],
    stack_of: Callable[[int], int] | None,
    *,
    ordered: bool = False,
) -> dict[str, Any]:
    most = steps.largest(groups, len(names))
    shown = [group for group in np.argsort(-most, kind="stable").tolist() if most[group] > 0][:GROUPS]
    if ordered:
        shown.sort()
    place = np.full(len(names), len(shown), dtype=np.int64)
    place[shown] = np.arange(len(shown))
    sizes = steps.grouped(place[groups], len(shown) + 1)
    made: list[dict[str, Any]] = []  # the lowest band first
    if steps.before.any():
        made.append({"name": BEFORE, "id": -1, "sizes": _differences(steps.before)})
    for group, row in zip(shown, sizes, strict=False):
        made.append({"name": names[group], "id": group, "sizes": _differences(row)})
        if stack_of is not None:
            made[-1]["stack"] = stack_of(group)
    if sizes[-1].any():
        made.append({"name": OTHER, "id": -1, "sizes": _differences(sizes[-1])})
    return {"groups": made}


def _pieces(steps: Steps, categories: NDArray[np.uint8], stacks: _Stacks) -> dict[str, list[int]]:
    """The pieces worth drawing one by one, in the order of their birth."""
    first, end = steps.visible()
    lifetimes = steps.lifetimes
    # Those at the peak first, then those that weigh most over the whole time.
    at_peak = (first <= steps.peak) & (steps.peak < end)
    weight = lifetimes.bytes.astype(np.float64) * (end - first)
    order = np.lexsort((-np.where(at_peak, lifetimes.bytes, weight), ~at_peak))
    chosen = np.sort(order[weight[order] > 0][:PIECES])
    return {
        "first": first[chosen].tolist(),
        "end": end[chosen].tolist(),
        "bytes": lifetimes.bytes[chosen].tolist(),
        "category": categories[chosen].tolist(),
        "line": stacks.line[chosen].tolist(),
        "stack": [stacks.of_piece(piece) for piece in chosen.tolist()],
    }


def _differences(values: NDArray[np.int64]) -> list[int]:
    return np.diff(values, prepend=0).tolist()  # type: ignore[no-any-return]
