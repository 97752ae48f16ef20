# SPDX-License-Identifier: Apache-2.0
"""Reads logs of GPUs as samples."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.monitor.host import HostState
from gpuscope.monitor.log import MADE_AT_THE_END, SUFFIXES, lines_beside
from gpuscope.monitor.sample import (
    MOST_GPUS,
    GpuSample,
    SamplingCost,
    known_text,
    known_time,
    lines_of,
    read_lines,
    time_ns_of,
    xids_of_text,
)
from gpuscope.monitor.snapshot import GpuState, MigInstance
from gpuscope.paths import as_path, find_suffix, open_file

_MIB = 1 << 20
_MOST = 1 << 62  # of any figure, in its unit
_NO_FAULTS = ("gpu_idle", "applications_clocks", "display_clocks")
_NOT_LOGGED = "it is not in the log"
_THROTTLED = {f"throttled_{reason}_s": reason for reason in _core.THROTTLE_COUNTERS}
# Scripts around nvidia-smi write only these.
_OF_NVIDIA_SMI = {
    "util_pct": ("busy_ratio", 0.01),
    "mem_used_mb": ("memory_used_bytes", _MIB),
    "mem_total_mb": ("memory_total_bytes", _MIB),
    "temp_c": ("temperature_c", 1.0),
    "power_w": ("power_w", 1.0),
}
_EMPTY = ("", "N/A", "[N/A]", "[Not Supported]")  # nvidia-smi's words for unknown values
_KINDS = {name: str(kind).partition(" ")[0] for name, kind in GpuState.__annotations__.items()}
_HOST_KINDS = {name: str(kind).partition(" ")[0] for name, kind in HostState.__annotations__.items()}


@dataclass(frozen=True)
class Recording:
    """The content of a log.

    Attributes:
        samples: in the order of their times.
        damaged: number of lines that were cut or cannot be read, and are left out.
    """

    samples: Sequence[GpuSample]
    damaged: int


def read_log(path: str | Path) -> Recording:
    """The samples of a log by a `GPUMonitor`, of a script's log with its columns, or of a recorded program.

    A .gscope of a program has samples if it was recorded with ``profile(device_samples=True)``.

    Raises:
        InvalidArgument: it is no such file, or has no samples.
        NotAvailable: pyarrow is not installed, for a .parquet.
        GpuscopeError: it cannot be read.
    """
    checked = as_path(path)
    suffix = find_suffix(checked, SUFFIXES)
    if suffix is None:
        raise InvalidArgument(f"path is {str(checked)!r}; accepted are logs: {', '.join(SUFFIXES)}")
    samples: list[GpuSample] = []
    damaged = 0
    why: dict[int, Mapping[str, str]] = {}
    for row in _rows(checked, suffix):
        try:
            sample = None if row is None else _sample(row, why)
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError):
            sample = None
        if sample is None:
            damaged += 1
        else:
            samples.append(sample)
    if not samples:
        raise InvalidArgument(f"path is {str(checked)!r}, which has no sample that can be read")
    samples.sort(key=lambda sample: sample.time_ns)  # stable: clocks of hosts step, and logs are joined
    return Recording(samples, damaged)


def _rows(path: Path, suffix: str) -> Iterator[dict[str, Any] | None]:
    """The rows of a log, and of the lines next to it that wait for the end of a run or were left by one."""
    if suffix == ".csv":
        return _csv_rows(path)
    if suffix not in MADE_AT_THE_END:
        return read_lines(path)
    made: Iterator[dict[str, Any] | None] = MADE_AT_THE_END[suffix].read_rows(path)
    lines = lines_beside(path)
    if not lines.exists():
        return made
    return chain(made, read_lines(lines)) if path.exists() else read_lines(lines)


def _csv_rows(path: Path) -> Iterator[dict[str, Any] | None]:
    rows = csv_cells(path)
    names = next(rows) or []
    for cells in rows:
        row: dict[str, Any] = {name: cell for name, cell in zip(names, cells or (), strict=False) if cell not in _EMPTY}
        try:
            row["time_ns"] = time_ns_of(row["timestamp"])
        except (ValueError, KeyError, OverflowError):
            yield None
        else:
            yield row


def csv_cells(path: Path) -> Iterator[list[str] | None]:
    """The cells of each line of a .csv log, first the columns' names; None for each cut line.

    Raises:
        InvalidArgument: the first line does not name the columns of a log.
        GpuscopeError: it cannot be read.
    """
    with open_file(path) as file:
        lines = lines_of(file)
        names = _cells(next(lines, ""))
        if not {"timestamp", "gpu_idx"} <= {*names}:
            raise InvalidArgument(f"path is {str(path)!r}, whose first line does not name timestamp and gpu_idx")
        yield names
        for line in lines:
            cells = _cells(line)
            if cells != names:  # a restarted log repeats the header
                # A line without its end was cut, perhaps in the middle of a number.
                yield cells if len(cells) == len(names) and line.endswith("\n") else None


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def _sample(row: Mapping[str, Any], told: dict[int, Mapping[str, str]]) -> GpuSample:
    time_ns = known_time(row["time_ns"])
    host = {name: _typed(row[name], _HOST_KINDS[name]) for name in _core.HOST_FIGURES if name in row}
    return GpuSample(
        time_ns=time_ns,
        took_s=_typed(row.get("took_s", 0.0)),
        gpu=None if row.get("gpu_idx") in (None, "") else _gpu(row, told),
        process_cpu_s=_typed(row.get("process_cpu_s", 0.0)),
        process_resident_bytes=_typed(row.get("process_resident_bytes", 0), "int"),
        slow_time_ns=_before(time_ns, row.get("slow_age_s", 0.0)),
        host=HostState(**host, why={}),
        host_time_ns=_before(time_ns, row.get("host_age_s", 0.0)),
        cost=_cost(row),
        rare_time_ns=_before(time_ns, row["rare_age_s"]) if "rare_age_s" in row else 0,
    )


def _before(time_ns: int, age_s: Any) -> int:
    return known_time(time_ns - round(1e9 * _typed(age_s)))


def _cost(row: Mapping[str, Any]) -> SamplingCost | None:
    if "sampler_cpu_ratio" not in row:
        return None
    return SamplingCost(
        cpu_ratio=_typed(row["sampler_cpu_ratio"]),
        mean_s=_typed(row.get("sample_mean_s", 0.0)),
        p99_s=_typed(row.get("sample_p99_s", 0.0)),
        skipped=_typed(row.get("samples_skipped", 0), "int"),
        limited=known_text(row.get("sampler_limited", "")),
    )


def _instances(listed: Any) -> tuple[MigInstance, ...] | None:
    if listed is None:
        return None
    listed = json.loads(listed) if isinstance(listed, str) else listed
    return tuple(
        MigInstance(
            gpu_instance=_typed(each["gpu_instance"], "int"),
            compute_instance=_typed(each["compute_instance"], "int"),
            uuid=known_text(each["uuid"]),
            name=known_text(each["name"]),
            memory_used_bytes=_known(each["memory_used_bytes"], "int"),
            memory_total_bytes=_known(each["memory_total_bytes"], "int"),
            figures={known_text(name): _known(value) for name, value in each["figures"].items()},
            why=_reasons(each["why"]),
        )
        for each in listed
    )


def _reasons(why: Any) -> dict[str, str]:
    return {known_text(name): known_text(reason) for name, reason in why.items()}


def _gpu(row: Mapping[str, Any], told: dict[int, Mapping[str, str]]) -> GpuState:
    index = _typed(row["gpu_idx"], "int")
    if not 0 <= index < MOST_GPUS:
        raise ValueError(index)
    figures: dict[str, Any] = dict.fromkeys(_core.GPU_FIGURES)
    for column, (name, unit) in _OF_NVIDIA_SMI.items():
        if column in row:
            figures[name] = _typed(_typed(row[column]) * unit, _KINDS[name])
    figures |= {name: _typed(row[name], _KINDS[name]) for name in _core.GPU_FIGURES if name in row}
    why = row.get("why")
    if isinstance(why, str):
        why = json.loads(why)
    if why is not None:
        told[index] = _reasons(why)
    reasons = row.get("throttle_reasons")
    reasons = None if reasons is None else known_text(reasons)
    known = dict.fromkeys((name for name, value in figures.items() if value is None), _NOT_LOGGED)
    return GpuState(
        index=index,
        name=known_text(row.get("gpu_name", "GPU")),
        uuid=known_text(row.get("gpu_uuid", "")),
        pci_address="",
        **figures,
        throttle_reasons=None if reasons is None else tuple(filter(None, reasons.split("+"))),
        throttle_faults=tuple(reason for reason in (reasons or "").split("+") if reason and reason not in _NO_FAULTS),
        throttled_s={reason: _typed(row[column]) for column, reason in _THROTTLED.items() if column in row},
        mig=None,
        instances=_instances(row.get("mig_instances")),
        xid_errors=xids_of_text(known_text(row["xid_errors"])) if "xid_errors" in row else None,
        processes=None,
        why=known | {name: reason for name, reason in told.get(index, {}).items() if figures.get(name) is None},
    )


def _known(value: Any, kind: str = "float") -> Any:
    return None if value is None else _typed(value, kind)


def _typed(value: Any, kind: str = "float") -> Any:
    if kind == "bool":
        return {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]
    number = float(value)
    if isinstance(value, bool) or not abs(number) < _MOST:  # nor is it where it is no number
        raise ValueError(value)
    return int(number) if kind == "int" else number
