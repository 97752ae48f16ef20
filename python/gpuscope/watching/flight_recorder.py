# SPDX-License-Identifier: Apache-2.0
"""Reads dumps of PyTorch's Flight Recorder, pickled or as JSON, without running code in them."""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Mapping
from typing import Any

from gpuscope.errors import CorruptTrace
from gpuscope.memory.history.plain_pickle import Damaged, load_plain_pickle
from gpuscope.watching.black_box import RankCall
from gpuscope.watching.stacks import PythonFrame, PythonThread

_KNOWN = re.compile(r"2\.\d+")
_RANKS = re.compile(r"[\d, \[\]]*")
_MOST_RANKS = 1 << 20


def read_flight_recorder(path: str, data: bytes) -> list[RankCall]:
    """The collectives of a dump, in order of entering. Point-to-point operations are left out.

    Raises:
        CorruptTrace: it is cut off, of another version, or no dump.
    """
    try:
        dump = json.loads(data) if data[:1] == b"{" else load_plain_pickle(io.BytesIO(data))
    except Damaged as error:
        raise CorruptTrace(f"{path}: no readable dump: {error}", path, error.offset) from None
    except (ValueError, RecursionError) as error:
        raise CorruptTrace(f"{path}: no readable JSON: {error}", path, 0) from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), (list, tuple)):
        raise CorruptTrace(f"{path}: no dump of the Flight Recorder: it has no list of entries", path, 0)
    if not _KNOWN.fullmatch(version := str(dump.get("version"))):
        raise CorruptTrace(f"{path}: version {version[:20]!r} of the Flight Recorder; 2.x can be read", path, 0)
    groups = dump.get("pg_config")
    groups = groups if isinstance(groups, dict) else {}
    return [call for entry in dump["entries"] if (call := _call(entry, groups)) is not None]


def is_flight_recorder(data: bytes) -> bool:
    """Whether bytes look like a dump."""
    return (data[:1] == b"\x80" or data[:1] == b"{") and b"pg_config" in data and b"entries" in data


def _call(entry: Any, groups: Mapping[str, Any]) -> RankCall | None:
    if not isinstance(entry, dict) or entry.get("is_p2p"):
        return None
    number = _integer(entry.get("collective_seq_id"))
    if number is None:
        return None
    name, label = _group(entry.get("process_group"))
    group = groups.get(name)
    if not isinstance(group, dict) and len(groups) == 1:  # gloo's default group has an empty name there
        group = next(iter(groups.values()))
    created = _integer(entry.get("time_created_ns"))
    thread = PythonThread(False, tuple(_frames(entry.get("frames"))))
    sizes, types = (entry.get(f"input_{what}") for what in ("sizes", "dtypes"))
    text = f"{sizes} {' '.join(map(str, types))}" if sizes and isinstance(types, (list, tuple)) else str(sizes or "")
    return RankCall(
        communicator=label or name or "default",
        number=number,
        kind=str(entry.get("profiling_name", "collective")).rpartition(":")[2][:80],
        size=text[:120],
        since_ns=created if created and created > 0 else None,
        is_done=entry.get("state") == "completed" or entry.get("retired") is True,
        place=str(thread.place) if thread.place else None,
        members=_members(str(group.get("ranks", ""))) if isinstance(group, dict) else None,
    )


def _group(value: Any) -> tuple[str, str]:
    """Name and description."""
    if isinstance(value, (list, tuple)) and value:
        name, label = str(value[0]), str(value[1]) if len(value) > 1 else ""
        return name, "" if label == "undefined" else label
    return str(value if value is not None else ""), ""


@functools.lru_cache(maxsize=1024)
def _members(text: str) -> tuple[int, ...] | None:
    if len(text) > 8 * _MOST_RANKS or not _RANKS.fullmatch(text):
        return None
    return tuple(int(rank) for rank in re.findall(r"\d{1,9}", text)) or None


def _frames(frames: Any) -> list[PythonFrame]:
    rows = [frame for frame in frames[:64] if isinstance(frame, dict)] if isinstance(frames, (list, tuple)) else []
    return [
        PythonFrame(str(row.get("filename", "")), _integer(row.get("line")) or 0, str(row.get("name", "")))
        for row in rows
    ]


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
