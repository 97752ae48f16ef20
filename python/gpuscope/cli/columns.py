# SPDX-License-Identifier: Apache-2.0
"""Text tables on narrow terminals."""

from __future__ import annotations

import re
from collections.abc import Sequence

_GAP = "  "

# What a reader misses least comes first.
_DISPENSABLE = (
    *("p99", "p50", "CPU total %", "Self CUDA %", "CPU time avg", "CUDA time avg", "p95", "Self CPU %"),
    *("Self CPU", "Self CUDA", "# of Calls", "CPU total", "CUDA total"),
)


def fit(lines: Sequence[str], width: int | None) -> tuple[list[str], list[str]]:
    """Leaves out columns of a table until its lines fit; the first column always stays.

    Args:
        lines: the table; a line of dashes says where its columns lie, and the headings stand below it.
        width: columns of the terminal; None leaves the table as it is.

    Returns:
        The lines, and the headings left out.
    """
    top = next((number for number, line in enumerate(lines) if _is_rule(line)), None)
    if top is None or width is None or len(lines[top].rstrip()) <= width:
        return [line.rstrip() for line in lines], []
    spans = [match.span() for match in re.finditer("-+", lines[top])]
    headings = [lines[top + 1][start:end].strip() for start, end in spans]
    kept = list(range(len(spans)))
    for column in sorted(kept[1:], key=lambda column: _rank(headings[column])):
        if sum(spans[column][1] - spans[column][0] + len(_GAP) for column in kept) - len(_GAP) <= width:
            break
        kept.remove(column)
    cut = [
        _GAP.join(line[slice(*spans[column])] for column in kept) if len(line) == len(lines[top]) else line
        for line in lines
    ]
    return [line.rstrip() for line in cut], [name for column, name in enumerate(headings) if column not in kept]


def _is_rule(line: str) -> bool:
    return "--" in line and not line.strip("- ")


def _rank(heading: str) -> int:
    return _DISPENSABLE.index(heading) if heading in _DISPENSABLE else len(_DISPENSABLE)
