# SPDX-License-Identifier: Apache-2.0
"""Units: prints figures, and parses sizes, times and shares."""

from __future__ import annotations

import math
import re
import time
from typing import Literal

from gpuscope.errors import InvalidArgument
from gpuscope.text import brief, one_line

TimeUnit = Literal["s", "ms", "us"]
US_PER_S = 1e6
US_PER_MS = 1e3

_BINARY = ("KiB", "MiB", "GiB", "TiB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_PARSED_SECONDS = {"min": 60.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0}
_PARSED_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for suffix, base in (("B", 1000), ("IB", 1024))
}
_MOST_BYTES = (1 << 63) - 1  # that the core can count
_YEAR_2000_NS = 946_684_800 * 10**9
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def format_bytes(size: float, *, signed: bool = False) -> str:
    """A number of bytes with a binary unit and three digits: "1.50 GiB", "-20.0 MiB", "512 B".

    Args:
        size: bytes.
        signed: whether a value above 0 has a plus.
    """
    sign = "-" if size < 0 else "+" if signed and size > 0 else ""
    left = abs(float(size))
    if left < 1024:
        return f"{sign}{left:.0f} B"
    for unit in _BINARY:
        left /= 1024
        if left < 999.5 or unit == _BINARY[-1]:
            break
    return f"{sign}{_rounded(left)} {unit}"


def format_seconds(seconds: float | None, digits: int = 3) -> str:
    """A time in the unit that suits, as "1.23 ms" with three digits; "-" for None."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    # From 999.5 up, three digits would read 1000 of the smaller unit; the last term is for rounding errors.
    rounded = 1 - 0.5 * 10**-digits - 1e-12
    size, unit = next((pair for pair in _SECONDS if abs(seconds) >= rounded * pair[0]), _SECONDS[-1])
    return f"{_rounded(seconds / size, digits)} {unit}"


def format_date(time_ns: int) -> str:
    """A time since 1970 as "2026-11-24 01:56:06"; empty before 2000, as such a time is of another clock.

    Args:
        time_ns: ns.
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9)) if time_ns >= _YEAR_2000_NS else ""


def format_time(time_us: float, unit: TimeUnit | None = None) -> str:
    """A time as torch.profiler's tables write it, "1.234ms".

    Args:
        time_us: microseconds.
        unit: "s", "ms" or "us"; None for the largest that leaves one digit before the point.
    """
    if unit == "s" or (unit is None and time_us >= US_PER_S):
        return f"{time_us / US_PER_S:.3f}s"
    if unit == "ms" or (unit is None and time_us >= US_PER_MS):
        return f"{time_us / US_PER_MS:.3f}ms"
    return f"{time_us:.3f}us"


def format_memory(size: int) -> str:
    """A number of bytes as torch.profiler's tables write it: in B, KB (1024 B), MB or GB."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"


def format_digits(value: float) -> str:
    """Three significant digits without an exponent: "1,230", "4.56", "0.0789"."""
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    # Three digits of a value above 9.995 would read 10.00.
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value / 0.9995)))}f}"


def format_rough(value: float) -> str:
    """Two significant digits without an exponent: "0.045", "1.2", "150"."""
    return f"{value:.2g}" if abs(value) < 99.5 else f"{float(f'{value:.2g}'):.0f}"


def format_times(value: float) -> str:
    """A factor: "3.21x"."""
    return f"{format_digits(value)}x"


def format_share(share: float) -> str:
    """A share in percent: "3.4 %"."""
    return f"{100 * share:.3g} %"


def format_change(ratio: float) -> str:
    """A ratio as a change: "+12.0%"."""
    return f"{100 * (ratio - 1):+.1f}%" if math.isfinite(ratio) else "+inf"


# Rates beyond these do not occur, and would have hundreds of digits.
_LEAST_DIGITS, _MOST_DIGITS = 1e-6, 1e21


def format_rate(value: float, unit: str) -> str:
    """A rate per second: "1.23 TFLOP/s", "4.56 M items/s"."""
    if value >= _MOST_DIGITS:
        return f"{value:.3g} {unit}/s"
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{format_digits(value / size)} {prefix}{' ' if unit == 'items' else ''}{unit}/s"
    return f"{format_digits(value) if value >= _LEAST_DIGITS else f'{value:.3g}'} {unit}/s"


def first_line(text: str | BaseException) -> str:
    """The first line of a text; of an error its class and the first line of its message."""
    try:
        message = str(text)
    except Exception:  # of an error's own
        message = ""
    line = one_line(message.strip().partition("\n")[0].rstrip())
    if isinstance(text, BaseException):
        return f"{type(text).__name__}: {line}".rstrip(": ")
    return line


def parse_bytes(argument: str, value: int | str, minimum: int = 1) -> int:
    """Reads a size: an integer of bytes, or text with its unit, as ``512MB`` (10**6 bytes each) or ``1.5 GiB`` (2**30).

    Args:
        argument: the value's name in the error message.
        value: the user's value.
        minimum: the fewest bytes accepted.

    Raises:
        InvalidArgument: the value is not a size, smaller than `minimum`, or 8 EiB and more.
    """
    size: float | None = None
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        unit = _PARSED_BYTES.get(match[2].upper()) if match else None
        size = float(match[1]) * unit if match and unit else None
    elif hasattr(value, "__index__") and not isinstance(value, bool):
        size = int(value.__index__())
    if size is None or not minimum <= size <= _MOST_BYTES:
        raise InvalidArgument(
            f"{argument} is {brief(value)}; accepted are text with a unit, as '512MB' or '1GiB', and an int of bytes, "
            f"at least {minimum} and below 8 EiB"
        )
    return int(size)


def parse_seconds(text: str) -> float:
    """Seconds above 0 from text with its unit: ``2s``, ``500ms``, ``100us``, ``50ns`` or ``1min``.

    Raises:
        InvalidArgument: it is no such time.
    """
    stripped = text.strip()
    unit = next((unit for unit in _PARSED_SECONDS if stripped.endswith(unit)), "")
    value = _number(stripped.removesuffix(unit)) * _PARSED_SECONDS.get(unit, math.nan)
    if not 0 < value < math.inf:
        raise InvalidArgument(f"{brief(text)} is not a time above 0 with its unit, as 5ms, 2s or 1min")
    return value


def parse_share(text: str) -> float:
    """A fraction above 0 and below 1 from ``1%`` or ``0.01``.

    Raises:
        InvalidArgument: it is no such fraction.
    """
    number, percent, rest = text.strip().partition("%")
    value = _number(number) / (100 if percent else 1)
    if rest or not 0 < value < 1:
        raise InvalidArgument(f"{brief(text)} is not a share above 0 and below 1, as 1% or 0.01")
    return value


def _rounded(value: float, digits: int = 3) -> str:
    """A value with `digits` digits in total; digits after the point only if fewer are before it."""
    before = next((n for n in range(1, digits) if abs(value) < 10**n - 0.5 * 10 ** (n - digits)), digits)
    return f"{value:.{digits - before}f}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
