# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the parts that an out-of-memory report draws on: pools, a snapshot, a ledger, a history."""

from __future__ import annotations

from types import SimpleNamespace

from gpuscope.errors import NotAvailable
from gpuscope.frameworks.pools import Pool

GiB = 1 << 30


def pool(library="torch", allocated=0, reserved=0, largest_free=None, **more):
    return Pool(library, 0, allocated, reserved, largest_free_bytes=largest_free, **more)


class Ledger:
    """Prints and is made a dict of, as the real one."""

    def __str__(self):
        return "ledger of GPU 0"

    def to_dict(self):
        return {"rows": []}


def parts(*, used=None, total=None, process=None, pools=(), events=None):
    """What answers in place of gpuscope's functions, by their names."""

    def memory_snapshot(device):
        found = SimpleNamespace(
            device=device, used_bytes=used, total_bytes=total, process_bytes=process, pools=tuple(pools)
        )
        return SimpleNamespace(devices=(found,))

    def history_events():
        if events is None:
            raise NotAvailable("history_events is not available: never started")
        return events

    return {
        "memory_snapshot": memory_snapshot,
        "memory_ledger": lambda device, measure_context: Ledger(),
        "history_events": history_events,
    }
