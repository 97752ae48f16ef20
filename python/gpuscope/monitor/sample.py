# SPDX-License-Identifier: Apache-2.0
"""A sample: a GPU and its host at a moment, and its row in a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuscope import _core
from gpuscope.monitor.host import HostState
from gpuscope.monitor.schema import NO_FAULTS, SCHEMA, WHY, before, read_part, reasons_of, time_of
from gpuscope.monitor.snapshot import GpuState

_NOT_LOGGED = "it is not in the log"
_UNKNOWN_GPU: dict[str, Any] = {
    **dict.fromkeys([*_core.GPU_FIGURES, "throttle_reasons", "instances", "xid_errors"]),
    "name": "GPU",
    "uuid": "",
}
_AGES = ("slow_time_ns", "host_time_ns", "rare_time_ns")


@dataclass(frozen=True)
class SamplingCost:
    """The cost of sampling so far, as in each line of a log.

    Attributes:
        cpu_ratio: share of one core that sampling took.
        mean_s: mean seconds of a sample of one GPU.
        p99_s: 99th percentile of that time, within 3.1 %.
        skipped: rounds that were due while another took too long.
        limited: in logs of earlier versions, parts that were read only every n-th round, as
            ``performance_counters/2+link_bytes/2``.
    """

    cpu_ratio: float
    mean_s: float = 0.0
    p99_s: float = 0.0
    skipped: int = 0
    limited: str = ""


@dataclass(frozen=True)
class GpuSample:
    """A GPU and this process at a moment.

    Attributes:
        time_ns: ns since the Unix epoch, on the clock of recordings.
        took_s: seconds that reading the GPU took.
        gpu: None on a machine without a GPU.
        process_cpu_s: CPU time of all threads of this process so far.
        process_resident_bytes: host memory that this process uses, read once a second, as the GPUs' memory.
        slow_time_ns: time of reading the figures that are read once a second, such as memory and throttled seconds.
        host: the machine, this process and its container.
        host_time_ns: time of reading the host.
        cost: cost of sampling; None for logs without it.
        rare_time_ns: time of reading the energy, every two seconds. Memory errors, the link, and throttled seconds of
            `sync_boost`, `hw_thermal_slowdown` and `hw_power_brake_slowdown` are read every ten seconds, and every
            second while such a reason holds. 0: same as `slow_time_ns`.
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
        # Ages in ms, as the time is written, so that a reading shared by several samples stays one when read again.
        time_ms, moments = self.time_ns // 1_000_000, {name: getattr(self, name) for name in _AGES}
        ages = {name: (time_ms - moment // 1_000_000) / 1e3 for name, moment in moments.items() if moment}
        parts: dict[str, Mapping[str, Any]] = {
            "sample": vars(self),
            "time": {"timestamp": _timestamp(self.time_ns)},
            "times": ages,
            "gpu": {} if self.gpu is None else vars(self.gpu),
            "throttled_s": {} if self.gpu is None else self.gpu.throttled_s,
            "host": vars(self.host),
            "cost": {} if self.cost is None else vars(self.cost),
        }
        row: dict[str, Any] = {}
        for column in SCHEMA:
            value = parts[column.part].get(column.attribute)
            if value is not None and (cell := column.write(value)) is not None:
                row[column.name] = cell
        return row


def _timestamp(time_ns: int) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    return (
        datetime.fromtimestamp(seconds).replace(microsecond=ns // 1000).astimezone().isoformat(timespec="milliseconds")
    )


def sample_of(row: Mapping[str, Any], told: dict[int, Mapping[str, str]]) -> GpuSample:
    """The sample of a row. `told`: the latest reasons of missing figures by GPU, which the row may replace.

    Raises one of `NOT_A_CELL` if no monitor has written the row.
    """
    time_ns = time_of(row)
    moments = {name: before(time_ns, age_s) for name, age_s in read_part(row, "times").items()}
    known = {"took_s": 0.0, "process_cpu_s": 0.0, "process_resident_bytes": 0} | read_part(row, "sample")
    return GpuSample(
        time_ns,
        gpu=None if row.get("gpu_idx") in (None, "") else _gpu(row, told),
        host=HostState(**read_part(row, "host"), why={}),
        cost=None if row.get("sampler_cpu_ratio") is None else SamplingCost(**read_part(row, "cost")),
        **known,
        **{"slow_time_ns": time_ns, "host_time_ns": time_ns} | moments,
    )


def _gpu(row: Mapping[str, Any], told: dict[int, Mapping[str, str]]) -> GpuState:
    facts = _UNKNOWN_GPU | read_part(row, "gpu")
    if row.get(WHY) is not None:
        told[facts["index"]] = reasons_of(row[WHY])
    unknown = [name for name in _core.GPU_FIGURES if facts[name] is None]
    why = told.get(facts["index"], {})
    return GpuState(
        **facts,
        pci_address="",
        throttle_faults=tuple(reason for reason in facts["throttle_reasons"] or () if reason not in NO_FAULTS),
        throttled_s=read_part(row, "throttled_s"),
        mig=None,
        processes=None,
        why=dict.fromkeys(unknown, _NOT_LOGGED) | {name: why[name] for name in why if facts.get(name) is None},
    )
