# SPDX-License-Identifier: Apache-2.0
"""Common parts of CUDA graph capture for all frameworks.

A graph keeps writing to the addresses of its capture. torch and CuPy therefore capture with a private pool that lives
as long as the graph. For other libraries the results of the captured calls are kept.
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

# As in torch's documentation, on a side stream before a capture:
# docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
WARM_UP_CALLS = 3

# No stream, and the handle of the legacy default stream (cuda.h): neither can be captured.
DEFAULT_STREAMS = (0, 1)


@dataclass
class Captured:
    """A captured CUDA graph.

    Attributes:
        calls: number of calls of the function that one launch replays.
        launch: enqueues one replay on the graph's stream; does not wait.
        nodes: number of kernels, copies and fills; None if the framework does not report it.
        by: "torch", "cupy" or "driver".
    """

    calls: int
    launch: Callable[[], object]
    nodes: int | None
    by: str
    _kept: list[object] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Releases the graph and its memory. All replays must have finished. Idempotent."""
        self.launch = _closed
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class EmptyGraph(Exception):  # noqa: N818
    """The function enqueued nothing on the captured stream."""


def call_repeatedly(function: Callable[[], object], calls: int) -> object:
    """Returns the last result. Each result is released after the next call, as in a user's loop."""
    result = None
    for _ in range(calls):
        result = check_done("fn", function())
    return result


def record(
    begin: Callable[[], object], function: Callable[[], object], calls: int, end: Callable[[], Any]
) -> tuple[object, Any]:
    """Returns the last call's result and that of `end`. The capture ends in any case."""
    try:
        begin()
    except Exception as error:
        raise not_captured(error) from error
    try:
        result = call_repeatedly(function, calls)
    except BaseException as error:
        with contextlib.suppress(Exception):  # an invalidated capture fails again at its end
            end()
        if isinstance(error, Exception):
            raise not_captured(error) from error
        raise
    try:
        return result, end()
    except Exception as error:
        raise not_captured(error) from error


def not_captured(reason: str | Exception) -> NotAvailable:
    """The error for a function that cannot be captured. `reason`: a text or the exception."""
    if isinstance(reason, Exception):
        reason = first_line(str(reason)).rstrip(".") or type(reason).__name__
    return NotAvailable(f"a CUDA graph: the function cannot be captured: {reason}")


def _closed() -> None:
    raise InvalidArgument("launch is of a graph that was closed; accepted are graphs before their close()")
