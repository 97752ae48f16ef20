# SPDX-License-Identifier: Apache-2.0
"""Whether a recording holds all that happened, and every count behind the answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope._core import AuditCounts, Flag, RegionKind
from gpuscope.analysis.rows import SCOPE_BACKWARD, RegionRows
from gpuscope.results import Abstention, Result, abstained, heading, plain_fields
from gpuscope.tables import align_columns
from gpuscope.trace import NONE, Trace, number_of
from gpuscope.units import format_date

Array = np.ndarray[Any, Any]

_NOT_RECORDED = "not recorded"  # prefix of `overhead_source` for another tool's file
TIERS_THAT_TRACE_KERNELS = ("cupti", "cupti-shared")

_DESCRIPTIONS = {name: count.__doc__ for name, count in vars(AuditCounts).items() if isinstance(count, property)}

if TYPE_CHECKING:
    _Counts = AuditCounts
else:
    _Counts = make_dataclass("_Counts", [(name, int) for name in _DESCRIPTIONS], frozen=True)


@dataclass(frozen=True, repr=False)
class Audit(Result, _Counts):
    """The audit of one recording. ``str(audit)`` lists everything.

    Attributes:
        complete: nothing that the recording covers was lost.
        reasons: losses, a sentence each; empty when complete.
        remarks: facts worth knowing although nothing was lost.
        gpu_traced: all GPU work has its record. If False, ``tier_reason`` says why.
        tier: how GPU work was recorded: cupti, cupti-shared, events (GPU time of regions) or cpu.
        tier_reason: why no better tier was available.
        mode: full, ring or aggregate.
        overhead_source: "measured" on this machine; "estimated" from other machines, with the reason; or "not recorded
            by" the tool whose file was read.
        recorded_ns: length of the recorded window.
    """

    complete: bool
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    gpu_traced: bool
    tier: str
    tier_reason: str
    mode: str
    recorded_ns: int
    overhead_source: str = "estimated"
    _trace: Trace | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_trace": None}  # a copy in another process does not carry the recording

    @property
    def overhead_percent(self) -> float:
        """Time added to the program's threads, in percent of the recorded time."""
        return self._percent(self.overhead_ns)

    def _percent(self, time_ns: int) -> float:
        return 100.0 * time_ns / self.recorded_ns if self.recorded_ns > 0 else 0.0

    @property
    def decode_ns_per_record(self) -> float:
        """CPU time of the decode thread for each kernel record, in ns."""
        return self.decode_cpu_ns / self.kernels if self.kernels else 0.0

    @property
    def verdict(self) -> str:
        """One line for the foot of a table."""
        if not self.complete:
            return f"audit: INCOMPLETE - {'; '.join(self.reasons)}"
        source = self.overhead_source.partition(":")[0]
        if self.overhead_cupti_ns:
            source += f"; CUPTI's part {self._percent(self.overhead_cupti_ns):.1f} %"
        overhead = f"overhead {self.overhead_percent:.1f} % ({source})"
        if source.startswith(_NOT_RECORDED):
            overhead = f"overhead {source}"
        if self.tier == "events":
            return (
                "audit: complete - GPU time is that of regions, between CUDA events; "
                f"kernels were not traced{_because(self.tier_reason)}; {overhead}"
            )
        if self.tier_reason.startswith(_NO_DRIVER):
            return f"audit: complete on the CPU, {overhead}"
        if not self.gpu_traced:
            return f"audit: complete on the CPU - GPU work was not traced{_because(self.tier_reason)}; {overhead}"
        if self.launches == 0 and self.kernels and source.startswith(_NOT_RECORDED):
            return f"audit: complete as far as can be told - {_count(self.kernels, 'kernel')}; launches and {overhead}"
        if self.launches == 0 and self.graph_launches == 0:
            return f"audit: complete - no kernel was launched, {self.dropped:,} dropped, {overhead}"
        graphs = f", {_count(self.graph_launches, 'graph launch')} ran {_count(self.graph_nodes, 'node')}"
        return (
            f"audit: complete - {self.launches - self.missing:,} of {self.launches:,} launches have their kernel record"
            f"{graphs if self.graph_launches else ''}, {self.dropped:,} dropped, {overhead}"
        )

    @property
    def brief(self) -> str:
        """The verdict in one short line; in full if something is missing or the tier is unusual."""
        overhead = f"overhead {self.overhead_percent:.1f} %"
        if self.overhead_source.startswith(_NOT_RECORDED):
            overhead = f"overhead {self.overhead_source}"
        notes = f", {_count(len(self.remarks), 'note')}" if self.remarks else ""
        if not self.complete:
            return self.verdict
        if self.tier_reason.startswith(_NO_DRIVER):
            return f"audit: complete on the CPU, {overhead}{notes}"
        if self.tier == "events" or not self.gpu_traced:
            return self.verdict + notes
        if self.launches == 0 and self.kernels and self.overhead_source.startswith(_NOT_RECORDED):
            return self.verdict + notes
        if self.launches == 0 and self.graph_launches == 0:
            return f"audit: complete, no kernel was launched, {overhead}{notes}"
        graphs = f", {_count(self.graph_launches, 'graph launch')}" if self.graph_launches else ""
        return f"audit: complete, {self.launches:,} launches recorded{graphs}, {overhead}{notes}"

    def to_dict(self) -> dict[str, Any]:
        """All attributes; the hash of the recording's content is computed here."""
        derived = ("verdict", "overhead_percent", "decode_ns_per_record")
        return {
            **heading("audit"),
            "recording": self._trace.content_hash if self._trace is not None else None,
            "abstained": abstained(self.abstentions),
            **plain_fields(self, without=("_trace",)),
            **{name: getattr(self, name) for name in derived},
        }

    @property
    def abstentions(self) -> tuple[Abstention, ...]:
        """What the recording cannot answer: GPU work that was not traced, overhead that was not measured."""
        found = []
        if not self.gpu_traced:
            found.append(Abstention("GPU work", self.tier_reason or "it was not traced"))
        if self.overhead_source != "measured":
            found.append(Abstention("overhead", f"{self.overhead_source}; not measured in this run"))
        return tuple(found)

    def __repr__(self) -> str:
        return f"<Audit: {self.verdict.removeprefix('audit: ')}>"

    def __str__(self) -> str:
        lines = [self.verdict]
        lines += [f"  lost: {reason}" for reason in self.reasons]
        lines += [f"  note: {remark}" for remark in self.remarks]
        if not self.gpu_traced and self.tier_reason:
            lines += [f"  GPU: not traced, {self.tier_reason}"]
        lines += [f"  overhead: {self.overhead_source}"]
        values = plain_fields(self, without=("_trace",))
        counts = {name: f"{value:,}" for name, value in values.items() if type(value) is int}
        counts["overhead_percent"] = f"{self.overhead_percent:.2f}"
        counts["decode_ns_per_record"] = f"{self.decode_ns_per_record:.1f}"
        lines += [f"  {line}" for line in align_columns([*counts.items()], left=1)]
        return "\n".join(lines)


Audit.__doc__ = f"{(Audit.__doc__ or '').rstrip()}\n" + "".join(
    f"        {name}: {text}\n" for name, text in _DESCRIPTIONS.items()
)

_NO_DRIVER = "no NVIDIA driver was found"  # the core's message without a GPU to trace

_NAMED = 5  # running kernels

# Losses: counter, noun, and the text after "has/have".
_LOSSES = (
    ("missing", "launch", "no kernel record"),
    ("incomplete", "kernel", "no end"),
    ("zero_time", "record", "no timestamps"),
    ("backward_time", "record", "an end before the start"),
)


def audit(trace: Trace) -> Audit:
    """Judges a recording by the counters it carries.

    Rows overwritten in ring mode are no loss. GPU work launched before the recording is only a remark.
    """
    info = trace.info
    counters = {name: number_of(info, f"audit.{name}") for name in _DESCRIPTIONS}
    counters["graph_nodes"] = max(counters["graph_nodes"], len(trace.graph_nodes))
    mode = info.get("session.mode", "full")
    tier = info.get("session.tier", "")
    reasons = [
        f"{_count(counters[counter], noun)} {'has' if counters[counter] == 1 else 'have'} {what}"
        f"{_without_end(trace) if counter == 'incomplete' else ''}"
        for counter, noun, what in _LOSSES
        if counters[counter]
    ]
    remarks = [note for note in info.get("session.notes", "").split("\n") if note]
    if counters["dropped"]:
        reasons.append(f"CUPTI dropped {_count(counters['dropped'], 'record')}")
    if counters["pool_exhausted"]:
        reasons.append(f"CUPTI found no free buffer {_count(counters['pool_exhausted'], 'time')}")
    if counters["foreign_buffers"]:
        reasons.append(f"another user of CUPTI took part in {_count(counters['foreign_buffers'], 'buffer')}")
    if counters["log_dropped"]:
        reasons.append(f"{_count(counters['log_dropped'], 'region or call', 'regions or calls')} did not fit the log")
    if samples := number_of(info, "audit.samples_dropped"):
        reasons.append(f"{_count(samples, 'sample')} of Python did not fit the log")
    if overflows := number_of(info, "audit.counter_overflows"):
        lost = f"{_count(overflows, 'time')}, as they came faster than they were read"
        asked, last = (number_of(info, name) for name in ("counters.interval_ns", "audit.counter_interval_ns"))
        grown = f"; they are {last / 1e3:g} us long since, not {asked / 1e3:g}" if last > asked > 0 else ""
        reasons.append(f"samples of hardware counters were lost {lost}{grown}")
    if why := info.get("counters.why"):
        remarks.append(f"hardware counters were not sampled, or not to the end: {why}")
    if dropped := number_of(info, "audit.device_samples_dropped"):
        reasons.append(f"{_count(dropped, 'sample')} of NVML found no room")
    if thinned := number_of(info, "audit.device_samples_thinned"):
        remarks.append(f"{_count(thinned, 'sample')} of NVML {'was' if thinned == 1 else 'were'} thinned out")
    if counters["evicted"]:
        evicted = _count(counters["evicted"], "row")
        if mode == "ring":
            remarks.append(f"the ring gave up {evicted}, the oldest")
        else:
            reasons.append(f"{evicted} did not fit the memory cap")
    if counters["refused"]:
        reasons.append(f"{_count(counters['refused'], 'row')} did not fit the memory cap")
    if lost_rows := number_of(info, "session.lost_rows"):
        reasons.append(f"{_count(lost_rows, 'row')} could not be written to the disk")
    if error := info.get("session.spool_error"):
        reasons.append(f"the last segment could not be written to the disk: {error}")
    if (deleted := number_of(info, "file.first_segment") - 1) > 0:
        sentence = f"{_count(deleted, 'older segment')} {'is' if deleted == 1 else 'are'} deleted"
        remarks.append(f"the ring gave up the oldest rows: {sentence}") if mode == "ring" else reasons.append(
            f"{sentence}, to stay within spool_bytes or spool_age or by hand"
        )
    if counters["unnamed"]:
        reasons.append(f"there was no room for the {_count(counters['unnamed'], 'name')} of rows")
    if counters["unread_bytes"]:
        reasons.append(f"{_count(counters['unread_bytes'], 'byte')} of CUPTI's buffers made no record")
    if "session.unfinished" in info:
        reasons.append(info["session.unfinished"])
    if nameless := number_of(info, "file.unnamed"):
        reasons.append(f"{_count(nameless, 'kernel')} {'has' if nameless == 1 else 'have'} no name in the file")
    reasons += _file_losses(info)
    if counters["unattributed"]:
        remarks.append(
            f"{_count(counters['unattributed'], 'GPU record')} came without a launch seen; no region has them"
        )
    if counters["copies_without_record"]:
        copies = _count(counters["copies_without_record"], "call")
        remarks.append(f"{copies} that copy or fill brought no record, as between host buffers or of no bytes")
    for what, counter in (("launches and GPU work were", "gpu_off"), ("regions and operators were", "regions_off")):
        if times := counters[counter]:
            length = f"{counters[f'{counter}_ns'] / 1e6:,.3f} ms"
            remarks.append(f"{what} left out on request {_count(times, 'time')}, for {length} in all")
    if counters["unmatched_exits"]:
        remarks.append(f"{_count(counters['unmatched_exits'], 'region')} ended without having begun in the recording")
    remarks += _remarks_on_ranges(trace)
    return Audit(
        complete=not reasons,
        reasons=tuple(reasons),
        remarks=tuple(remarks),
        gpu_traced=tier in TIERS_THAT_TRACE_KERNELS or (tier == "" and trace.summary.has_device),
        tier=tier,
        tier_reason=info.get("session.tier_reason", ""),
        mode=mode,
        overhead_source=info.get("audit.overhead_source", "estimated"),
        recorded_ns=_recorded_ns(info),
        _trace=trace,
        **counters,
    )


def is_of_another_tool(trace: Trace) -> bool:
    """Whether the recording was read from a file that another tool wrote."""
    return trace.info.get("audit.overhead_source", "").startswith(_NOT_RECORDED)


def is_in_part(trace: Trace) -> bool:
    """Whether the file of the recording held only part of it."""
    return bool(_file_losses(trace.info))


def has_every_region(trace: Trace) -> bool:
    """Whether all regions and driver calls of the recorded time are there, so that the rest was in none."""
    counters = ("audit.refused", "audit.log_dropped", "audit.regions_off", "file.left_out")
    return not is_in_part(trace) and not any(number_of(trace.info, counter) for counter in counters)


def kept_ns(trace: Trace, starts_ns: Array) -> int:
    """Length of the recording. If a ring overwrote rows, from the first start that is left."""
    recorded_ns = max(0, _recorded_ns(trace.info))
    if number_of(trace.info, "audit.evicted") and len(starts_ns):
        return min(recorded_ns, max(0, number_of(trace.info, "session.stop_ns") - int(starts_ns.min())))
    return recorded_ns


def _file_losses(info: Mapping[str, str]) -> list[str]:
    """Losses of the file: how rows were lost, then which."""
    reasons = []
    if "file.unread_segments" in info:
        reasons.append(f"{_count(len(info['file.unread_segments'].splitlines()), 'segment')} could not be read")
    if "file.unfinished" in info:
        last = format_date(number_of(info, "session.stop_ns"))
        reasons.append(f"the recording has no end: the process died or still runs; its last row here is of {last}")
    elif "file.truncated_at" in info:
        reasons.append(f"the file was cut off at byte {info['file.truncated_at']}: what stood behind is gone")
    if blocks := number_of(info, "file.lost_blocks"):
        reasons.append(f"{_count(blocks, 'block')} of the file {'was' if blocks == 1 else 'were'} damaged")
    lines = re.finditer(r"(?a)(\w+) (\d{1,20}) (\d{1,20})", info.get("file.lost_rows", ""))
    rows = [_lost_rows(*line.groups()) for line in lines]
    if rows:
        reasons.append(f"lost with it are {', '.join(rows)}")
    if cut := number_of(info, "file.cut_references"):
        reasons.append(f"{_count(cut, 'reference')} to lost rows {'is' if cut == 1 else 'are'} none now")
    return reasons


def _lost_rows(table: str, kept: str, total: str) -> str:
    """A lost share of rows; a total of 0 means unknown."""
    if total == "0":
        return f"all rows of {table} but {kept}"
    return f"{int(total) - int(kept):,} of {int(total):,} rows of {table}"


def _without_end(trace: Trace) -> str:
    """As ", still running when recording stopped: spin (2), gemm (1)", the most frequent kernels first.

    Files of other tools do not say that the kernels were still running.
    """
    is_foreign = trace.info.get("audit.overhead_source", "").startswith(_NOT_RECORDED)
    why = "" if is_foreign else ", still running when recording stopped"
    variants = trace.kernels.variant[trace.kernels.flags & Flag.INCOMPLETE != 0]
    if not len(variants):
        return why
    names = trace.kernel_names(short=True)
    most = Counter(names[variant] for variant in variants if variant < len(names)).most_common()
    more = [f"{len(most) - _NAMED:,} more"] if len(most) > _NAMED else []
    return f"{why}: " + ", ".join([*(f"{name} ({count:,})" for name, count in most[:_NAMED]), *more])


def _remarks_on_ranges(trace: Trace) -> list[str]:
    """Remarks on ranges of libraries and on backward operators, if single regions are kept."""
    rows = RegionRows(trace)
    if not len(rows):
        return []
    remarks = []
    flags = trace.regions.flags
    still_open = np.flatnonzero(flags & Flag.OPEN)
    kinds = np.append(trace.paths.kind, int(RegionKind.REGION))  # names are skipped if no operator has one
    is_range = (kinds == RegionKind.RANGE)[rows.path[still_open]]
    open_ranges = int(np.count_nonzero(is_range | (flags[still_open] & Flag.ASYNC != 0)))
    if open_ranges:
        remarks.append(f"{_count(open_ranges, 'range')} had not ended when the recording did")
    if (kinds == RegionKind.OP).any() and SCOPE_BACKWARD in rows.path_scopes:
        in_backward = np.array([scope == SCOPE_BACKWARD for scope in rows.path_scopes])[rows.path]
        unjoined = int(np.count_nonzero(in_backward & (rows.sequence >= 0) & (rows.forward == NONE)))
        if unjoined:
            remarks.append(
                f"{_count(unjoined, 'backward operator')} could not be joined to the forward one: "
                "it ran before the recording, or several could be it"
            )
    return remarks


def _recorded_ns(info: Mapping[str, str]) -> int:
    """Length of the recording; of joined windows, without the gaps between them."""
    if "session.recorded_ns" in info:
        return number_of(info, "session.recorded_ns")
    return number_of(info, "session.stop_ns") - number_of(info, "session.start_ns")


def _count(count: int, noun: str, plural: str | None = None) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {plural or noun + ('es' if noun.endswith('ch') else 's')}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
