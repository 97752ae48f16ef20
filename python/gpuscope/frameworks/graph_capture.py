# SPDX-License-Identifier: Apache-2.0
"""What capturing a CUDA graph has in common, whichever framework hands out the memory that it uses.

A graph keeps writing to the addresses it was captured with. torch and CuPy therefore capture from pools of their own,
which live as long as the graph; for anything else the results of the captured calls are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuscope.arguments import check_done
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.units import first_line

if TYPE_CHECKING:
    from typing_extensions import Self

# As torch's documents do on a side stream before a capture:
# docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
WARM_UP_CALLS = 3

# No stream, and the handle of the legacy default stream (cuda.h): neither can be captured.
DEFAULT_STREAMS = (0, 1)


@dataclass
class Captured:
    """A graph of `calls` calls of a function.

    Attributes:
        calls: how many calls of the function one launch replays.
        launch: puts one replay onto the stream that the graph was captured for; does not wait.
        nodes: the graph's kernels, copies and fills; None where the framework that owns it does not say.
        by: "torch", "cupy" or "driver".
    """

    calls: int
    launch: Callable[[], object]
    nodes: int | None
    by: str
    _kept: list[object] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Releases the graph and its memory; the replays must have ended. Idempotent."""
        self.launch = _closed
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class EmptyGraph(Exception):  # noqa: N818
    """Nothing of the function came onto the stream that was captured."""


def call_repeatedly(function: Callable[[], object], calls: int) -> object:
    """The last result; each is released when the next call has returned, as in a loop of the user's."""
    result = None
    for _ in range(calls):
        result = check_done("fn", function())
    return result


def record(
    begin: Callable[[], object], function: Callable[[], object], calls: int, end: Callable[[], Any]
) -> tuple[object, Any]:
    """The last call's result and what `end` returns; whatever happens, the stream is not left capturing."""
    try:
        begin()
    except Exception as error:
        raise not_captured(error) from error
    try:
        result = call_repeatedly(function, calls)
    except BaseException as error:
        with contextlib.suppress(Exception):  # an invalidated capture fails again when it ends
            end()
        if isinstance(error, Exception):
            raise not_captured(error) from error
        raise
    try:
        return result, end()
    except Exception as error:
        raise not_captured(error) from error


def not_captured(reason: str | Exception) -> NotAvailable:
    """The error that says why a function cannot be captured: in words, or by what was raised."""
    if isinstance(reason, Exception):
        reason = first_line(str(reason)).rstrip(".") or type(reason).__name__
    return NotAvailable(f"a CUDA graph: the function cannot be captured: {reason}")


def _closed() -> None:
    raise InvalidArgument("launch is of a graph that was closed; accepted are graphs before their close()")
