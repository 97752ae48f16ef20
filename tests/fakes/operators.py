# SPDX-License-Identifier: Apache-2.0
"""A recording with operators, memory, call stacks and a start/end range, whose every number is known."""

from __future__ import annotations

from typing import Any

from fakes.gscope import NONE
from fakes.recordings import make_trace
from gpuscope._core import Flag
from gpuscope.trace import Trace

REGION, OP, RANGE, MODULE = 0, 1, 2, 3
ENGINE = "autograd::engine::evaluate_function: "

# row: name, kind, parent, start us, length us, sequence, shapes, forward, stack
ROWS: list[tuple[Any, ...]] = [
    ("ProfilerStep#3", REGION, NONE, 0, 100, -1, None, NONE, NONE),
    ("Linear", MODULE, 0, 2, 30, -1, None, NONE, NONE),
    ("aten::linear", OP, 1, 4, 20, 8, "[[2, 3], [4, 3], [4]]", NONE, 1),
    ("aten::addmm", OP, 2, 6, 10, 8, "[[4], [2, 3], [3, 4], [], []]", NONE, 1),
    (ENGINE + "AddmmBackward0", OP, 0, 40, 30, 8, None, NONE, NONE),
    ("AddmmBackward0", OP, 4, 42, 25, 8, "[[2, 4]]", 3, NONE),
    ("aten::mm", OP, 5, 44, 10, -1, "[[4, 2], [2, 3]]", NONE, NONE),
    ("aten::mm", OP, 5, 55, 10, -1, "[[2, 4], [4, 3]]", NONE, NONE),
    ("Optimizer.step#SGD.step", RANGE, 0, 75, 20, -1, None, NONE, NONE),
    ("prefetch", RANGE, NONE, 1, 500, -1, None, NONE, NONE),
    ("ProfilerStep#4", REGION, NONE, 100, 50, -1, None, NONE, NONE),
]
# time us, bytes, region, ordinal, allocated
MEMORY = [
    (7, 64, 3, 0, 1064),
    (45, 96, 6, 0, 1160),
    (46, -64, 4, 0, 1096),
    (76, 4, 8, NONE, 0),
    (200, -96, NONE, 0, 1000),
    (201, -4, NONE, NONE, 0),
]
# parent, function, file, line: rows 0 main, 1 forward called by main
STACKS = [(NONE, "main", "train.py", 40), (0, "forward", "model.py", 12)]
SPELLED = ("model.py(12): forward", "train.py(40): main")


def training_step(**info: str) -> Trace:
    """Two steps: the first of a module with one linear layer forward and backward, and a range beside all of it."""
    names, kinds, parents, starts, lengths, sequences, shapes, forwards, stacks = (
        list(c) for c in zip(*ROWS, strict=True)
    )
    paths: dict[tuple[Any, ...], int] = {}
    path_of: list[int] = []
    for name, kind, parent in zip(names, kinds, parents, strict=True):
        path_of.append(paths.setdefault((name, path_of[parent] if parent != NONE else NONE, kind), len(paths)))
    times, sizes, regions, ordinals, allocated = (list(column) for column in zip(*MEMORY, strict=True))
    known = [row for row in range(len(ROWS)) if sequences[row] >= 0 or shapes[row] or stacks[row] != NONE]
    texts = ["", *(text for text in dict.fromkeys(shapes) if text)]
    return make_trace(
        {
            "path": {
                "name": [name for name, _, _ in paths],
                "parent": [parent for _, parent, _ in paths],
                "kind": [kind for _, _, kind in paths],
            },
            "thread": {"system_id": [100]},
            "region": {
                "start_ns": [1_000_000 + 1000 * start for start in starts],
                "duration_ns": [1000 * length for length in lengths],
                "parent": parents,
                "path": path_of,
                "flags": [(Flag.ASYNC | Flag.OPEN) if name == "prefetch" else 0 for name in names],
            },
            "detail": {
                "region": known,
                "sequence": [sequences[row] for row in known],
                "shapes": [texts.index(shapes[row]) if shapes[row] else NONE for row in known],
                "forward": [forwards[row] for row in known],
                "stack": [stacks[row] for row in known],
            },
            "stack": dict(
                zip(("parent", "function", "file", "line"), map(list, zip(*STACKS, strict=True)), strict=True)
            ),
            "variant": {"name": ["gemm"]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "kernel": {
                "start_ns": [1_009_000, 1_048_000, 1_058_000],
                "duration_ns": [5_000, 3_000, 4_000],
                "region": [3, 6, 7],
            },
            "allocation": {
                "start_ns": [1_000_000 + 1000 * time for time in times],
                "bytes": sizes,
                "address": [0x1000 + abs(size) for size in sizes],
                "region": regions,
                "ordinal": ordinals,
                "allocated_bytes": allocated,
                "reserved_bytes": [4096 if ordinal != NONE else 0 for ordinal in ordinals],
            },
        },
        strings=texts,
        info={"session.start_ns": "1000000", "session.stop_ns": "2000000", "session.tier": "cupti", **info},
    )
