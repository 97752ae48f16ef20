# SPDX-License-Identifier: Apache-2.0
"""Bytes and operations per second of kernels and regions, compared with the measured peaks of the GPU.

Bytes come from the memory's counters (``profile(counters="why")``), else they are the least that operators must move by
the shapes of their inputs. Operations come from shapes (``record_shapes=True``), the tensor cores' share of time from
counters. Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from gpuscope import _core, plots
from gpuscope._core import Flag
from gpuscope.analysis.flops import count_flops
from gpuscope.analysis.rows import RegionRows
from gpuscope.analysis.traffic import count_bytes
from gpuscope.arguments import check_choice, check_count
from gpuscope.counters.sampled import LEAST_SAMPLES, brief_path
from gpuscope.counters.timelines import timelines
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.results import Result
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
from gpuscope.steps.steps import Array
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.trace import NONE, Trace
from gpuscope.units import format_rate, format_share, format_time

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

    from gpuscope.benchmarking.roofline import Kind

BANDWIDTH = "bandwidth"
_FLOAT_TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
}
_READ, _WRITTEN, _BOTH = "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes.sum"
_TENSOR = "sm__pipe_tensor_cycles_active"
_MOST_KNOWN = 0.9  # of a row's kernel time; with less, its bytes would be incomplete
_HALF = 0.5
_ROWS = 10
PointKind = Literal["kernel", "region"]
_COLUMNS = ("time", "memory", "of peak", "computes", "of peak", "tensor", "FLOP/B", "limit", "bytes")
_DEEPEST = 512  # most regions to look through; deeper ones are those of damaged files
COUNTERS, SHAPES = "counters", "shapes"


@dataclass(frozen=True)
class RooflinePoint:
    """Some GPU work. Unknown values are None.

    Attributes:
        name: of the kernel, or the path of the region.
        kind: "kernel" or "region".
        count: number of kernels.
        seconds: their total duration.
        bandwidth: bytes of the GPU's memory per second.
        bandwidth_from: "counters", "shapes", or "".
        compute: floating-point operations per second, from shapes.
        dtype: the type of most of them, as "bfloat16"; "" without any.
        tensor_active: share of the time in which the tensor cores worked, by counters.
        share_of_bandwidth: of the measured peak.
        share_of_compute: of the measured peaks of its types.
        limit: "memory-bound", "compute-bound", "latency-bound" if both are below 60 %, or "" if unknown.
    """

    name: str
    kind: str
    count: int
    seconds: float
    bandwidth: float | None
    bandwidth_from: str
    compute: float | None
    dtype: str
    tensor_active: float | None
    share_of_bandwidth: float | None
    share_of_compute: float | None
    limit: str

    @property
    def intensity(self) -> float | None:
        """Operations per byte."""
        return self.compute / self.bandwidth if self.compute and self.bandwidth else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "intensity": self.intensity}


@dataclass(frozen=True, repr=False)
class Roofline(Result):
    """The kernels and regions of one GPU compared with its peaks; printing it shows them.

    Attributes:
        device: CUDA's number of it.
        gpu: its name.
        peaks: given or measured: "bandwidth" in B/s, and types in FLOP/s.
        reasons: why a required peak is unknown, by its name.
        kernels: by name, the longest first.
        regions: by call path, likewise.
        unseen: missing data, and the option that records it.
    """

    device: int
    gpu: str
    peaks: dict[str, float]
    reasons: dict[str, str]
    kernels: tuple[RooflinePoint, ...]
    regions: tuple[RooflinePoint, ...]
    unseen: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        return {
            "device": self.device,
            "gpu": self.gpu,
            "peaks": self.peaks,
            "reasons": self.reasons,
            "kernels": [each.to_dict() for each in self.kernels],
            "regions": [each.to_dict() for each in self.regions],
            "unseen": list(self.unseen),
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per kernel and region."""
        return [each.to_dict() for each in (*self.kernels, *self.regions)]

    def plot(self, kind: PointKind = "kernel", top: int = 12, ax: Axes | None = None) -> Axes:
        """Plots operations per second over operations per byte under the measured peaks, if both are known.

        Args:
            kind: "kernel" or "region".
            top: number of the longest to plot.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: the kind is another, or `top` is below 1.
        """
        check_choice("kind", kind, get_args(PointKind))
        points = [
            (each.name, each.intensity, each.compute, each.seconds)
            for each in (self.kernels if kind == "kernel" else self.regions)
            if each.intensity and each.compute
        ][: check_count("top", top, 1)]
        rates = {name: value for name, value in self.peaks.items() if name != "bandwidth"}
        return plots.roofline(points, self.peaks.get("bandwidth"), rates, ax=ax, title=f"GPU {self.device} {self.gpu}")

    def __str__(self) -> str:
        known = ", ".join(f"{name} {_rate(name, value)}" for name, value in self.peaks.items())
        lines = [f"roofline of GPU {self.device} {self.gpu}: measured peaks {known or 'are not known'}"]
        lines += [f"  no peak of {name}: {reason}" for name, reason in self.reasons.items()]
        for title, points in (("kernel", self.kernels), ("region", self.regions)):
            shown = [each for each in points if each.bandwidth is not None or each.compute is not None][:_ROWS]
            if shown:
                header = (title, *_COLUMNS)
                lines += ["", *align_columns([header, *map(_cells, shown)], left=1, rule=True)]
        if any(each.bandwidth_from == SHAPES for each in (*self.kernels, *self.regions)):
            lines += [
                "",
                "bytes from shapes: the least that operators must move; caches save some, reading twice adds",
            ]
        if self.unseen:
            lines += ["", *(f"not known: {each}" for each in self.unseen)]
        return "\n".join(lines)


def _rate(name: str, value: float) -> str:
    return format_rate(value, "B" if name == BANDWIDTH else "FLOP")


def _cells(point: RooflinePoint) -> tuple[str, ...]:
    def share(value: float | None) -> str:
        return "-" if value is None else format_share(value)

    return (
        brief_path(point.name) if point.kind == "region" else point.name,
        format_time(point.seconds * 1e6),
        "-" if point.bandwidth is None else format_rate(point.bandwidth, "B"),
        share(point.share_of_bandwidth),
        "-" if point.compute is None else format_rate(point.compute, "FLOP"),
        share(point.share_of_compute),
        share(point.tensor_active),
        "-" if point.intensity is None else f"{point.intensity:.3g}",
        point.limit or "-",
        point.bandwidth_from or "-",
    )


def roofline(trace: Trace, device: int | None = None, peaks: Mapping[str, float] | None = None) -> Roofline:
    """Compares the kernels and regions of a GPU with its peaks.

    Args:
        trace: the recording.
        device: CUDA's number of the GPU, default the one with most kernel time.
        peaks: of the GPU, "bandwidth" in B/s and types as "bfloat16" in FLOP/s. Others are measured once per process if
            the GPU of the recording is in this machine.

    Raises:
        NotAvailable: the recording has only totals (``mode="aggregate"``), or no kernels of this GPU.
        InvalidArgument: a peak has another name, or is no rate.
    """
    given = _checked(peaks)
    if trace.info.get("session.mode") == "aggregate":
        raise NotAvailable("roofline() needs the kernels of a recording; mode='aggregate' keeps only totals")
    work = _KernelData(trace, device)
    found = _Peaks(trace, work.device, given)
    kernels = work.points("kernel", found)
    regions = work.points("region", found)
    return Roofline(work.device, found.gpu, found.known, found.reasons, kernels, regions, work.unseen())


def _checked(peaks: Mapping[str, float] | None) -> dict[str, float]:
    given = dict(peaks or {})
    for name, value in given.items():
        if name not in _measured() and name not in _FLOAT_TYPES.values():
            raise InvalidArgument(f"peaks has {brief(name)}; accepted are {', '.join(_measured())}, float64 and float8")
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise InvalidArgument(f"peaks has {brief(value)} for {name}; accepted are rates above 0")
    return given


class _Peaks:
    """The peaks of the GPU of a recording, measured when first needed."""

    def __init__(self, trace: Trace, device: int, given: Mapping[str, float]) -> None:
        rows = np.flatnonzero(trace.devices.ordinal == device)
        self.gpu, uuid = (
            trace.string(int(trace.devices[column][rows[0]])) if len(rows) else "" for column in ("name", "uuid")
        )
        self.known = dict(given)
        self.reasons: dict[str, str] = {}
        self._ordinal: int | None = None
        self._why_not = "the GPU of the recording is not in this machine; give peaks={...}"
        if _core.Session.active():
            self._why_not = "a profiler runs and would record the measurement"
            return
        for each in _core.environment()["devices"]:
            if uuid and each["uuid"] == uuid:
                self._ordinal = int(each["ordinal"])

    def of(self, name: str) -> float | None:
        """A peak; None, with the reason noted, if it is unknown."""
        if name in self.known:
            return self.known[name]
        if name not in self.reasons:
            reason = self._measure(name)
            if reason:
                self.reasons[name] = reason
        return self.known.get(name)

    def _measure(self, name: str) -> str:
        if name not in _measured():
            return "there is no measurement for it; give peaks={...}"
        if self._ordinal is None:
            return self._why_not
        from gpuscope.benchmarking.roofline import peak

        try:
            found = peak(cast("Kind", name), self._ordinal)
        except GpuscopeError as error:
            return str(error)
        if found.measured is not None:
            self.known[name] = found.measured
        return found.reason


class _KernelData:
    """Data of each kernel of one GPU; nan if unknown."""

    def __init__(self, trace: Trace, device: int | None) -> None:
        self.trace = trace
        devices = trace.tracks.device[trace.kernels.track] if len(trace.kernels) else np.zeros(0, np.uint32)
        if not len(devices):
            raise NotAvailable("roofline() needs kernels, and none was recorded")
        durations = trace.kernels.duration_ns.astype(np.float64)
        known, place = np.unique(devices, return_inverse=True)
        self.device = int(known[np.bincount(place, durations).argmax()]) if device is None else device
        self.rows = np.flatnonzero((devices == self.device) & (durations > 0))
        if not len(self.rows):
            raise NotAvailable(f"roofline() was asked for GPU {self.device}, which ran no kernels in this recording")
        kernels = trace.kernels
        self.start_ns = kernels.start_ns[self.rows]
        self.ns = durations[self.rows]
        self.variant = np.minimum(kernels.variant[self.rows], max(len(trace.variants) - 1, 0))
        regions = kernels.region[self.rows].astype(np.int64)
        self.region = np.where(regions < len(trace.regions), regions, len(trace.regions))
        self._sample()
        self._count()

    def _sample(self) -> None:
        """Bytes per second and the tensor cores' share over each kernel, by counters; number of samples inside."""
        names = [self.trace.string(name) for name in self.trace.counters.name.tolist()]
        memory = [_READ, _WRITTEN] if {_READ, _WRITTEN} <= set(names) else [_BOTH] if _BOTH in names else []
        tensor = [name for name in names if name.startswith(_TENSOR) and ".pct_of_peak_sustained_elapsed" in name][:1]
        wanted = [names.index(name) for name in (*memory, *tensor)]
        nothing = np.full(len(self.rows), np.nan)
        self.inside = np.zeros(len(self.rows), np.int64)
        self.sampled_bandwidth, self.tensor_active, self.sample_ns = nothing, nothing, 0.0
        timeline = timelines(self.trace, wanted).get(self.device) if wanted else None
        if timeline is None:
            return
        until = (self.start_ns + self.ns).astype(np.int64)
        self.sample_ns = float(np.median(timeline.end_ns - timeline.start_ns))
        self.inside = timeline.inside(self.start_ns, until)
        _, sums, weights = timeline.sums(self.start_ns, until)
        means = np.where(weights > _HALF, sums / np.maximum(weights, 1.0), np.nan)
        if memory:
            self.sampled_bandwidth = means[:, : len(memory)].sum(axis=1)
        if tensor:
            self.tensor_active = means[:, -1] / 100

    def _count(self) -> None:
        """Operations and bytes by shapes; those of an operator belong to the longest kernel that it launched."""
        rows = RegionRows(self.trace)
        self.has_shapes = bool(rows.has_shapes.any())
        self.flops, owner = self._of_longest(rows, count_flops(rows))
        self.bytes, _ = self._of_longest(rows, count_bytes(rows))
        self.types, self.type_of = self._types(rows, owner)

    def _of_longest(self, rows: RegionRows, counts: Array) -> tuple[Array, Array]:
        """For each kernel the count of the operator around it, or nan, and the row of the operator, or -1."""
        parent = np.append(rows.parent, len(rows))
        known = np.append(counts > 0, False)
        owner = self.region.copy()
        for _ in range(_DEEPEST):
            above = np.flatnonzero(~known[owner] & (owner < len(rows)))
            if not len(above):
                break
            owner[above] = parent[owner[above]]
        # A graph's kernels run repeatedly without their operators.
        usable = known[owner] & ((self.trace.kernels.flags[self.rows] & int(Flag.IN_GRAPH)) == 0)
        at = np.flatnonzero(usable)
        found, owners = np.full(len(owner), np.nan), np.full(len(owner), -1)
        if len(at):
            order = at[np.lexsort((-self.ns[at], owner[at]))]
            first = order[np.append(True, owner[order][1:] != owner[order][:-1])]
            found[first] = counts[owner[first]]
            owners[first] = owner[first]
        return found, owners

    def _types(self, rows: RegionRows, owner: Array) -> tuple[list[str], Array]:
        """The types that kernels with operations compute in, "" if unknown, and the type of each kernel."""
        texts = np.append(rows.types, NONE)[owner]
        keys = np.where(owner >= 0, texts.astype(np.int64) << 32 | self.variant, -1)
        each, which = np.unique(keys, return_inverse=True)
        classes = [kernel_class(name) for name in self.trace.kernel_names()]

        def of(key: int) -> str:
            kinds = rows.types_of(key >> 32) if key >= 0 else ()
            name = next((_FLOAT_TYPES[kind] for kind in kinds if kind in _FLOAT_TYPES), "")
            variant = key & 0xFFFFFFFF
            # float32 on tensor cores is TensorFloat-32.
            is_tensor = variant < len(classes) and classes[variant] == KernelClass.TENSOR_PRODUCT
            return "tf32" if name == "float32" and is_tensor else name

        names = [of(key) for key in each.tolist()]
        distinct = sorted(set(names))
        return distinct, np.array([distinct.index(name) for name in names])[which.reshape(-1)]

    def unseen(self) -> tuple[str, ...]:
        """The missing data, and the option that records it."""
        found = []
        if not self.has_shapes:
            asked = "metadata.record_shapes" in self.trace.info
            found.append(f"operations: {'no operator has shapes' if asked else 'record_shapes=True, --record-shapes'}")
        if np.isnan(self.sampled_bandwidth).all():
            why = self.trace.info.get("counters.why") or "counters='why', --counters why"
            found.append(f"bytes by counters: {why}")
        return tuple(found)

    def points(self, kind: PointKind, peaks: _Peaks) -> tuple[RooflinePoint, ...]:
        """Points by the names of kernels, or by call path with everything inside."""
        groups = self._by_name() if kind == "kernel" else self._by_path()
        found = [self._point(name, kind, members, peaks) for name, members in groups.items() if len(members)]
        return tuple(sorted(found, key=lambda each: -each.seconds))

    def _by_name(self) -> dict[str, Array]:
        names = self.trace.kernel_names(short=True)
        distinct = {name: row for row, name in enumerate(dict.fromkeys(names))}
        group = np.array([distinct[name] for name in names])[self.variant] if names else np.zeros(len(self.rows), int)
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(group, minlength=len(distinct)))[:-1])
        return dict(zip(distinct, parts, strict=True))

    def _by_path(self) -> dict[str, Array]:
        paths, regions = self.trace.paths, self.trace.regions
        if not len(regions):
            return {}
        path = np.append(regions.path.astype(np.int64), len(paths))[self.region]
        of_path: list[list[Array]] = [[] for _ in range(len(paths))]
        order = np.argsort(path, kind="stable")
        counts = np.bincount(path, minlength=len(paths) + 1)
        parts = np.split(order, np.cumsum(counts)[:-1])
        names: list[str] = []
        for row, (name, parent) in enumerate(zip(paths.name.tolist(), paths.parent.tolist(), strict=True)):
            names.append(f"{names[parent]}/{self.trace.string(name)}" if parent < row else self.trace.string(name))
        for row in range(len(paths) - 1, -1, -1):  # a path's parent stands before it
            of_path[row].append(parts[row])
            parent = int(paths.parent[row])
            if parent != NONE and parent < row:
                of_path[parent] += of_path[row]
        return {name: np.concatenate(of_path[row]) for row, name in enumerate(names)}

    def _point(self, name: str, kind: str, members: Array, peaks: _Peaks) -> RooflinePoint:
        ns = self.ns[members]
        bandwidth, source = self._bandwidth(kind, members)
        flops = self.flops[members]
        counted = ~np.isnan(flops)
        # A region counts all of its time, a kernel only launches with known operations.
        compute_ns = ns.sum() if kind == "region" else ns[counted].sum()
        is_known = counted.any() and (kind == "region" or ns[counted].sum() >= _HALF * ns.sum())
        known = members[counted] if is_known else members[:0]
        sums = np.bincount(self.type_of[known], self.flops[known], len(self.types)).tolist()
        by_type = {dtype: amount for dtype, amount in zip(self.types, sums, strict=True) if amount}
        compute = sum(by_type.values()) / (compute_ns / 1e9) if is_known else None
        reached = {dtype: peaks.of(dtype) if dtype else None for dtype in by_type}
        share_of_compute = None
        if is_known and all(reached.values()):
            needed = sum(amount / (reached[dtype] or 1.0) for dtype, amount in by_type.items())
            share_of_compute = float(needed / (compute_ns / 1e9))
        top = peaks.of(BANDWIDTH) if bandwidth is not None else None
        share_of_bandwidth = bandwidth / top if bandwidth is not None and top else None
        tensor = self._sampled(kind, members, self.tensor_active)
        return RooflinePoint(
            name=name,
            kind=kind,
            count=len(members),
            seconds=float(ns.sum() / 1e9),
            bandwidth=bandwidth,
            bandwidth_from=source,
            compute=compute,
            dtype=max(by_type, key=lambda dtype: by_type[dtype], default=""),
            tensor_active=tensor,
            share_of_bandwidth=share_of_bandwidth,
            share_of_compute=share_of_compute,
            limit=_limit(share_of_bandwidth, tensor if share_of_compute is None else share_of_compute),
        )

    def _sampled(self, kind: str, members: Array, values: Array) -> float | None:
        """The mean of a counter: of a kernel over launches with samples of their own, of a region over all.

        Samples of short kernels contain other work too, so a region must be longer than some samples.
        """
        known = ~np.isnan(values[members])
        if kind == "kernel":
            known &= self.inside[members] >= LEAST_SAMPLES
        ns = self.ns[members]
        least = LEAST_SAMPLES * self.sample_ns if kind == "region" else 1.0
        if ns[known].sum() < max(least, _MOST_KNOWN * ns.sum() if kind == "region" else 0.0):
            return None
        return float((values[members][known] * ns[known]).sum() / ns[known].sum())

    def _bandwidth(self, kind: str, members: Array) -> tuple[float | None, str]:
        sampled = self._sampled(kind, members, self.sampled_bandwidth)
        if sampled is not None:
            return sampled, COUNTERS
        moved, ns = self.bytes[members], self.ns[members]
        known = ~np.isnan(moved)
        if not known.any() or ns[known].sum() < _MOST_KNOWN * ns.sum():
            return None, ""
        return float(moved[known].sum() / (ns[known].sum() / 1e9)), SHAPES


def _measured() -> tuple[str, ...]:
    """The peaks that can be measured. Imported late, as a diagnosis needs nothing of benchmarking."""
    from gpuscope.benchmarking.roofline import Kind

    return get_args(Kind)


def _limit(memory: float | None, compute: float | None) -> str:
    """As `benchmarking.roofline.verdict`; if one is unknown, the other one decides if it is high."""
    from gpuscope.benchmarking.roofline import BUSY

    if (memory or 0.0) < BUSY and (compute or 0.0) < BUSY:
        return "" if memory is None or compute is None else "latency-bound"
    return "memory-bound" if (memory or 0.0) >= (compute or 0.0) else "compute-bound"
