# SPDX-License-Identifier: Apache-2.0
"""Files of samples of GPUs, which are appended to: CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.monitor.snapshot import GpuState
from gpuscope.paths import append_text, check_writable, find_suffix, first_line_of, is_stream
from gpuscope.text import brief

_CSV, *_ = SUFFIXES = (".csv", ".jsonl", ".ndjson")

# What scripts around nvidia-smi write, then each figure that is not among it, by its name.
_OF_NVIDIA_SMI = {
    "util_pct": "gpu_util_pct",
    "mem_used_mb": "mem_used_mb",
    "mem_total_mb": "mem_total_mb",
    "temp_c": "temp_c",
    "power_w": "power_w",
}
_FIGURES = tuple(name for name in _core.GPU_FIGURES if name not in _OF_NVIDIA_SMI)
_THROTTLED = tuple(f"throttled_{reason}_s" for reason in _core.THROTTLE_COUNTERS)
_PROCESS = ("process_cpu_s", "process_resident_bytes", "took_s")
COLUMNS = ("timestamp", "gpu_idx", *_OF_NVIDIA_SMI, *_FIGURES, "throttle_reasons", *_THROTTLED, "gpu_uuid", *_PROCESS)
"""Those of a CSV file, in their order."""


@dataclass(frozen=True)
class GpuSample:
    """A GPU and this process at a moment.

    Attributes:
        time_ns: ns since the Unix epoch, on the clock of recordings.
        took_s: seconds that reading the GPU took.
        gpu: None on a machine without one.
        process_cpu_s: CPU time of all threads of this process so far.
        process_resident_bytes: the host's memory that this process uses.
    """

    time_ns: int
    took_s: float
    gpu: GpuState | None
    process_cpu_s: float
    process_resident_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The columns of a log, without what is not known."""
        facts: dict[str, Any] = {"timestamp": _timestamp(self.time_ns)}
        if self.gpu is not None:
            facts["gpu_idx"] = self.gpu.index
            facts |= {column: self.gpu[key] for column, key in _OF_NVIDIA_SMI.items()}
            facts |= {name: self.gpu[name] for name in _FIGURES}
            facts["throttle_reasons"] = (
                None if self.gpu.throttle_reasons is None else "+".join(self.gpu.throttle_reasons)
            )
            facts |= {f"throttled_{reason}_s": seconds for reason, seconds in self.gpu.throttled_s.items()}
            facts["gpu_uuid"] = self.gpu.uuid or None
        facts |= {name: getattr(self, name) for name in _PROCESS}
        return {name: value for name, value in facts.items() if value is not None}


class Log:
    """A file that samples are appended to, in the format that its suffix says.

    Each append is one write of whole lines, after a line feed where an earlier one was cut: a process that is killed
    loses what it had not given to the system, and no line of others. One thread at a time.

    Args:
        path: ends with one of `SUFFIXES`.

    Raises:
        InvalidArgument: it does not, or the file is a CSV of other columns.
        GpuscopeError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_writable(path, SUFFIXES)
        suffix = find_suffix(self.path, SUFFIXES)
        if suffix is None or is_stream(self.path):
            raise InvalidArgument(f"log_path is {brief(str(self.path))}; accepted are files: {', '.join(SUFFIXES)}")
        self._is_csv = suffix == _CSV
        self._why: dict[int, Mapping[str, str]] = {}
        if self._is_csv:
            self._check_columns()

    def append(self, samples: Sequence[GpuSample]) -> None:
        """Writes them.

        Raises:
            GpuscopeError: the file cannot be written now; as many of its lines as were written are whole but the last.
        """
        if self._is_csv:
            append_text(self.path, "".join(map(_csv_line, samples)), header=",".join(COLUMNS) + "\n")
        else:
            append_text(self.path, "".join(map(self._json_line, samples)))

    def _check_columns(self) -> None:
        found = first_line_of(self.path)
        if found and found.split(",") != [*COLUMNS]:
            other = next((name for name in found.split(",") if name not in COLUMNS), "another order")
            raise InvalidArgument(
                f"log_path is {brief(str(self.path))}, a file with other columns ({brief(other)}); accepted are files "
                "that do not exist, empty ones and logs of this version"
            )

    def _json_line(self, sample: GpuSample) -> str:
        facts = sample.to_dict()
        gpu = sample.gpu
        if gpu is not None and self._why.get(gpu.index) != gpu.why:
            self._why[gpu.index] = gpu.why
            facts["why"] = dict(gpu.why)
        return json.dumps(facts) + "\n"


def _csv_line(sample: GpuSample) -> str:
    facts, line = sample.to_dict(), io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(_cell(facts.get(name, "")) for name in COLUMNS)
    return line.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.9g}"
    return str(value)


def _timestamp(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")
