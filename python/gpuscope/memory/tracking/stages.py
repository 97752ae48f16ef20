# SPDX-License-Identifier: Apache-2.0
"""The stages of a program and the memory that each left behind: what `track_memory` collects."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.memory.events import HOST
from gpuscope.memory.tracking import statements as track_statements
from gpuscope.memory.tracking.stage_hints import hints
from gpuscope.memory.tracking.stage_text import line, table

if TYPE_CHECKING:
    from gpuscope.memory.tracking.peak_bounds import Peak
    from gpuscope.memory.tracking.reading import Reading

_lock = threading.Lock()
_stages: dict[tuple[str, int], _Passings] = {}


@dataclass(frozen=True)
class MemoryStage:
    """The memory of a device over one stage of a program, or over all the times that it was passed. Sizes are bytes.

    Attributes:
        name: as given to `track_memory`.
        device: ordinal of the GPU; -1 where there is no GPU and the host's resident memory stands in for it.
        count: times that it was passed; what is not said to be of all of them is of the last.
        allocated: in use by the program at its end.
        reserved: held by the allocators at its end; None on the host.
        before: in use at its beginning; None for the first statement, which has no stage before it.
        delta: `allocated` less `before`.
        first_delta: likewise, of the first time.
        peak: the highest use within it, of all times. Of several libraries it is the sum of each one's highest.
        peak_at_most: more than this was not in use; equals `peak` where the peak is known exactly. None: not known.
        host_resident: resident memory of the process on the host at its end.
        why: why figures of the GPU are missing; empty when none are.
    """

    name: str
    device: int
    count: int
    allocated: int
    reserved: int | None
    before: int | None
    delta: int | None
    first_delta: int | None
    peak: int
    peak_at_most: int | None
    host_resident: int
    why: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is about a GPU's memory, not the host's."""
        return self.device != HOST

    @property
    def peak_is_exact(self) -> bool:
        """Whether `peak` is the peak; otherwise the peak was that or more, up to `peak_at_most`."""
        return self.peak == self.peak_at_most

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return line(self)


@dataclass(frozen=True)
class MemoryStages:
    """All stages in the order of their first appearance; prints as a table.

    Attributes:
        stages: one of each name and device.
    """

    stages: tuple[MemoryStage, ...]

    @property
    def highest(self) -> MemoryStage | None:
        """The stage with the highest peak, one on a GPU where there is one; None when there are no stages."""
        return max(self.stages, key=lambda stage: (stage.on_gpu, stage.peak), default=None)

    @property
    def hints(self) -> tuple[str, ...]:
        """What the figures suggest to be behind the peak, and what could lower it; a sentence each."""
        highest = self.highest
        if highest is None or not highest.on_gpu:
            return ()
        return hints([stage for stage in self.stages if stage.device == highest.device])

    def to_dict(self) -> dict[str, Any]:
        """The stages as a list of dicts, the name of the highest (None without stages), and the hints."""
        return {
            "stages": [stage.to_dict() for stage in self.stages],
            "highest": self.highest.name if self.highest else None,
            "hints": list(self.hints),
        }

    def __str__(self) -> str:
        return table(self.stages, self.highest, self.hints)


def memory_stages() -> MemoryStages:
    """What `track_memory` has collected until now."""
    with _lock:
        return MemoryStages(tuple(passings.stage() for passings in _stages.values()))


def reset_memory_stages() -> None:
    """Forgets all stages. Those that are open now count when they end; the next statement is a first one again."""
    track_statements.forget()
    with _lock:
        _stages.clear()


def measured(name: str, before: Reading | None, after: Reading, peak: Peak) -> MemoryStage:
    """A stage that was passed once, between two readings."""
    delta = None if before is None else after.allocated - before.allocated
    return MemoryStage(
        name=name,
        device=after.device,
        count=1,
        allocated=after.allocated,
        reserved=after.reserved,
        before=None if before is None else before.allocated,
        delta=delta,
        first_delta=delta,
        peak=peak.bytes,
        peak_at_most=peak.at_most,
        host_resident=after.resident,
        why=after.why,
    )


def add(stage: MemoryStage) -> None:
    """Adds one passing to the stages of its name. Any thread."""
    with _lock:
        passings = _stages.get((stage.name, stage.device))
        if passings is None:
            _stages[stage.name, stage.device] = _Passings(stage)
        else:
            passings.add(stage)


def joined(earlier: MemoryStage | None, later: MemoryStage) -> MemoryStage:
    """Two runs of one passing, as of a coroutine that was suspended between them, as one."""
    if earlier is None:
        return later
    passings = _Passings(earlier)
    passings.add(later)
    delta = (earlier.delta or 0) + (later.delta or 0)
    return dataclasses.replace(passings.stage(), count=1, before=earlier.before, delta=delta, first_delta=delta)


class _Passings:
    """All passings of one stage, summed up."""

    def __init__(self, first: MemoryStage) -> None:
        self._last = first
        self._count = 1
        self._first_delta = first.first_delta
        self._peak, self._at_most = first.peak, first.peak_at_most
        self._why = first.why

    def add(self, stage: MemoryStage) -> None:
        self._last = stage
        self._count += 1
        if self._first_delta is None:
            self._first_delta = stage.first_delta
        if stage.peak > self._peak:
            self._peak = stage.peak
        if self._at_most is not None:
            bound = stage.peak_at_most
            self._at_most = None if bound is None else max(self._at_most, bound)
        self._why = stage.why or self._why

    def stage(self) -> MemoryStage:
        return dataclasses.replace(
            self._last,
            count=self._count,
            first_delta=self._first_delta,
            peak=self._peak,
            peak_at_most=self._at_most,
            why=self._why,
        )
