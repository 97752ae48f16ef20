# SPDX-License-Identifier: Apache-2.0
"""CUDA streams in every form that users have, turned into one; no framework is imported for it."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from gpuscope import _core
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.text import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ACCEPTED", "Stream", "current", "is_stream", "refuse_capture", "resolve", "shown"]

ACCEPTED = (
    "None for the current stream, an integer handle, and streams of PyTorch, CuPy, Numba, PyCUDA and cuda-python, "
    "or of anything else with __cuda_stream__"
)
_LAST_DEFAULT = 2  # handles of the default streams: 0, the legacy one (1), the calling thread's (2)
_LARGEST = 2**64 - 1


@dataclass(frozen=True)
class Stream:
    """A CUDA stream.

    Attributes:
        handle: the ``CUstream`` as a number; 0 is the default stream.
        device: ordinal of its device, as this process counts them; 0 without a GPU.
        source: whose object it was: ``"torch"``, ``"cupy"``, ``"numba"``, ``"pycuda"``, ``"cuda-python"``,
            ``"__cuda_stream__"``, ``"int"``, or ``"default"``.
    """

    handle: int
    device: int
    source: str

    @property
    def is_default(self) -> bool:
        """Whether it is a default stream, whose handle does not identify its device."""
        return self.handle <= _LAST_DEFAULT

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version and the handle."""
        return (0, self.handle)


def resolve(stream: object = None, device: int | None = None) -> Stream:
    """The stream that an object stands for.

    Args:
        stream: None for `current(device)`, a `Stream`, an integer handle, or a stream of PyTorch, CuPy, Numba, PyCUDA
            or cuda-python, or any object with ``__cuda_stream__`` (a property or a method).
        device: the device of a default stream's handle. A stream that knows its device must be of this one.

    Raises:
        InvalidArgument: it is not a stream, is closed, or belongs to another device than `device`.
    """
    if stream is None:
        return current(device)
    if isinstance(stream, Stream):
        return _checked(stream, device)
    form = _form_of(stream)
    if form is None:
        raise InvalidArgument(f"stream is {shown(stream)}; accepted are {ACCEPTED}")
    handle, own_device = form.read(stream)
    if handle is None:
        raise InvalidArgument(f"stream is {shown(stream)}, which is closed; accepted are open streams")
    if not 0 <= handle <= _LARGEST:
        raise InvalidArgument(f"stream is {brief(handle)}; accepted handles are 0 to 2**64 - 1")
    if own_device is None:
        own_device = device if device is not None and handle <= _LAST_DEFAULT else _device_of(handle)
    return _checked(Stream(handle, own_device, form.source), device)


def _checked(stream: Stream, device: int | None) -> Stream:
    if device is not None and stream.device != device:
        raise InvalidArgument(f"stream is of device {stream.device}; accepted here are streams of device {device}")
    return stream


def current(device: int | None = None) -> Stream:
    """The stream on which the program works now.

    PyTorch's current stream if PyTorch has begun to use CUDA, else CuPy's if CuPy is imported, else the default
    stream. JAX does not expose its streams.

    Args:
        device: the device; None is the current one.
    """
    return next(_current_ones(device))


def refuse_capture(what: str, device: int | None = None, stream: Stream | None = None) -> None:
    """Raises NotAvailable while a CUDA graph is being captured, which `what` would spoil.

    Detects captures of the current streams of PyTorch and CuPy, and of the stream that ``torch.cuda.graph`` makes. Also
    detects, on any thread, captures of streams that the default stream waits for. With `stream`, checks only that one.
    """
    captured = False
    with contextlib.suppress(Exception):  # later calls report a GPU that does not answer
        found = [stream] if stream is not None else [*_current_ones(None), *_current_ones(device)]
        of_torch = getattr(getattr(sys.modules.get("torch.cuda"), "graph", None), "default_capture_stream", None)
        if stream is None and of_torch is not None:
            found.append(Stream(int(of_torch.cuda_stream), int(of_torch.device_index), "torch"))
        captured = any(_core.is_capturing(each.handle, each.device) for each in found)
    if captured:
        raise NotAvailable(
            f"{what} is not available while a CUDA graph is being captured: it would spoil the capture; "
            "call it before the capture or after it"
        )


def _current_ones(device: int | None) -> Iterator[Stream]:
    """The current stream of each framework in use, and the default stream."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        stream = torch.cuda.current_stream(device)
        yield Stream(int(stream.cuda_stream), int(stream.device_index), "torch")
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        own = None
        try:
            own_device = int(cupy.cuda.runtime.getDevice())
            if device is None or device == own_device:
                own = Stream(int(cupy.cuda.get_current_stream().ptr), own_device, "cupy")
        except Exception:
            pass  # CuPy on a machine that it cannot use; its errors have no common root
        if own is not None:
            yield own
    yield Stream(0, _device_of(0) if device is None else device, "default")


def is_stream(value: object) -> bool:
    """Whether `resolve` reads this object as a stream; integers count as handles."""
    return isinstance(value, Stream) or _form_of(value) is not None


def _device_of(handle: int) -> int:
    try:
        return _core.stream_device(handle)
    except GpuscopeError as error:
        raise InvalidArgument(f"stream is {handle:#x}, which the driver does not know ({error})") from error


def shown(value: object) -> str:
    """A value and its type, short enough for a sentence."""
    return f"{brief(value)} ({type(value).__module__}.{type(value).__qualname__})"


def _package(value: object) -> str:
    """The framework that an object's class or one of its base classes comes from; empty if unknown."""
    packages = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    return next((name for name in packages if name in {"torch", "cupy", "numba", "numba_cuda", "pycuda", "cuda"}), "")


Reading = tuple["int | None", "int | None"]  # handle (None: closed) and device (None: not known)


@dataclass(frozen=True)
class _Form:
    source: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Reading]


def _number(value: Any) -> int | None:
    """A handle as a number, from an integer, a ctypes pointer or an object of cuda-python."""
    if hasattr(value, "value"):  # ctypes.c_void_p, whose null is None
        return int(value.value or 0)
    if isinstance(value, (bool, float)):
        raise TypeError("a handle is a whole number")
    return None if value is None else int(value)


def _read_torch(stream: Any) -> Reading:
    # torch.Stream, the parent of torch.cuda.Stream, has its handle under another name.
    handle = stream.cuda_stream if hasattr(stream, "cuda_stream") else stream.native_handle
    return _number(handle), stream.device_index


def _is_torch(stream: Any) -> bool:
    if hasattr(stream, "cuda_stream"):
        return True
    device = getattr(stream, "device", None) if _package(stream) == "torch" else None
    # In this order: streams of other devices raise when asked for a handle.
    return getattr(device, "type", None) == "cuda" and hasattr(stream, "native_handle")


def _read_cupy(stream: Any) -> Reading:
    device = getattr(stream, "device_id", -1)  # -1: the null stream, or one that came from outside
    return _number(stream.ptr), device if device >= 0 else None


def _read_protocol(stream: Any) -> Reading:
    if getattr(stream, "handle", 0) is None:  # cuda.core's, once closed
        return None, None
    answer = stream.__cuda_stream__
    try:
        answer = answer() if callable(answer) else answer
    except RuntimeError as error:
        if "closed" in str(error):
            return None, None
        raise
    try:
        version, value = answer
        handle = _number(value)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"stream is {shown(stream)}, whose __cuda_stream__ is {brief(answer)}; accepted is (0, handle)"
        ) from None
    if version != 0:
        raise InvalidArgument(f"stream has version {version} of __cuda_stream__; accepted is version 0")
    # cuda.core's own default streams are 1 and 2: its 0 is a stream that was closed.
    return None if handle == 0 and _package(stream) == "cuda" else handle, None


def _read_numba(stream: Any) -> Reading:
    device = getattr(getattr(stream, "context", None), "device", None)
    return _number(stream.handle), getattr(device, "id", None)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)  # NumPy's are Integral too


_FORMS = (
    _Form("torch", _is_torch, _read_torch),
    _Form("cupy", lambda s: hasattr(s, "ptr") and hasattr(s, "wait_event"), _read_cupy),
    _Form("numba", lambda s: _package(s).startswith("numba") and hasattr(s, "auto_synchronize"), _read_numba),
    _Form("__cuda_stream__", lambda s: hasattr(s, "__cuda_stream__"), _read_protocol),
    _Form(
        "pycuda",
        lambda s: _package(s) == "pycuda" and hasattr(s, "wait_for_event"),
        lambda s: (_number(s.handle), None),
    ),
    _Form(
        "cuda-python",
        lambda s: type(s).__name__ in {"CUstream", "cudaStream_t"} and hasattr(s, "__int__"),
        lambda s: (int(s), None),
    ),
    _Form("int", _is_integer, lambda s: (int(s), None)),
)


def _form_of(stream: object) -> _Form | None:
    if isinstance(stream, type):  # a class has its instances' attributes
        return None
    return next((form for form in _FORMS if form.fits(stream)), None)
