# SPDX-License-Identifier: Apache-2.0
"""Events on streams, and waiting for events, streams and devices."""

from __future__ import annotations

from typing import Any, Literal

from gpuscope import _core, streams
from gpuscope.devices import ACCEPTED, LARGEST, current, find_ordinal, is_cpu, ordinal_of, why_no_gpu
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.text import brief


class Event:
    """A CUDA event: marks a moment in a stream's work, to wait for or to time by.

    The first `record` creates the CUDA event, on the device of its stream. Timing events come from a pool of the
    device. On a machine without a GPU the same calls time the CPU: `record` reads the host's clock, `wait` and
    `synchronize` return at once. There is no warning, so that one program works on both machines; `measures` and the
    repr say which clock it was. One thread at a time; different events are independent.

    Args:
        enable_timing: the event can measure time. Waiting for an event without timing is cheaper.
        blocking: `synchronize` lets the thread sleep instead of spinning.
        interprocess: other processes may wait for the event, which cannot time.
        external: recorded in a captured CUDA graph, the event becomes a node, and each replay records it. Without
            `external`, asking for the time of such an event raises InvalidArgument.

    Example:
        >>> start, end = Event(enable_timing=True), Event(enable_timing=True)
        >>> start.record()
        >>> end.record()
        >>> end.synchronize()
        >>> start.elapsed_time(end) >= 0.0
        True
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if enable_timing and interprocess:
            raise InvalidArgument("interprocess is True; an event that processes share cannot time (enable_timing)")
        self._options = {
            "timing": bool(enable_timing),
            "blocking": bool(blocking),
            "interprocess": bool(interprocess),
            "external": bool(external),
        }
        self._event: _core.Event | None = None
        self._recorded_ns: int | None = None

    @classmethod
    def from_ipc_handle(cls, device: object, handle: bytes) -> Event:
        """The event that another process exported.

        Args:
            device: ordinal or device object of the event's GPU.
            handle: the result of `ipc_handle` in that process.

        Raises:
            InvalidArgument: `handle` is not 64 bytes.
            NotAvailable: there is no such GPU.
            CudaError: the driver refuses, as for an event of this process.
        """
        if not isinstance(handle, bytes):
            raise InvalidArgument(f"handle is a {type(handle).__name__}; accepted are the bytes that ipc_handle() gave")
        event = cls(interprocess=True)
        event._event = _core.Event.from_ipc_handle(ordinal_of(device), handle)
        return event

    def record(self, stream: object = None) -> None:
        """Marks this moment in a stream's work, and forgets an earlier one.

        Args:
            stream: any form that `streams.resolve` takes; None is the current stream.

        Raises:
            InvalidArgument: `stream` is no stream, or of another device than the event, or the default stream while a
                stream that it waits for is captured.
        """
        resolved = streams.resolve(stream)
        if self._event is None and why_no_gpu():
            self._recorded_ns = _core.monotonic_ns()
            return
        if self._event is None:
            self._event = _core.Event(resolved.device, **self._options)
        if resolved.is_default and resolved.device != self._event.device:
            raise InvalidArgument(
                f"stream is of device {resolved.device}; this event is of device {self._event.device} and records on "
                "that device's streams only"
            )
        self._event.record(resolved.handle)

    def wait(self, stream: object = None) -> None:
        """Makes later work of a stream, on any device, wait for the event. Returns at once.

        Args:
            stream: any form that `streams.resolve` takes; None is the current stream.
        """
        resolved = streams.resolve(stream)
        if self._event is not None:
            self._event.wait(resolved.handle, resolved.device)

    def query(self) -> bool:
        """Whether the work before the event is done; True if it was never recorded."""
        return self._event is None or self._event.query()

    def synchronize(self) -> None:
        """Waits until the work before the event is done, without the GIL."""
        if self._event is not None:
            self._event.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another.

        On a GPU in steps of about half a microsecond (CUDA's documentation of cuEventElapsedTime).

        Raises:
            InvalidArgument: an event has no `enable_timing`, was not recorded, or is not reached yet; or the events
                are of different devices.
        """
        if not isinstance(end_event, Event):
            raise InvalidArgument(f"end_event is a {type(end_event).__name__}; accepted are events of gpuscope")
        both = ((self, "the start event"), (end_event, "end_event"))
        for event, name in both:
            if not event._options["timing"]:
                raise InvalidArgument(f"{name} was made without enable_timing; make both events with it")
        for event, name in both:
            if event._event is None and event._recorded_ns is None:
                raise InvalidArgument(f"{name} has not been recorded; record both events first")
        if self._event is not None and end_event._event is not None:
            return self._event.elapsed_time(end_event._event)
        assert self._recorded_ns is not None
        assert end_event._recorded_ns is not None
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    def ipc_handle(self) -> bytes:
        """64 bytes that open this event in another process.

        Creates the event on the current device if it was not recorded yet.

        Raises:
            InvalidArgument: the event was not made with `interprocess`.
            NotAvailable: there is no GPU.
        """
        if not self._options["interprocess"]:
            raise InvalidArgument("interprocess was False when this event was made; only events made with it can go")
        if why_no_gpu():
            raise NotAvailable(f"an event's IPC handle is not available: {why_no_gpu()}")
        if self._event is None:
            self._event = _core.Event(streams.current().device, **self._options)
        return self._event.ipc_handle()

    @property
    def cuda_event(self) -> int:
        """The ``CUevent`` as a number; 0 before the first record, and without a GPU."""
        return 0 if self._event is None else self._event.handle

    @property
    def _as_parameter_(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self.cuda_event)

    @property
    def device(self) -> int | None:
        """Ordinal of the GPU; None before the first record, and without a GPU."""
        return None if self._event is None else self._event.device

    @property
    def measures(self) -> Literal["gpu", "cpu"]:
        """The clock of `elapsed_time`: ``"gpu"``, or ``"cpu"`` on a machine without a GPU."""
        return "cpu" if self._event is None and why_no_gpu() else "gpu"

    def __repr__(self) -> str:
        if self._event is not None:
            return f"<gpuscope.Event {self.cuda_event:#x} of device {self.device}>"
        if why_no_gpu():
            state = "not recorded" if self._recorded_ns is None else "recorded"
            return f"<gpuscope.Event {state}, measures the CPU: this machine has no GPU to time>"
        return "<gpuscope.Event not recorded>"


def synchronize(target: Any = None) -> float:
    """Waits until the GPU's work is done, without the GIL.

    Args:
        target: a device, a stream or an event; None is the current device. A device is an ordinal, a name as
            ``"cuda:1"``, or a device of PyTorch, CuPy, JAX, Numba or cuda-python; all work on its primary context is
            waited for. A stream is any stream object, but no handle, as integers are devices. An event is one of
            gpuscope, PyTorch or CuPy.

    Returns:
        Seconds waited; 0.0 without a GPU, and for a device that this process has not used.

    Raises:
        InvalidArgument: `target` is no device, stream or event.
        NotAvailable: there is no such device, or a CUDA graph is being captured, whose work does not run.
        CudaError: the work failed, as a kernel that read a wrong address.
    """
    if isinstance(target, Event) or _is_event(target):
        if not isinstance(target, Event):
            streams.refuse_capture("synchronize()")  # which this event may be part of
        start = _core.monotonic_ns()
        target.synchronize()
        on_gpu = not isinstance(target, Event) or target.measures == "gpu"
        return (_core.monotonic_ns() - start) / 1e9 if on_gpu else 0.0
    ordinal = current() if target is None else find_ordinal(target)
    if ordinal is not None:
        if not 0 <= ordinal <= LARGEST:
            raise InvalidArgument(f"target is {brief(target)}; accepted are device ordinals from 0")
        streams.refuse_capture("synchronize()", ordinal)
        return 0.0 if why_no_gpu() else _core.synchronize(ordinal)
    if is_cpu(target):
        return 0.0
    if streams.is_stream(target):
        stream = streams.resolve(target)
        streams.refuse_capture("synchronize()", stream=stream)
        return 0.0 if why_no_gpu() else _core.synchronize_stream(stream.handle, stream.device)
    raise InvalidArgument(f"target is {streams.shown(target)}; accepted are None, streams, events, {ACCEPTED}")


def _is_event(target: Any) -> bool:
    package = type(target).__module__.partition(".")[0]
    has_methods = hasattr(target, "record") and hasattr(target, "synchronize")
    return package in {"torch", "cupy"} and has_methods and not hasattr(target, "wait_event")  # as streams have
