# SPDX-License-Identifier: Apache-2.0
"""Errors of GPUs that the driver reports (Xid): their meaning, and the entries of the kernel's log."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

# After NVIDIA's "XID Errors"; the user's action depends on the kind.
_PROGRAM, _RESET, _NOTE = "of a program", "the GPU wants a reset, or the machine a restart", "to be watched"
_MEANINGS = {
    13: ("exception of a kernel", _PROGRAM),
    31: ("access to memory that is not there", _PROGRAM),
    43: ("a kernel was stopped after an error", _PROGRAM),
    45: ("work was stopped after another error", _PROGRAM),
    48: ("error of memory that cannot be corrected", _RESET),
    62: ("the controller on the GPU stopped", _RESET),
    63: ("a row of memory was replaced", _NOTE),
    64: ("a row of memory could not be replaced", _RESET),
    74: ("error of NVLink", _RESET),
    79: ("the GPU has fallen off the bus", _RESET),
    92: ("many errors of memory that were corrected", _NOTE),
    94: ("error of memory, of one program alone", _PROGRAM),
    95: ("error of memory, of any program", _RESET),
    119: ("the GPU's own processor did not answer", _RESET),
    120: ("the GPU's own processor failed", _RESET),
}
NEED_RESET = tuple(sorted(xid for xid, (_, kind) in _MEANINGS.items() if kind == _RESET))
"""Errors after which nothing works until the GPU is reset."""

# For a split GPU the instance follows the address: (PCI:0000:c1:00 GPU-I:05 GPU-CI:00).
_IN_KERNEL_LOG = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: [^)]*)?\): (\d+)")
_MOST_BYTES = 16 << 20  # the kernel's log has 1 MiB or less, unless configured larger
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class XidErrors:
    """Count of an error since its GPU is watched.

    Attributes:
        xid: the driver's number.
        count: number of errors.
        last_ns: when the last error was noticed, ns since the Unix epoch; at most a second late.
    """

    xid: int
    count: int
    last_ns: int

    def __str__(self) -> str:
        """The error in words."""
        when = datetime.fromtimestamp(self.last_ns / 1e9).strftime("%H:%M:%S")
        often = "" if self.count == 1 else f"{self.count} times, last "
        return f"{describe(self.xid)}, {often}at {when}"


def describe(xid: int) -> str:
    """The error's number and meaning."""
    meaning, kind = _MEANINGS.get(xid, ("see NVIDIA's list of Xid errors", ""))
    return f"Xid {xid}: {meaning}{f' ({kind})' if kind else ''}"


@dataclass(frozen=True)
class KernelXids:
    """The Xid errors of the kernel's log.

    Attributes:
        found: each error's GPU address on the bus, as the driver writes it, and number, oldest first.
        why: reason why the log cannot be read; empty if it can.
    """

    found: tuple[tuple[str, int], ...]
    why: str = ""

    def of(self, pci_address: str) -> dict[int, int]:
        """Count of each error of the GPU at an address, since the machine started."""
        wanted = _address(pci_address)
        counts: dict[int, int] = {}
        for address, xid in self.found:
            if _address(address) == wanted:
                counts[xid] = counts.get(xid, 0) + 1
        return counts


def kernel_xids(path: str = "/dev/kmsg") -> KernelXids:
    """The errors still in the kernel's log, if this user may read it."""
    try:
        lines = [*_lines(path)]
    except OSError as error:
        return KernelXids((), f"the kernel's log cannot be read: {error.strerror}")
    matches = (_IN_KERNEL_LOG.search(line) for line in lines)
    return KernelXids(tuple((match[1], int(match[2])) for match in matches if match))


def _lines(path: str) -> Iterator[str]:
    """The records of /dev/kmsg, one per read, or the lines of a file."""
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        left, begun = _MOST_BYTES, b""
        while left > 0:
            try:
                record = os.read(log, _READ_BYTES)
            except BlockingIOError:  # all read
                record = b""
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten while we read
                    left -= 1
                    continue
                raise
            left -= len(record)
            *lines, begun = (begun + (record or b"\n")).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if not record:
                return
            begun = begun[-_READ_BYTES:]  # a file without lines
    finally:
        os.close(log)


def _address(text: str) -> tuple[int, ...]:
    """Domain, bus and device: the driver's log and NVML write them with other numbers of digits."""
    try:
        return tuple(int(part, 16) for part in text.partition(".")[0].split(":"))
    except ValueError:
        return ()
