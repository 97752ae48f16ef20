# SPDX-License-Identifier: Apache-2.0
"""The same tiny kernel, launched from Python over and over: by torch, or by gpuscope's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WARM_UP = 2000


@dataclass(frozen=True)
class Workload:
    """`launch(n)` launches n kernels and does not wait; `synchronize()` waits for the device."""

    name: str
    launch: Callable[[int], None]
    synchronize: Callable[[], None]

    def run(self, launches: int) -> None:
        self.launch(launches)
        self.synchronize()


def torch_workload(device: str = "cuda") -> Workload:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ImportError("torch finds no GPU")
    x = torch.zeros(16, device=device)

    def launch(launches: int) -> None:
        add = x.add_
        for _ in range(launches):
            add(1)

    return Workload("torch x.add_(1)", launch, torch_wait(device))


def torch_wait(device: str) -> Callable[[], None]:
    """What waits for the device."""
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None


def core_workload() -> Workload:
    from gpuscope import _core

    kernels = _core.Kernels()

    def launch(launches: int) -> None:
        saxpy = kernels.saxpy
        for _ in range(launches):
            saxpy(16)

    return Workload("gpuscope saxpy(16)", launch, kernels.synchronize)


def workloads() -> list[Workload]:
    """Those that this machine can run, warmed up."""
    found = []
    for make in (torch_workload, core_workload):
        try:
            found.append(make())
        except ImportError:
            continue
    for workload in found:
        workload.run(WARM_UP)
    return found
