# SPDX-License-Identifier: Apache-2.0
"""Trains a small residual network under torch.profiler, then under gpuscope, and keeps the Chrome trace of each.

    python tests/gpu/scripts/hta_pair.py tests/golden/hta

writes torch.json.gz and gpuscope.json.gz there, which tests/python/exporters/test_hta.py compares. Each profiler has a
process and a run of its own, so the program is made such that its figures are those of any run: a step begins with a
kernel that holds the GPU until everything is launched (so launch delays are its length and not the speed of the host),
and ends with a wait of fixed length (so idle time is that wait and not the cost of the profiler).
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM_STEPS = 20
SCHEDULE = {"wait": 0, "warmup": 2, "active": 4, "repeat": 1}
HOLD_CYCLES = 300_000_000  # about 150 ms: many times what launching a step takes
IDLE_SECONDS = 0.04
BATCH, CHANNELS, SIZE, CLASSES = 256, 64, 56, 10


def make_network(torch: Any) -> Any:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.second = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(CHANNELS) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            out = torch.relu(self.norms[0](self.first(x)))
            return torch.relu(self.norms[1](self.second(out)) + x)

    return torch.nn.Sequential(
        torch.nn.Conv2d(3, CHANNELS, 3, padding=1),
        Block(),
        Block(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(CHANNELS, CLASSES),
    )


def wait(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def train(profiler: str, path: Path) -> None:
    import torch

    if profiler == "torch":
        from torch.profiler import ProfilerActivity, profile, record_function, schedule
    else:
        from gpuscope import ProfilerActivity, profile, record_function, schedule

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    network = make_network(torch).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, SIZE, SIZE).pin_memory()
    labels = torch.randint(0, CLASSES, (BATCH,)).pin_memory()

    def step() -> None:
        torch.cuda._sleep(HOLD_CYCLES)
        with record_function("data"):
            x = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            y = labels.cuda(non_blocking=True)
        with record_function("forward"):
            loss = torch.nn.functional.cross_entropy(network(x), y)
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        wait(IDLE_SECONDS)

    for _ in range(WARM_STEPS):
        step()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(**SCHEDULE),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
    ) as prof:
        for _ in range(SCHEDULE["warmup"] + SCHEDULE["active"]):
            step()
            prof.step()


def main() -> None:
    """Runs both, one after the other."""
    if len(sys.argv) == 3:
        train(sys.argv[1], Path(sys.argv[2]))
        return
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for profiler in ("torch", "gpuscope"):
        path = folder / f"{profiler}.json.gz"
        subprocess.run([sys.executable, __file__, profiler, str(path)], check=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
