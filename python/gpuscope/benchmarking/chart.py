# SPDX-License-Identifier: Apache-2.0
"""A benchmark's samples over time beside their distribution, as a Plotly figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope.benchmarking.text import line, seconds
from gpuscope.errors import NotAvailable

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from gpuscope.benchmarking.result import BenchmarkResult, Measured

_COLOURS = {"sample": "#4477aa", "tagged": "#ee6677", "invalid": "#bbbbbb"}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def figure(result: BenchmarkResult) -> go.Figure:
    """The figure that `BenchmarkResult.plot` gives."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise NotAvailable("a chart needs Plotly: pip install 'gpuscope[report]'") from error
    chart = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.72, 0.28], horizontal_spacing=0.02)
    names = [result.quantity, *(name for name in result.quantities if name != result.quantity)]
    owners: list[str] = []
    buttons: list[dict[str, Any]] = []
    for name in names:
        for trace, column in _traces(go, result, result.quantities[name]):
            chart.add_trace(trace.update(visible=name == result.quantity), row=1, col=column)
            owners.append(name)
    for name in names:
        measured = result.quantities[name]
        size, unit = _unit(measured)
        title = {"yaxis.title.text": f"{name} time ({unit})", "shapes": _band(measured, size)}
        buttons.append(
            {"label": name, "method": "update", "args": [{"visible": [owner == name for owner in owners]}, title]}
        )
    first = buttons[0]["args"][1]
    chart.update_layout(
        title={"text": line(result), "font": {"size": 13}},
        template="plotly_white",
        bargap=0,
        shapes=first["shapes"],
        updatemenus=[{"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.12, "yanchor": "top"}],
    )
    chart.update_yaxes(title_text=first["yaxis.title.text"], row=1, col=1)
    chart.update_xaxes(title_text="call", row=1, col=1)
    chart.update_xaxes(title_text="samples", row=1, col=2)
    return chart


def _traces(go: Any, result: BenchmarkResult, measured: Measured) -> list[tuple[Any, int]]:
    size, _ = _unit(measured)
    tagged = np.zeros(len(measured.samples), bool)
    if measured.quantity == result.quantity:
        tagged |= result.throttled
    groups = (
        ("sample", measured.valid & ~tagged),
        ("tagged", measured.valid & tagged),
        ("invalid", ~measured.valid & np.isfinite(measured.samples)),
    )
    labels = {"sample": "samples", "tagged": "throttled or shifted clock", "invalid": "invalid"}
    traces: list[tuple[Any, int]] = []
    for group, rows in groups:
        if not rows.any():
            continue
        call, times = np.flatnonzero(rows), measured.samples[rows] / size
        marker = {"color": _COLOURS[group], "size": 5}
        traces.append((go.Scatter(x=call, y=times, mode="markers", marker=marker, name=labels[group]), 1))
        if group != "invalid":
            bars = go.Histogram(y=times, marker={"color": _COLOURS[group]}, name=labels[group], showlegend=False)
            traces.append((bars, 2))
    return traces


def _band(measured: Measured, size: float) -> list[dict[str, Any]]:
    """The estimate as a line, its interval as a band over both halves."""
    estimate = measured.estimate
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
    centre = estimate.value / size
    shapes: list[dict[str, Any]] = [
        {"type": "line", **across, "y0": centre, "y1": centre, "name": seconds(estimate.value), "line": {"width": 1}}
    ]
    if np.isfinite([estimate.low, estimate.high]).all():
        low, high = estimate.low / size, estimate.high / size
        fill = {"fillcolor": _COLOURS["sample"], "opacity": 0.2, "line": {"width": 0}}
        shapes.append({"type": "rect", **across, "y0": low, "y1": high, **fill})
    return shapes


def _unit(measured: Measured) -> tuple[float, str]:
    value = abs(measured.estimate.value)
    return next(((size, unit) for size, unit in _UNITS if value >= size), _UNITS[-1])
