# SPDX-License-Identifier: Apache-2.0
"""Kinds of work on matrices, and a common interface of NumPy, PyTorch and CuPy for them."""

from __future__ import annotations

import importlib
import math
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope.arguments import BackendName, check_choice
from gpuscope.errors import NotAvailable
from gpuscope.memory.host import available_memory

Processor = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Operation:
    """One kind of work on matrices with n rows and n columns.

    Attributes:
        inputs: number of input matrices.
        arrays: matrices in memory at once: inputs, results, and the libraries' workspace.
        work: work of one call at size n, with so many bytes per number, in `unit`.
        unit: ``"FLOP"``, ``"B"`` (the least bytes moved), or ``"items"``.
    """

    name: str
    title: str
    inputs: int
    arrays: int
    unit: Literal["FLOP", "B", "items"]
    work: Callable[[int, int], float]

    def memory(self, n: int, itemsize: int) -> int:
        """Bytes of memory that a call needs, on the CPU as on the GPU."""
        return self.arrays * n * n * itemsize


# Multiplications and additions: 2 n^3 of a product; 2.5 N log2 N of a transform of N real numbers, half of the
# 5 N log2 N that FFTW's authors count for complex numbers (https://www.fftw.org/speed/method.html).
OPERATIONS = (
    Operation("matmul", "Matrix multiplication", 2, 3, "FLOP", lambda n, size: 2.0 * n**3),
    Operation("elementwise", "Element-wise addition", 2, 3, "B", lambda n, size: 3.0 * n * n * size),
    Operation("reduction", "Sum of all elements", 1, 2, "B", lambda n, size: 1.0 * n * n * size),
    Operation("fft", "Fourier transform in two dimensions", 1, 4, "FLOP", lambda n, size: 5.0 * n * n * math.log2(n)),
    Operation("copy", "Copy", 1, 2, "B", lambda n, size: 2.0 * n * n * size),
    Operation("sort", "Sort of every row", 1, 6, "items", lambda n, size: 1.0 * n * n),
)


# Functions of NumPy and CuPy with other names; PyTorch differs in two more, see `TorchBackend.function`.
_FUNCTIONS = {"elementwise": "add", "reduction": "sum", "fft": "fft.rfft2"}


class Backend:
    """A library on one processor: NumPy, or CuPy, which has the same functions.

    Attributes:
        library: name and version, as ``"NumPy 2.3.0"``.
        device: the processor's name.
        processor: ``"cpu"`` or ``"gpu"``.
    """

    def __init__(self, module: Any, processor: Processor, device: str) -> None:
        self._module = module
        self.processor = processor
        self.device = device
        self.library = f"{'NumPy' if processor == 'cpu' else 'CuPy'} {module.__version__}"

    def take(self, host: NDArray[Any]) -> Any:
        """The matrix in this library's memory."""
        return self._module.asarray(host)

    def give(self, value: Any) -> Any:
        """A result in the host's memory."""
        return value if self.processor == "cpu" else self._module.asnumpy(value)

    def function(self, operation: str) -> Callable[..., Any]:
        """The library's function for an operation, on matrices from `take`."""
        function: Callable[..., Any] = attrgetter(_FUNCTIONS.get(operation, operation))(self._module)
        return function

    def free_bytes(self) -> int:
        """Bytes of memory that can be allocated."""
        if self.processor == "gpu":
            return self._free_gpu_bytes()
        return next((size for size in available_memory() if size is not None), sys.maxsize)

    def _free_gpu_bytes(self) -> int:
        pool = self._module.get_default_memory_pool()
        return int(self._module.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes())


class TorchBackend(Backend):
    """PyTorch, on the CPU or on its current GPU."""

    def __init__(self, torch: Any, processor: Processor, device: str) -> None:
        super().__init__(torch, processor, device)
        self.library = f"PyTorch {torch.__version__}"

    def take(self, host: NDArray[Any]) -> Any:
        """The matrix in this library's memory."""
        return self._module.from_numpy(host).to("cpu" if self.processor == "cpu" else "cuda")

    def give(self, value: Any) -> Any:
        """A result in the host's memory."""
        return value.cpu()

    def function(self, operation: str) -> Callable[..., Any]:
        """The library's function for an operation, on matrices from `take`."""
        if operation == "copy":
            return self._module.clone  # type: ignore[no-any-return]
        if operation == "sort":
            sort = self._module.sort
            return lambda matrix: sort(matrix)[0]
        return super().function(operation)

    def _free_gpu_bytes(self) -> int:
        cuda = self._module.cuda
        return int(cuda.mem_get_info()[0]) + int(cuda.memory_reserved() - cuda.memory_allocated())


def choose(backend: BackendName | None) -> tuple[Backend, Backend | None, str]:
    """The CPU's library, the GPU's library or None, and why there is none; for `backend` see `explore`."""
    check_choice("backend", backend, (*get_args(BackendName), None))
    if backend in ("torch", "cupy") and _module(backend) is None:
        raise NotAvailable(
            f"{backend} is not installed; pip install {'torch' if backend == 'torch' else 'cupy-cuda13x'}"
        )
    cpu = _cpu_name()
    on_cpu: Backend = Backend(np, "cpu", cpu)
    if backend == "torch":
        on_cpu = TorchBackend(_module("torch"), "cpu", cpu)
    if backend == "numpy":
        return on_cpu, None, "NumPy computes on the CPU only"
    reasons = []
    for name, find in (("torch", _torch_gpu), ("cupy", _cupy_gpu)):
        if backend in (None, name):
            found, why = find()
            if found is not None:
                return on_cpu, found, ""
            reasons.append(why)
    return on_cpu, None, "; ".join(reasons)


def _torch_gpu() -> tuple[Backend | None, str]:
    torch = _module("torch")
    if torch is None:
        return None, "PyTorch is not installed"
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return None, "PyTorch is installed in a build without CUDA"
    if not torch.cuda.is_available():
        return None, "PyTorch finds no GPU"
    return TorchBackend(torch, "gpu", torch.cuda.get_device_name()), ""


def _cupy_gpu() -> tuple[Backend | None, str]:
    cupy = _module("cupy")
    if cupy is None:
        return None, "CuPy is not installed"
    try:
        facts = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    except Exception as error:
        return None, f"CuPy finds no GPU: {error}"
    return Backend(cupy, "gpu", facts["name"].decode(errors="replace")), ""


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    usable = len(os.sched_getaffinity(0))
    return f"{names[0] if names else platform.machine()}, {usable} logical CPU{'s' if usable != 1 else ''}"
