# SPDX-License-Identifier: Apache-2.0
"""Where results go: checked before a run, and replaced in one step after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from gpuscope.errors import GpuscopeError, InvalidArgument


def check_writable(path: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """Make sure that a result can be written, without touching what is there.

    Args:
        path: the file to be written; it may exist, its folder must.
        suffixes: the endings that the name may have, as ``(".json", ".json.gz")``; none accepts every name.

    Returns:
        The path, as a ``Path``.

    Raises:
        InvalidArgument: the path is none, or its suffix is not accepted.
        GpuscopeError: the folder is missing, the path is a directory, or the system would not let us write.
    """
    checked = as_path(path)
    if suffixes and not checked.name.lower().endswith(tuple(suffixes)):
        raise InvalidArgument(f"path must end with {' or '.join(suffixes)}, got {str(checked)!r}")
    with _as_gpuscope_error(checked):
        target = _resolve(checked)
        descriptor, temporary = _create_beside(target)
        os.close(descriptor)
        os.unlink(temporary)
    return checked


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user gave; raises InvalidArgument for what can be no path."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise InvalidArgument(f"path must be a str or an os.PathLike of str, got {type(path).__name__}")
    if not text or "\0" in text or not _is_utf8(text):
        raise InvalidArgument(f"path must be the name of a file in UTF-8, got {text!r}")
    return Path(text)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the name `path` only when the block ends well; until then the old file is kept.

    Raises:
        GpuscopeError: the system would not let us write.
    """
    with _as_gpuscope_error(path):
        target = _resolve(path)
        descriptor, temporary = _create_beside(target)
        try:
            with open(descriptor, "wb") as file:
                yield file
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise


@contextlib.contextmanager
def _as_gpuscope_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GpuscopeError(f"cannot write {path}: {error.strerror or error}") from error


def _resolve(path: Path) -> Path:
    """Follow links, so that replacing the file keeps them."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise GpuscopeError(f"cannot write {path}: it is a directory")
    if target.exists() and not target.is_file():
        raise GpuscopeError(f"cannot write {path}: it is no regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise GpuscopeError(f"cannot write {path}: the file is read-only")
    if not target.parent.is_dir():
        raise GpuscopeError(f"cannot write {path}: the folder {target.parent} does not exist")
    return target


def _create_beside(target: Path) -> tuple[int, Path]:
    """Create an empty file in the target's folder, the only place from which it can take the name in one step."""
    for attempt in range(1000):
        temporary = target.with_name(f".gpuscope-{os.getpid()}-{attempt}.tmp")
        with contextlib.suppress(FileExistsError):
            return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), temporary
    raise GpuscopeError(f"cannot write {target}: its folder is full of files named {temporary.name}")


def write_text(path: str | os.PathLike[str], text: str, suffixes: Sequence[str] = ()) -> None:
    """Write a text file in one step; arguments and errors as of `check_writable`."""
    with replacing(check_writable(path, suffixes)) as file:
        file.write(text.encode())
