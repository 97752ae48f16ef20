# SPDX-License-Identifier: Apache-2.0
"""A training that keeps the loss of each step with its graph, and what finds it: ``leak.py [--steps 16]``.

With PyTorch; without a GPU the host's memory is looked at, in which less can be told.
"""

from __future__ import annotations

import argparse

import torch

import gpuscope as gs

losses: list[torch.Tensor] = []


def main() -> None:
    """Looks for leaks, and says where the memory is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(256, 256).to(device)

    def step() -> None:
        batch = torch.rand(128, 256, device=device)
        loss = (model(batch) ** 2).mean()
        losses.append(loss)  # loss.item() would keep a number

    with gs.track_memory("training"):
        print(gs.find_leaks(step, steps=options.steps))
    print(gs.memory_ledger())


if __name__ == "__main__":
    main()
