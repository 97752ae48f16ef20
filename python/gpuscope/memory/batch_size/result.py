# SPDX-License-Identifier: Apache-2.0
"""The largest batch size that fits: a number that knows how it was found."""

from __future__ import annotations

from typing import Any, Literal

from gpuscope.memory.batch_size.search import line
from gpuscope.memory.batch_size.tries import Try
from gpuscope.memory.sizes import size_text

LimitedBy = Literal["memory", "limit", "interrupted"]

_WHY_LESS = "a peak varies from run to run, memory fragments over a long one, and other shapes take more"


class MaxBatchSize(int):
    """The largest batch size that fits, as an int; 0 when none does.

    Attributes:
        limited_by: "memory"; "limit", when all sizes up to the limit fit; "interrupted" by Ctrl-C, when a larger one
            may fit.
        why: what stands in the way of the next size, in words.
        training: whether whole training steps were tried, not only the forward.
        margin: the share that `recommended` leaves free.
        multiple_of: sizes that are no multiple of it were not tried.
        tries: the sizes tried, in that order.
        room: bytes that a peak could come to at the end; None when not known.
    """

    limited_by: LimitedBy
    why: str
    training: bool
    margin: float
    multiple_of: int
    tries: tuple[Try, ...]
    room: int | None

    def __new__(
        cls,
        value: int,
        *,
        limited_by: LimitedBy = "memory",
        why: str = "",
        training: bool = False,
        margin: float = 0.1,
        multiple_of: int = 1,
        tries: tuple[Try, ...] = (),
        room: int | None = None,
    ) -> MaxBatchSize:
        """See the attributes of the class."""
        self = super().__new__(cls, value)
        self.limited_by = limited_by
        self.why = why
        self.training = training
        self.margin = margin
        self.multiple_of = multiple_of
        self.tries = tries
        self.room = room
        return self

    @property
    def recommended(self) -> int:
        """The size to work with: `margin` less, as a multiple of `multiple_of`, at least one that fits.

        A peak varies from run to run, memory fragments over a long one, and other shapes take more. The limit itself,
        where memory for the margin is left at it.
        """
        peak = next((each.peak for each in self.tries if each.size == self and each.fits), None)
        spare = peak is not None and self.room is not None and peak <= (1 - self.margin) * self.room
        if self.limited_by == "limit" and spare:
            return int(self)
        less = int(int(self) * (1 - self.margin)) // self.multiple_of * self.multiple_of
        return max(less, min(int(self), self.multiple_of))

    @property
    def bytes_per_sample(self) -> int | None:
        """Bytes that one more sample takes, by a line through the peaks; None of fewer than two that fit."""
        found = self._line()
        return None if found is None else max(0, round(found[1]))

    @property
    def fixed_bytes(self) -> int | None:
        """Bytes in use whatever the batch size, as parameters; None of fewer than two tries that fit."""
        found = self._line()
        return None if found is None else max(0, round(found[0]))

    def report(self) -> str:
        """What was found, what is recommended and why, and every try, a line each."""
        what = "training" if self.training else "batch"
        lines = [f"largest {what} size that fits: {int(self)} ({self.why})"]
        if self:
            less = _WHY_LESS if self.recommended < self else f"{100 * self.margin:.3g} % of the memory are left at it"
            lines.append(f"  recommended: {self.recommended} ({less})")
        if self.bytes_per_sample is not None and self.fixed_bytes is not None:
            lines.append(f"  a sample takes {size_text(self.bytes_per_sample)}, all else {size_text(self.fixed_bytes)}")
        return "\n".join([*lines, *(f"  {each}" for each in self.tries)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; sizes in bytes, times in seconds."""
        names = ("limited_by", "why", "training", "margin", "multiple_of", "room")
        facts = {name: getattr(self, name) for name in (*names, "recommended", "bytes_per_sample", "fixed_bytes")}
        return {"value": int(self), **facts, "tries": [vars(each) for each in self.tries]}

    def _line(self) -> tuple[float, float] | None:
        return line((each.size, each.peak) for each in self.tries if each.fits and each.peak is not None)

    def __str__(self) -> str:
        return int.__repr__(self)

    def __repr__(self) -> str:
        return f"<MaxBatchSize {int(self)}, limited by {self.limited_by}, {len(self.tries)} tries>"
