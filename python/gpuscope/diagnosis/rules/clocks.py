# SPDX-License-Identifier: Apache-2.0
"""Throttled GPU clocks: heat, the power supply, or a lowered limit.

Reaching the default power limit under full load is not a finding. NVML's mask of reasons is not enough evidence: it has
no durations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import numpy as np

from gpuscope.analysis.device_samples import NOT_READ, DeviceReadings, Series, why_not_sampled
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import Cause, Rule
from gpuscope.steps.steps import Array
from gpuscope.units import format_share

_POWER = "sw_power_cap"
_HELD_BACK = {
    "sw_thermal_slowdown": "it is too hot",
    "hw_thermal_slowdown": "it is so hot that the hardware halves them",
    "hw_power_brake_slowdown": "the machine's power supply limits it",
    "sync_boost": "a slower GPU of its group limits it",
}
_COOLING = (
    "improve cooling (many GPUs throttle from 83 C on): fans, dust, air between cards, room temperature; or lower the "
    "power limit: nvidia-smi -pl WATTS"
)
_ADVICE = {
    "sw_thermal_slowdown": _COOLING,
    "hw_thermal_slowdown": _COOLING,
    "hw_power_brake_slowdown": "check the machine's power supply, or its limit for all GPUs",
    "sync_boost": "leave the group: nvidia-smi boost-slider, or DCGM's sync boost groups",
}
_APPLICATION_CLOCKS = 0x2  # of nvmlClocksEventReasons
_FEWEST = 2  # samples
_LEAST_BELOW = 0.03  # of the clock, which has steps of 15 MHz
_BUSY = 50  # percent


def _readings(context: Context) -> DeviceReadings | None:
    return DeviceReadings(context.trace, context.device.device) if context.device is not None else None


def _throttled(context: Context) -> Iterator[Cause]:
    readings = _readings(context)
    if readings is None or len(context.kernels) == 0:
        return
    known = {reason: readings.counter(f"{reason}_ns")[0] for reason in _HELD_BACK}
    held = {reason: _grown(context, series) for reason, series in known.items() if series is not None}
    total = {reason: float(each.sum()) for reason, each in held.items()}
    if not any(total.values()):
        return
    worst = max(total, key=lambda reason: total[reason])
    evidence = {
        reason.replace("_", " "): f"{format_share(_of_kernels(context, each))} of the time"
        for reason, each in held.items()
        if each.any()
    }
    temperature = readings.series("temperature_c")
    if temperature is not None:
        evidence["temperature"] = f"up to {temperature.values.max():.0f} C"
    title = f"the GPU throttles its clocks: {_HELD_BACK[worst]}"
    yield from _cause(context, readings, title, _ADVICE[worst], reduce(np.maximum, held.values()), evidence)


def _lowered(context: Context) -> Iterator[Cause]:
    readings = _readings(context)
    if readings is None or len(context.kernels) == 0:
        return
    limit, usual = readings.series("power_limit_mw"), readings.series("power_limit_default_mw")
    power, _ = readings.counter(f"{_POWER}_ns")
    if limit is not None and usual is not None and power is not None and limit.values.max() < usual.values.max():
        held = _grown(context, power)
        if held.any():
            watts = [f"{series.values.max() / 1e3:.0f} W" for series in (limit, usual)]
            yield from _cause(
                context,
                readings,
                "a lowered power limit throttles the GPU's clocks",
                f"raise it if cooling allows: nvidia-smi -i {readings.device} -pl {usual.values.max() / 1e3:.0f}",
                held,
                {
                    "limit": f"{watts[0]}, default {watts[1]}",
                    "throttles": f"{format_share(_of_kernels(context, held))} of the time",
                },
            )
    yield from _application_clocks(context, readings)


def _application_clocks(context: Context, readings: DeviceReadings) -> Iterator[Cause]:
    """A lowered application clock: every sample of a busy GPU names it as the reason for its clock."""
    table = context.trace.device_samples
    here = (table.device == readings.device) & (table.throttle_reasons != NOT_READ) & (table.busy_percent >= _BUSY)
    first_ns, last_ns = int(context.steps.start_ns[0]), int(context.steps.end_ns[-1])
    here &= (table.start_ns >= first_ns) & (table.start_ns <= last_ns)
    rows = np.flatnonzero(here)
    if len(rows) < _FEWEST or not ((table.throttle_reasons[rows] & _APPLICATION_CLOCKS) != 0).all():
        return
    yield from _cause(
        context,
        readings,
        "the GPU's clock is set below its maximum",
        f"reset it: nvidia-smi -i {readings.device} -rac (and -rgc)",
        context.duration_ns[context.kernels].astype(np.float64),
        {"set clock": f"{int(np.median(table.sm_mhz[rows]))} MHz"},
    )


def _cause(
    context: Context, readings: DeviceReadings, title: str, advice: str, held_ns: Array, evidence: dict[str, str]
) -> Iterator[Cause]:
    """Each kernel was throttled for `held_ns`; it would be shorter by the share that its clock was too low."""
    clock, most = readings.clock, _free_clock(readings)
    if clock is None or most is None:
        return
    assert context.device is not None
    start, duration = context.start_ns[context.kernels], context.duration_ns[context.kernels].astype(np.float64)
    mean = clock.integral(start, start + context.duration_ns[context.kernels]) / np.maximum(duration, 1.0)
    below = np.clip(1 - mean / most, 0.0, 1.0)
    below = np.where(below < _LEAST_BELOW, 0.0, below)
    lost = np.minimum(held_ns, duration) * below
    if not lost.any():
        return
    chosen = lost > 0
    clocks = f"{float((mean * held_ns).sum() / held_ns.sum()):.0f} of {most:.0f} MHz"
    yield Cause(
        title,
        advice,
        Edit(
            kernels=context.device.work.rows[context.kernels[chosen]],
            kernel_factors=1 - lost[chosen] / np.maximum(duration[chosen], 1.0),
        ),
        evidence={**evidence, "mean clock": clocks},
    )


def _free_clock(readings: DeviceReadings) -> float | None:
    """The clock without throttling, in MHz."""
    most = readings.series("sm_max_mhz")
    if most is not None:
        return float(most.values.max())
    return float(readings.clock.values.max()) if readings.clock is not None else None


def _grown(context: Context, counter: Series) -> Array:
    """Growth of the counter during each kernel of the context, in ns."""
    start = context.start_ns[context.kernels]
    found: Array = np.maximum(counter.at(start + context.duration_ns[context.kernels]) - counter.at(start), 0.0)
    return found


def _of_kernels(context: Context, held_ns: Array) -> float:
    return float(held_ns.sum()) / max(float(context.duration_ns[context.kernels].sum()), 1.0)


def _needs_any(*reasons: str) -> Callable[[Context], str | None]:
    def missing(context: Context) -> str | None:
        readings = _readings(context)
        if readings is None or any(readings.counter(f"{reason}_ns")[0] is not None for reason in reasons):
            return None
        return f"clock throttling: {why_not_sampled(context.trace, readings.device, f'{reasons[0]}_ns')}"

    return missing


RULES = (
    Rule("R43", "clock throttling", _throttled, 0.02, _needs_any(*_HELD_BACK)),
    Rule("R44", "lowered clocks or power limit", _lowered, 0.03, _needs_any(_POWER)),
)
