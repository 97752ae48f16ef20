# SPDX-License-Identifier: Apache-2.0
"""A list of profiled events that can print itself as the table torch.profiler's users know."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Generic, TypeVar

from gpuscope.analysis import table as tables
from gpuscope.errors import InvalidArgument


class DeviceType(IntEnum):
    """Where an event ran."""

    CPU = 0
    CUDA = 1


E = TypeVar("E")

SORT_KEYS = (
    *("cpu_time", "device_time", "cpu_time_total", "device_time_total", "self_cpu_time_total"),
    *("self_device_time_total", "cpu_memory_usage", "device_memory_usage", "self_cpu_memory_usage"),
    *("self_device_memory_usage", "count", "flops", "key", "p50", "p95", "p99", "min", "max", "bytes"),
)
TIME_UNITS = ("s", "ms", "us")


class EventList(list[E], Generic[E]):
    """Events of one recording; ``table`` prints them.

    Attributes:
        self_cpu_time_total: the self CPU times of the recording summed, in us.
        self_device_time_total: the GPU work of the recording summed, in us.
        has_device: some GPU time was recorded.
        has_memory: what the framework's allocators did was recorded.
        verdict: the audit's line, printed under every table.
    """

    def __init__(
        self,
        events: Iterable[E] = (),
        *,
        self_cpu_time_total: float = 0.0,
        self_device_time_total: float = 0.0,
        has_device: bool = False,
        has_memory: bool = False,
        verdict: str = "",
    ) -> None:
        super().__init__(events)
        self.self_cpu_time_total = self_cpu_time_total
        self.self_device_time_total = self_device_time_total
        self.has_device = has_device
        self.has_memory = has_memory
        self.verdict = verdict

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int | None = 75,
        max_name_column_width: int | None = 55,
        max_shapes_column_width: int | None = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """The events as text, in torch.profiler's layout with p50, p95 and p99 added; CUDA columns if there is a GPU.

        Columns of memory, shapes, source locations and floating-point operations stand there when they were recorded.
        Percentages are of all self CPU time and of all GPU work. The last line is the audit's.

        Args:
            sort_by: the column that sorts the rows, largest first: a name in ``SORT_KEYS`` (``cuda`` may stand for
                ``device``); None keeps the order of the list.
            row_limit: print so many rows at most; -1 prints all.
            max_src_column_width: cut source locations to their last so many characters; None keeps them whole.
            max_name_column_width: cut names to this many characters; None keeps them whole.
            max_shapes_column_width: cut shapes to this many characters; None keeps them whole.
            header: a line above the table.
            top_level_events_only: leave out what ran only inside regions.
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
                raise InvalidArgument(f"{name} is {width!r}; accepted are whole numbers from 4, or None")
        if type(row_limit) is not int or row_limit < -1:
            raise InvalidArgument(f"row_limit is {row_limit!r}; accepted are whole numbers from 0, or -1 for all rows")
        if time_unit is not None and time_unit not in TIME_UNITS:
            raise InvalidArgument(f"time_unit is {time_unit!r}; accepted are {', '.join(TIME_UNITS)}, or None")
        return tables.render(
            self.sorted_by(sort_by) if sort_by is not None else self,
            row_limit=row_limit,
            name_width=max_name_column_width,
            shapes_width=max_shapes_column_width,
            src_width=max_src_column_width,
            header=header,
            top_level_only=top_level_events_only,
            time_unit=time_unit,
            cpu_total=self.self_cpu_time_total,
            device_total=self.self_device_time_total if self.has_device else None,
            has_memory=self.has_memory,
            verdict=self.verdict,
        )

    def sorted_by(self, key: str) -> list[E]:
        """The events by one of ``SORT_KEYS``, largest first (names from A).

        Raises:
            InvalidArgument: another key.
        """
        attribute = key.replace("cuda", "device") if isinstance(key, str) else key
        accepted = [name for name in SORT_KEYS if not self or hasattr(self[0], name)]
        if attribute not in accepted:
            raise InvalidArgument(
                f"sort_by is {key!r}; accepted are {', '.join(accepted)}, with cuda in place of device as you like"
            )

        def by(event: E) -> Any:
            value = getattr(event, attribute)
            return 0 if value is None else value

        return sorted(self, key=by, reverse=attribute != "key")

    def __str__(self) -> str:
        return self.table()
