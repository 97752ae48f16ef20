# SPDX-License-Identifier: Apache-2.0
"""What lived at the peak, as a table for a terminal of 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.memory.classification.phases import WITHOUT_PYTHON
from gpuscope.memory.places import NO_PYTHON_STACK, line_text
from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.findings.peak import PeakReport

_MOST_ROWS = 15
_LONGEST_PLACE = 48


def report_text(report: PeakReport) -> str:
    """When and how much, then the places with the most bytes, the rest in one row, and what limits it."""
    notes = [f"note: {note}" for note in report.notes]
    if not report:
        return "\n".join(["peak: nothing was allocated", *notes])
    device = "host memory" if report.device == -1 else f"GPU {report.device}"
    step = "" if report.step is None else f", in step {report.step}"
    head = f"peak of {device}: {size_text(report.bytes)}, {report.since_begin_ns / 1e9:.3f} s after the first event"
    rows: list[tuple[str, ...]] = [("allocated at", "bytes", "share", "pieces", "first s", "last s")]
    begin = report.time_ns - report.since_begin_ns
    for one in report.places[:_MOST_ROWS]:
        times = [f"{(time - begin) / 1e9:.3f}" for time in (one.first_ns, one.last_ns)]
        place = _cut(WITHOUT_PYTHON if one.backward else line_text(one.place, NO_PYTHON_STACK))
        rows.append((place, size_text(one.bytes), _percent(one.share), f"{one.count:,}", *times))
    others = report.places[_MOST_ROWS:]
    if others:
        size, count = sum(one.bytes for one in others), sum(one.count for one in others)
        rows.append(
            (f"{len(others)} smaller places", size_text(size), _percent(size / report.bytes), f"{count:,}", "", "")
        )
    if report.base:
        share = _percent(report.base / report.bytes)
        rows.append(("before the first event", size_text(report.base), share, "", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([head + step, lines[0], "-" * sum(widths, 2 * (len(widths) - 1)), *lines[1:], *notes])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_PLACE else text[: _LONGEST_PLACE - 3] + "..."
