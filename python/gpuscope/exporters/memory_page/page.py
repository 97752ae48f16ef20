# SPDX-License-Identifier: Apache-2.0
"""The page's file: data, styles and script in one, with texts from outside escaped."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.memory_page.data import page_data
from gpuscope.exporters.memory_page.steps import Steps, make_steps
from gpuscope.memory.categories import categorize
from gpuscope.memory.events import MemoryEvents
from gpuscope.paths import check_writable, replacing
from gpuscope.units import format_bytes

_REGION = '<label><input type="radio" name="view" value="region"> region</label>\n'
_MOST_LINES = 15  # of the table that stands there without JavaScript


def export_memory_page(
    events: MemoryEvents,
    path: str | os.PathLike[str],
    *,
    device: int | None = None,
    categories: NDArray[np.uint8] | None = None,
    title: str = "Memory",
    notes: Sequence[str] = (),
) -> None:
    """Writes memory over time as one HTML page that asks for no other file.

    It shows what lived at each moment by category, line of code, library or region of the program, or piece by
    piece; at most 2000 moments, each the one with the most in use of its stretch of time, so that no maximum is lost.

    Args:
        events: the history, of any length.
        path: where to write, ending in .html.
        device: ordinal of the GPU, or HOST; None takes the GPU with the most events, or the host if no GPU has any.
        categories: of each of ``events.lifetimes()``, from `gpuscope.memory.categories.categorize`;
            worked out from stacks alone when left out.
        title: heading of the page.
        notes: sentences to stand above the chart.

    Raises:
        InvalidArgument: the device has no events, or the path has another suffix.
        NotAvailable: there are no events at all.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, (".html", ".htm"))
    text = render(events, device=device, categories=categories, title=title, notes=notes)
    with replacing(checked) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def render(
    events: MemoryEvents,
    *,
    device: int | None = None,
    categories: NDArray[np.uint8] | None = None,
    title: str = "Memory",
    notes: Sequence[str] = (),
) -> str:
    """The page's text; arguments and errors as of `export_memory_page`."""
    if not len(events):
        raise NotAvailable("a page of the memory is not available: the history has no events")
    chosen = _device(events, device)
    steps, rows = make_steps(events, chosen)
    given = categorize(events) if categories is None else categories
    data = page_data(steps, given[rows])
    all_notes = [*notes]
    if events.lost:
        all_notes.insert(0, f"{events.lost:,} older events are no longer kept: the history begins behind them.")
    parts = {
        "title": escape(title),
        "css": _file("page.css"),
        "facts": _facts(steps, chosen),
        "notices": "".join(f'<p class="notice" role="note">{escape(note)}</p>' for note in all_notes),
        "region": _REGION if "region" in data["views"] else "",
        "lines": _lines(steps, data),
        "data": _island(data),
        "script": _file("page.js"),
    }
    # In one pass: what is put in is not looked at again, whatever it contains.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


def _device(events: MemoryEvents, device: int | None) -> int:
    ordinals, counts = np.unique(events.device, return_counts=True)
    if device is not None:
        if device not in ordinals:
            raise InvalidArgument(f"device is {device!r}; the history has events of {_names(ordinals.tolist())}")
        return int(device)
    on_gpu = ordinals != HOST
    return int(ordinals[np.argmax(np.where(on_gpu, counts, 0))]) if on_gpu.any() else HOST


def _names(ordinals: Sequence[int]) -> str:
    return ", ".join("the host (-1)" if ordinal == HOST else f"GPU {ordinal}" for ordinal in ordinals)


def _facts(steps: Steps, device: int) -> str:
    times = steps.events.time_ns
    lasted = int(times[-1]) - int(times[0])
    facts = {
        "device": "host" if device == HOST else f"GPU {device}",
        "most in use": format_bytes(int(steps.used[steps.peak])),
        "most held from the driver": format_bytes(int(steps.reserved.max())) if steps.reserved.any() else "",
        "in use at the end": format_bytes(int(steps.used[-1])),
        "events": f"{len(times):,}",
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(times[0]) / 1e9)) if times[0] > 0 else "",
        "lasted": f"{lasted / 1e9:,.3f} s" if lasted >= 1e9 else f"{lasted / 1e6:,.3f} ms",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)


def _lines(steps: Steps, data: dict[str, Any]) -> str:
    """What lives at the peak by line, for readers without JavaScript."""
    at_peak = [(sum(group["sizes"][: steps.peak + 1]), group["name"]) for group in data["views"]["line"]["groups"]]
    rows = sorted((row for row in at_peak if row[0] > 0), reverse=True)[:_MOST_LINES]
    return "".join(f"<tr><td>{format_bytes(size)}</td><td>{escape(name)}</td></tr>" for size, name in rows)


def _file(name: str) -> str:
    return resources.files("gpuscope.exporters.memory_page").joinpath(name).read_text(encoding="utf-8")


def _island(data: dict[str, Any]) -> str:
    """JSON that no text in it can end: what HTML looks for is written as escapes."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
