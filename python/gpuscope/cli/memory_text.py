# SPDX-License-Identifier: Apache-2.0
"""What ``gpuscope memory`` found, for people on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuscope.cli.console import Console
from gpuscope.devices import HOST
from gpuscope.memory.call_stacks import line_text
from gpuscope.memory.categories import WITHOUT_PYTHON, category_text
from gpuscope.memory.events import Frame
from gpuscope.units import format_bytes

if TYPE_CHECKING:
    from gpuscope.cli.memory_watch import MemoryFindings

Row = tuple[int, int, str]  # bytes, pieces, line


def show(found: MemoryFindings, top: int, out: Console) -> None:
    """Prints everything; at most `top` lines of code in each table."""
    out.line()
    for whole in found.ledgers or ([found.snapshot] if found.snapshot is not None else []):
        _block(str(whole), out)
    if found.peak is not None:
        show_peak(found.peak, top, out, found.at_peak)
    for part in (found.stages, found.leaks):
        if part is not None:
            _block(str(part), out)
    if found.events is not None and not len(found.events):
        out.line("no allocations were recorded: the program used no PyTorch, CuPy or CUDA memory on this thread")
    if found.events is not None and found.events.lost:
        out.line(
            ("note: ", "bold"),
            f"{found.events.lost:,} older events are no longer kept: raise --max-entries to see them",
        )
    for note in found.notes:
        out.line(("note: ", "bold"), (note, "dim"))


def show_peak(peak: Any, top: int, out: Console, by_category: dict[str, int]) -> None:
    """Prints what lived when most was in use, from a PeakReport."""
    if not peak.bytes:
        return
    when = f"{peak.since_begin_ns / 1e9:.3f} s after the first event"
    step = "" if getattr(peak, "step", None) is None else f", in step {peak.step}"
    out.line((f"peak of {device_text(peak.device)}: {format_bytes(peak.bytes)}", "bold"), f"  {when}{step}")
    if by_category:
        parts = [f"{category_text(name)} {format_bytes(size)}" for name, size in by_category.items()]
        out.line((", ".join(parts), "dim"))
    rows = [(one.bytes, one.count, place_text(one.place, backward=one.backward)) for one in peak.places]
    show_rows(rows, peak.bytes, top, out, peak.base)


def show_rows(rows: Sequence[Row], total: int, top: int, out: Console, before: int = 0) -> None:
    """Prints a table of lines of code.

    Args:
        rows: largest first.
        total: of which shares are counted.
        top: rows at most; the rest is one row.
        out: where to.
        before: bytes from before the history.
    """
    cells = [(format_bytes(size), _share(size, total), f"{count:,}", line) for size, count, line in rows[:top]]
    if len(rows) > top:
        rest = sum(size for size, _, _ in rows[top:])
        count = sum(count for _, count, _ in rows[top:])
        cells.append((format_bytes(rest), _share(rest, total), f"{count:,}", f"{len(rows) - top} more lines"))
    if before:
        cells.append((format_bytes(before), _share(before, total), "", "from before the history"))
    heads = ("bytes", "share", "pieces", "line")
    widths = [max(len(row[column]) for row in [heads, *cells]) for column in range(3)]
    for number, row in enumerate([heads, *cells]):
        text = "  ".join([*(cell.rjust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
        out.line((f"  {text}", "dim" if number == 0 else ""))
    out.line()


def place_text(line: Frame | None, *, backward: bool) -> str:
    """A line of the program; where there is none, whether it was autograd's."""
    return WITHOUT_PYTHON if backward else line_text(line)


def device_text(device: int) -> str:
    """As people call it."""
    return "host memory" if device == HOST else f"GPU {device}"


def _share(size: int, total: int) -> str:
    return f"{100 * size / total:.1f} %" if total else ""


def _block(text: str, out: Console) -> None:
    for line in text.rstrip("\n").split("\n"):
        out.line(line)
    out.line()
