# SPDX-License-Identifier: Apache-2.0
"""The kinds of array work that are compared, all of them on n by n matrices, so that one size fits them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuscope.errors import InvalidArgument


@dataclass(frozen=True)
class Operation:
    """One kind of work on matrices with n rows and n columns.

    Attributes:
        inputs: matrices that it reads.
        arrays: matrices in memory at once: inputs, results, and workspace that libraries take.
        work: what one call gets done at size n and with so many bytes a number, in `unit`.
        unit: ``"FLOP"``, ``"B"`` moved at the least, or ``"items"``.
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


# Multiplications and additions: 2 n^3 of a product; 2.5 N log2 N of a transform of N real numbers, which is the half of
# the 5 N log2 N by which FFTW's authors count complex ones (https://www.fftw.org/speed/method.html).
OPERATIONS = (
    Operation("matmul", "Matrix multiplication", 2, 3, "FLOP", lambda n, size: 2.0 * n**3),
    Operation("elementwise", "Element-wise addition", 2, 3, "B", lambda n, size: 3.0 * n * n * size),
    Operation("reduction", "Sum of all elements", 1, 2, "B", lambda n, size: 1.0 * n * n * size),
    Operation("fft", "Fourier transform in two dimensions", 1, 4, "FLOP", lambda n, size: 5.0 * n * n * math.log2(n)),
    Operation("copy", "Copy", 1, 2, "B", lambda n, size: 2.0 * n * n * size),
    Operation("sort", "Sort of every row", 1, 6, "items", lambda n, size: 1.0 * n * n),
)


def chosen(names: Sequence[str] | None) -> tuple[Operation, ...]:
    """The operations of these names; all of them for None.

    Raises:
        InvalidArgument: there is no such operation, or none was named.
    """
    if names is None:
        return OPERATIONS
    known = {operation.name: operation for operation in OPERATIONS}
    for name in names:
        if name not in known:
            raise InvalidArgument(f"operations contains {name!r}; accepted are {', '.join(known)}")
    if not names:
        raise InvalidArgument(f"operations is empty; accepted are {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names))
