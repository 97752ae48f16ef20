# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings of gpuscope."""

from __future__ import annotations

import errno

from gpuscope.text import shown

_NO_ROOM = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")  # of the dynamic loader


class GpuscopeError(RuntimeError):
    """The base of all exceptions here; a RuntimeError, as torch's are. Its text has no control characters."""

    @shown
    def __str__(self) -> str:
        return super().__str__()


class CudaError(GpuscopeError):
    """A function of libcuda returned an error.

    Attributes:
        call: the function, as ``cuInit``.
        code: the number it returned.
    """

    def __init__(self, message: str, call: str, code: int) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


class NotAvailable(GpuscopeError):  # noqa: N818 - the name says the state, as FileNotFoundError's siblings do
    """This machine or process cannot provide a result; the message says why and which change would help."""


class NotEnoughMemory(GpuscopeError, MemoryError):  # noqa: N818
    """The host gave this process too little memory. Recordings made before are kept."""

    def __init__(self) -> None:
        super().__init__(
            "there is not enough memory: the system gives this process no more; raise its limit (ulimit -v, the "
            "container's memory), or record less (max_bytes, mode='ring')"
        )


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception means that the system gives no more memory; a library that cannot be loaded may mean it."""
    no_room = isinstance(error, ImportError) and any(words in str(error) for words in _NO_ROOM)
    return no_room or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


class InvalidArgument(GpuscopeError, ValueError):  # noqa: N818
    """An argument was wrong; the message names it, its value and the accepted values."""


class CorruptTrace(GpuscopeError):  # noqa: N818
    """A trace file cannot be read.

    Attributes:
        path: the file.
        offset: the byte at which reading ended.
    """

    def __init__(self, message: str, path: str, offset: int) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class IncompleteCapture(GpuscopeError):  # noqa: N818
    """Raised under ``strict=True`` when the audit found that something is missing from a result."""


class GpuscopeWarning(UserWarning):
    """A problem that limits a result but does not stop the program."""

    @shown
    def __str__(self) -> str:
        return super().__str__()


def __dir__() -> list[str]:
    return [name for name, value in globals().items() if isinstance(value, type)]
