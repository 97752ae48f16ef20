# SPDX-License-Identifier: Apache-2.0
"""How far aligned clocks of simulated nodes are from the truth, and what aligning them costs. Needs no GPU.

Nodes have 8 ranks, offsets of 3 ms and drifts of 5 ppm. Ranks leave fences with a gamma jitter of mean 8 us, 5 % of
them with a tail of 40 us more. Communicators have 16 ranks on 16 nodes. A node's error is the largest over 60 s.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes.node_clocks import NodeClocks
from gpuscope.fleet.clocks import align

RUNS = 20
QUICK_RUNS = 4
SMALL, LARGE = (128, 600), (1250, 100)  # nodes, fences of a communicator


def judge(nodes: int, fences: int, seed: int) -> dict[str, Any]:
    """Errors and stated errors of all nodes in us, and the seconds of the alignment."""
    job = NodeClocks(nodes, seed=seed)
    job.grid(fences)
    tables = job.collectives(), job.ranks(), job.anchors()
    began = time.perf_counter()
    clock = align(*tables)
    seconds = time.perf_counter() - began
    error = np.abs(job.errors_ns(clock)).max(1) / 1e3
    stated = clock.error_ns(np.arange(nodes) * job.per_node) / 1e3
    return {"error": error, "stated": stated, "seconds": seconds}


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    error, stated = (np.concatenate([run[name] for run in runs]) for name in ("error", "stated"))
    return {
        "p50, us": round(float(np.median(error)), 3),
        "p99, us": round(float(np.quantile(error, 0.99)), 3),
        "worst, us": round(float(error.max()), 3),
        "stated, us": round(float(np.median(stated)), 3),
        "held": round(float(np.mean(error <= stated)), 4),
        "seconds": round(float(np.median([run["seconds"] for run in runs])), 2),
    }


def main() -> None:
    options = measure.arguments(__doc__, runs=RUNS)
    count = QUICK_RUNS if options.quick else options.runs
    small = figures([judge(*SMALL, seed) for seed in range(count)])
    large = figures([judge(*LARGE, seed) for seed in range(1 if options.quick else 3)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    rows = {
        "fleet_clocks": {"value": small["p99, us"], "detail": small},
        "fleet_clocks_error": {"value": round(1 - small["held"], 4)},
        "fleet_clocks_large": {"value": large["seconds"], "detail": large},
        "fleet_clocks_memory": {"value": round(peak, 2)},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
