# SPDX-License-Identifier: Apache-2.0
"""`timed`: adds up how long the blocks and functions of a name take, over a whole program."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, cast

from gpuscope.errors import InvalidArgument
from gpuscope.regions import OpenBlocks, decorate, decorate_calls
from gpuscope.timing.measurement import Measurement
from gpuscope.timing.report import Timings
from gpuscope.timing.steps import Steps
from gpuscope.timing.totals import Timing, Totals

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeVar

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])

_lock = threading.Lock()
_totals: dict[str, Totals] = {}


def timed(name: str, stream: object = None) -> Timed:
    """Adds the time of a block (``with``) or a function (as its decorator) to the totals of a name.

    Nothing waits for the GPU while blocks run: their times are taken up when they are there, and `timings` and
    `Timed.summary` wait for the rest. Memory is bounded: 1024 unfinished blocks and 4096 samples a name. Any thread may
    use any name at any time, and the same object; each name's totals have a lock of their own.

    As a decorator: a function or method counts once a call. A coroutine function counts once a call, with the time
    that its body ran and without what ran while it was suspended. A generator function counts each run of its body from
    one item to the next.

    Args:
        name: whose totals to add to. Blocks may nest; each counts in full.
        stream: the stream to time, in any form that `streams.resolve` takes; None is the one that is current when a
            block begins.

    Raises:
        InvalidArgument: `name` is not a string, or empty.

    Example:
        >>> with timed("example of timed"):
        ...     total = sum(range(1000))
        >>> timings()["example of timed"].count
        1
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"name is {name!r}; accepted are strings that are not empty")
    return Timed(name, stream)


def timings() -> Timings:
    """The totals of all names, in the order of their first use; prints as a table. Waits for the GPU."""
    with _lock:
        all_totals = list(_totals.items())
    return Timings({name: totals.timing() for name, totals in all_totals})


def reset_timings() -> None:
    """Forgets all totals. Blocks that are open now count when they end."""
    with _lock:
        _totals.clear()


def _totals_of(name: str) -> Totals:
    with _lock:
        if name not in _totals:
            _totals[name] = Totals(name)
        return _totals[name]


class Timed:
    """What `timed` returns: a context manager, which can be entered again and by many threads, and a decorator."""

    def __init__(self, name: str, stream: object = None) -> None:
        self.name = name
        self._stream = stream
        self._open = OpenBlocks[Measurement]()

    def __enter__(self) -> Self:
        self._open.push(Measurement(self._stream))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        measurement = self._open.pop()
        measurement.stop()
        _totals_of(self.name).add(measurement)

    def __call__(self, function: Function) -> Function:
        """The function, timed whenever it runs.

        Raises:
            InvalidArgument: `function` cannot be called.
        """
        return cast("Function", decorate_calls(self, function, self._coroutine))

    def summary(self) -> Timing:
        """The totals of this name; waits for the GPU to be done with the blocks that have ended."""
        return _totals_of(self.name).timing()

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            steps = Steps(self._stream)
            try:
                return await decorate(steps, function)(*args, **kwargs)
            finally:
                _totals_of(self.name).add(steps)

        return wrapper

    def __repr__(self) -> str:
        return f"timed({self.name!r})"
