# SPDX-License-Identifier: Apache-2.0
"""Who keeps memory alive: the way from a named variable to the tensors that stand for pieces of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope.memory.findings.growth import Growth
from gpuscope.memory.findings.names import Names
from gpuscope.memory.findings.referrers import NAMELESS, Chain, chains_to
from gpuscope.memory.findings.tensors import Tensors, graph_extent, graph_of, untouched_by_programs

_SAMPLES = 4  # pieces of one place that are followed
_SHARING = 3  # tensors of each: views, and what they are views of
_MOST_NODES = 20_000
_MOST_PLACES = 8


@dataclass(frozen=True)
class Holder:
    """What keeps pieces of memory alive.

    Attributes:
        name: as the program calls it: ``"train.losses"``, ``"Trainer.history"``, ``"losses"``.
        where: what kind of name that is: ``"a local of main() (train.py:12)"``; "" for a module's global.
        kind: its type: ``"list"``.
        entries: how many entries it has; None when it is no container.
        keeps_graphs: the tensors in it, or it itself, keep their autograd graphs, with all that those saved.
        operations: of the graph, where one tensor's graph spans the steps; 0 otherwise.
    """

    name: str
    where: str
    kind: str
    entries: int | None
    keeps_graphs: bool
    operations: int = 0

    def __str__(self) -> str:
        what = f"a {self.kind} of {self.entries:,}" if self.entries is not None else f"a {self.kind}"
        return f"{self.name}: {what}{f', {self.where}' if self.where else ''}"

    @property
    def advice(self) -> str:
        """What to change; "" where that depends on what the program wants."""
        if not self.keeps_graphs:
            return ""
        if self.operations:
            return f"the autograd graph of `{self.name}` spans the steps: use .item() or .detach() in between"
        return f"tensors in {self.kind} `{self.name}` keep their autograd graphs: use .item() or .detach()"


def who_holds(growths: Sequence[Growth]) -> tuple[tuple[Holder | None, ...], tuple[str, ...]]:
    """The holder of each growth's pieces, and remarks on what was not looked at.

    Only what Python's collector knows is seen: CuPy's arrays and PyTorch's tensors, and the containers, objects,
    closures and local variables of the calling thread that lead to them. PyTorch's pieces that no tensor stands for,
    while tensors that keep their autograd graphs grow in number elsewhere, or one graph spans the steps, are put down
    to that. Nothing is kept alive by it, and no code of the program runs.
    """
    with untouched_by_programs():
        return _who_holds(growths)


def _who_holds(growths: Sequence[Growth]) -> tuple[tuple[Holder | None, ...], tuple[str, ...]]:
    tensors = Tensors({address for growth in growths for address in growth.addresses})
    samples = [_sample(tensors, growth.addresses) for growth in growths[:_MOST_PLACES]]
    samples += [[] for _ in growths[_MOST_PLACES:]]
    names = Names()
    alternatives = [group for sample in samples for group in sample]
    hidden = {id(samples), id(tensors.with_graph), id(tensors.at), id(alternatives)}
    hidden |= {*map(id, samples), *map(id, alternatives), *map(id, tensors.at.values())}
    found = chains_to([thing for group in alternatives for thing in group], names, hidden)
    holders = [_holder(_chains(sample, found), _with_graph(sample)) for sample in samples]
    unexplained = [row for row, growth in enumerate(growths) if holders[row] is None and growth.source == "torch"]
    if unexplained:
        shared = next((holder for holder in holders if holder is not None and holder.keeps_graphs), None)
        shared = shared or _spanning_graph(tensors, names, hidden, growths[unexplained[0]].grew)
        for row in unexplained:
            holders[row] = shared
    remarks = ("there were too many Python objects to look at them all for who holds the memory",)
    return tuple(holders), remarks if tensors.capped else ()


def _sample(tensors: Tensors, addresses: Sequence[int]) -> list[list[object]]:
    """Tensors of some of the pieces, the older ones: a step's variables still hold the newest as well."""
    held = [tensors.at[address][:_SHARING] for address in addresses if address in tensors.at]
    older = held[: max(1, len(held) * 3 // 4)]
    return older[:: max(1, -(-len(older) // _SAMPLES))]


def _chains(sample: Sequence[Sequence[object]], found: Mapping[int, Chain]) -> list[Chain]:
    """One way to each piece, to a named variable if there is one."""
    ways = ([found[id(thing)] for thing in group if id(thing) in found] for group in sample)
    return [min(chains, key=lambda chain: chain[0].where == NAMELESS) for chains in ways if chains]


def _with_graph(sample: Sequence[Sequence[object]]) -> bool:
    return any(graph_of(thing) is not None for group in sample for thing in group)


def _holder(chains: Sequence[Chain], keeps_graphs: bool) -> Holder | None:
    if not chains:
        return None
    # Where the ways to all samples part is what grows: a list of dicts, not one of the dicts.
    root = Counter(chain[0].id for chain in chains).most_common(1)[0][0]
    shared = [chain for chain in chains if chain[0].id == root]
    depth = 0
    while depth + 2 < min(map(len, shared)) and len({chain[depth + 1].id for chain in shared}) == 1:
        depth += 1
    chain = shared[0]
    if len(shared) == 1:  # nothing to compare with: the outermost container
        depth = next((at for at, link in enumerate(chain[:-1]) if link.entries is not None), 0)
    link = chain[depth]
    name = "".join(link.step for link in chain[: depth + 1])
    return Holder(name, chain[0].where, link.kind, link.entries, keeps_graphs)


def _spanning_graph(tensors: Tensors, names: Names, hidden: set[int], steps: int) -> Holder | None:
    """The tensor whose graph spans the steps, where one does: a sum of losses, a state that is handed on."""
    best, most = None, 0
    for tensor in tensors.with_graph:
        operations, uses = graph_extent(tensor, _MOST_NODES)
        if uses >= steps and operations > most:
            best, most = tensor, operations
    chain = None if best is None else chains_to([best], names, hidden).get(id(best))
    if chain is None:
        return None
    name = "".join(link.step for link in chain)
    return Holder(name, chain[0].where, chain[-1].kind, None, True, most)
