# SPDX-License-Identifier: Apache-2.0
"""The rows of a ledger: pools of frameworks, and what libraries took from the driver beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gpuscope.memory.events import MemoryEvents
from gpuscope.memory.ledger.by_region import handed_out
from gpuscope.memory.ledger.ranges import uncovered
from gpuscope.memory.places import own_line_of
from gpuscope.memory.reports.watched import PINNED, Piece, Watched
from gpuscope.memory.sizes import size_text
from gpuscope.memory.sources.driver import LIBRARY as CUDA_POOL
from gpuscope.memory.sources.pool import Pool, Segment
from gpuscope.memory.sources.torch import DEFAULT

POOL, MANAGED = "pool", "managed"

# Parts of the names of the libraries with which each framework takes memory from the driver.
_FRAMEWORKS = {
    "torch": ("libtorch", "libc10", "torch/"),
    "cupy": ("cupy",),
    "rmm": ("librmm", "rmm/"),
    "jax": ("xla", "jax"),
}
_WHAT = {
    "device": "device memory",
    "virtual": "mapped memory",
    "array": "arrays",
    POOL: "stream-ordered memory",
    MANAGED: "managed memory, wherever its pages are",
    PINNED: "pinned memory of the host",
}


@dataclass(frozen=True)
class LedgerRow:
    """Memory that one library holds for one purpose, and took in one region of the program.

    Attributes:
        library: "torch", "cupy", "libcublasLt.so.13", "driver" and so on; "unexplained" for the rest.
        what: the purpose.
        bytes: how much.
        where: the program's line that had the largest piece of it allocated, "train.py:12 step"; "" if not known.
        region: the innermost ``record_function`` that was open then; "" outside of any, and where that is not known.
    """

    library: str
    what: str
    bytes: int
    where: str = ""
    region: str = ""


@dataclass
class Accounts:
    """What has been explained."""

    rows: list[LedgerRow] = field(default_factory=list)
    host_rows: list[LedgerRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, library: str, what: str, size: int, where: str = "", region: str = "") -> None:
        """A row, unless it is empty."""
        if size > 0:
            self.rows.append(LedgerRow(library, what, size, where, region))


@dataclass
class _Left:
    """A live piece, and how much of it no pool accounts for."""

    piece: Piece
    bytes: int


def framework_of(library: str) -> str:
    """The framework that a library belongs to; "" for none."""
    return next((name for name, parts in _FRAMEWORKS.items() if any(part in library for part in parts)), "")


def accounts_of(
    device: int,
    pools: Sequence[Pool],
    segments: Sequence[Segment] | None,
    seen: Watched | None,
    cuda_pools: Collection[int] = (),
    *,
    events: MemoryEvents | None = None,
    alone: bool = True,
) -> Accounts:
    """Rows of all that is known of a device, each byte once.

    Args:
        device: ordinal of the GPU.
        pools: of all allocators on it.
        segments: torch's on it; None where they cannot be read.
        seen: live allocations at the driver; None where they are not watched.
        cuda_pools: handles of the driver's pools that the pool "cuda pool" stands for.
        events: what allocators of frameworks told since the watch began; None where that is not recorded.
        alone: this is the only GPU in use, so that it has what is known of no certain device.
    """
    accounts = Accounts()
    pieces = [] if seen is None else seen.pieces
    here = [p for p in pieces if p.kind != PINNED and (p.device == device or (alone and p.device < -1))]
    left = _outside_segments(here, segments or ())
    placed = {}
    if segments:
        placed["torch"] = _place(one.piece for one in left if one.bytes < one.piece.bytes)
    listed = {0, *cuda_pools}
    in_cuda_pool = [one for one in left if one.piece.kind == POOL and one.piece.pool in listed]
    own = [one for one in left if one.piece.kind != POOL or one.piece.pool not in listed]
    for pool in pools:
        # Segments say by address what is torch's; of other pools only the library and the amount are known.
        if pool.library == CUDA_POOL or (pool.library == "torch" and segments and not pool.in_cuda_pool):
            continue
        taken = _absorb(in_cuda_pool if pool.in_cuda_pool else own, pool.library, pool.reserved)
        placed.setdefault(pool.library, _place(taken))
    for pool in pools:
        if pool.library == CUDA_POOL:
            continue
        private = [s for s in segments or () if s.pool != DEFAULT] if pool.library == "torch" else []
        _add_pool(accounts, pool, private, placed.get(pool.library, ""), events)
    _add_cuda_pool(accounts, next((pool for pool in pools if pool.library == CUDA_POOL), None), in_cuda_pool)
    for kind in _WHAT:
        group = [one for one in own if one.piece.kind == kind]
        rows = _by_library(group)
        (accounts.host_rows if kind == MANAGED else accounts.rows).extend(rows)
        if kind == POOL and rows:
            accounts.notes.append("what memory pools that libraries made for themselves cache is not known")
    pinned = [_Left(piece, piece.bytes) for piece in pieces if piece.kind == PINNED]
    accounts.host_rows.extend(_by_library(pinned))
    if any(row.what.startswith(_WHAT[MANAGED]) for row in accounts.host_rows):
        accounts.notes.append("managed memory is on the GPU as far as its pages have moved there, unexplained here")
    accounts.host_rows.sort(key=lambda row: row.bytes, reverse=True)
    return accounts


def _outside_segments(pieces: Sequence[Piece], segments: Sequence[Segment]) -> list[_Left]:
    at_address = [piece for piece in pieces if piece.address]
    sizes = uncovered([(p.address, p.bytes) for p in at_address], [(s.address, s.bytes) for s in segments])
    without = [_Left(piece, piece.bytes) for piece in pieces if not piece.address]
    return [_Left(piece, size) for piece, size in zip(at_address, sizes, strict=True)] + without


def _absorb(pieces: Iterable[_Left], library: str, budget: int) -> list[Piece]:
    """Takes off the pieces of a framework's library what its pool holds, the largest first; those it took from."""
    taken = []
    for one in sorted(pieces, key=lambda one: one.bytes, reverse=True):
        if budget <= 0:
            break
        if one.bytes and framework_of(one.piece.library) == library:
            share = min(one.bytes, budget)
            one.bytes -= share
            budget -= share
            taken.append(one.piece)
    return taken


def _add_pool(
    accounts: Accounts, pool: Pool, private: Sequence[Segment], where: str, events: MemoryEvents | None
) -> None:
    graphs = min(pool.reserved, sum(segment.bytes for segment in private))
    in_graphs = sum(segment.allocated for segment in private)
    allocated = max(0, min(pool.allocated - in_graphs, pool.reserved - graphs))
    rest, outside = allocated, 0
    for one in handed_out(events, pool.library, pool.device, private) if events is not None else ():
        size = min(one.bytes, rest)
        rest -= size
        if one.region:
            accounts.add(pool.library, "allocated", size, one.where, one.region)
        else:
            outside, where = size, one.where or where
    accounts.add(pool.library, "allocated", outside + rest, where)
    accounts.add(pool.library, "cached", pool.reserved - graphs - allocated)
    accounts.add(pool.library, "graph pools", graphs)


def _add_cuda_pool(accounts: Accounts, pool: Pool | None, pieces: Sequence[_Left]) -> None:
    """The driver's pool: who has what of it, as far as seen, and the rest."""
    rows = _by_library(pieces)
    accounts.rows.extend(rows)
    if pool is None:
        return
    known = sum(row.bytes for row in rows)
    in_use = max(pool.allocated, known)
    accounts.add(CUDA_POOL, "allocated", in_use - known)
    accounts.add(CUDA_POOL, "cached", pool.reserved - in_use)
    if known > pool.reserved:
        more = size_text(known - pool.reserved)
        accounts.notes.append(f"the driver's pool holds {more} less than was seen allocated from it")


def _by_library(pieces: Sequence[_Left]) -> list[LedgerRow]:
    """A row for each library, kind and region."""
    groups: dict[tuple[str, str, str], list[_Left]] = defaultdict(list)
    for one in pieces:
        if one.bytes:
            groups[one.piece.library, one.piece.kind, one.piece.region].append(one)
    return [
        LedgerRow(
            library or "a library that is not known",
            f"{_WHAT[kind]}, {len(group)} piece{'s' if len(group) > 1 else ''}",
            sum(one.bytes for one in group),
            _place(one.piece for one in group),
            region,
        )
        for (library, kind, region), group in groups.items()
    ]


def _place(pieces: Iterable[Piece]) -> str:
    """The program's line of the largest piece."""
    largest = max(pieces, key=lambda piece: piece.bytes, default=None)
    return "" if largest is None else own_line_of(largest.stack)
