# SPDX-License-Identifier: Apache-2.0
"""`Timings`: the totals of all names, as a mapping and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuscope.timing.totals import Spread, Timing
from gpuscope.timing.units import scaled

_COLUMNS = ("total", "mean", "median", "min", "max")
_LONGEST_NAME = 40


class Timings(Mapping[str, Timing]):
    """Timing by name. ``print(timings())`` shows a table, the names that took longest first."""

    def __init__(self, timings: Mapping[str, Timing]) -> None:
        self._timings = dict(timings)

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def __str__(self) -> str:
        """A table of GPU time, or of host time where there is no GPU; then the reasons for what is missing."""
        if not self._timings:
            return "nothing has been timed yet"
        on_gpu = any(timing.gpu for timing in self.values())
        kind = "GPU" if on_gpu else "CPU"
        heading = ["name", "calls", *(f"{kind} {column}" for column in _COLUMNS), *(["wall total"] if on_gpu else [])]
        rows = [heading]
        for timing in sorted(self.values(), key=_seconds, reverse=True):
            row = [_shortened(timing.name), str(timing.count), *_cells(timing.gpu if on_gpu else timing.wall)]
            rows.append(row + ([scaled(timing.wall.total if timing.wall else None)] if on_gpu else []))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        lines.insert(1, "-" * len(lines[0]))
        return "\n".join(lines + self._notes())

    def __repr__(self) -> str:
        return f"<gpuscope.Timings of {len(self)} names>"

    def _notes(self) -> list[str]:
        missing: dict[str, list[str]] = {}
        for timing in self.values():
            if timing.why:
                missing.setdefault(timing.why, []).append(timing.name)
        every = len(self._timings)
        return [
            f"no GPU or wall time for some of {'all names' if len(names) == every else ', '.join(names)}: {why}"
            if any(self[name].gpu for name in names)
            else f"no GPU time for {'any name' if len(names) == every else ', '.join(names)}: {why}"
            for why, names in missing.items()
        ]


def _seconds(timing: Timing) -> float:
    spread = timing.gpu or timing.wall or timing.launch
    return spread.total if spread else 0.0


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * len(_COLUMNS)
    return [scaled(value) for value in (spread.total, spread.mean, spread.median, spread.minimum, spread.maximum)]


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
