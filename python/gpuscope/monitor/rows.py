# SPDX-License-Identifier: Apache-2.0
"""Samples as rows of text, a line for each GPU and moment: for pipes, files and terminals that scroll."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from gpuscope.monitor.history import LATELY_S, MINUTE_S, NO_GPU, History, Moment
from gpuscope.monitor.sample import GpuSample

_GIB, _GB = 1 << 30, 1e9
_ROWS_A_HEADER = 24  # of a terminal's height


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f}"


def _number(value: float | None, unit: float = 1.0, digits: int = 0) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


def _figure(name: str) -> Callable[[Moment], float | None]:
    return lambda moment: None if moment.gpu is None else getattr(moment.gpu, name)


# Title, unit, width, text.
_COLUMNS: tuple[tuple[str, str, int, Callable[[Moment], str]], ...] = (
    ("gpu", "", 3, lambda at: "-" if at.gpu is None else str(at.gpu.index)),
    ("sm", "%", 3, lambda at: _percent(_figure("sm_active_ratio")(at))),
    ("tens", "%", 4, lambda at: _percent(_figure("tensor_active_ratio")(at))),
    ("dram", "%", 4, lambda at: _percent(_figure("dram_bandwidth_ratio")(at))),
    ("busy", "%", 4, lambda at: _percent(_figure("busy_ratio")(at))),
    ("mem", "GiB", 5, lambda at: _number(_figure("memory_used_bytes")(at), _GIB, 1)),
    ("pwr", "W", 4, lambda at: _number(_figure("power_w")(at))),
    ("temp", "C", 4, lambda at: _number(_figure("temperature_c")(at))),
    ("clk", "MHz", 4, lambda at: _number(_figure("sm_hz")(at), 1e6)),
    ("thr", "%", 3, lambda at: _percent(at.throttled_share)),
    ("rx", "GB/s", 4, lambda at: _number(at.pcie_bytes_per_s[0], _GB, 1)),
    ("tx", "GB/s", 4, lambda at: _number(at.pcie_bytes_per_s[1], _GB, 1)),
    ("cpu", "%", 3, lambda at: _percent(at.machine_cpu_ratio)),
)


class Rows:
    """Lines of samples as they come, with a header now and then: 77 columns.

    ``-`` is what is not known. ``thr`` is the share of the last minute in which clocks were held back, ``rx`` and
    ``tx`` are bytes from and to the host, ``cpu`` the share of the machine's CPUs that is used.

    Args:
        before: samples that have no line of their own, which what follows is seen against.
    """

    def __init__(self, before: Iterable[GpuSample] = ()) -> None:
        self._lately = History()
        self._readings = History()  # samples whose seconds of throttling were read anew
        self._read_ns: dict[int, tuple[int, int]] = {}
        self._rows = 0
        for sample in before:
            self._add(sample)

    def lines(self, samples: Iterable[GpuSample]) -> Iterator[str]:
        """The samples' lines."""
        for sample in samples:
            if self._rows % _ROWS_A_HEADER == 0:
                yield from header()
            self._rows += 1
            yield row(self._moment(sample))

    def _moment(self, sample: GpuSample) -> Moment:
        gpu = self._add(sample)
        minute = self._readings.window(gpu, MINUTE_S, sample.time_ns)
        return Moment(sample, minute, self._lately.window(gpu, LATELY_S, sample.time_ns))

    def _add(self, sample: GpuSample) -> int:
        """Takes it into account; says of which GPU it is."""
        gpu = NO_GPU if sample.gpu is None else sample.gpu.index
        self._lately.append([sample])
        read_ns = (sample.slow_time_ns, sample.rare_time_ns)
        if self._read_ns.get(gpu) != read_ns:
            self._read_ns[gpu] = read_ns
            self._readings.append([sample])
        return gpu


def header() -> list[str]:
    """Names and units."""
    titles = " ".join(f"{title:>{width}}" for title, _, width, _ in _COLUMNS)
    units = " ".join(f"{unit:>{width}}" for _, unit, width, _ in _COLUMNS)
    return [f"#{'time':<11} {titles}", f"#{'':<11} {units}"]


def row(at: Moment) -> str:
    """A GPU at a moment; what is wrong with it behind the columns."""
    when = datetime.fromtimestamp(at.sample.time_ns / 1e9).strftime("%H:%M:%S.%f")[:-3]
    cells = " ".join(f"{text(at):>{width}}" for _, _, width, text in _COLUMNS)
    lost = "" if at.gpu is None or "all" not in at.gpu.why else f"  {at.gpu.why['all']}"
    return f"{when} {cells}{lost}"
