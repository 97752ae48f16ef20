# SPDX-License-Identifier: Apache-2.0
"""The latest samples served to Prometheus, by prometheus-client, which is optional.

Names follow Prometheus' rules: base units, ``_total`` for what only grows, ratios from 0 to 1; a series that is not
known is not there. A scrape reads no GPU: it has the samples that were taken, and their age.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.monitor.gpu_monitor import GPUMonitor
from gpuscope.monitor.sample import GpuSample
from gpuscope.paths import write_text

ADDRESS = "127.0.0.1"  # whoever may read it from elsewhere is for the machine's owner to say
_PREFIX = "gpuscope_"
BOARD_FILES = ("board.json", "alerts.yml")


@dataclass(frozen=True)
class Series:
    """A figure as Prometheus has it.

    Attributes:
        name: without the prefix.
        figure: attribute of `GpuState`, or of `HostState` where `of_host`.
        about: what it is.
        labels: that tell it from others of the name.
        of_host: it is of the machine, once, and not of a GPU.
    """

    name: str
    figure: str
    about: str
    labels: Mapping[str, str] = field(default_factory=dict)
    of_host: bool = False

    @property
    def only_grows(self) -> bool:
        """It is a counter."""
        return self.name.endswith("_total")


_OF_GPU = (
    Series("gpu_busy_ratio", "busy_ratio", "Share of the time in which a kernel ran, however small."),
    Series("gpu_memory_busy_ratio", "memory_busy_ratio", "Share of the time in which memory was read or written."),
    Series("sm_active_ratio", "sm_active_ratio", "Share of multiprocessors and time that had work."),
    Series("sm_occupancy_ratio", "sm_occupancy_ratio", "Warps that were there, of those that fit."),
    Series("tensor_active_ratio", "tensor_active_ratio", "Share of tensor cores and time in use."),
    Series("fp64_active_ratio", "fp64_active_ratio", "Share of units for float64 and time in use."),
    Series("fp32_active_ratio", "fp32_active_ratio", "Share of units for float32 and time in use."),
    Series("fp16_active_ratio", "fp16_active_ratio", "Share of units for float16 and time in use."),
    Series("dram_bandwidth_ratio", "dram_bandwidth_ratio", "Bytes that memory moved, of its peak."),
    Series("memory_used_bytes", "memory_used_bytes", "Memory that processes hold."),
    Series("memory_free_bytes", "memory_free_bytes", "Memory that can be had."),
    Series("memory_reserved_bytes", "memory_reserved_bytes", "Memory that the driver keeps."),
    Series("memory_total_bytes", "memory_total_bytes", "Memory of the GPU."),
    Series("power_watts", "power_w", "Power of the board.", {"kind": "mean"}),
    Series("power_watts", "power_instant_w", "Power of the board.", {"kind": "instant"}),
    Series("power_limit_watts", "power_limit_w", "Power at which clocks are lowered."),
    Series("power_limit_default_watts", "power_limit_default_w", "That limit as the board was sold."),
    Series("energy_joules_total", "energy_total_j", "Energy since the driver was loaded."),
    Series("sm_clock_hertz", "sm_hz", "Clock of the multiprocessors."),
    Series("sm_clock_max_hertz", "sm_max_hz", "Its highest."),
    Series("memory_clock_hertz", "memory_hz", "Clock of the memory."),
    Series("temperature_celsius", "temperature_c", "Temperature.", {"sensor": "gpu"}),
    Series("temperature_celsius", "memory_temperature_c", "Temperature.", {"sensor": "memory"}),
    Series("temperature_margin_celsius", "temperature_margin_c", "Degrees to where clocks are lowered."),
    Series("fan_ratio", "fan_ratio", "Speed that the fan is asked for."),
    Series("pcie_bytes_per_second", "pcie_received_bytes_per_s", "Link to the host.", {"direction": "received"}),
    Series("pcie_bytes_per_second", "pcie_sent_bytes_per_s", "Link to the host.", {"direction": "sent"}),
    Series("nvlink_bytes_per_second", "nvlink_received_bytes_per_s", "Links to GPUs.", {"direction": "received"}),
    Series("nvlink_bytes_per_second", "nvlink_sent_bytes_per_s", "Links to GPUs.", {"direction": "sent"}),
    Series("pcie_lanes", "pcie_width", "Lanes of the link to the host in use."),
    Series("pcie_lanes_max", "pcie_width_max", "Lanes that board and host allow."),
    Series("ecc_errors_total", "ecc_corrected", "Errors of memory in the board's life.", {"kind": "corrected"}),
    Series("ecc_errors_total", "ecc_uncorrected", "Errors of memory in the board's life.", {"kind": "uncorrected"}),
    Series("remapped_rows_total", "remapped_rows", "Rows of memory replaced after errors."),
    Series("remapping_pending", "remapping_pending", "Whether a row waits to be replaced: the GPU wants a reset."),
    Series("remapping_failed", "remapping_failed", "Whether a row could not be replaced."),
)
_OF_HOST = (
    Series("host_cpus", "machine_cpus", "CPUs of the machine.", of_host=True),
    Series("host_cpu_seconds_total", "machine_cpu_s", "Seconds that all CPUs worked.", of_host=True),
    Series("host_memory_used_bytes", "machine_memory_used_bytes", "Memory that cannot be had.", of_host=True),
    Series("host_memory_total_bytes", "machine_memory_total_bytes", "Memory of the machine.", of_host=True),
    Series("host_cpu_limit_cpus", "cpu_limit_cpus", "CPUs that the container may use.", of_host=True),
    Series("host_cpu_throttled_seconds_total", "cpu_throttled_s", "Its limit stopped CPUs for so long.", of_host=True),
    Series("host_memory_limit_bytes", "memory_limit_bytes", "Memory that the container may use.", of_host=True),
    *(
        Series(
            "host_pressure_seconds_total",
            f"{resource}_{kind}_s",
            "Seconds in which some task, or all of them, waited for a resource.",
            {"resource": resource, "tasks": tasks},
            of_host=True,
        )
        for resource in ("cpu", "memory", "io")
        for kind, tasks in (("pressure", "some"), ("stalled", "all"))
        if (resource, kind) != ("cpu", "stalled")
    ),
)
_THROTTLE = "throttle_seconds_total"
_OF_SAMPLING = {
    "gpu_info": "1, with the names of the GPU.",
    "up": "Whether the GPU could be read.",
    "sample_age_seconds": "Seconds since the GPU was read.",
    _THROTTLE: "Seconds for which clocks were held back, by reason.",
    "sampler_cpu_seconds_total": "CPU time that reading the GPUs took.",
    "samples_dropped_total": "Samples that were lost.",
}


def metric_names() -> list[str]:
    """Every name that may be served."""
    return sorted({_PREFIX + name for name in (*_OF_SAMPLING, *(each.name for each in (*_OF_GPU, *_OF_HOST)))})


class Collector:
    """What prometheus-client asks at a scrape. Any thread."""

    def __init__(self, monitor: GPUMonitor) -> None:
        self._monitor = monitor
        self._counters: dict[tuple[str, tuple[str, ...]], float] = {}  # stay visible while a GPU cannot be read

    def collect(self) -> Iterator[Any]:
        """The families of metrics."""
        families: dict[str, Any] = {}
        cost = self._monitor.cost
        self._add(families, "sampler_cpu_seconds_total", cost.cpu_s, _OF_SAMPLING["sampler_cpu_seconds_total"], {})
        self._add(families, "samples_dropped_total", cost.dropped, _OF_SAMPLING["samples_dropped_total"], {})
        samples = self._monitor.latest()
        for sample in samples:
            self._add_gpu(families, sample)
        if samples:
            for series in _OF_HOST:
                self._add(families, series.name, getattr(samples[0].host, series.figure), series.about, series.labels)
        yield from families.values()

    def _add_gpu(self, families: dict[str, Any], sample: GpuSample) -> None:
        gpu = sample.gpu
        if gpu is None:
            return
        label = {"uuid": gpu.uuid or f"index-{gpu.index}"}
        names = {"index": str(gpu.index), "name": gpu.name, "pci": gpu.pci_address}
        self._add(families, "gpu_info", 1, _OF_SAMPLING["gpu_info"], label | names)
        self._add(families, "up", "all" not in gpu.why, _OF_SAMPLING["up"], label)
        age_s = max(0.0, time.time() - sample.time_ns / 1e9)
        self._add(families, "sample_age_seconds", age_s, _OF_SAMPLING["sample_age_seconds"], label)
        for series in _OF_GPU:
            self._add(families, series.name, getattr(gpu, series.figure), series.about, {**label, **series.labels})
        seen = {labels[1] for name, labels in self._counters if name == _THROTTLE and labels[0] == label["uuid"]}
        for reason in sorted(seen | {*gpu.throttled_s}):
            seconds = gpu.throttled_s.get(reason)
            self._add(families, _THROTTLE, seconds, _OF_SAMPLING[_THROTTLE], label | {"reason": reason})

    def _add(
        self, families: dict[str, Any], name: str, value: float | None, about: str, labels: Mapping[str, str]
    ) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        is_counter = name.endswith("_total")
        key = (name, tuple(labels.values()))
        if is_counter:
            value = self._counters.get(key) if value is None else value
        if value is None:
            return
        if is_counter:
            self._counters[key] = value
        if name not in families:
            make = CounterMetricFamily if is_counter else GaugeMetricFamily
            families[name] = make(_PREFIX + name.removesuffix("_total"), about, labels=[*labels])
        families[name].add_metric([*labels.values()], float(value))


@contextlib.contextmanager
def serve(monitor: GPUMonitor, port: int) -> Iterator[None]:
    """Serves a monitor's latest samples at ``http://127.0.0.1:PORT/metrics`` while open.

    Raises:
        NotAvailable: prometheus-client is not installed.
        GpuscopeError: the port cannot be had.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise NotAvailable(
            "--prometheus is not available: prometheus-client is not installed; pip install 'gpuscope[monitor]'"
        ) from None
    registry = CollectorRegistry()
    registry.register(Collector(monitor))
    try:
        server, thread = start_http_server(port, ADDRESS, registry)
    except OSError as error:
        raise GpuscopeError(f"cannot serve at {ADDRESS}:{port}: {error.strerror or error}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_board(folder: Path) -> list[Path]:
    """Writes Grafana's board and Prometheus' alert rules for these names into a folder, and says where.

    Raises:
        GpuscopeError: they cannot be written.
    """
    written = []
    for name in BOARD_FILES:
        text = (resources.files("gpuscope.monitor") / "grafana" / name).read_text()
        written.append(folder / f"gpuscope-{name}")
        write_text(written[-1], text)
    return written
