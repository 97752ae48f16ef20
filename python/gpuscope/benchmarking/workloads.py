# SPDX-License-Identifier: Apache-2.0
"""Batches of loaders, calls of models, and times on a model's stream, for the measurements of models."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuscope import _core, streams
from gpuscope.conditions import type_name
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks import torch
from gpuscope.streams import Stream
from gpuscope.text import brief

TARGETS = ("target", "targets", "label", "labels", "y")
INFERENCE = "inference: eval mode, no gradients"
"""The mode of a module that is not trained."""


def check_batches(loader: object) -> None:
    """Raises InvalidArgument unless it can be iterated over, and for datasets and arrays, which give samples."""
    iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if not iterable or getattr(loader, "ndim", 1) == 0:  # NumPy's numbers pass for sequences
        raise InvalidArgument(f"loader is {brief(loader)}; accepted are a DataLoader and any other iterable of batches")
    if torch.is_dataset(loader) or (hasattr(loader, "shape") and hasattr(loader, "dtype")):
        name = type(loader).__name__
        raise InvalidArgument(f"loader is a {name}, which gives single samples; accepted is a DataLoader of them")


def count_batches(batches: int) -> str:
    """The text "1 batch" or "2 batches"."""
    return f"{batches} batch{'' if batches == 1 else 'es'}"


def cut_short(warnings: Sequence[str]) -> tuple[list[str], list[str]]:
    """The warnings that a measurement ended early, which texts begin with, and the other warnings."""
    early = [text for text in warnings if text.startswith(("interrupted after", "ended by an error after"))]
    return early, [text for text in warnings if text not in early]


def batch_size(batch: Any) -> int | None:
    """Samples in a batch: the first length found in it; None if nothing has a length.

    If lengths differ and the batch has only sequences of one length, as ``tuple(zip(*samples))``, that is the size.
    """
    lengths = list(_lengths(batch))
    columns = {len(each) if isinstance(each, (tuple, list)) else None for each in _parts(batch)}
    if len(set(lengths)) > 1 and len(columns) == 1 and None not in columns:
        return columns.pop()
    return lengths[0] if lengths else None


def _lengths(batch: Any) -> Iterator[int]:
    """First dimensions of arrays, and lengths of sequences of single values."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        yield from map(int, shape[:1])
        return
    nested = [each for each in _parts(batch) if hasattr(each, "shape") or isinstance(each, (tuple, list, Mapping))]
    for each in nested:
        yield from _lengths(each)
    if not nested and hasattr(batch, "__len__") and not isinstance(batch, (str, bytes, Mapping)):
        yield len(batch)


def _parts(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, (tuple, list)) else []


def describe(batch: Any, module: Any = None) -> dict[str, Any]:
    """The batch_size and dtype of `Conditions`, from a batch of any type and the module that takes it."""
    found: dict[str, Any] = {"batch_size": None, "dtype": None}
    with contextlib.suppress(Exception):  # attributes of a type that is not known
        found["batch_size"] = batch_size(batch)
    with contextlib.suppress(Exception):
        dtype = (torch.dtype_of(module) if torch.is_module(module) else None) or _dtype(batch)
        found["dtype"] = None if dtype is None else type_name(dtype)
    return found


def describe_call(call: Any) -> dict[str, Any]:
    """The same for a function or `functools.partial`, with a module's mode; only modules have batches."""
    function, inputs = call, []
    if isinstance(call, functools.partial):
        function, inputs = call.func, [*call.args, *call.keywords.values()]
    module: Any = function if torch.is_module(function) else getattr(function, "__self__", None)
    found = describe(inputs, module)
    if torch.is_module(module):
        return found | {"mode": "train" if module.training else "eval"}
    return {"dtype": found["dtype"]}


def _dtype(batch: Any) -> Any:
    if hasattr(batch, "shape"):
        return getattr(batch, "dtype", None)
    return next(filter(None, map(_dtype, _parts(batch))), None)


def to_device(batch: Any, device: Any) -> Any:
    """The batch with every tensor on `device`; pinned tensors are copied without waiting."""
    if hasattr(batch, "to") and hasattr(batch, "device"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(each, device) for each in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(each, device) for each in batch)
    return batch


def call(model: Any, inputs: Any, otherwise: str) -> Any:
    """Calls a model: a tuple or list holds positional arguments, a mapping keywords, else it is the only argument.

    If the arguments do not fit, the exception has a note of how they were passed; `otherwise` is the advice in it.
    """
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
    except TypeError as error:
        if "argument" in str(error) and hasattr(error, "add_note"):  # of Python 3.11
            passed = f"{len(inputs)} positional arguments" if isinstance(inputs, (tuple, list)) else "one argument"
            if isinstance(inputs, Mapping):
                passed = f"keywords: {', '.join(map(str, inputs))}"
            error.add_note(f"the input was passed as {passed}; {otherwise}")
        raise


def split_target(batch: Any) -> tuple[Any, Any]:
    """Inputs and target: the last of a sequence, or a mapping's value by one of `TARGETS`; else None."""
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if name in batch), None)
        return {key: value for key, value in batch.items() if key != name}, batch[name] if name else None
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[:-1], batch[-1]
    return batch, None


def with_target(batch: Any) -> tuple[Any, Any]:
    """Inputs and target; raises InvalidArgument when there is no target."""
    inputs, target = split_target(batch)
    if target is None:
        what = f"a mapping of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        names = ", ".join(TARGETS)
        raise InvalidArgument(
            f"loader gives {what}; accepted with a criterion are (data, target) and mappings with one of {names}"
        )
    return inputs, target


class StreamMarks:
    """Measures times on one stream by CUDA events."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def mark(self, again: _core.Event | None = None) -> _core.Event:
        """An event recorded after all work submitted to the stream; `again` is an event to reuse."""
        event = again or _core.Event(self.stream.device)
        event.record(self.stream.handle)
        return event

    def passed(self, mark: _core.Event) -> bool:
        """Whether the stream has reached the mark; does not wait."""
        return bool(mark.query())

    def seconds(self, begin: _core.Event, end: _core.Event) -> float:
        """Seconds between two marks that the stream has passed."""
        return begin.elapsed_time(end) / 1000

    def synchronize(self) -> None:
        """Waits for all work on the device, whatever its stream."""
        _core.synchronize(self.stream.device)


def marks_of_device(device: str, ordinal: int | None, stream: object = None) -> StreamMarks | None:
    """Marks for a model on a torch device, as "cuda"; None if that is no GPU."""
    return StreamMarks(streams.resolve(stream, ordinal)) if device == "cuda" else None


def marks_of_process(stream: object = None, device: int | None = None) -> StreamMarks | None:
    """Marks for any callable; None without a GPU, or if nothing uses one and no argument is given."""
    if stream is None and device is None and not _uses_a_gpu():
        return None
    return StreamMarks(streams.resolve(stream, device)) if _core.environment()["devices"] else None


def _uses_a_gpu() -> bool:
    return torch.initialized() is not None or any(
        name in sys.modules for name in ("cupy", "jax", "numba.cuda", "cuda.bindings", "tensorflow")
    )
