# SPDX-License-Identifier: Apache-2.0
"""The same read out of torch.profiler's results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

OWN_ROW = "Activity Buffer Request"  # the profiler's own, to which it may give any kernel


def nodes(prof: Any) -> Iterator[Any]:
    """Everything in torch's own tree of events, which holds what its lists leave out."""
    stack = list(prof.profiler.kineto_results.experimental_event_tree())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children)


def shapes(inputs: list[Any]) -> list[list[int]]:
    """The sizes of tensors; an empty list for whatever is no tensor, as are lists of tensors."""
    return [list(value.sizes) if hasattr(value, "sizes") else [] for value in inputs]


def operators(prof: Any) -> Counter[tuple[str, str]]:
    """Operators and what was named with record_function, by name and shapes.

    Read from torch's tree: its lists leave out an operator that is alone in one of the same name. Rows of the CUDA
    runtime, of allocations and of Python calls are no operators.
    """
    found: Counter[tuple[str, str]] = Counter()
    for node in nodes(prof):
        if node.tag.name == "TorchOp":
            found[node.name, json.dumps(shapes(node.extra_fields.inputs))] += 1
    return found


def is_gpu_work(event: Any) -> bool:
    """A kernel, copy or fill; torch also lists the shadow that a record_function throws on the GPU."""
    return event.device_type.name == "CUDA" and not event.is_user_annotation


def device_us(prof: Any) -> float:
    """GPU time in us."""
    return sum(event.self_device_time_total for event in prof.events() if is_gpu_work(event))


def work_by_operator(prof: Any) -> Counter[str]:
    """Kernels, copies and fills, by the operator they were launched in."""
    found: Counter[str] = Counter()
    for event in prof.events():
        if event.device_type.name == "CPU" and not event.is_user_annotation and event.name != OWN_ROW:
            found[event.name] += len(event.kernels)
    return +found


def device_us_by_operator(prof: Any) -> dict[str, float]:
    """GPU time of the same in us."""
    spent: Counter[str] = Counter()
    for event in prof.events():
        if event.device_type.name == "CPU" and not event.is_user_annotation:
            spent[event.name] += sum(kernel.duration for kernel in event.kernels)
    return dict(+spent)
