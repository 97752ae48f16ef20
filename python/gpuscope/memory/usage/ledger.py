# SPDX-License-Identifier: Apache-2.0
"""Attributes every byte that NVML counts for this process on a GPU to a library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope.devices import HOST, ordinal_of, why_no_gpu
from gpuscope.errors import NotAvailable
from gpuscope.frameworks import torch_memory
from gpuscope.frameworks.numpy import unreported
from gpuscope.frameworks.pools import Pool
from gpuscope.frameworks.torch_memory import DEFAULT, Segment
from gpuscope.memory import allocators
from gpuscope.memory.addresses import AddressRanges, uncovered
from gpuscope.memory.allocation_watch import PINNED, DriverAllocation, Watched, watched
from gpuscope.memory.allocators import CUDA_POOL
from gpuscope.memory.history import history
from gpuscope.memory.history.call_stacks import cached_lines, line_text, program_line_text
from gpuscope.memory.history.events import SOURCES, MemoryEvents
from gpuscope.memory.host import HostMemory, host_memory
from gpuscope.memory.usage.bare_context import additions_bytes, bare_context_bytes
from gpuscope.results import Result, import_pandas
from gpuscope.tables import align_columns
from gpuscope.units import format_bytes

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

UNEXPLAINED = "unexplained"
DRIVER = "driver"

POOL, MANAGED = "pool", "managed"
# Substrings of the file names of each framework's libraries that allocate from the driver.
_FRAMEWORKS = {
    "torch": ("libtorch", "libc10", "torch/"),
    "cupy": ("cupy",),
    "rmm": ("librmm", "rmm/"),
    "jax": ("xla", "jax"),
}
_WHAT = {
    "device": "device memory",
    "virtual": "mapped memory",
    "array": "arrays",
    POOL: "stream-ordered memory",
    MANAGED: "managed memory, wherever its pages are",
    PINNED: "pinned memory of the host",
}

_COLUMNS = ("Library", "What", "Size", "Share", "Region", "Where")


@dataclass(frozen=True)
class MemoryLedger(Result):
    """The memory of this process on one GPU, by library and purpose. Sizes are bytes.

    Attributes:
        device: ordinal of the GPU.
        rows: largest first, no byte twice. The row "unexplained" is last, if NVML counts more.
        process_bytes: NVML's figure for this process; None if NVML does not report it.
        process_why: why `process_bytes` is None.
        notes: limits of the ledger.
        host_rows: pinned memory by library, managed memory (on the GPU or the host), and NumPy's arrays since the
            memory history began.
        host: totals of the host's memory.
        why: why there is no GPU; empty when there is one.
    """

    device: int
    rows: tuple[LedgerRow, ...]
    process_bytes: int | None
    process_why: str
    notes: tuple[str, ...]
    host_rows: tuple[LedgerRow, ...]
    host: HostMemory
    why: str = ""

    @property
    def explained_bytes(self) -> int:
        """The sum of the rows without "unexplained"."""
        return sum(row.bytes for row in self.rows if row.library != UNEXPLAINED)

    @property
    def unexplained_bytes(self) -> int | None:
        """NVML's figure minus `explained_bytes`; None if NVML does not report it."""
        return None if self.process_bytes is None else max(0, self.process_bytes - self.explained_bytes)

    @property
    def total_bytes(self) -> int:
        """NVML's figure for this process; `explained_bytes` if NVML does not report it."""
        return self.explained_bytes if self.process_bytes is None else self.process_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        sums = {
            "total_bytes": self.total_bytes,
            "explained_bytes": self.explained_bytes,
            "unexplained_bytes": self.unexplained_bytes,
        }
        return asdict(self) | sums

    def to_pandas(self) -> Any:
        """The rows as a DataFrame.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame([asdict(row) for row in self.rows])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws one bar per row, in the order of `rows`.

        Args:
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed, or there is no GPU.
        """
        from gpuscope import plots

        if self.why:
            raise NotAvailable(f"there is no memory of a GPU to plot: {self.why}")
        names = [" ".join(filter(None, (row.library, row.what, row.region))) for row in self.rows]
        title = f"GPU {self.device}: {_explained(self)}"
        return plots.bars(names, [row.bytes for row in self.rows], quantity="B", what="memory", ax=ax, title=title)

    def __repr__(self) -> str:
        return f"<MemoryLedger of GPU {self.device}: {self.why or _explained(self)}>"

    def __str__(self) -> str:
        """A table, the share of NVML's figure that it explains, and the notes."""
        return _text(self)


@unreported()
def memory_ledger(device: object = 0, *, measure_context: bool = True) -> MemoryLedger:
    """Explains the GPU memory of this process: pools of frameworks, other libraries, the driver itself.

    Libraries that allocate from the driver directly, as cuBLAS for its workspaces, are named only while
    ``gpuscope.record_memory_history()`` records; start it before the first use of the GPU. The host's rows then
    include NumPy's arrays. Does not wait for the GPU and creates no CUDA context in this process.

    Args:
        device: a GPU, as ``0``, ``"cuda:0"`` or a device of a framework.
        measure_context: whether to measure the bare CUDA context, CUPTI's share, and the driver's memory for kernels
            that assert or print. Runs child processes, once per device. Without it, these bytes stay unexplained.

    Raises:
        InvalidArgument: `device` is no ordinal.
        NotAvailable: there are GPUs, but not this one.
    """
    device = ordinal_of(device)
    why = why_no_gpu()
    seen = watched()
    # Memory that is live in an ended history may have been freed since.
    events = history.history_events() if history.recording() else None
    arrays = [] if events is None else handed_out(events, "numpy", HOST)
    if why:
        return MemoryLedger(device, (), None, why, (), tuple(arrays), host_memory(), why)
    allocators.devices(device)
    facts = _core.process_memory(device)
    pools = allocators.pools(device, detail=False)
    in_use = _core.devices_in_use()
    accounts = accounts_of(
        device,
        pools,
        _segments(device),
        seen,
        allocators.driver_pool_handles(device),
        events=events,
        alone=in_use == [device],
    )
    notes = [f"{pool.library}: {pool.note}" for pool in pools if pool.note] + accounts.notes
    if device in in_use:
        own, limits = _driver_rows(device, seen, in_use, measure_context=measure_context)
        accounts.rows += own
        notes += limits
    rows = sorted(accounts.rows, key=lambda row: row.bytes, reverse=True)
    process: int | None = facts["process"]
    explained = sum(row.bytes for row in rows)
    if process is not None and explained > process:
        notes.append(
            f"{format_bytes(explained - process)} more is explained than NVML counts: memory changed during the "
            "reading, or is managed and on the host"
        )
    elif process is not None and explained < process:
        rows.append(LedgerRow(UNEXPLAINED, "", process - explained))
    return MemoryLedger(
        device=device,
        rows=tuple(rows),
        process_bytes=process,
        process_why=facts["why"] if process is None else "",
        notes=tuple(notes),
        host_rows=tuple(sorted(accounts.host_rows + arrays, key=lambda row: row.bytes, reverse=True)),
        host=host_memory(),
    )


def _segments(device: int) -> tuple[Segment, ...] | None:
    """Torch's segments; None if its allocator has none."""
    try:
        return torch_memory.segments(device)
    except Exception:
        return None


def _driver_rows(
    device: int, seen: Watched | None, in_use: Sequence[int], *, measure_context: bool
) -> tuple[list[LedgerRow], list[str]]:
    """Rows of the driver itself, and limits of the ledger."""
    rows, notes = [], []
    context = bare_context_bytes(device) if measure_context else None
    if context is not None:
        rows.append(LedgerRow(DRIVER, "CUDA context", context))
    else:
        why = "could not be measured" if measure_context else "was not measured"
        notes.append(f"the CUDA context {why}: it is unexplained here")
    if seen is None:
        notes.append(
            "memory that libraries allocate from the driver directly is unexplained: "
            "call gpuscope.record_memory_history() to watch it"
        )
        return rows, notes
    if context is not None:
        # CUPTI enlarges contexts that are created while it is in use. The driver's services are not known per GPU.
        cupti = seen.cupti_path if seen.from_start else ""
        services = seen.services if len(in_use) == 1 else ()
        of_cupti, of_services = additions_bytes(device, cupti, services) or (0, 0)
        rows.append(LedgerRow("gpuscope", "CUPTI, while allocations are watched", of_cupti))
        rows.append(LedgerRow(DRIVER, f"for {', '.join(services)} in kernels", of_services))
    if seen.services and len(in_use) > 1:
        notes.append(f"the driver's memory for {', '.join(seen.services)} in kernels is unexplained on several GPUs")
    if seen.code_bytes and len(in_use) == 1:
        rows.append(LedgerRow(DRIVER, "kernel code", seen.code_bytes))
    elif seen.code_bytes:
        notes.append(
            f"{format_bytes(seen.code_bytes)} of kernel code are on {len(in_use)} GPUs, and are unexplained here"
        )
    if not seen.from_start:
        notes.append("the watch began when the GPU was in use: earlier allocations of libraries are unexplained")
    if seen.unknown_releases:
        notes.append(f"{seen.unknown_releases} releases were of memory taken before the watch began")
    return [row for row in rows if row.bytes], notes


@dataclass(frozen=True)
class LedgerRow:
    """Memory that one library holds for one purpose, allocated in one region of the program.

    Attributes:
        library: "torch", "cupy", "libcublasLt.so.13", "driver" and so on; "unexplained" for the rest.
        what: the purpose.
        bytes: size.
        where: the program's line of the largest allocation, as "train.py:12 step"; "" if unknown.
        region: the innermost open ``record_function``; "" if none or unknown.
    """

    library: str
    what: str
    bytes: int
    where: str = ""
    region: str = ""


@dataclass
class Accounts:
    """The explained rows."""

    rows: list[LedgerRow] = field(default_factory=list)
    host_rows: list[LedgerRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, library: str, what: str, size: int, where: str = "", region: str = "") -> None:
        """Adds a row, unless it is empty."""
        if size > 0:
            self.rows.append(LedgerRow(library, what, size, where, region))


@dataclass
class _Remainder:
    """A live allocation, and its bytes that no pool accounts for."""

    allocation: DriverAllocation
    bytes: int


def framework_of(library: str) -> str:
    """The framework that a library belongs to; "" for none."""
    return next((name for name, parts in _FRAMEWORKS.items() if any(part in library for part in parts)), "")


def accounts_of(
    device: int,
    pools: Sequence[Pool],
    segments: Sequence[Segment] | None,
    seen: Watched | None,
    cuda_pools: Collection[int] = (),
    *,
    events: MemoryEvents | None = None,
    alone: bool = True,
) -> Accounts:
    """The known memory of a device as rows, each byte once.

    Args:
        device: ordinal of the GPU.
        pools: of all allocators on it.
        segments: torch's; None if they cannot be read.
        seen: the driver's allocations; None if they are not watched.
        cuda_pools: handles of the driver's pools in the pool "cuda pool".
        events: of the memory history since the watch began.
        alone: this is the only GPU in use. Allocations of an unknown device are then attributed to it.
    """
    accounts = Accounts()
    allocations = [] if seen is None else seen.allocations
    here = [p for p in allocations if p.kind != PINNED and (p.device == device or (alone and p.device < -1))]
    left = _outside_segments(here, segments or ())
    placed = {}
    if segments:
        placed["torch"] = _place(one.allocation for one in left if one.bytes < one.allocation.bytes)
    listed = {0, *cuda_pools}
    in_cuda_pool = [one for one in left if one.allocation.kind == POOL and one.allocation.pool in listed]
    own = [one for one in left if one.allocation.kind != POOL or one.allocation.pool not in listed]
    for pool in pools:
        # Torch's segments have addresses. Of other pools only the library and the size are known.
        if pool.library == CUDA_POOL or (pool.library == "torch" and segments and not pool.in_cuda_pool):
            continue
        taken = _absorb(in_cuda_pool if pool.in_cuda_pool else own, pool.library, pool.reserved_bytes)
        placed.setdefault(pool.library, _place(taken))
    for pool in pools:
        if pool.library == CUDA_POOL:
            continue
        private = [s for s in segments or () if s.pool != DEFAULT] if pool.library == "torch" else []
        _add_pool(accounts, pool, private, placed.get(pool.library, ""), events)
    _add_cuda_pool(accounts, next((pool for pool in pools if pool.library == CUDA_POOL), None), in_cuda_pool)
    for kind in _WHAT:
        group = [one for one in own if one.allocation.kind == kind]
        rows = _by_library(group)
        (accounts.host_rows if kind == MANAGED else accounts.rows).extend(rows)
        if kind == POOL and rows:
            accounts.notes.append("memory cached in pools that libraries created for themselves is unknown")
    pinned = [_Remainder(allocation, allocation.bytes) for allocation in allocations if allocation.kind == PINNED]
    accounts.host_rows.extend(_by_library(pinned))
    if any(row.what.startswith(_WHAT[MANAGED]) for row in accounts.host_rows):
        accounts.notes.append("pages of managed memory that are on the GPU are unexplained here")
    return accounts


def _outside_segments(allocations: Sequence[DriverAllocation], segments: Sequence[Segment]) -> list[_Remainder]:
    at_address = [allocation for allocation in allocations if allocation.address]
    sizes = uncovered([(p.address, p.bytes) for p in at_address], [(s.address, s.bytes) for s in segments])
    without = [_Remainder(allocation, allocation.bytes) for allocation in allocations if not allocation.address]
    return [_Remainder(allocation, size) for allocation, size in zip(at_address, sizes, strict=True)] + without


def _absorb(allocations: Iterable[_Remainder], library: str, budget: int) -> list[DriverAllocation]:
    """Subtracts a pool's bytes from the allocations of its library, largest first; returns the changed ones."""
    taken = []
    for one in sorted(allocations, key=lambda one: one.bytes, reverse=True):
        if budget <= 0:
            break
        if one.bytes and framework_of(one.allocation.library) == library:
            share = min(one.bytes, budget)
            one.bytes -= share
            budget -= share
            taken.append(one.allocation)
    return taken


def _add_pool(
    accounts: Accounts, pool: Pool, private: Sequence[Segment], where: str, events: MemoryEvents | None
) -> None:
    graphs = min(pool.reserved_bytes, sum(segment.bytes for segment in private))
    in_graphs = sum(segment.allocated_bytes for segment in private)
    allocated = max(0, min(pool.allocated_bytes - in_graphs, pool.reserved_bytes - graphs))
    rest, outside = allocated, 0
    for one in handed_out(events, pool.library, pool.device, private) if events is not None else ():
        size = min(one.bytes, rest)
        rest -= size
        if one.region:
            accounts.add(pool.library, "allocated", size, one.where, one.region)
        else:
            outside, where = size, one.where or where
    accounts.add(pool.library, "allocated", outside + rest, where)
    accounts.add(pool.library, "cached", pool.reserved_bytes - graphs - allocated)
    accounts.add(pool.library, "graph pools", graphs)


def _add_cuda_pool(accounts: Accounts, pool: Pool | None, allocations: Sequence[_Remainder]) -> None:
    """Adds the driver's pool: watched allocations by library, and the rest."""
    rows = _by_library(allocations)
    accounts.rows.extend(rows)
    if pool is None:
        return
    known = sum(row.bytes for row in rows)
    in_use = max(pool.allocated_bytes, known)
    accounts.add(CUDA_POOL, "allocated", in_use - known)
    accounts.add(CUDA_POOL, "cached", pool.reserved_bytes - in_use)
    if known > pool.reserved_bytes:
        more = format_bytes(known - pool.reserved_bytes)
        accounts.notes.append(f"the driver's pool holds {more} less than was seen allocated from it")


def _by_library(allocations: Sequence[_Remainder]) -> list[LedgerRow]:
    """One row per library, kind and region."""
    groups: dict[tuple[str, str, str], list[_Remainder]] = defaultdict(list)
    for one in allocations:
        if one.bytes:
            groups[one.allocation.library, one.allocation.kind, one.allocation.region].append(one)
    return [
        LedgerRow(
            library or "a library that is not known",
            f"{_WHAT[kind]}, {len(group)} piece{'s' if len(group) > 1 else ''}",
            sum(one.bytes for one in group),
            _place(one.allocation for one in group),
            region,
        )
        for (library, kind, region), group in groups.items()
    ]


def _place(allocations: Iterable[DriverAllocation]) -> str:
    """The program's line of the largest allocation."""
    largest = max(allocations, key=lambda allocation: allocation.bytes, default=None)
    return "" if largest is None else program_line_text(largest.stack)


def handed_out(events: MemoryEvents, library: str, device: int, apart: Iterable[Segment] = ()) -> list[LedgerRow]:
    """Live memory of a library's allocator on a device by region, largest first, without the segments `apart`."""
    if library not in SOURCES:
        return []
    of_library = events.select((events.source == SOURCES.index(library)) & (events.device == device))
    allocations = of_library.lifetimes()
    left_out = np.array([(segment.address, segment.bytes) for segment in apart], dtype=np.uint64).reshape(-1, 2)
    alive = np.flatnonzero(
        allocations.alive & ~AddressRanges.merged(left_out[:, 0], left_out[:, 1]).holds(allocations.address)
    )
    line_of = cached_lines(events.frames)
    regions = of_library.region[allocations.born[alive]]
    found = []
    for number in np.unique(regions):
        rows = alive[regions == number]
        largest = rows[np.argmax(allocations.bytes[rows])]
        where = line_text(line_of(int(allocations.stack[largest])), "")
        size = int(allocations.bytes[rows].sum())
        found.append(LedgerRow(library, "allocated", size, where, events.regions[number]))
    return sorted(found, key=lambda each: each.bytes, reverse=True)


def _text(ledger: MemoryLedger) -> str:
    """The table, the explained share of NVML's figure, the host's memory, and the notes."""
    lines = []
    if ledger.why:
        lines.append(f"host memory only: {ledger.why}")
    elif not ledger.rows:
        lines.append(f"device {ledger.device}: this process holds no memory there")
    else:
        lines += [f"device {ledger.device}", *_table(ledger.rows, ledger.total_bytes), _explained(ledger)]
    host = ledger.host
    lines += ["", f"host: {format_bytes(host.resident_bytes)} resident, peak {format_bytes(host.peak_resident_bytes)}"]
    if ledger.host_rows:
        lines += _table(ledger.host_rows, 0)
    if host.pinned_bytes is not None and not any(row.what.startswith(_WHAT[PINNED]) for row in ledger.host_rows):
        lines.append(f"pinned: {format_bytes(host.pinned_bytes)}")
    if host.pinned_why:
        lines.append(f"note: pinned memory: {host.pinned_why}")
    return "\n".join(lines + [f"note: {note}" for note in ledger.notes])


def _explained(ledger: MemoryLedger) -> str:
    if ledger.process_bytes is None:
        return f"explained {format_bytes(ledger.explained_bytes)}; the whole is not known: {ledger.process_why}"
    share = ledger.explained_bytes / ledger.process_bytes if ledger.process_bytes else 1.0
    return f"explained {100 * share:.1f} % of {format_bytes(ledger.process_bytes)} (NVML's figure for this process)"


def _table(rows: Sequence[LedgerRow], total: int) -> list[str]:
    """Lines of columns, without empty ones."""
    cells = [list(_COLUMNS)]
    for row in rows:
        share = f"{100 * row.bytes / total:.1f} %" if total else ""
        cells.append([row.library, row.what, format_bytes(row.bytes), share, row.region, row.where])
    kept = [number for number in range(len(_COLUMNS)) if number < 3 or any(line[number] for line in cells[1:])]
    rows_of_text = [[line[number] for number in kept] for line in cells]
    return align_columns(rows_of_text, left=[at for at, number in enumerate(kept) if number not in (2, 3)], rule=True)
