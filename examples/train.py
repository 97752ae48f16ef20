# SPDX-License-Identifier: Apache-2.0
"""Profiles some steps of a training with PyTorch: ``train.py [--steps 12] [--width 32]``. On the CPU without a GPU."""

from __future__ import annotations

import argparse

import torch
from torch import nn

import gpuscope as gs


def network(width: int) -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def main() -> None:
    """Trains, records six steps in the middle, and says what they lost time to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--report", help="write the page of the report")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network(options.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss_of = nn.CrossEntropyLoss()
    with gs.profile(
        schedule=gs.schedule(wait=2, warmup=1, active=6, repeat=1), record_shapes=True, with_stack="operators"
    ) as prof:
        for _ in range(options.steps):
            with gs.record_function("load"):
                images = torch.rand(16, 3, 32, 32).to(device)
                labels = torch.randint(10, (16,)).to(device)
            with gs.record_function("forward"):
                loss = loss_of(model(images), labels)
            with gs.record_function("backward"):
                optimizer.zero_grad()
                loss.backward()
            with gs.record_function("optimizer"):
                optimizer.step()
            prof.step()
    print(prof.key_averages().table(row_limit=12))
    print(prof.step_breakdown())
    print(prof.diagnose())
    if options.report:
        prof.report(options.report)


if __name__ == "__main__":
    main()
