# SPDX-License-Identifier: Apache-2.0
"""`Timer` and `timed`: time blocks (``with``) and functions (as decorators)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks.torch_compile import leave_out_of_graphs
from gpuscope.regions import OpenBlocks, decorate, decorate_calls
from gpuscope.text import brief
from gpuscope.timing.measurement import Measurement, Steps, Times
from gpuscope.timing.totals import Timing, totals_of
from gpuscope.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])

_NO_BLOCK = "no block has been timed yet"


class Timer:
    """Times a block of code (``with``) or a function (as its decorator), on the GPU and the host.

    The block ends when its calls have returned; it does not wait for the GPU. Reading a time waits; `ready` says
    whether it would. A block that raises is timed too. The times are of the block or call that ended last, on any
    thread. A timer may be entered again, inside its own block and by several threads.

    As a decorator it times each call of a function or method, also recursive calls. A coroutine function is timed once
    a call, without the time in which it was suspended. A generator function is timed from item to item.

    GPU time is the time between two events on one stream. It includes waits of that stream, and excludes work on other
    streams. JAX's streams are not accessible: use `wall_time` after a synchronization.

    Args:
        name: the name in `timings` whose totals get each block; None for none.
        stream: any form that `streams.resolve` takes; None is the stream that is current when the block begins.

    Raises:
        InvalidArgument: `name` is not a string, or empty; on entering, `stream` is no stream.

    Example:
        >>> with Timer() as timer:
        ...     total = sum(range(1000))
        >>> timer.launch_time > 0
        True
    """

    def __init__(self, name: str | None = None, stream: object = None) -> None:
        if name is not None:
            _check_name(name, "Timer")
        self.name = name
        self._stream = stream
        self._open = OpenBlocks[Measurement]()
        self._last: Measurement | Steps | None = None

    def __enter__(self) -> Self:
        self._open.push(Measurement(self._stream))
        return self

    def __exit__(self, *exception: object) -> None:
        measurement = self._open.pop()
        measurement.stop()
        self._end(measurement)

    def __call__(self, function: Function) -> Function:
        """Decorates a function, so that each run is timed.

        Raises:
            InvalidArgument: `function` cannot be called.
        """
        return cast("Function", decorate_calls(self, function, self._coroutine))

    @property
    def ready(self) -> bool:
        """Whether a block has ended and its GPU work is done, so that reading its times does not wait."""
        return self._last is not None and self._last.ready

    @property
    def gpu_time(self) -> float | None:
        """Seconds from the block's begin to its end on the stream, in steps of 0.5 us. Waits.

        None without a GPU, or if a CUDA graph was being captured; see `why`.
        """
        return self._times.gpu if self._last else None

    @property
    def launch_time(self) -> float | None:
        """Seconds that the block took on the host; None before the first block has ended. Does not wait."""
        return self._last.launch if self._last else None

    @property
    def wall_time(self) -> float | None:
        """Seconds from the block's begin on the host to the end of its work on the GPU. Waits.

        The end is placed on the host's clock by an event of known host time, at most about a second away. `wall_error`
        is the error of that. Without a GPU it is the block's time on the host. If it is None, `why` has the reason.
        """
        return self._times.wall if self._last else None

    @property
    def wall_error(self) -> float | None:
        """Seconds by which `wall_time` may be wrong; grows with the length of the work."""
        return self._times.wall_error if self._last else None

    @property
    def why(self) -> str:
        """Why a time is None; empty when none is."""
        return self._times.why if self._last else _NO_BLOCK

    @property
    def _times(self) -> Times:
        assert self._last is not None
        return self._last.result()

    def _end(self, block: Measurement | Steps, elapsed: float | None = None) -> None:
        self._last = block
        if self.name is not None:
            totals_of(self.name).add(block, elapsed)

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            steps = Steps(self._stream)
            start = _core.monotonic_ns()
            try:
                return await decorate(steps, function)(*args, **kwargs)
            finally:
                self._end(steps, (_core.monotonic_ns() - start) / 1e9)

        return wrapper

    def __str__(self) -> str:
        if self._last is None:
            return _NO_BLOCK
        times = self._times
        if times.gpu is None:
            return f"CPU {format_seconds(times.launch)} (no GPU time: {times.why})"
        accuracy = f"({times.why})" if times.wall is None else f"+- {format_seconds(times.wall_error)}"
        wall = f"{format_seconds(times.wall)} {accuracy}"
        return f"GPU {format_seconds(times.gpu)}, launch {format_seconds(times.launch)}, wall {wall}"

    def __repr__(self) -> str:
        return f"<gpuscope.Timer: {self if self._last is None or self.ready else 'the GPU is not done yet'}>"


def timed(name: str, stream: object = None) -> Timed:
    """Adds the time of a block (``with``) or a function (as its decorator) to the totals of a name.

    Blocks do not wait for the GPU. Their times are added when they are known; `timings` and `Timed.summary` wait for
    the rest. Memory is bounded: 1024 unfinished blocks and 4096 samples a name. Threads may share names and objects;
    each name's totals have their own lock.

    As a decorator it counts each call of a function or method. A coroutine function counts once a call, without the
    time in which it was suspended; `Timing.elapsed` includes that time. A generator function counts each run of its
    body from one item to the next.

    Args:
        name: the name whose totals get the time. Blocks may nest; each counts in full.
        stream: any form that `streams.resolve` takes; None is the stream that is current when a block begins.

    Raises:
        InvalidArgument: `name` is not a string, or empty.

    Example:
        >>> with timed("example of timed"):
        ...     total = sum(range(1000))
        >>> timed("example of timed").summary().count
        1
    """
    _check_name(name, "timed")
    return Timed(name, stream)


class Timed(Timer):
    """The result of `timed`: a `Timer` with a name."""

    name: str

    def summary(self) -> Timing:
        """The totals of this name; waits for the GPU work of the blocks that have ended."""
        return totals_of(self.name).timing()

    def __repr__(self) -> str:
        return f"timed({self.name!r})"


def _check_name(name: object, what: str) -> None:
    if isinstance(name, str) and name:
        return
    known = getattr(name, "__name__", None)  # as `@timed` without a name passes the function
    given = brief(name) if known is None else f"the {type(name).__name__} {known}"
    example = f", as in @{what}({known!r})" if known else "" if what == "timed" else ", and streams as stream=..."
    raise InvalidArgument(f"name is {given}; accepted are strings that are not empty{example}")


leave_out_of_graphs("timed", timed, Timed)
