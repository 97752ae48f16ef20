# SPDX-License-Identifier: Apache-2.0
"""torch.compile: its Triton kernels, and the CUDA graphs that mode="reduce-overhead" captures and replays."""

from __future__ import annotations

import json
import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of compilers takes longer than these kernels

import torch
from reading import Reading

import gpuscope as gs

REPLAYS = 5


def gelu_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + bias) * 2


def triton_kernels() -> dict[str, object]:
    """A function that inductor fuses into one kernel."""
    x, bias = torch.randn(256, 256, device="cuda"), torch.randn(256, device="cuda")
    compiled = torch.compile(gelu_bias)
    compiled(x, bias)
    with gs.profile() as prof:
        for _ in range(REPLAYS):
            with gs.record_function("compiled"):
                compiled(x, bias)
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    return {
        "names": sorted(set(reading.kernel_names())),
        "kernels": len(prof.trace.kernels),
        "in region": reading.kernels_under("compiled"),
        "paths": sorted({"/".join(reading.region(row)) for row in prof.trace.kernels.region.tolist()}),
        "complete": prof.audit().complete,
    }


def reduced(capture_inside: bool) -> dict[str, object]:
    """An MLP whose graph is captured inside the window or before it, and then replayed."""
    torch._dynamo.reset()
    layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)]
    model = torch.nn.Sequential(*layers).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(8, 64, device="cuda")

    def call(times: int) -> None:
        with torch.inference_mode():
            for _ in range(times):
                torch.compiler.cudagraph_mark_step_begin()
                compiled(x)
        torch.cuda.synchronize()

    call(1 if capture_inside else 5)  # the first compiles and warms up, the second captures
    with gs.profile() as prof:
        if capture_inside:
            with gs.record_function("capturing"):
                call(4)
        with gs.record_function("replaying"):
            call(REPLAYS)
    reading = Reading(prof.trace)
    regions = prof.trace.kernels.region.tolist()
    replayed = [path for kernel, path in reading.graph_kernels() if "replaying" in reading.region(regions[kernel])]
    audit = prof.audit()
    return {
        "graph launches": audit.graph_launches,
        "nodes": len(replayed),
        "captured in": sorted({path[0] if path else "" for path in replayed}),
        "tree": str(prof.tree()),
        "complete": audit.complete,
        "audit": str(audit),
    }


def main() -> None:
    facts = {"triton": triton_kernels(), "inside": reduced(True), "before": reduced(False)}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
