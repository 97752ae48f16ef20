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
from pathlib import Path
from typing import Any

from gpuscope import _core
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.monitor.sample import MOST_GPUS, known_text, known_time, read_lines
from gpuscope.paths import replacing
from gpuscope.text import one_line

# Column of the tables, the same column in other logs, and the size of the other log's unit in the table's unit.
_SAMPLES: Mapping[str, tuple[str, float]] = {
    "power_mw": ("power_w", 1e3),
    "power_limit_mw": ("power_limit_w", 1e3),
    "power_limit_default_mw": ("power_limit_default_w", 1e3),
    "sm_mhz": ("sm_hz", 1e-6),
    "sm_max_mhz": ("sm_max_hz", 1e-6),
    "memory_mhz": ("memory_hz", 1e-6),
    "temperature_c": ("temp_c", 1.0),
    "busy_percent": ("util_pct", 1.0),
    "memory_busy_percent": ("memory_busy_ratio", 100.0),
    "memory_used_bytes": ("mem_used_mb", 1 << 20),
}
_COUNTERS: Mapping[str, tuple[str, float]] = {
    "energy_mj": ("energy_total_j", 1e3),
    **{f"{reason}_ns": (f"throttled_{reason}_s", 1e9) for reason in _core.THROTTLE_COUNTERS},
}
_RARE = ("energy_mj", *(f"{reason}_ns" for reason in _core.RARE_COUNTERS))  # columns that take long to read
# Bits of nvmlClocksEventReasons.
_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks": 0x100,
}
_NOT_READ = -1
_MOST_BYTES = 1 << 62
_IS_LOG, _HOST = "monitor.log", "monitor.host"  # the second: rows of other logs
_SAMPLE_TABLE, _COUNTER_TABLE = "device_sample", "device_counter"
_NAMES = {table.name: [column.name for column in table.columns] for table in _core.schema()}

Row = dict[str, Any]


def check_file(path: Path) -> None:
    """Raises InvalidArgument if the file is not a log. A recording of a program is not one."""
    if path.exists() and path.stat().st_size:
        _open_log(path)


def take_lines(lines: Path, path: Path) -> None:
    """Appends JSON lines to a .gscope.

    Raises:
        GpuscopeError: the file cannot be written; the file is as it was.
    """
    rows = _Rows(_open_log(path) if path.exists() and path.stat().st_size else None)
    for row in read_lines(lines):
        if row is not None:
            with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):  # not a line of a monitor
                rows.add(row)
    with replacing(path) as file:
        _core.write_gscope(rows.store(), file.write)


def read_rows(path: Path) -> Iterator[Row | None]:
    """The rows of other logs: one for each time at which power, or another frequent figure, was read.

    None stands for rows that were lost when a file was cut.

    Raises:
        InvalidArgument: it is no recording, or has no samples of GPUs.
        GpuscopeError: it cannot be read.
    """
    store = _open(path)
    samples, counters, devices = (store.columns(table) for table in (_SAMPLE_TABLE, _COUNTER_TABLE, "device"))
    known = {
        int(ordinal): {
            "gpu_name": one_line(store.string(int(name))) or "GPU",
            "gpu_uuid": one_line(store.string(int(uuid))),
            **({"mem_total_mb": size / (1 << 20)} if 0 < size < _MOST_BYTES else {}),
        }
        for ordinal, name, uuid, size in zip(
            *(devices[column].tolist() for column in ("ordinal", "name", "uuid", "memory_bytes")), strict=True
        )
    }
    info = store.info()
    is_log = _IS_LOG in info
    if not is_log and not len(samples["start_ns"]) and "file.truncated_at" not in info:
        raise InvalidArgument(f"path is {str(path)!r}, a recording without samples of GPUs (device_samples=True)")
    import numpy as np  # the first frame of the monitor's page needs no NumPy

    if "file.lost_rows" in info:
        yield None
    yield from _host_rows(store)
    times = np.concatenate([samples["start_ns"], counters["start_ns"]])
    split = len(samples["start_ns"])
    latest: dict[int, Row] = {}
    for at in np.argsort(times, kind="stable").tolist():
        is_sample = at < split
        table, row, names = (samples, at, _SAMPLES) if is_sample else (counters, at - split, _COUNTERS)
        time_ns, device = int(times[at]), int(table["device"][row])
        identity: Row = {"gpu_idx": device, **known.get(device, {})}
        facts = latest.setdefault(device, {**identity})
        values = {name: int(table[column][row]) / unit for column, (name, unit) in names.items()}
        facts |= {name: value for name, value in values.items() if value >= 0}
        if not is_sample:
            for column in _COUNTERS:
                if int(counters[column][row]) >= 0:
                    facts["rare_ns" if column in _RARE else "counted_ns"] = time_ns
            continue
        bits = int(table["throttle_reasons"][row])
        if is_log:  # a log's rows contain all readings
            for name in [name for name, value in values.items() if value < 0]:
                facts.pop(name, None)
            if bits < 0 and max(values.values()) < 0:
                yield {**identity, "time_ns": time_ns, "why": {"all": "nothing of it was read"}}
                continue
            facts["why"] = {}
        if bits >= 0:
            facts["throttle_reasons"] = "+".join(name for name, bit in _REASONS.items() if bits & bit)
        if any(int(table[column][row]) >= 0 for column in _SAMPLES if column not in _SELDOM):
            counted_ns: int = facts.get("counted_ns") or facts.get("rare_ns") or time_ns
            ages: dict[str, int] = {"slow_age_s": counted_ns, "rare_age_s": facts.get("rare_ns", counted_ns)}
            told = {name: value for name, value in facts.items() if name not in ("counted_ns", "rare_ns")}
            yield told | {"time_ns": time_ns} | {name: (time_ns - moment) / 1e9 for name, moment in ages.items()}


_SELDOM = ("power_limit_default_mw", "sm_max_mhz")


class _Rows:
    """The tables of a growing log."""

    def __init__(self, log: _core.Store | None) -> None:
        self._columns: dict[str, dict[str, list[int]]] = {}
        self._devices: dict[int, tuple[str, str, int]] = {}
        self._counted: dict[int, set[int]] = {}
        self._host = [] if log is None else _host_rows(log)
        for table in (_SAMPLE_TABLE, _COUNTER_TABLE):
            known = log.columns(table) if log is not None else {}
            self._columns[table] = {name: known[name].tolist() if known else [] for name in _NAMES[table]}
        if log is not None:
            devices = log.columns("device")
            named = (devices[column].tolist() for column in ("ordinal", "name", "uuid", "memory_bytes"))
            for ordinal, name, uuid, size in zip(*named, strict=True):
                self._devices[ordinal] = (log.string(name), log.string(uuid), size)

    def add(self, row: Row) -> None:
        """Adds a line of a log; if it raises, nothing of it."""
        if row.get("gpu_idx") is None:
            self._host.append({name: value for name, value in row.items() if isinstance(value, int | float | str)})
            return
        device, time_ns = int(row["gpu_idx"]), known_time(int(row["time_ns"]))
        if not 0 <= device < MOST_GPUS:
            raise ValueError(device)
        name, uuid, size = self._devices.get(device, ("", "", 0))
        # A lost GPU has no figures.
        size = min(round(float(row.get("mem_total_mb", 0)) * (1 << 20)), _MOST_BYTES) or size
        named = known_text(row.get("gpu_name", name)), known_text(row.get("gpu_uuid", uuid)), max(0, size)
        sample = _converted(row, _SAMPLES)
        if (reasons := row.get("throttle_reasons")) is not None:
            sample["throttle_reasons"] = sum(_REASONS.get(word, 0) for word in {*known_text(reasons).split("+")})
        counters = _converted(row, _COUNTERS)
        slow_age_s = row.get("slow_age_s", 0.0)
        ages_s = {False: slow_age_s, True: row.get("rare_age_s", slow_age_s)}
        read: dict[int, dict[str, int]] = {}
        for name, value in counters.items():
            counted_ns = known_time(time_ns - round(1e9 * float(ages_s[name in _RARE])))
            read.setdefault(counted_ns, {})[name] = value
        self._devices[device] = named
        self._append(_SAMPLE_TABLE, sample, time_ns, device)
        for counted_ns, values in read.items():
            if counted_ns not in self._counted.get(device, ()):  # read rarely, repeated in each sample
                self._append(_COUNTER_TABLE, values, counted_ns, device)
        self._counted[device] = {*read}

    def _append(self, table: str, values: Mapping[str, int], time_ns: int, device: int) -> None:
        row = {name: values.get(name, _NOT_READ) for name in self._columns[table]}
        for name, value in {**row, "start_ns": time_ns, "device": device}.items():
            self._columns[table][name].append(value)

    def store(self) -> _core.Store:
        """All of it."""
        import numpy as np

        texts = [text for name, uuid, _ in self._devices.values() for text in (name, uuid)]
        strings = list(dict.fromkeys(["", *texts]))
        tables = {
            table: {name: np.array(values, np.int64) for name, values in columns.items()}
            for table, columns in self._columns.items()
        }
        devices: dict[str, list[int]] = {
            "ordinal": list(self._devices),
            "name": [strings.index(name) for name, _, _ in self._devices.values()],
            "uuid": [strings.index(uuid) for _, uuid, _ in self._devices.values()],
            "memory_bytes": [size for *_, size in self._devices.values()],
        }
        tables["device"] = {name: np.array(values, np.int64) for name, values in devices.items()}
        facts = [(_IS_LOG, "1"), (_HOST, json.dumps(self._host)), ("session.mode", "full"), ("session.tier", "cpu")]
        return _core.make_store(tables, strings, facts)


def _host_rows(log: _core.Store) -> list[Any]:
    """The rows of samples without a GPU; None stands for damaged rows."""
    try:
        rows = json.loads(log.info().get(_HOST, "[]"))
    except (ValueError, RecursionError):
        rows = None
    return rows if isinstance(rows, list) else [None]


def _converted(row: Row, names: Mapping[str, tuple[str, float]]) -> dict[str, int]:
    most = {column: (1 << 62) if column.endswith(("_ns", "_mj", "_bytes")) else (1 << 31) - 1 for column in names}
    return {
        column: min(max(round(float(row[name]) * unit), _NOT_READ), most[column])
        for column, (name, unit) in names.items()
        if name in row
    }


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
