# SPDX-License-Identifier: Apache-2.0
"""Whether the late one of two processes on two GPUs is named, with the cause, and whether healthy jobs are left alone.

20 programs: five causes, each on either rank and in two sizes, 100 steps. Then a healthy job of many steps, judged in
windows of 50. A process is a child of this script: ``late_ranks.py --child CAUSE --late RANK --size N --folder DIR``.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

STEPS, WINDOW = 100, 50
CAUSES = {
    # of the child's argument: words of which the finding has one
    "kernels": ("computes", "compute"),
    "data": ("data",),
    "garbage": ("garbage",),
    "synchronization": ("synchronization", "host", ".py"),
    "order": ("opposite order",),
}
SIZES = (1, 2)
PRODUCTS = 20  # of a step: one more is 5 %
WIDTH = 2048
HEALTHY_STEPS = 10_000


def child(options: Any) -> None:
    """Trains as one of two ranks."""
    import torch
    import torch.distributed as dist

    import gpuscope as gs

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    left = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    gradient = torch.ones(4 << 20, device="cuda")
    with gs.profile(path=options.folder) as prof:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        second = dist.new_group([0, 1])
        before = disturbance(options.child if rank == options.late else "", options.size)
        products = PRODUCTS + (options.size if rank == options.late and options.child == "kernels" else 0)
        groups: list[Any] = [None, second]
        if rank == options.late and options.child == "order":
            groups.reverse()
        steps = HEALTHY_STEPS if options.child == "healthy" else STEPS
        for _ in range(steps):
            before()
            for _ in range(products):
                torch.mm(left, left)
            if options.child == "order":
                pending = [dist.all_reduce(gradient[:1024], group=group, async_op=True) for group in groups]
                for each in pending:
                    each.wait()
            dist.all_reduce(gradient)
            prof.step()
        torch.cuda.synchronize()
    dist.destroy_process_group()


def disturbance(cause: str, size: int) -> Callable[[], object]:
    """What the late rank does at the begin of each step."""
    import torch

    if cause == "data":

        class Slow(torch.utils.data.Dataset[int]):
            def __len__(self) -> int:
                return STEPS + 1

            def __getitem__(self, index: int) -> int:
                time.sleep(2e-3 * size)
                return index

        batches = iter(torch.utils.data.DataLoader(Slow()))
        return lambda: next(batches)
    if cause == "garbage":
        kept = [{number: [number]} for number in range(20_000 * size)]

        def collect() -> None:
            gc.collect()
            del kept[:0]

        return collect
    if cause == "synchronization":

        def wait_and_work() -> None:
            torch.cuda.synchronize()
            until = time.perf_counter() + 1e-3 * size
            while time.perf_counter() < until:
                pass

        return wait_and_work
    return lambda: None


def run(cause: str, late: int, size: int, folder: str) -> None:
    """Runs both ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0"}
    arguments = ["--child", cause, "--late", str(late), "--size", str(size), "--folder", folder]
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    if any(process.wait(timeout=300) for process in running):
        raise RuntimeError(f"a process of {cause} failed")


def judge(cause: str, late: int, size: int) -> str:
    """What is wrong with the answer; "" if nothing."""
    import gpuscope as gs

    with tempfile.TemporaryDirectory() as folder:
        run(cause, late, size, folder)
        found = gs.merge(folder).diagnose().findings
    named = [each for each in found if each.ranks and late in each.ranks]
    if not any(any(word in each.sentence for word in CAUSES[cause]) for each in named):
        return f"{cause} of size {size} on rank {late}: {[each.sentence for each in found]}"
    return ""


def alarms(folder: str) -> tuple[int, list[str]]:
    """Windows of a healthy job, and the findings about a rank in them."""
    from gpuscope.fleet.job import Fleet

    run("healthy", -1, 0, folder)
    whole = Fleet(dict(merged(folder)))
    count, found = 0, []
    steps = np.unique(whole.table("step")["step"])
    for begin in range(0, len(steps) - WINDOW + 1, WINDOW):
        inside = steps[begin : begin + WINDOW]
        parts = {}
        for name in ("rank", "step", "kernel_stat", "collective", "segment", "anchor", "reason"):
            table = whole.table(name)
            rows = np.isin(table["step"], inside) if "step" in table else np.ones(len(table["rank"]), bool)
            parts[name] = {column: values[rows] for column, values in table.items()}
        count += 1
        found += [each.sentence for each in Fleet(parts).diagnose().findings if each.ranks]
    return count, found


def merged(folder: str) -> dict[str, Any]:
    """The tables of the recordings in a folder."""
    import gpuscope as gs
    from gpuscope.fleet.tables import SCHEMA

    fleet = gs.merge(folder)
    return {name: fleet.table(name) for name in SCHEMA}


def main() -> None:
    options = measure.arguments(__doc__, child="", late=-1, size=1, folder="")
    if options.child:
        child(options)
        return
    names = ("late_ranks_missed", "late_ranks_alarms")
    why = measure.why_not_available(gpu=True) or two_gpus()
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in names}})
        return
    plans = [(cause, late, size) for cause in CAUSES for late in (0, 1) for size in SIZES]
    plans = plans[:: 4 if options.quick else 1]
    missed = [said for plan in plans if (said := judge(*plan))]
    with tempfile.TemporaryDirectory() as folder:
        windows, blamed = alarms(folder)
    rows = {
        "late_ranks_missed": {"value": len(missed) / len(plans), "detail": missed},
        "late_ranks_alarms": {"value": len(blamed), "detail": {"windows": windows, "findings": blamed[:20]}},
    }
    measure.answer({"rows": rows})


def two_gpus() -> str:
    """Why there are no two GPUs; "" if there are."""
    import torch

    count = torch.cuda.device_count()
    return "" if count >= 2 else f"this needs 2 GPUs and there are {count}"


if __name__ == "__main__":
    main()
