# SPDX-License-Identifier: Apache-2.0
"""gpuscope's own files: everything a recording holds, opened in an instant."""

from __future__ import annotations

import os

from gpuscope import _core
from gpuscope.paths import as_path, check_writable

GSCOPE_SUFFIXES = (".gscope",)


def save(store: _core.Store, path: str | os.PathLike[str]) -> None:
    """Save a recording; a file of that name is replaced in one step, or kept whole.

    Raises:
        InvalidArgument: the suffix is not ``.gscope``.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, GSCOPE_SUFFIXES)
    _core.write_gscope(store, os.path.realpath(checked))


def load_store(path: str | os.PathLike[str]) -> _core.Store:
    """Open a saved recording.

    A file that was cut off opens up to its last whole block; ``info()["file.truncated_at"]`` then is the byte where
    reading ended.

    Raises:
        InvalidArgument: the path is none.
        CorruptTrace: the file is damaged, no .gscope file, or from a newer gpuscope.
        GpuscopeError: the file cannot be opened.
    """
    return _core.read_gscope(str(as_path(path)))
