# SPDX-License-Identifier: Apache-2.0
"""What a profiler can be asked to watch, by torch.profiler's names."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from gpuscope import _core
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable


class ProfilerActivity(Enum):
    """A group of events. Regions and marks are recorded whatever is chosen, as GPU work is attributed to them."""

    CPU = "CPU"
    CUDA = "CUDA"


def supported_activities() -> set[ProfilerActivity]:
    """The activities that this machine has: CPU always, CUDA with at least one device the driver can reach."""
    supported = {ProfilerActivity.CPU}
    if _core.environment()["devices"]:
        supported.add(ProfilerActivity.CUDA)
    return supported


def kineto_available() -> bool:
    """Whether there is a tracer, by torch.profiler's name for it: always. `supported_activities` says what it sees."""
    return True


def parse_activities(activities: Iterable[Any] | None) -> tuple[frozenset[ProfilerActivity], bool]:
    """Reads the `activities` argument of `profile`, in any form that torch.profiler takes.

    Args:
        activities: members of `ProfilerActivity` or of torch's enumeration, or dictionaries from such a member to
            the names of the events wanted of it, where an empty list leaves the group out. None asks for
            everything.

    Returns:
        The groups asked for, and whether any was asked for in part.

    Raises:
        InvalidArgument: an activity is unknown or named twice, or there is none.
    """
    if activities is None:
        return frozenset(ProfilerActivity), False
    if isinstance(activities, str) or not hasattr(activities, "__iter__"):
        raise _unknown(activities)
    wanted: dict[ProfilerActivity, bool] = {}
    in_part = False
    for item in activities:
        for member, names in item.items() if isinstance(item, dict) else ((item, None),):
            activity = _member(member)
            if activity in wanted:
                raise InvalidArgument(f"activities names {activity.name} twice; accepted is each activity once")
            wanted[activity] = names is None or bool(names)
            in_part = in_part or bool(names)
    if not wanted:
        raise InvalidArgument(f"activities is empty; accepted is at least one of {_accepted()}")
    return frozenset(activity for activity, on in wanted.items() if on), in_part


def parse_group(activities: Iterable[Any]) -> frozenset[ProfilerActivity]:
    """Reads the `activities` argument of `toggle_collection_dynamic`: any number of members, twice or not at all.

    Raises:
        InvalidArgument: an activity is unknown.
    """
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
    return InvalidArgument(f"activities contains {item!r}; accepted are {_accepted()}")


def _accepted() -> str:
    return ", ".join(f"ProfilerActivity.{name}" for name in ProfilerActivity.__members__)
