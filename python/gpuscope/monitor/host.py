# SPDX-License-Identifier: Apache-2.0
"""The machine of the GPUs, this process and its container's limits, as reported by Linux."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpuscope import _core
from gpuscope.units import format_bytes


@dataclass(frozen=True)
class HostState:
    """The host at a moment. A figure that Linux does not report is None, with a reason in `why`.

    Counters grow from their beginning: the difference of two states is the growth between them.

    Attributes:
        machine_cpus: CPUs that are online.
        machine_cpu_s: seconds that all CPUs together have worked.
        machine_memory_used_bytes: memory not available to a new program.
        machine_memory_total_bytes: memory of the machine.
        process_wait_s: seconds that runnable threads of this process waited for a CPU.
        process_read_bytes: bytes that this process read from storage.
        process_written_bytes: bytes that it wrote to storage.
        process_major_faults: pages for which it waited for storage.
        process_preemptions: number of involuntary context switches of its threads.
        cpu_limit_cpus: CPUs that the control groups allow, their minimum.
        cpu_throttled_s: seconds for which these limits stopped CPUs.
        cpu_throttled_periods: periods of the limit in which that happened.
        memory_limit_bytes: memory that the control groups allow, their minimum.
        memory_charged_bytes: memory that counts against this limit, cached files included.
        cpu_pressure_s: seconds in which some task waited for a CPU (PSI, of the control group if it has one).
        memory_pressure_s: likewise for memory.
        memory_stalled_s: seconds in which all tasks waited for memory.
        io_pressure_s: seconds in which some task waited for storage.
        io_stalled_s: seconds in which all tasks waited for storage.
        why: reason of each missing figure, by name.
    """

    machine_cpus: int | None = None
    machine_cpu_s: float | None = None
    machine_memory_used_bytes: int | None = None
    machine_memory_total_bytes: int | None = None
    process_wait_s: float | None = None
    process_read_bytes: int | None = None
    process_written_bytes: int | None = None
    process_major_faults: int | None = None
    process_preemptions: int | None = None
    cpu_limit_cpus: float | None = None
    cpu_throttled_s: float | None = None
    cpu_throttled_periods: int | None = None
    memory_limit_bytes: int | None = None
    memory_charged_bytes: int | None = None
    cpu_pressure_s: float | None = None
    memory_pressure_s: float | None = None
    memory_stalled_s: float | None = None
    io_pressure_s: float | None = None
    io_stalled_s: float | None = None
    why: Mapping[str, str] | None = None

    def __str__(self) -> str:
        """The counters that stand still, in a line."""
        parts = ["-" if self.machine_cpus is None else f"{self.machine_cpus} CPUs"]
        if self.cpu_limit_cpus is not None:
            parts.append(f"limited to {self.cpu_limit_cpus:g}")
        if self.machine_memory_used_bytes is not None and self.machine_memory_total_bytes is not None:
            used, total = map(format_bytes, (self.machine_memory_used_bytes, self.machine_memory_total_bytes))
            parts.append(f"memory {used} of {total}")
        if self.memory_limit_bytes is not None:
            parts.append(f"limited to {format_bytes(self.memory_limit_bytes)}")
        return "host: " + ", ".join(parts)


def host_snapshot() -> HostState:
    """The host now."""
    return host_state(_core.host_state())


def host_state(facts: Mapping[str, Any]) -> HostState:
    """A state from the values of the core or a log."""
    known = {each.name for each in fields(HostState)}
    return HostState(**{name: value for name, value in facts.items() if name in known})
