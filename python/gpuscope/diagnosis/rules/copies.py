# SPDX-License-Identifier: Apache-2.0
"""Copies between host and GPU that do not overlap with compute."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpuscope._core import CallKind, CopyKind, MemoryKind, RegionKind
from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import LEAST, SPECIAL, Cause, Rule, host_edit, places
from gpuscope.diagnosis.rules.waits import SMALL_COPY_BYTES, drained
from gpuscope.steps.idle import HOST
from gpuscope.steps.steps import Array
from gpuscope.trace import NONE
from gpuscope.units import format_bytes, format_digits, format_share

_HTOD, _DTOH = int(CopyKind.HOST_TO_DEVICE), int(CopyKind.DEVICE_TO_HOST)
_PAGEABLE, _PINNED = int(MemoryKind.PAGEABLE), int(MemoryKind.PINNED)
_MANAGED = (int(MemoryKind.MANAGED), int(MemoryKind.MANAGED_STATIC))
_MANY = 20  # small copies a step
_MAKES = re.compile(
    r"^aten::(zeros|ones|full|empty|rand|randn|randint|arange|linspace|eye|zero_|fill_|normal_|uniform_|random_|tril|triu)"
)
_MOVES = re.compile(r"^aten::(to|_to_copy|copy_|cuda)$")

# The rate of pinned copies if the recording has none: three quarters of one direction of PCI Express 5, 4 and 3 with
# 16 lanes, by compute capability.
_PINNED_BYTES_PER_NS = (((9, 0), 48.0), ((8, 0), 24.0), ((0, 0), 12.0))
# Data center GPUs, which all have 16 lanes; others may have 8. Copies of at least 8 MiB reach the full rate.
_PINNED_BYTES_PER_NS_OF_LINKS = {(7, 0): 12.0, (8, 0): 24.0, (9, 0): 48.0, (10, 0): 48.0}
_LARGE_COPY_BYTES = 8 << 20
_SLOW_LINK = 0.6


def _copies(context: Context, ways: tuple[int, ...] = (_HTOD, _DTOH)) -> tuple[Array, Array, Array]:
    """Copies between host and GPU in the steps: work, bytes, whether the host memory is pageable."""
    kind, source, target = (
        context.column("memcpy", name, context.copies) for name in ("kind", "source", "destination")
    )
    chosen = np.isin(kind, ways)
    pageable = (source == _PAGEABLE) | (target == _PAGEABLE)
    return context.copies[chosen], context.column("memcpy", "bytes", context.copies[chosen]), pageable[chosen]


def _pinned_rate(context: Context) -> float:
    """The rate of pinned copies in this recording, in bytes per ns."""
    work, size, pageable = _copies(context)
    large = ~pageable & (size >= 1 << 20)
    if large.any():
        return float(np.quantile(size[large] / np.maximum(context.duration_ns[work[large]], 1), 0.9))
    return next(rate for capability, rate in _PINNED_BYTES_PER_NS if context.capability >= capability)


def _pageable(context: Context) -> Iterator[Cause]:
    if len(context.copies) == 0:
        return
    work, size, pageable = _copies(context)
    slow = pageable & (size > SMALL_COPY_BYTES)
    if not slow.any():
        return
    work, size = work[slow], size[slow]
    exposed = context.exposed_ns(work)
    _, calls = drained(context, "PAGEABLE_COPY")
    rate, pinned = float(size.sum() / max(context.duration_ns[work].sum(), 1)), _pinned_rate(context)
    rows = _rows(context, work)
    where = _where(context, work, exposed + 1.0)
    to_gpu = context.column("memcpy", "kind", work) == _HTOD
    advice = "pin_memory=True in the DataLoader (or tensor.pin_memory()), and .to(device, non_blocking=True)"
    if 2 * size[to_gpu].sum() < size.sum():
        advice = (
            "torch.empty(..., pin_memory=True) once, then .copy_(tensor, non_blocking=True); wait for an event before "
            "reading"
        )
    waits = np.union1d(calls, _waiting_for(context, work))
    edit = Edit(unwaited=waits, copies=rows, copy_factors=np.full(len(rows), min(rate / pinned, 1.0)))
    evidence = {
        "": f"{format_bytes(float(size.sum()) / len(context.steps))} a step at {format_digits(rate)} GB/s",
        "not overlapped": format_share(float(exposed.sum()) / max(float(context.duration_ns[work].sum()), 1.0)),
    }
    yield Cause(
        "copies use pageable memory",
        advice,
        edit,
        where,
        evidence,
    )


def _waiting_for(context: Context, work: Array) -> Array:
    """Calls that wait for the stream right after these copies: blocking copies of frameworks."""
    before = context.call_before
    waits = np.flatnonzero((context.trace.call_kinds == int(CallKind.SYNC)) & (before >= 0))
    found: Array = waits[np.isin(before[waits], context.work_launch[work])]
    return found


def _many_small(context: Context) -> Iterator[Cause]:
    if len(context.copies) == 0:
        return
    work, size, _ = _copies(context, (_HTOD,))
    work = work[size < SMALL_COPY_BYTES]
    count = len(work) / len(context.steps)
    if count < _MANY:
        return
    before = np.flatnonzero(np.isin(context.pieces.next, work))
    rows = _rows(context, work)
    calls = context.work_launch[work]
    spans = np.concatenate([host_edit(context, before, HOST).host_spans, _in_a_row(context, calls[calls >= 0])])
    edit = Edit(host_spans=spans, copies=rows, copy_factors=np.zeros(len(rows)))
    yield Cause(
        "many small copies to the GPU",
        "copy them as one array, or create the values on the GPU",
        edit,
        _where(context, work, np.ones(len(work))),
        {"": f"{format_digits(count)} copies of less than 64 KiB a step"},
    )


def _in_a_row(context: Context, calls: Array) -> Array:
    """Host time from each call to the next, as `Edit.host_spans`.

    It includes time while the GPU works: a host that is behind loses that time too. In gaps longer than a launch the
    program does other work than copying.
    """
    api, before = context.trace.api, context.call_before[calls]
    follows = (before >= 0) & np.isin(before, calls)
    ends = api.start_ns + api.duration_ns
    starts = np.where(follows, ends[before], api.start_ns[calls])
    starts = np.where(api.start_ns[calls] - starts > context.longest_launch_ns, api.start_ns[calls], starts)
    return np.stack([api.thread[calls].astype(np.int64), starts, ends[calls]], axis=1)


def _exposed(context: Context) -> Iterator[Cause]:
    if len(context.copies) == 0:
        return
    work, size, _ = _copies(context)
    ends = (context.column("memcpy", name, work) for name in ("source", "destination"))
    pinned = np.logical_or.reduce([end == _PINNED for end in ends])
    chosen = pinned & (size > SMALL_COPY_BYTES)
    work = work[chosen]
    if len(work) == 0:
        return
    exposed = context.exposed_ns(work).astype(np.float64)
    # Compute hides a copy only while the link is free.
    ways = context.column("memcpy", "kind", context.copies)
    same_way = context.copies[np.isin(ways, context.column("memcpy", "kind", work))]
    free = context.exposed_ns(context.kernels, same_way)
    computed = np.bincount(context.work_step[context.kernels], free, len(context.steps))
    copied = np.bincount(context.work_step[work], exposed, len(context.steps))
    exposed *= np.minimum(1.0, computed / np.maximum(copied, 1))[context.work_step[work]]
    rows = _rows(context, work)
    yield Cause(
        "pinned copies do not overlap with compute",
        "copy the next batch on a second stream while the GPU computes this one",
        Edit(copies=rows, copy_factors=1 - exposed / np.maximum(context.duration_ns[work], 1)),
        _where(context, work, exposed + 1.0),
        {"": f"{format_bytes(float(size[chosen].sum()) / len(context.steps))} a step"},
    )


def _slow_link(context: Context) -> Iterator[Cause]:
    """Large pinned copies that are much slower than such a GPU's link with all its lanes."""
    reached = _PINNED_BYTES_PER_NS_OF_LINKS.get(context.capability)
    if len(context.copies) == 0 or reached is None:
        return
    for way, goes in ((_HTOD, "to the GPU"), (_DTOH, "to the host")):
        work, size, pageable = _copies(context, (way,))
        ends = (context.column("memcpy", name, work) for name in ("source", "destination"))
        large = np.logical_or.reduce([end == _PINNED for end in ends]) & ~pageable & (size >= _LARGE_COPY_BYTES)
        work, size = work[large], size[large]
        # Overlapping copies share the link.
        alone = context.exposed_ns(work, np.setdiff1d(context.copies, work)) == context.duration_ns[work]
        alone &= _is_apart(context.start_ns[work], context.start_ns[work] + context.duration_ns[work])
        work, size = work[alone], size[alone]
        duration = np.maximum(context.duration_ns[work], 1)
        if len(work) == 0 or float(np.median(size / duration)) >= _SLOW_LINK * reached:
            continue
        factors = np.minimum(size / duration / reached, 1.0)
        exposed = context.exposed_ns(work)
        rate = format_digits(float(size.sum() / duration.sum()))
        yield Cause(
            f"copies {goes} are slower than the GPU's link",
            "check the link's generation and width (nvidia-smi -q -d PCIE, gpuscope doctor), the slot and risers; run "
            "on cores near the GPU: numactl --cpunodebind, --membind (nvidia-smi topo -m)",
            Edit(copies=_rows(context, work), copy_factors=factors),
            _where(context, work, exposed + 1.0),
            {"": f"{rate} of {format_digits(reached)} GB/s"},
        )


def _is_apart(starts: Array, ends: Array) -> Array:
    """Whether each span overlaps with no other; spans may be in any order."""
    order = np.argsort(starts, kind="stable")
    begins, until = starts[order], np.maximum.accumulate(ends[order])
    meets_earlier = np.append(False, begins[1:] < until[:-1])
    meets_later = np.append(begins[1:] < ends[order][:-1], False)
    found = np.zeros(len(starts), bool)
    found[order] = ~(meets_earlier | meets_later)
    return found


def _round_trips(context: Context) -> Iterator[Cause]:
    """Copies to the host, and later in the same step copies of as many bytes back."""
    if len(context.copies) == 0:
        return
    kind, size = (context.column("memcpy", name, context.copies) for name in ("kind", "bytes"))
    large = np.flatnonzero((size > SMALL_COPY_BYTES) & np.isin(kind, (_HTOD, _DTOH)))
    large = large[np.argsort(context.start_ns[context.copies[large]], kind="stable")]
    left: dict[tuple[int, int], int] = {}
    chosen: list[int] = []
    for at in large.tolist():
        key = int(context.work_step[context.copies[at]]), int(size[at])
        if kind[at] == _DTOH:
            left[key] = at
        elif key in left:
            chosen += [left.pop(key), at]
    if chosen:
        title = "data is copied to the host and back in the same step"
        yield _needless(context, context.copies[chosen], title, "do the work in between on the GPU")


def _made_on_host(context: Context) -> Iterator[Cause]:
    """Copies in an operator that moves a tensor, right after an operator at its level that creates one on the CPU."""
    if len(context.copies) == 0 or len(context.trace.regions) == 0:
        return
    regions = context.trace.regions
    kinds = np.append(context.trace.paths.kind, 0)[np.minimum(regions.path, len(context.path_names))]
    outer = np.append(kinds, 0)[np.minimum(regions.parent, len(regions))] != int(RegionKind.OP)
    top = np.flatnonzero((kinds == int(RegionKind.OP)) & (outer | (regions.parent == NONE)))
    top = top[np.lexsort((regions.start_ns[top], regions.thread[top]))]
    if len(top) < 2:
        return
    makes, moves = (
        np.array([bool(pattern.search(name)) for name in context.path_names] + [False])[context.path_of_regions(top)]
        for pattern in (_MAKES, _MOVES)
    )
    same = (regions.thread[top[1:]] == regions.thread[top[:-1]]) & (regions.parent[top[1:]] == regions.parent[top[:-1]])
    moved = same & makes[:-1] & moves[1:]
    makers, movers = top[:-1][moved], top[1:][moved]
    work, size, _ = _copies(context, (_HTOD,))
    work = work[size > SMALL_COPY_BYTES]
    calls = context.work_launch[work]
    work, calls = work[calls >= 0], calls[calls >= 0]
    starts = context.trace.api.start_ns[calls]
    order = np.argsort(regions.start_ns[movers], kind="stable")
    makers, movers = makers[order], movers[order]
    if len(movers) == 0 or len(work) == 0:
        return
    at = np.maximum(np.searchsorted(regions.start_ns[movers], starts, side="right") - 1, 0)
    begins = regions.start_ns[movers[at]]
    inside = (begins <= starts) & (starts < begins + regions.duration_ns[movers[at]])
    inside &= regions.thread[movers[at]] == context.trace.api.thread[calls]
    if inside.any():
        title = "tensors are created on the CPU and then copied"
        made = makers[at[inside]]
        spans = np.stack([regions.thread[made].astype(np.int64), regions.start_ns[made], starts[inside]], axis=1)
        advice = 'create them on the GPU: torch.zeros(..., device="cuda")'
        yield _needless(context, work[inside], title, advice, spans, *_given_back(context, work[inside]))


def _given_back(context: Context, work: Array) -> tuple[Array, float]:
    """The idle pieces right after these copies, and the share of them that the host spends at the copying line.

    There the host frees the memory that it copied from: large tensors return theirs to the system.
    """
    pieces, where = context.pieces, _where(context, work, np.ones(len(work)))
    after = np.flatnonzero(np.isin(pieces.start_ns, context.start_ns[work] + context.duration_ns[work]))
    total = float((pieces.end_ns - pieces.start_ns)[after].sum())
    if total == 0 or not where:
        return after[:0], 0.0
    seen = context.sampled_places(context.threads_of(after), pieces.start_ns[after], pieces.end_ns[after])
    here = sum(time for place, time in seen if (place.file, place.line) == (where[0].file, where[0].line))
    return after, min(here / total, 1.0)


def _needless(
    context: Context,
    work: Array,
    title: str,
    advice: str,
    made: Array | None = None,
    after: Array | None = None,
    share: float = 0.0,
) -> Cause:
    """Copies that the program does not need.

    Args:
        context: the recording.
        work: the copies.
        title: of the cause.
        advice: of the cause.
        made: host time that creates their data, as `Edit.host_spans`; not needed either.
        after: idle pieces that follow the copies.
        share: the share of `after` that is not needed either.
    """
    pieces = context.pieces
    exposed = context.exposed_ns(work)
    before = np.flatnonzero(np.isin(pieces.next, work))
    rows = _rows(context, work)
    size = float(context.column("memcpy", "bytes", work).sum())
    spans = [made] if made is not None else [host_edit(context, before, HOST).host_spans]
    if made is not None and after is not None:
        later = host_edit(context, np.setdiff1d(after, before)).host_spans
        later[:, 2] = later[:, 1] + ((later[:, 2] - later[:, 1]) * share).astype(np.int64)
        spans.append(later)
    # The host no longer waits for the copies.
    calls = context.work_launch[work]
    waits = np.union1d(calls[calls >= 0], _waiting_for(context, work))
    edit = Edit(unwaited=waits, host_spans=np.concatenate(spans), copies=rows, copy_factors=np.zeros(len(rows)))
    evidence = {"": f"{format_bytes(size / len(context.steps))} a step"}
    return Cause(title, advice, edit, _where(context, work, exposed + 1.0), evidence)


def _managed(context: Context) -> Iterator[Cause]:
    if len(context.copies) == 0:
        return
    source, target = (context.column("memcpy", name, context.copies) for name in ("source", "destination"))
    chosen = np.isin(source, _MANAGED) | np.isin(target, _MANAGED)
    work = context.copies[chosen]
    if len(work) == 0:
        return
    yield Cause(
        "managed memory migrates between host and GPU",
        "prefetch it (cudaMemPrefetchAsync), set its preferred location, or use device memory",
        Edit(copies=_rows(context, work), copy_factors=np.zeros(len(work))),
        _where(context, work, np.ones(len(work))),
    )


def _rows(context: Context, work: Array) -> Array:
    assert context.device is not None
    rows: Array = context.device.work.rows[work]
    return rows


def _where(context: Context, work: Array, weights: Array) -> tuple[Where, ...]:
    return places(*context.places_of(context.work_launch[work], weights)[:2])


RULES = (
    Rule("R09", "copies of pageable memory", _pageable, LEAST),
    Rule("R11", "many small copies", _many_small, LEAST),
    Rule("R12", "copies that do not overlap", _exposed, LEAST),
    Rule("R13", "a slow link", _slow_link, LEAST, weight=SPECIAL),
    Rule("R14", "round trips to the host", _round_trips, 0.01, weight=SPECIAL),
    Rule("R14", "tensors created on the CPU and copied", _made_on_host, 0.01, weight=SPECIAL),
    Rule("R18", "managed memory that migrates", _managed, LEAST),
)
