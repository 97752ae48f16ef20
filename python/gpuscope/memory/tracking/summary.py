# SPDX-License-Identifier: Apache-2.0
"""`memory_summary`: what torch.cuda.memory_summary tells of torch, of everything that holds memory."""

from __future__ import annotations

from typing import Any

from gpuscope.memory.events import HOST
from gpuscope.memory.ordinals import ordinal_of
from gpuscope.memory.snapshots.snapshot import memory_snapshot
from gpuscope.memory.tracking.reading import torch_counters
from gpuscope.memory.tracking.summary_text import device_text, host_text


def memory_summary(device: object = None, abbreviated: bool = False) -> str:
    """The memory of this process as a table for each GPU and some lines about the host.

    A table has what each library's allocator holds now, held at its peak, handed out and took back in total, as far as
    it counts these; below it what the driver counts for the process, and advice where the figures suggest some. Does
    not wait for the GPU and makes no CUDA context.

    Args:
        device: None for all GPUs that this process uses, an ordinal, ``"cuda:1"`` or a ``torch.device``; ``"cpu"`` for
            the host alone.
        abbreviated: only what is allocated and reserved, without advice.

    Raises:
        InvalidArgument: `device` is no device.
        NotAvailable: this process has GPUs, but not this one.
    """
    ordinal = None if device is None else ordinal_of(device)
    snapshot = memory_snapshot(None if ordinal == HOST else ordinal)
    devices = () if ordinal == HOST else snapshot.devices
    parts = [device_text(found, _counters(found.device), abbreviated=abbreviated) for found in devices]
    if not parts and (ordinal != HOST or snapshot.why):
        parts.append(f"No GPU: {snapshot.why}" if snapshot.why else "This process uses no GPU yet.")
    return "\n\n".join([*parts, host_text(snapshot.host)])


def _counters(device: int) -> dict[str, Any]:
    try:
        return torch_counters(device) or {}
    except Exception:  # an allocator that does not count, of which the snapshot's notes tell
        return {}
