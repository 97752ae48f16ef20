# SPDX-License-Identifier: Apache-2.0
"""Call stacks of the Python program, spelled as torch.profiler spells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope.trace import Trace


def stack_texts(trace: Trace) -> list[tuple[str, ...]]:
    """The frames of each row of ``trace.stacks``, innermost first: ``("model.py(12): forward", "train.py(40): main")``.

    The line is the one that was being executed. ``trace.details.stack`` and ``trace.call_stacks.stack`` are indices
    into the list; where they are `gpuscope.trace.NONE` there was no Python frame.
    """
    stacks = trace.stacks
    strings: dict[int, str] = {}

    def text(string_id: int) -> str:
        if string_id not in strings:
            strings[string_id] = trace.string(string_id)
        return strings[string_id]

    texts: list[tuple[str, ...]] = []
    rows = zip(*(stacks[column].tolist() for column in ("parent", "function", "file", "line")), strict=True)
    for row, (parent, function, file, line) in enumerate(rows):
        callers = texts[parent] if parent < row else ()  # a caller's row stands before its callees'
        texts.append((f"{text(file)}({line}): {text(function)}", *callers))
    return texts
