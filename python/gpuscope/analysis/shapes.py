# SPDX-License-Identifier: Apache-2.0
"""The shapes of an operator's inputs, from the text that torch writes them as."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

Shapes = tuple[Any, ...]
"""One entry an input: sizes as a tuple, () for scalars and what is no tensor, a tuple of shapes for a tensor list."""


@lru_cache(maxsize=1 << 14)
def parse_shapes(text: str) -> Shapes:
    """``"[[2, 3], []]"`` as ``((2, 3), ())``; () of a text that is no list of shapes."""
    try:
        parsed = _frozen(json.loads(text))
    except (ValueError, RecursionError):
        return ()
    return parsed if isinstance(parsed, tuple) else ()


def flat_shapes(shapes: Shapes) -> list[list[int]]:
    """As torch.profiler's ``input_shapes``: tensor lists read as ``[]``."""
    return [list(sizes) if is_shape(sizes) else [] for sizes in shapes]


def nested_shapes(shapes: Shapes) -> list[Any]:
    """As torch.profiler's ``structured_input_shapes``: a tensor list is a list of shapes."""
    return [nested_shapes(entry) if isinstance(entry, tuple) else entry for entry in shapes]


def is_shape(entry: object) -> bool:
    """It is one tensor's shape, rather than a list of shapes or no shape at all."""
    return isinstance(entry, tuple) and all(type(size) is int and size >= 0 for size in entry)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value
