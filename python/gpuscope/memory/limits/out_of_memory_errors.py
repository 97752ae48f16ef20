# SPDX-License-Identifier: Apache-2.0
"""Recognizes out-of-memory errors of all libraries, and reads the requested size from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.devices import HOST
from gpuscope.errors import CudaError

OUT_OF_MEMORY_CODE = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation
# Class names: the first of torch and CuPy, the second of TensorFlow.
_CLASSES = {"OutOfMemoryError", "ResourceExhaustedError"}
_WITH_CODE = {"CudaAPIError": "code", "CUDARuntimeError": "status", "CUDADriverError": "status"}  # Numba, CuPy
_XLA = {"XlaRuntimeError", "JaxRuntimeError"}
_TEXTS = re.compile(
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|\bCUDA out of memory|\bCUDA (?:driver )?error: out of memory"
    r"|\bCU[A-Z]+_(?:\w+_)?ALLOC(?:ATION)?_FAILED"  # CUBLAS_STATUS_ALLOC_FAILED and its like of cuDNN, cuSOLVER, cuFFT
    r"|Cuda failure (?:2 )?'out of memory'|Triton Error \[CUDA\]: out of memory"  # the first is NCCL's
    r"|\bcu\w+ failed: out of memory"  # PyCUDA's
    r"|CPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
)
# torch's convolutions try several plans. If each plan lacks memory, the error contains only this text.
_NO_ALGORITHM = re.compile(
    r"unable to find an engine to execute this computation|Unable to find a valid cuDNN algorithm"
)
_SIZE = re.compile(r"(?:allocat|request)\w*\D{0,24}?(\d[\d,]*(?:\.\d+)?) ?(bytes|[KMGTPE]i?B|B)\b", re.IGNORECASE)
_DEVICE = re.compile(r"\b(?:GPU|device) (\d+)\b")
_POWERS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_LIBRARIES = {"jaxlib": "jax", "numba_cuda": "numba", "cupy_backends": "cupy", "gpuscope": "CUDA", "cuda": "CUDA"}


@dataclass(frozen=True)
class Request:
    """A failed request for memory.

    Attributes:
        library: "torch", "cupy", "jax", "numba", "rmm" or "CUDA"; "host" for host memory.
        bytes: None if the error does not contain it. torch's errors give about three digits.
        device: ordinal of the GPU, HOST for host memory, None if the error does not contain it.
    """

    library: str
    bytes: int | None
    device: int | None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or its cause, reports that memory of a GPU or the host ran out.

    The error that it was raised ``from`` counts. The error that was being handled counts only if this one is a
    RuntimeError: libraries raise those in handlers, but a KeyError there is a separate mistake. In a group, all members
    must be out-of-memory errors.
    """
    return find_out_of_memory(error) is not None


def find_out_of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error among an error and its causes, as in `is_out_of_memory`; None without one."""
    for each in _chain(error):
        if _is_out_of_memory(each):
            return each
        members: tuple[BaseException, ...] = getattr(each, "exceptions", ()) if _is_group(each) else ()
        found = [find_out_of_memory(member) for member in members]
        if found and all(found):
            return found[0]
    return None


def may_be_out_of_memory(error: BaseException) -> bool:
    """Whether this is an error of torch's convolutions that lack of memory, or another reason, may cause."""
    return isinstance(error, RuntimeError) and _NO_ALGORITHM.search(str(error)) is not None


def request_of(error: BaseException) -> Request:
    """The request that an out-of-memory error reports."""
    text = str(error)
    library = _library(error, text)
    size, device = _SIZE.search(text), _DEVICE.search(text)
    try:
        asked = round(float(size[1].replace(",", "")) * 1024 ** _POWERS[_prefix(size[2])]) if size else None
    except OverflowError:
        asked = None
    on_host = library == "host" or "CPUAllocator" in text
    return Request(library, asked, HOST if on_host else int(device[1]) if device else None)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error and its chain of ``__cause__``."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        handled = error.__context__ if isinstance(error, RuntimeError) and not error.__suppress_context__ else None
        error = error.__cause__ or handled


def _is_out_of_memory(error: BaseException) -> bool:
    if not isinstance(error, Exception) or _is_group(error):
        return False
    names = {each.__name__ for each in type(error).__mro__}
    if isinstance(error, MemoryError) or names & _CLASSES:
        return True
    if isinstance(error, CudaError):
        return error.code == OUT_OF_MEMORY_CODE
    text = str(error)
    if names & _XLA and "RESOURCE_EXHAUSTED" in text:
        return "hared memory" not in text  # a kernel's shared memory does not depend on the batch size
    codes = (getattr(error, _WITH_CODE[name], None) for name in names & _WITH_CODE.keys())
    return OUT_OF_MEMORY_CODE in codes or _TEXTS.search(text) is not None


def _is_group(error: BaseException) -> bool:
    # ExceptionGroup needs Python 3.11.
    return any(each.__name__ == "BaseExceptionGroup" for each in type(error).__mro__)


def _library(error: BaseException, text: str) -> str:
    package = type(error).__module__.partition(".")[0]
    if "rmm" in text.lower():
        return "rmm"
    if package in ("torch", "cupy", "jax", "numba", "rmm", *_LIBRARIES):
        return _LIBRARIES.get(package, package)
    if type(error).__name__ in _XLA:
        return "jax"
    if "CPUAllocator" in text or "PyTorch" in text or re.search(r"CUDA (?:out of memory|(?:driver )?error: out)", text):
        return "torch"
    if isinstance(error, MemoryError) or "bad_alloc" in text:
        return "CUDA" if re.search("cuda", text, re.IGNORECASE) else "host"
    return "CUDA"


def _prefix(unit: str) -> str:
    return "" if unit.lower() == "bytes" else unit[0].upper()
