# SPDX-License-Identifier: Apache-2.0
"""Activities that a profiler can record, by torch.profiler's names."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope import _core
from gpuscope.arguments import as_float
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks.torch import TorchEnum
from gpuscope.text import brief

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class ProfilerActivity(TorchEnum):
    """A group of events. Regions and marks are always recorded, as GPU work is attributed to them.

    CPU and CUDA are recorded. The others are devices of other vendors: they are accepted, and the audit reports that
    they were not recorded.
    """

    CPU = 0
    XPU = 1
    CUDA = 2
    HPU = 3
    MTIA = 4
    PrivateUse1 = 5


RECORDED = frozenset({ProfilerActivity.CPU, ProfilerActivity.CUDA})
"""The groups that gpuscope records."""


def supported_activities() -> set[ProfilerActivity]:
    """The activities that this machine has: CPU always, CUDA with at least one device the driver can reach."""
    supported = {ProfilerActivity.CPU}
    if _core.environment()["devices"]:
        supported.add(ProfilerActivity.CUDA)
    return supported


def kineto_available() -> bool:
    """Always True: a tracer is available, by torch.profiler's name for it. See `supported_activities`."""
    return True


@dataclass(frozen=True)
class ProfilerActivityConfig:
    """The events and configs of an activity, by torch.profiler's name; None records all events."""

    activity_types: Sequence[str] | None = None
    profiler_configs: Sequence[Any] = ()


@dataclass(frozen=True)
class PerformanceMetricsConfig:
    """`counters` and `counter_interval_us` of `profile`, by torch.profiler's name; a window keeps all samples."""

    metric_names: Sequence[str]
    sampling_interval_ms: float | None = None
    lookback_window_ms: float | None = None


@dataclass(frozen=True)
class CuspyConfig:
    """`sync` and `device_samples` of `profile`, by torch.profiler's name; the other two have no effect."""

    enable_cuda_sync_events: bool = False
    enable_environment_counters: bool = False
    enable_graph_dependencies: bool = False
    enable_event_node_ids: bool = False


@dataclass(frozen=True)
class ActivitySelection:
    """The `activities` argument of `profile`, parsed.

    Attributes:
        groups: the activities asked for.
        left_out: tables of the recording that get no rows, as none of their events is named.
        sync: events of waiting for the GPU are named.
        note: a sentence for the audit; empty if whole groups were asked for.
        counters: metrics to sample; None if none are named.
        counter_interval_us: how long a sample is; None if not given.
        device_samples: the state of GPUs is asked for.
        unused: options that have no effect.
    """

    groups: frozenset[ProfilerActivity]
    left_out: frozenset[str] = frozenset()
    sync: bool = False
    note: str = ""
    counters: tuple[str, ...] | None = None
    counter_interval_us: float | None = None
    device_samples: bool = False
    unused: tuple[str, ...] = ()


# torch.profiler's names of events, by group.
_EVENTS = {
    ProfilerActivity.CPU: {
        *("CPU_OP", "USER_ANNOTATION", "EXTERNAL_CORRELATION", "CUDA_RUNTIME", "CUDA_DRIVER", "CPU_INSTANT_EVENT"),
        *("PYTHON_FUNCTION", "XPU_RUNTIME", "XPU_DRIVER", "PRIVATEUSE1_RUNTIME", "PRIVATEUSE1_DRIVER"),
    },
    ProfilerActivity.CUDA: {
        *("GPU_MEMCPY", "GPU_MEMSET", "CONCURRENT_KERNEL", "CUDA_RUNTIME", "CUDA_DRIVER", "CUDA_SYNC", "CUDA_EVENT"),
        *("GPU_USER_ANNOTATION", "EXTERNAL_CORRELATION", "OVERHEAD", "CUDA_PROFILER_RANGE", "COLLECTIVE_COMM"),
        *("USER_ANNOTATION", "GPU_PM_COUNTER"),
    },
}
# Names of events by the table of a recording that contains them.
_EVENTS_OF = {
    "kernel": {"CONCURRENT_KERNEL"},
    "memcpy": {"GPU_MEMCPY"},
    "memset": {"GPU_MEMSET"},
    "api": {"CUDA_RUNTIME", "CUDA_DRIVER"},
}
_GPU_TABLES = ("kernel", "memcpy", "memset")
_SYNC = "CUDA_SYNC"
_US_PER_MS = 1e3
_SWITCHES = {"enable_cuda_sync_events": "sync", "enable_environment_counters": "device_samples"}


def parse_activities(activities: Iterable[Any] | None) -> ActivitySelection:
    """Reads the `activities` argument of `profile`, in any form that torch.profiler takes.

    Args:
        activities: members of `ProfilerActivity` or of torch's enumeration, or dictionaries from a member to names of
            its events, as GPU_MEMCPY, or to a `ProfilerActivityConfig`, ours or torch's. An empty list leaves the group
            out. A single dictionary need not be in a list. None asks for everything.

    Raises:
        InvalidArgument: an activity is unknown or named twice, or there is none; names are not a list of text.
    """
    if activities is None:
        return ActivitySelection(RECORDED)
    if isinstance(activities, str) or not hasattr(activities, "__iter__"):
        raise _unknown(activities)
    wanted: dict[ProfilerActivity, frozenset[str] | None] = {}
    configs: list[Any] = []
    for item in (activities,) if isinstance(activities, dict) else activities:
        for member, names in item.items() if isinstance(item, dict) else ((item, None),):
            activity = _member(member)
            if activity in wanted:
                raise InvalidArgument(f"activities names {activity.name} twice; accepted is each activity once")
            of_config: Any = names if hasattr(names, "profiler_configs") else None
            types = names if of_config is None else of_config.activity_types or None
            wanted[activity] = None if types is None else _names(activity, types)
            configs += () if of_config is None else of_config.profiler_configs or ()
    if not wanted:
        raise InvalidArgument(f"activities is empty; accepted is at least one of {_accepted()}")
    groups = frozenset(activity for activity, names in wanted.items() if names is None or names)
    others = ", ".join(sorted(activity.name for activity in groups - RECORDED))
    note = f"{others}: not recorded, as gpuscope records the CPU and NVIDIA GPUs" if others else ""
    lists = {activity: names for activity, names in wanted.items() if names}
    configured = _configured(configs)
    if not lists:
        return dataclasses.replace(configured, groups=groups, note=note)
    named = frozenset().union(*lists.values())
    left_out = {
        table
        for table, events in _EVENTS_OF.items()
        if not events & named
        and (ProfilerActivity.CUDA in lists if table in _GPU_TABLES else len(lists) == len(wanted))
    }
    listed = "; ".join(f"of {activity.name} {', '.join(sorted(names))}" for activity, names in lists.items())
    asked = f"recorded as activities asks: {listed}"
    return dataclasses.replace(
        configured,
        groups=groups,
        left_out=frozenset(left_out),
        sync=configured.sync or _SYNC in named,
        note=f"{note}; {asked}" if note else asked,
    )


def _configured(configs: Iterable[Any]) -> ActivitySelection:
    """Reads the `profiler_configs` of activities: ours, or torch's of any version."""
    found: dict[str, Any] = {}
    unused: list[str] = []
    for config in configs:
        kind = type(config).__name__
        fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
        names = [field.name for field in fields] or list(getattr(config, "__dict__", ()))
        unused += () if names else (kind,)
        for name in names:
            value = getattr(config, name)
            if name == "metric_names":
                found["counters"] = (*found.get("counters", ()), *_metrics(value))
            elif name == "sampling_interval_ms":
                found["counter_interval_us"] = None if value is None else as_float(value) * _US_PER_MS
            elif value and name in _SWITCHES:
                found[_SWITCHES[name]] = True
            elif value and name != "lookback_window_ms":  # a window keeps all of its samples
                unused.append(f"{kind}.{name}")
    return ActivitySelection(frozenset(), unused=tuple(unused), **found)


def _metrics(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not hasattr(names, "__iter__") or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"metric_names is {brief(names)}; accepted is a list of names of metrics")
    return tuple(names)


def _names(activity: ProfilerActivity, names: Any) -> frozenset[str]:
    if isinstance(names, str) or not hasattr(names, "__iter__") or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"activities gives {activity.name} the events {names!r}; accepted is a list of names, as ['GPU_MEMCPY']"
        )
    unknown = sorted(set(names) - _EVENTS.get(activity, set(names)))
    if unknown:
        raise InvalidArgument(
            f"activities gives {activity.name} the events {', '.join(unknown)}; accepted are "
            f"{', '.join(sorted(_EVENTS[activity]))}"
        )
    return frozenset(names)


def parse_group(activities: Iterable[Any]) -> frozenset[ProfilerActivity]:
    """Reads the `activities` of `toggle_collection_dynamic`: members, which may repeat; an empty list is accepted."""
    if isinstance(activities, str) or not hasattr(activities, "__iter__"):
        raise _unknown(activities)
    return frozenset(_member(item) for item in activities)


def _member(item: object) -> ProfilerActivity:
    # torch's members are another type; their names are the same.
    name = item if isinstance(item, str) else getattr(item, "name", None)
    if isinstance(name, str) and name in ProfilerActivity.__members__:
        return ProfilerActivity[name]
    raise _unknown(item)


def _unknown(item: object) -> InvalidArgument:
    return InvalidArgument(f"activities contains {brief(item)}; accepted are {_accepted()}")


def _accepted() -> str:
    return ", ".join(str(member) for member in ProfilerActivity if member in RECORDED)
