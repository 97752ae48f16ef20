# SPDX-License-Identifier: Apache-2.0
"""The state of a watch: its file ``watch.json``, its table, and its figures for Prometheus."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.paths import as_path, read_text
from gpuscope.results import Result, plain_fields
from gpuscope.tables import align_columns
from gpuscope.text import brief, one_line
from gpuscope.units import format_date, format_seconds, format_share
from gpuscope.watching.controller import Cost
from gpuscope.watching.dumps import make_own_folder

STATE = "watch.json"
METRICS = "metrics.prom"
FOLDER = ".watch"
"""The end of the name of a process's folder."""

BUCKETS_S = tuple(scale * 10.0**power for power in range(-3, 3) for scale in (1, 2, 5))
"""Upper ends of the histogram of step times; longer steps are in a further bucket."""

_SILENT_S = 10.0  # the file is written once a second
_WRITTEN_S = 2.0  # states are written each second
_MOST_BYTES = 1 << 22
_MOST_SHOWN, _MOST_ROWS = 10, 24
_ENDS = (("low", -1), ("high", 1))  # of intervals
_PREFIX = "gpuscope_watch_"


@dataclass(frozen=True)
class DumpLine:
    """A dump, as the state lists it.

    Attributes:
        path: its folder.
        trigger: its trigger.
        sentence: what happened.
        time_ns: since the Unix epoch.
        step: None without one.
    """

    path: str
    trigger: str
    sentence: str
    time_ns: int
    step: int | None


@dataclass(frozen=True)
class WatchSummary(Result):
    """The state of one watched process. Times are seconds, unless they end in ns; None is not known.

    Attributes:
        rank: of the process; 0 without a launcher.
        world_size: number of ranks.
        host: name of its machine.
        pid: its process.
        program: its script or module.
        began_ns: begin of the watch, since the Unix epoch.
        written_ns: time of this state.
        state: "running", "ended" or how it ended.
        unit: "steps" or "requests".
        steps: number of steps or requests.
        median_s: of the last 1,000 steps.
        p99_s: likewise.
        last_s: the last 10 steps.
        histogram: steps with at most each time of `BUCKETS_S`, and longer ones.
        total_s: sum of all steps.
        window: steps of a window.
        period: steps from one window to the next; 0 without windows.
        windows: number of windows that were written.
        window_bytes: size of the windows that are kept.
        recorded: steps in the windows.
        budget: largest cost, as a share.
        cost: measured cost of the windows.
        spent: cost of all windows so far, as a share of the program's time.
        request_p99_s: 99th percentiles of requests inside and outside of windows.
        watcher: CPU time of the watcher's thread, as a share of one core.
        off: why there are no windows; empty if there are.
        dumps: the dumps.
        counted: events that were not dumped, by trigger.
        lost: what was lost, and how often.
        notes: sentences.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    program: str
    began_ns: int
    written_ns: int
    state: str
    unit: str
    steps: int
    median_s: float | None
    p99_s: float | None
    last_s: tuple[float, ...]
    histogram: tuple[int, ...]
    total_s: float
    window: int
    period: int
    windows: int
    window_bytes: int
    recorded: int
    budget: float
    cost: Cost | None
    spent: float | None
    request_p99_s: tuple[float | None, float | None]
    watcher: float
    off: str = ""
    dumps: tuple[DumpLine, ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in ``watch.json``."""
        return plain_fields(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> WatchSummary:
        """The summary of a ``watch.json``.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        found: dict[str, Any] = {name: values[name] for name in cls.__dataclass_fields__}
        cost: Any = found["cost"]
        # JSON has no infinite numbers.
        ends: dict[str, Any] = {f"{of}_{end}": side * math.inf for of in ("step", "job") for end, side in _ENDS}
        if cost is not None:
            cost = Cost(**{name: ends.get(name, 0.0) if value is None else value for name, value in cost.items()})
        texts = ("host", "program", "state", "unit", "off")
        numbers = ("rank", "pid", "steps", "period", "window", "windows", "began_ns", "written_ns", "window_bytes")
        if not all(isinstance(found[name], str) for name in texts) or not all(
            isinstance(found[name], int) for name in numbers
        ):
            raise ValueError("a field has another type")
        lists = {name: tuple(found[name]) for name in ("last_s", "histogram", "request_p99_s")}
        notes = tuple(str(note) for note in found["notes"])
        return cls(
            **{
                **found,
                **lists,
                "cost": cost,
                "dumps": tuple(DumpLine(**each) for each in found["dumps"]),
                "notes": notes,
            }
        )

    def status(self, now_ns: int) -> str:
        """The state; for a process that no longer writes, that it died or is silent."""
        silent_s = (now_ns - self.written_ns) / 1e9
        if self.state != "running" or silent_s < _WRITTEN_S:
            return self.state
        if self.host == os.uname().nodename and not os.path.exists(f"/proc/{self.pid}"):
            return "died"
        return self.state if silent_s < _SILENT_S else f"silent for {format_seconds(silent_s, 2)}"

    def __str__(self) -> str:
        return "\n".join(_lines([self], self.written_ns))

    def prometheus(self) -> str:
        """The figures in Prometheus' text format: at most 60 series."""
        return "".join(f"{line}\n" for line in _series(self))


@dataclass(frozen=True)
class JobSummary(Result):
    """The states of all watched processes of a folder.

    Attributes:
        ranks: by rank.
        time_ns: of the reading, since the Unix epoch.
        notes: files that cannot be read.
    """

    ranks: tuple[WatchSummary, ...]
    time_ns: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        ranks = [rank.to_dict() | {"status": rank.status(self.time_ns)} for rank in self.ranks]
        return {"time_ns": self.time_ns, "ranks": ranks, "notes": [*self.notes]}

    def __str__(self) -> str:
        return "\n".join([*_lines(self.ranks, self.time_ns), *(f"note: {note}" for note in self.notes)])


def read_job(folder: str | os.PathLike[str]) -> JobSummary:
    """The states of the processes that ``watch(folder)`` watches or watched.

    Raises:
        InvalidArgument: it is no folder of a watch, or not safe to read.
    """
    path = as_path(folder)
    if not path.is_dir():
        raise InvalidArgument(f"dir is {brief(str(path))}; accepted is the folder of a watch")
    found: list[WatchSummary] = []
    notes: list[str] = []
    for each in sorted(path.iterdir()):
        if not each.name.endswith(FOLDER) or each.is_symlink() or not (each / STATE).exists():
            continue
        try:
            found.append(WatchSummary.of(json.loads(read_text(make_own_folder(each) / STATE, _MOST_BYTES))))
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a file, or InvalidArgument
            why = str(error) if isinstance(error, GpuscopeError) else "it is no state of a watch"
            notes.append(one_line(f"{each.name}/{STATE} cannot be read: {why}"))
    if not found and not notes:
        raise InvalidArgument(
            f"dir is {brief(str(path))}, in which no process was watched; accepted is a folder of watch"
        )
    now_ns = time.time_ns()
    latest = {each.rank: each for each in sorted(found, key=lambda each: each.began_ns)}
    # A process that no longer runs and whose rank began again is of an earlier run.
    kept = [each for each in found if each is latest[each.rank] or each.status(now_ns) == "running"]
    if earlier := len(found) - len(kept):
        notes.append(f"{earlier:,} process{'es' * (earlier > 1)} of earlier runs in this folder not shown")
    return JobSummary(tuple(sorted(kept, key=lambda each: (each.rank, each.began_ns))), now_ns, tuple(notes))


def _lines(ranks: Sequence[WatchSummary], now_ns: int) -> list[str]:
    """The table of ranks, and what happened."""
    unit = ranks[0].unit if ranks else "steps"
    head = ("rank", "state", unit, "median", "windows", "cost", "of job", "dumps", "lost")
    notable = [rank for rank in ranks if rank.dumps or rank.lost or rank.status(now_ns) != "running"]
    shown = {id(rank) for rank in [*notable, *ranks][:_MOST_ROWS]} if len(ranks) > _MOST_ROWS else {*map(id, ranks)}
    rows = [_row(rank, now_ns) for rank in ranks if id(rank) in shown]
    lines = align_columns([head, *rows], left={0, 1}, rule=True)
    lines += [f"... and {len(ranks) - len(rows):,} more ranks"] if len(rows) < len(ranks) else []
    of: dict[str, list[int]] = {}
    for rank in ranks:
        for note in _notes(rank):
            of.setdefault(note, []).append(rank.rank)
    for note, numbers in of.items():
        several = f"{len(numbers):,} ranks: " if len(numbers) > 1 else f"rank {numbers[0]}: "
        lines.append(f"{several if len(ranks) > 1 else ''}{note}")
    dumps = sorted(((dump, rank.rank) for rank in ranks for dump in rank.dumps), key=lambda each: each[0].time_ns)
    for dump, number in dumps[-_MOST_SHOWN:]:
        lines.append(f"{format_date(dump.time_ns)}  rank {number}  {dump.sentence}")
        lines.append(f"  {dump.path}/why.txt")
    return lines


def _notes(rank: WatchSummary) -> Iterator[str]:
    if not rank.steps:
        yield "no step was seen: call gpuscope.step() after each; until then there are triggers only"
    elif rank.off:
        yield f"no windows: {rank.off}"
    elif rank.state == "running" and not rank.windows:
        yield f"no window yet: the first is at {rank.unit[:-1]} {(rank.steps // rank.period + 1) * rank.period:,}"
    elif rank.spent is not None:
        yield f"recording took {format_share(max(rank.spent, 0.0))} of the time so far"
    yield from rank.notes
    yield from (f"{count:,} {what}" for what, count in rank.lost.items())
    yield from (f"{count:,} more of {name}, counted only" for name, count in rank.counted.items())


def _row(rank: WatchSummary, now_ns: int) -> tuple[str, ...]:
    cost = rank.cost
    return (
        str(rank.rank),
        rank.status(now_ns),
        f"{rank.steps:,}",
        format_seconds(rank.median_s),
        f"{rank.windows} x {rank.window} of {rank.period:,}" if rank.period else "none",
        "-" if cost is None else format_share(cost.step),
        "not known yet" if cost is None else _with_interval(cost.job, cost.job_low, cost.job_high),
        str(len(rank.dumps)),
        str(sum(rank.lost.values())),
    )


def _with_interval(value: float, low: float, high: float) -> str:
    if not math.isfinite(high):
        return f"{format_share(value)} (few windows)"
    return f"{format_share(value)} ({100 * low:.2g} to {100 * high:.2g})"


def _series(rank: WatchSummary) -> Iterator[str]:
    label = f'rank="{rank.rank}"'

    def series(name: str, about: str, values: Mapping[str, float | None], kind: str = "gauge") -> Iterator[str]:
        known = {labels: value for labels, value in values.items() if value is not None and math.isfinite(value)}
        if known:
            yield f"# HELP {_PREFIX}{name} {about}"
            yield f"# TYPE {_PREFIX}{name} {kind}"
            yield from (f"{_PREFIX}{name}{{{label}{labels}}} {value:.9g}" for labels, value in known.items())

    cost = rank.cost
    unit = rank.unit[:-1]
    yield f"# HELP {_PREFIX}{unit}_seconds Times of {rank.unit}."
    yield f"# TYPE {_PREFIX}{unit}_seconds histogram"
    below = 0
    for bound, count in zip([*(f"{each:g}" for each in BUCKETS_S), "+Inf"], rank.histogram, strict=True):
        below += count
        yield f'{_PREFIX}{unit}_seconds_bucket{{{label},le="{bound}"}} {below}'
    yield f"{_PREFIX}{unit}_seconds_sum{{{label}}} {rank.total_s:.9g}"
    yield f"{_PREFIX}{unit}_seconds_count{{{label}}} {below}"
    yield from series("written_timestamp_seconds", "Time of these figures.", {"": rank.written_ns / 1e9})
    yield from series("median_seconds", f"Median of the last {rank.unit}.", {"": rank.median_s})
    yield from series("windows_total", "Windows that were written.", {"": rank.windows}, "counter")
    yield from series("window_bytes", "Size of the windows that are kept.", {"": rank.window_bytes})
    yield from series("period", f"{rank.unit.capitalize()} from one window to the next, 0 without.", {"": rank.period})
    if cost is not None:
        bounds = {"": cost.job, ',bound="low"': cost.job_low, ',bound="high"': cost.job_high}
        yield from series("overhead_ratio", "Extra time of the program by recording.", bounds)
        yield from series("window_overhead_ratio", f"Extra time of a recorded {unit}.", {"": cost.step})
    triggers = {dump.trigger for dump in rank.dumps}
    dumps = {f',trigger="{name}"': sum(dump.trigger == name for dump in rank.dumps) for name in sorted(triggers)}
    yield from series("dumps_total", "Dumps that were written.", dumps, "counter")
    counted = {f',trigger="{name}"': count for name, count in sorted(rank.counted.items())}
    yield from series("counted_events_total", "Events that were counted and not dumped.", counted, "counter")
    yield from series(
        "lost_total", "Windows, states and steps that were lost.", {"": sum(rank.lost.values())}, "counter"
    )


def dump_lines(dumps: Sequence[Any]) -> tuple[DumpLine, ...]:
    """Dumps as the state lists them."""
    return tuple(
        DumpLine(each.path, each.event.trigger, each.event.sentence, each.time_ns, each.event.step) for each in dumps
    )
