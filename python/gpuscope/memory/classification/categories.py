# SPDX-License-Identifier: Apache-2.0
"""What the memory of a PyTorch program is for: parameters, activations, gradients and so on.

The categories are those of torch.profiler's memory timeline, which follows the data through every operator. Here they
follow from where a piece was handed out, where it was given back, and what lives at the end, which costs next to
nothing and needs no recording of operators. What no rule decides is UNKNOWN, and so are the segments that a framework
takes from the driver: its own pieces have the categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.classification.phases import BACKWARD as IN_BACKWARD
from gpuscope.memory.classification.phases import FORWARD as IN_FORWARD
from gpuscope.memory.classification.phases import OPTIMIZER as IN_OPTIMIZER
from gpuscope.memory.classification.phases import OUTSIDE as IN_BETWEEN
from gpuscope.memory.classification.phases import SETUP as IN_SETUP
from gpuscope.memory.classification.phases import event_phases
from gpuscope.memory.events import SOURCES, Lifetimes, MemoryEvents
from gpuscope.memory.findings.pieces import is_segment

# In the order of torch.profiler._memory_profiler, what has none behind them; graphs' pools are ours, and what libraries
# such as cuBLAS take from the driver.
CATEGORIES = (
    *("PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL"),
    *("UNKNOWN", "GRAPH_POOL", "LIBRARY"),
)
PARAMETER, OPTIMIZER_STATE, INPUT, TEMPORARY, ACTIVATION, GRADIENT, AUTOGRAD_DETAIL = range(7)
UNKNOWN, GRAPH_POOL, LIBRARY = range(7, 10)

_TORCH, _DRIVER = SOURCES.index("torch"), SOURCES.index("driver")


def category_text(name: str) -> str:
    """One of CATEGORIES for people: "optimizer state"."""
    return "libraries" if name == "LIBRARY" else name.replace("_", " ").lower()


def categorize(
    events: MemoryEvents,
    lifetimes: Lifetimes | None = None,
    *,
    live: Mapping[int, int] | None = None,
    graph_pools: Sequence[tuple[int, int]] = (),
) -> NDArray[np.uint8]:
    """The category of each piece, a number of CATEGORIES.

    Args:
        events: the history; its stacks tell forward, backward and optimizer apart.
        lifetimes: the pieces; those of `events` when left out.
        live: category by address of what lives at the history's end, from `live_tensors.live_categories`. Without it
            parameters made outside of modules are unknown.
        graph_pools: first address and the one behind the last of each piece of CUDA graphs' private pools.

    Returns:
        Shape (lifetimes,).
    """
    lifetimes = events.lifetimes() if lifetimes is None else lifetimes
    found = by_phase(lifetimes, event_phases(events))
    found[lifetimes.source != _TORCH] = UNKNOWN
    found[(lifetimes.source == _DRIVER) & ~is_segment(events, lifetimes)] = LIBRARY
    for first, end in graph_pools:
        found[(lifetimes.address >= np.uint64(first)) & (lifetimes.address < np.uint64(end))] = GRAPH_POOL
    if live:
        rows = np.flatnonzero(lifetimes.alive)
        addresses = lifetimes.address[rows].tolist()
        found[rows] = [live.get(address, old) for address, old in zip(addresses, found[rows].tolist(), strict=True)]
    return found


def by_phase(
    lifetimes: Lifetimes, phases: NDArray[np.uint8], operators: NDArray[np.int64] | None = None
) -> NDArray[np.uint8]:
    """The category of each piece by the phases it was born, lived and died in.

    Args:
        lifetimes: the pieces.
        phases: the phase of each event, a number of `gpuscope.memory.classification.phases`.
        operators: number of the operator of autograd's graph that each event belongs to, below 0 for none. With it,
            what one operator of a backward needs for itself is TEMPORARY; else all that a backward takes and gives
            back is AUTOGRAD_DETAIL, as nearly all of it is: the gradients that pass from operator to operator.

    Returns:
        Shape (lifetimes,).
    """
    if not len(lifetimes):
        return np.zeros(0, dtype=np.uint8)
    born, alive = lifetimes.born, lifetimes.alive
    died = np.where(alive, len(phases), lifetimes.died)
    at_birth = phases[born]
    at_death = np.where(alive, 0, phases[np.minimum(died, len(phases) - 1)])

    forward, backward, optimizer = (
        _between(phases == phase, born + 1, died) for phase in (IN_FORWARD, IN_BACKWARD, IN_OPTIMIZER)
    )
    died_in_backward, died_in_optimizer = at_death == IN_BACKWARD, at_death == IN_OPTIMIZER
    rounds = _rounds(phases)
    many_rounds = rounds[died] - rounds[born] > 1
    ended = np.flatnonzero((phases == IN_BACKWARD) | (phases == IN_OPTIMIZER))
    place = np.searchsorted(ended, born)
    next_end = np.concatenate((ended, [len(phases)]))[place]
    last_end = np.concatenate(([0], ended))[place]
    feeds_a_forward = _between(phases == IN_FORWARD, born + 1, np.minimum(died, next_end))
    follows_a_forward = _between(phases == IN_FORWARD, last_end, born)

    # The first rule of a list that fits decides.
    rules: dict[int, tuple[tuple[NDArray[np.bool_], int], ...]] = {
        IN_FORWARD: (
            (died_in_backward | backward, ACTIVATION),
            (~alive, TEMPORARY),
            (alive, ACTIVATION),  # waits for its backward, or for whoever called the model
        ),
        IN_BACKWARD: (
            (died_in_backward & ~optimizer, AUTOGRAD_DETAIL),
            (np.ones_like(alive), GRADIENT),
        ),
        IN_OPTIMIZER: (
            (alive | forward | backward, OPTIMIZER_STATE),
            (~alive, TEMPORARY),
        ),
        IN_SETUP: (
            (alive | many_rounds, PARAMETER),
            (~alive & ~forward & ~backward & ~optimizer, TEMPORARY),
        ),
        IN_BETWEEN: (
            # Behind a forward what is computed belongs to the model: a loss, or code between two modules. Before it
            # that may be a batch; without any forward the model has no modules.
            ((died_in_backward | backward) & follows_a_forward & ~many_rounds, ACTIVATION),
            (died_in_backward & ~feeds_a_forward & ~many_rounds, ACTIVATION),
            (~alive & ~(forward | backward | optimizer | died_in_backward | died_in_optimizer), TEMPORARY),
            (feeds_a_forward & ~many_rounds, INPUT),
        ),
    }
    found = np.full(len(lifetimes), UNKNOWN, dtype=np.uint8)
    for phase, choices in rules.items():
        here = at_birth == phase
        found[here] = np.select([fits[here] for fits, _ in choices], [name for _, name in choices], UNKNOWN)
    if operators is not None:
        same = operators[born] == operators[np.minimum(died, len(phases) - 1)]
        found[(found == AUTOGRAD_DETAIL) & same & (operators[born] >= 0)] = TEMPORARY
    return found


def _between(happens: NDArray[np.bool_], first: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether any row from `first` on and before `end` has it."""
    sums = np.concatenate(([0], np.cumsum(happens)))
    return np.asarray(sums[np.maximum(first, end)] > sums[first])


def _rounds(phases: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many rounds of training had begun their backward before each row, and at the end: an optimizer ends one."""
    told = np.flatnonzero((phases == IN_BACKWARD) | (phases == IN_OPTIMIZER))
    begins = np.zeros(len(phases) + 1, dtype=np.int64)
    is_backward = (phases[told] == IN_BACKWARD).astype(np.int8)
    begins[told[np.diff(is_backward, prepend=0) == 1] + 1] = 1
    return np.asarray(np.cumsum(begins))
