# SPDX-License-Identifier: Apache-2.0
"""Asks NCCL's RAS service, and reads its text: processes and ranks that do not answer, ranks that are behind."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass, field

from gpuscope.errors import CorruptTrace, NotAvailable

PORT = 28028
_MOST_BYTES = 16 << 20
_PROTOCOL = b"CLIENT PROTOCOL 2\n"
_SECTION = re.compile(r"(?:#\S+ \([0-9a-f]+\) )?(?P<kind>INCOMPLETE|DEAD|MISMATCH|ERROR|TIMEOUT)\s*")
_COMMUNICATOR = re.compile(r"#\S+ \([0-9a-f]+\)")
_PROCESS = re.compile(r"  Process (\d+) on node (\S+) managing GPUs? (.+)")
_MISSING = re.compile(r"  The missing ranks?: ([\d, ]+)")
_COUNTS = re.compile(r"  Communicator ranks have different (.*)operation counts")
_GROUP = re.compile(r"  (\d+) ranks? have (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(r"  Rank (\d+) (?:has (?:launched up to operation (\d+)|not launched any operations) )?-- ?(.*)")


@dataclass(frozen=True)
class RasBehind:
    """Ranks of a communicator that have launched fewer operations than others.

    Attributes:
        communicator: as "#0-0 (cf264af53edbe986)".
        operation: as "AllReduce"; "collective" if all kinds are counted together.
        launched: number of operations of these ranks.
        most: number of operations of the others.
        count: number of these ranks.
        ranks: those that RAS lists; it lists only small groups.
    """

    communicator: str
    operation: str
    launched: int
    most: int
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RasReport:
    """What a text of RAS says.

    Attributes:
        silent: processes that do not answer, a text each; those that RAS considers dead begin with "dead ".
        missing: ranks without data, by communicator.
        behind: see RasBehind.
        errors: other sentences about communicators.
        unclear: communicators whose ranks differ, without the ranks: RAS lists only small groups.
    """

    silent: tuple[str, ...] = ()
    missing: tuple[tuple[str, tuple[int, ...]], ...] = ()
    behind: tuple[RasBehind, ...] = ()
    errors: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


@dataclass
class _Counts:
    operation: str
    groups: list[tuple[int, int, list[int]]] = field(default_factory=list)  # operations, ranks, those listed


def is_ras(text: str) -> bool:
    """Whether a text looks like RAS's."""
    return "\nCommunicators..." in text and "Job summary" in text


def query_ras(host: str, port: int, timeout_s: float) -> str:
    """The verbose status of the job that a process on `host` belongs to.

    Raises:
        NotAvailable: nothing answers as RAS does within `timeout_s`.
    """
    until = time.monotonic() + timeout_s
    data = b""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection, connection.makefile("rb") as file:
            connection.sendall(_PROTOCOL)
            if not file.readline(200).upper().startswith(b"SERVER PROTOCOL"):
                raise NotAvailable(f"the state of {host}:{port} is not available: no RAS service of NCCL answers there")
            connection.sendall(b"VERBOSE STATUS\n")
            while len(data) < _MOST_BYTES and (more := file.read1(1 << 16)):
                data += more
                connection.settimeout(max(0.01, until - time.monotonic()))
    except OSError as error:
        if not data:
            raise NotAvailable(
                f"the state of {host}:{port} is not available: {error.strerror or error}; NCCL_RAS_ENABLE must not be "
                "0, and NCCL_RAS_ADDR must name the port"
            ) from None
    return data.decode(errors="replace")


def parse_ras(text: str, source: str) -> RasReport:
    """Reads the text of STATUS or VERBOSE STATUS, of NCCL 2.24 and later.

    Raises:
        CorruptTrace: it is another text.
    """
    if not is_ras("\n" + text):
        raise CorruptTrace(f"{source}: no status of NCCL's RAS", source, 0)
    kind = communicator = ""
    silent: dict[str, str] = {}
    missing: list[tuple[str, tuple[int, ...]]] = []
    errors: list[str] = []
    counts: list[tuple[str, _Counts]] = []
    for line in text.splitlines():
        if section := _SECTION.fullmatch(line):
            found = _COMMUNICATOR.match(line)
            kind, communicator = section["kind"], found[0] if found else ""
        elif not line.startswith("  "):
            kind = kind if line == "" else ""
        elif kind in ("INCOMPLETE", "DEAD") and (match := _PROCESS.match(line)):
            process = f"process {match[1]} on node {match[2]} (GPU {match[3]})"
            silent[process] = f"dead {process}" if kind == "DEAD" else silent.get(process, process)
        elif kind == "INCOMPLETE" and communicator and (match := _MISSING.match(line)):
            missing.append((communicator, tuple(map(int, re.findall(r"\d{1,9}", match[1])))))
        elif kind == "INCOMPLETE" and communicator and (match := _RANK.match(line)):
            missing.append((communicator, (int(match[1]),)))
        elif kind == "ERROR":
            errors.append(f"{communicator}: {line.strip()}")
        elif kind == "MISMATCH" and (match := _COUNTS.match(line)):
            counts.append((communicator, _Counts(match[1].strip() or "collective")))
        elif kind == "MISMATCH" and line.startswith("  Communicator ranks"):
            counts.append((communicator, _Counts("")))  # of status: ignored, it changes as communicators come and go
        elif kind == "MISMATCH" and counts and (match := _GROUP.match(line)):
            counts[-1][1].groups.append((int(match[2] or 0), int(match[1]), []))
        elif kind == "MISMATCH" and counts and (match := _RANK.match(line)):
            groups = counts[-1][1].groups
            if " has " in line:  # a rank of its own
                groups.append((int(match[2] or 0), 1, [int(match[1])]))
            elif groups:
                groups[-1][2].append(int(match[1]))
    unclear = [
        f"{name}: ranks differ in {each.operation}" for name, each in counts if each.operation and not each.groups
    ]
    return RasReport(tuple(silent.values()), _joined(missing), tuple(_behind(counts)), tuple(errors), tuple(unclear))


def _joined(missing: list[tuple[str, tuple[int, ...]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    together: dict[str, tuple[int, ...]] = {}
    for communicator, ranks in missing:
        together[communicator] = together.get(communicator, ()) + ranks
    return tuple(together.items())


def _behind(counts: list[tuple[str, _Counts]]) -> list[RasBehind]:
    found = []
    for communicator, each in counts:
        if each.operation and each.groups:
            most = max(operations for operations, *_ in each.groups)
            found += [
                RasBehind(communicator, each.operation, operations, most, count, tuple(ranks))
                for operations, count, ranks in each.groups
                if operations < most
            ]
    return found
