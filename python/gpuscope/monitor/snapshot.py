# SPDX-License-Identifier: Apache-2.0
"""Every GPU of the machine at a moment, as reported by NVML."""

from __future__ import annotations

import functools
import os
import pwd
import textwrap
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuscope import _core
from gpuscope.errors import GpuscopeWarning, InvalidArgument
from gpuscope.monitor.xid import NEED_RESET, XidErrors
from gpuscope.results import Result
from gpuscope.tables import align_columns
from gpuscope.text import brief, one_line
from gpuscope.units import format_bytes, format_share

_WIDTH = 80
_NAME_WIDTH = 20
_MIB = 1 << 20
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of Linux
_NARROW = 0.95  # of the default power limit: below it the board is slower than sold

# The same figures in scripts that ask nvidia-smi, and their units.
_OF_NVIDIA_SMI = {
    "gpu_util_pct": ("busy_ratio", 0.01),
    "mem_util_pct": ("memory_busy_ratio", 0.01),
    "mem_used_mb": ("memory_used_bytes", _MIB),
    "mem_total_mb": ("memory_total_bytes", _MIB),
    "temp_c": ("temperature_c", 1.0),
}


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU.

    Attributes:
        pid: process number. If this container has its own numbers, the host's number, and the rest is None.
        memory_bytes: memory that NVML counts for it; None if NVML does not report it.
        command: its command line.
        user: its owner.
    """

    pid: int
    memory_bytes: int | None
    command: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class MigInstance:
    """A part of a split GPU (MIG).

    Attributes:
        gpu_instance: its number. Compute instances of one GPU instance share its memory and counters.
        compute_instance: its number within the GPU instance.
        uuid: identifies it in every library.
        name: the driver's name.
        memory_used_bytes: memory that processes hold.
        memory_total_bytes: memory of the instance.
        figures: shares of its own multiprocessors, units and memory in use, and bytes of links, under the names of
            `GpuState`. Means since the reading a second before; not in a snapshot.
        why: reason of each missing figure, by name.
    """

    gpu_instance: int
    compute_instance: int
    uuid: str
    name: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    figures: Mapping[str, float | None]
    why: Mapping[str, str]


@dataclass(frozen=True)
class GpuState:
    """A GPU at a moment. A figure that NVML does not report is None, with a reason in `why`.

    ``state["gpu_util_pct"]`` and the other names of nvidia-smi scripts work too: see ``GpuState.keys``. Memory under
    these names is in MiB.

    Attributes:
        index: number of NVML and nvidia-smi. CUDA's differs if CUDA_VISIBLE_DEVICES is set.
        name: the driver's name.
        uuid: identifies the GPU in every library.
        pci_address: on the bus.
        busy_ratio: share of the last 1/6 to 1 s in which a kernel ran, however small. Undefined if the GPU
            is split (MIG).
        memory_busy_ratio: share of that time in which memory was read or written, at any rate.
        encoder_busy_ratio: share of that time in which the video encoder (NVENC) worked.
        decoder_busy_ratio: of the video decoder (NVDEC); jpeg_busy_ratio of the JPEG decoder, optical_flow_busy_ratio
            of the optical flow accelerator (OFA).
        memory_used_bytes: memory that processes hold, in use or cached.
        memory_free_bytes: available memory.
        memory_reserved_bytes: memory reserved by driver and firmware.
        memory_total_bytes: memory of the GPU.
        bar1_used_bytes: used part of BAR1, the address window by which the host and other devices reach the memory.
        bar1_total_bytes: its size.
        power_w: mean of the last second on Ampere and later. On A100 and older GPUs the current value.
        power_instant_w: current value; the sensor of A100 and H100 is active a quarter of the time (arXiv 2312.02741).
        power_limit_w: power from which clocks are lowered.
        power_limit_default_w: the board's default limit.
        energy_total_j: since the driver was loaded, in steps of about 0.1 s; on Grace Hopper of the whole module.
        sm_hz: clock of the multiprocessors; it falls when they are idle.
        sm_max_hz: the highest clock of the multiprocessors.
        memory_hz: clock of the memory.
        memory_max_hz: the highest clock of the memory.
        temperature_c: degrees Celsius of the chip.
        temperature_margin_c: degrees left until clocks are lowered.
        memory_temperature_c: degrees Celsius of the memory.
        fan_ratio: requested fan speed, 0 to 1.
        pcie_generation: of the link to the host; it falls when the GPU is idle.
        pcie_generation_max: that board and host allow.
        pcie_width: lanes in use.
        pcie_width_max: lanes that board and host allow.
        pcie_received_bytes: from the host, headers of packets included: some 8 to 9 % more than a copy's bytes with 256
            bytes of payload each. A 32-bit counter, which wraps.
        pcie_sent_bytes: to the host, likewise.
        ecc_corrected: errors of memory that were corrected, over the board's life.
        ecc_uncorrected: errors of memory that were not corrected.
        remapped_rows: rows of memory replaced after errors.
        remapping_pending: whether a row waits to be replaced, which needs a reset of the GPU.
        remapping_failed: whether a row could not be replaced.
        performance_state: 0, the fastest, to 15.
        sm_active_ratio: share of time and multiprocessors with work; waiting work counts. Good use needs at
            least 0.8. This and the following figures count all programs, are means between two samples (at
            least 0.1 s), need Hopper or later, and are not in a snapshot.
        sm_occupancy_ratio: resident warps as a share of the most possible; matrix products run best at 0.1 to 0.2.
        tensor_active_ratio: share of time and tensor cores in use; 1 is out of reach.
        fp64_active_ratio: likewise of the units for float64.
        fp32_active_ratio: for float32.
        fp16_active_ratio: for float16.
        integer_active_ratio: for integers.
        dram_bandwidth_ratio: bytes that memory moved, of the data sheet's peak.
        pcie_received_bytes_per_s: from the host, headers of packets included, as in `pcie_received_bytes`.
        pcie_sent_bytes_per_s: to the host, likewise.
        nvlink_received_bytes_per_s: from other GPUs, of all links.
        nvlink_sent_bytes_per_s: to other GPUs.
        throttle_reasons: active reasons for throttling, in NVML's names. gpu_idle, applications_clocks and
            display_clocks are no faults.
        throttle_faults: the active reasons that are faults.
        throttled_s: seconds of throttling since the driver was loaded, by reason.
        mig: whether the GPU is split into instances.
        instances: the instances of a split GPU.
        xid_errors: errors reported by the driver since the GPU is watched, by number; not in a snapshot.
        processes: processes that compute on it.
        why: reason of each missing figure, by name.
    """

    index: int
    name: str
    uuid: str
    pci_address: str
    busy_ratio: float | None
    memory_busy_ratio: float | None
    encoder_busy_ratio: float | None
    decoder_busy_ratio: float | None
    jpeg_busy_ratio: float | None
    optical_flow_busy_ratio: float | None
    memory_used_bytes: int | None
    memory_free_bytes: int | None
    memory_reserved_bytes: int | None
    memory_total_bytes: int | None
    bar1_used_bytes: int | None
    bar1_total_bytes: int | None
    power_w: float | None
    power_instant_w: float | None
    power_limit_w: float | None
    power_limit_default_w: float | None
    energy_total_j: float | None
    sm_hz: float | None
    sm_max_hz: float | None
    memory_hz: float | None
    memory_max_hz: float | None
    temperature_c: float | None
    temperature_margin_c: float | None
    memory_temperature_c: float | None
    fan_ratio: float | None
    pcie_generation: int | None
    pcie_generation_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None
    pcie_received_bytes: int | None
    pcie_sent_bytes: int | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    remapped_rows: int | None
    remapping_pending: bool | None
    remapping_failed: bool | None
    performance_state: int | None
    sm_active_ratio: float | None
    sm_occupancy_ratio: float | None
    tensor_active_ratio: float | None
    fp64_active_ratio: float | None
    fp32_active_ratio: float | None
    fp16_active_ratio: float | None
    integer_active_ratio: float | None
    dram_bandwidth_ratio: float | None
    pcie_received_bytes_per_s: float | None
    pcie_sent_bytes_per_s: float | None
    nvlink_received_bytes_per_s: float | None
    nvlink_sent_bytes_per_s: float | None
    throttle_reasons: tuple[str, ...] | None
    throttle_faults: tuple[str, ...]
    throttled_s: Mapping[str, float]
    mig: bool | None
    instances: tuple[MigInstance, ...] | None
    xid_errors: tuple[XidErrors, ...] | None
    processes: tuple[GpuProcess, ...] | None
    why: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        if key in _OF_NVIDIA_SMI:
            name, unit = _OF_NVIDIA_SMI[key]
            value = getattr(self, name)
            return None if value is None else value / unit
        if not isinstance(key, str) or key not in self.__dataclass_fields__:
            raise InvalidArgument(
                f"key is {brief(key)}; accepted are {', '.join(_OF_NVIDIA_SMI)} and the attributes of GpuState"
            )
        return getattr(self, key)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that need action, a sentence each."""
        limit, default = self.power_limit_w, self.power_limit_default_w
        lanes, most = self.pcie_width, self.pcie_width_max
        found = []
        if self.throttle_faults:
            found.append(f"its clocks are held back now: {', '.join(self.throttle_faults)}")
        if limit is not None and default is not None and limit < _NARROW * default:
            found.append(f"its power limit is {limit:.0f} W, its default {default:.0f} W")
        if lanes is not None and most is not None and lanes < most:
            found.append(f"its link to the host has {lanes} of {most} lanes")
        if self.remapping_pending:
            found.append("rows of its memory wait to be replaced: reset it")
        if self.remapping_failed:
            found.append("rows of its memory could not be replaced: have the board replaced")
        if self.ecc_uncorrected:
            found.append(f"{self.ecc_uncorrected} errors of its memory could not be corrected in its life")
        found += [str(error) for error in self.xid_errors or () if error.xid in NEED_RESET]
        if self.mig:
            found.append("it is split into instances (MIG), which NVML's utilization does not cover")
        return tuple(found)

    def keys(self) -> list[str]:
        """The keys that ``state[key]`` accepts."""
        return [*self.__dataclass_fields__, *_OF_NVIDIA_SMI]


@dataclass(frozen=True)
class GpuSnapshot(Result):
    """Every GPU at a moment; a sequence of `GpuState`.

    Empty on a machine without a GPU: iterating over it warns with the reason, an index raises IndexError with it.

    Attributes:
        time_ns: ns since the Unix epoch.
        driver_version: None without a driver.
        gpus: in the order of nvidia-smi.
        why: reason why there is no GPU; empty if there is one.
    """

    time_ns: int
    driver_version: str | None
    gpus: tuple[GpuState, ...]
    why: str = ""

    def __iter__(self) -> Iterator[GpuState]:
        if not self.gpus:
            warnings.warn(self._no_gpu, GpuscopeWarning, stacklevel=2)
        return iter(self.gpus)

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, index: int) -> GpuState:
        if not self.gpus and isinstance(index, int):
            raise IndexError(self._no_gpu)
        return self.gpus[index]

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only, for JSON."""
        return asdict(self)

    @property
    def _no_gpu(self) -> str:
        return f"gpu_snapshot() has no GPU: {one_line(self.why)}"

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per GPU."""
        return list(self.to_dict()["gpus"])

    def __repr__(self) -> str:
        return f"<GpuSnapshot: {', '.join(gpu.name for gpu in self.gpus) or self.why}>"

    def __str__(self) -> str:
        """A line for each GPU, its problems, and the processes: 80 columns."""
        return "\n".join(_lines(self))


def gpu_snapshot() -> GpuSnapshot:
    """Every GPU of the machine now, used by any program.

    Asks NVML in this process: no program is started, no CUDA context made, and nothing waits for the GPU. For frequent
    readings use a `GPUMonitor`.
    """
    facts = _core.gpu_states()
    return GpuSnapshot(
        time_ns=time.time_ns(),
        driver_version=facts["driver_version"],
        gpus=tuple(gpu_state(gpu) for gpu in facts["gpus"]),
        why=facts["why"],
    )


def gpu_state(facts: Mapping[str, Any], *, names_processes: bool = True) -> GpuState:
    """A state from the core's values; reads commands and users of processes only on request."""
    made = named_process if names_processes else GpuProcess
    reasons, processes = facts["throttle_reasons"], facts["processes"]
    instances, errors = facts["instances"], facts["xid_errors"]
    named = {name: facts[name] for name in ("index", "name", "uuid", "pci_address", "throttled_s", "mig", "why")}
    return GpuState(
        **named,
        **facts["figures"],
        throttle_reasons=None if reasons is None else tuple(reasons),
        throttle_faults=tuple(facts["throttle_faults"]),
        instances=None if instances is None else tuple(MigInstance(**instance) for instance in instances),
        xid_errors=None if errors is None else tuple(XidErrors(*error) for error in errors),
        processes=None if processes is None else tuple(made(pid, size) for pid, size in processes),
    )


def named_process(pid: int, memory_bytes: int | None) -> GpuProcess:
    """A process by NVML's number, with command and user if they are visible and certain."""
    if not is_the_hosts_number() and not _uses_gpus(Path(f"/proc/{pid}")):
        return GpuProcess(pid, memory_bytes)
    return local_process(pid, memory_bytes)


def local_process(pid: int, memory_bytes: int | None = None) -> GpuProcess:
    """A process by its number here, with command and user if visible."""
    folder = Path(f"/proc/{pid}")
    command = user = None
    with suppress(OSError):  # ended, of another user, or counted by the host
        words = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        command = " ".join(words).strip() or None
        owner = folder.stat().st_uid
        user = str(owner)
        with suppress(KeyError):
            user = pwd.getpwuid(owner).pw_name
    return GpuProcess(pid, memory_bytes, command, user)


@functools.cache
def is_the_hosts_number() -> bool:
    """Whether process numbers here are NVML's: a container may have numbers of its own."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return True


def _uses_gpus(process: Path) -> bool:
    try:
        opened = os.listdir(process / "fd")
    except OSError:  # ended, or of another user
        return False
    for number in opened:
        with suppress(OSError):
            if os.readlink(process / "fd" / number).startswith("/dev/nvidia"):
                return True
    return False


def _lines(snapshot: GpuSnapshot) -> list[str]:
    when = datetime.fromtimestamp(snapshot.time_ns / 1e9).astimezone().isoformat(sep=" ", timespec="seconds")
    if not snapshot.gpus:
        return textwrap.wrap(f"{when}   no GPU: {one_line(snapshot.why)}", _WIDTH, subsequent_indent="  ")
    rows = [("GPU", "name", "busy", "memory", "power", "temp", "SM clock"), *(_row(gpu) for gpu in snapshot)]
    lines = [f"{when}   driver {snapshot.driver_version or 'not known'}", *align_columns(rows, left=2)]
    for gpu in snapshot:
        for note in (*_of_instances(gpu), *_notes(gpu)):
            lines += textwrap.wrap(one_line(f"GPU {gpu.index}: {note}"), _WIDTH, subsequent_indent="  ")
    processes = [(gpu, process) for gpu in snapshot for process in gpu.processes or ()]
    if processes:
        table = [("GPU", "pid", "memory", "user"), *(_process_row(gpu, process) for gpu, process in processes)]
        commands = ["command", *(one_line(process.command or "not to be seen from here") for _, process in processes)]
        for line, command in zip(align_columns(table), commands, strict=True):
            lines.append(f"{line}  {command}"[:_WIDTH])
    return lines


def _row(gpu: GpuState) -> tuple[str, ...]:
    return (
        str(gpu.index),
        _shortened(one_line(gpu.name.removeprefix("NVIDIA "))),
        "-" if gpu.busy_ratio is None else format_share(gpu.busy_ratio),
        _of(gpu.memory_used_bytes, gpu.memory_total_bytes, 1 << 30, "GiB", 1),
        _of(gpu.power_w, gpu.power_limit_w, 1, "W"),
        "-" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C",
        _of(gpu.sm_hz, gpu.sm_max_hz, 1e6, "MHz"),
    )


def _of(value: float | None, most: float | None, scale: float, unit: str, digits: int = 0) -> str:
    if value is None:
        return "-"
    bound = "" if most is None else f"/{most / scale:.{digits}f}"
    return f"{value / scale:.{digits}f}{bound} {unit}"


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 3]}..."


def _of_instances(gpu: GpuState) -> list[str]:
    return [
        f"{one_line(instance.name)} ({instance.gpu_instance}/{instance.compute_instance}): "
        f"{_of(instance.memory_used_bytes, instance.memory_total_bytes, 1 << 30, 'GiB', 1)}"
        for instance in gpu.instances or ()
    ]


def _notes(gpu: GpuState) -> list[str]:
    return [
        *_media_and_bar1(gpu),
        *gpu.warnings,
        *(f"not known: {names} ({why})" for why, names in _by_reason(gpu.why).items()),
    ]


def _media_and_bar1(gpu: GpuState) -> list[str]:
    """One line; of JPEG and optical flow only if they work."""
    ratios = {
        "encoder": gpu.encoder_busy_ratio,
        "decoder": gpu.decoder_busy_ratio,
        "JPEG": gpu.jpeg_busy_ratio or None,
        "optical flow": gpu.optical_flow_busy_ratio or None,
    }
    parts = [f"{name} {format_share(ratio)}" for name, ratio in ratios.items() if ratio is not None]
    if gpu.bar1_used_bytes is not None and gpu.bar1_total_bytes is not None:
        parts.append(f"BAR1 {format_bytes(gpu.bar1_used_bytes)} of {format_bytes(gpu.bar1_total_bytes)}")
    return [", ".join(parts)] if parts else []


def _by_reason(why: Mapping[str, str]) -> dict[str, str]:
    names: dict[str, list[str]] = {}
    for name, reason in why.items():
        if name in (*_core.GPM_FIGURES, "xid_errors"):  # never known at a single moment
            continue
        names.setdefault(reason, []).append(name)
    return {reason: ", ".join(listed) for reason, listed in names.items()}


def _process_row(gpu: GpuState, process: GpuProcess) -> Sequence[str]:
    size = "-" if process.memory_bytes is None else format_bytes(process.memory_bytes)
    return (str(gpu.index), str(process.pid), size, process.user or "-")
