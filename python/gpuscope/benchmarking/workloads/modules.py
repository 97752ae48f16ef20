# SPDX-License-Identifier: Apache-2.0
"""torch modules: recognised without importing torch, asked for their device, put into a mode for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def is_module(value: object) -> bool:
    """Whether it is a torch.nn.Module."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and isinstance(value, torch.nn.Module)


def device_of(module: Any) -> Any:
    """The torch.device of a module's first parameter or buffer; None when it has neither."""
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            return tensor.device
    return None


@contextmanager
def in_mode(module: Any, training: bool) -> Iterator[None]:
    """Training or evaluation; afterwards each submodule is back in the mode it had, be it its parent's or not.

    Evaluation also switches gradients off, by ``no_grad``: what a model keeps from ``inference_mode`` could not be
    trained with afterwards.
    """
    import torch

    before = [(each, each.training) for each in module.modules()]
    module.train(training)
    try:
        with torch.set_grad_enabled(training):
            yield
    finally:
        for each, was in before:
            each.training = was
