# SPDX-License-Identifier: Apache-2.0
"""What the figures of a program's stages suggest to be behind its highest memory use.

No name of a stage counts, only what it takes and what it gives back. A training step takes activations in one stage and
gives them back in the next one that matters; gradients come with that one and stay until they are set to None; the
optimizer takes its state the first time that it runs, and never again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.stages import MemoryStage

# Shares of the highest peak: worth a sentence, worth one of what stays for ever, and no longer nothing.
_LARGE = 0.2
_LASTING = 0.1
_SMALL = 0.05
# Reserved over the peak of allocated: torch reserves in pieces of up to 20 MiB, which explains less than this.
_FAR_ABOVE = 1.25
_PIECES = 64 << 20


def hints(stages: Sequence[MemoryStage]) -> tuple[str, ...]:
    """A sentence for each thing that stands out.

    Args:
        stages: of one device, in the order of their first appearance; at least one.
    """
    highest = max(stage.peak for stage in stages)
    return (*_of_a_step(stages, highest), *_of_reserved(stages, highest))


def _of_a_step(stages: Sequence[MemoryStage], highest: int) -> list[str]:
    rounds = max(stage.count for stage in stages)
    step = [stage for stage in stages if stage.count == rounds and abs(stage.delta or 0) >= _SMALL * highest]
    found: list[str] = []
    for at, taking in enumerate(step[:-1]):
        following = step[at + 1]
        taken = taking.delta or 0
        if taken < _LARGE * highest:
            continue
        gives_back = (following.delta or 0) < 0
        if gives_back and following.peak - following.allocated >= taken / 2:
            found.append(
                f'"{taking.name}" takes {size_text(taken)} that "{following.name}" gives back: most likely '
                "activations; gradient checkpointing or a smaller batch would lower the peak."
            )
        given_back_later = any((stage.delta or 0) < 0 for stage in step[at + 2 :])
        kept = following.allocated - (taking.before or 0)
        if kept >= _LARGE * highest and (gives_back or given_back_later):
            found.append(
                f'{size_text(kept)} more than before "{taking.name}" are in use after "{following.name}": most likely '
                "gradients; mixed precision makes them smaller, zero_grad() before the next forward frees them."
            )
        if found:
            later = stages[stages.index(following) + 1 :]
            return found + _of_state(later, highest)
    return found


def _of_state(stages: Sequence[MemoryStage], highest: int) -> list[str]:
    found = []
    for stage in stages:
        # What it took the first time beyond what it takes now: a stage that frees gradients each time may do both.
        stays = (stage.first_delta or 0) - (stage.delta or 0)
        if stage.count > 1 and stays >= _LASTING * highest:
            found.append(
                f'"{stage.name}" took {size_text(stays)} more the first time than the last: most likely the '
                "optimizer's state, which stays; an optimizer with less state, or one of 8 bits, needs less."
            )
    return found


def _of_reserved(stages: Sequence[MemoryStage], highest: int) -> list[str]:
    reserved = max(stage.reserved or 0 for stage in stages)
    if reserved <= _FAR_ABOVE * highest or reserved - highest <= _PIECES:
        return []
    return [
        f"{size_text(reserved)} are reserved for a peak of {size_text(highest)}: most likely fragmentation; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True often helps."
    ]
