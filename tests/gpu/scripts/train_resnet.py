# SPDX-License-Identifier: Apache-2.0
"""A ResNet-18 training script on made-up images; prints for how long kernels ran when torch.profiler watches."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
import torchvision

from gpuscope import record_function

torch.manual_seed(0)
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = True
model = torchvision.models.resnet18(num_classes=10).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()


def train(steps: int) -> float:
    """Trains for so many steps of 64 images; the last loss."""
    loss = torch.zeros(())
    for _ in range(steps):
        with record_function("data"):
            images = torch.randn(64, 3, 128, 128, device="cuda").to(memory_format=torch.channels_last)
            labels = torch.randint(0, 10, (64,), device="cuda")
        with record_function("forward"):
            loss = criterion(model(images), labels)
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
    torch.cuda.synchronize()
    return loss.item()


def busy_us(spans: list[tuple[float, float]]) -> float:
    """For how long there was a kernel: one that begins before its predecessor has ended, and waits, counts once."""
    busy = last = 0.0
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, last))
        last = max(last, end)
    return busy


def main() -> None:
    """Warms up, then trains the steps that are compared."""
    train(20)
    if "--torch-profiler" in sys.argv:
        watched = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    else:
        watched = nullcontext()
    with watched, record_function("measured"):
        loss = train(30)
    print(f"loss {loss:.4f}")
    if "--torch-profiler" in sys.argv:
        kernels = [
            event
            for event in watched.events()
            if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
        ]
        print(f"kernel count {len(kernels)}")
        print(f"kernel busy {busy_us([(event.time_range.start, event.time_range.end) for event in kernels]):.1f} us")


if __name__ == "__main__":
    main()
