# SPDX-License-Identifier: Apache-2.0
"""Lists of profiled events, and the table that torch.profiler's users know."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

from gpuscope.arguments import check_choice
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks.torch import TorchEnum, for_torch
from gpuscope.results import Result, import_pandas
from gpuscope.tables import GAP
from gpuscope.text import brief, one_line
from gpuscope.units import TimeUnit, format_memory, format_time

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd


def _text_of(name: str) -> property:
    return property(lambda event: format_time(getattr(event, name)), doc=f"``{name}`` with its unit.")


def alias_of(name: str) -> property:
    """A second name, torch.profiler's, of an attribute: ``cuda_time`` is ``device_time``, say."""
    return property(attrgetter(name), doc=f"The same as ``{name}``.")


DEVICE_KINDS = ("cuda", "xpu", "privateuse1")  # device kinds in torch's keys, for ``device``


def device_key(key: str) -> str:
    """The attribute that a key names, with torch's kind of a device replaced by ``device``."""
    for kind in DEVICE_KINDS:
        key = key.replace(kind, "device")
    return key


class TorchNames:
    """Names that torch.profiler derives from the times (us) and memory (bytes) of an event or row."""

    __slots__ = ()

    cpu_time_str = _text_of("cpu_time")
    cpu_time_total_str = _text_of("cpu_time_total")
    self_cpu_time_total_str = _text_of("self_cpu_time_total")
    device_time_str = _text_of("device_time")
    device_time_total_str = _text_of("device_time_total")
    self_device_time_total_str = _text_of("self_device_time_total")
    cuda_time = alias_of("device_time")
    cuda_time_total = alias_of("device_time_total")
    self_cuda_time_total = alias_of("self_device_time_total")
    cuda_memory_usage = alias_of("device_memory_usage")
    self_cuda_memory_usage = alias_of("self_device_memory_usage")


class DeviceType(int, TorchEnum):
    """Where an event ran: CPU or CUDA. The other members are torch's and unused here."""

    CPU = 0
    CUDA = 1
    MKLDNN = 2
    OPENGL = 3
    OPENCL = 4
    IDEEP = 5
    HIP = 6
    FPGA = 7
    MAIA = 8
    XLA = 9
    Vulkan = 10
    Metal = 11
    XPU = 12
    MPS = 13
    Meta = 14
    HPU = 15
    VE = 16
    Lazy = 17
    IPU = 18
    MTIA = 19
    PrivateUse1 = 20

    __eq__ = TorchEnum.__eq__
    __ne__ = TorchEnum.__ne__
    __hash__ = TorchEnum.__hash__
    __str__ = TorchEnum.__str__


def device_type(is_device: bool) -> DeviceType:
    """Where an event ran; equal to torch's member, in both directions, once torch is imported."""
    return for_torch(DeviceType.CUDA if is_device else DeviceType.CPU)


COLUMN_WIDTH = 12
FLOPS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")


class TableColumn(NamedTuple):
    """A heading and the cells below it; a cell with several lines continues below its row."""

    heading: str
    cell: Callable[[Any], str]
    width: int = COLUMN_WIDTH
    side: str = ">"


E = TypeVar("E", bound=Any)

SORT_KEYS = (
    *("cpu_time", "device_time", "cpu_time_total", "device_time_total", "self_cpu_time_total"),
    *("elapsed_time", "elapsed_time_total"),
    *("self_device_time_total", "cpu_memory_usage", "device_memory_usage", "self_cpu_memory_usage"),
    *("self_device_memory_usage", "count", "flops", "key", "p50", "p95", "p99", "min", "max", "bytes"),
)


class EventList(Result, list[E], Generic[E]):
    """Events of one recording; ``table`` prints them.

    Args:
        events: the events of the list.
        use_device: torch's name of the device of GPU times; None without GPU times.
        profile_memory: the framework's allocations were recorded.
        with_flops: floating-point operations were requested; `table` has their column.
        self_cpu_time_total: of the recording, default the sum of the events.
        self_device_time_total: likewise.
        verdict: the audit's line.
        note: a sentence on details that were not recorded.

    Attributes:
        self_cpu_time_total: the self CPU times of the recording summed, in us.
        self_device_time_total: the GPU work of the recording summed, in us.
        has_device: some GPU time was recorded.
        has_memory: the framework's allocations were recorded.
        has_flops: floating-point operations were requested.
        verdict: the audit's line, printed under every table.
        note: a sentence on details that were not recorded, printed likewise; else empty.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ()
    """The attributes of an event that ``to_dict`` and ``to_pandas`` give."""

    def __init__(
        self,
        events: Iterable[E] = (),
        *,
        use_device: str | None = None,
        profile_memory: bool = False,
        with_flops: bool = False,
        self_cpu_time_total: float | None = None,
        self_device_time_total: float | None = None,
        verdict: str = "",
        note: str = "",
    ) -> None:
        super().__init__(events)
        if self_cpu_time_total is None:
            self_cpu_time_total = sum(event.self_cpu_time_total for event in self)
        if self_device_time_total is None:
            on_gpu = (event for event in self if event.device_type == DeviceType.CUDA)
            self_device_time_total = sum(event.self_device_time_total for event in on_gpu)
        self.self_cpu_time_total = self_cpu_time_total
        self.self_device_time_total = self_device_time_total
        self.has_device = use_device is not None or self_device_time_total > 0
        self.has_memory = profile_memory
        self.has_flops = with_flops
        self.verdict = verdict
        self.note = note

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int | None = 75,
        max_name_column_width: int | None = 55,
        max_shapes_column_width: int | None = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: TimeUnit | None = None,
    ) -> str:
        """The events as text in torch.profiler's layout, with p50, p95 and p99, and CUDA columns if there is a GPU.

        Columns of memory, shapes, source locations and floating-point operations are shown if they were recorded.
        Percentages are of all self CPU time and of all GPU work. The last line is the audit's.

        Args:
            sort_by: a name in ``SORT_KEYS``, largest first (``cuda``, ``xpu`` and ``privateuse1`` may stand for
                ``device``); None keeps the order. Without GPU work or GPU memory the CPU's column sorts, and a line
                under the table says so.
            row_limit: most rows to print; -1 prints all.
            max_src_column_width: cut source locations to their last so many characters; None keeps them whole.
            max_name_column_width: cut names to this many characters; None keeps them whole.
            max_shapes_column_width: cut shapes to this many characters; None keeps them whole.
            header: a line above the table.
            top_level_events_only: leave out names that ran only inside regions.
            time_unit: "s", "ms" or "us" for every time; None chooses for each.

        Raises:
            InvalidArgument: a value that is not accepted.
        """
        for name, width in (
            ("max_src_column_width", max_src_column_width),
            ("max_name_column_width", max_name_column_width),
            ("max_shapes_column_width", max_shapes_column_width),
        ):
            if width is not None and (type(width) is not int or width < 4):
                raise InvalidArgument(f"{name} is {brief(width)}; accepted are whole numbers from 4, or None")
        if type(row_limit) is not int or row_limit < -1:
            raise InvalidArgument(
                f"row_limit is {brief(row_limit)}; accepted are whole numbers from 0, or -1 for all rows"
            )
        check_choice("time_unit", time_unit, (*get_args(TimeUnit), None))
        key, note = (None, "") if sort_by is None else self.known_sort_key(sort_by)
        events = self if key is None else self.sorted_by(key)
        columns = [
            _name_column(events, max_name_column_width),
            *_overload_columns(events, max_name_column_width),
            *self._number_columns(time_unit),
            *_detail_columns(events, max_shapes_column_width, max_src_column_width, self.has_flops),
        ]
        widths = [max(column.width, len(column.heading)) for column in columns]
        rule = GAP.join("-" * width for width in widths) + GAP

        def line(cells: Iterable[str]) -> str:
            placed = zip(cells, columns, widths, strict=True)
            return "".join(f"{cell:{column.side}{width}}{GAP}" for cell, column, width in placed)

        lines = []
        for text in (header, "Only what ran outside every region" if top_level_events_only else None):
            if text is not None:
                lines += ["=" * (len(rule) - len(GAP)), text]
        lines += [rule, line(column.heading for column in columns), rule]
        rows = [event for event in events if event.is_top_level] if top_level_events_only else events
        for event in rows if row_limit < 0 else rows[:row_limit]:
            cells = [column.cell(event).split("\n") for column in columns]
            lines += map(line, itertools.zip_longest(*cells, fillvalue=""))
        lines += [rule, *(f"{text[0].upper()}{text[1:]}" for text in (note, self.note) if text)]
        lines.append(f"Self CPU time total: {format_time(self.self_cpu_time_total, time_unit)}")
        if self.has_device:
            lines.append(f"Self CUDA time total: {format_time(self.self_device_time_total, time_unit)}")
        if self.verdict:
            lines.append(self.verdict)
        return "\n".join(lines) + "\n"

    def _number_columns(self, unit: TimeUnit | None) -> list[TableColumn]:
        """torch.profiler's, then p50, p95 and p99."""

        def time(heading: str, attribute: str) -> TableColumn:
            return TableColumn(heading, lambda event: format_time(getattr(event, attribute), unit))

        def share(heading: str, attribute: str, total: float) -> TableColumn:
            return TableColumn(heading, lambda event: format_share(getattr(event, attribute), total))

        def memory(heading: str, attribute: str) -> TableColumn:
            return TableColumn(heading, lambda event: format_memory(getattr(event, attribute)))

        columns = [
            share("Self CPU %", "self_cpu_time_total", self.self_cpu_time_total),
            time("Self CPU", "self_cpu_time_total"),
            share("CPU total %", "cpu_time_total", self.self_cpu_time_total),
            time("CPU total", "cpu_time_total"),
            time("CPU time avg", "cpu_time"),
        ]
        if any(getattr(event, "elapsed_time_total", 0.0) > event.cpu_time_total for event in self):
            columns += [time("Elapsed total", "elapsed_time_total"), time("Elapsed avg", "elapsed_time")]
        if self.has_device:
            columns += [
                time("Self CUDA", "self_device_time_total"),
                share("Self CUDA %", "self_device_time_total", self.self_device_time_total),
                time("CUDA total", "device_time_total"),
                time("CUDA time avg", "device_time"),
            ]
        if self.has_memory:
            columns += [memory("CPU Mem", "cpu_memory_usage"), memory("Self CPU Mem", "self_cpu_memory_usage")]
            if self._has_device_memory:
                columns.append(memory("CUDA Mem", "device_memory_usage"))
                columns.append(memory("Self CUDA Mem", "self_device_memory_usage"))
        columns.append(TableColumn("# of Calls", lambda event: str(event.count)))
        if self and hasattr(self[0], "p50"):
            columns += [time("p50", "p50"), time("p95", "p95"), time("p99", "p99")]
        return columns

    @property
    def _has_device_memory(self) -> bool:
        return any(event.device_memory_usage or event.self_device_memory_usage for event in self)

    def known_sort_key(self, key: str) -> tuple[str, str]:
        """The key to sort by and a note: the CPU's key if `key` is the GPU's and nothing was recorded there.

        The note is empty if `key` stays, unless no memory was recorded to sort by.
        """
        attribute = device_key(key) if isinstance(key, str) else key
        if attribute not in SORT_KEYS:
            return key, ""  # `sorted_by` refuses it
        if "memory" in attribute:
            if not self.has_memory:
                return key, "no memory was recorded (profile_memory=True): the rows are not sorted"
            what, is_known = "memory", self._has_device_memory
        else:
            what, is_known = "work", self.has_device or any(getattr(event, attribute, 0) for event in self)
        if is_known or "device" not in attribute:
            return key, ""
        on_cpu = attribute.replace("device", "cpu")
        return on_cpu, f"no GPU {what} was recorded: sorted by {on_cpu}"

    def sorted_by(self, key: str) -> list[E]:
        """The events by one of ``SORT_KEYS``, largest first (names from A).

        Raises:
            InvalidArgument: another key.
        """
        attribute = device_key(key) if isinstance(key, str) else key
        accepted = [name for name in SORT_KEYS if not self or hasattr(self[0], name)]
        if attribute not in accepted:
            raise InvalidArgument(
                f"sort_by is {brief(key)}; accepted are {', '.join(accepted)}, with cuda, xpu or "
                "privateuse1 also accepted for device"
            )

        def by(event: E) -> Any:
            value = getattr(event, attribute)
            return 0 if value is None else value

        return sorted(self, key=by, reverse=attribute != "key")

    def to_dict(self) -> dict[str, Any]:
        """The attributes of the list and, as ``events``, those of each event; times in us."""
        totals = ("self_cpu_time_total", "self_device_time_total", "has_device", "has_memory", "verdict")
        return {
            **{name: getattr(self, name) for name in totals},
            "events": [{name: _plain(event, name) for name in self.COLUMNS} for event in self],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row an event; times in us.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame({name: [_plain(event, name) for event in self] for name in self.COLUMNS})

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        device = f", GPU {format_time(self.self_device_time_total)}" if self.has_device else ""
        return f"<{type(self).__name__}: {len(self):,} rows, CPU {format_time(self.self_cpu_time_total)}{device}>"


def _plain(event: Any, name: str) -> Any:
    """An attribute for JSON and frames. A device type becomes its number: torch may have replaced the member."""
    value = getattr(event, name)
    return int(value) if name == "device_type" else value


def format_share(time_us: float, total_us: float) -> str:
    """A share in percent; NaN of nothing."""
    return f"{time_us * 100.0 / total_us:.2f}%" if total_us else "NaN"


def _name_column(events: Sequence[Any], limit: int | None) -> TableColumn:
    def name(event: Any) -> str:
        key = one_line(event.key.replace("\n", " "))
        if limit is not None and len(key) >= limit - 3:
            key = key[: limit - 3] + "..."
        return key

    return TableColumn(
        "Name", name, _limited(max((len(one_line(event.key)) for event in events), default=0) + 4, limit)
    )


def _overload_columns(events: Sequence[Any], limit: int | None) -> list[TableColumn]:
    def name(event: Any) -> str:
        return one_line(str(event.overload_name))

    widest = max((len(name(event)) for event in events), default=0)
    if not widest:
        return []
    return [TableColumn("Overload Name", lambda event: name(event)[:limit], _limited(widest + 4, limit))]


def _detail_columns(
    events: Sequence[Any], shapes_width: int | None, src_width: int | None, with_flops: bool
) -> list[TableColumn]:
    """Shapes, source locations and operations, as in torch.profiler: each only if some event has it."""
    result = []
    if any(event.input_shapes for event in events):
        width = _limited(max(len(str(event.input_shapes)) for event in events) + 4, shapes_width)
        result.append(TableColumn("Input Shapes", lambda event: one_line(str(event.input_shapes))[:width], width))
    frames = [len(frame) for event in events for frame in event.stack]
    if frames:
        width_of_frame = _limited(max(frames) + 4, src_width)
        result.append(
            TableColumn(
                "Source Location",
                lambda event: "\n".join(_tail(one_line(frame), width_of_frame) for frame in event.stack),
                width_of_frame,
                "<",
            )
        )
    counts = [event.flops for event in events if event.flops] if with_flops else []
    if counts:
        step = min(int(math.log10(min(counts)) / 3), len(FLOPS) - 1)
        result.append(
            TableColumn(
                f"Total {FLOPS[step]}", lambda event: f"{event.flops / 1000**step:.3f}" if event.flops else "--"
            )
        )
    return result


def _limited(width: int, limit: int | None) -> int:
    return width if limit is None else min(width, limit)


def _tail(path: str, width: int) -> str:
    """The end of a path, its most specific part."""
    return path if len(path) <= width else "..." + path[len(path) - width + 3 :]
