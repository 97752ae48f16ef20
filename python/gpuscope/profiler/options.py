# SPDX-License-Identifier: Apache-2.0
"""`RecordingOptions`: what a profiler records, read once from the arguments of `profile`."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_args

from gpuscope import _core
from gpuscope._core import ADJUSTED_STEPS, EXTERNAL_IDS
from gpuscope.arguments import OPERATOR_OPTIONS, Graphs, Mode, as_float, check_choice
from gpuscope.counters.names import parse_counters
from gpuscope.errors import GpuscopeWarning, InvalidArgument
from gpuscope.frameworks.observers import ObserverOptions
from gpuscope.profiler.activities import RECORDED, ActivitySelection, ProfilerActivity, parse_activities
from gpuscope.profiler.execution_trace import WITH_EFFECT, leaves_out_threads, options_of
from gpuscope.profiler.schedules import Schedule
from gpuscope.text import brief
from gpuscope.units import parse_bytes

_OPERATORS = "operators"  # only theirs
_MAY_BE_OF_OPERATORS = ("record_shapes", "with_stack")
_CALLABLES = ("schedule", "on_trace_ready", "custom_trace_id_callback")
_LEAST_BYTES = 1 << 20
_LEAST_SPOOL = 1 << 26  # four segments
_SAMPLE_EVERY_NS = 1_000_000
_SAMPLE_SECONDS = (1e-4, 10.0)
_DEVICE_EVERY_NS = 100_000_000
_DEVICE_SECONDS = (0.01, 3600.0)
_COUNTER_US = (10.0, 1e6)


@dataclass(frozen=True)
class RecordingOptions(ObserverOptions):
    """What a profiler records. The core reads the fields that `_core.SESSION_OPTIONS` names.

    Attributes:
        activities: the groups recorded.
        cuda: CUDA is one of them.
        mode: full, ring or aggregate.
        graphs: node or launch.
        sync: waits for the GPU.
        overheads: the driver's and CUPTI's own work.
        max_bytes: most memory for the events of a window.
        ring_ns: how much time a ring keeps.
        spool: rows are written into a folder as they come.
        spool_bytes: most bytes of a window in its folder; the oldest segments are deleted.
        spool_age_ns: the same by age; 0 for no limit.
        segment_bytes: size of a segment at which the next one begins.
        segment_ns: the same by its time.
        left_out: tables of the recording that get no rows: kernel, memcpy, memset, api.
        counters: hardware counters to sample; empty for none.
        counters_in_full: all of them are required; otherwise those that fit into one pass, in order.
        counter_interval_ns: time between samples of counters.
        device_interval_ns: time between readings of NVML; 0 for none.
        python_interval_ns: time between samples of Python; 0 for none.
        repeats: windows may come for as long as the program runs.
        acc_events: windows make one recording.
        strict: missing events are an error.
        trace_only: there is no list of events.
        facts: for each recording.
        notes: sentences for the audit.
    """

    activities: frozenset[ProfilerActivity] = RECORDED
    cuda: bool = True
    mode: Mode = "full"
    graphs: Graphs = "node"
    sync: bool = False
    overheads: bool = False
    max_bytes: int = 1 << 30
    ring_ns: int = 10_000_000_000
    spool: bool = False
    spool_bytes: int = 1 << 30
    spool_age_ns: int = 0
    segment_bytes: int = 16 << 20
    segment_ns: int = 8_000_000_000
    left_out: frozenset[str] = frozenset()
    counters: tuple[str, ...] = ()
    counters_in_full: bool = False
    counter_interval_ns: int = 100_000
    device_interval_ns: int = 0
    python_interval_ns: int = 0
    repeats: bool = False
    acc_events: bool = False
    strict: bool = False
    trace_only: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> RecordingOptions:
        """Checks and reads the arguments of `profile`, called by its constructor: warnings name the line before that.

        Raises:
            InvalidArgument: an argument is wrong.
        """
        given = SimpleNamespace(**arguments)
        for name in _CALLABLES:
            check_callable(name, arguments[name])
        check_timeout("post_processing_timeout_s", given.post_processing_timeout_s)
        check_flags({name: arguments[name] for name in (*OPERATOR_OPTIONS, "acc_events", "spool")})
        selected = parse_activities(given.activities)
        groups, schedule, config = selected.groups, given.schedule, given.experimental_config
        if given.use_cuda is not None:
            warnings.warn("use_cuda is deprecated; use activities instead", FutureWarning, stacklevel=3)
            groups = (groups | {ProfilerActivity.CUDA}) if given.use_cuda else groups - {ProfilerActivity.CUDA}
        known = options_of(config) if config else frozenset()
        asked = known or frozenset()
        if "trace_only" in asked and given.with_stack:
            sentence = "experimental_config.trace_only has no effect with with_stack, as in torch"
            warnings.warn(f"profile: {sentence}", GpuscopeWarning, stacklevel=3)
        check_choice("mode", given.mode, get_args(Mode))
        check_choice("graphs", given.graphs, get_args(Graphs))
        max_bytes = parse_bytes("max_bytes", given.max_bytes, _LEAST_BYTES)
        ring_ns = _ring_ns(given.ring_seconds)
        spool_age_ns = _spool_age_ns(given)
        counters, are_names, counter_interval_ns = _counters(given, selected)
        device_samples = given.device_samples or selected.device_samples
        device_interval_ns = _interval_ns("device_samples", device_samples, _DEVICE_EVERY_NS, _DEVICE_SECONDS)
        python_interval_ns = _interval_ns("python_samples", given.python_samples, _SAMPLE_EVERY_NS, _SAMPLE_SECONDS)
        cuda = ProfilerActivity.CUDA in groups
        unused = [f"experimental_config.{name}" for name in sorted(asked - WITH_EFFECT)]
        unused += [*([] if known is not None else ["experimental_config"]), *selected.unused]
        no_effect = f"without effect in this version: {', '.join(unused)}" if unused else ""
        if no_effect:
            warnings.warn(f"profile: {no_effect}", GpuscopeWarning, stacklevel=3)
        knows_stacks = _core.knows_stacks()
        return cls(
            operators=ProfilerActivity.CPU in groups,
            record_shapes=bool(given.record_shapes or given.with_flops),
            arguments=given.record_shapes != _OPERATORS,
            profile_memory=bool(given.profile_memory),
            with_stack=bool(given.with_stack) and given.mode != "aggregate" and knows_stacks,
            python_functions=given.with_stack != _OPERATORS,
            garbage=not config or known is None or "record_python_gc_info" in asked,
            with_flops=bool(given.with_flops),
            with_modules=bool(given.with_modules),
            overload_names="capture_overload_names" in asked,
            one_thread=bool(config) and leaves_out_threads(config),
            activities=groups,
            cuda=cuda,
            mode=given.mode,
            graphs=given.graphs,
            sync=bool(given.sync) or selected.sync or "enable_cuda_sync_events" in asked,
            overheads=bool(given.overheads),
            max_bytes=max_bytes,
            ring_ns=ring_ns,
            spool=bool(given.spool),
            spool_bytes=parse_bytes("spool_bytes", given.spool_bytes, _LEAST_SPOOL),
            spool_age_ns=spool_age_ns,
            left_out=selected.left_out,
            counters=tuple(counters),
            counters_in_full=are_names,
            counter_interval_ns=counter_interval_ns,
            device_interval_ns=device_interval_ns if cuda else 0,
            python_interval_ns=python_interval_ns if knows_stacks else 0,
            repeats=schedule is not None and not (isinstance(schedule, Schedule) and schedule.repeat == 1),
            acc_events=bool(given.acc_events),
            strict=bool(given.strict),
            trace_only="trace_only" in asked and not given.with_stack,
            facts=_facts(arguments, asked),
            notes=tuple(filter(None, (*_lacks(given, python_interval_ns, knows_stacks), selected.note, no_effect))),
        )


def _facts(arguments: Mapping[str, Any], asked: Collection[str]) -> dict[str, str]:
    """Facts for each recording: those that readers of torch's options need, and the metadata that torch writes."""
    facts = {EXTERNAL_IDS: "off"} if "disable_external_correlation" in asked else {}
    facts |= {ADJUSTED_STEPS: "on"} if "adjust_profiler_step" in asked else {}
    for name in filter(arguments.get, OPERATOR_OPTIONS):
        facts[f"metadata.{name}"] = json.dumps(_OPERATORS if arguments[name] == _OPERATORS else 1)
    return facts


def check_callable(argument: str, value: object) -> None:
    """Raises InvalidArgument for a value that is neither callable nor None."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{argument} is {brief(value)}; accepted is a callable or None")


def check_timeout(argument: str, value: object) -> None:
    """Raises InvalidArgument for a value that is neither seconds from 0 nor None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0):  # type: ignore[operator]
        raise InvalidArgument(
            f"{argument} must be non-negative: it is {brief(value)}; accepted are seconds from 0, or None"
        )


def check_flags(flags: Mapping[str, object]) -> None:
    """Raises InvalidArgument for a switch, by its name, that is neither true nor false."""
    for name, value in flags.items():
        choices = name in _MAY_BE_OF_OPERATORS
        if value not in (True, False, None) and not (choices and value == _OPERATORS):
            accepted = f"True, False and {_OPERATORS!r}" if choices else "True and False"
            raise InvalidArgument(f"{name} is {brief(value)}; accepted are {accepted}")


def _counters(given: SimpleNamespace, selected: ActivitySelection) -> tuple[list[str], bool, int]:
    """The counters to sample, whether they are names of metrics, and the time between samples in ns."""
    if selected.counters and given.counters is not None:
        raise InvalidArgument("counters is given and activities has metric_names; accepted is one of the two")
    asked = selected.counters or given.counters
    counters, are_names = ([], False) if asked is None else parse_counters(asked)
    if counters and given.mode == "aggregate":
        sentence = "counters is given with mode='aggregate', which keeps no samples; accepted are 'full' and 'ring'"
        raise InvalidArgument(sentence)
    value = given.counter_interval_us if selected.counter_interval_us is None else selected.counter_interval_us
    us = as_float(value)
    least, most = _COUNTER_US
    if not least <= us <= most:
        raise InvalidArgument(f"counter_interval_us is {brief(value)}; accepted are {least:g} to {most:,.0f} us")
    return counters, are_names, round(us * 1e3)


def _interval_ns(argument: str, value: object, usual_ns: int, accepted: tuple[float, float]) -> int:
    """The time between samples in ns, 0 for none."""
    if isinstance(value, bool) or value is None:
        return usual_ns if value else 0
    seconds = as_float(value)
    least, most = accepted
    if not least <= seconds <= most:
        raise InvalidArgument(
            f"{argument} is {brief(value)}; accepted are True, False and seconds from {least:g} to {most:g}"
        )
    return round(seconds * 1e9)


def _ring_ns(value: object, argument: str = "ring_seconds") -> int:
    seconds = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not math.isfinite(seconds) or not 1e-3 <= seconds <= 1e9:
        raise InvalidArgument(f"{argument} is {brief(value)}; accepted are seconds from 0.001 to 1e9")
    return round(seconds * 1e9)


def _spool_age_ns(given: SimpleNamespace) -> int:
    """How long rows stay on the disk, in ns; 0 without a limit. A ring keeps its rows there."""
    if given.spool and given.path is None:
        raise InvalidArgument("spool is True and path is None; accepted is a folder, path='runs/'")
    if given.spool and given.mode == "aggregate":
        raise InvalidArgument(
            "spool is True with mode='aggregate', which keeps no events; accepted are 'full' and 'ring'"
        )
    if given.spool_age is not None:
        return _ring_ns(given.spool_age, "spool_age")
    return _ring_ns(given.ring_seconds) if given.spool and given.mode == "ring" else 0


def _lacks(given: SimpleNamespace, python_interval_ns: int, knows_stacks: bool) -> Iterator[str]:
    """A sentence for each option that is not available."""
    unknown = "call stacks cannot be read in this build of Python"
    if given.with_stack and given.mode == "aggregate":
        yield "with_stack: mode='aggregate' keeps no events, and so none of their stacks"
    elif given.with_stack and not knows_stacks:
        yield f"with_stack: {unknown}"
    if python_interval_ns and not knows_stacks:
        yield f"python_samples: {unknown}"
