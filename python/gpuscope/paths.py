# SPDX-License-Identifier: Apache-2.0
"""Files that users name: results, checked before a run and replaced in one step after it, and input files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from gpuscope.errors import GpuscopeError, InvalidArgument

STANDARD_OUTPUT = 1
_MOST_LINKS = 40  # that Linux follows
_DIGITS = 10  # that no file descriptor has
_MOST_SHARED = 16  # names of temporary files that any process takes
_MOST_REMOVALS = 100  # of a file before it is locked: on some file systems an open file has another inode number


def check_writable(path: str | os.PathLike[str], suffixes: Sequence[str] = ()) -> Path:
    """Make sure that a result can be written, without changing an existing file.

    Args:
        path: the file to be written; it may exist, its folder must. Pipes, terminals and ``/dev/null`` are accepted.
        suffixes: the endings that the name may have, as ``(".json", ".json.gz")``, in any case; none accepts every
            name. Streams (`is_stream`) need none.

    Returns:
        The path, as a ``Path``.

    Raises:
        InvalidArgument: the path is not a path, or its suffix is not accepted.
        GpuscopeError: the folder is missing, the path is a directory, or the system refuses to write.
    """
    checked = as_path(path)
    with _as_gpuscope_error(checked):
        if is_stream(checked):
            _check_stream(checked)
            return checked
        if suffixes and find_suffix(checked, suffixes) is None:
            raise InvalidArgument(f"path must end with {' or '.join(suffixes)}, got {str(checked)!r}")
        descriptor, temporary = _create_beside(_resolve(checked))
        os.unlink(temporary)
        os.close(descriptor)
    return checked


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user gave; raises InvalidArgument for a value that cannot be a path."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise InvalidArgument(f"path must be a str or an os.PathLike of str, got {type(path).__name__}")
    if not text or "\0" in text or not is_utf8(text):
        raise InvalidArgument(f"path must be the name of a file in UTF-8, got {text!r}")
    return Path(text)


def make_folder(path: str) -> str:
    """Makes a folder and its parents, unless they exist.

    Raises:
        GpuscopeError: the system refuses, or a file has the name.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise GpuscopeError(f"the folder {path!r} cannot be made: {error.strerror}") from None
    return path


def numbered(path: Path, number: int, suffix: str) -> Path:
    """The name of a further file: ``run.gscope`` with 1, ``run-2.gscope`` with 2."""
    if number == 1:
        return path
    stem = len(path.name) - len(suffix)
    return path.with_name(f"{path.name[:stem]}-{number}{path.name[stem:]}")


def free_number(path: Path, suffix: str) -> int:
    """The first number from 1 whose `numbered` name does not exist."""
    number = 1
    while os.path.lexists(numbered(path, number, suffix)):
        number += 1
    return number


def claim(path: Path, suffix: str, number: int) -> int:
    """Creates an empty file, so that no other process takes its name; returns the first free number from `number`.

    Raises:
        OSError: the system refuses.
    """
    while True:
        try:
            os.close(os.open(numbered(path, number, suffix), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            return number
        except FileExistsError:
            number += 1


def claim_folder(path: Path, suffix: str) -> Path:
    """Creates a folder for this user alone, with the first free of the `numbered` names, and returns its path.

    Raises:
        GpuscopeError: the system refuses.
    """
    for number in itertools.count(1):
        folder = numbered(path, number, suffix)
        try:
            os.mkdir(folder, 0o700)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise GpuscopeError(f"the folder {str(folder)!r} cannot be made: {error.strerror}") from None
    raise AssertionError("the names have no end")


def drop_claim(path: Path) -> None:
    """Removes a file of `claim` that nothing was written to."""
    if not has_content(path):
        with contextlib.suppress(OSError):
            os.unlink(path)


def has_content(path: str | os.PathLike[str]) -> bool:
    """Whether the path is a file with content: an empty file has only been started."""
    try:
        return os.path.isfile(path) and os.path.getsize(path) > 0
    except OSError:
        return False


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without waiting for the other end of a pipe or for a device.

    Raises:
        InvalidArgument: there is no such file, or it is a directory, a pipe, a socket or a device.
        GpuscopeError: the system refuses to open it, or a read in the block fails.
    """
    checked = as_path(path)
    try:
        _check_regular(checked, os.stat(checked).st_mode)  # first: opening a pipe or device may have effects
        with open(os.open(checked, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            _check_regular(checked, os.fstat(file.fileno()).st_mode)
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidArgument(f"path is {str(checked)!r}; there is no such file") from None
    except OSError as error:
        raise GpuscopeError(f"cannot read {checked}: {error.strerror or error}") from error


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = next((name for name, holds in _KINDS.items() if holds(mode)), "no file")
        raise InvalidArgument(f"path is {str(path)!r}, which is {what}; accepted are regular files")


_KINDS: dict[str, Callable[[int], bool]] = {
    "a directory": stat.S_ISDIR,
    "a named pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


def read_text(path: str | os.PathLike[str], most_bytes: int) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        InvalidArgument: as of `open_file`; or the file is larger than `most_bytes`, or not in UTF-8.
        GpuscopeError: the system refuses to read it.
    """
    with open_file(path) as file:
        data = file.read(most_bytes + 1) or b""
    if len(data) > most_bytes:
        raise InvalidArgument(f"path is {str(path)!r}, which has more than the {most_bytes:,} bytes that are accepted")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"path is {str(path)!r}, which is no text in UTF-8") from None


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded. Halves of surrogate pairs cannot; they stand for invalid bytes of file names."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_suffix(path: Path, suffixes: Sequence[str]) -> str | None:
    """The longest of the `suffixes` that the name ends with, in any case of letters; None for none."""
    name = path.name.lower()
    return max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default=None)


def is_stream(path: Path) -> bool:
    """Whether the path is written directly and not replaced: a pipe, a terminal, /dev/null, /dev/stdout."""
    if open_descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def open_descriptor(path: Path) -> int | None:
    """The file descriptor of this process that ``/dev/stdout``, ``/dev/fd/63`` or a link to them names, else None."""
    descriptors = os.path.realpath("/proc/self/fd")
    for _ in range(_MOST_LINKS):
        if os.path.realpath(path.parent) == descriptors:
            return int(path.name) if path.name.isdecimal() and len(path.name) < _DIGITS else None
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


def _check_stream(path: Path) -> None:
    number = open_descriptor(path)
    if number is None:  # not opened now: the reader of a named pipe would see its end
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    elif fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise GpuscopeError(f"cannot write {path}: it is open for reading only")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the name `path` only if the block ends without an error; until then the old file is kept.

    A replaced file keeps its permissions, and a link to it stays a link. Streams (`is_stream`) are written directly.

    Raises:
        GpuscopeError: the system refuses to write.
        BrokenPipeError: the reader of the pipe has closed it.
    """
    with _as_gpuscope_error(path):
        if is_stream(path):
            # Opening the file of standard output by name would write from its beginning.
            number = open_descriptor(path)
            with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC) if number is None else os.dup(number), "wb") as file:
                yield file
            return
        target = _resolve(path)
        descriptor, temporary = _create_beside(target)
        try:
            # The descriptor keeps the lock until the file has its name. A copy is closed before: some file systems, as
            # NFS, report only then that they are full.
            with open(os.dup(descriptor), "wb") as file:
                _copy_permissions(target, descriptor)
                yield file
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str, suffixes: Sequence[str] = ()) -> None:
    """Write a text file in one step; arguments and errors as of `check_writable` and `replacing`."""
    with replacing(check_writable(path, suffixes)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def append_text(path: Path, text: str, header: str = "") -> None:
    """Append lines to a file by one write. An empty file begins with the `header`; a line that was cut is ended.

    Raises:
        GpuscopeError: it cannot be written; the file contains none of the text.
    """
    with locked(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            header = "" if file.read(1) == b"\n" else "\n"
        data = (header + text).encode(errors="backslashreplace")
        if (written := file.write(data)) != len(data):
            file.truncate(size)  # so that a retry writes no line twice
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[FileIO]:
    """Open a file for appending, and create it if missing. Only one caller of this function has it open at a time.

    Raises:
        GpuscopeError: the system refuses, also in the block.
    """
    with _as_gpuscope_error(path):
        for tries_left in reversed(range(_MOST_REMOVALS)):
            with open(path, "a+b", buffering=0) as file:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                if tries_left and not _is_named(file.fileno(), path):  # it was removed before it was locked
                    continue
                try:
                    yield file
                finally:
                    with contextlib.suppress(OSError):  # a child that was forked in the block would keep the lock
                        fcntl.flock(file, fcntl.LOCK_UN)
                return


def first_line_of(path: Path) -> str:
    """The first line of a file, without its end; empty without a line or a file.

    Raises:
        GpuscopeError: it cannot be read.
    """
    if not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            return file.readline(1 << 16).decode(errors="replace").rstrip("\r\n")
    except OSError as error:
        raise GpuscopeError(f"cannot read {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _as_gpuscope_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # not a failure: the reader has read enough
        raise
    except OSError as error:
        raise GpuscopeError(f"cannot write {path}: {error.strerror or error}") from error


def _resolve(path: Path) -> Path:
    """Follow links, so that replacing the file keeps them."""
    target = Path(os.path.realpath(path))
    try:
        os.stat(target)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # from Python 3.14 on Path's methods hide it
            raise
    if target.is_dir():
        raise GpuscopeError(f"cannot write {path}: it is a directory")
    if target.exists() and not target.is_file():
        raise GpuscopeError(f"cannot write {path}: it is no regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise GpuscopeError(f"cannot write {path}: the file is read-only")
    if not target.parent.is_dir():
        raise GpuscopeError(f"cannot write {path}: the folder {target.parent} does not exist")
    return target


def _copy_permissions(target: Path, descriptor: int) -> None:
    try:
        old = os.stat(target)
    except FileNotFoundError:  # a new file has the umask's permissions
        return
    with contextlib.suppress(PermissionError):  # only root may give files away
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _create_beside(target: Path) -> tuple[int, Path]:
    """Create an empty file in the target's folder; only from there can it take the target's name in one step.

    It is locked while its descriptor is open. An unlocked file was left behind by a killed process; the next writer
    into the folder removes it. The first few names are shared, so that this works. More writers at once, as the ranks
    of a job, use names of their own: trying the names of all others would take too long. O_TMPFILE is no better:
    replacing a file needs a temporary name too, and not every file system has it.
    """
    for number in itertools.count():
        owner = "" if number < _MOST_SHARED else f"{os.uname().nodename}-{os.getpid()}-"
        temporary = target.with_name(f".gpuscope-{owner}{number}.tmp")
        _remove_abandoned(temporary)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks: then no process removes it
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_named(descriptor, temporary):
            return descriptor, temporary
        os.close(descriptor)  # it was removed before it was locked
    raise AssertionError("the names have no end")


def _remove_abandoned(temporary: Path) -> None:
    """Removes a temporary file that no process has locked."""
    try:
        descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_named(descriptor, temporary):
            os.unlink(temporary)
    except OSError:  # it is being written, or another user's
        return
    finally:
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
