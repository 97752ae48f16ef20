# SPDX-License-Identifier: Apache-2.0
"""The row checks of a live recording, for rows from files of other tools."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import Flag
from gpuscope.trace import number_of

NOT_GIVEN: int = _core.NOT_GIVEN
MOST_NS = 1 << 61
"""Times of a file, and durations added to them, are below this, so that their sums fit into a recording."""
NO_NAME = "(no name)"
"""The name of a row without one, as in live recordings."""
WORK = ("kernel", "memcpy", "memset", "graph_launch")

Column = np.ndarray[Any, Any]

_EPOCH_NS = 600 * 10**9  # if all other rows begin later, a start of 0 means "no time"
_MANY = 16  # overlapped later rows of a stream; launches that overlap on purpose overlap one or two
_LISTED, _MOST_SKIPPED = 5, 1000
_NOUNS = {
    "kernel": "kernel",
    "memcpy": "copy",
    "memset": "fill",
    "api": "driver call",
    "sync": "wait",
    "python_function": "Python function",
    "failed_allocation": "failed allocation",
}
_COUNTERS = {Flag.ZERO_TIME: "zero_time", Flag.BACKWARD_TIME: "backward_time", Flag.INCOMPLETE: "incomplete"}
_LEFT_OUT, _NO_DURATION, _UNNAMED = "left out", "no duration", "unnamed"


@dataclass(frozen=True)
class Spans:
    """Valid rows for a recording.

    Attributes:
        rows: indices into the given rows.
        start_ns: of each valid row; 0 with Flag.ZERO_TIME.
        duration_ns: of each valid row, never negative.
        flags: of each valid row of GPU work: ZERO_TIME, BACKWARD_TIME or INCOMPLETE.
    """

    rows: Column
    start_ns: Column
    duration_ns: Column
    flags: Column


class Checks:
    """Repairs or drops invalid rows, and counts both for the audit.

    GPU work keeps all rows, with the flags of a live recording, and the audit becomes INCOMPLETE. CPU rows without a
    usable start are dropped. CPU rows without a usable duration get the duration 0. The audit notes both.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()  # by problem and table
        self._first_ns = MOST_NS
        self._skipped: Counter[str] = Counter()
        self.notes: list[str] = []  # further notes for the audit

    def see(self, start_ns: Column) -> None:
        """Learns from the starts of many rows whether times count from an epoch. A start of 0 is then invalid."""
        given = start_ns[(start_ns > 0) & (start_ns < MOST_NS)]
        self._first_ns = min(self._first_ns, int(given.min(initial=MOST_NS)))

    def spans(self, table: str, start_ns: Column, duration_ns: Column) -> Spans:
        """Checks rows of a table.

        Args:
            table: name in the schema.
            start_ns: int64, any value.
            duration_ns: int64, any value; NOT_GIVEN if missing or not a number.
        """
        self.see(start_ns)
        has_start = (start_ns >= 0) & (start_ns < MOST_NS)
        if _EPOCH_NS < self._first_ns < MOST_NS:
            has_start &= start_ns != 0
        has_length = (duration_ns >= 0) & (duration_ns < MOST_NS)
        flags = np.zeros(len(start_ns), np.uint16)
        if table not in WORK:
            rows = np.flatnonzero(has_start)
            self.count(table, _LEFT_OUT, len(start_ns) - len(rows))
            self.count(table, _NO_DURATION, int(np.count_nonzero(~has_length[rows])))
            return Spans(rows, start_ns[rows], np.where(has_length, duration_ns, 0)[rows], flags[rows])
        is_zero = ~has_start | ((start_ns == 0) & (duration_ns == 0))
        is_backward = ~is_zero & (duration_ns < 0) & (duration_ns != NOT_GIVEN)
        for flag, which in (
            (Flag.ZERO_TIME, is_zero),
            (Flag.BACKWARD_TIME, is_backward),
            (Flag.INCOMPLETE, ~(is_zero | is_backward | has_length)),
        ):
            flags[which] |= int(flag)
            self.count(table, _COUNTERS[flag], int(np.count_nonzero(which)))
        start_ns, duration_ns = np.where(is_zero, 0, start_ns), np.where(is_zero | ~has_length, 0, duration_ns)
        return Spans(np.arange(len(start_ns)), start_ns, duration_ns, flags)

    def names(self, table: str, name: Column, missing: Column, stand_in: int) -> Column:
        """Names of rows, with a stand-in for missing names.

        Args:
            table: name in the schema.
            name: any numbers that identify names.
            missing: a mask of the rows without a name.
            stand_in: the number of NO_NAME.
        """
        self.count(table, _UNNAMED, int(np.count_nonzero(missing)))
        return np.where(missing, stand_in, name)

    def count(self, table: str, what: str, rows: int) -> None:
        """Counts rows with a problem."""
        if rows:
            self._counts[what, table] += rows

    def left_out(self, table: str, rows: int) -> None:
        """Counts rows that a reader itself drops."""
        self.count(table, _LEFT_OUT, rows)

    def skip(self, what: str, rows: int) -> None:
        """Counts events unknown to the reader, by name."""
        if rows:
            self._skipped[what if what in self._skipped or len(self._skipped) < _MOST_SKIPPED else "others"] += rows

    def facts(self, given: Mapping[str, str]) -> dict[str, str]:
        """Facts for the audit: the counts and notes, added to the given facts."""
        found: dict[str, str] = {}
        for (what, table), rows in self._counts.items():
            key = f"audit.{what}" if what in _COUNTERS.values() else ""
            if what == _LEFT_OUT:
                key = "file.left_out"
            elif what == _UNNAMED and table in WORK:
                key = "file.unnamed"
            if key:
                found[key] = str(number_of({**given, **found}, key) + rows)
        notes = [
            f"{said}: {listed}; {why}"
            for what, said, why in (
                (_LEFT_OUT, "left out", "the file has no usable time for them"),
                (_NO_DURATION, "duration not read", "in the file it is negative or no number, here it is 0"),
                (_UNNAMED, "without a name in the file", f"here it is {NO_NAME}"),
            )
            if (listed := self._list(what))
        ] + self.notes
        if self._skipped:
            most = ", ".join(f"{rows:,} of {what}" for what, rows in self._skipped.most_common(_LISTED))
            more = self._skipped.total() - sum(rows for _, rows in self._skipped.most_common(_LISTED))
            notes.append(f"in the file and not read: {most}{f', {more:,} others' if more else ''}")
        return found | ({"session.notes": "\n".join([given.get("session.notes", ""), *notes]).strip()} if notes else {})

    def _list(self, what: str) -> str:
        """The counts of a problem, as "2 regions, 1 driver call"."""
        counts = sorted((table, rows) for (each, table), rows in self._counts.items() if each == what)
        return ", ".join(f"{rows:,} {_noun(table, rows)}" for table, rows in counts)


def find_impossible(track: Column, start_ns: Column, duration_ns: Column, correlation: Column) -> tuple[Column, Column]:
    """Finds GPU work that overlaps many later rows of its stream, although a stream runs its work in sequence.

    Nodes of one CUDA graph launch, which share its correlation id, may overlap.

    Returns:
        The indices of the rows, and the number of later rows that each overlaps.
    """
    order = np.lexsort((start_ns, track))
    track, start_ns, correlation = track[order], start_ns[order], correlation[order]
    end_ns = start_ns + duration_ns[order]
    behind = np.zeros(len(order), np.int64)
    edges = np.flatnonzero(np.diff(track, prepend=-1, append=-1)).tolist()
    for first, last in itertools.pairwise(edges):
        behind[first:last] = first + np.searchsorted(start_ns[first:last], end_ns[first:last])
    over = behind - np.arange(len(order)) - 1
    at = np.flatnonzero(over >= _MANY)
    own = correlation[at]
    at = at[(correlation[behind[at] - _MANY] != own) | (own == 0)]
    return order[at], over[at]


def _noun(table: str, rows: int) -> str:
    noun = _NOUNS.get(table, table.replace("_", " "))
    if rows == 1:
        return noun
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
