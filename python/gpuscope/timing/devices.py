# SPDX-License-Identifier: Apache-2.0
"""GPUs in every form that users have, turned into ordinals; no framework is imported for it."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Any

from gpuscope import streams
from gpuscope.errors import InvalidArgument

ACCEPTED = "an ordinal from 0, a name as 'cuda:0', and devices of PyTorch, CuPy, JAX, Numba and cuda-python"


def ordinal_of(device: object) -> int:
    """The ordinal of a GPU, as this process counts them.

    Args:
        device: None for the current one, an ordinal, ``"cuda"``, ``"cuda:1"``, or a device object.

    Raises:
        InvalidArgument: it is no GPU.
    """
    if device is None:
        return streams.current().device
    ordinal = find_ordinal(device)
    if ordinal is None or ordinal < 0:
        raise InvalidArgument(f"device is {device!r}; accepted are {ACCEPTED}")
    return ordinal


def find_ordinal(device: object) -> int | None:
    """The ordinal that an object stands for; None when it is no GPU."""
    if isinstance(device, Integral) and not isinstance(device, bool):
        return int(device)
    if isinstance(device, str):
        match = re.fullmatch(r"(?:cuda|gpu)(?::(\d+))?", device)
        return None if match is None else _or_current(match[1])
    return _of_object(device)


def _of_object(device: Any) -> int | None:
    package = type(device).__module__.partition(".")[0]
    if package == "torch" and hasattr(device, "index") and getattr(device, "type", "") == "cuda":
        return _or_current(device.index)
    if hasattr(device, "local_hardware_id") and getattr(device, "platform", "") in {"gpu", "cuda"}:  # JAX
        return int(device.local_hardware_id)
    if package in {"cupy", "numba", "numba_cuda"} and isinstance(getattr(device, "id", None), Integral):
        return int(device.id)
    if package == "cuda" and isinstance(getattr(device, "device_id", None), Integral):
        return int(device.device_id)
    return None


def _or_current(index: Any) -> int:
    return streams.current().device if index is None else int(index)
