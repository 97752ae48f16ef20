# SPDX-License-Identifier: Apache-2.0
"""What ``torch.cuda.memory._snapshot()`` returns, by hand and small."""

from __future__ import annotations

MIB = 1 << 20
BASE = 0x7F0000000000


def frames(*lines):
    """Innermost first, each "file:line function"."""
    return [
        {"filename": text.partition(":")[0], "line": int(text.partition(":")[2].split()[0]), "name": text.split()[-1]}
        for text in lines
    ]


FORWARD = frames("/site-packages/torch/nn/modules/linear.py:134 forward", "/home/me/train.py:12 step")
LOAD = frames("/home/me/train.py:5 load")


def event(action, address, size, time_us, stack=None):
    return {
        "action": action,
        "addr": BASE + address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": stack or [],
        "compile_context": "N/A",
        "user_metadata": "",
    }


def snapshot():
    """20 MiB held, 4 of them in use at the end; 1 was taken before the history began."""
    trace = [
        event("segment_alloc", 0, 20 * MIB, 10, LOAD),
        event("alloc", 0, 3 * MIB, 11, LOAD),
        event("alloc", 4 * MIB, 2 * MIB, 12, FORWARD),
        event("free_requested", 4 * MIB, 2 * MIB, 13),
        event("free_completed", 4 * MIB, 2 * MIB, 14),
        event("oom", 0, 900 * MIB, 15, FORWARD),
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 20 * MIB,
        "allocated_size": 4 * MIB,
        "active_size": 4 * MIB,
        "requested_size": 4 * MIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": LOAD,
        "blocks": [{"address": BASE, "size": 3 * MIB, "requested_size": 3 * MIB, "state": "active_allocated"}],
    }
    graph = {**segment, "address": BASE + 64 * MIB, "total_size": 2 * MIB, "allocated_size": 0}
    graph["segment_pool_id"] = (1, 0)
    return {
        "segments": [segment, graph],
        "device_traces": [trace, []],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
    }
