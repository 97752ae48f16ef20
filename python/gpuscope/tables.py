# SPDX-License-Identifier: Apache-2.0
"""Tables of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpuscope.text import columns_of, one_line, padded, shorten

GAP = "  "
"""Between two columns."""


def align_columns(rows: Sequence[Sequence[str]], *, left: int | Collection[int] = 0, rule: bool = False) -> list[str]:
    """Lines of a table, each column as wide as its longest cell. Control characters are shown.

    Args:
        rows: the cells of each row.
        left: the columns that are aligned on the left: their number from the first, or their indexes. Others are
            aligned on the right.
        rule: whether dashes follow the first row.
    """
    on_left = range(left) if isinstance(left, int) else left
    rows = [[*map(one_line, row)] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return GAP.join(padded(cell, width, left=column in on_left) for column, (cell, width) in cells).rstrip()

    lines = [*map(line, rows)]
    return [lines[0], GAP.join("-" * width for width in widths), *lines[1:]] if rule else lines


def fit_columns(
    rows: Sequence[tuple[str, Sequence[str]]], width: int, *, least: int = 0, droppable: Sequence[int] = ()
) -> tuple[list[str], int]:
    """Lines of names and their cells, at most `width` columns wide, and the number of dropped columns.

    Names are cut in the middle. Cells are aligned on the right; rows may have none.

    Args:
        rows: name and cells of each row, the headings first.
        width: of the terminal.
        least: columns that names get before cells are dropped.
        droppable: indexes of cells, the first to drop first.
    """
    widths = {at: max(columns_of(cells[at]) for _, cells in rows if cells) for at in range(len(rows[0][1]))}

    def room() -> int:
        return width - sum(widths.values()) - len(GAP) * len(widths)

    for at in droppable:
        if room() < least:
            del widths[at]
    size = min(room(), max(columns_of(name) for name, _ in rows))
    lines = []
    for name, cells in rows:
        numbers = "".join(GAP + padded(cells[at], most, left=False) for at, most in widths.items()) if cells else ""
        lines.append((padded(shorten(name, size), size) + numbers).rstrip())
    return lines, len(rows[0][1]) - len(widths)
