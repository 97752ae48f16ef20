# SPDX-License-Identifier: Apache-2.0
"""Stages as lines and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.tracking.stages import MemoryStage

_HEADING = ("Stage", "Count", "Allocated", "Reserved", "Peak", "Change", "Host")
_LONGEST_NAME = 40
_MARK = "  <- highest peak"


def line(stage: MemoryStage) -> str:
    """A stage in one line."""
    change = "" if stage.delta is None else f" ({_change(stage.delta)})"
    peak = f"Peak: {_peak(stage):>10}"
    if not stage.on_gpu:
        why = " (no GPU)" if stage.why else ""
        return f"{stage.name:30} - Host resident: {size_text(stage.allocated):>10}{change}, {peak}{why}"
    reserved = size_text(stage.reserved or 0)
    why = f" ({stage.why})" if stage.why else ""
    return (
        f"{stage.name:30} - Allocated: {size_text(stage.allocated):>10}{change}, Reserved: {reserved:>10}, {peak}{why}"
    )


def table(stages: Sequence[MemoryStage], highest: MemoryStage | None, found: Sequence[str]) -> str:
    """All stages, the one with the highest peak marked, and the hints below."""
    if highest is None:
        return "no stage has been tracked yet"
    several = len({stage.device for stage in stages}) > 1
    rows = [_HEADING, *(_cells(stage, several) for stage in stages)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    rule = "-" * len(lines[0])
    at = 1 + next(at for at, stage in enumerate(stages) if stage is highest)
    lines[at] += _MARK
    closing = [f'The highest peak, {_peak(highest)}, is in "{highest.name}".', *found]
    whys = dict.fromkeys(stage.why for stage in stages if stage.why)
    if not highest.on_gpu:
        closing.append("The figures are the resident memory of the process on the host: " + "; ".join(whys))
    else:
        closing += whys
    return "\n".join([lines[0], rule, *lines[1:], rule, *closing])


def _cells(stage: MemoryStage, several: bool) -> tuple[str, ...]:
    place = (f" (GPU {stage.device})" if stage.on_gpu else " (host)") if several else ""
    name = stage.name if len(stage.name) <= _LONGEST_NAME else stage.name[: _LONGEST_NAME - 3] + "..."
    return (
        name + place,
        str(stage.count),
        size_text(stage.allocated),
        "-" if stage.reserved is None else size_text(stage.reserved),
        _peak(stage),
        "-" if stage.delta is None else _change(stage.delta),
        size_text(stage.host_resident),
    )


def _peak(stage: MemoryStage) -> str:
    return ("" if stage.peak_is_exact else ">= ") + size_text(stage.peak)


def _change(delta: int) -> str:
    return size_text(delta, signed=True)
