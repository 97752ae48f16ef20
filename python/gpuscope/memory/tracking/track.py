# SPDX-License-Identifier: Apache-2.0
"""`track_memory`: the memory that each stage of a program takes, as a statement, a block or a decorator."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

from gpuscope.errors import InvalidArgument
from gpuscope.memory.ordinals import ordinal_of
from gpuscope.memory.tracking import stages
from gpuscope.memory.tracking import statements as track_statements
from gpuscope.memory.tracking.blocks import MemoryBlock, Steps
from gpuscope.memory.tracking.figures import Figures
from gpuscope.memory.tracking.reading import read
from gpuscope.regions import OpenBlocks, decorate, decorate_calls

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeVar

    from gpuscope.memory.tracking.stages import MemoryStage

    Function = TypeVar("Function", bound=Callable[..., Any])


def track_memory(name: str, device: object = None, *, quiet: bool = False) -> TrackMemory:
    """Reads the memory in use at a stage of a program. Never waits for the GPU; `memory_stages` has all stages.

    As a statement it prints a line with what is allocated and reserved, the change since the statement before it and
    the peak between the two. As a context manager or decorator it measures from the beginning of the block, or of each
    call, to its end, and prints nothing. Blocks nest, and any thread may use the same object at any time.

    The figures come from the counters of the allocators: torch's, and those of CuPy, RMM and JAX where one of these is
    imported. On a machine without a GPU the resident memory of the process stands in for them, and the line says so.

    A call cannot know what becomes of it. It reads the memory at once; the line is printed and the stage counted when
    the object is dropped without having been entered or having decorated, which is at the end of a plain statement, or
    when its figures are read. So ``stage = track_memory("load", quiet=True)`` keeps a reading.

    Peaks: a block knows its peak from torch's reports of its allocations, which come from the threads that enter
    blocks and from autograd's threads working for them. Where these cannot be had, it restarts torch's peak counter,
    and `torch.cuda.max_memory_allocated` tells of the time since the latest block began. A statement only reads that
    counter: it knows the peak whenever it is a new one, and otherwise a lower and an upper bound of it.

    Args:
        name: of the stage. Stages of the same name and device are counted together.
        device: None for the GPU that is the current one when it is used, an ordinal, ``"cuda:1"`` or a
            ``torch.device``; ``"cpu"`` for the host's resident memory.
        quiet: whether the statement prints no line.

    Raises:
        InvalidArgument: `name` is not a string, or empty; `device` is no device.
        NotAvailable: this process has GPUs, but not this one.

    Example:
        >>> with track_memory("example of track_memory") as stage:
        ...     data = bytes(1000)
        >>> stage.peak >= stage.allocated
        True
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"name is {name!r}; accepted are strings that are not empty")
    return TrackMemory(name, device, ordinal_of(device), quiet=quiet)


class TrackMemory(Figures):
    """What `track_memory` returns. Its figures are those of the statement, or of the block that ended last."""

    def __init__(self, name: str, device: object, ordinal: int, *, quiet: bool) -> None:
        self.name = name
        self._device = device
        self._quiet = quiet
        self._lock = threading.Lock()
        self._open = OpenBlocks[MemoryBlock]()
        self._stage: MemoryStage | None = None
        self._before = track_statements.latest(ordinal)
        self._now = read(ordinal)
        self._may_be_statement = True

    @property
    def stage(self) -> MemoryStage:
        """All figures; makes a statement of what has not been used otherwise.

        Raises:
            InvalidArgument: it is a block or decorator and none of its blocks has ended.
        """
        self._settle(prints=not self._quiet)
        if self._stage is None:
            raise InvalidArgument(f"stage {self.name!r} has not ended; accepted are stages of which a block has")
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
        with contextlib.suppress(Exception):  # nothing of ours may come in the way of what the block raised
            self._add(block.end())

    def __call__(self, function: Function) -> Function:
        """The function, whose every call is a stage.

        A coroutine function's stage is what its body does, without what others do while it is suspended. A generator
        function's stage is each run of its body from one item to the next.

        Raises:
            InvalidArgument: `function` cannot be called.
        """
        self._may_be_statement = False
        return cast("Function", decorate_calls(self, function, self._coroutine))

    def __del__(self) -> None:
        # Never a line while Python shuts down: what lives until then was not a statement.
        with contextlib.suppress(Exception):
            if not sys.is_finalizing():
                self._settle(prints=not self._quiet)

    def __repr__(self) -> str:
        # A prompt shows what a statement returns and keeps it: the line, instead of one printed when it is let go.
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
            peak = track_statements.end_stage(self._before, self._now)
            self._add(stages.measured(self.name, before, self._now, peak))
            if prints:
                print(self._stage)

    def _begin(self) -> MemoryBlock:
        return MemoryBlock(self.name, ordinal_of(self._device))

    def _add(self, stage: MemoryStage) -> None:
        self._stage = stage
        stages.add(stage)

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
