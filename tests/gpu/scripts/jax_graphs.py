# SPDX-License-Identifier: Apache-2.0
"""A jitted function called again and again: XLA makes a command buffer, a CUDA graph, of its kernels."""

from __future__ import annotations

import json
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from reading import RANGE, Reading

import gpuscope as gs

REPLAYS = 10


def main() -> None:
    try:
        import jax
    except ImportError as error:
        print(json.dumps({"skip": str(error)}))
        return
    if not any(device.platform == "gpu" for device in jax.devices()):
        print(json.dumps({"skip": "this JAX has no GPU"}))
        return

    def layers(x, weights):
        for weight in weights:
            x = jax.numpy.tanh(x @ weight)
        return x / x.sum()

    x = jax.numpy.ones((64, 64))
    weights = [jax.numpy.ones((64, 64)) for _ in range(6)]
    step = jax.jit(layers)
    with gs.profile() as prof:
        with gs.record_function("first"):
            for _ in range(3):
                step(x, weights).block_until_ready()
        for _ in range(REPLAYS):
            with gs.record_function("again"), jax.profiler.TraceAnnotation("annotated step"):
                step(x, weights).block_until_ready()
    trace, reading = prof.trace, Reading(prof.trace)
    again = [row for row, region in enumerate(trace.kernels.region.tolist()) if "again" in reading.region(region)]
    captured = dict(reading.graph_kernels())
    audit = prof.audit()
    facts = {
        "kernels again": len(again),
        "nodes again": sum(row in captured for row in again),
        "captured in": sorted({path[0] if path else "" for path in captured.values()}),
        "outside": reading.outside(),
        "annotations": reading.named(RANGE)["annotated step"],
        "under annotation": reading.kernels_under("annotated step"),
        "graph launches": audit.graph_launches,
        "complete": audit.complete,
        "audit": str(audit),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
