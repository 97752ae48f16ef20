# SPDX-License-Identifier: Apache-2.0
"""A sample: a GPU and its host at a moment, and its line in a log."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from gpuscope import _core
from gpuscope.monitor.host import HostState
from gpuscope.monitor.snapshot import GpuState
from gpuscope.monitor.xid import XidErrors
from gpuscope.paths import open_file
from gpuscope.text import one_line

# The columns of scripts around nvidia-smi, then each other figure by its name.
_OF_NVIDIA_SMI = {
    "util_pct": "gpu_util_pct",
    "mem_used_mb": "mem_used_mb",
    "mem_total_mb": "mem_total_mb",
    "temp_c": "temp_c",
    "power_w": "power_w",
}
_FIGURES = tuple(name for name in _core.GPU_FIGURES if name not in _OF_NVIDIA_SMI)
_THROTTLED = tuple(f"throttled_{reason}_s" for reason in _core.THROTTLE_COUNTERS)
_LONGEST_LINE = 1 << 20  # characters
_TOO_LONG = "\0\n"  # not a line of a log
_DAMAGE = re.compile("[\0\ud800-\udfff]")
_LATEST_NS = 1 << 62  # in 2116
MOST_GPUS = 1 << 16
_PROCESS = ("process_cpu_s", "process_resident_bytes", "took_s")
_OF_DRIVER = ("xid_errors", "mig_instances")
_NO_ERRORS = "none"
_COST = {
    "sampler_cpu_ratio": "cpu_ratio",
    "sample_mean_s": "mean_s",
    "sample_p99_s": "p99_s",
    "samples_skipped": "skipped",
    "sampler_limited": "limited",
}
_AGES = {"slow_age_s": "slow_time_ns", "host_age_s": "host_time_ns", "rare_age_s": "rare_time_ns"}
COLUMNS = (
    *("timestamp", "gpu_idx"),
    *_OF_NVIDIA_SMI,
    *_FIGURES,
    "throttle_reasons",
    *_THROTTLED,
    *("gpu_uuid", "gpu_name"),
    *_OF_DRIVER,
    *_PROCESS,
    *_AGES,
    *_core.HOST_FIGURES,
    *_COST,
)
"""The columns of a CSV file, in order."""


@dataclass(frozen=True)
class SamplingCost:
    """The cost of sampling so far, as in each line of a log.

    Attributes:
        cpu_ratio: share of one core that the sampling threads took.
        mean_s: mean seconds of a sample of one GPU.
        p99_s: 99th percentile of that time, within 3.1 %.
        skipped: rounds that were due while another took too long.
        limited: parts that are read only every n-th round because reading took too long (`MonitorCost`), as
            ``performance_counters/2+link_bytes/2``; empty if all parts are read in each round.
    """

    cpu_ratio: float
    mean_s: float
    p99_s: float
    skipped: int
    limited: str = ""


@dataclass(frozen=True)
class GpuSample:
    """A GPU and this process at a moment.

    Attributes:
        time_ns: ns since the Unix epoch, on the clock of recordings.
        took_s: seconds that reading the GPU took.
        gpu: None on a machine without a GPU.
        process_cpu_s: CPU time of all threads of this process so far.
        process_resident_bytes: host memory that this process uses, read as often as the GPUs' memory.
        slow_time_ns: time of reading throttled seconds, once a second. Rarely changing figures are as old or older.
        host: the machine, this process and its container.
        host_time_ns: time of reading the host.
        cost: cost of sampling; None for logs without it.
        rare_time_ns: time of the slow calls, every few seconds: energy, memory errors, the link, and throttled seconds
            of `sync_boost`, `hw_thermal_slowdown` and `hw_power_brake_slowdown`. 0: same as `slow_time_ns`.
    """

    time_ns: int
    took_s: float
    gpu: GpuState | None
    process_cpu_s: float
    process_resident_bytes: int
    slow_time_ns: int = 0
    host: HostState = field(default_factory=HostState)
    host_time_ns: int = 0
    cost: SamplingCost | None = None
    rare_time_ns: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The known columns of a log."""
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
            facts["gpu_name"] = self.gpu.name or None
            facts["xid_errors"] = _xid_text(self.gpu.xid_errors)
            facts["mig_instances"] = [asdict(each) for each in self.gpu.instances or ()] or None
        facts |= {name: getattr(self, name) for name in _PROCESS}
        # In ms, as the time is written, so that a reading shared by several samples stays one when read again.
        time_ms, moments = self.time_ns // 1_000_000, {name: getattr(self, key) for name, key in _AGES.items()}
        facts |= {name: (time_ms - moment // 1_000_000) / 1e3 for name, moment in moments.items() if moment}
        facts |= {name: getattr(self.host, name) for name in _core.HOST_FIGURES}
        if self.cost is not None:
            facts |= {column: getattr(self.cost, name) for column, name in _COST.items()}
            facts["sampler_limited"] = self.cost.limited or None
        return {name: value for name, value in facts.items() if value is not None}


def _xid_text(errors: Sequence[XidErrors] | None) -> str | None:
    """Each error's number, count and last time: ``31x2@1700000000.125+79x1@1700000003.500``."""
    if errors is None:
        return None
    return "+".join(f"{each.xid}x{each.count}@{each.last_ns / 1e9:.3f}" for each in errors) or _NO_ERRORS


def xids_of_text(text: str) -> tuple[XidErrors, ...]:
    """The inverse of `errors_text`; raises ValueError or OverflowError for other texts."""
    found = []
    for part in () if text == _NO_ERRORS else text.split("+"):
        number, _, rest = part.partition("x")
        count, _, seconds = rest.partition("@")
        error = XidErrors(int(number), int(count), known_time(round(1e3 * float(seconds)) * 1_000_000))
        if not (0 <= error.xid < 1 << 31 and 0 <= error.count < 1 << 31):
            raise ValueError(part)
        found.append(error)
    return tuple(found)


def json_line(sample: GpuSample, told: dict[int, Mapping[str, str]]) -> str:
    """A sample as a JSON line. `told`: reasons of missing figures already written, by GPU; new ones are added."""
    facts, gpu = sample.to_dict(), sample.gpu
    if gpu is not None and told.get(gpu.index) != gpu.why:
        told[gpu.index] = gpu.why
        facts["why"] = dict(gpu.why)
    return json.dumps(facts) + "\n"


def csv_line(sample: GpuSample) -> str:
    """A sample as a CSV line of `COLUMNS`."""
    facts, line = sample.to_dict(), io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(_cell(facts.get(name, "")) for name in COLUMNS)
    return line.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.12g}"
    return str(value)


def _timestamp(time_ns: int) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    return (
        datetime.fromtimestamp(seconds).replace(microsecond=ns // 1000).astimezone().isoformat(timespec="milliseconds")
    )


def lines_of(file: BinaryIO) -> Iterator[str]:
    """The lines of a text in UTF-8, or UTF-16 with a byte order mark; too long a line becomes an invalid one."""
    is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    file.seek(0)
    with io.TextIOWrapper(file, "utf-16" if is_utf16 else "utf-8", "replace", newline="\n") as text:
        while line := text.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE and not line.endswith("\n"):
                while (line := text.readline(_LONGEST_LINE)) and not line.endswith("\n"):
                    pass
                line = _TOO_LONG
            yield line.lstrip("\ufeff").replace("\r\n", "\n")  # joined logs have marks in between


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of JSON lines with their ``time_ns``; None for each invalid line."""
    with open_file(path) as file:
        for line in lines_of(file):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                row["time_ns"] = time_ns_of(row["timestamp"])
                if "\\ud" in line.lower():  # lone surrogates, which cannot be encoded
                    json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
                row = None
            yield row


def time_ns_of(text: str) -> int:
    """Ns since the epoch of a time in ISO 8601, in this machine's zone if it has none.

    Raises ValueError or OverflowError outside 1970 to 2116.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    return known_time(int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000)


def known_time(time_ns: int) -> int:
    """Ns since the epoch of a number; raises ValueError outside 1970 to 2116."""
    if not 0 <= time_ns < _LATEST_NS:
        raise ValueError(time_ns)
    return time_ns


def known_text(text: Any) -> str:
    """A text in a line; raises ValueError for another type, and for NUL or lone surrogates, which show damage."""
    if not isinstance(text, str) or _DAMAGE.search(text):
        raise ValueError(text)
    return one_line(text)
