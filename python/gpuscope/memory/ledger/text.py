# SPDX-License-Identifier: Apache-2.0
"""A ledger as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.ledger.ledger import MemoryLedger
    from gpuscope.memory.ledger.rows import LedgerRow

_COLUMNS = ("Library", "What", "Size", "Share", "Region", "Where")


def ledger_text(ledger: MemoryLedger) -> str:
    """The table, what share of NVML's figure it explains, the host's memory, and the notes."""
    lines = []
    if ledger.why:
        lines.append(f"host memory only: {ledger.why}")
    elif not ledger.rows:
        lines.append(f"device {ledger.device}: this process holds no memory there")
    else:
        lines += [f"device {ledger.device}", *_table(ledger.rows, ledger.total), _explained(ledger)]
    host = ledger.host
    lines += ["", f"host: {size_text(host.resident)} resident, peak {size_text(host.peak_resident)}"]
    if ledger.host_rows:
        lines += _table(ledger.host_rows, 0)
    elif host.pinned is not None:
        lines.append(f"pinned: {size_text(host.pinned)}")
    if host.pinned_why:
        lines.append(f"note: pinned memory: {host.pinned_why}")
    return "\n".join(lines + [f"note: {note}" for note in ledger.notes])


def _explained(ledger: MemoryLedger) -> str:
    if ledger.process is None:
        return f"explained {size_text(ledger.explained)}; the whole is not known: {ledger.process_why}"
    share = ledger.explained / ledger.process if ledger.process else 1.0
    return f"explained {100 * share:.1f} % of {size_text(ledger.process)} (NVML's figure for this process)"


def _table(rows: Sequence[LedgerRow], total: int) -> list[str]:
    """Lines of columns, numbers to the right; a column that is empty throughout is left out."""
    cells = [list(_COLUMNS)]
    for row in rows:
        share = f"{100 * row.bytes / total:.1f} %" if total else ""
        cells.append([row.library, row.what, size_text(row.bytes), share, row.region, row.where])
    kept = [number for number in range(len(_COLUMNS)) if number < 3 or any(line[number] for line in cells[1:])]
    widths = {number: max(len(line[number]) for line in cells) for number in kept}
    lines = [
        "  ".join(
            line[number].rjust(widths[number]) if number in (2, 3) else line[number].ljust(widths[number])
            for number in kept
        ).rstrip()
        for line in cells
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
