# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train together over NCCL, with DDP and with FSDP; prints what its profiler saw.

Profiling begins before NCCL does: NVTX asks for a tool once, at its first call in a process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reading import RANGE, Reading
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gpuscope as gs

WIDTH = 256
STEPS = 3


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)).cuda()


def train(wrapped: torch.nn.Module, name: str) -> None:
    optimizer = torch.optim.AdamW(wrapped.parameters())
    batch = torch.randn(8, WIDTH, device="cuda")
    for _ in range(STEPS):
        with gs.record_function(name):
            wrapped(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()


def payloads(reading: Reading) -> dict[int, dict[str, int]]:
    """By region, the numbers that a range came with."""
    table = reading.trace.payloads
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for region, name, value in zip(table.region.tolist(), table.name.tolist(), table.value.tolist(), strict=True):
        found[region][reading.trace.string(name)] = value
    return found


def collectives(reading: Reading) -> list[dict[str, Any]]:
    """Each kernel of NCCL with the range and region that it was launched in."""
    numbers = payloads(reading)
    regions = reading.trace.kernels.region.tolist()
    parents = reading.trace.regions.parent.tolist()
    found = []
    for row, name in enumerate(reading.kernel_names()):
        if not name.startswith("ncclDevKernel"):
            continue
        region, around = regions[row], []
        while region < len(parents):
            around.append(region)
            region = parents[region]
        ranges = [each for each in around if reading.kinds[reading.region_paths[each]] == RANGE]
        nccl = [each for each in ranges if reading.region(each)[-1].startswith("nccl")]
        path = reading.region(regions[row])
        found.append(
            {
                "kernel": name,
                "step": next((each for each in path if each in ("ddp", "fsdp")), ""),
                "range": reading.region(nccl[0])[-1] if nccl else "",
                "payload": numbers.get(nccl[0], {}) if nccl else {},
            }
        )
    return found


def ends_in_chrome_trace(prof: gs.profile) -> list[float]:
    """When each reduction of gradients ended: us since 1970, as a reader of several ranks' files computes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    return [
        trace["baseTimeNanoseconds"] / 1e3 + event["ts"] + event["dur"]
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel" and "AllReduce" in event["name"]
    ]


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    with gs.profile() as prof:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        train(DistributedDataParallel(model(), device_ids=[rank]), "ddp")
        sharded = model()
        fully_shard(sharded)
        train(sharded, "fsdp")
    reading, audit = Reading(prof.trace), prof.audit()
    facts = {
        "rank": rank,
        "parameter bytes": sum(each.numel() * each.element_size() for each in model().parameters()),
        "collectives": collectives(reading),
        "ends of reductions": ends_in_chrome_trace(prof),
        "info": {key: value for key, value in prof.trace.info.items() if "rank" in key or "world" in key},
        "nvls": os.environ.get("NCCL_NVLS_ENABLE"),
        "complete": audit.complete,
        "audit": str(audit),
    }
    dist.destroy_process_group()
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
