# SPDX-License-Identifier: Apache-2.0
"""Which GPU is meant, and whether there is one."""

from __future__ import annotations

import functools
import re
from typing import Any

from gpuscope import _core, streams
from gpuscope.errors import GpuscopeError, InvalidArgument

HOST = -1  # in place of a GPU's ordinal

_ACCEPTED = "None for the current GPU, an ordinal from 0, 'cuda', 'cuda:0', 'cpu', and devices of PyTorch"


@functools.cache
def why_no_gpu() -> str:
    """Why there is no GPU whose memory could be read; empty when there is one. Makes no CUDA context."""
    try:
        _core.find_device(0)
    except GpuscopeError as error:
        return str(error)
    return ""


def check_ordinal(device: object) -> None:
    """Raises InvalidArgument when that is no ordinal of a GPU."""
    if not isinstance(device, int) or isinstance(device, bool) or device < 0:
        raise InvalidArgument(f"device is {device!r}; accepted are whole numbers from 0")


def ordinal_of(device: object) -> int:
    """The ordinal of a GPU as this process counts them; HOST for "cpu" and for any GPU where there is none.

    Args:
        device: None for the current GPU, an ordinal, ``"cuda"``, ``"cuda:1"``, ``"cpu"`` or a ``torch.device``.

    Raises:
        InvalidArgument: it is no device.
        NotAvailable: this process has GPUs, but not this one.
    """
    kind, index = _kind_and_index(device)
    if kind == "cpu" or why_no_gpu():
        return HOST
    if index is None:
        return _current()
    _core.find_device(index)
    return index


def _kind_and_index(device: Any) -> tuple[str, int | None]:
    if device is None:
        return "cuda", None
    if hasattr(device, "__index__") and not isinstance(device, bool) and device.__index__() >= 0:
        return "cuda", device.__index__()
    if isinstance(device, str) or type(device).__module__.partition(".")[0] == "torch":
        match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", str(device))
        if match:
            return match[1], None if match[2] is None else int(match[2])
    raise InvalidArgument(f"device is {streams.shown(device)}; accepted are {_ACCEPTED}")


def _current() -> int:
    try:
        return streams.current().device
    except GpuscopeError:
        return 0
