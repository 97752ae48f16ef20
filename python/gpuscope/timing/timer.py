# SPDX-License-Identifier: Apache-2.0
"""`Timer`: how long a block of code kept the GPU, the host, and both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.timing.measurement import Measurement, Times
from gpuscope.units import format_seconds

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_NOTHING_YET = "no block has been timed yet"


class Timer:
    """Times a block of code, on the GPU and the host, without waiting for the GPU inside it.

    The block ends when its calls have returned; reading a time waits for the GPU to be done with them, and `ready` says
    whether it is. A block that raises is timed all the same. A timer can be entered again, also inside its own block;
    the times are those of the block that ended last. One thread at a time.

    GPU time is the time between two events on one stream: it includes what the stream waited for in between, and leaves
    out work that the block put on other streams (JAX's are not to be had; use `wall_time` after a synchronization).

    Args:
        stream: any form that `streams.resolve` takes; None is the stream that is current when the block begins.

    Raises:
        InvalidArgument: on entering, when `stream` is no stream.

    Example:
        >>> with Timer() as timer:
        ...     total = sum(range(1000))
        >>> timer.launch_time > 0
        True
    """

    def __init__(self, stream: object = None) -> None:
        self._stream = stream
        self._open: list[Measurement] = []
        self._last: Measurement | None = None

    def __enter__(self) -> Self:
        self._open.append(Measurement(self._stream))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        measurement = self._open.pop()
        measurement.stop()
        self._last = measurement

    @property
    def ready(self) -> bool:
        """Whether a block has ended and the GPU is done with it: its times can be read without waiting."""
        return self._last is not None and self._last.ready

    @property
    def gpu_time(self) -> float | None:
        """Seconds from the block's first moment on the stream to its last, in steps of 0.5 us. Waits.

        None when `why` says so: without a GPU, and while a CUDA graph was being captured.
        """
        return self._times.gpu if self._last else None

    @property
    def launch_time(self) -> float | None:
        """Seconds that the block's code took on the host. Does not wait. None before the first block has ended."""
        return self._last.launch if self._last else None

    @property
    def wall_time(self) -> float | None:
        """Seconds from the block's begin on the host to the end of its work on the GPU. Waits.

        The end is placed on the host's clock by an event of known time, no more than about a second away; `wall_error`
        says how accurate that is. Without a GPU it is the block's time on the host. None when `why` says so.
        """
        return self._times.wall if self._last else None

    @property
    def wall_error(self) -> float | None:
        """Seconds by which `wall_time` may be wrong: usually 5 to 20 us, more for work of many seconds."""
        return self._times.wall_error if self._last else None

    @property
    def why(self) -> str:
        """Why a time is None; empty when all are there."""
        return self._times.why if self._last else _NOTHING_YET

    @property
    def _times(self) -> Times:
        assert self._last is not None
        return self._last.result()

    def __str__(self) -> str:
        if self._last is None:
            return _NOTHING_YET
        times = self._times
        if times.gpu is None:
            return f"CPU {format_seconds(times.launch)} (no GPU time: {times.why})"
        wall = format_seconds(times.wall) + (
            f" +- {format_seconds(times.wall_error)}" if times.wall is not None else f" ({times.why})"
        )
        return f"GPU {format_seconds(times.gpu)}, launch {format_seconds(times.launch)}, wall {wall}"

    def __repr__(self) -> str:
        return f"<gpuscope.Timer: {self if self._last is None or self.ready else 'the GPU is not done yet'}>"
