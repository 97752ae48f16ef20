# SPDX-License-Identifier: Apache-2.0
"""Opens recordings of gpuscope and of other tools, recognized by their content.

Readers are imported late: a ``.gscope`` file needs none of them, nor NumPy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope import _core
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.paths import as_path, find_suffix, open_file
from gpuscope.text import brief

if TYPE_CHECKING:
    from gpuscope.readers.chrome import Batch, EventMapper

ACCEPTED = (
    ".gscope files and traces of torch.profiler, JAX and Proton, .json and .json.gz, Proton's trees, .hatchet, and "
    "exports of Nsight Systems reports by `nsys export` with --type sqlite or --type parquetdir"
)
SUFFIXES = (".gscope", ".json", ".json.gz", ".hatchet", ".sqlite")
_GSCOPE = b"\x89GSCOPE\n"
_SQLITE = b"SQLite format 3\0"
_NSYS_REPORT = (".nsys-rep", ".qdrep")
_HEAD = 1 << 12
_MOST_NAMES = 3  # of recordings, in a message


def load_store(path: str | os.PathLike[str], salvage: bool = False) -> _core.Store:
    """The rows of the recording at a path; its info has the losses of a damaged file, under ``file.``.

    Raises:
        InvalidArgument: it is no file, or a folder without one recording, or ``salvage`` is not a bool.
        CorruptTrace: it is damaged, of no known tool, or of another version of the format.
        NotAvailable: reading it needs a library that is not installed.
        GpuscopeError: the file cannot be read.
    """
    if not isinstance(salvage, bool):
        raise InvalidArgument(f"salvage is {brief(salvage)}; accepted are True and False")
    checked = as_path(path)
    kind = "gscope"
    if find_suffix(checked, (".gscope",)) is None:
        checked = recording_of(checked)
        kind = kind_of(checked)
    name = str(checked)
    if kind == "gscope" and has_segments(checked):
        return _core.read_segments(name)
    if kind == "gscope":
        return _core.read_gscope(name, salvage)
    if kind == "nsys":
        from gpuscope.readers.nsys import read_nsys

        return read_nsys(name)
    if kind == "tree":
        from gpuscope.readers.proton import read_proton_tree

        return read_proton_tree(name)
    if kind == "json":
        from gpuscope.readers.chrome import read_chrome_trace
        from gpuscope.readers.torch_trace import TorchEvents

        return read_chrome_trace(name, _whose, TorchEvents, salvage)
    advice = ""
    if checked.suffix.lower() in _NSYS_REPORT:
        advice = "; convert it with `nsys export --type sqlite`"
    raise CorruptTrace(f"{brief(repr(name))} is no recording{advice}; accepted are {ACCEPTED}", name, 0)


def recordings_in(folder: Path) -> list[Path]:
    """The recordings of a folder, by name: ``.gscope`` files and folders of segments.

    Empty files have only been begun, and are left out.
    """
    return sorted(
        path for path in folder.glob("*.gscope") if has_segments(path) or (path.is_file() and path.stat().st_size)
    )


def has_segments(path: Path) -> bool:
    """Whether the path is a folder of segments, which is one recording."""
    return path.is_dir() and next(path.glob("segment-*.gscope"), None) is not None


def recording_of(path: Path) -> Path:
    """The path itself or, for a run's folder, its only recording.

    Raises:
        InvalidArgument: the folder has no recording, or several.
    """
    if not path.is_dir() or kind_of(path):
        return path
    found = recordings_in(path)
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidArgument(f"the folder {brief(str(path))} has no .gscope file")
    names = ", ".join(str(each) for each in found[:_MOST_NAMES]) + ", ..." * (len(found) > _MOST_NAMES)
    raise InvalidArgument(f"the folder {brief(str(path))} has {len(found)} recordings; give one of them: {names}")


def kind_of(path: Path) -> str:
    """The kind of a file, by its first bytes, or folder: "gscope", "nsys", "tree" or "json"; "" if unknown.

    If the content does not decide, the suffix does, so that a damaged trace gets a specific error.

    Raises:
        InvalidArgument: there is no such file, or it is no regular file.
        GpuscopeError: the file cannot be read.
    """
    if path.is_dir():
        from gpuscope.readers.nsys import is_export

        return "gscope" if has_segments(path) else "nsys" if is_export(path) else ""
    suffix = find_suffix(path, SUFFIXES)
    with open_file(path) as file:
        start = file.read(len(_SQLITE))
        if start.startswith(_GSCOPE) or suffix == ".gscope":
            return "gscope"
        if start == _SQLITE or suffix == ".sqlite":
            return "nsys"
        from gpuscope.readers.chrome import read_parts
        from gpuscope.readers.proton import is_tree

        file.seek(0)
        try:
            head = next(read_parts(file, str(path)), b"")[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
        except CorruptTrace:
            head = b""
    if is_tree(head) or suffix == ".hatchet":
        return "tree"
    return "json" if head[:1] in (b"{", b"[") or suffix is not None else ""


def _whose(batch: Batch, events: _core.TraceEvents) -> type[EventMapper] | None:
    """The mapper of the tool that wrote these events, or None if they do not show it."""
    from gpuscope.readers.jax_trace import JaxEvents
    from gpuscope.readers.proton import ProtonEvents
    from gpuscope.readers.tables import NONE
    from gpuscope.readers.torch_trace import TorchEvents

    def word(text: str) -> int:
        found: int = events.find(text)
        return found if found != NONE else -1

    if ProtonEvents.knows(batch, word):
        return ProtonEvents
    if TorchEvents.knows(batch, events):
        return TorchEvents
    return JaxEvents if JaxEvents.knows(batch, events) else None
