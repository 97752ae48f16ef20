# SPDX-License-Identifier: Apache-2.0
"""A rank of a real job of torch's gloo that hangs, and writes its Flight Recorder: FOLDER RANK SIZE SCENARIO."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path


def main(folder: str, rank: int, size: int, scenario: str) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    def dump() -> None:
        time.sleep(1.0)
        Path(f"{folder}/part-{rank}").write_bytes(_dump_fr_trace(True, True, False))
        Path(f"{folder}/part-{rank}").rename(f"{folder}/nccl_trace_rank_{rank}")

    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=size)
    value = torch.ones(4)
    dist.all_reduce(value)
    dist.barrier()
    threading.Thread(target=dump, daemon=True).start()
    if scenario == "late" and rank == 1:
        time.sleep(1000)
    if scenario == "mismatch" and rank == 1:
        dist.broadcast(value, 1)
        time.sleep(1000)
    dist.all_reduce(value)
    time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
