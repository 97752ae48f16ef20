# SPDX-License-Identifier: Apache-2.0
"""Which setting of PyTorch's allocator would help, each with the number that it rests on.

The settings are those of PyTorch's notes on CUDA semantics, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope.memory.sizes import size_text

_MIB = 1 << 20
_WORTH = 0.1  # of what is reserved: less is what caching costs anyway
_LEAST = 64 * _MIB  # three of PyTorch's segments of 20 MiB
_MOSTLY = 0.5
# PyTorch refuses max_split_size_mb of 20 and less: its segments of that size are made to be split.
_LEAST_SPLIT_MB = 21
_USUAL = 0.9  # of the blocks in use are of that size or smaller


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Attributes:
        setting: for ``PYTORCH_CUDA_ALLOC_CONF``, a call, or "none needed".
        why: the numbers that speak for it.
        bytes: what it may win.
    """

    setting: str
    why: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.setting}: {self.why}"


def advice_on(
    facts: Mapping[str, int], *, largest_stuck: int, in_use: Sequence[int], expandable: bool
) -> tuple[Advice, ...]:
    """What would help, the most useful first.

    Args:
        facts: `Fragmentation`'s reserved, free, stuck, stuck_pieces, stuck_segments and releasable.
        largest_stuck: bytes of the largest free piece within a segment that is in use.
        in_use: sizes of the blocks in use.
        expandable: whether segments can grow already.
    """
    reserved, stuck, releasable = facts["reserved"], facts["stuck"], facts["releasable"]
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
    stuck = facts["stuck"]
    why = (
        f"{size_text(stuck)} lie free in {facts['stuck_pieces']:,} pieces of {facts['stuck_segments']:,} segments that "
        f"are in use too, the largest piece {size_text(largest_stuck)}; segments that can grow need no gaps"
    )
    found = [Advice("expandable_segments:True", why, stuck)]
    usual = sorted(in_use)[int(_USUAL * (len(in_use) - 1))] if in_use else 0
    limit = max(_LEAST_SPLIT_MB, -(-usual // _MIB))
    if largest_stuck > limit * _MIB:
        why = (
            f"where segments cannot be expandable: 90 % of the blocks in use are of {size_text(usual)} or less, while "
            f"gaps of up to {size_text(largest_stuck)} are left of larger blocks that were split"
        )
        found.append(Advice(f"max_split_size_mb:{limit}", why, stuck))
    return found


def _on_releasable(reserved: int, releasable: int) -> list[Advice]:
    share = f"{size_text(releasable)} of {size_text(reserved)} reserved lie in segments that nothing uses"
    once = Advice("torch.cuda.empty_cache()", f"{share}; once, after a peak that does not come back", releasable)
    if releasable < _MOSTLY * reserved:
        return [once]
    often = "where peaks come back and the memory is short"
    return [once, Advice("garbage_collection_threshold:0.8", f"{share}; {often}", releasable)]


def _why_none(facts: Mapping[str, int], expandable: bool, worth: float) -> str:
    if facts["stuck"] >= worth and expandable:
        return f"segments are expandable already; the {size_text(facts['stuck'])} between blocks serve smaller tensors"
    share = 100 * facts["free"] / facts["reserved"] if facts["reserved"] else 0.0
    return f"{size_text(facts['free'])} ({share:.0f} % of what is reserved) lie free, which is what caching costs"
