# SPDX-License-Identifier: Apache-2.0
"""Which steps of a loop are recorded: torch.profiler's schedule."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.errors import InvalidArgument
from gpuscope.frameworks.torch import TorchEnum
from gpuscope.text import brief


class ProfilerAction(TorchEnum):
    """The profiler's action during one step. Schedules may not return DEVICE_STOPPED, which torch sets itself."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3
    DEVICE_STOPPED = 4

    @property
    def _hashed(self) -> str:
        return self.name

    @property
    def collects(self) -> bool:
        """Whether the collector runs, also if only to warm up."""
        return self not in (ProfilerAction.NONE, ProfilerAction.DEVICE_STOPPED)

    @property
    def records(self) -> bool:
        """Whether events of the step are kept."""
        return self in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


@dataclass(frozen=True)
class Schedule:
    """Maps a step's number to its action; made by `schedule`."""

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 1 if name == "active" else 0
            if not hasattr(value, "__index__") or value < least:
                raise InvalidArgument(f"schedule: {name} is {brief(value)}; accepted is an integer of at least {least}")

    def __call__(self, step: int) -> ProfilerAction:
        """The action of a step, counted from 0."""
        if step < 0:
            raise InvalidArgument(f"schedule: step is {step}; accepted is an integer of at least 0")
        if step < self.skip_first or self.finished(step):
            return ProfilerAction.NONE
        position = self._position(step) % self._cycle
        if position < self.wait:
            return ProfilerAction.NONE
        if position < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if position == self._cycle - 1 else ProfilerAction.RECORD

    def finished(self, step: int) -> bool:
        """Whether the last of `repeat` cycles ended before `step`."""
        return self.repeat > 0 and self._position(step) >= self.repeat * self._cycle

    @property
    def first_recorded_step(self) -> int:
        """The first step whose events are kept."""
        return self.skip_first + (0 if self.skip_first_wait else self.wait) + self.warmup

    @property
    def _cycle(self) -> int:
        return self.wait + self.warmup + self.active

    def _position(self, step: int) -> int:
        return step - self.skip_first + (self.wait if self.skip_first_wait else 0)


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Schedule:
    """The `schedule` argument of `profile`: cycles of `wait` idle, `warmup` discarded and `active` recorded steps.

    Args:
        wait: steps of each cycle in which nothing is collected.
        warmup: steps in which events are collected and dropped, so that the cost of switching on is not measured.
        active: steps recorded, at least 1.
        repeat: cycles after which recording ends; 0 repeats until the end of the run.
        skip_first: idle steps before the first cycle.
        skip_first_wait: 1 leaves out the first cycle's `wait`.

    Raises:
        InvalidArgument: a number is negative, or `active` is 0.
    """
    return Schedule(wait, warmup, active, repeat, skip_first, skip_first_wait)


def check_action(step: int, action: object) -> ProfilerAction:
    """The action that a user's schedule returned, as `ProfilerAction`; members of torch's enumeration are accepted."""
    if isinstance(action, ProfilerAction) and action is not ProfilerAction.DEVICE_STOPPED:
        return action
    accepted = [member for member in ProfilerAction if member is not ProfilerAction.DEVICE_STOPPED]
    for member in accepted:
        if member == action:
            return member
    inner = "DEVICE_STOPPED is set internally; " if getattr(action, "name", "") == "DEVICE_STOPPED" else ""
    raise InvalidArgument(
        f"{inner}schedule({step}) returned {brief(action)}; accepted are {', '.join(map(str, accepted))}"
    )
