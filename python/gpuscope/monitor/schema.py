# SPDX-License-Identifier: Apache-2.0
"""The columns of logs of GPUs: one table, from which each format is read and written.

A row of a log is a dict of its columns. An unknown one is None or missing. The time is in ``timestamp`` as text, or in
``time_ns``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.monitor.host import HostState
from gpuscope.monitor.snapshot import GpuState, MigInstance
from gpuscope.monitor.xid import XidErrors
from gpuscope.text import brief, one_line

Row = dict[str, Any]
NOT_A_CELL = (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError)
"""Errors of reading a cell that no monitor has written."""

THROTTLE_BITS = {  # of nvmlClocksEventReasons
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
NO_FAULTS = ("gpu_idle", "applications_clocks", "display_clocks")
WHY = "why"  # a column of formats other than CSV: reasons of missing figures
SLOW, RARE = "slow_age_s", "rare_age_s"
_MIB = 1 << 20
_MOST = 1 << 62  # of any figure, in its unit
_MOST_GPUS = 1 << 16
_LATEST_NS = 1 << 62  # in 2116
_DAMAGE = re.compile("[\0\ud800-\udfff]")
_NO_ERRORS = "none"


def number_of(cell: Any) -> float:
    """A number or its text; raises one of `NOT_A_CELL` for others and for NaN."""
    number = float(cell)
    if isinstance(cell, bool) or not abs(number) < _MOST:
        raise ValueError(cell)
    return number


def text_of(cell: Any) -> str:
    """A text; raises ValueError for another type, and for NUL or lone surrogates, which show damage."""
    if not isinstance(cell, str) or _DAMAGE.search(cell):
        raise ValueError(cell)
    return one_line(cell)


def time_of(row: Mapping[str, Any]) -> int:
    """Ns since the epoch; a text without a zone is in this machine's zone.

    Raises one of `NOT_A_CELL` outside 1970 to 2116.
    """
    text = row.get("timestamp")
    if not isinstance(text, str):
        return _known_time(row["time_ns"])
    moment = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    return _known_time(int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000)


def _known_time(time_ns: int) -> int:
    """Ns since the epoch of a number; raises ValueError outside 1970 to 2116."""
    if not 0 <= time_ns < _LATEST_NS:
        raise ValueError(time_ns)
    return time_ns


def before(time_ns: int, age_s: Any) -> int:
    """The moment some seconds before another one; raises one of `NOT_A_CELL`."""
    return _known_time(time_ns - round(1e9 * float(age_s)))


def index_of(cell: Any) -> int:
    """The number of a GPU."""
    index = int(number_of(cell))
    if not 0 <= index < _MOST_GPUS:
        raise ValueError(cell)
    return index


def reasons_of(cell: Any) -> dict[str, str]:
    """The reasons of missing figures: an object, or its JSON."""
    return {text_of(name): text_of(reason) for name, reason in _listed(cell).items()}


def _listed(cell: Any) -> Any:
    return json.loads(cell) if isinstance(cell, str) else cell


def _xid_text(errors: Sequence[XidErrors]) -> str:
    """Each error's number, count and last time: ``31x2@1700000000.125+79x1@1700000003.500``."""
    return "+".join(f"{each.xid}x{each.count}@{each.last_ns / 1e9:.3f}" for each in errors) or _NO_ERRORS


def xids_of_text(cell: Any) -> tuple[XidErrors, ...]:
    """The errors in a text; raises ValueError or OverflowError for other texts."""
    found = []
    text = text_of(cell)
    for part in () if text == _NO_ERRORS else text.split("+"):
        number, _, rest = part.partition("x")
        count, _, seconds = rest.partition("@")
        error = XidErrors(int(number), int(count), _known_time(round(1e3 * float(seconds)) * 1_000_000))
        if not (0 <= error.xid < 1 << 31 and 0 <= error.count < 1 << 31):
            raise ValueError(part)
        found.append(error)
    return tuple(found)


@dataclass(frozen=True)
class Kind:
    """A type of cells.

    Attributes:
        read: makes an attribute of a cell of any format; raises one of `NOT_A_CELL`.
        write: makes a cell of JSON of a known attribute; None leaves it out.
        arrow: the name of the type in pyarrow. A text also holds JSON.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    arrow: str = "string"


FLOAT = Kind(number_of, arrow="float64")
INTEGER = Kind(lambda cell: int(number_of(cell)), arrow="float64")  # 53 bits and less: bytes and counts
BOOL = Kind(lambda cell: {"true": True, "false": False, "1": True, "0": False}[str(cell).lower()], arrow="bool_")
INDEX = Kind(index_of, arrow="int32")
TEXT = Kind(text_of, lambda text: text or None)
REASONS = Kind(lambda cell: tuple(filter(None, text_of(cell).split("+"))), "+".join)
XIDS = Kind(xids_of_text, _xid_text)
INSTANCES = Kind(lambda cell: tuple(map(_instance, _listed(cell))), lambda found: [*map(asdict, found)] or None)
_KINDS = {"float": FLOAT, "int": INTEGER, "bool": BOOL, "str": TEXT}


def _kinds(state: type, names: Iterable[str]) -> dict[str, Kind]:
    """The kinds of attributes, which their annotations name."""
    return {name: _KINDS[str(state.__annotations__[name]).partition(" ")[0]] for name in names}


def _instance(facts: Mapping[str, Any]) -> MigInstance:
    figures = {text_of(name): None if cell is None else number_of(cell) for name, cell in facts["figures"].items()}
    known: dict[str, Any] = {
        name: None if facts[name] is None else kind.read(facts[name]) for name, kind in _OF_INSTANCE.items()
    }
    return MigInstance(**known, figures=figures, why=reasons_of(facts[WHY]))


_OF_INSTANCE = _kinds(MigInstance, [name for name in MigInstance.__annotations__ if name not in ("figures", WHY)])


@dataclass(frozen=True)
class LogColumn:
    """A column of logs.

    Attributes:
        name: in every format except .gscope.
        part: the part of a sample that has it: a key of `GpuSample.to_dict`'s parts.
        attribute: its name there.
        kind: the type of the cells.
        unit: the size of the column's unit in the attribute's unit.
        stored: column of the store's table device_sample, or device_counter if it has an `age`; empty if it has none.
        factor: the size of the column's unit in the store's unit.
        age: the column with the seconds since a counter was read.
    """

    name: str
    part: str
    attribute: str
    kind: Kind = FLOAT
    unit: float = 1.0
    stored: str = ""
    factor: float = 1.0
    age: str = ""

    @property
    def reader(self) -> Callable[[Any], Any]:
        """Makes the attribute of a cell of any format; raises one of `NOT_A_CELL`."""
        read, unit = self.kind.read, self.unit
        return read if unit == 1.0 else lambda cell: read(number_of(cell) * unit)

    def write(self, value: Any) -> Any:
        """The cell of a known attribute; None if it is left out."""
        return self.kind.write(value if self.unit == 1.0 else value / self.unit)

    def pack(self, cell: Any) -> int:
        """The cell in the store; raises one of `NOT_A_CELL`."""
        if self.kind is REASONS:
            return sum(THROTTLE_BITS.get(word, 0) for word in {*text_of(cell).split("+")})
        return min(max(round(float(cell) * self.factor), -1), _MOST)

    def unpack(self, value: int) -> Any:
        """The cell of a known value of the store."""
        if self.kind is REASONS:
            return "+".join(name for name, bit in THROTTLE_BITS.items() if value & bit)
        return value / self.factor


# Figures that the store has too: its column and factor. Slow counters have their age.
_STORED: Mapping[str, Mapping[str, Any]] = {
    "memory_busy_ratio": {"stored": "memory_busy_percent", "factor": 100.0},
    "power_limit_w": {"stored": "power_limit_mw", "factor": 1e3},
    "power_limit_default_w": {"stored": "power_limit_default_mw", "factor": 1e3},
    "energy_total_j": {"stored": "energy_mj", "factor": 1e3, "age": RARE},
    "sm_hz": {"stored": "sm_mhz", "factor": 1e-6},
    "sm_max_hz": {"stored": "sm_max_mhz", "factor": 1e-6},
    "memory_hz": {"stored": "memory_mhz", "factor": 1e-6},
}


def _figures(part: str, kinds: Mapping[str, Kind]) -> Iterator[LogColumn]:
    return (LogColumn(name, part, name, kind, **_STORED.get(name, {})) for name, kind in kinds.items())


def _throttled(reason: str) -> LogColumn:
    age = RARE if reason in _core.RARE_COUNTERS else SLOW
    return LogColumn(f"throttled_{reason}_s", "throttled_s", reason, stored=f"{reason}_ns", factor=1e9, age=age)


SCHEMA = (
    LogColumn("timestamp", "time", "timestamp", TEXT),
    LogColumn("gpu_idx", "gpu", "index", INDEX),
    # The columns of scripts around nvidia-smi. Names of figures come later: they replace what these have.
    LogColumn("util_pct", "gpu", "busy_ratio", unit=0.01, stored="busy_percent"),
    LogColumn("mem_used_mb", "gpu", "memory_used_bytes", INTEGER, _MIB, stored="memory_used_bytes", factor=_MIB),
    LogColumn("mem_total_mb", "gpu", "memory_total_bytes", INTEGER, _MIB),
    LogColumn("temp_c", "gpu", "temperature_c", stored="temperature_c"),
    LogColumn("power_w", "gpu", "power_w", stored="power_mw", factor=1e3),
    *_figures("gpu", _kinds(GpuState, [name for name in _core.GPU_FIGURES if name != "power_w"])),
    LogColumn("throttle_reasons", "gpu", "throttle_reasons", REASONS, stored="throttle_reasons"),
    *map(_throttled, _core.THROTTLE_COUNTERS),
    LogColumn("gpu_uuid", "gpu", "uuid", TEXT),
    LogColumn("gpu_name", "gpu", "name", TEXT),
    LogColumn("xid_errors", "gpu", "xid_errors", XIDS),
    LogColumn("mig_instances", "gpu", "instances", INSTANCES),
    LogColumn("process_cpu_s", "sample", "process_cpu_s"),
    LogColumn("process_resident_bytes", "sample", "process_resident_bytes", INTEGER),
    LogColumn("took_s", "sample", "took_s"),
    LogColumn(SLOW, "times", "slow_time_ns"),
    LogColumn("host_age_s", "times", "host_time_ns"),
    LogColumn(RARE, "times", "rare_time_ns"),
    *_figures("host", _kinds(HostState, _core.HOST_FIGURES)),
    LogColumn("sampler_cpu_ratio", "cost", "cpu_ratio"),
    LogColumn("sample_mean_s", "cost", "mean_s"),
    LogColumn("sample_p99_s", "cost", "p99_s"),
    LogColumn("samples_skipped", "cost", "skipped", INTEGER),
    LogColumn("sampler_limited", "cost", "limited", TEXT),
)
COLUMNS = tuple(column.name for column in SCHEMA)
"""The columns of a CSV file, in order."""


# Name, attribute and reader of the columns of each part.
_PARTS: dict[str, list[tuple[str, str, Callable[[Any], Any]]]] = {column.part: [] for column in SCHEMA}
for _column in SCHEMA:
    _PARTS[_column.part].append((_column.name, _column.attribute, _column.reader))


def read_part(row: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The attributes of a part of a sample that a row has; raises one of `NOT_A_CELL`."""
    cells = row.get
    return {name: read(cell) for column, name, read in _PARTS[part] if (cell := cells(column)) is not None}


def pack(row: Mapping[str, Any], columns: Iterable[LogColumn]) -> dict[str, int]:
    """The known cells of a row in columns of the store; raises one of `NOT_A_CELL`."""
    return {each.stored: each.pack(cell) for each in columns if (cell := row.get(each.name)) is not None}


def refuse_columns(path: Path, names: Iterable[str]) -> NoReturn:
    """Raises InvalidArgument: a file cannot be appended to because it has other columns."""
    other = next((name for name in names if name not in (*COLUMNS, WHY)), "another order")
    raise InvalidArgument(
        f"log_path is {brief(str(path))}, a file with other columns ({brief(other)}); accepted are files "
        "that do not exist, empty ones and logs of this version"
    )
