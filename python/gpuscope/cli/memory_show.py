# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory show``: what a memory snapshot's file tells."""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from gpuscope.cli import console, files, memory_files, memory_text, view
from gpuscope.cli.console import Console
from gpuscope.cli.memory_text import Row
from gpuscope.errors import InvalidArgument
from gpuscope.memory.call_stacks import program_line
from gpuscope.memory.categories import LIBRARY, backward_without_stack, categorize
from gpuscope.memory.events import Frame, Lifetimes, MemoryEvents
from gpuscope.memory.snapshot_reader import OF_LIBRARIES, MemoryFile, load_memory_snapshot
from gpuscope.units import format_bytes


class MemoryShow:
    """Reads a pickle of torch's or ours, without running anything in it."""

    name = "memory show"
    summary = "look at a memory snapshot's file, of torch or gpuscope"
    description = (
        "Reads what torch.cuda.memory._dump_snapshot or gpuscope wrote: the peak and what lived then, what lives at\n"
        "the end, and the lines that took the most. Nothing in the file is run: one from a stranger does no harm."
    )
    examples = """\
  gpuscope memory show snapshot.pickle
  gpuscope memory show snapshot.pickle --html memory.html   memory over time, as a page for any browser
  gpuscope memory show snapshot.pickle --device 1 --top 30"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("file", metavar="FILE", help="of torch.cuda.memory._dump_snapshot, or of gpuscope")
        parser.add_argument("--html", metavar="OUT", help="write a page with the memory over time")
        parser.add_argument(
            "--top", metavar="N", type=view.positive, default=10, help="lines of code at most (default: 10)"
        )
        parser.add_argument("--device", metavar="N", type=_ordinal, help="the GPU (default: the one with most events)")

    def run(self, options: argparse.Namespace) -> int:
        """Reads, prints and writes."""
        pages = memory_files.checked([options.html] if options.html is not None else [], (".html", ".htm"))
        with console.errors().working(f"reading {options.file}"):
            found = load_memory_snapshot(options.file)
        out = console.output()
        device = _device(found, options.device)
        _show_end(found, device, out)
        events = found.events.select(found.events.device == device)
        if len(events):
            from gpuscope.memory.peak import peak_memory

            peak = peak_memory(events, device)
            memory_text.show_peak(peak, options.top, out, {})
            _show_lines(events, options.top, out)
        else:
            out.line("the file has no history of that device: torch.cuda.memory._record_memory_history() records one")
        if events.lost:
            out.line(("note: ", "bold"), f"{events.lost:,} older events were no longer kept when it was written")
        for note in found.notes:
            out.line(("note: ", "bold"), (note, "dim"))
        for path in pages:
            _write(found, events, device, options.file, path)
            out.line("wrote ", (files.display(path), "bold"), (f"  {files.size(path)}", "dim"))
        return 0


def _device(found: MemoryFile, asked: int | None) -> int:
    counts = dict(zip(*(part.tolist() for part in np.unique(found.events.device, return_counts=True)), strict=True))
    known = sorted({*counts, *(piece.device for piece in found.segments)})
    if asked is None:
        return max(known, key=lambda device: (counts.get(device, 0), -device), default=0)
    if asked not in known:
        raise InvalidArgument(
            f"--device is {asked}; the file has "
            + (", ".join(memory_text.device_text(device) for device in known) or "no device at all")
        )
    return asked


def _show_end(found: MemoryFile, device: int, out: Console) -> None:
    segments = [piece for piece in found.segments if piece.device == device]
    held, used = (sum(getattr(piece, name) for piece in segments) for name in ("bytes", "allocated"))
    graphs = sum(piece.bytes for piece in segments if piece.pool != "default")
    out.line((found.path, "bold"))
    text = f"{memory_text.device_text(device)} at its end: {format_bytes(used)} in use, {format_bytes(held)} held"
    pieces = "segment" if len(segments) == 1 else "segments"
    out.line(f"{text} in {len(segments):,} {pieces}" + (f", {format_bytes(graphs)} of CUDA graphs" if graphs else ""))
    here = found.events.device == device
    if here.any():
        times = found.events.time_ns[here]
        out.line(f"{int(here.sum()):,} events in {(int(times[-1]) - int(times[0])) / 1e9:.3f} s")
    if found.refused:
        count, last = len(found.refused), format_bytes(found.refused[-1])
        text = f"an allocation of {last} was" if count == 1 else f"{count:,} allocations, the last of {last}, were"
        out.line((f"{text} refused", "bold red"))
    out.line()


def _show_lines(events: MemoryEvents, top: int, out: Console) -> None:
    """What lives at the end, and which lines took the most over the whole time."""
    lifetimes = events.lifetimes()
    for title, chosen in (
        ("at its end", lifetimes.alive),
        ("taken over the whole time", np.ones_like(lifetimes.alive)),
    ):
        rows = by_line(events, lifetimes, chosen)
        total = sum(size for size, _, _ in rows)
        if rows:
            out.line((f"{title}: {format_bytes(total)} of known lines", "bold"))
            memory_text.show_rows(rows, total, top, out)


def by_line(events: MemoryEvents, lifetimes: Lifetimes, chosen: NDArray[np.bool_]) -> list[Row]:
    """Bytes and number of the chosen pieces by line of the program, largest first."""
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
    rows = [
        (size, count, memory_text.place_text(line, backward=autograds))
        for (line, autograds), (size, count) in lines.items()
    ]
    return sorted(rows, key=lambda row: -row[0])


def _write(found: MemoryFile, events: MemoryEvents, device: int, name: str, path: object) -> None:
    from gpuscope.exporters.memory_page import export_memory_page

    categories = categorize(events, graph_pools=found.graph_pools(device))
    categories[events.lifetimes().source == OF_LIBRARIES] = LIBRARY
    export_memory_page(
        events, str(path), device=device, categories=categories, title=f"Memory of {name}", notes=found.notes
    )


def _ordinal(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no ordinal of a GPU")
    return int(text)
