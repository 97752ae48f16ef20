# SPDX-License-Identifier: Apache-2.0
"""`peak_memory`: the allocations alive at peak memory, by line and category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.arguments import check_count
from gpuscope.devices import HOST, is_cpu, ordinal_of
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks.numpy import unreported
from gpuscope.frameworks.torch_memory import why_opaque
from gpuscope.memory.history import history
from gpuscope.memory.history.call_stacks import (
    NO_PYTHON_STACK,
    cached_lines,
    frames_of,
    line_text,
    unix_path,
    without_gpuscope,
)
from gpuscope.memory.history.categories import (
    CATEGORIES,
    UNKNOWN,
    WITHOUT_PYTHON,
    backward_without_stack,
    categorize,
    category_text,
)
from gpuscope.memory.history.events import NEVER, SOURCES, Frame, Lifetimes, MemoryEvents, allocations_of, levels_of
from gpuscope.results import Result, import_pandas
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.units import format_bytes

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes


_MOST_ROWS = 15
_LONGEST_PLACE = 48


@dataclass(frozen=True)
class PeakPlace:
    """The allocations of one line that were alive at the peak. Sizes are bytes.

    Attributes:
        place: innermost line of the program's own code; None if no stack is known.
        stack: the call stack with the most bytes, innermost frame first.
        bytes: of all allocations.
        share: of the peak.
        count: number of allocations.
        first_ns: time of the oldest allocation, ns since the Unix epoch.
        last_ns: time of the newest.
        backward: whether autograd's threads, which run no Python, allocated them. `place` is then None.
    """

    place: Frame | None
    stack: tuple[Frame, ...]
    bytes: int
    share: float
    count: int
    first_ns: int
    last_ns: int
    backward: bool = False


@dataclass(frozen=True)
class PeakCategory:
    """The memory of one category at the peak. Sizes are bytes.

    The categories are:

    - parameter (with modules' buffers), gradient, optimizer state;
    - activation, input, unknown;
    - temporary: freed in the same phase of the step;
    - autograd detail: intermediate gradients of a backward;
    - workspace: taken from PyTorch by a library, which keeps it;
    - libraries: taken from the driver by libraries;
    - graph pool: of CUDA graphs.

    Attributes:
        name: the category.
        bytes: of all its allocations.
        share: of the peak.
    """

    name: str
    bytes: int
    share: float


@dataclass(frozen=True)
class PeakReport(Result):
    """The memory alive at the peak. ``print(report)`` shows categories and the largest places.

    Sizes are bytes.

    Attributes:
        device: ordinal of the GPU, HOST for host memory; None if nothing was allocated.
        bytes: in use at the peak.
        base_bytes: the part allocated before the first event or by threads that do not report, so without a place.
        time_ns: of the peak, ns since the Unix epoch.
        since_begin_ns: time since the first event.
        step: number of the step, from 0; None if outside all known steps.
        places: largest first.
        events: number of allocations and releases.
        notes: limits of the findings.
        categories: largest first; their bytes add up to `bytes`. None if unknown.
        why_no_categories: why `categories` is None; else empty.
    """

    device: int | None
    bytes: int
    base_bytes: int
    time_ns: int
    since_begin_ns: int
    step: int | None
    places: tuple[PeakPlace, ...]
    events: int
    notes: tuple[str, ...] = ()
    categories: tuple[PeakCategory, ...] | None = None
    why_no_categories: str = "nothing was allocated"

    def at(self, place: str | Frame) -> tuple[PeakPlace, ...]:
        """The places of a line or a file, largest first.

        Args:
            place: ``"train.py:12"``, ``"train.py"``, either with folders before it, or a frame.
        """
        return tuple(one for one in self.places if one.place is not None and _lies_at(one.place, place))

    def __len__(self) -> int:
        return len(self.places)

    def __bool__(self) -> bool:
        return self.bytes > 0

    def plot(self, top: int = 15, ax: Axes | None = None) -> Axes:
        """Draws a bar per place: its bytes at the peak, largest first.

        Args:
            top: maximum number of places.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: `top` is below 1.
        """
        from gpuscope import plots

        drawn = self.places[: check_count("top", top, 1)]
        names, sizes = [_place_text(one) for one in drawn], [one.bytes for one in drawn]
        return plots.bars(names, sizes, quantity="B", what="at the peak", ax=ax, title=_headline(self))

    def to_pandas(self) -> Any:
        """The places as a DataFrame, each with its line as text.

        Raises:
            NotAvailable: pandas is not installed.
        """
        rows = [{**vars(one), "place": _place_text(one), "stack": len(one.stack)} for one in self.places]
        return import_pandas().DataFrame(rows)

    def __repr__(self) -> str:
        return f"<PeakReport: {_headline(self)}>"

    def __str__(self) -> str:
        return _text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **vars(self),
            "places": [
                {
                    **vars(one),
                    "place": None if one.place is None else one.place._asdict(),
                    "stack": [frame._asdict() for frame in one.stack],
                }
                for one in self.places
            ],
            "notes": list(self.notes),
            "categories": None if self.categories is None else [vars(one) for one in self.categories],
        }


@unreported()
def peak_memory(
    events: MemoryEvents | None = None, device: int | None = None, *, steps_ns: Sequence[int] = ()
) -> PeakReport:
    """Finds the allocations alive at peak memory, by line and category.

    Counts memory that allocators hand out and that libraries take from the driver, each byte once. Categories
    (parameters, gradients, activations, ...) are known for PyTorch's memory. They follow from the phase of the training
    step that allocated, and from the tensors alive when the history ends.

    Args:
        events: default the memory history.
        device: ordinal of the GPU, HOST for host memory; default the GPU with the highest peak, or host memory if
            nothing was allocated on a GPU.
        steps_ns: begin of the first step, then the end of each, ns since the epoch.

    Raises:
        InvalidArgument: `events` are not memory events, or `device` is not an ordinal.
        NotAvailable: no history was recorded.
    """
    if device is not None and device != HOST:
        device = HOST if is_cpu(device) else ordinal_of(device)
    notes: tuple[str, ...] = ()
    if events is None:
        events = history.history_events()
        notes = (f"torch's allocations on GPUs are left out: {why}",) if (why := why_opaque()) else ()
    elif not isinstance(events, MemoryEvents):
        raise InvalidArgument(f"events is {brief(events)}; accepted are memory events and None")
    allocations = allocations_of(events)
    levels = max(levels_of(events, allocations, device), key=lambda one: (one.on_gpu, one.most), default=None)
    notes += (f"{events.lost:,} older events are no longer kept",) if events.lost else ()
    if levels is None or not len(levels.rows):
        return PeakReport(device, 0, 0, 0, 0, None, (), len(events), notes)
    device = int(events.device[levels.rows[0]])
    row = int(levels.rows[levels.peak - 1]) if levels.peak else NEVER
    lives = (allocations.device == device) & (allocations.born <= row) & (allocations.alive | (allocations.died > row))
    lived = allocations.select(lives)
    # In use at the peak by the allocators' own counts, less the allocations in the events.
    base = sum(max(0, int(level[levels.peak]) - _bytes_of(lived, source)) for source, level in levels.by_source.items())
    total = int(lived.bytes.sum()) + base
    time = int(events.time_ns[max(row, int(levels.rows[0]))])
    sizes = _by_category(events, allocations, lives, base, device)
    known = [PeakCategory(category_text(name), size, size / total) for name, size in sizes.items() if size]
    why = "" if any(one.name != category_text("UNKNOWN") for one in known) else _why_unknown(events, lived)
    return PeakReport(
        device=device,
        bytes=total,
        base_bytes=base,
        time_ns=time,
        since_begin_ns=time - int(events.time_ns[0]),
        step=_step(time, steps_ns),
        places=_places(events, lived, total),
        events=len(events),
        notes=notes,
        categories=None if why else tuple(sorted(known, key=lambda one: -one.bytes)),
        why_no_categories=why,
    )


def _by_category(
    events: MemoryEvents, allocations: Lifetimes, lives: NDArray[np.bool_], base: int, device: int
) -> dict[str, int]:
    """Bytes of each category at the peak, including memory without events. `lives`: the allocations alive then."""
    found = np.bincount(
        categorize(events, allocations)[lives], weights=allocations.bytes[lives], minlength=len(CATEGORIES)
    ).astype(np.int64)
    # A tensor alive at the end without an allocation event is older than the events, so it was alive at the peak.
    newer = set(allocations.address[allocations.alive].tolist())
    for address, storage in (events.at_end().tensors or {}).items():
        if storage.category is not None and storage.device == device and address not in newer:
            older = min(storage.bytes, base)
            found[storage.category] += older
            base -= older
    found[UNKNOWN] += base
    return dict(zip(CATEGORIES, found.tolist(), strict=True))


def _why_unknown(events: MemoryEvents, lived: Lifetimes) -> str:
    if not (lived.source == SOURCES.index("torch")).any():
        return "they are known of PyTorch's memory, and no allocation of PyTorch within the events lived at the peak"
    if not events.stack.any():
        return "the events have no call stacks"
    return "no allocation at the peak belongs to a module, a backward or an optimizer"


def _bytes_of(lived: Lifetimes, source: int) -> int:
    return int(lived.bytes[lived.source == source].sum())


def _places(events: MemoryEvents, lived: Lifetimes, total: int) -> tuple[PeakPlace, ...]:
    if not len(lived):
        return ()
    place_of = cached_lines(events.frames)
    # By stack; without one, by whether autograd allocated.
    keys, inverse = np.unique(
        lived.stack * np.int64(2) + backward_without_stack(events)[lived.born], return_inverse=True
    )
    stacks = (keys // 2).tolist()
    kinds = [(place_of(stack), bool(key % 2)) for stack, key in zip(stacks, keys.tolist(), strict=True)]
    numbers: dict[tuple[Frame | None, bool], int] = {}
    number = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds])[inverse]
    sizes = np.bincount(number, weights=lived.bytes).astype(np.int64)
    counts = np.bincount(number)
    by_stack = np.bincount(inverse, weights=lived.bytes)
    times = events.time_ns[lived.born]  # ascending
    first, last = np.full(len(numbers), times[-1]), np.full(len(numbers), times[0])
    np.minimum.at(first, number, times)
    np.maximum.at(last, number, times)
    main = {numbers[kinds[at]]: stacks[at] for at in np.argsort(by_stack).tolist()}
    found = [
        PeakPlace(
            place=place,
            stack=without_gpuscope(frames_of(events.frames, main[at])),
            bytes=int(sizes[at]),
            share=int(sizes[at]) / total,
            count=int(counts[at]),
            first_ns=int(first[at]),
            last_ns=int(last[at]),
            backward=backward,
        )
        for (place, backward), at in numbers.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _step(time: int, steps_ns: Sequence[int]) -> int | None:
    step = int(np.searchsorted(np.asarray(steps_ns, dtype=np.int64), time, side="right")) - 1
    return step if 0 <= step < len(steps_ns) - 1 else None


def _lies_at(place: Frame, wanted: str | Frame) -> bool:
    if isinstance(wanted, Frame):
        return place == wanted
    file, colon, line = wanted.rpartition(":")
    if not colon or not line.isdigit():
        file, line = wanted, str(place.line)
    path, file = unix_path(place.file), unix_path(file)
    return line == str(place.line) and (path == file or path.endswith("/" + file))


def _text(report: PeakReport) -> str:
    """Time and size of the peak, categories, the largest places, the others in one row, and notes."""
    notes = [f"note: {note}" for note in report.notes]
    if not report:
        return "\n".join([_headline(report), *notes])
    rows: list[tuple[str, ...]] = [("allocated at", "bytes", "share", "pieces", "first s", "last s")]
    begin = report.time_ns - report.since_begin_ns
    for one in report.places[:_MOST_ROWS]:
        times = [f"{(time - begin) / 1e9:.3f}" for time in (one.first_ns, one.last_ns)]
        place = _cut(_place_text(one))
        rows.append((place, format_bytes(one.bytes), _percent(one.share), f"{one.count:,}", *times))
    others = report.places[_MOST_ROWS:]
    if others:
        size, count = sum(one.bytes for one in others), sum(one.count for one in others)
        rows.append(
            (f"{len(others)} smaller places", format_bytes(size), _percent(size / report.bytes), f"{count:,}", "", "")
        )
    if report.base_bytes:
        share = _percent(report.base_bytes / report.bytes)
        rows.append(("before the first event", format_bytes(report.base_bytes), share, "", "", ""))
    return "\n".join([_headline(report), *category_lines(report), *align_columns(rows, left=1, rule=True), *notes])


def category_lines(report: PeakReport) -> list[str]:
    """The categories as a table, or why they are unknown."""
    if report.categories is None:
        return [f"categories are not known: {report.why_no_categories}"]
    parts = [(one.name, format_bytes(one.bytes), _percent(one.share)) for one in report.categories]
    return align_columns([("category", "bytes", "share"), *parts], left=1, rule=True)


def _headline(report: PeakReport) -> str:
    if not report:
        return "peak: nothing was allocated"
    device = "host memory" if report.device == HOST else f"GPU {report.device}"
    step = "" if report.step is None else f", in step {report.step}"
    after = f"{report.since_begin_ns / 1e9:.3f} s after the first event{step}"
    return f"peak of {device}: {format_bytes(report.bytes)}, {after}"


def _place_text(place: PeakPlace) -> str:
    return WITHOUT_PYTHON if place.backward else line_text(place.place, NO_PYTHON_STACK)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_PLACE else text[: _LONGEST_PLACE - 3] + "..."
