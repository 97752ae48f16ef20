# SPDX-License-Identifier: Apache-2.0
"""What ``gpuscope memory`` found, as files: the suffix chooses the form."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable

if TYPE_CHECKING:
    from gpuscope.cli.memory_watch import MemoryFindings

SUFFIXES = (".html", ".htm", ".pickle", ".pkl", ".json")


def checked(paths: Sequence[str], suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """The files, known to be writable, by absolute paths: the program that runs in between may change its folder.

    Raises:
        InvalidArgument: a suffix is unknown, a file cannot be written, or one is named twice.
    """
    from gpuscope.exporters import check_writable

    try:
        found = [Path(os.path.abspath(check_writable(path, tuple(suffixes)))) for path in paths]
    except GpuscopeError as error:  # nothing has been lost yet: it is the argument that is wrong
        raise InvalidArgument(str(error)) from error
    for path, given in zip(found, paths, strict=True):
        if found.count(path) > 1:
            raise InvalidArgument(f"the output {given} is named twice")
    return found


def write(found: MemoryFindings, path: Path) -> str:
    """Writes one file; "" or why that was not possible."""
    try:
        if path.suffix.lower() in (".html", ".htm"):
            _write_page(found, path)
        elif path.suffix.lower() == ".json":
            _write_json(found, path)
        else:
            from gpuscope.memory.snapshot_writer import dump_memory_snapshot

            dump_memory_snapshot(path)
    except Exception as error:  # the program is over, and its exit code is its own
        return str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
    return ""


def plain(found: MemoryFindings) -> dict[str, Any]:
    """The findings as JSON has them; what could not be had is None."""

    def plainly(thing: Any) -> Any:
        return None if thing is None else thing.to_dict()

    return {
        "program": found.program,
        "snapshot": plainly(found.snapshot),
        "ledgers": [plainly(ledger) for ledger in found.ledgers],
        "history": None if found.events is None else {"events": len(found.events), "lost": found.events.lost},
        "peak": plainly(found.peak),
        "peak_by_category": {name.lower(): size for name, size in found.at_peak.items()},
        "stages": plainly(found.stages),
        "leaks": plainly(found.leaks),
        "notes": found.notes,
    }


def _write_json(found: MemoryFindings, path: Path) -> None:
    from gpuscope.paths import replacing

    text = json.dumps(plain(found), indent=1, default=str) + "\n"
    with replacing(path) as file:
        file.write(text.encode())


def _write_page(found: MemoryFindings, path: Path) -> None:
    from gpuscope.exporters.memory_page import export_memory_page

    if found.events is None or not len(found.events):
        raise NotAvailable("the history has no events")
    export_memory_page(
        found.events,
        path,
        device=getattr(found.peak, "device", None),
        categories=found.categories,
        title=f"Memory of {found.program}",
        notes=found.limits,
    )
