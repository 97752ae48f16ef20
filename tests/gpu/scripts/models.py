# SPDX-License-Identifier: Apache-2.0
"""Training steps for the tests: small, without weights to fetch, the same work each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Steps = Callable[[int], None]
"""Trains so many steps and waits for the device."""


def resnet50(device: str) -> Steps:
    import torchvision

    model = torchvision.models.resnet50(num_classes=10).to(device)
    images = torch.randn(8, 3, 64, 64, device=device)
    labels = torch.randint(0, 10, (8,), device=device)
    return _training(model, lambda: torch.nn.functional.cross_entropy(model(images), labels), device)


def gpt2(device: str) -> Steps:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=128, n_head=4, vocab_size=1000, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).to(device)
    words = torch.randint(0, 1000, (4, 64), device=device)
    return _training(model, lambda: model(input_ids=words, labels=words).loss, device)


class Samples(torch.utils.data.Dataset[Any]):
    """Rows of 32 numbers."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((32,), index / 32), torch.tensor(index % 4)


def mixed(device: str) -> Steps:
    """Two workers load the data; bfloat16 with a scaler; gradients of two batches are accumulated."""
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8, num_workers=2)

    def steps(count: int) -> None:
        for _ in range(count):
            for number, (rows, labels) in enumerate(loader):
                with torch.autocast(device, dtype=torch.bfloat16):
                    output = model(rows.to(device))
                    loss = torch.nn.functional.cross_entropy(output.float(), labels.to(device)) / 2
                scaler.scale(loss).backward()
                if number % 2 == 1:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        _wait(device)

    return steps


MODELS: dict[str, Callable[[str], Steps]] = {"resnet50": resnet50, "gpt2": gpt2, "mixed": mixed}


def _training(model: torch.nn.Module, forward: Callable[[], torch.Tensor], device: str) -> Steps:
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(count: int) -> None:
        for _ in range(count):
            loss = forward()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        _wait(device)

    return steps


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
