# SPDX-License-Identifier: Apache-2.0
"""Files of Triton's profiler Proton: traces in Chrome's format, and trees of totals in Hatchet's JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import RegionKind, Work
from gpuscope.errors import CorruptTrace
from gpuscope.paths import open_file
from gpuscope.readers.checks import NO_NAME, Checks
from gpuscope.readers.chrome import Batch, EventMapper, Meanings, arrows_of, names_of_threads, read_parts
from gpuscope.readers.tables import (
    ABSENT_OF_TRACES,
    MOST_NS,
    NONE,
    NOT_GIVEN,
    Column,
    Strings,
    TableBuilder,
    absent,
    json_of,
    kept,
    not_recorded,
    parse,
)
from gpuscope.text import brief

_STREAM = re.compile(r"(?a)(?:.*?(?:Device|GPU):? ?(\d{1,9}).*?)?Stream:? ?(\d{1,9})")
_MOST_OF_NAME = 200  # characters of a lane's name that are parsed
_SCOPES = ("scope", "metric")
_MOST_DEEP = 500
# First lane numbers of graphs and of GPUs. A GPU's lane is GPU * _GPU_STRIDE + stream, above _GPU_LANES.
_GRAPH_LANES, _GPU_LANES, _GPU_STRIDE = 100_000, 200_000, 1_000_000
_ABSENT = (
    "driver calls",
    "copies and fills",
    "launch dimensions",
    "waits",
    "operators and shapes",
    *ABSENT_OF_TRACES,
)
_NOTE = "scopes are from the kernels' call stacks: each appears once, at its first kernel, without a duration"
_ABSENT_OF_TREES = ("single kernels and regions", "shortest and longest durations (the mean is shown instead)")


class ProtonEvents(EventMapper):
    """Maps CPU scopes to regions, and kernels. Proton's arrows attribute kernels to scopes."""

    tool = "Proton"
    wanted = f"none of its events is one of kernel, {', '.join(_SCOPES)}"

    def __init__(self, events: _core.TraceEvents) -> None:
        super().__init__(events)
        self._scopes, self._kernels = TableBuilder(), TableBuilder()
        self._stacks = Meanings(events, self._innermost)
        self._nested: dict[tuple[int, int], int] = {}  # scopes of stacks, by outer scope and name
        self._within = TableBuilder()  # the kernels' scopes by their stacks, until a scope event occurs
        self._arrows = {"s": TableBuilder(), "f": TableBuilder()}  # their begins, and ends

    @staticmethod
    def knows(batch: Batch, word: Callable[[str], int]) -> bool:
        """Whether these are events of Proton."""
        return bool((batch["args.call_stack"] != NONE).any()) or bool(
            np.isin(batch["category"], [each for each in map(word, _SCOPES) if each != NONE]).any()
        )

    def map(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Keeps scopes, kernels and arrows. `finish` joins them."""
        spans = (batch["phase"] == ord("X")) & (batch["category"] != NONE)
        of_scopes = [each for each in map(word, _SCOPES) if each != NONE]
        self.skip(batch, (batch["phase"] == ord("X")) & ~np.isin(batch["category"], [*of_scopes, word("kernel")]))
        names = ("start_ns", "duration_ns", "place", "name")
        for table, which, into in (
            ("region", np.isin(batch["category"], of_scopes), self._scopes),
            ("kernel", batch["category"] == word("kernel"), self._kernels),
        ):
            rows = self.rows(table, batch, spans & which)
            if len(rows):
                into.add({name: batch[name][rows] for name in (*names, *(("flags",) if table == "kernel" else ()))})
            if self._scopes.count:
                self._within = TableBuilder()
            elif len(rows):
                self._within.add({"region": self._stacks(batch["args.call_stack"][rows])[0].astype(np.uint32)})
        for phase, arrows in self._arrows.items():
            rows = kept(batch, (batch["phase"] == ord(phase)) & (batch["id"] != NOT_GIVEN))
            if len(rows):
                arrows.add({name: batch[name][rows] for name in ("start_ns", "place", "id")})

    def _innermost(self, stack: str) -> tuple[int]:
        """The number of a kernel's innermost scope, from ``["ROOT", "step", "forward", "the kernel"]``."""
        listed = json_of(stack)
        names = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        within = NONE
        for name in names[names[:1] == ["ROOT"] : -1][:_MOST_DEEP]:
            within = self._nested.setdefault((within, self.events.intern(name)), len(self._nested))
        return (within,)

    def _lanes(self) -> tuple[Column, Column]:
        """By place: numbers of GPU and stream, and whether it is a thread."""
        streams, threads = [], []
        for place, (_, lane) in enumerate(self.events.places()):
            name = self.names.get(place, "") or (lane if isinstance(lane, str) else "")
            named = _STREAM.match(name[:_MOST_OF_NAME])
            number = lane if isinstance(lane, int) and 0 <= lane < 1 << 48 else 0
            device, stream = divmod(max(number - _GPU_LANES, 0), _GPU_STRIDE)
            if named:
                device, stream = int(named[1] or device), int(named[2])
            streams.append((device % NONE, stream % NONE))
            threads.append(not named and number < _GRAPH_LANES)
        return np.array(streams, np.int64).reshape(-1, 2), np.array(threads, bool)

    def finish(self, strings: Strings, facts: dict[str, str], document: Mapping[str, Any]) -> _core.Store:
        """The recording."""
        streams, is_thread = self._lanes()
        others: dict[str, dict[str, Column]] = {}
        notes = ""
        if self._scopes.count:
            scopes = self._scopes.take()
            # Of scopes that begin together, the innermost launched. It is the shortest, and must be added first.
            order = np.argsort(scopes["duration_ns"], kind="stable")
            order = order[is_thread[scopes["place"][order]]]
            scopes = {name: scopes.pop(name)[order] for name in list(scopes)}
            key = arrows_of(scopes, self._arrows["s"].take())
            scopes["thread"] = self.tables.thread(scopes.pop("place").astype(np.int64))
            if len(order):
                self.tables.add_regions(scopes, key)
            del scopes, key, order  # frees memory: the tables have copies
        if self._kernels.count:
            kernels = self._kernels.take()
            key = arrows_of(kernels, self._arrows["f"].take())
            if self._nested and self._within.count:
                kernels |= self._within.take()
                others = self._scopes_of_stacks(kernels["start_ns"], kernels["region"])
                notes = f"{_NOTE}\n"
            of_kernels = streams[kernels.pop("place")]
            none = np.zeros(len(of_kernels), np.int64)
            kernels["track"] = self.tables.track(of_kernels[:, 0], none, of_kernels[:, 1])
            kernels["variant"] = self.tables.variant(kernels.pop("name").astype(np.int64))
            self.tables.add_work("kernel", {**kernels, "correlation": none.astype(np.uint32)}, key)
            del kernels, key, none, of_kernels
        own = {"session.notes": notes + absent(self.tool, _ABSENT), "audit.overhead_source": not_recorded(self.tool)}
        threads = names_of_threads(self, strings)
        if others:
            threads = {"system_id": [0], "name": [strings("scopes of the kernels")]}
        return self.tables.store(strings, threads, {**own, **facts}, others)

    def _scopes_of_stacks(self, start_ns: Column, within: Column) -> dict[str, dict[str, Column]]:
        """Regions and paths from the kernels' stacks, if there are no scope events. One region per path.

        The times of a scope are unknown: it begins at its first kernel, without a duration.
        """
        parent, name = np.array(list(self._nested), np.int64).T
        first_ns = np.full(len(parent), MOST_NS, np.int64)
        has_scope = within != NONE
        np.minimum.at(first_ns, within[has_scope], start_ns[has_scope])
        depth = np.zeros_like(parent)
        for scope, around in enumerate(parent.tolist()):  # outer scopes have smaller numbers
            depth[scope] = depth[around] + 1 if around != NONE else 0
        for scope, around in reversed(list(enumerate(parent.tolist()))):
            if around != NONE:
                first_ns[around] = min(first_ns[around], first_ns[scope])
        numbers, zeros = np.arange(len(parent)), np.zeros_like(parent)
        return {
            "region": {"start_ns": first_ns, "duration_ns": zeros, "parent": parent, "path": numbers, "thread": zeros},
            "path": {
                "parent": parent,
                "name": name,
                "depth": depth,
                "kind": np.full(len(parent), int(RegionKind.REGION)),
            },
        }

    @property
    def found(self) -> bool:
        """Whether the trace contained events of Proton."""
        return bool(self._scopes.count or self._kernels.count)


# -- trees -----------------------------------------------------------------------------------------------------------


def is_tree(head: bytes) -> bool:
    """Whether a file with this begin is a Hatchet tree: a list whose first object has frames."""
    return head.lstrip()[:1] == b"[" and re.search(rb'"(frame|children)"\s*:', head) is not None


def read_proton_tree(path: str | os.PathLike[str]) -> _core.Store:
    """Reads a tree of Proton (``.hatchet``) as a recording with only totals, as of ``mode="aggregate"``.

    Raises:
        CorruptTrace: it is no JSON, or no such tree.
        GpuscopeError: the file cannot be read.
    """
    name = os.fspath(path)
    with open_file(name) as file:
        text = b"".join(read_parts(file, name))
    try:
        document = parse(text)
    except RecursionError:
        raise CorruptTrace(f"{name!r} cannot be read: its values are nested too deeply", name, 0) from None
    except ValueError as error:
        raise CorruptTrace(f"{name!r} is no JSON, or cut off: {brief(str(error))}", name, 0) from error
    objects = [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []
    roots = [each for each in objects if "frame" in each]
    strings, checks = Strings(), Checks()
    paths: list[tuple[int, int, int]] = []
    totals: list[tuple[int, int, int, int]] = []  # path, name, count, ns
    waiting: list[tuple[Iterator[dict[str, Any]], int, int]] = [(iter(roots), NONE, 0)]
    while waiting:
        nodes, path_above, depth = waiting[-1]
        node = next(nodes, None)
        if node is None:
            waiting.pop()
            continue
        frame, metrics = node.get("frame"), node.get("metrics")
        text_of = frame.get("name") if isinstance(frame, dict) else None
        label = text_of if isinstance(text_of, str) and text_of else NO_NAME
        below = node.get("children")
        children = (each for each in below if isinstance(each, dict)) if isinstance(below, list) and below else None
        spent = _figure(metrics, "time (ns)")
        if spent is None:
            checks.count("kernel", "zero_time", 1)
        elif spent and label == NO_NAME:
            checks.count("kernel", "unnamed", 1)
        if spent and children is None:
            totals.append((path_above, strings(label), max(_figure(metrics, "count") or 1, 1), spent))
            continue
        inner = path_above
        if label != "ROOT" and depth < _MOST_DEEP:  # deeper nodes count in the last path
            inner = len(paths)
            paths.append((path_above, strings(label), depth))
        if spent and label != "ROOT":
            totals.append((inner, strings(label), max(_figure(metrics, "count") or 1, 1), spent))
        if children is not None:
            waiting.append((children, inner, depth + (label != "ROOT")))
    if not totals:
        raise CorruptTrace(f"{name!r} is no tree of Proton: no frame in it has a metric 'time (ns)' above 0", name, 0)
    above, label_of, depths = np.array(paths, np.int64).reshape(-1, 3).T
    inside, kernel, count, spent_ns = np.array(totals, np.int64).T
    tables: dict[str, dict[str, Column]] = {
        "work_total": {
            "path": inside,
            "name": kernel,
            "kind": np.full(len(kernel), int(Work.KERNEL)),
            "count": count,
            "total_ns": spent_ns,
            "min_ns": spent_ns // count,
            "max_ns": spent_ns // count,
        }
    }
    if paths:
        kind = np.full(len(paths), int(RegionKind.REGION))
        tables["path"] = {"parent": above, "name": label_of, "depth": depths, "kind": kind}
    devices = [each for each in objects if "frame" not in each]
    facts = {
        "session.mode": "aggregate",
        "session.tier": "cupti",
        "session.start_ns": "0",
        "session.stop_ns": "0",
        "session.notes": absent("Proton", (*_ABSENT_OF_TREES, *_ABSENT)),
        "audit.overhead_source": not_recorded("Proton"),
        "audit.kernels": str(int(count.sum())),
    }
    if listed := _devices(devices, strings):
        tables["device"] = listed
    facts |= checks.facts(facts)
    return _core.make_store(tables, list(strings.ids), list(facts.items()))


def _figure(metrics: Any, name: str) -> int | None:
    """A metric; 0 if missing, None if it is no valid number."""
    value = metrics.get(name, 0) if isinstance(metrics, dict) else 0
    return int(value) if isinstance(value, (int, float)) and 0 <= value < MOST_NS else None


def _devices(listed: list[dict[str, Any]], strings: Strings) -> dict[str, Column]:
    """The table of GPUs from ``{"CUDA": {"0": {"arch": "90", "num_sms": 132, ...}}}``."""
    rows = []
    for each in listed:
        for ordinal, facts in each["CUDA"].items() if isinstance(each.get("CUDA"), dict) else ():
            if isinstance(facts, dict) and ordinal.isdecimal() and len(ordinal) < 6:
                arch = str(facts.get("arch", ""))
                number = int(arch) if arch.isdecimal() and len(arch) < 5 else 0
                sms = facts.get("num_sms")
                rows.append((int(ordinal), sms if isinstance(sms, int) and 0 < sms < NONE else 0, *divmod(number, 10)))
    if not rows:
        return {}
    names = ("ordinal", "multiprocessors", "capability_major", "capability_minor")
    return dict(zip(names, np.array(rows, np.int64).T, strict=True))
