# SPDX-License-Identifier: Apache-2.0
"""Recordings of one rank of a job, written as what its GPU did; every time is given, in ns since `START`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.gscope import NONE
from fakes.recordings import make_trace
from gpuscope._core import CallKind, CollectiveKind, Flag, FunctionKind, PayloadType, RegionKind, Work
from gpuscope.recording import Recording
from gpuscope.trace import Trace

MS = 1_000_000
START = 1_700_000_000_000_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "gemm"
_KINDS = {
    "ncclAllReduce": CollectiveKind.ALL_REDUCE,
    "ncclAllGather": CollectiveKind.ALL_GATHER,
    "ncclReduceScatter": CollectiveKind.REDUCE_SCATTER,
    "ncclBroadcast": CollectiveKind.BROADCAST,
    "ncclSend": CollectiveKind.SEND,
    "ncclRecv": CollectiveKind.RECV,
}


class RankRecording:
    """Regions, work and payloads of one process."""

    def __init__(self, end: int = 1000, **info: str) -> None:
        facts = {"session.mode": "full", "session.tier": "cupti"}
        edges = {"session.start_ns": str(START), "session.stop_ns": str(START + end)}
        self.info = facts | edges | {name.replace("_", ".", 1): value for name, value in info.items()}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._known: dict[str, dict[Any, int]] = {}
        self._groups: dict[int, dict[str, Any]] = {}  # the latest communicator of each id

    def step(self, start: int, end: int, number: int = 0) -> int:
        """A step that was marked."""
        return self.region(f"ProfilerStep#{number}", start, end)

    def region(self, name: str, start: int, end: int, parent: int = NONE, **payload: int | str) -> int:
        """A region with the values that it was given, "_" for spaces in their names."""
        above = self._rows["region"][parent]["path"] if parent != NONE else NONE
        kind = int(RegionKind.RANGE)
        path = self._number("path", (name, above), name=name, parent=above, kind=kind)
        times = {"start_ns": START + start, "duration_ns": end - start}
        row = self._add("region", **times, parent=parent, path=path, thread=0)
        for key, value in payload.items():
            text = isinstance(value, str)
            kinds = {"type": int(PayloadType.TEXT if text else PayloadType.UNSIGNED)}
            stored = self._add("text", text=value) if text else value
            self._add("payload", region=row, name=key.replace("_", " "), value=stored, is_text=text, **kinds)
        return row

    def call_of_nccl(self, name: str, start: int, communicator: int, size: int, parent: int = NONE, **more: int) -> int:
        """A call of NCCL of 10 ns, with its row of ``collectives``."""
        region = self.region(name, start, start + 10, parent, **more)
        group = self._groups.get(communicator)
        if group is None:
            group = self._group(start, communicator, 0, NONE)
        row = {"communicator": communicator, "sequence": group["calls"], "bytes": size, "epoch": group["epoch"]}
        group["calls"] += 1
        self._add("collective", start_ns=START + start, region=region, kind=int(_KINDS[name]), **row)
        return region

    def _group(self, start: int, communicator: int, ranks: int, rank: int) -> dict[str, Any]:
        epoch = self._groups[communicator]["epoch"] + 1 if communicator in self._groups else 0
        values = {"id": communicator, "calls": 0, "epoch": epoch, "ranks": ranks, "rank": rank}
        row = self._add("communicator", start_ns=START + start, **values)
        self._groups[communicator] = self._rows["communicator"][row]
        return self._groups[communicator]

    def collection(self, start: int, end: int) -> None:
        """Python collects garbage."""
        name = self._add("text", text="collect")
        times = {"start_ns": START + start, "duration_ns": end - start}
        self._add("python_function", **times, name=name, kind=int(FunctionKind.GARBAGE), thread=0, parent=NONE)

    def synchronization(self, start: int, end: int) -> None:
        """The host waits for the GPU."""
        self._add("api", start_ns=START + start, duration_ns=end - start, correlation=0, region=NONE, call=2)

    def sample(self, start: int, end: int, file: str, function: str, line: int) -> None:
        """Samples of the main thread in a function, each ms."""
        texts = {name: self._add("text", text=text) for name, text in (("file", file), ("function", function))}
        stack = self._number("stack", (file, function, line), parent=NONE, line=line, instruction=NONE, **texts)
        times = {"start_ns": START + start, "duration_ns": end - start, "cpu_ns": end - start}
        self._add("python_sample", **times, stack=stack, count=max((end - start) // 1_000_000, 1), thread=0)

    def clock(self, at: int, mhz: int, busy: int = 100, most: int = 1980) -> None:
        """A reading of the GPU's clock."""
        unread = ("memory_used_bytes", "throttle_reasons", "power_mw", "power_limit_mw", "power_limit_default_mw")
        more = dict.fromkeys((*unread, "memory_mhz", "temperature_c", "memory_busy_percent"), -1)
        read = {"sm_mhz": mhz, "sm_max_mhz": most, "busy_percent": busy}
        self._add("device_sample", start_ns=START + at, device=0, **read, **more)

    def anchor(self, at: int, realtime: int) -> None:
        """The time of day at a moment of the recording's clock."""
        self._add("anchor", start_ns=START + at, realtime_ns=START + realtime, monotonic_ns=at)

    def creation_of_nccl(self, start: int, communicator: int, ranks: int, rank: int) -> None:
        """A communicator is created."""
        self.region("ncclCommInitRank", start, start + 10)
        self._group(start, communicator, ranks, rank)

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        region: int = NONE,
        stream: int = 7,
        device: int = 0,
        launched: int | None = None,
        blocks: int = 1,
    ) -> int:
        """A kernel; launched 5 ns before it starts, or when that is given."""
        correlation = len(self._rows.get("api", ())) + 1
        called = {"start_ns": START + (start - 5 if launched is None else launched), "duration_ns": 1}
        self._add("api", **called, correlation=correlation, region=region, call=0)
        return self._kernel(name, start, end, stream, device, correlation, region, 0, blocks)

    def replay(self, kernels: list[tuple[str, int, int]], path_of: int = NONE, stream: int = 7) -> None:
        """A launch of a CUDA graph; `path_of` is a region with the call path of the capture."""
        correlation = len(self._rows.get("api", ())) + 1
        self._add(
            "api", start_ns=START + kernels[0][1] - 5, duration_ns=1, correlation=correlation, region=NONE, call=1
        )
        path = self._rows["region"][path_of]["path"] if path_of != NONE else NONE
        for name, start, end in kernels:
            row = self._kernel(name, start, end, stream, 0, correlation, NONE, int(Flag.IN_GRAPH), 1)
            self._add("graph_node", event=row, path=path, kind=int(Work.KERNEL))

    def copy(self, start: int, end: int, stream: int = 8, device: int = 0) -> None:
        """A copy to the GPU."""
        track = self._number("track", (device, stream), device=device, context=1, stream=stream)
        times = {"start_ns": START + start, "duration_ns": end - start}
        self._add("memcpy", **times, bytes=1, kind=1, source=2, destination=3, peer=255, track=track, region=NONE)

    def _kernel(
        self,
        name: str,
        start: int,
        end: int,
        stream: int,
        device: int,
        correlation: int,
        region: int,
        flags: int,
        blocks: int,
    ) -> int:
        grid = {"grid_x": blocks, **dict.fromkeys(("grid_y", "grid_z", "block_x", "block_y", "block_z"), 1)}
        variant = self._number("variant", (name, blocks), name=name, **grid)
        track = self._number("track", (device, stream), device=device, context=1, stream=stream)
        times = {"start_ns": START + start, "duration_ns": end - start}
        row = {"correlation": correlation, "variant": variant, "track": track, "region": region, "flags": flags}
        return self._add("kernel", **times, **row)

    def _add(self, table: str, **values: Any) -> int:
        self._rows.setdefault(table, []).append(values)
        return len(self._rows[table]) - 1

    def _number(self, table: str, key: Any, **values: Any) -> int:
        known = self._known.setdefault(table, {})
        if key not in known:
            known[key] = self._add(table, **values)
        return known[key]

    def trace(self) -> Trace:
        """The recording."""
        rows = {name: [dict(row) for row in each] for name, each in self._rows.items()}
        texts = [""]
        given = [row["text"] for row in rows.pop("text", ())]

        def text_id(row: int) -> int:
            if given[row] not in texts:
                texts.append(given[row])
            return texts.index(given[row])

        for row in rows.get("payload", ()):
            if row.pop("is_text"):
                row["value"] = text_id(row["value"])
        for table, columns in (("python_function", ("name",)), ("stack", ("file", "function"))):
            for row in rows.get(table, ()):
                row.update({column: text_id(row[column]) for column in columns})
        rows["thread"] = [{"system_id": 1, "name": "MainThread"}]
        kinds = {"cuLaunchKernel": CallKind.LAUNCH, "cuGraphLaunch": CallKind.GRAPH_LAUNCH}
        kinds["cuStreamSynchronize"] = CallKind.SYNC
        rows["call"] = [{"name": name, "kind": int(kind)} for name, kind in kinds.items()]
        tables = {name: {column: [row[column] for row in each] for column in each[0]} for name, each in rows.items()}
        return make_trace(tables, texts, self.info)


def write_rank(
    folder: Path,
    rank: int,
    world_size: int,
    *,
    slow: int = -1,
    steps: int = 12,
    host: str = "node-a",
    name: str | None = None,
) -> Path:
    """Writes the recording of a rank: steps of 1 ms, each with a product and then an all-reduce.

    The product takes 400 us, that of the rank `slow` 600 us. All ranks leave the all-reduce together.
    """
    facts = {"process_rank": str(rank), "process_world_size": str(world_size), "process_host": host}
    made = RankRecording(steps * MS, **facts)
    for number in range(steps):
        start = number * MS
        made.step(start, start + MS, number)
        arrival = start + (600_000 if rank == slow else 400_000)
        made.kernel(GEMM, start + 10, arrival)
        made.kernel(ALL_REDUCE, arrival, start + (700_000 if slow >= 0 else 500_000), stream=9)
    path = folder / (name or f"rank-{rank:05d}.gscope")
    path.parent.mkdir(parents=True, exist_ok=True)
    Recording(made.trace().store).save(path)
    return path


def write_job(folder: Path, ranks: int = 8, *, slow: int = -1, steps: int = 12) -> Path:
    """Writes the recordings of all ranks into the folder, four ranks a host."""
    for rank in range(ranks):
        write_rank(folder, rank, ranks, slow=slow, steps=steps, host=f"node-{'abcdefgh'[rank // 4]}")
    return folder
