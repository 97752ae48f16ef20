# SPDX-License-Identifier: Apache-2.0
"""`synchronize`: waits for a device, a stream or an event, and says how long that took."""

from __future__ import annotations

import time
from typing import Any

from gpuscope import _core, streams
from gpuscope.errors import InvalidArgument
from gpuscope.timing.devices import ACCEPTED, find_ordinal
from gpuscope.timing.event import Event
from gpuscope.timing.hardware import why_no_gpu


def synchronize(target: object = None) -> float:
    """Waits until the GPU's work is done; other threads of the program run meanwhile.

    Args:
        target: what to wait for. None: the current device. An integer (a device's ordinal), a name as ``"cuda:1"``, or
            a device of PyTorch, CuPy, JAX, Numba or cuda-python: everything on that device's primary context, which
            CUDA's runtime and all frameworks use. A stream object of any kind (not a handle: integers are devices):
            that stream. An event of gpuscope, PyTorch or CuPy: that event.

    Returns:
        Seconds waited; 0.0 without a GPU, and for a device that this process has not used.

    Raises:
        InvalidArgument: `target` is none of these.
        NotAvailable: there is no such device.
        CudaError: the work failed, as a kernel that read a wrong address does.
    """
    if isinstance(target, Event) or _is_event(target):
        return _wait_for(target)
    ordinal = streams.current().device if target is None else find_ordinal(target)
    if ordinal is not None:
        if ordinal < 0:
            raise InvalidArgument(f"target is {ordinal}; accepted are device ordinals from 0")
        return 0.0 if why_no_gpu() else _core.synchronize(ordinal)
    if _is_cpu(target):
        return 0.0
    if streams.is_stream(target):
        stream = streams.resolve(target)
        return 0.0 if why_no_gpu() else _core.synchronize_stream(stream.handle, stream.device)
    raise InvalidArgument(f"target is {target!r}; accepted are None, streams, events, {ACCEPTED}")


def _wait_for(event: Any) -> float:
    start = time.perf_counter()
    event.synchronize()
    return time.perf_counter() - start if not isinstance(event, Event) or event.measures == "gpu" else 0.0


def _is_event(target: object) -> bool:
    package = type(target).__module__.partition(".")[0]
    has_methods = hasattr(target, "record") and hasattr(target, "synchronize")
    return package in {"torch", "cupy"} and has_methods and not hasattr(target, "wait_event")  # streams have that


def _is_cpu(target: object) -> bool:
    kind = target if isinstance(target, str) else getattr(target, "type", getattr(target, "platform", ""))
    return isinstance(kind, str) and kind == "cpu"
