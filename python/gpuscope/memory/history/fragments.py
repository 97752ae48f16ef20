# SPDX-License-Identifier: Apache-2.0
"""Fragmentation of PyTorch's GPU memory: unused bytes, their blocks, and settings that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.devices import ordinal_of, why_no_gpu
from gpuscope.errors import NotAvailable
from gpuscope.frameworks.torch_memory import DEFAULT, Segment, segments, why_opaque
from gpuscope.memory.history.leaks import wrapped
from gpuscope.results import Result
from gpuscope.units import first_line, format_bytes

_FREE, _IN_USE = "inactive", "active_allocated"  # anything else awaits its release

_MIB = 1 << 20
_WORTH = 0.1  # of the reserved bytes: a smaller share is the usual cost of caching
_LEAST = 64 * _MIB  # three of PyTorch's segments of 20 MiB
_MOSTLY = 0.5
# PyTorch refuses max_split_size_mb of 20 and less: it always splits segments of that size.
_LEAST_SPLIT_MB = 21
_USUAL = 0.9  # quantile of the sizes of blocks in use


@dataclass(frozen=True)
class Fragmentation(Result):
    """Fragmentation of PyTorch's memory on a GPU, and settings that help. Sizes are bytes.

    Attributes:
        device: ordinal of the GPU.
        reserved_bytes: held from the driver.
        allocated_bytes: in use by tensors.
        segments: number of segments.
        free_bytes: not in use, in the default pool. Without `awaiting_bytes`.
        free_blocks: number of free blocks.
        largest_free_bytes: size of the largest free block.
        stuck_bytes: the part of `free_bytes` in segments that also contain blocks in use. It cannot be released.
        stuck_blocks: number of blocks with these bytes.
        stuck_segments: number of segments with these bytes.
        releasable_bytes: the part of `free_bytes` that ``torch.cuda.empty_cache()`` would release to the driver.
        awaiting_bytes: freed, but work of other streams still uses it.
        graph_free_bytes: free in private pools, as of CUDA graphs.
        fails_above_bytes: a larger request needs new memory from the driver, although enough is free in total.
            None if the largest block contains all free bytes.
        advice: settings that help, the most useful first; one entry "none needed" otherwise.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    segments: int
    free_bytes: int
    free_blocks: int
    largest_free_bytes: int
    stuck_bytes: int
    stuck_blocks: int
    stuck_segments: int
    releasable_bytes: int
    awaiting_bytes: int
    graph_free_bytes: int
    fails_above_bytes: int | None
    advice: tuple[Advice, ...]

    @property
    def ratio(self) -> float:
        """Share of the free bytes outside the largest free block: 0 is one block, near 1 is many small blocks."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0

    def __repr__(self) -> str:
        free = f"{format_bytes(self.free_bytes)} free in {_counted(self.free_blocks, 'piece')}"
        return f"<Fragmentation of GPU {self.device}: {format_bytes(self.reserved_bytes)} reserved, {free}>"

    def __str__(self) -> str:
        unused = self.reserved_bytes - self.allocated_bytes
        share = f" ({100 * unused / self.reserved_bytes:.0f} %)" if self.reserved_bytes else ""
        lines = wrapped(
            f"fragmentation of GPU {self.device}: {format_bytes(self.allocated_bytes)} of "
            f"{format_bytes(self.reserved_bytes)} reserved are in use, {format_bytes(unused)}{share} are not"
        )
        lines += wrapped(
            f"free: {format_bytes(self.free_bytes)} in {_counted(self.free_blocks, 'piece')}, the largest "
            f"{format_bytes(self.largest_free_bytes)}; {format_bytes(self.stuck_bytes)} of it in "
            f"{_counted(self.stuck_segments, 'segment')} with blocks in use"
        )
        private = "are kept in private pools, as of CUDA graphs"
        others = ((self.awaiting_bytes, "wait for other streams"), (self.graph_free_bytes, private))
        lines += [f"also: {format_bytes(size)} {what}" for size, what in others if size]
        if self.fails_above_bytes is not None:
            lines += wrapped(
                f"a tensor of more than {format_bytes(self.fails_above_bytes)} does not fit, although "
                f"{format_bytes(self.free_bytes)} are free in total"
            )
        for one in self.advice:
            lines += wrapped(f"advice: {one}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "ratio": self.ratio, "advice": [vars(one) for one in self.advice]}


def fragmentation(device: object = None) -> Fragmentation:
    """Measures the fragmentation of PyTorch's memory on a GPU, and advises on settings.

    Args:
        device: a GPU, as ``0`` or ``"cuda:0"``; None for the current one.

    Raises:
        InvalidArgument: `device` is no ordinal.
        NotAvailable: PyTorch does not use a GPU here, or its allocator has no segments.
    """
    at = ordinal_of(device)
    found: tuple[Segment, ...] = ()
    if why := why_opaque():
        why = f"PyTorch cannot say, as {why}"
    else:
        try:
            found = segments(at)
        except Exception as error:
            why = f"PyTorch's allocator does not report it ({first_line(error)})"
    if not found:
        why = why or why_no_gpu() or f"PyTorch holds no memory on GPU {at}"
        raise NotAvailable(f"fragmentation is not available: {why}")
    return fragmentation_of(found, at)


def fragmentation_of(segments: Sequence[Segment], device: int = 0) -> Fragmentation:
    """The fragmentation of the segments of one device."""
    ordinary = [segment for segment in segments if segment.pool == DEFAULT]
    kept = [segment for segment in segments if segment.pool != DEFAULT]
    used = [segment for segment in ordinary if any(block.state != _FREE for block in segment.blocks)]
    free = _free(ordinary)
    # Small segments never serve a tensor of more than 1 MiB.
    large = _free([segment for segment in ordinary if not segment.small])
    stuck = _free(used)
    blocks = [block for segment in segments for block in segment.blocks]
    largest = max(large, default=0)
    facts: dict[str, Any] = {
        "reserved_bytes": sum(segment.bytes for segment in segments),
        "allocated_bytes": sum(segment.allocated_bytes for segment in segments),
        "segments": len(segments),
        "free_bytes": sum(free),
        "free_blocks": len(free),
        "largest_free_bytes": max(free, default=0),
        "stuck_bytes": sum(stuck),
        "stuck_blocks": len(stuck),
        "stuck_segments": sum(any(block.state == _FREE for block in segment.blocks) for segment in used),
        "releasable_bytes": sum(free) - sum(stuck),
        "awaiting_bytes": sum(block.bytes for block in blocks if block.state not in (_FREE, _IN_USE)),
        "graph_free_bytes": sum(_free(kept)),
        "fails_above_bytes": largest if sum(large) > largest else None,
    }
    in_use = [block.bytes for segment in ordinary for block in segment.blocks if block.state == _IN_USE]
    expandable = bool(ordinary) and all(segment.expandable for segment in ordinary)
    advice = advice_on(facts, largest_stuck=max(stuck, default=0), in_use=in_use, expandable=expandable)
    return Fragmentation(device=device, **facts, advice=advice)


def _free(segments: Sequence[Segment]) -> list[int]:
    return [block.bytes for segment in segments for block in segment.blocks if block.state == _FREE]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Advice:
    """One recommendation.

    Attributes:
        setting: for ``PYTORCH_CUDA_ALLOC_CONF``, a call, or "none needed".
        why: the figures behind it.
        bytes: upper bound of the gain.
    """

    setting: str
    why: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.setting}: {self.why}"


def advice_on(
    facts: Mapping[str, int], *, largest_stuck: int, in_use: Sequence[int], expandable: bool
) -> tuple[Advice, ...]:
    """Recommendations, the most useful first.

    Args:
        facts: fields of `Fragmentation` by name.
        largest_stuck: bytes of the largest free block in a segment that is in use.
        in_use: sizes of the blocks in use.
        expandable: whether all segments are expandable already.
    """
    reserved, stuck, releasable = facts["reserved_bytes"], facts["stuck_bytes"], facts["releasable_bytes"]
    worth = max(_LEAST, _WORTH * reserved)
    found = []
    if stuck >= worth and not expandable:
        found += _on_stuck(facts, largest_stuck, in_use)
    if releasable >= worth:
        found += _on_releasable(reserved, releasable)
    if found:
        return tuple(sorted(found, key=lambda one: -one.bytes))
    return (Advice("none needed", _why_none(facts, expandable, worth), 0),)


def _on_stuck(facts: Mapping[str, int], largest_stuck: int, in_use: Sequence[int]) -> list[Advice]:
    stuck = facts["stuck_bytes"]
    why = (
        f"{format_bytes(stuck)} are free in {facts['stuck_blocks']:,} pieces of {facts['stuck_segments']:,} segments "
        f"that are in use too, the largest piece {format_bytes(largest_stuck)}; expandable segments avoid such gaps"
    )
    found = [Advice("expandable_segments:True", why, stuck)]
    usual = sorted(in_use)[int(_USUAL * (len(in_use) - 1))] if in_use else 0
    limit = max(_LEAST_SPLIT_MB, -(-usual // _MIB))
    if largest_stuck > limit * _MIB:
        why = (
            f"if segments cannot be expandable: 90 % of the blocks in use have {format_bytes(usual)} or less, "
            f"but split blocks left gaps of up to {format_bytes(largest_stuck)}"
        )
        found.append(Advice(f"max_split_size_mb:{limit}", why, stuck))
    return found


def _on_releasable(reserved: int, releasable: int) -> list[Advice]:
    share = f"{format_bytes(releasable)} of {format_bytes(reserved)} reserved are in unused segments"
    once = Advice("torch.cuda.empty_cache()", f"{share}; once, after a peak that does not recur", releasable)
    if releasable < _MOSTLY * reserved:
        return [once]
    often = "if peaks recur and memory is short"
    return [once, Advice("garbage_collection_threshold:0.8", f"{share}; {often}", releasable)]


def _why_none(facts: Mapping[str, int], expandable: bool, worth: float) -> str:
    if facts["stuck_bytes"] >= worth and expandable:
        between = format_bytes(facts["stuck_bytes"])
        return f"segments are expandable already; the {between} between blocks serve smaller tensors"
    share = 100 * facts["free_bytes"] / facts["reserved_bytes"] if facts["reserved_bytes"] else 0.0
    return (
        f"{format_bytes(facts['free_bytes'])} ({share:.0f} % of the reserved memory) are free, "
        "the usual cost of caching"
    )
