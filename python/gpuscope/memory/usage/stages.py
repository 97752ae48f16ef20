# SPDX-License-Identifier: Apache-2.0
"""Results of `track_memory`: the memory of each stage as a table, with hints on the highest peak.

The hints follow from the memory that stages take and free, never from names. A forward takes activations. A backward
frees them and takes gradients, which stay until a stage frees them without taking memory. An optimizer takes its state
only in its first run.

On the host, hints follow from the resident memory of a program that uses torch. A peak is known only if it is a new
record, and a first call also loads libraries: hints then name both possibilities.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.devices import HOST
from gpuscope.results import Result, import_pandas
from gpuscope.tables import align_columns
from gpuscope.text import one_line, shown
from gpuscope.units import format_bytes

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

_HEADING = ("Stage", "Count", "Allocated", "Reserved", "Peak", "Change", "Host")
_LONGEST_NAME = 40
_MARK = "  <- highest peak"

# Shares of the highest peak: minimum for a hint, minimum for a hint on lasting memory, and noise.
_LARGE = 0.2
_LASTING = 0.1
_SMALL = 0.05
_HOST_TIE = 0.01  # resident memory varies by as much by itself
_SHARE_GIVEN_BACK = 0.25
_MOST = 0.8  # share of one stage in the memory that several take
_LESS_FOR_ACTIVATIONS = "gradient checkpointing or a smaller batch would lower the peak."
_LESS_FOR_GRADIENTS = "mixed precision makes them smaller, and zero_grad() before the next forward frees them."
# Ratio of reserved memory to the allocated peak, and excess: more than torch's segments of up to 20 MiB explain.
_FAR_ABOVE = 1.25
_PIECES = 64 << 20


@dataclass(frozen=True)
class MemoryStage:
    """The memory of one stage on one device. Sizes are bytes.

    If the stage ran several times, figures are of its last run, except `count`, `first_delta_bytes` and the peaks. On
    the host, resident memory replaces allocated memory.

    Attributes:
        name: as given to `track_memory`.
        device: ordinal of the GPU; -1 for the host.
        count: runs.
        allocated_bytes: in use at its end.
        reserved_bytes: held by allocators at its end; None on the host.
        before_bytes: in use at its begin; None for the first statement.
        delta_bytes: `allocated_bytes` less `before_bytes`.
        first_delta_bytes: of the first run.
        peak_bytes: peak over all runs, the sum over libraries.
        peak_at_most_bytes: upper bound of the peak, equal to `peak_bytes` if that is exact; None if unknown.
        host_resident_bytes: at its end.
        why: why GPU figures are missing; else empty.
        where: the line with most new memory, as "train.py:12 step"; "" without a memory history.
        where_bytes: its size.
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
        """Whether the figures are of a GPU, not the host."""
        return self.device != HOST

    @property
    def peak_is_exact(self) -> bool:
        """Whether `peak_bytes` is the peak. Otherwise the peak is between it and `peak_at_most_bytes`."""
        return self.peak_bytes == self.peak_at_most_bytes

    def merged(self, later: MemoryStage) -> MemoryStage:
        """This run and a later one of the same stage, as one."""
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
    """All stages in order of first appearance; prints as a table.

    Attributes:
        stages: one per name and device.
    """

    stages: tuple[MemoryStage, ...]

    @property
    def highest(self) -> MemoryStage | None:
        """The stage with the highest peak, on a GPU if any is; None without stages."""
        return max(self.stages, key=lambda stage: (stage.on_gpu, stage.peak_bytes), default=None)

    @property
    def hints(self) -> tuple[str, ...]:
        """Likely causes of the peak and ways to lower it, one sentence each.

        On the host they follow from resident memory; () for programs without torch.
        """
        highest = self.highest
        if highest is None or not (highest.on_gpu or "torch" in sys.modules):
            return ()
        return _hints([stage for stage in self.stages if stage.device == highest.device])

    def to_dict(self) -> dict[str, Any]:
        """The stages as dicts, the name of the highest (None without stages), and the hints."""
        return {
            "stages": [stage.to_dict() for stage in self.stages],
            "highest": self.highest.name if self.highest else None,
            "hints": list(self.hints),
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the peak of each stage, in order.

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
        highest = ""
        if self.highest is not None and _stands_out(self.highest, self.stages):
            highest = f', the highest peak {_peak(self.highest)} in "{self.highest.name}"'
        return f"<MemoryStages: {len(self.stages)} stage{'' if len(self.stages) == 1 else 's'}{highest}>"

    def __str__(self) -> str:
        return _table(self.stages, self.highest, self.hints)


def _line(stage: MemoryStage) -> str:
    """One stage as a line."""
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
    """All stages, a mark at the highest peak, and the hints below."""
    if highest is None:
        return "no stage has been tracked yet"
    several = len({stage.device for stage in stages}) > 1
    rows = [_HEADING, *(_cells(stage, several) for stage in stages)]
    if any(stage.where for stage in stages):
        rows = [(*row, where) for row, where in zip(rows, ("New from", *map(_where, stages)), strict=True)]
    lines = align_columns(rows, left=1)
    rule = "-" * len(lines[0])
    closing = [*hints]
    if _stands_out(highest, stages):
        lines[1 + next(at for at, stage in enumerate(stages) if stage is highest)] += _MARK
        closing.insert(0, f'The highest peak, {_peak(highest)}, is in "{highest.name}".')
    whys = dict.fromkeys(stage.why for stage in stages if stage.why)
    if not highest.on_gpu:
        closing.append("The figures are the resident memory of the process on the host: " + "; ".join(whys))
    else:
        closing += whys
    return "\n".join([lines[0], rule, *lines[1:], rule, *closing])


def _stands_out(highest: MemoryStage, stages: Sequence[MemoryStage]) -> bool:
    """Whether no other peak is as high, within the resolution of resident memory if it is the host's."""
    others = (stage.peak_bytes for stage in stages if stage is not highest)
    return highest.on_gpu or max(others, default=0) < (1 - _HOST_TIE) * highest.peak_bytes


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
    """The hints for the stages of one device, which are in order."""
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
    """The first consecutive stages that take memory, and the next one, which frees some."""
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
    # A backward also takes gradients, so it frees more than the difference shows.
    fact = f'{names}, and "{giving.name}" gives back {format_bytes(min(given_back, taken))} or more of it'
    is_bound = not giving.on_gpu and not giving.peak_is_exact  # the gradients it took are unknown
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
        # Memory of the first run beyond the last run's: a stage may also free gradients in each run.
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
