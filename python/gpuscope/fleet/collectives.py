# SPDX-License-Identifier: Apache-2.0
"""The collectives of one process: each communication kernel's communicator, place in its sequence, kind and bytes.

The communicator comes from the first source that a kernel has:

* "nvtx": the call of NCCL that launched it, or whose group did, in ``trace.collectives``;
* "arguments": the arguments of the collective in a trace of torch.profiler;
* "recorder": the call in torch's Flight Recorder before the kernel was launched;
* "order": the kernel's name and stream, if nothing else was recorded;
* "gloo": operators of gloo, which run on the CPU, if the Flight Recorder does not have them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from gpuscope._core import CollectiveKind, Flag, PayloadType, Work
from gpuscope.frameworks.torch_flight_recorder import FACT, item_bytes, read_flight_recorder
from gpuscope.steps.steps import calls_of
from gpuscope.trace import NONE, Trace

Array = np.ndarray[Any, Any]

# Parts of names in lower case and without "_"; the first that occurs counts. Names of NCCL's kernels and ranges, of
# torch's collectives, of NVSHMEM, of vLLM's and torch's own all-reduce, and of DeepEP.
_KINDS = (
    ("barrier", "barrier"),
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("deepep", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "other"),  # of one message, of an exchange, or of an all-to-all
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
# Prefixes of ranges and operators whose names contain the kind; other names are the program's.
_RANGES = ("nccl", "c10d::", "_c10d_functional::")
_GLOO = "gloo:"
_POINT_TO_POINT = ("send", "recv", "other")

# Values of NCCL's calls, then those of torch's operators.
_ID, _EPOCH, _NUMBER, _MESSAGE, _RANKS, _OWN_RANK = "id", "epoch", "number", "message", "ranks", "own rank"
_PEER = "Peer rank"
_NAME, _GROUP, _MEMBERS, _TYPE = "Collective name", "Process Group Name", "Process Group Ranks", "dtype"
_SIZE, _IN, _OUT = "Group size", "In msg nelems", "Out msg nelems"
_SEQUENCE, _SOURCE, _DESTINATION = "Seq", "Src Rank", "Dst Rank"
_TEXTS = (_NAME, _GROUP, _MEMBERS, _TYPE)
_NUMBERS = (_PEER, _SIZE, _IN, _OUT, _SEQUENCE, _SOURCE, _DESTINATION)

Values = dict[str, Any]


@dataclass
class Collective:
    """One collective of one process.

    Attributes:
        name: the name of its kernel, or of gloo's operator.
        kernel: its row of ``trace.kernels``; -1 for gloo.
        start_ns: start of its kernel, the arrival.
        end_ns: end of its kernel, the release.
        communicator: hash of the communicator; -1 until it is known.
        size: number of ranks in the communicator; -1 if unknown.
        sequence: its number among those of its communicator, as NCCL's calls or torch count it; else its place there.
        kind: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send, recv, barrier or other.
        bytes: the message of one rank as NCCL counts it: of an all_gather its input, of a reduce_scatter its output;
            -1 if unknown.
        called_ns: time of the launch on the host; -1 if unknown, as in a CUDA graph.
        source: how the communicator was found, as the module says.
    """

    name: str
    kernel: int
    start_ns: int
    end_ns: int
    kind: str
    communicator: int = -1
    size: int = -1
    sequence: int = -1
    bytes: int = -1
    called_ns: int = -1
    source: str = "order"
    key: tuple[Any, ...] = field(default=(), repr=False)


@lru_cache(maxsize=1 << 16)
def content_hash(text: str) -> int:
    """A number of 64 bits, with sign, that is the same for the same text in all processes."""
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little", signed=True)


@lru_cache(maxsize=1 << 14)
def collective_kind(name: str) -> str:
    """The kind of collective that the name of a kernel, range or operator contains; "other" without one."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), "other")


def find_collectives(trace: Trace, rows: Array) -> list[Collective]:
    """The collectives of some communication kernels of one GPU, in order of their start.

    Args:
        trace: the recording.
        rows: the kernels' rows of ``trace.kernels``.
    """
    if len(rows) == 0:
        return []
    kernels = trace.kernels
    rows = rows[np.argsort(kernels.start_ns[rows], kind="stable")]
    names, variants = trace.kernel_names(), np.minimum(kernels.variant[rows], len(trace.variants) - 1)
    starts = kernels.start_ns[rows]
    found = [
        Collective(names[variant], row, start, end, collective_kind(names[variant]))
        for row, start, end, variant in zip(
            *(each.tolist() for each in (rows, starts, starts + kernels.duration_ns[rows], variants)), strict=True
        )
    ]
    kind_of_path = _kinds_of_paths(trace)
    regions = kernels.region[rows]
    paths = np.append(trace.regions.path, NONE)[np.minimum(regions, len(trace.regions))]
    for each, path in zip(found, paths.tolist(), strict=True):
        if each.kind == "other":
            each.kind = kind_of_path[path] if path < len(kind_of_path) else "other"
    _identify(trace, found, rows)
    launched = np.append(trace.api.start_ns, -1)[calls_of(trace, kernels.correlation[rows])]
    launched[(kernels.flags[rows] & Flag.IN_GRAPH) != 0] = -1
    for each, at in zip(found, launched.tolist(), strict=True):
        each.called_ns = at
    unknown = [row for row, each in enumerate(found) if each.source == "order"]
    _find_in_recorder(trace, [found[row] for row in unknown], launched[unknown])
    streams = np.append(trace.tracks.stream, 0)[np.minimum(kernels.track[rows], len(trace.tracks))]
    order = np.unique(streams, return_inverse=True)[1]
    for each, stream in zip(found, order.tolist(), strict=True):
        each.key = each.key or ("order", each.name, each.kind, stream)
    return _numbered(found)


def find_gloo(trace: Trace) -> list[Collective]:
    """The collectives that gloo ran on the CPU, in order of their start. Their times are those of the operators."""
    names = [trace.string(name) for name in trace.paths.name.tolist()]
    is_gloo = np.array([*(name.startswith(_GLOO) for name in names), False])
    regions = trace.regions
    rows = np.flatnonzero(is_gloo[np.minimum(regions.path, len(names))])
    rows = rows[np.argsort(regions.start_ns[rows], kind="stable")]
    starts = regions.start_ns[rows]
    columns = (starts, starts + regions.duration_ns[rows], regions.path[rows])
    found = [
        Collective(names[path], -1, start, end, collective_kind(names[path]), source="gloo", key=("gloo",))
        for start, end, path in zip(*(each.tolist() for each in columns), strict=True)
    ]
    _find_in_recorder(trace, found, starts)
    return _numbered(found)


def _find_in_recorder(trace: Trace, found: list[Collective], launched_ns: Array) -> None:
    """Fills in the last call of the same kind before each launch, as torch's Flight Recorder has it.

    A call that is the last one before several launches stands for none of them. Numbers of sends and receives differ
    between ranks and are not used.
    """
    info, anchors = trace.info, trace.anchors
    calls = read_flight_recorder(info.get(FACT, "[]"), info.get("metadata.distributedInfo", "{}"))
    if not calls:
        return
    ahead_ns = int(np.median(anchors.realtime_ns - anchors.start_ns)) if len(anchors) else 0
    kinds, wanted = [collective_kind(call.name) for call in calls], [each.kind for each in found]
    for kind in set(wanted) - set(_POINT_TO_POINT):
        of_kind = [call for call, its in zip(calls, kinds, strict=True) if its == kind]
        members = [row for row, its in enumerate(wanted) if its == kind]
        created = np.array([call.created_ns - ahead_ns for call in of_kind], np.int64)
        last = np.searchsorted(created, launched_ns[members], side="right") - 1
        once = np.bincount(last + 1, minlength=len(of_kind) + 1) == 1
        for row, at in zip(members, last.tolist(), strict=True):
            if at >= 0 and once[at + 1]:
                call, each = of_kind[at], found[row]
                each.key, each.sequence = ("torch", call.group), call.sequence
                each.size, each.bytes, each.source = call.size, call.bytes, "recorder"


def _numbered(found: list[Collective]) -> list[Collective]:
    """Gives each its communicator and sequence; recorded numbers count if they are complete and distinct."""
    counts: Counter[tuple[Any, ...]] = Counter()
    given = Counter((each.key, each.sequence) for each in found)
    uncertain = {key for (key, sequence), count in given.items() if sequence < 0 or count > 1}
    for each in found:
        if each.key in uncertain:
            each.sequence = counts[each.key]
            counts[each.key] += 1
        each.communicator = content_hash(repr(each.key))
    return found


def _kinds_of_paths(trace: Trace) -> list[str]:
    """The kind that the innermost range of a library with a kind gives, of each call path."""
    found: list[str] = []
    for name_id, parent in zip(trace.paths.name.tolist(), trace.paths.parent.tolist(), strict=True):
        name = trace.string(name_id)
        kind = collective_kind(name) if name.startswith(_RANGES) else "other"
        found.append(found[parent] if kind == "other" and parent < len(found) else kind)
    return found


# -- communicators ---------------------------------------------------------------------------------------------------
def _identify(trace: Trace, found: list[Collective], rows: Array) -> None:
    """Fills in what the ranges and operators that launched the kernels say."""
    given = _given(trace)
    carriers = {region for region, values in given.items() if _ID in values or _NAME in values}
    if not carriers:
        return
    kinds = np.array([*_kinds_of_paths(trace), "other"], object)
    kind_of = kinds[np.minimum(trace.regions.path, len(kinds) - 1)]
    nearest = _nearest(trace, carriers, trace.kernels.region[rows])
    of_groups = _of_groups(trace, carriers, rows)
    of_nodes = _of_nodes(trace, carriers, rows)
    for each, carrier, group in zip(found, nearest.tolist(), of_groups, strict=True):
        members = [carrier] if carrier != NONE else group if each.name.startswith("nccl") else []
        captured = [] if members else of_nodes.get(each.kernel, [])
        if members or captured:
            chosen = members or captured
            known = {collective_kind(given[region].get(_NAME, "")) for region in chosen} - {"other"}
            known = known or {kind_of[region] for region in chosen}
            _fill(each, [given[region] for region in chosen], known, is_node=bool(captured))


def _given(trace: Trace) -> dict[int, Values]:
    """The values of collectives, by region: of NCCL's calls, and the arguments of torch's."""
    table, found = trace.payloads, dict[int, Values]()
    is_text = table.type == int(PayloadType.TEXT)
    is_number = np.isin(table.type, [int(PayloadType.UNSIGNED), int(PayloadType.SIGNED)])
    for name in np.unique(table.name).tolist():
        known = trace.string(name)
        if known not in (*_TEXTS, *_NUMBERS):
            continue
        typed = is_text if known in _TEXTS else is_number
        rows = np.flatnonzero((table.name == name) & typed & (table.region < len(trace.regions)))
        for region, value in zip(table.region[rows].tolist(), table.value[rows].tolist(), strict=True):
            found.setdefault(region, {})[known] = trace.string(value) if known in _TEXTS else value
    groups, calls = trace.communicators, trace.collectives
    columns = (groups.id, groups.epoch, groups.ranks, groups.rank)
    members = {
        (number, epoch): {_RANKS: ranks or -1, _OWN_RANK: None if rank == NONE else rank}
        for number, epoch, ranks, rank in zip(*(each.tolist() for each in columns), strict=True)
    }
    # Ranks send and receive unequally often: numbers that count this too differ between them.
    between_two = np.isin(calls.kind, (int(CollectiveKind.SEND), int(CollectiveKind.RECV)))
    uneven = set(zip(calls.communicator[between_two].tolist(), calls.epoch[between_two].tolist(), strict=True))
    fields = (calls.region, calls.communicator, calls.epoch, calls.sequence, calls.bytes)
    for region, number, epoch, sequence, size in zip(*(each.tolist() for each in fields), strict=True):
        if region < len(trace.regions):
            values = {_ID: number, _EPOCH: epoch, _MESSAGE: size or -1, **members.get((number, epoch), {})}
            values[_NUMBER] = -1 if (number, epoch) in uneven else sequence
            found.setdefault(region, {}).update(values)
    return found


def _nearest(trace: Trace, carriers: set[int], regions: Array) -> Array:
    """The innermost carrier around each region, the region itself included; NONE without."""
    count = len(trace.regions)
    stops = np.zeros(count + 1, bool)
    stops[[count, *carriers]] = True
    parents = np.append(trace.regions.parent, NONE)
    at = np.minimum(regions, count)
    while not stops[at].all():
        at = np.where(stops[at], at, np.minimum(parents[at], count))
    return np.where(at == count, NONE, at)


def _of_groups(trace: Trace, carriers: set[int], rows: Array) -> list[list[int]]:
    """The calls of NCCL since the previous launch of the thread, which ncclGroupEnd launches together."""
    calls = calls_of(trace, trace.kernels.correlation[rows])
    calls[(trace.kernels.flags[rows] & Flag.IN_GRAPH) != 0] = -1
    regions = np.array(sorted(carriers))
    # Calls in a capture launch nothing.
    regions = regions[~np.isin(trace.regions.path[regions], trace.graph_nodes.path)]
    regions = regions[np.argsort(trace.regions.start_ns[regions], kind="stable")]
    found: list[list[int]] = [[] for _ in rows]
    for thread in np.unique(trace.api.thread[calls[calls >= 0]]).tolist():
        own = regions[trace.regions.thread[regions] == thread]
        launched = np.flatnonzero(calls >= 0)
        launched = launched[trace.api.thread[calls[launched]] == thread]
        launched = launched[np.argsort(trace.api.start_ns[calls[launched]], kind="stable")]
        moments = trace.api.start_ns[calls[launched]]
        until = np.searchsorted(trace.regions.start_ns[own], moments, side="right")
        for at, first, last in zip(launched.tolist(), [0, *until[:-1].tolist()], until.tolist(), strict=True):
            found[at] = own[first:last].tolist()
    return found


def _of_nodes(trace: Trace, carriers: set[int], rows: Array) -> dict[int, list[int]]:
    """Of kernels in CUDA graphs, the carriers with the call path that the node was captured in."""
    nodes = trace.graph_nodes
    chosen = np.flatnonzero((nodes.kind == int(Work.KERNEL)) & (nodes.path != NONE) & np.isin(nodes.event, rows))
    captured: dict[int, list[int]] = {}
    if len(chosen):
        for region in carriers:
            captured.setdefault(int(trace.regions.path[region]), []).append(region)
    pairs = zip(nodes.event[chosen].tolist(), nodes.path[chosen].tolist(), strict=True)
    return {event: captured[path] for event, path in pairs if path in captured}


def _fill(each: Collective, values: list[Values], kinds: set[str], is_node: bool) -> None:
    """Fills in what the carriers say, as far as they agree."""
    if each.kind == "other" and len(kinds) == 1:
        each.kind = kinds.pop()
    last, is_one = values[-1], len(values) == 1
    point_to_point = each.kind in _POINT_TO_POINT
    sizes = [_bytes_of(value) for value in values]
    if is_node:  # all captures at that path; which of them it was is not known
        if len({value.get(_ID, value.get(_GROUP)) for value in values}) > 1:
            return
        each.bytes = sizes[0] if len(set(sizes)) == 1 else -1
    else:
        each.bytes = -1 if -1 in sizes else sum(sizes)
    if _ID in last:
        each.source, each.size, each.key = "nvtx", last.get(_RANKS, -1), ("nccl", last[_ID], last[_EPOCH])
        ends, number = (last.get(_OWN_RANK), last.get(_PEER)), last[_NUMBER]
    else:
        each.source, each.size = "arguments", last.get(_SIZE, -1)
        each.key = ("torch", last.get(_GROUP, ""), last.get(_MEMBERS, ""), each.size)
        ends, number = (last.get(_SOURCE), last.get(_DESTINATION)), last.get(_SEQUENCE, -1) if is_one else -1
    each.sequence = -1 if point_to_point or is_node else number
    if point_to_point:  # counted apart, as other ranks of the communicator lack them
        known = is_one and None not in ends and each.kind != "other"
        if known and each.kind == "recv" and _ID in last:
            ends = ends[::-1]
        each.key = (*each.key, *ends) if known else (*each.key, each.kind)
        each.size = 2 if known else -1


def _bytes_of(values: Values) -> int:
    """The message of one rank; -1 if unknown."""
    if _MESSAGE in values:
        return int(values[_MESSAGE])
    items = [values[name] for name in (_IN, _OUT) if values.get(name, 0) > 0]
    kind = values.get(_TYPE, "")
    size = item_bytes(kind)
    return min(items) * size if items and size > 0 else -1
