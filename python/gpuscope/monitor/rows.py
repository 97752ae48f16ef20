# SPDX-License-Identifier: Apache-2.0
"""Samples as rows of text, a line for each GPU and moment: for pipes, files and terminals that scroll.

A machine without a GPU has columns of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from gpuscope.monitor.history import LATELY_S, MINUTE_S, NO_GPU, History, Moment
from gpuscope.monitor.panels import cut, number
from gpuscope.monitor.sample import GpuSample

_GIB, _GB = 1 << 30, 1e9
_ROWS_A_HEADER = 24  # of a terminal's height
_WIDTH = 80


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f}"


def _gib(size: float | None) -> str:
    return number(size, _GIB, 1 if size is None or size < 99.95 * _GIB else 0)


def _figure(name: str) -> Callable[[Moment], float | None]:
    return lambda moment: None if moment.gpu is None else getattr(moment.gpu, name)


# Title, unit, width, text.
_COLUMNS: tuple[tuple[str, str, int, Callable[[Moment], str]], ...] = (
    ("gpu", "", 3, lambda at: "-" if at.gpu is None else str(at.gpu.index)),
    ("sm", "%", 3, lambda at: _percent(_figure("sm_active_ratio")(at))),
    ("tens", "%", 4, lambda at: _percent(_figure("tensor_active_ratio")(at))),
    ("dram", "%", 4, lambda at: _percent(_figure("dram_bandwidth_ratio")(at))),
    ("busy", "%", 4, lambda at: _percent(_figure("busy_ratio")(at))),
    ("enc", "%", 3, lambda at: _percent(_figure("encoder_busy_ratio")(at))),
    ("dec", "%", 3, lambda at: _percent(_figure("decoder_busy_ratio")(at))),
    ("mem", "GiB", 4, lambda at: _gib(_figure("memory_used_bytes")(at))),
    ("pwr", "W", 4, lambda at: number(_figure("power_w")(at))),
    ("tmp", "C", 3, lambda at: number(_figure("temperature_c")(at))),
    ("clk", "MHz", 4, lambda at: number(_figure("sm_hz")(at), 1e6)),
    ("thr", "%", 3, lambda at: _percent(at.throttled_share)),
    ("rx", "GB/s", 4, lambda at: number(at.pcie_bytes_per_s[0], _GB, 1)),
    ("tx", "GB/s", 4, lambda at: number(at.pcie_bytes_per_s[1], _GB, 1)),
    ("cpu", "%", 3, lambda at: _percent(at.machine_cpu_ratio)),
)
_HOST_COLUMNS: tuple[tuple[str, str, int, Callable[[Moment], str]], ...] = (
    ("cpu", "%", 3, lambda at: _percent(at.machine_cpu_ratio)),
    ("ram", "GiB", 5, lambda at: number(at.sample.host.machine_memory_used_bytes, _GIB, 1)),
    ("of", "GiB", 5, lambda at: number(at.sample.host.machine_memory_total_bytes, _GIB, 1)),
    ("wcpu", "%", 4, lambda at: _percent(at.host_rate("cpu_pressure_s"))),
    ("wdisk", "%", 5, lambda at: _percent(at.host_rate("io_pressure_s"))),
    ("wram", "%", 4, lambda at: _percent(at.host_rate("memory_pressure_s"))),
)


class SampleRows:
    """Lines of samples as they come, with repeated headers: 80 columns.

    ``-`` is an unknown value. ``enc`` and ``dec`` are the shares of time in which the video encoder and decoder worked.
    ``thr`` is the share of the last minute in which clocks were throttled. ``rx`` and ``tx`` are bytes from and to the
    host. ``cpu`` is the used share of the machine's CPUs. Without a GPU, ``wcpu``, ``wdisk`` and ``wram`` are shares of
    time in which some task waited for a CPU, storage or memory.

    Args:
        before: earlier samples without lines of their own, for growth of counters.
        busiest: returns the user's process that uses most CPU, for rows of a machine without a GPU.
    """

    def __init__(self, before: Iterable[GpuSample] = (), busiest: Callable[[], str] | None = None) -> None:
        self._busiest = busiest
        self._has_gpu = True  # whether the latest row has one
        self._lately = History()
        self._readings = History()  # samples with a new reading of throttled seconds
        self._read_ns: dict[int, tuple[int, int]] = {}
        self._rows = 0
        for sample in before:
            self._add(sample)

    def lines(self, samples: Iterable[GpuSample]) -> Iterator[str]:
        """The samples' lines."""
        for sample in samples:
            has_gpu = sample.gpu is not None
            if self._rows % _ROWS_A_HEADER == 0 or has_gpu != self._has_gpu:
                yield from header(has_gpu, self._busiest is not None)
                self._rows = 0
            self._rows += 1
            self._has_gpu = has_gpu
            yield row(self._moment(sample), "" if has_gpu or self._busiest is None else self._busiest())

    def _moment(self, sample: GpuSample) -> Moment:
        gpu = self._add(sample)
        minute = self._readings.window(gpu, MINUTE_S, sample.time_ns)
        return Moment(sample, minute, self._lately.window(gpu, LATELY_S, sample.time_ns))

    def _add(self, sample: GpuSample) -> int:
        """Adds the sample; returns its GPU's number."""
        gpu = NO_GPU if sample.gpu is None else sample.gpu.index
        self._lately.append([sample])
        read_ns = (sample.slow_time_ns, sample.rare_time_ns)
        if self._read_ns.get(gpu) != read_ns:
            self._read_ns[gpu] = read_ns
            self._readings.append([sample])
        return gpu


def header(has_gpu: bool = True, has_busiest: bool = False) -> list[str]:
    """Names and units."""
    columns = _COLUMNS if has_gpu else _HOST_COLUMNS
    titles = " ".join(f"{title:>{width}}" for title, _, width, _ in columns)
    units = " ".join(f"{unit:>{width}}" for _, unit, width, _ in columns)
    busiest = "  your busiest process" if has_busiest and not has_gpu else ""
    return [f"#{'time':<11} {titles}{busiest}", f"#{'':<11} {units}"]


def row(at: Moment, busiest: str = "") -> str:
    """A row of a GPU or host at a moment, followed by its problems or a process."""
    when = datetime.fromtimestamp(at.sample.time_ns / 1e9).strftime("%H:%M:%S.%f")[:-3]
    columns = _HOST_COLUMNS if at.gpu is None else _COLUMNS
    line = f"{when} {' '.join(f'{text(at):>{width}}' for _, _, width, text in columns)}"
    if at.gpu is None:
        return "".join(text for text, _ in cut([(f"{line}  {busiest}".rstrip(), "")], _WIDTH))
    return line if "all" not in at.gpu.why else f"{line}  {at.gpu.why['all']}"
