# SPDX-License-Identifier: Apache-2.0
"""Files of other tools, recognized by their content."""

from __future__ import annotations

import os
from pathlib import Path

from gpuscope import _core
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.paths import as_path, find_suffix, open_file
from gpuscope.readers.chrome import Batch, EventMapper, read_chrome_trace, read_parts
from gpuscope.readers.jax_trace import JaxEvents
from gpuscope.readers.nsys import SQLITE, is_export, read_nsys
from gpuscope.readers.proton import ProtonEvents, is_tree, read_proton_tree
from gpuscope.readers.tables import NONE
from gpuscope.readers.torch_trace import TorchEvents
from gpuscope.text import brief

ACCEPTED = (
    ".gscope files and traces of torch.profiler, JAX and Proton, .json and .json.gz, Proton's trees, .hatchet, and "
    "exports of Nsight Systems reports by `nsys export` with --type sqlite or --type parquetdir"
)
SUFFIXES = (".gscope", ".json", ".json.gz", ".hatchet", ".sqlite")
_GSCOPE = b"\x89GSCOPE\n"
_NSYS_REPORT = (".nsys-rep", ".qdrep")
_HEAD = 1 << 12
_MOST_NAMES = 3  # of recordings, in a message


def read_foreign(path: str | os.PathLike[str], salvage: bool = False) -> _core.Store | None:
    """Reads a file or folder of another tool as a recording; None if it is one of ours.

    Raises:
        InvalidArgument: there is no such file, or it is no regular file.
        CorruptTrace: it is damaged, or of no known tool.
        NotAvailable: reading it needs a library that is not installed.
        GpuscopeError: the file cannot be read.
    """
    checked = as_path(path)
    name = str(checked)
    kind = kind_of(checked)
    if kind == "gscope":
        return None
    if kind == "nsys":
        return read_nsys(name)
    if kind == "tree":
        return read_proton_tree(name)
    if kind == "json":
        return read_chrome_trace(name, _whose, TorchEvents, salvage)
    advice = ""
    if checked.suffix.lower() in _NSYS_REPORT:
        advice = "; convert it with `nsys export --type sqlite`"
    raise CorruptTrace(f"{brief(repr(name))} is no recording{advice}; accepted are {ACCEPTED}", name, 0)


def recordings_in(folder: Path) -> list[Path]:
    """The ``.gscope`` files of a folder, by name, without empty ones, which have only been begun."""
    return sorted(path for path in folder.glob("*.gscope") if path.is_file() and path.stat().st_size)


def recording_of(path: Path) -> Path:
    """The path itself or, for a run's folder, its only recording.

    Raises:
        InvalidArgument: the folder has no recording, or several.
    """
    if not path.is_dir() or is_export(path):
        return path
    found = recordings_in(path)
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidArgument(f"the folder {brief(str(path))} has no .gscope file")
    names = ", ".join(str(each) for each in found[:_MOST_NAMES]) + ", ..." * (len(found) > _MOST_NAMES)
    raise InvalidArgument(f"the folder {brief(str(path))} has {len(found)} recordings; give one of them: {names}")


def kind_of(path: Path) -> str:
    """The kind of a file or folder by its first bytes: "gscope", "nsys", "tree" or "json"; "" if unknown.

    If the content does not decide, the suffix does, so that a damaged trace gets a specific error.

    Raises:
        InvalidArgument: there is no such file, or it is no regular file.
        GpuscopeError: the file cannot be read.
    """
    if path.is_dir() and is_export(path):
        return "nsys"
    with open_file(path) as file:
        start = file.read(len(SQLITE))
        file.seek(0)
        try:
            head = next(read_parts(file, str(path)), b"")[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
        except CorruptTrace:
            head = b""
    suffix = find_suffix(path, SUFFIXES)
    if start.startswith(_GSCOPE) or suffix == ".gscope":
        return "gscope"
    if start == SQLITE or suffix == ".sqlite":
        return "nsys"
    if is_tree(head) or suffix == ".hatchet":
        return "tree"
    return "json" if head[:1] in (b"{", b"[") or suffix is not None else ""


def _whose(batch: Batch, events: _core.TraceEvents) -> type[EventMapper] | None:
    """The mapper of the tool that wrote these events, or None if they do not show it."""

    def word(text: str) -> int:
        found: int = events.find(text)
        return found if found != NONE else -1

    if ProtonEvents.knows(batch, word):
        return ProtonEvents
    if TorchEvents.knows(batch, events):
        return TorchEvents
    return JaxEvents if JaxEvents.knows(batch, events) else None
