# SPDX-License-Identifier: Apache-2.0
"""What the figures of a program's stages suggest to be behind its highest memory use.

No name of a stage counts, only what it takes and what it gives back. The forward pass takes activations, and the
backward pass gives them back while it takes gradients; these stay until a stage frees them that takes nothing itself;
an optimizer takes its state the first time that it runs, and never again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.tracking.stages import MemoryStage

# Shares of the highest peak: worth a sentence, worth one of what stays for ever, and no longer nothing.
_LARGE = 0.2
_LASTING = 0.1
_SMALL = 0.05
_SHARE_GIVEN_BACK = 0.25
_MOST = 0.8  # of what several stages take: by one of them
_LESS_FOR_ACTIVATIONS = "gradient checkpointing or a smaller batch would lower the peak."
_LESS_FOR_GRADIENTS = "mixed precision makes them smaller, and zero_grad() before the next forward frees them."
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
    rise = _first_rise(step)
    if rise is None:
        return []
    taking, giving = rise
    later = [stage for stage in stages[stages.index(taking[-1]) + 1 :] if stage is not giving]
    return [*_of_rise(taking, giving, highest), *_of_state(later, highest)]


def _first_rise(step: Sequence[MemoryStage]) -> tuple[Sequence[MemoryStage], MemoryStage] | None:
    """The first stages in a row that take memory, and the one behind them that gives some back."""
    taking: list[MemoryStage] = []
    for stage in step:
        if (stage.delta or 0) > 0:
            taking.append(stage)
        elif taking:
            return taking, stage
    return None


def _of_rise(taking: Sequence[MemoryStage], giving: MemoryStage, highest: int) -> list[str]:
    taken = sum(stage.delta or 0 for stage in taking)
    names = " and ".join(f'"{stage.name}"' for stage in taking)
    names += f" {'take' if len(taking) > 1 else 'takes'} {size_text(taken)}"
    given_back = giving.peak - giving.allocated
    if taken < _LARGE * highest or given_back < _SHARE_GIVEN_BACK * taken:
        return []
    if giving.peak_is_exact and giving.peak <= (giving.before or 0):
        return [f'{names} that "{giving.name}" frees: most likely gradients; {_LESS_FOR_GRADIENTS}']
    # A backward pass takes gradients meanwhile, so that it gives back more than can be seen.
    fact = f'{names}, and "{giving.name}" gives back {size_text(min(given_back, taken))} or more of it'
    if max(stage.delta or 0 for stage in taking) < _MOST * taken:
        return [f"{fact}: activations or gradients; {_LESS_FOR_ACTIVATIONS}"]
    found = [f"{fact}: most likely activations; {_LESS_FOR_ACTIVATIONS}"]
    kept = giving.allocated - (taking[0].before or 0)
    if kept >= _LARGE * highest:
        found.append(
            f'{size_text(kept)} more than before "{taking[0].name}" are in use after "{giving.name}": most likely '
            f"gradients; {_LESS_FOR_GRADIENTS}"
        )
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
