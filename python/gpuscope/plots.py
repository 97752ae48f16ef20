# SPDX-License-Identifier: Apache-2.0
"""Plots of results with Matplotlib, which is optional: bars, distributions, series, stacked steps, rooflines.

Limits of axes come from quantiles, so that one outlier does not flatten the rest. Values beyond them are triangles at
the edge, counted in the axis' label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.text import one_line, shorten

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

# Okabe and Ito's colours, for readers with colour blindness, and grey for idle time and the like.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288", "#88ccee")
GREY = "#b8b8b8"
SLOWER, FASTER, UNSURE = "#d55e00", "#009e73", GREY

_FENCE = 3.0  # interquartile ranges beyond the quartiles: Tukey's outer fence
_MARGIN = 0.05
_ROUNDING = 1e-9
_LONGEST_NAME = 48
_SCALES: Mapping[str, Sequence[tuple[float, str]]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ")),
}


def axes(ax: Axes | None = None, *, title: str = "", width: float = 8.0, height: float = 3.6) -> Axes:
    """The axes given, or those of a new figure.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise NotAvailable("plot is not available: Matplotlib is not installed; pip install matplotlib") from None
    if ax is None:
        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    ax.set_title(_safe(one_line(title)), fontsize="medium", loc="left")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def axes_below_each_other(count: int) -> list[Axes]:
    """`count` axes below each other in a new figure, with one shared x axis.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    first = axes(height=1.9 * max(1, count))
    figure = first.figure
    first.remove()
    found: list[Axes] = [*figure.subplots(max(1, count), 1, sharex=True, squeeze=False)[:, 0]]
    return found


def robust_limits(values: ArrayLike) -> tuple[float, float, int]:
    """The range of the values within 3 interquartile ranges of the quartiles, and the number of values outside.

    Args:
        values: any shape; values that are not finite are left out.
    """
    known = np.asarray(values, np.float64).ravel()
    known = known[np.isfinite(known)]
    if not len(known):
        return 0.0, 1.0, 0
    first, third = np.quantile(known, (0.25, 0.75))
    reach = _FENCE * (third - first) or _MARGIN * abs(third)  # more than half of them are one value
    inside = known[(known >= first - reach) & (known <= third + reach)]
    return float(inside.min()), float(inside.max()), len(known) - len(inside)


def distribution(
    series: Mapping[str, ArrayLike], *, ax: Axes | None = None, title: str = "", what: str = "time"
) -> Axes:
    """A histogram of samples in seconds, one a series, with a line at each median.

    Raises:
        NotAvailable: Matplotlib is not installed.
        InvalidArgument: there are no samples.
    """
    arrays = {name: np.asarray(samples, np.float64).ravel() for name, samples in series.items()}
    together = np.concatenate([np.zeros(0), *arrays.values()])
    if not len(together):
        raise InvalidArgument("there are no samples to plot; accepted is at least one")
    ax = axes(ax, title=title)
    low, high, _ = robust_limits(together)
    size, unit = _unit(together, "s")
    inside = together[(together >= low) & (together <= high)] / size
    if inside.size and np.ptp(inside) <= _ROUNDING * np.abs(inside).max():
        inside = inside[:1]  # values that differ only by rounding are too close for bins
    bins = np.histogram_bin_edges(inside, "auto")
    if len(bins) > 100:
        bins = np.linspace(bins[0], bins[-1], 101)
    for (name, samples), colour in zip(arrays.items(), _cycle(len(arrays)), strict=True):
        ax.hist(samples / size, bins.tolist(), alpha=0.55, color=colour, label=f"{name} ({len(samples)})".strip())
        ax.axvline(float(np.median(samples)) / size, color=colour, linewidth=1.5)
    _limit(ax, "x", low / size, high / size)
    ax.set_xlabel(f"{what} ({unit}){_beyond(together / size, low / size, high / size, unit)}")
    ax.set_ylabel("samples")
    if len(arrays) > 1:
        ax.legend(frameon=False)
    return ax


def sequence(values: ArrayLike, *, ax: Axes | None = None, title: str = "", of: str = "step") -> Axes:
    """Times in seconds, one after the other, and their median.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    times = np.asarray(values, np.float64)
    ax = axes(ax, title=title)
    size, unit = _unit(times, "s")
    low, high, _ = robust_limits(times)
    numbers = np.arange(len(times))
    ax.plot(numbers, times / size, ".-", color=COLOURS[0], linewidth=0.8, markersize=4)
    ax.axhline(float(np.median(times)) / size, color=COLOURS[5], linewidth=1)
    _limit(ax, "y", low / size, high / size)
    _mark(ax, numbers, times / size, low / size, high / size)
    ax.set_xlabel(of)
    ax.set_ylabel(f"time ({unit}){_beyond(times / size, low / size, high / size, unit)}")
    return ax


def bars(
    names: Sequence[str],
    values: ArrayLike,
    *,
    quantity: str = "s",
    what: str = "time",
    intervals: Sequence[tuple[float, float]] = (),
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """One bar for each name, in order from the top.

    Args:
        names: of the bars.
        values: one each, not below 0.
        quantity: "s", "B" or "J".
        what: the meaning of the values.
        intervals: low and high of each, or None; a wide interval may exceed the axis.
        ax: where to draw.
        title: above it.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    heights = np.asarray(values, np.float64)
    ax = axes(ax, title=title, height=1.2 + 0.26 * max(1, len(names)))
    size, unit = _unit(heights, quantity)
    ends = np.asarray(intervals or np.column_stack([heights, heights]), np.float64).reshape(-1, 2) / size
    reach = np.abs(ends - heights[:, None] / size).T if intervals else None
    ax.barh(np.arange(len(names)), heights / size, color=COLOURS[0], height=0.7, xerr=reach, ecolor="#444444")
    right = min(ends[:, 1].max(initial=0.0), 2 * heights.max(initial=0.0) / size)
    for at, (height, end) in enumerate(zip(heights / size, np.minimum(ends[:, 1], right), strict=True)):
        ax.annotate(f"{height:.3g}", (end, at), (3, 0), textcoords="offset points", va="center", fontsize="small")
    _names(ax, names)
    ax.set_xlabel(f"{what} ({unit})")
    ax.set_xlim(0, 1.12 * right or 1.0)
    return ax


def stacked(
    parts: Mapping[str, tuple[ArrayLike, bool]], *, ax: Axes | None = None, title: str = "", of: str = "step"
) -> Axes:
    """The parts of each step in seconds on top of each other, one bar a step.

    Args:
        parts: by name, the seconds of each step, and whether it is idle time, which is grey.
        ax: where to draw.
        title: above it.
        of: the meaning of a bar.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    layers = {name: (np.asarray(values, np.float64), idle) for name, (values, idle) in parts.items()}
    totals = np.sum([values for values, _ in layers.values()], axis=0) if layers else np.zeros(0)
    ax = axes(ax, title=title, width=9.5, height=4.2)
    size, unit = _unit(totals, "s")
    numbers, floor = np.arange(len(totals)), np.zeros(len(totals))
    colours = iter(_cycle(sum(not idle for _, idle in layers.values())))
    hatches = iter(("", "//", "..", "\\\\", "xx", "--", "++", "oo", "||", "**") * 2)
    for name, (values, idle) in layers.items():
        colour, hatch = ("#dddddd", next(hatches)) if idle else (next(colours), "")
        ax.bar(
            numbers,
            values / size,
            0.9,
            bottom=floor / size,
            label=_safe(name),
            color=colour,
            hatch=hatch,
            edgecolor="#999999",
            linewidth=0,
        )
        floor = floor + values
    _, high, _ = robust_limits(totals)
    ax.set_ylim(0, (high / size) * (1 + _MARGIN) or 1)
    _mark(ax, numbers, totals / size, 0.0, high / size)
    ax.set_xlabel(of)
    ax.set_ylabel(f"time ({unit}){_beyond(totals / size, 0.0, high / size, unit)}")
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def levels(
    seconds: ArrayLike, parts: Mapping[str, ArrayLike], *, what: str, ax: Axes | None = None, title: str = ""
) -> Axes:
    """Bytes, constant from each moment to the next, as memory in use: its parts on top of each other.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    times = np.asarray(seconds, np.float64)
    layers = {name: np.asarray(values, np.float64) for name, values in parts.items()}
    ax = axes(ax, title=title)
    size, unit = _unit(np.sum([*layers.values()], axis=0) if layers else np.zeros(1), "B")
    per, time_unit = _unit(times, "s")
    floor = np.zeros(len(times))
    for (name, values), colour in zip(layers.items(), _cycle(len(layers)), strict=True):
        top = floor + values / size
        ax.fill_between(times / per, floor, top, step="post", color=colour, alpha=0.7, linewidth=0, label=_safe(name))
        floor = top
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"time ({time_unit})")
    ax.set_ylabel(f"{what} ({unit})")
    if len(layers) > 1:
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def curves(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    across: str,
    up: str,
    robust: bool = True,
    marker: str = "",
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """A line for each series of x and y; values that are not finite are gaps.

    Args:
        series: x and y by name.
        across: label of x.
        up: label of y.
        robust: limit the axis by `robust_limits`.
        marker: Matplotlib's, at each point, if there are few.
        ax: where to draw.
        title: above it.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    ax = axes(ax, title=title, height=2.4)
    lines = {name: (np.asarray(x, np.float64), np.asarray(y, np.float64)) for name, (x, y) in series.items()}
    for (name, (x, y)), colour in zip(lines.items(), _cycle(len(lines)), strict=True):
        ax.plot(x, y, color=colour, linewidth=1.2, marker=marker, label=_safe(name))
    together = np.concatenate([np.zeros(0), *(y for _, y in lines.values())])
    low, high, outside = robust_limits(together) if robust else (*_ends(together), 0)
    _limit(ax, "y", low, high)
    for x, y in lines.values():
        _mark(ax, x, y, low, high)
    ax.set_xlabel(across)
    ax.set_ylabel(up + (f"\n{outside} outside" if outside else ""))
    if len(lines) > 1:
        ax.legend(frameon=False, fontsize="small")
    return ax


def differences(
    names: Sequence[str],
    values: ArrayLike,
    intervals: Sequence[tuple[float, float]],
    verdicts: Sequence[str],
    *,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """One bar for each difference in seconds, with its interval: red if slower, green if faster, grey if unsure.

    A wide interval may exceed the axis.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    deltas = np.asarray(values, np.float64)
    ax = axes(ax, title=title, height=1.2 + 0.28 * max(1, len(names)))
    size, unit = _unit(deltas, "s")
    good = {"faster": FASTER, "less often": FASTER, "gone": FASTER}
    bad = {"slower": SLOWER, "more often": SLOWER, "new": SLOWER}
    colours = [(good | bad).get(verdict, UNSURE) for verdict in verdicts]
    ends = np.asarray(intervals, np.float64).reshape(-1, 2)
    known = np.isfinite(ends[:, 0]) & np.isfinite(ends[:, 1])
    ends = np.where(known[:, None], ends, deltas[:, None])
    reach = np.abs(ends - deltas[:, None]).T / size
    ax.barh(np.arange(len(names)), deltas / size, color=colours, height=0.7, xerr=reach, ecolor="#444444", capsize=2)
    ax.axvline(0, color="#444444", linewidth=0.8)
    most = 2 * np.abs(deltas[np.isfinite(deltas)]).max(initial=0.0) or np.inf
    inside = np.clip(ends[np.isfinite(ends)], -most, most) / size
    _limit(ax, "x", inside.min(initial=0.0), inside.max(initial=0.0))
    _names(ax, names)
    unknown = int((~known).sum())
    ax.set_xlabel(f"difference ({unit})" + (f"; {unknown} without an interval" if unknown else ""))
    return ax


def roofline(
    points: Sequence[tuple[str, float, float, float]],
    bandwidth: float | None,
    peaks: Mapping[str, float],
    *,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Operations a second over operations a byte, on logarithmic axes, under the GPU's peaks.

    Args:
        points: name, FLOP/B, FLOP/s and seconds of each; a mark's area grows with its seconds.
        bandwidth: bytes a second of the memory, None if unknown.
        peaks: FLOP/s by type.
        ax: where to draw.
        title: above it.

    Raises:
        NotAvailable: Matplotlib is not installed.
    """
    ax = axes(ax, title=title, width=10.0, height=4.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    intensities = [point[1] for point in points] or [1.0]
    ridge = max(peaks.values(), default=1.0) / bandwidth if bandwidth else 1.0
    across = np.geomspace(min(*intensities, ridge) / 4, max(*intensities, ridge) * 4, 200)
    for (name, peak), colour in zip(peaks.items(), _cycle(len(peaks)), strict=True):
        roof = np.minimum(peak, across * bandwidth) if bandwidth else np.full(len(across), peak)
        ax.plot(across, roof, color=colour, linewidth=1.2, label=f"{name} {peak / 1e12:.3g} TFLOP/s")
    if bandwidth and not peaks:
        ax.plot(across, across * bandwidth, color=COLOURS[0], linewidth=1.2, label=f"{bandwidth / 1e12:.3g} TB/s")
    longest = max((point[3] for point in points), default=1.0) or 1.0
    for number, (name, intensity, rate, seconds) in enumerate(points, 1):
        colour = COLOURS[(number - 1) % len(COLOURS)]
        ax.scatter([intensity], [rate], 30 + 220 * seconds / longest, color=colour, alpha=0.6, edgecolors="none")
        ax.annotate(str(number), (intensity, rate), ha="center", va="center", fontsize="x-small")
        ax.plot([], [], "o", color=colour, label=f"{number} {_short(name)}")
    ax.set_xlabel("FLOP/B")
    ax.set_ylabel("FLOP/s")
    ax.legend(frameon=False, fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


# -- parts of plots ----------------------------------------------------------------------------------------------------


def _unit(values: NDArray[np.float64], quantity: str) -> tuple[float, str]:
    """The size and the name of the unit that suits most values."""
    sizes = np.abs(values[np.isfinite(values)])
    high = robust_limits(sizes)[1] or sizes.max(initial=0.0) or 1.0  # most of them may be 0
    scales = _SCALES[quantity]
    return next((pair for pair in scales if high >= pair[0]), scales[-1])


def _limit(ax: Axes, which: str, low: float, high: float) -> None:
    room = _MARGIN * (high - low) or _MARGIN * abs(high) or 1.0
    getattr(ax, f"set_{which}lim")(low - room, high + room)


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


def _mark(ax: Axes, x: NDArray[Any], y: NDArray[np.float64], low: float, high: float) -> None:
    """Draws triangles at the edges for values beyond them."""
    for beyond, edge, marker in ((y > high, 0.985, "^"), (y < low, 0.015, "v")):
        if beyond.any():
            places = np.full(int(beyond.sum()), edge)
            ax.plot(x[beyond], places, marker, color=SLOWER, transform=ax.get_xaxis_transform(), clip_on=False)


def _beyond(values: NDArray[np.float64], low: float, high: float, unit: str) -> str:
    """As "; 2 of 300 outside, up to 12.1 ms"."""
    found = values[(values < low) | (values > high)]
    if not len(found):
        return ""
    end = f"up to {found.max():.3g}" if found.max() > high else f"down to {found.min():.3g}"
    return f"; {len(found):,} of {len(values):,} outside, {end} {unit}"


def _names(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(np.arange(len(names)), [_short(name) for name in names], fontsize="small")
    ax.invert_yaxis()


def _short(name: str) -> str:
    return _safe(shorten(one_line(name), _LONGEST_NAME))


def _safe(text: str) -> str:
    """Escapes dollars: Matplotlib reads the text between them as a formula."""
    return text.replace("$", r"\$")


def _cycle(count: int) -> list[str]:
    return [COLOURS[at % len(COLOURS)] for at in range(count)]
