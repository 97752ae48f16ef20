# SPDX-License-Identifier: Apache-2.0
"""The report of one out-of-memory error."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core
from gpuscope.devices import HOST
from gpuscope.errors import NotAvailable
from gpuscope.frameworks.pools import Pool
from gpuscope.memory.history.call_stacks import line_text, program_line, stack_of_main_thread
from gpuscope.memory.history.events import SOURCES, Frame, MemoryEvents
from gpuscope.memory.history.history import history_events, recording
from gpuscope.memory.host import available_memory
from gpuscope.memory.limits.out_of_memory_errors import Request
from gpuscope.memory.usage.ledger import MemoryLedger, memory_ledger
from gpuscope.memory.usage.snapshot import memory_snapshot
from gpuscope.results import Result
from gpuscope.units import format_bytes

_NOTEWORTHY = 0.05  # of the device: a smaller share of other processes explains nothing
_LARGE_LINE = 0.1  # of the live bytes

_RECENT_NS = 1_000_000_000  # a refusal of the driver up to this age caused the error
_ALL = 0.98  # NVML's total is up to 1 % above CUDA's, which excludes memory that the GPU reserves
HISTORY_HINT = "record_memory_history() before would tell the newest allocations and the lines that hold most"
_numbers = itertools.count(1)

MOST = 10  # allocations and lines that a report lists
# A line is suspected to leak if many of its allocations are live, made throughout the recording. Models and optimizers
# allocate at the start, activations at the end.
_MANY = 20
_QUARTER_SHARE = 0.1


@dataclass(frozen=True)
class Allocation:
    """One allocation.

    Attributes:
        bytes: size.
        where: the program's line, as "train.py:12 step"; "" if unknown.
        region: the innermost open ``record_function``; "" for none.
    """

    bytes: int
    where: str
    region: str = ""


@dataclass(frozen=True)
class LiveAllocations:
    """The live allocations of one line of the program.

    Attributes:
        bytes: total size.
        count: number of allocations.
        where: the line, as "train.py:12 step"; "" if unknown.
        growing: they were made throughout the recording, as those of a leak.
    """

    bytes: int
    count: int
    where: str
    growing: bool


@dataclass(frozen=True)
class OutOfMemory(Result):
    """The state of memory at an out-of-memory error. Sizes are bytes; None is unknown.

    Attributes:
        number: counted from 1 in this process.
        time_ns: since the Unix epoch.
        pid: of this process.
        thread: name of the thread with the error.
        error: class and first line of the error. A description if torch's observer reported it before it was raised.
        library: the requester: "torch", "cupy", "jax", "numba", "rmm" or "CUDA"; "host" for host memory.
        device: ordinal of the GPU, HOST for host memory.
        requested_bytes: size of the failed request.
        free_bytes: free on the device, or on the host without swapping.
        total_bytes: of the device or host.
        allowed_bytes: torch's own limit, if below `total_bytes`.
        used_bytes: of the device, by all processes.
        process_bytes: of the device, by this process.
        pools: the allocator of each library (`gpuscope.frameworks.pools.Pool`).
        ledger: the memory by library (`gpuscope.memory.usage.ledger.MemoryLedger`); None without one.
        last: the newest allocations, newest first.
        largest: lines with live allocations, most bytes first.
        refused: requests that the driver refused since the reports began, newest last.
        stack: of the program, innermost frame first.
        verdict: whether fragmentation is the cause; "" if not.
        advice: recommendations, most promising first, based on the figures above.
        notes: unknown figures, and why.
    """

    number: int
    time_ns: int
    pid: int
    thread: str
    error: str
    library: str
    device: int | None
    requested_bytes: int | None
    free_bytes: int | None = None
    total_bytes: int | None = None
    allowed_bytes: int | None = None
    used_bytes: int | None = None
    process_bytes: int | None = None
    pools: tuple[Pool, ...] = ()
    ledger: MemoryLedger | None = field(default=None, repr=False)
    last: tuple[Allocation, ...] = ()
    largest: tuple[LiveAllocations, ...] = ()
    refused: tuple[dict[str, Any], ...] = ()
    stack: tuple[Frame, ...] = field(default=(), repr=False)
    verdict: str = ""
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def others_bytes(self) -> int | None:
        """Memory of the device held by other processes."""
        return (
            None
            if self.used_bytes is None or self.process_bytes is None
            else max(0, self.used_bytes - self.process_bytes)
        )

    @property
    def pool(self) -> Pool | None:
        """The pool of the requesting library; None without one."""
        return next((pool for pool in self.pools if pool.library == self.library), None)

    def __repr__(self) -> str:
        return f"<OutOfMemory {self.number}: {_headline(self)}>"

    def summary(self) -> str:
        """A few lines for the terminal: request, holders, verdict, line and advice."""
        lines = [f"gpuscope: {_headline(self)}"]
        lines += [f"  {line}" for line in (_holders(self), self.verdict) if line]
        at = line_text(program_line(self.stack), "")
        lines += [f"  at {at}"] if at else []
        lines += [f"  {number}. {text}" for number, text in enumerate(self.advice, 1)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return _text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; sizes in bytes."""
        figures = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return figures | {
            "others_bytes": self.others_bytes,
            "pools": [_plain(pool) for pool in self.pools],
            "ledger": None if self.ledger is None else self.ledger.to_dict(),
            "last": [vars(each) for each in self.last],
            "largest": [vars(each) for each in self.largest],
            "refused": [dict(each) for each in self.refused],
            "stack": [frame._asdict() for frame in self.stack],
            "advice": list(self.advice),
            "notes": list(self.notes),
        }


def _plain(pool: Any) -> Any:
    return dataclasses.asdict(pool) if dataclasses.is_dataclass(pool) and not isinstance(pool, type) else vars(pool)


def _text(report: OutOfMemory) -> str:
    """The summary, ledger, allocations, refusals of the driver, stack and notes."""
    when = datetime.fromtimestamp(report.time_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds")
    parts = [report.summary(), f"{when}, process {report.pid}, thread {report.thread}\n{report.error}"]
    if report.ledger is not None:
        parts.append(str(report.ledger))
    if report.largest:
        rows = [
            f"  {_size(each.bytes)}  {each.count:>7} x  {each.where or 'line not known'}" for each in report.largest
        ]
        parts.append("\n".join(["what lives, by line", *rows]))
    if report.last:
        rows = [
            f"  {_size(each.bytes)}  {each.where or 'line not known'}{f' in {each.region}' if each.region else ''}"
            for each in report.last
        ]
        parts.append("\n".join(["newest allocations", *rows]))
    if report.refused:
        rows = [f"  {_size(each['bytes'])}  {each['library']}  {each['where']}".rstrip() for each in report.refused]
        parts.append("\n".join(["refused by the driver, newest last", *rows]))
    if report.stack:
        parts.append("\n".join(["stack, innermost first", *(f"  {frame}" for frame in report.stack)]))
    if report.notes:
        parts.append("\n".join(f"note: {note}" for note in report.notes))
    return "\n\n".join(parts)


def _headline(report: OutOfMemory) -> str:
    asked = "memory" if report.requested_bytes is None else format_bytes(report.requested_bytes)
    if report.device == HOST:
        what, asker, on = "out of host memory", "the program" if report.library == "host" else report.library, ""
    else:
        what, asker = "out of GPU memory", report.library
        on = "" if report.device is None else f" on GPU {report.device}"
    text = f"{what}: {asker} asked for {asked}{on}"
    if report.free_bytes is not None and report.total_bytes is not None:
        text += f"; {format_bytes(report.free_bytes)} of {format_bytes(report.total_bytes)} free"
    return text


def _holders(report: OutOfMemory) -> str:
    parts = [] if report.process_bytes is None else [f"this process holds {format_bytes(report.process_bytes)}"]
    for pool in report.pools:
        private = f" and {format_bytes(pool.graph_reserved_bytes)} in private pools, as of CUDA graphs"
        parts.append(
            f"{pool.library} {format_bytes(pool.reserved_bytes)}, of which {format_bytes(pool.allocated_bytes)} in use"
            + (private if pool.graph_reserved_bytes else "")
        )
    if report.others_bytes:
        parts.append(f"other processes {format_bytes(report.others_bytes)}")
    return "; ".join(parts)


def _size(size: int) -> str:
    return f"{format_bytes(size):>9}"


def verdict(report: OutOfMemory) -> str:
    """Reports fragmentation: enough memory is cached, but no free block is large enough; "" otherwise."""
    pool = report.pool
    if pool is None or report.requested_bytes is None or pool.usable_bytes < report.requested_bytes:
        return ""
    cached = f"{format_bytes(pool.usable_bytes)} cached by {report.library} are not in use"
    if pool.largest_free_bytes is None:
        return f"fragmentation: {cached}, but no free block among them has {format_bytes(report.requested_bytes)}"
    if pool.largest_free_bytes >= report.requested_bytes:
        return ""
    return f"fragmentation: {cached}, but the largest free block is {format_bytes(pool.largest_free_bytes)}"


def advice(report: OutOfMemory) -> tuple[str, ...]:
    """Recommendations, most promising first, each based on a figure of the report."""
    found = (rule(report) for rule in _RULES)
    return tuple(text for text in found if text)


def _too_large(report: OutOfMemory) -> str:
    if report.requested_bytes is None or report.total_bytes is None or report.requested_bytes <= report.total_bytes:
        return ""
    what = "this host" if report.device == HOST else "this GPU"
    return (
        f"{format_bytes(report.requested_bytes)} in one piece is more than all of {what} "
        f"({format_bytes(report.total_bytes)}): check the shapes on that line, "
        "which may have been broadcast against each other"
    )


def _own_limit(report: OutOfMemory) -> str:
    if (
        report.allowed_bytes is None
        or report.requested_bytes is None
        or report.free_bytes is None
        or report.free_bytes < report.requested_bytes
    ):
        return ""
    return (
        f"the GPU has {format_bytes(report.free_bytes)} free; torch itself is limited to "
        f"{format_bytes(report.allowed_bytes)}: raise torch.cuda.set_per_process_memory_fraction()"
    )


def _fragmentation(report: OutOfMemory) -> str:
    if not report.verdict:
        return ""
    if report.library == "torch":
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
        if "expandable_segments:True" in settings:
            return "sizes that vary less from step to step, or torch.cuda.empty_cache() between phases, fragment less"
        return "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the program starts: it fragments far less"
    if report.library == "cupy":
        return "cupy.get_default_memory_pool().free_all_blocks() gives the cached blocks back before the next large one"
    return ""


def _other_processes(report: OutOfMemory) -> str:
    others = report.others_bytes
    if others is None or not report.total_bytes or others < _NOTEWORTHY * report.total_bytes:
        return ""
    return (
        f"other processes hold {format_bytes(others)} of this GPU, this one {format_bytes(report.process_bytes or 0)}: "
        "nvidia-smi names them; end them, or choose another GPU by CUDA_VISIBLE_DEVICES"
    )


def _other_libraries(report: OutOfMemory) -> str:
    remedies = {
        "torch": "torch.cuda.empty_cache() gives it back",
        "cupy": "cupy.get_default_memory_pool().free_all_blocks() gives it back",
        "jax": "XLA_PYTHON_CLIENT_PREALLOCATE=false before the start keeps it from taking that in advance",
    }
    for pool in sorted(report.pools, key=lambda each: -each.usable_bytes):
        cached = pool.usable_bytes
        wanted = (
            report.requested_bytes if report.requested_bytes is not None else _NOTEWORTHY * (report.total_bytes or 0)
        )
        if pool.library != report.library and pool.library in remedies and cached and cached >= wanted:
            return f"{pool.library} holds {format_bytes(cached)} that it does not use: {remedies[pool.library]}"
    return ""


def _leak(report: OutOfMemory) -> str:
    alive = sum(line.bytes for line in report.largest)
    for line in report.largest:
        if line.growing and line.where and line.bytes >= _LARGE_LINE * alive:
            return (
                f"{line.count} pieces from {line.where} live, {format_bytes(line.bytes)}, made all through the run: "
                "what keeps them, as a list of losses that are not detached? find_leaks() tells"
            )
    return ""


def _smaller_batch(report: OutOfMemory) -> str:
    held = (
        report.process_bytes
        if report.process_bytes is not None
        else sum(pool.allocated_bytes for pool in report.pools) or None
    )
    if (
        report.device == HOST
        or held is None
        or report.total_bytes is None
        or report.requested_bytes is None
        or report.verdict
    ):
        return ""
    if report.requested_bytes > report.total_bytes or held < report.total_bytes / 2:
        return ""
    return (
        f"the program itself holds {format_bytes(held)} of {format_bytes(report.total_bytes)}: a smaller batch needs "
        "less, and find_max_batch_size() finds the largest that fits"
    )


_RULES: tuple[Callable[[OutOfMemory], str], ...] = (
    _too_large,
    _own_limit,
    _fragmentation,
    _other_processes,
    _other_libraries,
    _leak,
    _smaller_batch,
)


def gather(
    request: Request,
    error: str,
    stack: tuple[Frame, ...],
    *,
    free: int | None = None,
    allowed: int | None = None,
    since_ns: int = 0,
) -> OutOfMemory:
    """Makes the report of a failed request. Unknown figures are None, with a note if the reason is not obvious.

    Args:
        request: the failed request.
        error: class and first line of the error.
        stack: innermost frame first; () for a thread without Python.
        free: bytes free on the device, if the library reports them.
        allowed: the library's own limit in bytes, if it reports one.
        since_ns: earlier refusals of the driver are excluded.
    """
    notes: list[str] = []
    if not stack:
        stack = stack_of_main_thread()
        notes.append("the thread that asked runs no Python; the stack is the main thread's")
    report = OutOfMemory(
        number=next(_numbers),
        time_ns=_core.now_ns(),
        pid=os.getpid(),
        thread=threading.current_thread().name,
        error=error,
        library=request.library,
        device=request.device if request.device is not None else _device_in_use(),
        requested_bytes=request.bytes,
        free_bytes=free,
        stack=stack,
    )
    for section in (_refused, _figures, _ledger, _history):
        try:
            report = dataclasses.replace(report, **section(report, notes, since_ns))
        except Exception as failed:  # a report without this section is better than none
            notes.append(f"{section.__name__.strip('_')} not known: {type(failed).__name__}: {failed}")
    if allowed is not None:
        total = report.total_bytes if report.total_bytes is not None else allowed
        report = dataclasses.replace(
            report, total_bytes=total, allowed_bytes=allowed if allowed < _ALL * total else None
        )
    report = dataclasses.replace(report, verdict=verdict(report))
    return dataclasses.replace(report, advice=advice(report), notes=tuple(notes))


def _refused(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    failed = [dict(each) for each in _core.allocation_watch()["failed"] if each["time_ns"] >= since_ns]
    for each in failed:
        each["where"] = line_text(program_line(Frame(*frame) for frame in _core.stack_frames(each["stack"])), "")
    found: dict[str, Any] = {"refused": tuple(failed)}
    newest = failed[-1] if failed else None
    if newest and report.device != HOST and report.time_ns - newest["time_ns"] < _RECENT_NS:
        found["requested_bytes"] = (
            report.requested_bytes if report.requested_bytes is not None else int(newest["bytes"])
        )
        found["device"] = report.device if report.device is not None else int(newest["device"])
    return found


def _figures(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    if report.device == HOST:
        free, total = available_memory()
        return {"free_bytes": free, "total_bytes": total}
    if report.device is None:
        return {}
    devices = memory_snapshot(report.device).devices
    found = next((each for each in devices if each.device == report.device), None)
    if found is None:
        return {}
    left = None if found.total_bytes is None or found.used_bytes is None else found.total_bytes - found.used_bytes
    figures = {name: getattr(found, name) for name in ("used_bytes", "total_bytes", "process_bytes", "pools")}
    return figures | {"free_bytes": report.free_bytes if report.free_bytes is not None else left}


def _ledger(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    if report.device is None or report.device == HOST:
        return {}
    return {"ledger": memory_ledger(report.device, measure_context=False)}


def _history(report: OutOfMemory, notes: list[str], since_ns: int) -> dict[str, Any]:
    if report.device == HOST:
        return {}
    try:
        recorded = history_events()
    except NotAvailable:
        notes.append(HISTORY_HINT)
        return {}
    events = of_library(recorded, report.library, report.device)
    if not len(events):
        # An empty history needs the same hint as no history.
        notes.append(f"the memory history has nothing of {report.library} there" if len(recorded) else HISTORY_HINT)
        return {}
    if not recording():
        notes.append("the memory history had ended before: what lived then may have been given back since")
    return {"last": last_allocations(events), "largest": largest_lines(events)}


def _device_in_use() -> int | None:
    """Ordinal of the program's current GPU, found without creating a context; None if unknown."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return int(torch.cuda.current_device())
        if cupy is not None:
            return int(cupy.cuda.runtime.getDevice())
        in_use = _core.devices_in_use()
        return in_use[0] if len(in_use) == 1 else None
    except Exception:  # a framework without a usable GPU; the errors have no common base class
        return None


def of_library(events: MemoryEvents, library: str, device: int | None) -> MemoryEvents:
    """Events of one library's allocator on one device; the driver's events for libraries without one."""
    known = SOURCES.index(library) if library in SOURCES else SOURCES.index("driver")
    rows = events.source == known
    if not rows.any():
        rows = events.source != SOURCES.index("driver")
    if device is not None:
        rows &= events.device == device
    return events.select(rows)


def last_allocations(events: MemoryEvents) -> tuple[Allocation, ...]:
    """The newest allocations, newest first."""
    rows = np.flatnonzero(events.bytes > 0)[-MOST:][::-1]
    return tuple(
        Allocation(int(events.bytes[row]), _line(events, int(events.stack[row])), events.regions[events.region[row]])
        for row in rows
    )


def largest_lines(events: MemoryEvents) -> tuple[LiveAllocations, ...]:
    """The lines with live allocations, most bytes first."""
    allocations = events.lifetimes()
    alive = np.flatnonzero(allocations.alive)
    rows_of: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for stack in np.unique(allocations.stack[alive]):
        rows_of[_line(events, int(stack))].append(alive[allocations.stack[alive] == stack])
    found = []
    for line, parts in rows_of.items():
        rows = np.concatenate(parts)
        grows = _born_throughout(events.time_ns[allocations.born[rows]], events.time_ns)
        found.append(LiveAllocations(int(allocations.bytes[rows].sum()), len(rows), line, grows))
    return tuple(sorted(found, key=lambda each: -each.bytes)[:MOST])


def _line(events: MemoryEvents, stack: int) -> str:
    return line_text(program_line(events.frames(stack)), "")


def _born_throughout(births: NDArray[np.int64], times: NDArray[np.int64]) -> bool:
    if len(births) < _MANY or times[-1] <= times[0]:
        return False
    quarters = np.minimum(4 * (births - times[0]) // (times[-1] - times[0]), 3)
    return bool((np.bincount(quarters, minlength=4) >= _QUARTER_SHARE * len(births)).all())
