# SPDX-License-Identifier: Apache-2.0
"""The latest samples served to Prometheus, by prometheus-client, which is optional.

Names follow Prometheus' rules: base units, ``_total`` for counters, ratios from 0 to 1. An unknown figure has no
series. A scrape reads no GPU: it serves the latest samples and their age.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any

from gpuscope import _core
from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.local_server import ADDRESS, LocalHandler, LocalServer
from gpuscope.monitor.gpu_monitor import GPUMonitor
from gpuscope.monitor.sample import GpuSample
from gpuscope.paths import write_text
from gpuscope.threads import shared_lock, start_thread

_PREFIX = "gpuscope_"
BOARD_FILES = ("board.json", "alerts.yml")


@dataclass(frozen=True)
class Series:
    """A metric of Prometheus.

    Attributes:
        name: without the prefix.
        figure: attribute of `GpuState`, or of `HostState` where `of_host`.
        about: the help text.
        labels: labels that distinguish series of one name.
        of_host: the series is of the machine, not of a GPU.
    """

    name: str
    figure: str
    about: str
    labels: Mapping[str, str] = field(default_factory=dict)
    of_host: bool = False

    @property
    def only_grows(self) -> bool:
        """Whether it is a counter."""
        return self.name.endswith("_total")


_OF_GPU = (
    Series("gpu_busy_ratio", "busy_ratio", "Share of the time in which a kernel ran, however small."),
    Series("gpu_memory_busy_ratio", "memory_busy_ratio", "Share of the time in which memory was read or written."),
    Series("encoder_busy_ratio", "encoder_busy_ratio", "Share of the time in which the video encoder worked."),
    Series("decoder_busy_ratio", "decoder_busy_ratio", "Share of the time in which the video decoder worked."),
    Series("jpeg_busy_ratio", "jpeg_busy_ratio", "Share of the time in which the JPEG decoder worked."),
    Series("optical_flow_busy_ratio", "optical_flow_busy_ratio", "Share of the time in which optical flow worked."),
    Series("sm_active_ratio", "sm_active_ratio", "Share of multiprocessors and time that had work."),
    Series("sm_occupancy_ratio", "sm_occupancy_ratio", "Resident warps, of the most possible."),
    Series("tensor_active_ratio", "tensor_active_ratio", "Share of tensor cores and time in use."),
    Series("fp64_active_ratio", "fp64_active_ratio", "Share of units for float64 and time in use."),
    Series("fp32_active_ratio", "fp32_active_ratio", "Share of units for float32 and time in use."),
    Series("fp16_active_ratio", "fp16_active_ratio", "Share of units for float16 and time in use."),
    Series("dram_bandwidth_ratio", "dram_bandwidth_ratio", "Bytes that memory moved, of its peak."),
    Series("memory_used_bytes", "memory_used_bytes", "Memory that processes hold."),
    Series("memory_free_bytes", "memory_free_bytes", "Available memory."),
    Series("memory_reserved_bytes", "memory_reserved_bytes", "Memory that the driver keeps."),
    Series("memory_total_bytes", "memory_total_bytes", "Memory of the GPU."),
    Series("bar1_used_bytes", "bar1_used_bytes", "Window of addresses to the memory in use."),
    Series("bar1_total_bytes", "bar1_total_bytes", "Size of that window."),
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
    Series("pcie_bytes_per_second", "pcie_received_bytes_per_s", "Host link, headers too.", {"direction": "received"}),
    Series("pcie_bytes_per_second", "pcie_sent_bytes_per_s", "Host link, headers too.", {"direction": "sent"}),
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
    Series("host_memory_used_bytes", "machine_memory_used_bytes", "Memory not available.", of_host=True),
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
_XID, _XID_TIME = "xid_errors_total", "xid_last_timestamp_seconds"
_MIG_SM, _MIG_TENSOR, _MIG_DRAM = "mig_sm_active_ratio", "mig_tensor_active_ratio", "mig_dram_bandwidth_ratio"
_MIG_USED, _MIG_TOTAL = "mig_memory_used_bytes", "mig_memory_total_bytes"
_OF_INSTANCE = {_MIG_SM: "sm_active_ratio", _MIG_TENSOR: "tensor_active_ratio", _MIG_DRAM: "dram_bandwidth_ratio"}
_OF_SAMPLING = {
    "gpu_info": "1, with the names of the GPU.",
    "up": "Whether the GPU could be read.",
    "sample_age_seconds": "Seconds since the GPU was read.",
    "sample_interval_seconds": "Seconds between two readings.",
    _THROTTLE: "Seconds for which clocks were held back, by reason.",
    "sampler_cpu_seconds_total": "CPU time that reading the GPUs took.",
    "samples_dropped_total": "Samples that were lost.",
    "samples_skipped_total": "Rounds that were due while another took too long.",
    "sample_seconds": "What reading a GPU took: mean, and what 99 % of the samples did not exceed.",
    _XID: "Errors that the driver told since the GPU is watched, by number.",
    _XID_TIME: "When the last one was, by number.",
    _MIG_SM: "Share of an instance's multiprocessors and time that had work.",
    _MIG_TENSOR: "Share of an instance's tensor cores and time in use.",
    _MIG_DRAM: "Bytes that an instance's memory moved, of its peak.",
    _MIG_USED: "Memory that processes hold, of an instance.",
    _MIG_TOTAL: "Memory of an instance.",
}


def metric_names() -> list[str]:
    """Every name that may be served."""
    return sorted({_PREFIX + name for name in (*_OF_SAMPLING, *(each.name for each in (*_OF_GPU, *_OF_HOST)))})


class Collector:
    """Collects the metrics for a scrape by prometheus-client. Any thread."""

    def __init__(self, monitor: GPUMonitor) -> None:
        self._monitor = monitor
        self._lock = shared_lock()  # of the counters
        self._counters: dict[tuple[str, tuple[str, ...]], float] = {}  # stay visible while a GPU cannot be read

    def collect(self) -> Iterator[Any]:
        """The families of metrics."""
        with self._lock:
            families = self._families()
        yield from families.values()

    def _families(self) -> dict[str, Any]:
        families: dict[str, Any] = {}
        cost = self._monitor.cost
        self._add(families, "sampler_cpu_seconds_total", cost.cpu_s, _OF_SAMPLING["sampler_cpu_seconds_total"], {})
        self._add(families, "samples_dropped_total", cost.dropped, _OF_SAMPLING["samples_dropped_total"], {})
        self._add(families, "samples_skipped_total", cost.skipped, _OF_SAMPLING["samples_skipped_total"], {})
        for statistic, seconds in (("mean", cost.mean_s), ("p99", cost.p99_s)):
            about = _OF_SAMPLING["sample_seconds"]
            self._add(families, "sample_seconds", seconds, about, {"statistic": statistic})
        samples = self._monitor.latest()
        for sample in samples:
            self._add_gpu(families, sample)
        if samples:
            for series in _OF_HOST:
                self._add(families, series.name, getattr(samples[0].host, series.figure), series.about, series.labels)
        return families

    def _add_gpu(self, families: dict[str, Any], sample: GpuSample) -> None:
        gpu = sample.gpu
        if gpu is None:
            return
        label = {"uuid": gpu.uuid or f"index-{gpu.index}"}
        names = {"index": str(gpu.index), "name": gpu.name, "pci": gpu.pci_address}
        self._add(families, "gpu_info", 1, _OF_SAMPLING["gpu_info"], label | names)
        self._add(families, "up", "all" not in gpu.why, _OF_SAMPLING["up"], label)
        age_s = max(0.0, (_core.now_ns() - sample.time_ns) / 1e9)  # the samples' clock ignores steps of the system's
        self._add(families, "sample_age_seconds", age_s, _OF_SAMPLING["sample_age_seconds"], label)
        interval_s = self._monitor.interval
        self._add(families, "sample_interval_seconds", interval_s, _OF_SAMPLING["sample_interval_seconds"], label)
        for series in _OF_GPU:
            self._add(families, series.name, getattr(gpu, series.figure), series.about, {**label, **series.labels})
        seen = {labels[1] for name, labels in self._counters if name == _THROTTLE and labels[0] == label["uuid"]}
        for reason in sorted(seen | {*gpu.throttled_s}):
            seconds = gpu.throttled_s.get(reason)
            self._add(families, _THROTTLE, seconds, _OF_SAMPLING[_THROTTLE], label | {"reason": reason})

        # Prometheus compares it with a correct clock. Whole seconds: it must not change between two scrapes.
        stepped_s = round((_core.realtime_ns() - _core.now_ns()) / 1e9)
        for error in gpu.xid_errors or ():
            number = label | {"xid": str(error.xid)}
            self._add(families, _XID, error.count, _OF_SAMPLING[_XID], number)
            self._add(families, _XID_TIME, error.last_ns / 1e9 + stepped_s, _OF_SAMPLING[_XID_TIME], number)
        for instance in gpu.instances or ():
            numbers = {"gpu_instance_id": instance.gpu_instance, "compute_instance_id": instance.compute_instance}
            which = label | {name: str(number) for name, number in numbers.items()}
            for name, figure in _OF_INSTANCE.items():
                self._add(families, name, instance.figures.get(figure), _OF_SAMPLING[name], which)
            self._add(families, _MIG_USED, instance.memory_used_bytes, _OF_SAMPLING[_MIG_USED], which)
            self._add(families, _MIG_TOTAL, instance.memory_total_bytes, _OF_SAMPLING[_MIG_TOTAL], which)

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


# dcgm-exporter's name of a figure of GpuState, and the size of its unit in ours.
_OF_DCGM: tuple[tuple[str, str, float], ...] = (
    ("DCGM_FI_DEV_GPU_UTIL", "busy_ratio", 0.01),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "memory_busy_ratio", 0.01),
    ("DCGM_FI_DEV_ENC_UTIL", "encoder_busy_ratio", 0.01),
    ("DCGM_FI_DEV_DEC_UTIL", "decoder_busy_ratio", 0.01),
    ("DCGM_FI_DEV_BAR1_USED", "bar1_used_bytes", float(1 << 20)),
    ("DCGM_FI_DEV_BAR1_TOTAL", "bar1_total_bytes", float(1 << 20)),
    ("DCGM_FI_DEV_SM_CLOCK", "sm_hz", 1e6),
    ("DCGM_FI_DEV_MEM_CLOCK", "memory_hz", 1e6),
    ("DCGM_FI_DEV_GPU_TEMP", "temperature_c", 1.0),
    ("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature_c", 1.0),
    ("DCGM_FI_DEV_POWER_USAGE", "power_w", 1.0),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "power_limit_w", 1.0),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_total_j", 1e-3),
    ("DCGM_FI_DEV_FAN_SPEED", "fan_ratio", 0.01),
    ("DCGM_FI_DEV_FB_USED", "memory_used_bytes", float(1 << 20)),
    ("DCGM_FI_DEV_FB_FREE", "memory_free_bytes", float(1 << 20)),
    ("DCGM_FI_DEV_FB_RESERVED", "memory_reserved_bytes", float(1 << 20)),
    ("DCGM_FI_DEV_FB_TOTAL", "memory_total_bytes", float(1 << 20)),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "ecc_corrected", 1.0),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "ecc_uncorrected", 1.0),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "remapping_pending", 1.0),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "remapping_failed", 1.0),
    ("DCGM_FI_PROF_SM_ACTIVE", "sm_active_ratio", 1.0),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "sm_occupancy_ratio", 1.0),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio", 1.0),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "fp64_active_ratio", 1.0),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32_active_ratio", 1.0),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "fp16_active_ratio", 1.0),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "dram_bandwidth_ratio", 1.0),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_received_bytes_per_s", 1.0),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_sent_bytes_per_s", 1.0),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", "nvlink_received_bytes_per_s", 1.0),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "nvlink_sent_bytes_per_s", 1.0),
)
_DCGM_XID = "DCGM_FI_DEV_XID_ERRORS"
_DCGM_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
_DCGM_INSTANCE = ("GPU_I_ID", "GPU_I_PROFILE")


class DcgmCollector:
    """The metrics under the names, labels and units of dcgm-exporter, for existing boards. Any thread."""

    def __init__(self, monitor: GPUMonitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterator[Any]:
        """The families of metrics; untyped, as dcgm-exporter's counters have no ``_total``."""
        from prometheus_client.core import UnknownMetricFamily

        families: dict[str, Any] = {}

        def add(name: str, value: float | None, scale: float, labels: Sequence[str], instance: Sequence[str]) -> None:
            if value is not None:
                listed = [*_DCGM_LABELS, *_DCGM_INSTANCE]
                family = families.setdefault(name, UnknownMetricFamily(name, name, labels=listed))
                family.add_metric([*labels, *instance], value / scale)

        for sample in self._monitor.latest():
            gpu = sample.gpu
            if gpu is None:
                continue
            index = str(gpu.index)
            labels = (index, gpu.uuid, gpu.pci_address, f"nvidia{index}", gpu.name, socket.gethostname())
            for name, figure, scale in _OF_DCGM:
                add(name, getattr(gpu, figure), scale, labels, ("", ""))
            if gpu.xid_errors is not None:
                last = max(gpu.xid_errors, key=lambda error: error.last_ns, default=None)
                add(_DCGM_XID, 0 if last is None else last.xid, 1.0, labels, ("", ""))
            # Compute instances ("1c.2g.20gb") share the figures of their GPU instance.
            for number, instance in {each.gpu_instance: each for each in gpu.instances or ()}.items():
                which = (str(number), instance.name.rpartition("MIG ")[2].rpartition("c.")[2])
                known = {**instance.figures, "memory_used_bytes": instance.memory_used_bytes}
                for name, figure, scale in _OF_DCGM:
                    add(name, known.get(figure), scale, labels, which)
        yield from families.values()


COLLECTORS: Mapping[str, Callable[[GPUMonitor], Any]] = {"gpuscope": Collector, "dcgm": DcgmCollector}
"""The collector of each naming scheme."""


@contextlib.contextmanager
def serve(monitor: GPUMonitor, port: int, names: str = "gpuscope") -> Iterator[None]:
    """Serves a monitor's latest samples at ``http://127.0.0.1:PORT/metrics`` while open; `names` are of `COLLECTORS`.

    Requests must name this machine in their Host header: localhost, any address, or a name of its own. For access from
    other machines, use a proxy.

    Raises:
        NotAvailable: prometheus-client is not installed, or the system refuses another thread.
        GpuscopeError: the port is not available.
    """
    try:
        from prometheus_client import CollectorRegistry, MetricsHandler
    except ImportError:
        raise NotAvailable(
            "--prometheus is not available: prometheus-client is not installed; pip install prometheus-client"
        ) from None
    figures = CollectorRegistry()
    figures.register(COLLECTORS[names](monitor))

    class Handler(LocalHandler, MetricsHandler):
        registry = figures

        def do_GET(self) -> None:  # noqa: N802 (the base class calls it so)
            try:
                super().do_GET()
            except OSError:  # the client has gone
                raise
            except Exception:  # prometheus-client raises for some Accept headers
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)

        do_HEAD = do_GET  # noqa: N815 (likewise)

        def end_headers(self) -> None:
            super().end_headers()
            if self.command == "HEAD":
                self.wfile = io.BytesIO()  # the body goes nowhere

    try:
        server = LocalServer(port, Handler)
    except OSError as error:
        raise GpuscopeError(f"cannot serve at {ADDRESS}:{port}: {error.strerror or error}") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        start_thread(thread.start, "--prometheus")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def board_paths(folder: Path) -> list[Path]:
    """The files that `write_board` writes, in the order of `BOARD_FILES`."""
    return [folder / f"gpuscope-{name}" for name in BOARD_FILES]


def write_board(folder: Path) -> list[Path]:
    """Writes Grafana's board and Prometheus' alert rules for these names into a folder, and returns the files.

    Raises:
        GpuscopeError: they cannot be written.
    """
    paths = board_paths(folder)
    for name, path in zip(BOARD_FILES, paths, strict=True):
        write_text(path, (resources.files("gpuscope.monitor") / "grafana" / name).read_text())
    return paths
