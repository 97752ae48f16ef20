# SPDX-License-Identifier: Apache-2.0
"""Which errors say that memory ran out, and what they say was asked for."""

from __future__ import annotations

import sys

import pytest

from gpuscope.devices import HOST
from gpuscope.errors import CudaError
from gpuscope.memory.limits.out_of_memory_errors import Request, is_out_of_memory, may_be_out_of_memory, request_of

GiB = 1 << 30


def of(name, *bases, module="builtins", **fields):
    return type(name, bases or (RuntimeError,), {"__module__": module, **fields})


TORCH = of("OutOfMemoryError", module="torch")
CUPY = of("OutOfMemoryError", MemoryError, module="cupy.cuda.memory")
CUPY_RUNTIME = of("CUDARuntimeError", module="cupy_backends.cuda.api.runtime", status=2)
JAX = of("XlaRuntimeError", module="jaxlib.xla_extension")
NUMBA = of("CudaAPIError", Exception, module="numba.cuda.cudadrv.driver", code=2)
NUMBA_OTHER = of("CudaAPIError", Exception, module="numba.cuda.cudadrv.driver", code=700)

KNOWN = {
    "torch": (
        TORCH("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 139.81 GiB of which ..."),
        Request("torch", 20 * GiB, 1),
    ),
    "torch, small": (TORCH("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has"), Request("torch", 2 << 20, 0)),
    "torch, asynchronous": (
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors"),
        Request("torch", None, None),
    ),
    "torch, expandable segments": (
        RuntimeError("CUDA driver error: out of memory"),
        Request("torch", None, None),
    ),
    "torch, host": (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
        ),
        Request("torch", 1 << 52, HOST),
    ),
    "cuBLAS": (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        Request("CUDA", None, None),
    ),
    "Triton": (RuntimeError("Triton Error [CUDA]: out of memory"), Request("CUDA", None, None)),
    "PyCUDA": (RuntimeError("cuMemAlloc failed: out of memory"), Request("CUDA", None, None)),
    "cuFFT": (RuntimeError("CUFFT_ALLOC_FAILED"), Request("CUDA", None, None)),
    "NCCL": (RuntimeError("ncclUnhandledCudaError: Cuda failure 2 'out of memory'"), Request("CUDA", None, None)),
    "cuDNN": (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Request("CUDA", None, None)),
    "CuPy": (
        CUPY("Out of memory allocating 1,099,511,627,776 bytes (allocated so far: 512 bytes)."),
        Request("cupy", 1 << 40, None),
    ),
    "CuPy's runtime": (CUPY_RUNTIME("cudaErrorMemoryAllocation: out of memory"), Request("cupy", None, None)),
    "JAX": (
        JAX("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1099511627776 bytes."),
        Request("jax", 1 << 40, None),
    ),
    "Numba": (NUMBA("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"), Request("numba", None, None)),
    "cuda-python": (
        RuntimeError("CUDA error code=2(b'CUDA_ERROR_OUT_OF_MEMORY')"),
        Request("CUDA", None, None),
    ),
    "RMM": (
        MemoryError("std::bad_alloc: out_of_memory: CUDA error (failed to allocate 1024 bytes) at: /rmm/mr.hpp:60"),
        Request("rmm", 1024, None),
    ),
    "gpuscope": (
        CudaError("cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc", 2),
        Request("CUDA", None, None),
    ),
    "NumPy": (MemoryError("Unable to allocate 8.00 GiB for an array with shape"), Request("host", 8 * GiB, HOST)),
    "Python": (MemoryError(), Request("host", None, HOST)),
    "no unit": (MemoryError("cannot allocate, bytes requested=1000"), Request("host", None, HOST)),
    "a comma alone": (MemoryError("failed to allocate memory, B"), Request("host", None, HOST)),
    "no number that could be": (MemoryError(f"cannot allocate {'9' * 400} bytes"), Request("host", None, HOST)),
}

OTHERS = {
    "illegal access": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "Numba's other codes": NUMBA_OTHER("[700] Call to cuLaunchKernel results in CUDA_ERROR_ILLEGAL_ADDRESS"),
    "shared memory of a kernel": JAX("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 262144"),
    "JAX's other errors": JAX("INVALID_ARGUMENT: shapes"),
    "our other codes": CudaError("cuMemAlloc failed", "cuMemAlloc", 1),
    "other libraries' 2": RuntimeError("cuptiSubscribe failed with CUPTI_ERROR_INVALID_DEVICE (2)"),
    "convolution without an engine": RuntimeError("FIND was unable to find an engine to execute this computation"),
    "Triton's resources": RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
    "a word in a text": KeyError("memory"),
    "Ctrl-C": KeyboardInterrupt(),
    "none": None,
}


@pytest.mark.parametrize("error", [error for error, _ in KNOWN.values()], ids=KNOWN)
def test_out_of_memory_is_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(("error", "request_"), KNOWN.values(), ids=KNOWN)
def test_what_was_asked_for_is_read(error, request_):
    assert request_of(error) == request_


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_an_error_raised_from_it_counts():
    error = ValueError("step 3")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


def while_handling(error, make):
    try:
        try:
            raise error
        except BaseException:
            raise make  # noqa: B904 - as handlers do
    except BaseException as found:
        return found


def test_a_library_error_in_its_wake_counts():
    assert is_out_of_memory(while_handling(MemoryError(), RuntimeError("launch failed")))


def test_a_mistake_in_its_handler_does_not_count():
    assert not is_out_of_memory(while_handling(MemoryError(), KeyError("batch")))


def test_a_chain_that_bites_its_tail_ends():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are of Python 3.11")
@pytest.mark.parametrize(
    ("members", "expected"), [([MemoryError(), TORCH("a")], True), ([MemoryError(), KeyError()], False)]
)
def test_a_group_counts_when_all_of_it_does(members, expected):
    assert is_out_of_memory(ExceptionGroup("ranks", members)) is expected  # noqa: F821


def test_a_convolution_without_an_engine_may_be_in_its_wake():
    assert may_be_out_of_memory(OTHERS["convolution without an engine"])
    assert not may_be_out_of_memory(OTHERS["illegal access"])
