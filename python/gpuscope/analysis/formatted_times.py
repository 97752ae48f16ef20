# SPDX-License-Identifier: Apache-2.0
"""Times as texts, under torch.profiler's names."""

from __future__ import annotations

from gpuscope.analysis.table import format_time


def _text_of(name: str) -> property:
    def text(self: object) -> str:
        return format_time(getattr(self, name))

    return property(text, doc=f"``{name}`` with its unit.")


class FormattedTimes:
    """Gives a class with times in us the same as texts."""

    __slots__ = ()

    cpu_time_str = _text_of("cpu_time")
    cpu_time_total_str = _text_of("cpu_time_total")
    self_cpu_time_total_str = _text_of("self_cpu_time_total")
    device_time_str = _text_of("device_time")
    device_time_total_str = _text_of("device_time_total")
    self_device_time_total_str = _text_of("self_device_time_total")
