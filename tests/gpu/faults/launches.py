# SPDX-License-Identifier: Apache-2.0
"""The GPU runs many small kernels."""

from __future__ import annotations

import functools

import torch

from . import Compute, Fault, Step, whole


class SmallOperators:
    """Of two sizes in turn, so that they are no chain that one kernel could compute."""

    def __init__(self, count: float) -> None:
        self.count = whole(count)
        self.small, self.large = (torch.ones(size, device="cuda") for size in (1000, 8000))

    def __call__(self) -> object:
        for at in range(self.count):
            (self.large if at % 2 else self.small).mul_(1.0)
        return self.small, self.large


def tiny_operators(count: float) -> Step:
    some, compute = SmallOperators(count), Compute()
    return lambda: (some(), compute())


def tiny_operators_in_a_graph(count: float) -> Step:
    some, compute = SmallOperators(count), Compute()
    with torch.cuda.stream(torch.cuda.Stream()):
        some()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        some()
    return lambda: (graph.replay(), compute())


def _pointwise(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.relu(x * 1.01) + 0.1
    return x


@functools.cache
def _compiled() -> Step:
    return torch.compile(_pointwise, dynamic=True)


def chain_of_pointwise_operators(millions: float) -> Step:
    x, compute = torch.randn(whole(millions * 1e6), device="cuda"), Compute()
    return lambda: (_pointwise(x), compute())


def compiled_chain(millions: float) -> Step:
    x, compute, function = torch.randn(whole(millions * 1e6), device="cuda"), Compute(), _compiled()
    return lambda: (function(x), compute())


def _optimized(count: float, **how: bool) -> Step:
    parameters = [torch.nn.Parameter(torch.zeros(256, device="cuda")) for _ in range(whole(count))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    update, compute = torch.optim.Adam(parameters, **how).step, Compute()  # type: ignore[arg-type]
    return lambda: (update(), compute())


def optimizer_one_tensor_at_a_time(count: float) -> Step:
    return _optimized(count, foreach=False)


def fused_optimizer(count: float) -> Step:
    return _optimized(count, fused=True)


FAULTS = (
    Fault("R19", tiny_operators, tiny_operators_in_a_graph, ".mul_(1.0)", begin=3000),
    Fault("R20", chain_of_pointwise_operators, compiled_chain, "torch.relu(x * 1.01)", begin=100),
    Fault("R21", optimizer_one_tensor_at_a_time, fused_optimizer, begin=200),
)
