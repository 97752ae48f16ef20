# SPDX-License-Identifier: Apache-2.0
"""Where every byte is that a GPU's driver counts for this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuscope import _core
from gpuscope.memory import sources
from gpuscope.memory.ledger.bare_context import additions_bytes, bare_context_bytes
from gpuscope.memory.ledger.by_region import events_so_far
from gpuscope.memory.ledger.rows import LedgerRow, accounts_of
from gpuscope.memory.ledger.text import ledger_text
from gpuscope.memory.ordinals import check_ordinal, why_no_gpu
from gpuscope.memory.reports.watched import Watched, watched
from gpuscope.memory.sizes import size_text
from gpuscope.memory.sources import driver, torch
from gpuscope.memory.sources.host import HostMemory, host_memory

UNEXPLAINED = "unexplained"
DRIVER = "driver"


@dataclass(frozen=True)
class MemoryLedger:
    """The memory of this process on one GPU, by who holds it. Sizes are bytes.

    Attributes:
        device: ordinal of the GPU.
        rows: largest first, no byte in two of them; the row "unexplained" last, where NVML counts more.
        process: what NVML counts for this process; None where it does not tell.
        process_why: why it does not.
        notes: what limits the ledger.
        host_rows: pinned memory of the host by library, and managed memory, whose pages may be on either side.
        host: the host's memory in sum.
        why: why there is no GPU; empty when there is one.
    """

    device: int
    rows: tuple[LedgerRow, ...]
    process: int | None
    process_why: str
    notes: tuple[str, ...]
    host_rows: tuple[LedgerRow, ...]
    host: HostMemory
    why: str = ""

    @property
    def explained(self) -> int:
        """The sum of the rows but "unexplained"."""
        return sum(row.bytes for row in self.rows if row.library != UNEXPLAINED)

    @property
    def unexplained(self) -> int | None:
        """What NVML counts over that; None where it does not tell."""
        return None if self.process is None else max(0, self.process - self.explained)

    @property
    def total(self) -> int:
        """What NVML counts for this process; where it does not tell, what is explained."""
        return self.explained if self.process is None else self.process

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only, for JSON."""
        sums = {"total": self.total, "explained": self.explained, "unexplained": self.unexplained}
        return asdict(self) | sums

    def __str__(self) -> str:
        """A table, what share of NVML's figure it explains, and the notes."""
        return ledger_text(self)


def memory_ledger(device: int = 0, *, measure_context: bool = True) -> MemoryLedger:
    """Explains the GPU memory of this process: pools of frameworks, other libraries, the driver itself.

    Libraries that take memory from the driver directly, as cuBLAS for its workspaces, are named while allocations are
    watched, as ``gpuscope.record_memory_history()`` has it; best from before the first use of the GPU. Does not wait
    for the GPU and makes no CUDA context in this process.

    Args:
        device: ordinal of the GPU.
        measure_context: whether to measure what a bare CUDA context takes, what CUPTI adds to it, and what the driver
            keeps for kernels that assert or print, once for each device, in child processes (0.3 s each). Without it
            that stays unexplained.

    Raises:
        InvalidArgument: `device` is no ordinal.
        NotAvailable: there are GPUs, but not this one.
    """
    check_ordinal(device)
    why = why_no_gpu()
    seen = watched()
    if why:
        return MemoryLedger(device, (), None, why, (), (), host_memory(), why)
    (device,) = sources.devices(device)
    facts = _core.process_memory(device)
    pools = sources.pools(device, detail=False)
    in_use = _core.devices_in_use()
    accounts = accounts_of(
        device,
        pools,
        _segments(device),
        seen,
        driver.handles(device),
        events=events_so_far(),
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
            f"{size_text(explained - process)} more is explained than NVML counts: memory came or went while this was "
            "read, or is managed and lies on the host"
        )
    elif process is not None and explained < process:
        rows.append(LedgerRow(UNEXPLAINED, "", process - explained))
    return MemoryLedger(
        device=device,
        rows=tuple(rows),
        process=process,
        process_why=facts["why"] if process is None else "",
        notes=tuple(notes),
        host_rows=tuple(accounts.host_rows),
        host=host_memory(),
    )


def _segments(device: int) -> tuple[sources.Segment, ...] | None:
    """Torch's; None where its allocator cannot tell."""
    try:
        return torch.segments(device)
    except Exception:
        return None


def _driver_rows(
    device: int, seen: Watched | None, in_use: Sequence[int], *, measure_context: bool
) -> tuple[list[LedgerRow], list[str]]:
    """What the driver itself takes, and what limits the ledger."""
    rows, notes = [], []
    context = bare_context_bytes(device) if measure_context else None
    if context is not None:
        rows.append(LedgerRow(DRIVER, "CUDA context", context))
    else:
        why = "could not be measured" if measure_context else "was not measured"
        notes.append(f"the CUDA context {why}: it is unexplained here")
    if seen is None:
        notes.append(
            "what libraries take from the driver themselves is not watched, and so unexplained: "
            "gpuscope.record_memory_history() has it watched"
        )
        return rows, notes
    if context is not None:
        # CUPTI adds to contexts that are made while it is in use. Which GPU's kernels call what is not known.
        cupti = seen.cupti_path if seen.from_start else ""
        services = seen.services if len(in_use) == 1 else ()
        of_cupti, of_services = additions_bytes(device, cupti, services) or (0, 0)
        rows.append(LedgerRow("gpuscope", "CUPTI, while allocations are watched", of_cupti))
        rows.append(LedgerRow(DRIVER, f"for {', '.join(services)} in kernels", of_services))
    if seen.services and len(in_use) > 1:
        notes.append(f"what the driver keeps for {', '.join(seen.services)} in kernels is unexplained on several GPUs")
    if seen.code_bytes and len(in_use) == 1:
        rows.append(LedgerRow(DRIVER, "kernel code", seen.code_bytes))
    elif seen.code_bytes:
        notes.append(f"{size_text(seen.code_bytes)} of kernel code lie on {len(in_use)} GPUs, and are unexplained here")
    if not seen.from_start:
        notes.append("the watch began when the GPU was in use: what libraries had taken by then is unexplained")
    if seen.unknown_releases:
        notes.append(f"{seen.unknown_releases} releases were of memory taken before the watch began")
    return [row for row in rows if row.bytes], notes
