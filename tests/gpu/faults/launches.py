# SPDX-License-Identifier: Apache-2.0
"""The GPU runs many small kernels."""

from __future__ import annotations

import torch

from . import COMPUTE_MS, Compute, Fault, Step, milliseconds, outlasting, scaled


class SmallOperators:
    """Of two sizes in turn, so that they are no chain that one kernel could compute."""

    def __init__(self) -> None:
        self.small, self.large = (torch.ones(size, device="cuda") for size in (1000, 8000))

    def eager(self, count: int) -> Step:
        def step() -> object:
            for at in range(count):
                (self.large if at % 2 else self.small).mul_(1.0)
            return self.small, self.large

        return step

    def graph(self, count: int) -> Step:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.eager(3)()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.eager(count)()
        return graph.replay


def _launched(share: float, kind: str) -> Step:
    small = SmallOperators()
    count = scaled("small operators", small.eager, outlasting(share))
    some = getattr(small, kind)(count)
    operators_per_ms = scaled("operators in a graph", small.graph, 1.0)
    compute = Compute(max(COMPUTE_MS - count / operators_per_ms, 1.0))  # with the operators it is as long as others
    return lambda: (some(), compute())


def tiny_operators(share: float) -> Step:
    return _launched(share, "eager")


def tiny_operators_in_a_graph(share: float) -> Step:
    return _launched(share, "graph")


def _pointwise(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.relu(x * 1.01) + 0.1
    return x


def _chain(share: float, compiled: bool) -> Step:
    ms_per_element = 18 * 8 / 3e9  # kernels, bytes of each, bytes a ms
    x, compute = torch.randn(int(milliseconds(share) / ms_per_element), device="cuda"), Compute()
    function = torch.compile(_pointwise) if compiled else _pointwise
    return lambda: (function(x), compute())


def chain_of_pointwise_operators(share: float) -> Step:
    return _chain(share, compiled=False)


def compiled_chain(share: float) -> Step:
    return _chain(share, compiled=True)


def _optimized(share: float, **how: bool) -> Step:
    compute = Compute()

    def optimizer(count: int, **how: bool) -> Step:
        parameters = [torch.nn.Parameter(torch.zeros(256, device="cuda")) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        return torch.optim.Adam(parameters, **how).step  # type: ignore[arg-type]

    count = scaled("optimizer", lambda count: optimizer(count, foreach=False), outlasting(share))
    update = optimizer(count, **how)
    return lambda: (update(), compute())


def optimizer_one_tensor_at_a_time(share: float) -> Step:
    return _optimized(share, foreach=False)


def fused_optimizer(share: float) -> Step:
    return _optimized(share, fused=True)


FAULTS = (
    Fault("R19", tiny_operators, tiny_operators_in_a_graph, ".mul_(1.0)"),
    Fault("R20", chain_of_pointwise_operators, compiled_chain, "torch.relu(x * 1.01)"),
    Fault("R21", optimizer_one_tensor_at_a_time, fused_optimizer),
)
