# SPDX-License-Identifier: Apache-2.0
"""Samples and logs of GPUs as pandas frames, and their figures over time as plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.monitor.lines import csv_cells, read_json
from gpuscope.monitor.log import files_of
from gpuscope.monitor.parquet import flat
from gpuscope.monitor.sample import GpuSample
from gpuscope.results import import_pandas

if TYPE_CHECKING:  # both are optional
    import pandas as pd
    from matplotlib.axes import Axes

# Column, divisor, and meaning of the quotient; the first known one of a group is drawn.
_PANELS: tuple[tuple[tuple[str, float, str], ...], ...] = (
    (("sm_active_ratio", 0.01, "SM active (%)"), ("util_pct", 1.0, "utilization (%)")),
    (("mem_used_mb", 1024.0, "memory (GiB)"),),
    (("power_w", 1.0, "power (W)"),),
    (("sm_hz", 1e6, "SM clock (MHz)"),),
    (("temp_c", 1.0, "temperature (C)"),),
)


def frame_of_samples(samples: Sequence[GpuSample]) -> pd.DataFrame:
    """One row per sample; NotAvailable without pandas."""
    pd = import_pandas()
    return _timed(pd, pd.DataFrame([sample.to_dict() for sample in samples]))


def frame_of_log(path: Path) -> pd.DataFrame:
    """The samples of a log of `GPUMonitor`, one row each.

    Raises:
        NotAvailable: pandas is not installed, or the log is a .gscope.
        GpuscopeError: the file cannot be read.
    """
    pd = import_pandas()
    if path.suffix.lower() == ".gscope":
        raise NotAvailable(
            "to_pandas is not available for a .gscope log; "
            f"gpuscope.load({str(path)!r}).trace.device_samples has its rows"
        )
    try:
        frames = [_timed(pd, _frame_of_file(pd, file)) for file in files_of(path)]
    except (OSError, ValueError, KeyError) as error:
        raise GpuscopeError(f"{path} cannot be read: {error}") from error
    return pd.concat(frames, ignore_index=True)


def _frame_of_file(pd: Any, file: Path) -> pd.DataFrame:
    suffix = file.suffix.lower()
    if suffix == ".csv":
        return pd.read_csv(_whole_lines(file))
    if suffix == ".parquet":
        return pd.read_parquet(file)
    rows = filter(None, read_json(file))
    return pd.DataFrame(map(flat, rows) if suffix == ".part" else rows)  # the rest of a .parquet


def _whole_lines(path: Path) -> io.StringIO:
    """The text of a .csv without cut lines: their open quotes would swallow the lines after them."""
    text = io.StringIO()
    csv.writer(text).writerows(filter(None, csv_cells(path)))
    text.seek(0)
    return text


def plot_frame(frame: pd.DataFrame) -> list[Axes]:
    """The figures of each GPU over time.

    Raises:
        NotAvailable: Matplotlib is not installed.
        InvalidArgument: there are no figures of a GPU.
    """
    from gpuscope import plots

    if "gpu_idx" not in frame or frame["gpu_idx"].isna().all():
        raise InvalidArgument("there are no samples of a GPU to plot; accepted is at least one")
    known = [
        next((each for each in group if each[0] in frame and frame[each[0]].notna().any()), None) for group in _PANELS
    ]
    shown = [each for each in known if each is not None]
    drawn = plots.axes_below_each_other(len(shown))
    begin = frame["timestamp"].min()
    for ax, (column, unit, what) in zip(drawn, shown, strict=True):
        series: dict[str, tuple[Any, Any]] = {}
        for gpu, rows in frame[frame["gpu_idx"].notna()].groupby("gpu_idx"):
            seconds = (rows["timestamp"] - begin).dt.total_seconds()
            series[f"GPU {int(gpu)}"] = (seconds.to_numpy(), rows[column].to_numpy(float) / unit)
        plots.curves(series, across="time (s)" if ax is drawn[-1] else "", up=what, ax=ax)
    return drawn


def _timed(pd: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with times as timestamps, without rows that have no time."""
    if "timestamp" in frame:
        frame["timestamp"] = pd.to_datetime(frame["timestamp"], utc=True, format="ISO8601", errors="coerce")
        frame = frame[frame["timestamp"].notna()].reset_index(drop=True)
    return frame
