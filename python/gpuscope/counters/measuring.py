# SPDX-License-Identifier: Apache-2.0
"""`measure_counters`: exact values of hardware counters over a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, get_args

from gpuscope import _core
from gpuscope.arguments import check_count, check_done, check_function
from gpuscope.counters.names import MeasuredSet, check_names, list_counters, parse_counters
from gpuscope.devices import LARGEST
from gpuscope.errors import InvalidArgument
from gpuscope.results import Result
from gpuscope.streams import refuse_capture
from gpuscope.tables import align_columns
from gpuscope.text import brief


@dataclass(frozen=True, repr=False)
class CounterMeasurement(Result):
    """Values of hardware counters over one call.

    Attributes:
        values: value by metric, in its unit, in the order requested; nan if the GPU reported none.
        units: unit by metric, as "byte" or "percent"; metrics without a unit are missing.
        chip: CUPTI's name of it, "GH100".
        device: CUDA's number of the GPU.
        passes: number of measured calls. Metrics of different passes come from different calls.
        left_out: metrics of the set that need another pass or that this chip lacks.
    """

    values: dict[str, float]
    units: dict[str, str]
    chip: str
    device: int
    passes: int
    left_out: tuple[str, ...] = ()

    def __getitem__(self, metric: str) -> float:
        if metric not in self.values:
            raise InvalidArgument(f"metric is {brief(metric)}; measured were {', '.join(self.values)}")
        return self.values[metric]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "chip": self.chip,
            "device": self.device,
            "passes": self.passes,
            "values": {name: None if math.isnan(value) else value for name, value in self.values.items()},
            "units": self.units,
            "left_out": list(self.left_out),
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per metric."""
        return [
            {"metric": name, "value": value, "unit": self.units.get(name)}
            for name, value in self.to_dict()["values"].items()
        ]

    def __str__(self) -> str:
        calls = "1 call" if self.passes == 1 else f"{self.passes} calls, as many as these metrics take"
        lines = [f"{len(self.values)} metrics of {self.chip}, device {self.device}, over {calls}"]
        shown = {name: "not available" if math.isnan(each) else f"{each:,.6g}" for name, each in self.values.items()}
        rows = [(name, text, self.units.get(name, "")) for name, text in shown.items()]
        lines += [f"  {line}" for line in align_columns(rows, left=(0, 2))]
        if self.left_out:
            lines.append(
                f"  left out, as one pass has no room for them or this chip lacks them: {', '.join(self.left_out)}"
            )
        return "\n".join(lines)


def measure_counters(
    fn: Callable[[], Any], metrics: MeasuredSet | Iterable[str] = "overview", *, device: int = 0
) -> CounterMeasurement:
    """Measures hardware counters over a call of `fn`, exactly, by CUPTI's range profiler.

    `fn` is called once as warm-up and then once per pass; it must do the same work each time. All work on the device
    during a call counts. The device is synchronized before and after each call. `gpu__time_duration.sum` covers the
    whole range, some 0.1 ms more than its kernels (H100); `profile` reports the kernels' times.

    Args:
        fn: launches work on the primary context of the device, as PyTorch, CuPy and CUDA's runtime do.
        metrics: names with their endings, see ``gpuscope counters``, or "overview": the usual ones that this GPU
            measures in one pass.
        device: CUDA's number of the GPU.

    Raises:
        InvalidArgument: a metric does not exist (the message has the nearest ones), or a profiler runs.
        NotAvailable: there is no GPU, or its counters are not accessible; the message has the reason and the remedy.
    """
    check_function("fn", fn, "a function without arguments")
    names, in_full = parse_counters(metrics, "metrics", get_args(MeasuredSet))
    device = check_count("device", device, 0, LARGEST)
    left_out: tuple[str, ...] = ()
    if in_full:
        check_names(names, "metrics", sampling=False, device=device)
    else:
        chip = _core.counter_chip(device)
        names, unknown, too_many = _core.choose_counters(chip, sampling=False, wanted=names)
        left_out = (*unknown, *too_many)
    refuse_capture("measure_counters", device)
    check_done("fn", fn())
    again = True
    passes = 0
    # Closed explicitly: an exception of `fn` keeps this frame, and so the profiler, alive.
    with closing(_core.RangeCounters(device, names)) as profiler:
        while again:
            profiler.begin_pass()
            fn()
            again = profiler.end_pass()
            passes += 1
        values = dict(zip(names, profiler.read(), strict=True))
    return CounterMeasurement(values, _units(names, profiler.chip), profiler.chip, device, passes, left_out)


def _units(names: Iterable[str], chip: str) -> dict[str, str]:
    units = {counter.name: counter.unit for counter in list_counters(chip)}
    return {name: unit for name in names if (unit := unit_of(name, units))}


def unit_of(metric: str, units: dict[str, str]) -> str:
    """The unit of a metric with its ending, from the units of the counters."""
    base = max((base for base in units if metric.startswith(f"{base}.")), key=len, default="")
    ending = metric[len(base) :]
    if ".pct" in ending:
        return "percent"
    if not base:
        return ""
    is_per_cycle = ".per_cycle" in ending or ending.endswith(".peak_sustained")  # the maximum of a cycle
    return units[base] + ("/s" if ending.endswith(".per_second") else "/cycle" if is_per_cycle else "")
