# SPDX-License-Identifier: Apache-2.0
"""Gathers what is known when memory runs out: takes no GPU memory, waits for nothing, imports no framework."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import threading
import time
from typing import Any

from gpuscope import _core
from gpuscope.errors import NotAvailable
from gpuscope.memory.events import HOST, Frame
from gpuscope.memory.failures.advice import advice, verdict
from gpuscope.memory.failures.pieces import largest_lines, last_allocations, of_library
from gpuscope.memory.failures.report import OutOfMemory
from gpuscope.memory.failures.stacks import of_main_thread
from gpuscope.memory.history import history_events
from gpuscope.memory.host_room import host_room
from gpuscope.memory.ledger.ledger import memory_ledger
from gpuscope.memory.out_of_memory_errors import Request
from gpuscope.memory.places import line_text, program_line
from gpuscope.memory.snapshots.snapshot import memory_snapshot

_RECENT_NS = 1_000_000_000  # a refusal of the driver this old is the one that the error tells of
_ALL = 0.98  # NVML's total is up to a hundredth above CUDA's, which leaves out what the GPU keeps to itself
HISTORY_HINT = "record_memory_history() before would tell the newest allocations and the lines that hold most"

_numbers = itertools.count(1)


def gather(
    request: Request,
    error: str,
    stack: tuple[Frame, ...],
    *,
    free: int | None = None,
    allowed: int | None = None,
    since_ns: int = 0,
) -> OutOfMemory:
    """The report of a request that failed. What cannot be had is None, with a note where it is not plain why.

    Args:
        request: what was asked for.
        error: class and first line of the error.
        stack: where, innermost frame first; () for a thread without Python.
        free: bytes free on the device, where the library has told.
        allowed: bytes that the library lets itself take, where it has told.
        since_ns: refusals of the driver before this time are left out.
    """
    notes: list[str] = []
    if not stack:
        stack = of_main_thread()
        notes.append("the thread that asked runs no Python; the stack is the main thread's")
    report = OutOfMemory(
        number=next(_numbers),
        time_ns=time.time_ns(),
        pid=os.getpid(),
        thread=threading.current_thread().name,
        error=error,
        library=request.library,
        device=request.device if request.device is not None else _device_in_use(),
        asked=request.bytes,
        free=free,
        stack=stack,
    )
    for section in (_refused, _figures, _ledger, _history):
        try:
            report = dataclasses.replace(report, **section(report, notes, since_ns))
        except Exception as failed:  # one section less is better than no report, or a second failure
            notes.append(f"{section.__name__.strip('_')} not known: {type(failed).__name__}: {failed}")
    if allowed is not None:
        total = report.total if report.total is not None else allowed
        report = dataclasses.replace(report, total=total, allowed=allowed if allowed < _ALL * total else None)
    report = dataclasses.replace(report, verdict=verdict(report))
    return dataclasses.replace(report, advice=advice(report), notes=tuple(notes))


def _refused(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    failed = [dict(each) for each in _core.allocation_watch()["failed"] if each["time_ns"] >= since_ns]
    for each in failed:
        each["where"] = line_text(program_line(Frame(*frame) for frame in _core.stack_frames(each["stack"])), "")
    found: dict[str, Any] = {"refused": tuple(failed)}
    newest = failed[-1] if failed else None
    if newest and report.device != HOST and report.time_ns - newest["time_ns"] < _RECENT_NS:
        found["asked"] = report.asked if report.asked is not None else int(newest["bytes"])
        found["device"] = report.device if report.device is not None else int(newest["device"])
    return found


def _figures(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    if report.device == HOST:
        free, total = host_room()
        return {"free": free, "total": total}
    if report.device is None:
        return {}
    devices = memory_snapshot(report.device).devices
    found = next((each for each in devices if each.device == report.device), None)
    if found is None:
        return {}
    left = None if found.total is None or found.used is None else found.total - found.used
    figures = {name: getattr(found, name) for name in ("used", "total", "process", "pools")}
    return figures | {"free": report.free if report.free is not None else left}


def _ledger(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    if report.device is None or report.device == HOST:
        return {}
    return {"ledger": memory_ledger(report.device, measure_context=False)}


def _history(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    if report.device == HOST:
        return {}
    try:
        events = of_library(history_events(), report.library, report.device)
    except NotAvailable:
        notes.append(HISTORY_HINT)
        return {}
    if not len(events):
        notes.append(HISTORY_HINT)
        return {}
    return {"last": last_allocations(events), "largest": largest_lines(events)}


def _device_in_use() -> int | None:
    """Ordinal of the GPU that the program works on, asked without making a context; None when not known."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return int(torch.cuda.current_device())
        if cupy is not None:
            return int(cupy.cuda.runtime.getDevice())
        in_use = _core.devices_in_use()
        return in_use[0] if len(in_use) == 1 else None
    except Exception:  # a framework on a machine that it cannot use; their errors have no common root
        return None
