# SPDX-License-Identifier: Apache-2.0
"""The call tree as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.analysis.table import format_time

if TYPE_CHECKING:  # the tree prints itself with this module
    from gpuscope.analysis.tree import Node

NS_PER_US = 1e3
GAP = "  "


def render(root: Node, has_device: bool, max_depth: int | None, min_percent: float, width: int) -> str:
    """One line for each node below the root, names left, numbers in aligned columns."""
    named = list(_lines(root, max_depth, min_percent))
    cells = [_headings(has_device), *(_cells(node, has_device) if node else [] for _, node in named)]
    count = len(cells[0])
    widths = [max(len(row[column]) for row in cells if row) for column in range(count)]
    name_width = width - sum(widths) - len(GAP) * count
    name_width = min(name_width, max([len("Name"), *(len(name) for name, _ in named)]))
    lines = []
    for name, row in zip(["Name", *(name for name, _ in named)], cells, strict=True):
        shown = name if len(name) <= name_width else name[: name_width - 1] + "…"
        numbers = "".join(f"{GAP}{cell:>{size}}" for cell, size in zip(row, widths, strict=bool(row)))
        lines.append(f"{shown:<{name_width}}{numbers}".rstrip())
    return "\n".join(lines) + "\n"


def _lines(root: Node, max_depth: int | None, min_percent: float) -> list[tuple[str, Node | None]]:
    """The nodes to show, each with its name behind the branches of the tree; None where some are left out."""
    result: list[tuple[str, Node | None]] = []
    stack: list[tuple[str, str, Node | str]] = [("", "", root)]  # the branches before the name, and before its children
    depth_of = {id(root): 0}
    while stack:
        branch, indent, node = stack.pop()
        if isinstance(node, str):
            result.append((branch + node, None))
            continue
        if node is not root:
            result.append((branch + _title(node), node))
        depth = depth_of[id(node)]
        if max_depth is not None and depth >= max_depth:
            continue
        shown: list[Node | str] = [child for child in node.children if _share(child, root) >= min_percent]
        if hidden := len(node.children) - len(shown):
            shown.append(f"({hidden} below {min_percent:g} %)")
        for index, child in reversed(list(enumerate(shown))):
            last = index == len(shown) - 1
            tip, rest = ("", "") if node is root else ("└─ ", "   ") if last else ("├─ ", "│  ")
            stack.append((indent + tip, indent + rest, child))
            depth_of[id(child)] = depth + 1
    return result


def _title(node: Node) -> str:
    """The name; with a mark where it does not tell that this is a module or a library's range."""
    mark = {"module": "module ", "range": "range "}.get(node.kind, "")
    return mark + node.name.replace("\n", " ")


def _share(node: Node, root: Node) -> float:
    """The node's share of the recording's GPU or CPU time, whichever is larger, in percent."""
    device = 100.0 * node.device_ns / root.device_ns if root.device_ns else 0.0
    cpu = 100.0 * node.cpu_ns / root.cpu_ns if root.cpu_ns else 0.0
    return max(device, cpu)


def _headings(has_device: bool) -> list[str]:
    return ["Count", *(["GPU total", "GPU self"] if has_device else []), "CPU total", "CPU self", "p50"]


def _cells(node: Node, has_device: bool) -> list[str]:
    device = [node.device_ns, node.self_device_ns] if has_device else []
    times = [*device, node.cpu_ns, node.self_cpu_ns, node.p50_ns]
    return [f"{node.count:,}", *(format_time(time / NS_PER_US) if time else "-" for time in times)]
