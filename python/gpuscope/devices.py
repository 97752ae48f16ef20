# SPDX-License-Identifier: Apache-2.0
"""GPUs in every form that users have, turned into ordinals; no framework is imported for it."""

from __future__ import annotations

import functools
import re
from numbers import Integral
from typing import Any

from gpuscope import _core, streams
from gpuscope.errors import GpuscopeError, InvalidArgument

ACCEPTED = (
    "an ordinal from 0, a name as 'cuda:0', a UUID as 'GPU-...', "
    "and devices of PyTorch, CuPy, JAX, Numba and cuda-python"
)
HOST = -1
"""The value for the host's memory instead of a GPU's ordinal."""
LARGEST = 2**31 - 1
"""The largest ordinal that the driver's type holds."""

_NAME = re.compile(r"(?:cuda|gpu)(?::([0-9]{1,10}))?", re.IGNORECASE)
_CPU = re.compile(r"cpu(?::\d+)?")
_UUID = re.compile(r"GPU-[0-9a-f-]+", re.IGNORECASE)


@functools.cache
def why_no_gpu() -> str:
    """Why this process cannot use a GPU; empty when it can. Makes no CUDA context."""
    try:
        _core.find_device(0)
    except GpuscopeError as error:
        return str(error)
    return ""


def current() -> int:
    """The ordinal of the GPU that the program works on now; 0 without a GPU."""
    try:
        return streams.current().device
    except GpuscopeError:
        return 0


def ordinal_of(device: object) -> int:
    """The ordinal of a GPU, as this process counts them.

    Args:
        device: None for the current one, an ordinal, ``"cuda"``, ``"cuda:1"``, ``"gpu:1"``, a UUID, or a device object
            of a framework.

    Raises:
        InvalidArgument: it is not a GPU.
    """
    ordinal = current() if device is None else find_ordinal(device)
    if ordinal is None or not 0 <= ordinal <= LARGEST:
        raise InvalidArgument(f"device is {streams.shown(device)}; accepted are {ACCEPTED}")
    return ordinal


def ordinal_or_host(device: object) -> int:
    """The ordinal of a GPU; HOST for the CPU, and for any GPU where there is none.

    Args:
        device: as for `ordinal_of`, or ``"cpu"``, or a CPU device of PyTorch or JAX.

    Raises:
        InvalidArgument: it is not a device.
        NotAvailable: this process has GPUs, but not this one.
    """
    if is_cpu(device):
        return HOST
    ordinal = ordinal_of(device)
    if why_no_gpu():
        return HOST
    _core.find_device(ordinal)
    return ordinal


def find_ordinal(device: object) -> int | None:
    """The ordinal that an object stands for, which may be below 0; None if it is not a GPU."""
    if isinstance(device, Integral) and not isinstance(device, bool):
        return int(device)
    if isinstance(device, str):
        if match := _NAME.fullmatch(device):
            return _or_current(match[1])
        return _of_uuid(device) if _UUID.fullmatch(device) else None
    return _of_object(device)


def is_cpu(device: Any) -> bool:
    """Whether it names the CPU: ``"cpu"``, or a CPU device of PyTorch or JAX."""
    if isinstance(device, str):
        return _CPU.fullmatch(device) is not None
    return getattr(device, "type", getattr(device, "platform", None)) == "cpu"


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


def _of_uuid(uuid: str) -> int | None:
    found = [each["ordinal"] for each in _core.environment()["devices"] if each["uuid"].lower() == uuid.lower()]
    return int(found[0]) if found else None


def _or_current(index: Any) -> int:
    return current() if index is None else int(index)
