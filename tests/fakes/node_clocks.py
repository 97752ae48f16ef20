# SPDX-License-Identifier: Apache-2.0
"""Jobs of simulated nodes, whose clocks differ from the true time by a known function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Columns = dict[str, Any]

EPOCH_NS = 1_800_000_000_000_000_000
MS = 1_000_000


class NodeClocks:
    """Nodes of `per_node` ranks; rank r is on node r // per_node. `offset_ns` and `drift` describe their clocks."""

    def __init__(self, nodes: int, per_node: int = 8, seconds: float = 60.0, seed: int = 0, ppm: float = 5.0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes, self.per_node, self.span_ns = nodes, per_node, int(seconds * 1e9)
        self.node = np.repeat(np.arange(nodes), per_node)
        self.offset_ns = self.random.integers(-3 * MS, 3 * MS, nodes)
        self.drift = self.random.normal(0, ppm * 1e-6, nodes)
        self.wander: Callable[[Array, Array], Array] = lambda node, true_ns: np.zeros(len(node))
        self.jitter_ns = 8000.0
        self.gap: tuple[float, float] = (0.5, 1.5)  # times the mean
        self._parts: list[Columns] = []

    def clock(self, node: Array, true_ns: Array) -> Array:
        """What the clocks of nodes show at true times, ns from `EPOCH_NS`."""
        moves = self.drift[node] * (true_ns - self.span_ns / 2) + self.wander(node, true_ns)
        shown: Array = EPOCH_NS + self.offset_ns[node] + true_ns + np.rint(moves).astype(np.int64)
        return shown

    def fences(
        self, members: Sequence[int] | Array, count: int, communicator: int, kind: str = "all_reduce", size: int = 1024
    ) -> Columns:
        """`count` collectives of the ranks, spread over the time span; a row is a rank in a collective."""
        ranks = np.asarray(members)
        gaps = self.random.uniform(*self.gap, count)
        arrived = (np.cumsum(gaps) / gaps.sum() * (self.span_ns - 10 * MS)).astype(np.int64)
        shape = (count, len(ranks))
        starts = arrived[:, None] - self.random.exponential(2e5, shape).astype(np.int64)
        jitter = self.random.gamma(2.0, self.jitter_ns / 2, shape)
        jitter += (self.random.random(shape) < 0.05) * self.random.exponential(5 * self.jitter_ns + 1e-9, shape)
        ends = starts.max(1)[:, None] + 100_000 + jitter.astype(np.int64)
        rank = np.broadcast_to(ranks, shape).reshape(-1)
        rows = len(rank)
        columns: Columns = {
            "rank": rank.astype(np.int32),
            "communicator": np.full(rows, communicator, np.int64),
            "size": np.full(rows, len(ranks), np.int32),
            "sequence": np.repeat(np.arange(count, dtype=np.int64), len(ranks)),
            "kind": np.full(rows, kind),
            "bytes": np.full(rows, size, np.int64),
            "start_ns": self.clock(self.node[rank], starts.reshape(-1)),
            "end_ns": self.clock(self.node[rank], ends.reshape(-1)),
        }
        self._parts.append(columns)
        return columns

    def grid(self, count: int, group: int = 16) -> None:
        """Communicators of `group` ranks, one a rank: of neighbouring nodes for even local ranks, else of far nodes."""
        rows = -(-self.nodes // group)
        for local in range(self.per_node):
            nodes = np.arange(self.nodes)
            turn = nodes if local % 2 == 0 else np.argsort(nodes % rows, kind="stable")
            for first in range(0, self.nodes, group):
                members = turn[first : first + group] * self.per_node + local
                self.fences(members, count, 1000 * local + first)

    def collectives(self) -> Columns:
        return {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}

    def ranks(self) -> Columns:
        return {
            "rank": np.arange(len(self.node), dtype=np.int32),
            "host": np.array([f"node{node}" for node in self.node]),
        }

    def anchors(self, error_ns: float = 4.0 * MS) -> Columns:
        """An anchor a second of each rank; CLOCK_REALTIME of each node is off by up to about `error_ns`."""
        true = np.arange(0, self.span_ns, 1_000_000_000)
        rank = np.repeat(np.arange(len(self.node)), len(true))
        true = np.tile(true, len(self.node))
        off = np.clip(self.random.normal(0, error_ns / 2, self.nodes), -error_ns, error_ns).astype(np.int64)
        return {
            "rank": rank,
            "time_ns": self.clock(self.node[rank], true),
            "realtime_ns": EPOCH_NS + true + off[self.node[rank]],
        }

    def errors_ns(self, clock: Any, ranks: Array | None = None, part: int = 0) -> Array:
        """Of aligned times of a part, nodes by moments, relative to the mean of the nodes."""
        chosen = np.arange(0, len(self.node), self.per_node) if ranks is None else np.asarray(ranks)
        true = np.linspace(0, self.span_ns - 10 * MS, 41).astype(np.int64)
        rank, moment = np.repeat(chosen, len(true)), np.tile(true, len(chosen))
        aligned = clock.aligned(rank, self.clock(self.node[rank], moment), part=part)
        off = (aligned - EPOCH_NS - moment).reshape(len(chosen), len(true))
        apart: Array = (off - off[0]).astype(float)
        apart -= apart.mean(0)
        return apart
