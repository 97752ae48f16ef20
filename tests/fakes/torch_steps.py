# SPDX-License-Identifier: Apache-2.0
"""Small training steps for comparisons with torch.profiler."""

from __future__ import annotations

import torch
from torch import nn


def conv_step():
    """A training step of a small convolutional net, ready to be called."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, groups=2),
        nn.Flatten(),
        nn.Linear(6 * 6 * 6, 10),
    )
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    return _step(net, images, lambda out: nn.functional.cross_entropy(out, labels))


def transformer_step():
    """A training step of one transformer layer."""
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(16, nhead=4, dim_feedforward=32, batch_first=True, dropout=0.0)
    return _step(net, torch.randn(2, 5, 16), lambda out: out.square().mean())


def _step(net, inputs, loss_of):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        # Gradients go within the step that made them: of others torch's reporter does not know the size.
        with torch.profiler.record_function("forward"):
            loss = loss_of(net(inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


STEPS = {"conv": conv_step, "transformer": transformer_step}
