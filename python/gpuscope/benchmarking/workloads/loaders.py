# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader: recognised without importing torch, rebuilt with another count of workers, shut down."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ANYWAY = ("pin_memory", "drop_last", "collate_fn", "worker_init_fn", "generator", "in_order")
_OF_WORKERS = ("timeout", "multiprocessing_context")


def is_torch_loader(loader: object) -> bool:
    """Whether it is a torch.utils.data.DataLoader."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def rebuilt(loader: Any, workers: int) -> Any:
    """The same loader with so many workers, which outlive an epoch."""
    import torch

    options = {name: getattr(loader, name) for name in _ANYWAY if hasattr(loader, name)}
    if loader.pin_memory and getattr(loader, "pin_memory_device", ""):
        options["pin_memory_device"] = loader.pin_memory_device
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):  # takes no samplers
        options["batch_size"] = loader.batch_size
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = loader.batch_sampler
        del options["drop_last"]  # the sampler's
    else:
        options |= {"batch_size": None, "sampler": loader.sampler}
    if workers:
        options |= {name: getattr(loader, name) for name in _OF_WORKERS}
        options |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": True}
    with many_workers():
        return torch.utils.data.DataLoader(loader.dataset, num_workers=workers, **options)


@contextmanager
def many_workers() -> Iterator[None]:
    """Keeps torch from warning of more workers than cores, where the result says it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def shut_down(iterator: object) -> None:
    """Ends the workers behind a loader's iterator, where it has any, and waits for them."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def cpu_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def uses_cuda() -> bool:
    """Whether torch is imported and has a GPU."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())
