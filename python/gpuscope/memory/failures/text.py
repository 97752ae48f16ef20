# SPDX-License-Identifier: Apache-2.0
"""The report of an out-of-memory error in words: a few lines for the terminal, and all of it."""

from __future__ import annotations

from datetime import datetime, timezone

from gpuscope.memory.events import HOST
from gpuscope.memory.failures.report import OutOfMemory
from gpuscope.memory.places import line_text, program_line
from gpuscope.memory.sizes import size_text


def short(report: OutOfMemory) -> str:
    """What was asked for, who holds what, the verdict, the line and the advice."""
    lines = [f"gpuscope: {_headline(report)}"]
    lines += [f"  {line}" for line in (_holders(report), report.verdict) if line]
    at = line_text(program_line(report.stack), "")
    lines += [f"  at {at}"] if at else []
    lines += [f"  {number}. {text}" for number, text in enumerate(report.advice, 1)]
    return "\n".join(lines)


def whole(report: OutOfMemory) -> str:
    """The short text, then the ledger, the allocations, the refusals of the driver, the notes and the stack."""
    when = datetime.fromtimestamp(report.time_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds")
    parts = [short(report), f"{when}, process {report.pid}, thread {report.thread}\n{report.error}"]
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
    asked = "memory" if report.asked is None else size_text(report.asked)
    if report.device == HOST:
        what, asker, on = "out of host memory", "the program" if report.library == "host" else report.library, ""
    else:
        what, asker = "out of GPU memory", report.library
        on = "" if report.device is None else f" on GPU {report.device}"
    text = f"{what}: {asker} asked for {asked}{on}"
    if report.free is not None and report.total is not None:
        text += f"; {size_text(report.free)} of {size_text(report.total)} free"
    return text


def _holders(report: OutOfMemory) -> str:
    parts = [] if report.process is None else [f"this process holds {size_text(report.process)}"]
    for pool in report.pools:
        parts.append(f"{pool.library} {size_text(pool.reserved)}, of which {size_text(pool.allocated)} in use")
    if report.others:
        parts.append(f"other processes {size_text(report.others)}")
    return "; ".join(parts)


def _size(size: int) -> str:
    return f"{size_text(size):>9}"
