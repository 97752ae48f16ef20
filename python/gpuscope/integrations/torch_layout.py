# SPDX-License-Identifier: Apache-2.0
"""Showing the core where things lie in torch's objects, by operators whose arguments are known."""

from __future__ import annotations

import sys
import threading
from typing import Any

from gpuscope._core import TorchCallbacks

_USER_NAME = "gpuscope: a range that the program named"


_learned = False


def shortfall() -> str | None:
    """Why torch's callbacks cannot be used here; None when they can.

    Learns with a few small operators, once; again when that failed.
    """
    global _learned
    if not _learned:
        reason = _study()
        if reason:
            return reason
        _learned = True
    return None


def _study() -> str:
    """On a thread of its own, where neither modes of the program nor a profiler of torch's are on."""
    reasons: list[str] = []

    def study() -> None:
        try:
            reasons.append(TorchCallbacks.study(_USER_NAME, _call_and_tell))
        except Exception as error:
            reasons.append(repr(error))

    if getattr(sys.modules["torch"].__spec__, "_initializing", False):
        study()  # this thread imports torch: another that imports parts of it would wait for this one
        return reasons[0]
    thread = threading.Thread(target=study, name="gpuscope-torch")
    thread.start()
    thread.join()
    return reasons[0] if reasons else "the operators that it is learned from could not be called"


def _call_and_tell() -> tuple[list[Any], list[Any], list[Any]]:
    """Calls operators on the CPU, then tells of them as `TorchCallbacks.study` wants it."""
    import torch

    # Sizes, and numbers of types, that are not likely to stand anywhere else.
    a = torch.empty((3, 5, 7), dtype=torch.float64, device="cpu", requires_grad=True)
    b = torch.empty((5, 7), dtype=torch.int32, device="cpu")
    c = torch.empty((2, 3, 1, 5, 2, 7), dtype=torch.bool, device="cpu")
    types = {torch.float64: 7, torch.int32: 3, torch.bool: 11}  # c10::ScalarType
    with torch.enable_grad():
        results = [torch.mul(a, b), torch.neg(a), torch.exp(a)]
    with torch.no_grad():
        results.append(torch.logical_not(c))
    with torch.autograd.profiler.record_function(_USER_NAME):
        pass
    tensors = [a, b, c, *results]
    told = [(tensor._cdata, list(tensor.shape), types[tensor.dtype]) for tensor in tensors]
    calls = [
        ("aten::mul", [0, 1], True, 3),
        ("aten::neg", [0], True, 4),
        ("aten::exp", [0], True, 5),
        ("aten::logical_not", [2], False, 6),
    ]
    return told, calls, tensors
