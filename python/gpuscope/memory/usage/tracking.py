# SPDX-License-Identifier: Apache-2.0
"""`track_memory`: the memory of each stage of a program, as a statement, a block or a decorator."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from gpuscope import _core
from gpuscope.devices import ordinal_or_host
from gpuscope.errors import InvalidArgument
from gpuscope.memory.usage.peak_counters import MemoryReading, Peak, PeakWatch, follow, peak_until, read, watch
from gpuscope.memory.usage.stages import MemoryStage, MemoryStages
from gpuscope.regions import OpenBlocks, decorate, decorate_calls
from gpuscope.threads import shared_lock

Function = TypeVar("Function", bound=Callable[..., Any])

_lock = shared_lock()
_stages: dict[tuple[str, int], MemoryStage] = {}  # by name and device
MOST_STAGES = 10_000  # some 6 MB; a program may generate names without end
OTHERS = "(other names)"
_latest: dict[int, _Statement] = {}  # by device


def memory_stages() -> MemoryStages:
    """Returns all stages that `track_memory` has measured."""
    with _lock:
        return MemoryStages(tuple(_stages.values()))


def reset_memory_stages() -> None:
    """Deletes all stages. Open ones count when they end. The next statement is again a first one."""
    with _lock:
        statements = list(_latest.values())
        _latest.clear()
        _stages.clear()
    for statement in statements:
        statement.watch.end()


class Figures(ABC):
    """The most used figures of a `MemoryStage`; `stage` has all. Sizes are bytes."""

    @property
    @abstractmethod
    def stage(self) -> MemoryStage:
        """All figures."""

    @property
    def allocated_bytes(self) -> int:
        """In use at the stage's end."""
        return self.stage.allocated_bytes

    @property
    def reserved_bytes(self) -> int | None:
        """Held by the allocators at the stage's end; None on the host."""
        return self.stage.reserved_bytes

    @property
    def peak_bytes(self) -> int:
        """The peak within the stage."""
        return self.stage.peak_bytes

    @property
    def delta_bytes(self) -> int | None:
        """Change from the stage's begin to its end; None for the first statement."""
        return self.stage.delta_bytes

    def __str__(self) -> str:
        return str(self.stage)


def track_memory(name: str, device: object = None, *, quiet: bool = False) -> TrackMemory:
    """Measures the memory of a stage of a program, without waiting for the GPU. `memory_stages` returns all stages.

    A plain statement prints a line: allocated, reserved, the change since the previous statement, and the peak between
    them. A context manager or decorator measures from begin to end and prints nothing. Blocks nest.

    Figures are from the allocators of torch, CuPy, RMM and JAX; without a GPU, they are the process's resident memory.
    With a memory history, a stage names the line that allocated most new memory that is still alive.

    A statement prints its line and counts its stage when its object is dropped or its figures are read. ``stage =
    track_memory("load", quiet=True)`` keeps a reading.

    Args:
        name: of the stage. Stages of one name and device are merged. After 10,000 names, new ones are "(other names)".
        device: an ordinal, ``"cuda:1"``, a ``torch.device``, or ``"cpu"`` for the host; default the current GPU.
        quiet: the statement prints no line.

    Raises:
        InvalidArgument: `name` is not a string, or empty; `device` is not a device.
        NotAvailable: the process has GPUs, but not this one.

    Example:
        >>> with track_memory("example of track_memory") as stage:
        ...     data = bytes(1000)
        >>> stage.peak_bytes >= stage.allocated_bytes
        True
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"name is {name!r}; accepted are strings that are not empty")
    return TrackMemory(name, device, ordinal_or_host(device), quiet=quiet)


class TrackMemory(Figures):
    """A stage from `track_memory`. Its figures are of the statement, or of the last block that ended."""

    def __init__(self, name: str, device: object, ordinal: int, *, quiet: bool) -> None:
        self.name = name
        self._device = device
        self._quiet = quiet
        self._lock = shared_lock()
        self._open = OpenBlocks[MemoryBlock]()
        self._stage: MemoryStage | None = None
        self._before = _latest.get(ordinal)
        self._now = read(ordinal)
        self._may_be_statement = True

    @property
    def stage(self) -> MemoryStage:
        """All figures. Without use as a block or decorator, it becomes a statement.

        Raises:
            InvalidArgument: it is a block or decorator, and no block has ended.
        """
        self._settle(prints=not self._quiet)
        if self._stage is None:
            raise InvalidArgument(f"stage {self.name!r} has not ended; accepted are stages with an ended block")
        return self._stage

    def __enter__(self) -> MemoryBlock:
        self._may_be_statement = False
        block = self._begin()
        self._open.push(block)
        return block

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._open.pop()
        with contextlib.suppress(Exception):  # an error of ours must not replace the block's
            self._add(block.end())

    def __call__(self, function: Function) -> Function:
        """Returns the function; each call is a stage.

        A coroutine's stage excludes what runs while it is suspended. For a generator, each run of its body to the next
        item is a stage.

        Raises:
            InvalidArgument: `function` cannot be called.
        """
        self._may_be_statement = False
        return cast("Function", decorate_calls(self, function, self._coroutine))

    def __del__(self) -> None:
        # No line while Python shuts down: an object that is still alive was not a statement.
        with contextlib.suppress(Exception):
            if not sys.is_finalizing():
                self._settle(prints=not self._quiet)

    def __repr__(self) -> str:
        # An interactive prompt displays and keeps the object, so show the line now.
        if hasattr(sys, "ps1"):
            self._settle(prints=False)
            if self._stage is not None:
                return str(self._stage)
        return f"track_memory({self.name!r})"

    def _settle(self, *, prints: bool) -> None:
        with self._lock:
            is_statement, self._may_be_statement = self._may_be_statement, False
        if is_statement:
            before = None if self._before is None else self._before.reading
            peak = _end_statement(self._before, self._now)
            self._add(measured(self.name, before, self._now, peak))
            if prints:
                print(self._stage)

    def _begin(self) -> MemoryBlock:
        return MemoryBlock(self.name, ordinal_or_host(self._device))

    def _add(self, stage: MemoryStage) -> None:
        self._stage = stage
        _add(stage)

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            steps = Steps(self._begin)
            try:
                return await decorate(steps, function)(*args, **kwargs)
            finally:
                if steps.stage is not None:
                    self._add(steps.stage)

        return wrapper


class MemoryBlock(Figures):
    """The stage in ``with track_memory(name) as stage``. While it is open, its figures are up to now."""

    def __init__(self, name: str, device: int) -> None:
        self.name = name
        self._watch = watch(device)  # first: it may restart the counter that is read next
        self._before = read(device)
        self._ended: MemoryStage | None = None

    @property
    def stage(self) -> MemoryStage:
        """All figures."""
        return self._ended or self._until_now()

    def end(self) -> MemoryStage:
        """Ends the stage. The watch ends also if the measurement fails."""
        try:
            self._ended = self._until_now()
        finally:
            self._watch.end()
        return self._ended

    def _until_now(self) -> MemoryStage:
        after = read(self._before.device)
        return measured(self.name, self._before, after, self._watch.until(self._before, after))

    def __repr__(self) -> str:
        return f"<{'open' if self._ended is None else 'ended'} stage {self.name!r}: {self.stage}>"


class Steps:
    """A region that is entered for each step of one call; its stage is their sum. One thread at a time."""

    def __init__(self, begin: Callable[[], MemoryBlock]) -> None:
        self._begin = begin
        self._now: MemoryBlock | None = None
        self._until_now: MemoryStage | None = None

    @property
    def stage(self) -> MemoryStage | None:
        """The sum; None before the first step ends."""
        return self._until_now

    def __enter__(self) -> None:
        self._now = self._begin()

    def __exit__(self, *exception: object) -> None:
        assert self._now is not None
        with contextlib.suppress(Exception):  # an error of ours must not replace the step's
            ended = self._now.end()
            self._until_now = ended if self._until_now is None else _resumed(self._until_now, ended)
        self._now = None


class _Statement(NamedTuple):
    """A statement's reading and the watch that began with it."""

    reading: MemoryReading
    watch: PeakWatch


def _end_statement(before: _Statement | None, now: MemoryReading) -> Peak:
    """The peak from the statement before `now` to `now`. The next stage begins at `now`."""
    with _lock:
        peak = peak_until(now) if before is None else before.watch.until(before.reading, now)
        # Otherwise another statement has been counted since this one was made.
        if before is _latest.get(now.device):
            if before is not None:
                before.watch.end()
            _latest[now.device] = _Statement(now, follow(now))
    return peak


def measured(name: str, before: MemoryReading | None, after: MemoryReading, peak: Peak) -> MemoryStage:
    """A stage of one run, between two readings."""
    delta = None if before is None else after.allocated_bytes - before.allocated_bytes
    where, where_bytes = _largest(before, after)
    return MemoryStage(
        name=name,
        device=after.device,
        count=1,
        allocated_bytes=after.allocated_bytes,
        reserved_bytes=after.reserved_bytes,
        before_bytes=None if before is None else before.allocated_bytes,
        delta_bytes=delta,
        first_delta_bytes=delta,
        peak_bytes=peak.bytes,
        peak_at_most_bytes=peak.at_most_bytes,
        host_resident_bytes=after.resident_bytes,
        why=after.why,
        where=where,
        where_bytes=where_bytes,
    )


def _largest(before: MemoryReading | None, after: MemoryReading) -> tuple[str, int]:
    """The line that allocated most new memory, and how much; ("", 0) without a memory history."""
    if before is None or before.events is None or after.events is None:
        return "", 0
    from gpuscope.memory.history.call_stacks import program_line_text  # imports NumPy

    stack, size = _core.largest_allocator(before.events, after.device)
    line = program_line_text(stack)
    return line, size if line else 0


def _add(stage: MemoryStage) -> None:
    """Merges an ended stage with those of its name and device."""
    key = stage.name, stage.device
    with _lock:
        if key not in _stages and len(_stages) >= MOST_STAGES:
            stage = dataclasses.replace(stage, name=OTHERS)
            key = stage.name, stage.device
        _stages[key] = _stages[key].merged(stage) if key in _stages else stage


def _resumed(earlier: MemoryStage, later: MemoryStage) -> MemoryStage:
    """Two runs of one suspended coroutine as one stage."""
    delta = (earlier.delta_bytes or 0) + (later.delta_bytes or 0)
    return dataclasses.replace(
        earlier.merged(later), count=1, before_bytes=earlier.before_bytes, delta_bytes=delta, first_delta_bytes=delta
    )
