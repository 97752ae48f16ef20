# SPDX-License-Identifier: Apache-2.0
"""The Flight Recorder of torch.distributed: a ring of the latest collectives of all process groups of a process.

Its numbers of calls are the same on all ranks. It fills in for NCCL's NVTX ranges, which are missing if NCCL began
before the profiler, and for gloo, which has none.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import Any

FACT = "torch.flight_recorder"
"""The row of a recording's info with the calls, as JSON."""

_ITEM_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat", "UInt64"), 8),
    **dict.fromkeys(("Float", "Int", "ComplexHalf", "UInt32"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
}
_FLOAT_8 = "Float8"  # the start of several types
_OUTPUTS = "reduce_scatter"  # NCCL counts the message by its output


@dataclass(frozen=True)
class RecordedCall:
    """A collective.

    Attributes:
        group: name of the process group, and its ranks if they are known.
        size: number of its ranks; -1 if unknown.
        sequence: number of the call in its group; sends and receives count apart.
        name: as "nccl:all_reduce".
        bytes: the message of one rank as NCCL counts it; -1 if unknown.
        created_ns: time of the call, ns since the epoch.
    """

    group: str
    size: int
    sequence: int
    name: str
    bytes: int
    created_ns: int


def dump_flight_recorder(since_ns: int) -> str | None:
    """The calls since then as JSON; None if there are none, or torch has no recorder."""
    distributed: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_fr_trace_json", None) or getattr(distributed, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    try:
        document = json.loads(dump())
    except (RuntimeError, ValueError, TypeError):  # no process group, or another form
        return None
    calls = [
        [entry["process_group"][0], _sequence(entry), entry["profiling_name"], _bytes(entry), entry["time_created_ns"]]
        for entry in document.get("entries", [])
        if entry.get("time_created_ns", 0) >= since_ns and entry.get("process_group")
    ]
    return json.dumps(calls) if calls else None


def write_flight_recorder(path: str) -> bool:
    """Writes the recorder's pickle, with Python lines, as torch's watchdog does; False if torch has no recorder.

    Raises:
        OSError: the file cannot be written.
    """
    distributed: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_fr_trace", None) or getattr(distributed, "_dump_nccl_trace", None)
    try:
        data = dump() if dump is not None else b""
    except (RuntimeError, TypeError):  # no process group, or another form
        return False
    if not data:
        return False
    with open(path, "wb") as file:
        file.write(data)
    return True


def read_flight_recorder(calls: str, distributed: str) -> list[RecordedCall]:
    """The calls in order of time; none if a text has another form.

    Args:
        calls: of `dump_flight_recorder`.
        distributed: torch's facts about its process groups, as in its traces (``distributedInfo``).
    """
    try:
        ranks = {str(group["pg_name"]): group["ranks"] for group in json.loads(distributed).get("pg_config", [])}
        found = [
            RecordedCall(
                f"{group} {ranks.get(group, '')}".strip(),
                len(ranks[group]) if group in ranks else -1,
                int(sequence),
                str(name),
                int(size),
                int(created),
            )
            for group, sequence, name, size, created in json.loads(calls)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(found, key=lambda call: call.created_ns)


def _sequence(entry: dict[str, Any]) -> int:
    return int(entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"])


def _bytes(entry: dict[str, Any]) -> int:
    side = "output" if _OUTPUTS in entry["profiling_name"] else "input"
    sizes, types = entry.get(f"{side}_sizes") or [], entry.get(f"{side}_dtypes") or []
    items = list(map(item_bytes, types))
    if not sizes or len(sizes) != len(types) or -1 in items:
        return -1
    return sum(math.prod(shape) * item for shape, item in zip(sizes, items, strict=True))


def item_bytes(kind: str) -> int:
    """The size of an element of a type, as "BFloat16"; -1 if unknown."""
    return 1 if kind.startswith(_FLOAT_8) else _ITEM_BYTES.get(kind, -1)
