# SPDX-License-Identifier: Apache-2.0
"""Logs of GPUs as recordings, and recordings as logs.

The tables ``device_sample`` and ``device_counter`` contain NVML's readings, as in the recording of a program. They hold
power, clocks, temperature, use, memory, energy and throttled time. They hold no links and no host. On a machine without
a GPU the rows of other logs are stored as a fact. GPUs have NVML's numbers in a log, CUDA's in a recording.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from gpuscope import _core
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.monitor.lines import read_json
from gpuscope.monitor.schema import NOT_A_CELL, RARE, SCHEMA, SLOW, WHY, Row, before, index_of, pack, text_of, time_of
from gpuscope.paths import replacing
from gpuscope.text import one_line

_SAMPLES, _COUNTERS = "device_sample", "device_counter"
_BY_AGE = {age: [column for column in SCHEMA if column.age == age] for age in (RARE, SLOW)}
_STORED = {
    _SAMPLES: [column for column in SCHEMA if column.stored and not column.age],
    _COUNTERS: [*chain(*_BY_AGE.values())],
}
_DEVICE = ("ordinal", "name", "uuid", "memory_bytes")
# Columns that recordings read rarely: a row with only these is not a sample of its own.
_SELDOM = {"power_limit_default_w", "sm_max_hz", "throttle_reasons"}
_NOT_READ = -1
_MOST_BYTES = 1 << 62
_IS_LOG, _HOST = "monitor.log", "monitor.host"  # the second: rows of other logs


def check_file(path: Path) -> None:
    """Raises InvalidArgument if the file is not a log. A recording of a program is not one."""
    if path.exists() and path.stat().st_size:
        _open_log(path)


def take_lines(lines: Path, path: Path) -> None:
    """Appends JSON lines to a .gscope.

    Raises:
        GpuscopeError: the file cannot be written; the file is as it was.
    """
    exists = path.exists() and path.stat().st_size
    tables = _Tables(_open_log(path) if exists else _core.make_store({}, [""], []))
    for row in read_json(lines):
        with contextlib.suppress(*NOT_A_CELL):  # not a line of a monitor
            tables.add(row)
    with replacing(path) as file:
        _core.write_gscope(tables.store(), file.write)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of other logs: one for each time at which power, or another frequent figure, was read.

    An empty row stands for rows that were lost when a file was cut.

    Raises:
        InvalidArgument: it is no recording, or has no samples of GPUs.
        GpuscopeError: it cannot be read.
    """
    store = _open(path)
    info = store.info()
    is_log = _IS_LOG in info
    if not is_log and not len(store.columns(_SAMPLES)["start_ns"]) and "file.truncated_at" not in info:
        raise InvalidArgument(f"path is {str(path)!r}, a recording without samples of GPUs (device_samples=True)")
    if "file.lost_rows" in info:
        yield {}
    yield from _host_rows(store)
    identities = {number: _identity(*device) for number, device in _devices(store).items()}
    latest: dict[int, Row] = {}  # figures of each GPU
    counted: dict[int, Row] = {}  # its counters
    counted_ns: dict[int, dict[str, int]] = {}  # when they were read, by the column of their age
    for table, (time_ns, device, *values) in _readings(store):
        read = [(column, value) for column, value in zip(_STORED[table], values, strict=True) if value >= 0]
        cells = {column.name: column.unpack(value) for column, value in read}
        if table == _COUNTERS:
            counted.setdefault(device, {}).update(cells)
            counted_ns.setdefault(device, {}).update((column.age, time_ns) for column, _ in read)
            continue
        row = {"gpu_idx": device, "time_ns": time_ns, WHY: {}, **identities.get(device, {})}
        if is_log and not cells:
            yield row | {WHY: {"all": "nothing of it was read"}}
        # A recording reads figures at several intervals. A row of a log has all of them.
        figures = latest[device] = cells if is_log else latest.get(device, {}) | cells
        if not cells.keys() <= _SELDOM:
            moments = counted_ns.get(device, {})
            slow_ns = moments.get(SLOW, moments.get(RARE, time_ns))
            row[SLOW], row[RARE] = (time_ns - slow_ns) / 1e9, (time_ns - moments.get(RARE, slow_ns)) / 1e9
            yield {**row, **counted.get(device, {}), **figures}


def _readings(store: _core.Store) -> list[tuple[str, tuple[int, ...]]]:
    """Table, and time, GPU and values of each row of both tables, in the order of time."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for table, stored in _STORED.items():
        columns = store.columns(table)
        names = ("start_ns", "device", *(column.stored for column in stored))
        rows = zip(*(columns[name].tolist() for name in names), strict=True)
        found += [(table, row) for row in rows]
    return sorted(found, key=lambda reading: reading[1][0])


def _devices(store: _core.Store) -> dict[int, tuple[str, str, int]]:
    """Name, UUID and bytes of memory of each GPU, by number."""
    table = store.columns("device")
    rows = zip(*(table[name].tolist() for name in _DEVICE), strict=True)
    return {ordinal: (store.string(name), store.string(uuid), size) for ordinal, name, uuid, size in rows}


def _identity(name: str, uuid: str, size: int) -> Row:
    row: Row = {"gpu_name": one_line(name) or "GPU", "gpu_uuid": one_line(uuid)}
    return row | {"mem_total_mb": size / (1 << 20)} if 0 < size < _MOST_BYTES else row


class _Tables:
    """The tables of a growing log."""

    def __init__(self, log: _core.Store) -> None:
        self._old = {table: log.columns(table) for table in _STORED}
        self._new: dict[str, list[list[int]]] = {table: [] for table in _STORED}
        self._devices = _devices(log)
        self._host = _host_rows(log)
        counted = self._old[_COUNTERS]
        self._counted = {*zip(counted["device"].tolist(), counted["start_ns"].tolist(), strict=True)}

    def add(self, row: Row) -> None:
        """Adds a line of a log; if it raises, nothing of it."""
        time_ns = time_of(row)
        if row.get("gpu_idx") is None:
            known = {name: cell for name, cell in row.items() if isinstance(cell, int | float | str)}
            self._host.append(known | {"time_ns": time_ns})
            return
        device = index_of(row["gpu_idx"])
        name, uuid, size = self._devices.get(device, ("", "", 0))
        # A lost GPU has no figures.
        size = min(round(float(row.get("mem_total_mb") or 0) * (1 << 20)), _MOST_BYTES) or size
        named = text_of(row.get("gpu_name") or name), text_of(row.get("gpu_uuid") or uuid), max(0, size)
        sample = pack(row, _STORED[_SAMPLES])
        slow_s = row.get(SLOW) or 0.0
        readings: dict[int, dict[str, int]] = {}  # of counters, by the moment
        for age, age_s in ((RARE, slow_s if row.get(RARE) is None else row[RARE]), (SLOW, slow_s)):
            if values := pack(row, _BY_AGE[age]):
                readings.setdefault(before(time_ns, age_s), {}).update(values)
        self._devices[device] = named
        self._append(_SAMPLES, device, time_ns, sample)
        for counted_ns, values in readings.items():
            if (device, counted_ns) not in self._counted:  # read rarely, repeated in each sample
                self._counted.add((device, counted_ns))
                self._append(_COUNTERS, device, counted_ns, values)

    def _append(self, table: str, device: int, time_ns: int, values: Mapping[str, int]) -> None:
        known = {"start_ns": time_ns, "device": device, **values}
        self._new[table].append([known.get(name, _NOT_READ) for name in self._old[table]])

    def store(self) -> _core.Store:
        """All of it."""
        import numpy as np  # the first frame of the monitor's page needs no NumPy

        strings = list(dict.fromkeys(["", *(text for device in self._devices.values() for text in device[:2])]))
        devices = [
            (ordinal, strings.index(name), strings.index(uuid), size)
            for ordinal, (name, uuid, size) in self._devices.items()
        ]
        columns = np.array(devices, np.int64).reshape(-1, len(_DEVICE)).T
        tables = {"device": dict(zip(_DEVICE, columns, strict=True))}
        for table, old in self._old.items():
            columns = np.array(self._new[table], np.int64).reshape(-1, len(old)).T
            tables[table] = {
                name: np.append(old[name], new.clip(max=np.iinfo(old[name].dtype).max))
                for name, new in zip(old, columns, strict=True)
            }
        facts = [(_IS_LOG, "1"), (_HOST, json.dumps(self._host)), ("session.mode", "full"), ("session.tier", "cpu")]
        return _core.make_store(tables, strings, facts)


def _host_rows(log: _core.Store) -> list[Any]:
    """The rows of samples without a GPU; an empty one for damaged rows."""
    try:
        rows = json.loads(log.info().get(_HOST, "[]"))
    except (ValueError, RecursionError):
        rows = None
    return rows if isinstance(rows, list) else [{}]


def _open(path: Path) -> _core.Store:
    try:
        return _core.read_gscope(str(path), False)
    except CorruptTrace as error:
        raise InvalidArgument(f"path is {str(path)!r}, which is no recording that can be read ({error})") from None


def _open_log(path: Path) -> _core.Store:
    log = _open(path)
    if _IS_LOG not in log.info():
        raise InvalidArgument(
            f"log_path is {str(path)!r}, the recording of a program; accepted are files that do not exist, empty ones "
            "and logs"
        )
    return log
