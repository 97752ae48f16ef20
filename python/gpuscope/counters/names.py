# SPDX-License-Identifier: Apache-2.0
"""Names of hardware counters: predefined sets, the counters of a GPU, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gpuscope import _core
from gpuscope.arguments import check_count
from gpuscope.devices import LARGEST
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.paths import is_utf8
from gpuscope.text import brief

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_QUEUE = "gpu__scheduler_engine_gr_queue_sync"

SM_ACTIVE = f"sm__cycles_active{_ELAPSED}"
CONTEXT_SWITCHES = f"gpu__gr_cycles_active_cmd_ctxsw{_ELAPSED}"
TENSOR_ACTIVE = f"sm__pipe_tensor_cycles_active_realtime{_ELAPSED}"
DRAM_READ, DRAM_WRITE = (f"dram__{way}_throughput{_ELAPSED}" for way in ("read", "write"))
INSTRUCTIONS = f"sm__inst_executed_realtime{_ELAPSED}"
WARPS_ACTIVE = f"sm__warps_active_realtime{_ELAPSED}"
FP64_ACTIVE = f"TPC.TriageCompute.sm__pipe_fp64_cycles_active_realtime{_ELAPSED}"
FMA_INSTRUCTIONS = f"TPC.TriageCompute.sm__inst_executed_pipe_fma_realtime{_ELAPSED}"

WHY = (
    f"gr__cycles_active{_ELAPSED}",
    SM_ACTIVE,
    f"{_QUEUE}_gpfifo_cycles_idle{_ELAPSED}",
    f"{_QUEUE}_cycles_stalled_cmd_semacquire{_ELAPSED}",
    f"{_QUEUE}_cycles_stalled_cmd_wfi{_ELAPSED}",
    CONTEXT_SWITCHES,
    f"gpu__scheduler_engine_asyncce0_cycles_active{_ELAPSED}",
    TENSOR_ACTIVE,
    DRAM_READ,
    DRAM_WRITE,
    INSTRUCTIONS,
    WARPS_ACTIVE,
    "gr__dispatch_count.sum",
    "lts__t_sectors.sum",
    "pcie__read_bytes.sum",
    "pcie__write_bytes.sum",
    "PCI.TriageCompute.pcie__read_bytes.sum",
    "PCI.TriageCompute.pcie__write_bytes.sum",
    "nvlrx__bytes.sum",
    "nvltx__bytes.sum",
    "LTS.TriageCompute.lts__average_t_sector_hit_rate_realtime.pct",
    FP64_ACTIVE,
    FMA_INSTRUCTIONS,
    f"tpc__warps_inactive_sm_idle_realtime{_ELAPSED}",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
"""Why a GPU is slow or idle, the most useful first: busy units, waits of the front end, memory, links.

With libcupti 13.0 one pass has room for all of them on GH100, 23 on GB100, 19 on AD102, 16 on GA100, 15 on GB202.
"""

# Counters of the front end, by programs of known behaviour on an H100 (benchmarks/python/counters.py):

ENGINE_ACTIVE = f"gr__cycles_active{_ELAPSED}"
"""The engine that runs kernels has work. It agrees with the time in which kernels ran: 24.5 % for 24.4 %, 100 % for
99.9 % (two streams in turns), 0.4 % in an idle process.
"""

NOTHING_QUEUED = f"{_QUEUE}_gpfifo_cycles_idle{_ELAPSED}"
"""The queue of the front end is empty: the host has queued nothing *behind* the running work. It does not show whether
the GPU works: it is 100 % if the host waits for each kernel before the next one. While no kernel runs, it shows that
the GPU waits for the host.
"""

WAITS_AT_SEMAPHORE = f"{_QUEUE}_cycles_stalled_cmd_semacquire{_ELAPSED}"
"""The next entry of the queue waits for a dependency, as a kernel for the one before it, in its own stream or another:
95 % in both, also while that kernel runs. It and `NOTHING_QUEUED` add up to all of the time. So while no kernel runs,
it shows that queued work is held back.
"""

OVERVIEW = (
    "gpu__time_duration.sum",
    f"sm__cycles_active{_ELAPSED}",
    f"sm__pipe_tensor_cycles_active{_ELAPSED}",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    f"dram__throughput{_ELAPSED}",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sectors.sum",
    "lts__t_bytes.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "l1tex__t_sectors.sum",
    "l1tex__t_sectors_lookup_hit.sum",
    "sm__inst_executed.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    f"gr__cycles_active{_ELAPSED}",
)
"""Counters that characterize a call. On a GH100 all of them fit into one pass."""

SampledSet = Literal["why"]
MeasuredSet = Literal["overview"]
SETS: dict[str, tuple[str, ...]] = {"why": WHY, "overview": OVERVIEW}


def parse_counters(
    counters: object, argument: str = "counters", sets: Sequence[str] = get_args(SampledSet)
) -> tuple[list[str], bool]:
    """Distinct metric names, and whether all are required; of a set, only those that fit into one pass are used.

    Raises:
        InvalidArgument: `counters` is neither a set nor names.
    """
    known = " or ".join(repr(name) for name in sets)
    accepted = f"accepted is {known}, or a list of metrics as 'dram__bytes_read.sum', which `gpuscope counters` lists"
    if isinstance(counters, str):
        if counters not in sets:
            raise InvalidArgument(f"{argument} is {brief(counters)}; {accepted}")
        return list(SETS[counters]), False
    if not isinstance(counters, Iterable):
        raise InvalidArgument(f"{argument} is {brief(counters)}; {accepted}")
    names = list(counters)
    if not names or not all(isinstance(name, str) and name and is_utf8(name) for name in names):
        raise InvalidArgument(f"{argument} is {brief(names)}; {accepted}")
    return list(dict.fromkeys(names)), True


@dataclass(frozen=True)
class Counter:
    """A counter of a chip, by its base name.

    Attributes:
        name: ``dram__bytes_read``; a metric is this with an ending, ``dram__bytes_read.sum``.
        kind: "counter", "ratio" or "throughput".
        hardware: the part of the chip, as ``dram``.
        unit: of its values, as ``byte``; "" for none.
        description: in CUPTI's words.
    """

    name: str
    kind: str
    hardware: str
    unit: str
    description: str


_KINDS = ("counter", "ratio", "throughput")


def list_counters(chip: str | None = None, *, sampling: bool = False, device: int = 0) -> list[Counter]:
    """The counters of a GPU, sorted by name.

    Args:
        chip: CUPTI's name of it, "GH100"; None takes the chip of `device`.
        sampling: True lists counters for ``profile(counters=...)``, False the larger set for `measure_counters`.
        device: CUDA's number of the GPU.

    Raises:
        InvalidArgument: no such chip.
        NotAvailable: there is no GPU, or no libcupti of CUDA 12.6 or later.
    """
    listed = _core.list_counters(_chip(chip, device), sampling=sampling)
    return sorted(
        (Counter(name, _KINDS[kind], *rest) for name, kind, *rest in listed), key=lambda counter: counter.name
    )


def endings(counter: Counter, chip: str | None = None, *, sampling: bool = False, device: int = 0) -> list[str]:
    """The possible endings of a counter's name: ``.sum``, ``.avg.per_second``, ..."""
    return _core.counter_endings(
        _chip(chip, device), sampling=sampling, name=counter.name, kind=_KINDS.index(counter.kind)
    )


def _chip(chip: str | None, device: int) -> str:
    if chip is None:
        return _core.counter_chip(check_count("device", device, 0, LARGEST))
    chips = _core.counter_chips()
    if chip not in chips:
        near = difflib.get_close_matches(chip.upper(), chips, 3, 0.0)
        raise InvalidArgument(f"chip is {brief(chip)}; nearest are {', '.join(near)}")
    return chip


def check_names(names: Sequence[str], argument: str, *, sampling: bool, device: int = 0) -> None:
    """Checks that the GPU has these metrics; without a GPU or its counters, nothing is checked.

    Raises:
        InvalidArgument: a name is unknown; the message has the nearest names.
    """
    try:
        counters = {counter.name: counter for counter in list_counters(sampling=sampling, device=device)}
    except NotAvailable:  # reading the counters reports the reason
        return
    for name in names:
        base = (
            name
            if name in counters
            else max(filter(lambda base: name.startswith(f"{base}."), counters), key=len, default="")
        )
        if not base:
            near = difflib.get_close_matches(name.split(".")[0] if name.count("__") else name, counters, 3, 0.0)
            raise InvalidArgument(
                f"{argument} has {brief(name)}, which this GPU does not have; nearest are {', '.join(near)}"
            )
        accepted = endings(counters[base], sampling=sampling, device=device)
        if (ending := name[len(base) :]) not in accepted:
            near = [base + close for close in difflib.get_close_matches(ending, accepted, 3, 0.0)]
            raise InvalidArgument(f"{argument} has {brief(name)}; nearest are {', '.join(near)}")
