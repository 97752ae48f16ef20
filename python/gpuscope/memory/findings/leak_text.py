# SPDX-License-Identifier: Apache-2.0
"""Leaks in words, for a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from gpuscope.memory.events import Frame
from gpuscope.memory.findings.growth import FEWEST_STEPS
from gpuscope.memory.places import NO_PYTHON_STACK, is_own, line_text
from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.findings.leak_report import Leak, LeakReport

WIDTH = 100
_MOST_LEAKS = 5
_MOST_FRAMES = 4
_MOST_PLACES = 3
_INDENT = "   "


def report_text(report: LeakReport) -> str:
    """The verdict, then each leak, then what limits the findings."""
    lines = wrapped(_verdict(report))
    for number, leak in enumerate(report.leaks[:_MOST_LEAKS], 1):
        first, *others = leak_text(leak)
        lines += ["", f"{number}. {first}", *(_INDENT + line for line in others)]
    left_out = len(report.leaks) - _MOST_LEAKS
    if left_out > 0:
        smaller = size_text(sum(leak.bytes_per_step for leak in report.leaks[_MOST_LEAKS:]))
        lines += ["", f"and {left_out} smaller, {smaller} a step together"]
    if report.interrupted:
        lines += wrapped(f"interrupted: the program was stopped after {report.steps} steps")
    if report.leaks:
        lines += ["", f"what fills up only after {report.steps} steps would look the same: more steps tell"]
    for note in report.notes:
        lines += wrapped(f"note: {note}")
    return "\n".join(lines)


def _verdict(report: LeakReport) -> str:
    seen = f"in {report.steps} step{'' if report.steps == 1 else 's'}"
    if report.steps < FEWEST_STEPS:
        return f"leaks cannot be told {seen}: it takes at least {FEWEST_STEPS}"
    if not report.events:
        return f"leaks cannot be told {seen}: not one allocation was seen"
    judged = f"{seen}, the first {report.warmup} of them warm-up"
    if not report.leaks:
        return f"no leaks {judged}: nothing grew step after step ({report.events:,} allocations and releases)"
    count = f"{len(report)} leak{'' if len(report) == 1 else 's'}"
    return f"{count} {judged}: {size_text(report.bytes_per_step)} a step"


def leak_text(leak: Leak) -> list[str]:
    """Where, how much, how sure, who holds it, and the stack; lines without indent."""
    main = leak.growths[0]
    what = f"{size_text(leak.bytes)} in {leak.pieces:,} pieces" if leak.pieces else _remade(leak)
    lines = [f"{line_text(leak.place, NO_PYTHON_STACK)}: {size_text(leak.bytes_per_step)} a step"]
    lines += wrapped(f"{what}; it grew in {main.grew} of the {main.steps} steps after warm-up{_where(leak)}")
    if leak.steps_left is not None and leak.free is not None:
        lines += wrapped(f"at this rate the GPU's free {size_text(leak.free)} last {leak.steps_left:,} steps")
    lines += _held(leak)
    lines += [f"{'allocated at' if not row else '':<12} {text}" for row, text in enumerate(_frames(leak.stack))]
    lines += _others(leak)
    return lines


def _remade(leak: Leak) -> str:
    return f"one piece made anew and larger each time, {size_text(leak.bytes)} by now"


def _where(leak: Leak) -> str:
    place = "host memory" if leak.device < 0 else f"GPU {leak.device}"
    return f" ({place}, {leak.growths[0].source})"


def _held(leak: Leak) -> list[str]:
    if leak.cycles:
        return wrapped(
            "held by reference cycles only: freed when Python's garbage collector runs, which GPU memory does not "
            "make it do; break the cycle, or call gc.collect() now and then"
        )
    holder = leak.holder
    if holder is None:
        return wrapped("who holds it was not found among Python's objects")
    lines = wrapped(f"held by {holder}")
    if not holder.advice:
        return lines
    lines += wrapped(holder.advice)
    if holder.entries is not None and holder.kind == "list":
        name = holder.name.rpartition(".")[2] or "losses"
        lines += [f"  {name}.append(loss)         # keeps the graph of every step"]
        lines += [f"  {name}.append(loss.item())  # keeps a number"]
    return lines


def _others(leak: Leak) -> list[str]:
    others = leak.growths[1:]
    if not others:
        return []
    shown = [
        f"{line_text(one.place, NO_PYTHON_STACK)} ({size_text(one.bytes_per_step)} a step)"
        for one in others[:_MOST_PLACES]
    ]
    more = len(others) - len(shown)
    places = "another place grows" if len(others) == 1 else f"{len(others)} other places grow"
    return wrapped(f"{places} with it: {', '.join(shown)}{f' and {more} more' if more else ''}")


def _frames(stack: tuple[Frame, ...]) -> list[str]:
    own = [frame for frame in stack if is_own(frame.file)] or list(stack)
    return [_cut(str(frame), WIDTH - len(_INDENT) - 13) for frame in own[:_MOST_FRAMES]]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


def wrapped(text: str) -> list[str]:
    """A sentence on lines that fit, those after the first indented."""
    return textwrap.wrap(text, WIDTH - len(_INDENT), subsequent_indent="  ", break_long_words=False)
