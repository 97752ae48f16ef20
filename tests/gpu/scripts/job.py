# SPDX-License-Identifier: Apache-2.0
"""One of two processes of a job; writes its recording into a folder and prints how many collectives it called.

``python job.py FOLDER PROGRAM`` with the variables of torchrun. Programs: ddp, fsdp, tensor (tensor parallel), graph
(collectives that were captured in a CUDA graph).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gpuscope as gs

WIDTH, STEPS = 256, 12


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)).cuda()


def train(wrapped: torch.nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    batch = torch.ones(8, WIDTH, device="cuda")

    def step() -> None:
        wrapped(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def graph() -> Callable[[], None]:
    values = torch.ones(1 << 16, device="cuda")
    gathered = torch.empty(2 << 16, device="cuda")

    def work() -> None:
        dist.all_reduce(values)
        dist.all_gather_into_tensor(gathered, values)
        values.mul_(0.5)

    work()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        work()
    return captured.replay


def program(name: str, rank: int) -> Callable[[], None]:
    if name == "ddp":
        return train(DistributedDataParallel(model(), device_ids=[rank]))
    if name == "fsdp":
        sharded = model()
        fully_shard(sharded)
        return train(sharded)
    if name == "tensor":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return train(parallelize_module(model(), init_device_mesh("cuda", (2,)), plan))
    return graph()


def main() -> None:
    folder, name = sys.argv[1:]
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    with gs.profile(path=folder) as prof:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        step = program(name, rank)
        for _ in range(STEPS):
            step()
            prof.step()
        torch.cuda.synchronize()
    kernels = [each for each in prof.trace.kernel_names() if "nccl" in each]
    counted = Counter(prof.trace.collectives.communicator.tolist())
    dist.destroy_process_group()
    facts = {"collectives": sorted(counted.values()), "kernels": len(kernels), "complete": prof.audit().complete}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
