# SPDX-License-Identifier: Apache-2.0
"""The chart of a crossover."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, log10
from typing import Any

from gpuscope.benchmarking.sweeps.crossings import Answer, size_text
from gpuscope.benchmarking.sweeps.points import SweepPoint
from gpuscope.errors import NotAvailable

# Told apart with any colour vision: P. Tol, Colour schemes, SRON technical note (2021), "bright".
_COLOURS = {"cpu": "#ee6677", "gpu": "#4477aa", "transfers": "#228833"}


def figure(
    axis: str,
    curves: Mapping[str, tuple[SweepPoint, ...]],
    titles: Mapping[str, str],
    without_transfers: Answer,
    with_transfers: Answer | None,
) -> Any:
    """Time over size on logarithmic axes, with intervals; crossings as lines in bands of their intervals.

    Raises:
        NotAvailable: Plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise NotAvailable("plot is not available: Plotly is not installed; pip install 'gpuscope[bench]'") from None
    chart = go.Figure()
    for key, points in curves.items():
        known = [(p.parameters[axis], p.estimate) for p in points if p.estimate is not None]
        errors = [(e.high - e.value, e.value - e.low) for _, e in known]
        chart.add_scatter(
            x=[size for size, _ in known],
            y=[e.value for _, e in known],
            error_y={
                "array": [above if isfinite(above) else 0 for above, _ in errors],
                "arrayminus": [below if isfinite(below) else 0 for _, below in errors],
            },
            name=titles[key],
            mode="lines+markers",
            line={"color": _COLOURS[key]},
        )
    for key, found in (("gpu", without_transfers), ("transfers", with_transfers)):
        for crossing in found.crossings if found else ():
            colour = _COLOURS[key]
            chart.add_vrect(x0=crossing.low, x1=crossing.high, fillcolor=colour, opacity=0.15, line_width=0)
            chart.add_vline(x=crossing.value, line={"color": colour, "dash": "dash"})
            # Unlike lines, notes on a logarithmic axis are placed by the logarithm.
            chart.add_annotation(
                x=log10(crossing.value),
                y=1,
                yref="paper",
                showarrow=False,
                xanchor="left",
                text=size_text(crossing.value),
            )
    chart.update_xaxes(type="log", title=axis)
    chart.update_yaxes(type="log", title="wall time", ticksuffix="s", exponentformat="SI")
    chart.update_layout(template="plotly_white", title=f"CPU and GPU over {axis}")
    return chart
