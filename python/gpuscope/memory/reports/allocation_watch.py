# SPDX-License-Identifier: Apache-2.0
"""The watch of the driver's allocations, together with what it needs of the libraries around it."""

from __future__ import annotations

import threading

from gpuscope import _core
from gpuscope.memory.reports.way import WayForTorch

_lock = threading.Lock()
_users = 0
_way = WayForTorch()


def watch_allocations(stacks: bool = True) -> str:
    """Keeps a ledger of what the CUDA driver gives out in this process, until `unwatch_allocations`.

    A torch.profiler that asks for GPU work meanwhile gets CUPTI for itself: the ledger then has a gap.

    Args:
        stacks: whether the Python frames of each allocation are kept.

    Returns:
        "" or why it cannot be had: no driver, no CUPTI, or another tool that holds it.
    """
    global _users
    with _lock:
        why = _core.watch_allocations(stacks)
        if not why:
            _users += 1
            if _users == 1:
                _way.open()
        return why


def unwatch_allocations() -> None:
    """Once for each `watch_allocations` that returned ""; the ledger ends with the last."""
    global _users
    with _lock:
        if _users == 0:
            return
        _users -= 1
        if _users == 0:
            _way.close()
        _core.unwatch_allocations()
