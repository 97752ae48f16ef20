# SPDX-License-Identifier: Apache-2.0
"""What `track_memory` measured: the memory of each stage of a program, as a table, with hints on the highest peak.

The hints go by what a stage takes and gives back, never by its name. The forward pass takes activations, and the
backward pass gives them back while it takes gradients; these stay until a stage frees them that takes nothing itself;
an optimizer takes its state the first time that it runs, and never again.

On the host they go by the resident memory of a program that uses torch. Its peak is known only if it is a new record,
and a first call also loads libraries: hints name both possibilities then.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.devices import HOST
from gpuscope.results import Result, import_pandas
from gpuscope.text import one_line, shown
from gpuscope.units import align_columns, format_bytes

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

_HEADING = ("Stage", "Count", "Allocated", "Reserved", "Peak", "Change", "Host")
_LONGEST_NAME = 40
_MARK = "  <- highest peak"

# Shares of the highest peak: worth a sentence, worth one of what is kept for ever, and more than noise.
_LARGE = 0.2
_LASTING = 0.1
_SMALL = 0.05
_SHARE_GIVEN_BACK = 0.25
_MOST = 0.8  # of what several stages take: by one of them
_LESS_FOR_ACTIVATIONS = "gradient checkpointing or a smaller batch would lower the peak."
_LESS_FOR_GRADIENTS = "mixed precision makes them smaller, and zero_grad() before the next forward frees them."
# Reserved over the peak of allocated: torch reserves in segments of up to 20 MiB, which explains less than this.
_FAR_ABOVE = 1.25
_PIECES = 64 << 20


@dataclass(frozen=True)
class MemoryStage:
    """The memory of a device over one stage of a program, or over all the times that it was passed. Sizes are bytes.

    Attributes:
        name: as given to `track_memory`.
        device: ordinal of the GPU; -1 where there is no GPU and the host's resident memory stands in for it.
        count: times that it was passed; what is not said to be of all of them is of the last.
        allocated_bytes: in use by the program at its end.
        reserved_bytes: held by the allocators at its end; None on the host.
        before_bytes: in use at its beginning; None for the first statement, which has no stage before it.
        delta_bytes: `allocated_bytes` less `before_bytes`.
        first_delta_bytes: likewise, of the first time.
        peak_bytes: the highest use within it, of all times. Of several libraries it is the sum of each one's highest.
        peak_at_most_bytes: more than this was not in use; equals `peak_bytes` where that is exact. None: not known.
        host_resident_bytes: resident memory of the process on the host at its end.
        why: why figures of the GPU are missing; empty when none are.
        where: the line that took most of what allocators handed out within it and that lives at its end,
            "train.py:12 step"; "" where no memory history was recorded.
        where_bytes: how much that line took.
    """

    name: str
    device: int
    count: int
    allocated_bytes: int
    reserved_bytes: int | None
    before_bytes: int | None
    delta_bytes: int | None
    first_delta_bytes: int | None
    peak_bytes: int
    peak_at_most_bytes: int | None
    host_resident_bytes: int
    why: str = ""
    where: str = ""
    where_bytes: int = 0

    @property
    def on_gpu(self) -> bool:
        """Whether it is about a GPU's memory, not the host's."""
        return self.device != HOST

    @property
    def peak_is_exact(self) -> bool:
        """Whether `peak_bytes` is the peak; otherwise the peak was that or more, up to `peak_at_most_bytes`."""
        return self.peak_bytes == self.peak_at_most_bytes

    def merged(self, later: MemoryStage) -> MemoryStage:
        """This one and a later time that the stage was passed, as one."""
        at_most = None
        if self.peak_at_most_bytes is not None and later.peak_at_most_bytes is not None:
            at_most = max(self.peak_at_most_bytes, later.peak_at_most_bytes)
        return dataclasses.replace(
            later,
            count=self.count + later.count,
            first_delta_bytes=later.first_delta_bytes if self.first_delta_bytes is None else self.first_delta_bytes,
            peak_bytes=max(self.peak_bytes, later.peak_bytes),
            peak_at_most_bytes=at_most,
            why=later.why or self.why,
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dataclasses.asdict(self)

    @shown
    def __str__(self) -> str:
        return _line(self)


@dataclass(frozen=True)
class MemoryStages(Result):
    """All stages in the order of their first appearance; prints as a table.

    Attributes:
        stages: one of each name and device.
    """

    stages: tuple[MemoryStage, ...]

    @property
    def highest(self) -> MemoryStage | None:
        """The stage with the highest peak, one on a GPU where there is one; None when there are no stages."""
        return max(self.stages, key=lambda stage: (stage.on_gpu, stage.peak_bytes), default=None)

    @property
    def hints(self) -> tuple[str, ...]:
        """What the figures suggest to be behind the peak, and what could lower it; a sentence each.

        On the host they are about a program that uses torch, by its resident memory; () in other programs.
        """
        highest = self.highest
        if highest is None or not (highest.on_gpu or "torch" in sys.modules):
            return ()
        return _hints([stage for stage in self.stages if stage.device == highest.device])

    def to_dict(self) -> dict[str, Any]:
        """The stages as a list of dicts, the name of the highest (None without stages), and the hints."""
        return {
            "stages": [stage.to_dict() for stage in self.stages],
            "highest": self.highest.name if self.highest else None,
            "hints": list(self.hints),
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """The peak of each stage, in their order.

        Args:
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
        """
        from gpuscope import plots

        names = [f"{stage.name} ({'GPU ' + str(stage.device) if stage.on_gpu else 'host'})" for stage in self.stages]
        return plots.bars(names, [stage.peak_bytes for stage in self.stages], quantity="B", what="peak", ax=ax)

    def to_pandas(self) -> Any:
        """The stages as a DataFrame.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame([stage.to_dict() for stage in self.stages])

    def __repr__(self) -> str:
        highest = "" if self.highest is None else f', the highest peak {_peak(self.highest)} in "{self.highest.name}"'
        return f"<MemoryStages: {len(self.stages)} stage{'' if len(self.stages) == 1 else 's'}{highest}>"

    def __str__(self) -> str:
        return _table(self.stages, self.highest, self.hints)


def _line(stage: MemoryStage) -> str:
    """A stage in one line."""
    name = one_line(stage.name)
    change = "" if stage.delta_bytes is None else f" ({_change(stage.delta_bytes)})"
    peak = f"Peak: {_peak(stage):>10}"
    where = f", new from {_where(stage)}" if stage.where else ""
    if not stage.on_gpu:
        why = (" (no GPU)" if stage.why else "") + where
        return f"{name:30} - Host resident: {format_bytes(stage.allocated_bytes):>10}{change}, {peak}{why}"
    reserved = format_bytes(stage.reserved_bytes or 0)
    why = (f" ({stage.why})" if stage.why else "") + where
    return (
        f"{name:30} - Allocated: {format_bytes(stage.allocated_bytes):>10}{change}, "
        f"Reserved: {reserved:>10}, {peak}{why}"
    )


def _table(stages: Sequence[MemoryStage], highest: MemoryStage | None, hints: Sequence[str]) -> str:
    """All stages, the one with the highest peak marked, and the hints below."""
    if highest is None:
        return "no stage has been tracked yet"
    several = len({stage.device for stage in stages}) > 1
    rows = [_HEADING, *(_cells(stage, several) for stage in stages)]
    if any(stage.where for stage in stages):
        rows = [(*row, where) for row, where in zip(rows, ("New from", *map(_where, stages)), strict=True)]
    lines = align_columns(rows, left=1)
    rule = "-" * len(lines[0])
    at = 1 + next(at for at, stage in enumerate(stages) if stage is highest)
    lines[at] += _MARK
    closing = [f'The highest peak, {_peak(highest)}, is in "{highest.name}".', *hints]
    whys = dict.fromkeys(stage.why for stage in stages if stage.why)
    if not highest.on_gpu:
        closing.append("The figures are the resident memory of the process on the host: " + "; ".join(whys))
    else:
        closing += whys
    return "\n".join([lines[0], rule, *lines[1:], rule, *closing])


def _cells(stage: MemoryStage, several: bool) -> tuple[str, ...]:
    place = (f" (GPU {stage.device})" if stage.on_gpu else " (host)") if several else ""
    name = stage.name if len(stage.name) <= _LONGEST_NAME else stage.name[: _LONGEST_NAME - 3] + "..."
    return (
        name + place,
        str(stage.count),
        format_bytes(stage.allocated_bytes),
        "-" if stage.reserved_bytes is None else format_bytes(stage.reserved_bytes),
        _peak(stage),
        "-" if stage.delta_bytes is None else _change(stage.delta_bytes),
        format_bytes(stage.host_resident_bytes),
    )


def _where(stage: MemoryStage) -> str:
    return f"{stage.where} ({format_bytes(stage.where_bytes)})" if stage.where else "-"


def _peak(stage: MemoryStage) -> str:
    return ("" if stage.peak_is_exact else ">= ") + format_bytes(stage.peak_bytes)


def _change(delta: int) -> str:
    return format_bytes(delta, signed=True)


def _hints(stages: Sequence[MemoryStage]) -> tuple[str, ...]:
    """A sentence for each thing that stands out, of the stages of one device in their order."""
    highest = max(stage.peak_bytes for stage in stages)
    return (*_of_a_step(stages, highest), *_of_reserved(stages, highest))


def _of_a_step(stages: Sequence[MemoryStage], highest: int) -> list[str]:
    rounds = max(stage.count for stage in stages)
    step = [stage for stage in stages if stage.count == rounds and abs(stage.delta_bytes or 0) >= _SMALL * highest]
    rise = _first_rise(step)
    if rise is None:
        return []
    taking, giving = rise
    later = [stage for stage in stages[stages.index(taking[-1]) + 1 :] if stage is not giving]
    return [*_of_rise(taking, giving, highest), *_of_state(later, highest)]


def _first_rise(step: Sequence[MemoryStage]) -> tuple[Sequence[MemoryStage], MemoryStage] | None:
    """The first stages in a row that take memory, and the one behind them that gives some back."""
    taking: list[MemoryStage] = []
    for stage in step:
        if (stage.delta_bytes or 0) > 0:
            taking.append(stage)
        elif taking:
            return taking, stage
    return None


def _of_rise(taking: Sequence[MemoryStage], giving: MemoryStage, highest: int) -> list[str]:
    taken = sum(stage.delta_bytes or 0 for stage in taking)
    names = " and ".join(f'"{stage.name}"' for stage in taking)
    names += f" {'take' if len(taking) > 1 else 'takes'} {format_bytes(taken)}"
    given_back = giving.peak_bytes - giving.allocated_bytes
    if taken < _LARGE * highest or given_back < _SHARE_GIVEN_BACK * taken:
        return []
    if giving.peak_is_exact and giving.peak_bytes <= (giving.before_bytes or 0):
        return [f'{names} that "{giving.name}" frees: most likely gradients; {_LESS_FOR_GRADIENTS}']
    # A backward pass takes gradients meanwhile, so that it gives back more than can be seen.
    fact = f'{names}, and "{giving.name}" gives back {format_bytes(min(given_back, taken))} or more of it'
    is_bound = not giving.on_gpu and not giving.peak_is_exact  # gradients that it took meanwhile are not known
    if is_bound or max(stage.delta_bytes or 0 for stage in taking) < _MOST * taken:
        return [f"{fact}: activations or gradients; {_LESS_FOR_ACTIVATIONS}"]
    found = [f"{fact}: most likely activations; {_LESS_FOR_ACTIVATIONS}"]
    kept = giving.allocated_bytes - (taking[0].before_bytes or 0)
    if kept >= _LARGE * highest:
        found.append(
            f'{format_bytes(kept)} more than before "{taking[0].name}" are in use after "{giving.name}": most likely '
            f"gradients; {_LESS_FOR_GRADIENTS}"
        )
    return found


def _of_state(stages: Sequence[MemoryStage], highest: int) -> list[str]:
    found = []
    for stage in stages:
        # What it took the first time beyond what it takes now: a stage that frees gradients each time may do both.
        kept = (stage.first_delta_bytes or 0) - (stage.delta_bytes or 0)
        if stage.count > 1 and kept >= _LASTING * highest:
            which = "most likely the" if stage.on_gpu else "libraries that its first call loads, or the"
            found.append(
                f'"{stage.name}" took {format_bytes(kept)} more the first time than the last: {which} '
                "optimizer's state, which stays; an optimizer with less state, or one of 8 bits, needs less."
            )
    return found


def _of_reserved(stages: Sequence[MemoryStage], highest: int) -> list[str]:
    reserved = max(stage.reserved_bytes or 0 for stage in stages)
    if reserved <= _FAR_ABOVE * highest or reserved - highest <= _PIECES:
        return []
    return [
        f"{format_bytes(reserved)} are reserved for a peak of {format_bytes(highest)}: most likely fragmentation; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True often helps."
    ]
