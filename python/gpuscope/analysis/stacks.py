# SPDX-License-Identifier: Apache-2.0
"""Call paths as the folded lines that flame graphs are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.analysis.tree import tree
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuscope.analysis.tree import Node
    from gpuscope.trace import Trace


def _cpu_ns(node: Node) -> int:
    return node.self_cpu_ns


def _device_ns(node: Node) -> int:
    # A region's own GPU time is that of its kernels; only what they do not explain is its own here.
    return node.device_ns - sum(child.device_ns for child in node.children)


_METRICS: dict[str, Callable[[Node], int]] = {
    "self_cpu_time_total": _cpu_ns,
    "self_device_time_total": _device_ns,
    "self_cuda_time_total": _device_ns,
}


def folded_stacks(trace: Trace, metric: str = "self_cpu_time_total") -> list[str]:
    """One line a call path, ``outer;inner;kernel 123``: its own time in us, rounded; what rounds to 0 is left out.

    Raises:
        InvalidArgument: the metric is unknown.
    """
    if metric not in _METRICS:
        raise InvalidArgument(f"metric is {metric!r}; accepted are {', '.join(_METRICS)}")
    return [f"{path} {time_us}" for path, time_us in _fold(tree(trace).root, _METRICS[metric])]


def _fold(root: Node, own_ns: Callable[[Node], int]) -> Iterator[tuple[str, int]]:
    stack = [(node, _frame(node)) for node in reversed(root.children)]
    while stack:
        node, path = stack.pop()
        time_us = (own_ns(node) + 500) // 1000
        if time_us > 0:
            yield path, time_us
        stack += [(child, f"{path};{_frame(child)}") for child in reversed(node.children)]


def _frame(node: Node) -> str:
    # The format's own separators cannot be part of a name.
    return " ".join(node.name.replace(";", ":").split()) or "?"
