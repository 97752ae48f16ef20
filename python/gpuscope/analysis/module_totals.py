# SPDX-License-Identifier: Apache-2.0
"""The cost of each torch.nn.Module: CPU time, and GPU time of its forward and backward work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope._core import RegionKind
from gpuscope.analysis.rows import NS_PER_US
from gpuscope.arguments import check_count
from gpuscope.errors import NotAvailable
from gpuscope.results import Result, import_pandas
from gpuscope.tables import align_columns
from gpuscope.trace import NONE, Trace
from gpuscope.units import format_time

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd

_Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class ModuleTotal:
    """One module under one path, with the modules inside it.

    Attributes:
        path: as ``ResNet.layer1.0.conv1``. Equal paths are one row, wherever the modules were called.
        count: number of calls.
        cpu_time_total: time from the begin of its calls to their end, in us.
        forward_device_time: GPU time of work launched in it before it ended, in us; None if no GPU work was recorded.
        backward_device_time: GPU time that autograd launched for operators that ran in it, likewise.
    """

    path: str
    count: int
    cpu_time_total: float
    forward_device_time: float | None
    backward_device_time: float | None

    @property
    def device_time_total(self) -> float | None:
        """Forward plus backward, in us; None if no GPU work was recorded."""
        if self.forward_device_time is None or self.backward_device_time is None:
            return None
        return self.forward_device_time + self.backward_device_time


@dataclass(frozen=True, repr=False)
class Modules(Result):
    """A row for each path, in the order of first calls; prints as a table.

    Attributes:
        rows: one per path.
        why: why rows or GPU times are missing; else empty.
    """

    rows: tuple[ModuleTotal, ...]
    why: str = ""

    def __iter__(self) -> Iterator[ModuleTotal]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> ModuleTotal:
        """The row of a path; KeyError if no such module was called."""
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(path)

    def table(self, row_limit: int = 100) -> str:
        """The rows as text; -1 shows all.

        Raises:
            InvalidArgument: `row_limit` is not a whole number from -1.
        """
        rows = self.rows if check_count("row_limit", row_limit, -1) < 0 else self.rows[:row_limit]
        times = ("cpu_time_total", "forward_device_time", "backward_device_time")
        lines: list[tuple[str, ...]] = [("Module", "# of Calls", "CPU total", "CUDA forward", "CUDA backward")]
        for row in rows:
            cells = (getattr(row, time) for time in times)
            lines.append((row.path, str(row.count), *("-" if us is None else format_time(us) for us in cells)))
        closing = [f"{self.why[0].upper()}{self.why[1:]}"] if self.why else []
        return "".join(f"{line}\n" for line in [*align_columns(lines, left=1), *closing])

    def to_dict(self) -> dict[str, Any]:
        """The rows, and why some are missing or lack GPU times; times in us."""
        return {"modules": [asdict(row) for row in self.rows], "why": self.why}

    def to_pandas(self) -> pd.DataFrame:
        """One row a module; times in us.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame(self.to_dict()["modules"])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Modules: {len(self):,} modules{f', {self.rows[0].path} first' if self.rows else ''}>"


def modules(trace: Trace) -> Modules:
    """Totals for each module; none without ``with_modules=True``.

    A backward operator belongs to the module of its forward operator, found by autograd's sequence numbers. A
    checkpoint's recomputation in the backward pass counts as backward work. Adding up gradients belongs to no module.

    Raises:
        NotAvailable: the recording has only totals (``mode="aggregate"``).
    """
    if trace.info.get("session.mode") == "aggregate":
        raise NotAvailable("modules() needs single events, and mode='aggregate' keeps totals; record with mode='full'")
    regions = trace.regions
    names, row_of = np.unique(_names(trace), return_inverse=True)
    is_module = names[row_of] != NONE
    if not is_module.any():
        asked = "metadata.with_modules" in trace.info
        return Modules((), "no modules were recorded" + ("" if asked else ": with_modules=True"))
    parent = regions.parent.astype(np.int64)
    forward = np.full(len(regions), NONE, dtype=np.int64)
    known = trace.details.region != NONE
    forward[trace.details.region[known]] = trace.details.forward[known]
    # Upwards from a region: through the forward operator if there is one, as the module is there.
    above = np.where(forward != NONE, forward, parent)
    module = _nearest(is_module, above)
    around = np.where(above != NONE, module[np.where(above != NONE, above, 0)], NONE)
    outermost = _outermost(is_module, row_of, around)
    is_backward = _nearest(forward != NONE, parent) != NONE

    device = trace.instances.self_device_ns
    count = np.bincount(row_of[is_module], minlength=len(names))
    cpu = np.bincount(row_of[outermost], weights=regions.duration_ns[outermost], minlength=len(names))
    inside = [np.zeros(len(names)), np.zeros(len(names))]
    for backward, total in enumerate(inside):
        source = np.flatnonzero((device != 0) & (is_backward == bool(backward)) & (module != NONE))
        at, time = module[source], device[source]
        for _ in range(len(regions) + 1):  # a damaged file may have a cycle
            if not len(at):
                break
            counted = outermost[at]
            total += np.bincount(row_of[at[counted]], weights=time[counted], minlength=len(names))
            at = around[at]
            at, time = at[at != NONE], time[at != NONE]
    if len(late := trace.instances.late_device_ns):  # launched in a region that outlasts a module
        inside[0] -= np.bincount(row_of[outermost], weights=late[outermost], minlength=len(names))
    first = np.full(len(names), len(regions))
    np.minimum.at(first, row_of, np.arange(len(regions)))
    has_device = trace.summary.has_device
    return Modules(
        tuple(
            ModuleTotal(
                trace.string(int(names[row])),
                int(count[row]),
                float(cpu[row]) / NS_PER_US,
                *(float(total[row]) / NS_PER_US if has_device else None for total in inside),
            )
            for row in np.argsort(first)
            if names[row] != NONE
        ),
        "" if has_device else "no GPU work was recorded",
    )


def _names(trace: Trace) -> _Rows:
    """The name of each region that is a module, else NONE."""
    paths = trace.paths
    names = np.where(paths.kind == RegionKind.MODULE, paths.name, NONE).astype(np.int64)
    return names[trace.regions.path] if len(names) else np.zeros(0, dtype=np.int64)


def _nearest(wanted: np.ndarray[Any, Any], above: _Rows) -> _Rows:
    """For each region the first that is `wanted`, itself or upwards; NONE if there is none."""
    result = np.full(len(above), NONE, dtype=np.int64)
    start = np.arange(len(above))
    at = start
    for _ in range(len(above) + 1):  # a damaged file may have a cycle
        found = wanted[at]
        result[start[found]] = at[found]
        start, at = start[~found], above[at[~found]]
        start, at = start[at < len(above)], at[at < len(above)]
        if not len(at):
            break
    return result


def _outermost(is_module: np.ndarray[Any, Any], row_of: _Rows, around: _Rows) -> np.ndarray[Any, Any]:
    """The modules with no module of the same path around them. A checkpoint calls a module inside itself."""
    result = is_module.copy()
    start = np.flatnonzero(is_module)
    at = around[start]
    for _ in range(len(around) + 1):
        start, at = start[at != NONE], at[at != NONE]
        if not len(at):
            break
        result[start[row_of[start] == row_of[at]]] = False
        at = around[at]
    return result
