# SPDX-License-Identifier: Apache-2.0
"""Assigns kernels, copies and fills of a CUPTI window to calls, and adds up the GPU's time of each call."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, Flag
from gpuscope.spans import in_turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuscope.trace import Table, Trace

OWN_KERNELS = frozenset({"gpuscope_gate", "gpuscope_flush_write", "gpuscope_flush_read", "gpuscope_meter"})
"""Kernels of the sampler itself; never part of a call."""

_BROKEN = Flag.ZERO_TIME | Flag.BACKWARD_TIME | Flag.INCOMPLETE
_LAUNCHING = [CallKind.LAUNCH, CallKind.GRAPH_LAUNCH, CallKind.MEMCPY, CallKind.MEMSET]


@dataclass(frozen=True)
class Kernel:
    """The count and time of one kernel, copy or fill in a call.

    Attributes:
        name: demangled, without return type, template arguments and parameters.
        count: runs per call.
        seconds: total time per call.
    """

    name: str
    count: float
    seconds: float


@dataclass(frozen=True)
class KernelTimes:
    """GPU times of a window, one row per call."""

    busy: NDArray[np.float64]  # seconds in which at least one of the call's records ran: the union of their intervals
    span: NDArray[np.float64]  # seconds from the first start to the last end
    launches: NDArray[np.int64]  # driver calls that put work on the GPU
    records: NDArray[np.int64]  # of kernels, copies and fills
    signature: NDArray[np.uint64]  # equal for calls that ran the same kernels in the same configurations, in any order
    valid: NDArray[np.bool_]  # each launch has its record, and each record its times and its call
    elsewhere: NDArray[np.bool_]  # work ran on another stream than the sampler's own kernels
    kernels: tuple[str, ...]  # the distinct names and signatures
    record_call: NDArray[np.int64]  # the call of each record
    record_name: NDArray[np.int64]  # each record's row in `kernels`
    record_seconds: NDArray[np.float64]  # the duration of each record

    def shares(self, calls: NDArray[np.bool_]) -> tuple[Kernel, ...]:
        """Each kernel's count and time per call, over the calls chosen; the longest first."""
        total = np.count_nonzero(calls)
        chosen = calls[self.record_call] if len(calls) else np.zeros(0, bool)
        counts = np.bincount(self.record_name[chosen], minlength=len(self.kernels))
        seconds = np.bincount(self.record_name[chosen], self.record_seconds[chosen], minlength=len(self.kernels))
        rows = sorted(np.flatnonzero(counts), key=lambda row: -seconds[row])
        return tuple(Kernel(self.kernels[row], float(counts[row] / total), float(seconds[row] / total)) for row in rows)


def measure(trace: Trace, called_ns: NDArray[np.int64], ended_ns: NDArray[np.int64] | None = None) -> KernelTimes:
    """Assigns each record to the call that launched it; `called_ns` is when each call began, ascending.

    A call owns all launches of any thread from its start to the next call's start, by the time of the driver call with
    the record's correlation. A record without a known driver call is assigned by its neighbours' correlations; if they
    are of two calls, both calls are invalid. `ended_ns` is when the work of each call had ended; later launches belong
    to no call.
    """
    calls = len(called_ns)
    work = _Records.of(trace)
    api, launching = trace.api, _launching(trace)
    api_call = np.searchsorted(called_ns, api.start_ns[launching], side="right") - 1
    if ended_ns is not None and len(ended_ns):
        api_call[api.start_ns[launching] >= ended_ns[api_call]] = -1
    correlation, kind = api.correlation[launching], trace.calls.kind[api.call[launching]]
    order = np.argsort(correlation, kind="stable")
    correlation, kind, api_call = correlation[order], kind[order], api_call[order]

    call, ambiguous = _owners(work.correlation, correlation, api_call)
    mine = ~work.own & (call >= 0)
    not_own = (api_call >= 0) & ~np.isin(correlation, work.correlation[work.own])
    lacking = not_own & ~np.isin(correlation, work.correlation)
    # An empty copy or graph has no record: only more of them than in other calls indicate a loss.
    certain = np.bincount(api_call[lacking & (kind == CallKind.LAUNCH)], minlength=calls)
    likely = np.bincount(api_call[lacking & (kind != CallKind.LAUNCH)], minlength=calls)
    invalid = certain > 0
    invalid |= likely > (likely.min() if calls else 0)
    invalid[ambiguous] = True
    invalid[call[mine & work.broken]] = True

    call, start, end = call[mine], work.start[mine], work.end[mine]
    busy, span = _union(call, start, end, calls)
    signature = np.zeros(calls, np.uint64)
    np.add.at(signature, call, work.hash[mine])  # wraps, as sums of hashes may
    elsewhere = np.zeros(calls, bool)
    own_tracks = np.unique(work.track[work.own])
    tracks = own_tracks if len(own_tracks) else np.unique(work.track[mine])[:1]
    elsewhere[call[~np.isin(work.track[mine], tracks)]] = True
    records = np.bincount(call, minlength=calls)
    if int(trace.info.get("audit.dropped", "0")):
        invalid |= records < (records.max() if calls else 0)
    return KernelTimes(
        busy=busy,
        span=span,
        launches=np.bincount(api_call[not_own], minlength=calls),
        records=records,
        signature=signature,
        valid=~invalid,
        elsewhere=elsewhere,
        kernels=work.names,
        record_call=call,
        record_name=work.name[mine],
        record_seconds=np.multiply(end - start, 1e-9, dtype=np.float64),
    )


@dataclass(frozen=True)
class _Records:
    """Kernels, copies, fills and whole graphs as one table, in this order."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    correlation: NDArray[np.uint32]
    track: NDArray[np.int64]
    name: NDArray[np.int64]
    hash: NDArray[np.uint64]
    own: NDArray[np.bool_]
    broken: NDArray[np.bool_]
    names: tuple[str, ...]

    @staticmethod
    def of(trace: Trace) -> _Records:
        names: dict[str, int] = {}
        variants = trace.variants
        symbols = [trace.string(int(name)) for name in variants.name]
        shape = [variants[f"{part}_{axis}"] for part in ("grid", "block") for axis in "xyz"]
        kernel_hash = [_hash(f"{symbol} {row}") for symbol, *row in zip(symbols, *shape, strict=True)]
        kernel_name = [names.setdefault(_core.short_name(_core.demangle(symbol)), len(names)) for symbol in symbols]
        variant = trace.kernels.variant.astype(np.int64)
        own = np.array([symbol in OWN_KERNELS for symbol in symbols], bool)
        copy = trace.memcpy
        copy_kinds = zip(copy.kind, copy.source, copy.destination, strict=True)
        copies = [_core.copy_name(*map(int, kinds)) for kinds in copy_kinds]
        others = (*copies, *[_core.MEMSET_NAME] * len(trace.memset), *["Graph"] * len(trace.graph_launches))
        other_name = [names.setdefault(name, len(names)) for name in others]
        tables = (trace.kernels, trace.memcpy, trace.memset, trace.graph_launches)
        start = _column(tables, "start_ns").astype(np.int64)
        hashes = {name: _hash(name) for name in set(others)}
        return _Records(
            start=start,
            end=start + _column(tables, "duration_ns").astype(np.int64),
            correlation=_column(tables, "correlation"),
            track=_column(tables, "track").astype(np.int64),
            name=np.concatenate([np.array(kernel_name, np.int64)[variant], np.array(other_name, np.int64)]),
            hash=np.concatenate(
                [np.array(kernel_hash, np.uint64)[variant], np.array([hashes[name] for name in others], np.uint64)]
            ),
            own=np.concatenate([own[variant], np.zeros(len(others), bool)]),
            broken=_column(tables, "flags") & _BROKEN != 0,
            names=tuple(names),
        )


def _column(tables: tuple[Table, ...], name: str) -> NDArray[Any]:
    return np.concatenate([table[name] for table in tables])


def _hash(text: str) -> int:
    """A hash of 64 bits; sums of hashes differ for different multisets of texts, in practice."""
    data = text.encode()
    return zlib.crc32(data) << 32 | zlib.crc32(data[::-1], 0x9E3779B9)


def _launching(trace: Trace) -> NDArray[np.bool_]:
    """The driver calls that put work on the GPU: successful, and not captured into a graph."""
    calls = trace.calls
    puts = np.isin(calls.kind, _LAUNCHING) & (calls.flags & Flag.CAPTURED == 0) & (calls.result == 0)
    return np.asarray(puts[trace.api.call])


def _owners(
    correlation: NDArray[np.uint32], known: NDArray[np.uint32], known_call: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The call of each record, -1 for none, and the calls with ambiguous records."""
    padded = np.concatenate([[-1], known_call, known_call[-1:]]).astype(np.int64)
    before = padded[np.searchsorted(known, correlation, side="right")]
    after = padded[np.minimum(np.searchsorted(known, correlation, side="left") + 1, len(padded) - 1)]
    unclear = (before != after) & ~np.isin(correlation, known)
    ambiguous = np.unique(np.concatenate([before[unclear], after[unclear]]))
    return before, ambiguous[ambiguous >= 0]


def _union(
    call: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64], calls: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per call, the seconds of the union of its intervals, and from the first start to the last end."""
    busy, span = np.zeros(calls), np.zeros(calls)
    if not len(call):
        return busy, span
    # Calls are shifted apart, so that all are one sequence of spans.
    origin, room = start.min(), end.max() - start.min() + 1
    begins, until = in_turn(start - origin + call * room, end - origin + call * room)
    call = np.sort(call)
    first = np.flatnonzero(np.diff(call, prepend=-1))
    busy[call[first]] = np.add.reduceat(until - begins, first) * 1e-9
    span[call[first]] = (np.maximum.reduceat(until, first) - begins[first]) * 1e-9
    return busy, span
