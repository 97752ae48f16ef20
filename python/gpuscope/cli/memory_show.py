# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory show``: the peak and the lines of code in a snapshot file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.options import PAGE_SUFFIXES, check_apart, ordinal, positive, writable_paths
from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument
from gpuscope.exporters.page.memory import export_memory_page
from gpuscope.memory.history.call_stacks import line_text, program_line
from gpuscope.memory.history.categories import WITHOUT_PYTHON, backward_without_stack
from gpuscope.memory.history.events import Frame, Lifetimes, MemoryEvents
from gpuscope.memory.history.peak import category_lines, peak_memory
from gpuscope.memory.history.snapshot_reader import MemoryFile, load_memory_snapshot
from gpuscope.tables import align_columns
from gpuscope.units import format_bytes

Row = tuple[int, int, str]  # bytes, allocations, line


class MemoryShow:
    """Shows a snapshot file of torch or gpuscope, without executing its pickle code."""

    description = (
        "Reads a file of torch.cuda.memory._dump_snapshot or gpuscope: the memory alive at the peak and at the end,\n"
        "and the lines that allocated most. Nothing in the file is run: untrusted files are safe."
    )
    examples = """\
  gpuscope memory show snapshot.pickle
  gpuscope memory show snapshot.pickle --html memory.html   memory over time, as a page for any browser
  gpuscope memory show snapshot.pickle --device 1 --top 30"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("file", metavar="FILE", help="of torch.cuda.memory._dump_snapshot, or of gpuscope")
        parser.add_argument("--html", metavar="OUT", help="write a page with the memory over time")
        parser.add_argument("--top", metavar="N", type=positive, default=10, help="lines of code at most (default: 10)")
        parser.add_argument("--device", metavar="N", type=ordinal, help="the GPU (default: the one with most events)")

    def run(self, options: argparse.Namespace) -> int:
        """Reads, prints and writes."""
        pages = writable_paths([options.html], PAGE_SUFFIXES)
        check_apart(pages, [options.file])
        with console.errors().working(f"reading {options.file}"):
            found = load_memory_snapshot(options.file)
        out = console.output(pages)
        device = _device(found, options.device)
        _show_end(found, device, out)
        events = found.events.select(found.events.device == device)
        if len(events):
            show_peak(peak_memory(events, device), options.top, out)
            _show_lines(events, options.top, out)
        else:
            advice = "torch.cuda.memory._record_memory_history() records one"
            out.sentence(f"the file has no history of that device: {advice}")
        if events.lost:
            out.note(f"{events.lost:,} older events were no longer kept when it was written")
        for note in found.notes:
            out.note(note, style="dim")
        for path in pages:
            _write(found, events, device, options.file, path)
            out.wrote(path)
        return 0


def _device(found: MemoryFile, asked: int | None) -> int:
    counts = dict(zip(*(part.tolist() for part in np.unique(found.events.device, return_counts=True)), strict=True))
    known = sorted({*counts, *(segment.device for segment in found.segments)})
    if asked is None:
        return max(known, key=lambda device: (counts.get(device, 0), -device), default=0)
    if asked not in known:
        raise InvalidArgument(
            f"--device is {asked}; the file has "
            + (", ".join(device_text(device) for device in known) or "no device at all")
        )
    return asked


def _show_end(found: MemoryFile, device: int, out: Console) -> None:
    segments = [segment for segment in found.segments if segment.device == device]
    held, used = (sum(getattr(segment, name) for segment in segments) for name in ("bytes", "allocated_bytes"))
    graphs = sum(segment.bytes for segment in segments if segment.pool != "default")
    out.sentence((found.path, "bold"))
    text = f"{device_text(device)} at its end: {format_bytes(used)} in use, {format_bytes(held)} held"
    noun = "segment" if len(segments) == 1 else "segments"
    private = f", {format_bytes(graphs)} in private pools, as of CUDA graphs" if graphs else ""
    out.sentence(f"{text} in {len(segments):,} {noun}{private}")
    here = found.events.device == device
    if here.any():
        times = found.events.time_ns[here]
        out.sentence(f"{int(here.sum()):,} events in {(int(times[-1]) - int(times[0])) / 1e9:.3f} s")
    refused = [size for size, of in zip(found.refused_bytes, found.refused_devices, strict=True) if of == device]
    if refused:
        count, last = len(refused), format_bytes(refused[-1])
        text = f"an allocation of {last} was" if count == 1 else f"{count:,} allocations, the last of {last}, were"
        out.sentence((f"{text} refused", "bold red"))
    out.line()


def _show_lines(events: MemoryEvents, top: int, out: Console) -> None:
    """Prints the memory alive at the end and the lines that allocated most in total."""
    lifetimes = events.lifetimes()
    for title, chosen in (
        ("at its end", lifetimes.alive),
        ("taken over the whole time", np.ones_like(lifetimes.alive)),
    ):
        rows = by_line(events, lifetimes, chosen)
        total = sum(size for size, _, _ in rows)
        if rows:
            out.sentence((f"{title}: {format_bytes(total)} of known lines", "bold"))
            show_rows(rows, total, top, out)


def by_line(events: MemoryEvents, lifetimes: Lifetimes, chosen: NDArray[np.bool_]) -> list[Row]:
    """Bytes and number of the chosen allocations by program line, largest first."""
    backward = backward_without_stack(events)[lifetimes.born]
    keys, places = np.unique((lifetimes.stack * np.int64(2) + backward)[chosen], return_inverse=True)
    places = places.reshape(-1)
    sizes = np.bincount(places, weights=lifetimes.bytes[chosen], minlength=len(keys))
    counts = np.bincount(places, minlength=len(keys))
    lines: dict[tuple[Frame | None, bool], tuple[int, int]] = {}
    for key, size, count in zip(keys.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        line = program_line(events.frames(key // 2)), bool(key % 2)
        before = lines.get(line, (0, 0))
        lines[line] = (before[0] + int(size), before[1] + count)
    rows = [(size, count, place_text(line, backward=autograds)) for (line, autograds), (size, count) in lines.items()]
    return sorted(rows, key=lambda row: -row[0])


def _write(found: MemoryFile, events: MemoryEvents, device: int, name: str, path: object) -> None:
    export_memory_page(events, str(path), device=device, title=f"Memory of {name}", notes=found.notes)


def show_peak(peak: Any, top: int, out: Console) -> None:
    """Prints a PeakReport: categories and lines of code."""
    if not peak.bytes:
        return
    when = f"{peak.since_begin_ns / 1e9:.3f} s after the first event"
    step = "" if peak.step is None else f", in step {peak.step}"
    out.sentence((f"peak of {device_text(peak.device)}: {format_bytes(peak.bytes)}", "bold"), f"  {when}{step}")
    for line in category_lines(peak):
        out.sentence((f"  {line}", "dim"))
    rows = [(one.bytes, one.count, place_text(one.place, backward=one.backward)) for one in peak.places]
    show_rows(rows, peak.bytes, top, out, peak.base_bytes)


def show_rows(rows: Sequence[Row], total: int, top: int, out: Console, before: int = 0) -> None:
    """Prints the largest `top` lines and their shares of `total`. `before`: bytes from before the history."""
    cells = [(format_bytes(size), _share(size, total), f"{count:,}", line) for size, count, line in rows[:top]]
    if len(rows) > top:
        rest = sum(size for size, _, _ in rows[top:])
        count = sum(count for _, count, _ in rows[top:])
        cells.append((format_bytes(rest), _share(rest, total), f"{count:,}", f"{len(rows) - top} more lines"))
    if before:
        cells.append((format_bytes(before), _share(before, total), "", "from before the history"))
    heads = ("bytes", "share", "count", "line")
    for number, text in enumerate(align_columns([heads, *cells], left=[3])):
        out.sentence((f"  {text}", "dim" if number == 0 else ""))
    out.line()


def place_text(line: Frame | None, *, backward: bool) -> str:
    """The text of a line; for autograd's allocations without one, says so."""
    return WITHOUT_PYTHON if backward else line_text(line)


def device_text(device: int) -> str:
    """The device's name in the output."""
    return "host memory" if device == HOST else f"GPU {device}"


def _share(size: int, total: int) -> str:
    return f"{100 * size / total:.1f} %" if total else ""
