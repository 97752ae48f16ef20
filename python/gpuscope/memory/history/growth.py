# SPDX-License-Identifier: Apache-2.0
"""Finds memory that grows step after step and is never freed, from the events of a program's allocators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.history.call_stacks import cached_lines, frames_of, without_gpuscope
from gpuscope.memory.history.events import SOURCES, Frame, Lifetimes, MemoryEvents, allocations_of

FEWEST_STEPS = 5
WARM_UP = 3  # steps in which programs allocate gradients, optimizer state, workspaces and caches
FEWEST_GROWTHS = 4  # double and triple buffers have three allocations at most
_NEARLY_EVERY = 0.8  # of the steps
_CONFIRMED = 0.5  # of the growth must show in the allocator's own total
_EVEN = 2.0  # factor between one step's growth and the median, for an allocation that is replaced by a larger one
Key = tuple[Frame | None, int, int, int]  # place, device, source, and the size if there is no place


@dataclass(frozen=True)
class Growth:
    """Memory of one place that grew step after step. Sizes are bytes.

    Attributes:
        place: innermost line of the program's own code that allocated it; None if no stack is known.
        stack: the call stack with most bytes of `addresses`, innermost frame first.
        source: the allocator, see SOURCES.
        device: ordinal of the GPU, HOST for host memory.
        steps: number of judged steps: those after the warm-up.
        grew: number of judged steps in which it grew.
        bytes: growth over the judged steps.
        allocations: additional allocations; 0 if one allocation was replaced by a larger one each time.
        addresses: live allocations. Those of the last step are excluded if older ones exist.
        sizes_bytes: size of each address; empty if unknown.
    """

    place: Frame | None
    stack: tuple[Frame, ...]
    source: str
    device: int
    steps: int
    grew: int
    bytes: int
    allocations: int
    addresses: tuple[int, ...] = field(repr=False)
    sizes_bytes: tuple[int, ...] = field(default=(), repr=False)

    @property
    def bytes_per_step(self) -> float:
        """Mean growth per step."""
        return self.bytes / self.steps


def leaks_in(events: MemoryEvents, steps_ns: Sequence[int], warmup: int | None = None) -> tuple[Growth, ...]:
    """The places whose memory grows step after step and still lives at the end, largest first.

    The criterion is the minimum of live memory over the end of a step and of all later steps. For a leak, it rises in
    nearly every step, or every k-th, up to the last. For a full cache, a list of the last k and double buffers, it
    stops rising. For memory that is freed now and then, it does not rise.

    Args:
        events: of the allocators. If older events were lost, only whole steps are judged. At least 5 are needed.
        steps_ns: begin of the first step, then the end of each step, ns since the epoch. Memory freed after the last
            step does not live at the end.
        warmup: number of first steps that are not judged. None: 3, or fewer if that would leave less than 4.
    """
    ends = _known(events, steps_ns)
    steps = len(ends) - 1
    if steps < FEWEST_STEPS:
        return ()
    allocations, born, died = _by_step(events, ends)
    first = min(warm_up_of(steps, warmup), steps)
    survives = died > steps
    places = cached_lines(events.frames)
    keys = _keys(allocations, survives & (born > first), places)
    mine = keys.number >= 0
    number, born, died, survives = keys.number[mine], born[mine], died[mine], survives[mine]
    sizes, addresses, stacks = allocations.bytes[mine], allocations.address[mine], allocations.stack[mine]
    shape = (len(keys.all), steps + 2)
    each, weights = np.ones(len(number)), sizes.astype(np.float64)
    count = _levels(number, born, died, each, shape)
    held = _levels(number, born, died, weights, shape)
    # Memory that lives at the end of a step and is older than the step. This excludes batches and gradients, which the
    # next step drops, and whose size may vary by far more than a leak grows.
    lasting = [_levels(number, born + 1, np.maximum(died, born + 1), one, shape) for one in (weights, each)]
    fresh = _total(number[survives], born[survives], np.ones(int(survives.sum())), shape)[:, first + 1 : steps + 1] > 0
    newest = [_total(number, born, one * (survives & (born == steps)), shape)[:, steps] for one in (weights, each)]
    drops = _total(number, born, each * (~survives & (died == born + 1)), shape)[:, first:].sum(axis=1)
    growths = []
    for key, (place, device, source, _) in enumerate(keys.all):
        kept = _steady(count[key], lasting[1][key], fresh[key], first, drops=drops[key] > 0)
        grew = kept or _swells(held[key], first)
        if not grew:
            continue
        swelled = int(held[key][-1] - held[key][first])
        lives = (number == key) & survives & (born > first)
        # Allocations of the last step, as gradients, live because no step has followed. They may be far larger.
        older = lives & (born < steps)
        lives = older if kept and older.any() else lives
        weight = np.bincount(np.unique(stacks[lives], return_inverse=True)[1], weights=sizes[lives])
        stack = int(np.unique(stacks[lives])[int(np.argmax(weight))])
        growths.append(
            Growth(
                place=place,
                stack=without_gpuscope(frames_of(events.frames, stack)),
                source=SOURCES[source],
                device=device,
                steps=steps - first,
                grew=grew,
                bytes=_growth(lasting[0][key], newest[0][key], first) if kept else swelled,
                allocations=_growth(lasting[1][key], newest[1][key], first) if kept else 0,
                addresses=tuple(addresses[lives].tolist()),
                sizes_bytes=tuple(sizes[lives].tolist()),
            )
        )
    confirmed = _confirmed(events, ends[first:], growths)
    return tuple(sorted(confirmed, key=lambda growth: -growth.bytes))


def warm_up_of(steps: int, warmup: int | None = None) -> int:
    """Number of first steps that are not judged."""
    return max(0, min(WARM_UP, steps - FEWEST_GROWTHS)) if warmup is None else warmup


def whole_steps(events: MemoryEvents, steps_ns: Sequence[int]) -> int:
    """Number of steps that the events cover from begin to end."""
    return max(0, len(_known(events, steps_ns)) - 1)


def _known(events: MemoryEvents, steps_ns: Sequence[int]) -> NDArray[np.int64]:
    ends = np.asarray(steps_ns, dtype=np.int64)
    return ends[ends >= events.time_ns[0]] if events.lost and len(events) else ends


def _by_step(events: MemoryEvents, ends: NDArray[np.int64]) -> tuple[Lifetimes, NDArray[np.int64], NDArray[np.int64]]:
    """The allocations, and the steps of their begin and end, from 1. 0: before the first step; steps + 1: never."""
    allocations = allocations_of(events)
    never = len(ends)
    step = np.searchsorted(ends, events.time_ns, side="right")
    born = step[allocations.born]
    died = np.where(allocations.alive, never, step[np.where(allocations.alive, 0, allocations.died)])
    counted = (born < never) & (allocations.alive | (died < never))
    return allocations.select(counted), born[counted], died[counted]


@dataclass(frozen=True)
class _Keys:
    number: NDArray[np.int64]  # by allocation; -1 for allocations of places where nothing survives
    all: list[Key]


def _keys(allocations: Lifetimes, survivors: NDArray[np.bool_], place: Callable[[int], Frame | None]) -> _Keys:
    # Only stacks of survivors are resolved.
    places: dict[int, Frame | None] = {
        int(stack): place(int(stack)) for stack in np.unique(allocations.stack[survivors])
    }
    columns = (
        allocations.stack,
        allocations.device,
        allocations.source,
        np.where(allocations.stack == 0, allocations.bytes, 0),
    )
    table = np.stack([column.astype(np.int64) for column in columns], axis=1)
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    numbers: dict[Key, int] = {}
    of_row = np.full(len(rows), -1, dtype=np.int64)
    for row, (stack, device, source, size) in enumerate(rows.tolist()):
        if stack in places:
            key = (places[stack], device, source, size)
            of_row[row] = numbers.setdefault(key, len(numbers))
    return _Keys(of_row[inverse.reshape(-1)], list(numbers))


def _total(
    key: NDArray[np.int64], step: NDArray[np.int64], weight: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    total = np.bincount(key * shape[1] + step, weights=weight, minlength=shape[0] * shape[1])
    return np.asarray(total.reshape(shape))


def _levels(
    key: NDArray[np.int64],
    born: NDArray[np.int64],
    died: NDArray[np.int64],
    weight: NDArray[np.float64],
    shape: tuple[int, int],
) -> NDArray[np.float64]:
    """Live memory by key, at the begin of the first step and at the end of each step."""
    change = _total(key, born, weight, shape) - _total(key, died, weight, shape)
    return np.asarray(np.cumsum(change, axis=1)[:, :-1])


def _floor(level: NDArray[np.float64]) -> NDArray[np.float64]:
    """The minimum over each step and all later ones."""
    return np.asarray(np.minimum.accumulate(level[::-1])[::-1])


def _growth(lasting: NDArray[np.float64], newest: float, first: int) -> int:
    """The permanent growth. The last step counts up to the mean, as its `newest` may still be dropped."""
    floor = _floor(lasting)
    grew = float(floor[-1] - floor[first + 1])
    return round(grew + min(newest, grew / max(1, len(floor) - 2 - first)))


def _confirmed(events: MemoryEvents, ends: NDArray[np.int64], growths: list[Growth]) -> list[Growth]:
    """Growths that the allocator's own total confirms. Releases by unwatched threads are missing from the events."""
    kept = []
    for device, source in dict.fromkeys((growth.device, growth.source) for growth in growths):
        found = [growth for growth in growths if (growth.device, growth.source) == (device, source)]
        rows = np.flatnonzero((events.device == device) & (events.source == SOURCES.index(source)))
        said = events.allocated_bytes[rows]
        if said.any():
            last = np.searchsorted(events.time_ns[rows], ends, side="left") - 1
            total = np.where(last >= 0, said[np.maximum(last, 0)], 0).astype(np.float64)
            claimed = _CONFIRMED * sum(growth.bytes for growth in found)
            floor = _floor(total)
            # The median step counts if something large was freed in between.
            if max(floor[-1] - floor[0], float(np.median(np.diff(total))) * (len(total) - 1)) < claimed:
                continue
        kept += found
    return kept


def _steady(
    count: NDArray[np.float64], lasting: NDArray[np.float64], fresh: NDArray[np.bool_], first: int, *, drops: bool
) -> int:
    """Number of steps that left allocations behind for good, if that continued to the end; else 0.

    `drops`: each step drops some allocations of the one before, so it is unknown which of the last step will last.
    """
    grew = np.diff(_floor(lasting))[first + 1 :] > 0
    grew = np.append(grew, count[-1] > count[-2] or (drops and len(grew) > 0 and grew[-1])) & fresh
    at = np.flatnonzero(grew)
    if len(at) < FEWEST_GROWTHS:
        return 0
    gaps = np.diff(at)
    longest = int(gaps.max())
    if len(grew) - 1 - at[-1] >= longest:
        return 0  # it came to a stop
    if at[0] >= longest:  # it began late: a container that is emptied now and then, or a leak
        fall = float((np.maximum.accumulate(lasting) - lasting).max())
        if at[0] > len(grew) / 2 or fall >= max(2, len(at) / 2):
            return 0
    nearly_every = len(at) >= _NEARLY_EVERY * (len(grew) - at[0])
    return len(at) if nearly_every or int(gaps.min()) == longest else 0


def _swells(held: NDArray[np.float64], first: int) -> int:
    """Number of steps in which the bytes grew, if they grew in every step by a similar amount; else 0."""
    grew = np.diff(held[first:])
    usual = float(np.median(grew))
    even = usual > 0 and grew.min() >= usual / _EVEN and grew.max() <= usual * _EVEN
    return len(grew) if even and len(grew) > FEWEST_GROWTHS else 0
