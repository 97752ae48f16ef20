# SPDX-License-Identifier: Apache-2.0
"""Saved runs of pytest-benchmark: the facts of each test, and whether they are valid and comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.errors import InvalidArgument
from gpuscope.pytest_plugin.measured import Measured

# Fields of a saved test that pytest-benchmark's table reads.
_COLUMNS = ("min", "max", "mean", "stddev", "median", "iqr", "ops", "rounds", "iterations")


@dataclass(frozen=True)
class Baseline:
    """One file of pytest-benchmark's.

    Attributes:
        label: when it was measured, and at which commit.
        processor: the machine's, as pytest-benchmark names it.
        tests: gpuscope's stored facts by full name; empty if it stored none.
        damaged: the invalid field by full name; the facts of such a test are not used.
        date: when it was measured, in ISO 8601 and UTC; empty when unknown.
    """

    label: str
    processor: str
    tests: Mapping[str, Mapping[str, Any]]
    damaged: Mapping[str, str]
    date: str = ""

    @staticmethod
    def of(run: Mapping[str, Any]) -> Baseline:
        """From the parsed file.

        Raises:
            InvalidArgument: pytest-benchmark itself could not read it.
        """
        commit_info = run.get("commit_info")
        commit = str((commit_info.get("id") if isinstance(commit_info, Mapping) else None) or "")[:8]
        date = str(run.get("datetime") or "")
        label = f"the baseline of {date[:19] or 'an unknown time'}"
        label = f"{label} (commit {commit})" if commit else label
        if not isinstance(run.get("machine_info"), Mapping):
            raise InvalidArgument(f"{label} is damaged: it has no machine_info; delete its file or save it again")
        tests, damaged = {}, {}
        for entry in run["benchmarks"]:
            name = entry.get("fullname") if isinstance(entry, Mapping) else None
            if not isinstance(name, str):
                raise InvalidArgument(f"{label} is damaged: a test has no fullname; delete its file or save it again")
            stats = entry.get("stats")
            for column in _COLUMNS:
                if not isinstance(stats, Mapping) or not _is_number(stats.get(column)):
                    raise InvalidArgument(
                        f"{label} is damaged: {name} has no {column}; delete its file or save it again"
                    )
            extra = entry.get("extra_info")
            facts = (extra.get("gpuscope") if isinstance(extra, Mapping) else None) or {}
            tests[name] = facts
            if facts and (why := _damage(facts)):
                damaged[name] = why
        return Baseline(label, processor(run["machine_info"]), tests, damaged, date)

    def damage_of(self, test: str) -> str:
        """The sentence on a test in `damaged`."""
        return f"{self.label} is damaged: {self.damaged[test]}"

    def refusal(self, test: str, measured: Measured, processor: str) -> str:
        """Why this baseline cannot be compared with `test` as measured now: one sentence; empty if it can."""
        then, now = self.tests[test], measured.facts
        if not then:
            return f"{self.label} was not measured with gpu_benchmark"
        if test in self.damaged:
            return self.damage_of(test)
        if then["gpu"] != now["gpu"]:
            return f"{self.label} was measured on {_place(then['gpu'])}, this run on {_place(now['gpu'])}"
        if now["gpu"] is None and self.processor != processor:
            return f"{self.label} was measured on {self.processor or '?'}, this run on {processor or '?'}"
        if _differ(_major(then["driver"]), _major(now["driver"])):
            return f"{self.label} was measured with driver {then['driver']}, this run with {now['driver']}"
        if _differ(then["power_limit_w"], now["power_limit_w"]):
            return (
                f"{self.label} was measured at a power limit of {then['power_limit_w']:.0f} W,"
                f" this run at {now['power_limit_w']:.0f} W"
            )
        if then["quantity"] != now["quantity"]:
            return f"{self.label} holds {then['quantity']} times, this run {now['quantity']} times"
        if then["cold"] != now["cold"]:
            return f"{self.label} was measured {_cache(then['cold'])}, this run {_cache(now['cold'])}"
        return ""


def unread_files(session: Any) -> list[str]:
    """The files that --benchmark-compare names and that pytest-benchmark could not read."""
    storage = session.storage
    if not isinstance(getattr(storage, "path", None), Path):  # a database
        return []
    latest = session.compare is True  # then pytest-benchmark takes its last readable file
    files = storage.query("[0-9][0-9][0-9][0-9]_" if latest else session.compare)
    read = {(storage.path / path).resolve() for path in session.compared_mapping}
    return [str(file) for file in (files[-1:] if latest else files) if Path(file).resolve() not in read]


def processor(machine_info: Mapping[str, Any]) -> str:
    """The CPU's name in pytest-benchmark's ``machine_info``; empty when unknown."""
    cpu = machine_info.get("cpu")
    return str(cpu.get("brand_raw") or "") if isinstance(cpu, Mapping) else ""


def _differ(then: object, now: object) -> bool:
    return then is not None and now is not None and then != now


def _major(version: str | None) -> str | None:
    return version.partition(".")[0] if version else None


def _place(gpu: str | None) -> str:
    return gpu or "the CPU"


def _cache(cold: bool) -> str:
    return "with a cold cache" if cold else "with a hot cache"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond the floats
        return False


def _is_positive(value: Any) -> bool:
    return _is_finite(value) and value > 0


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_interval(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    low, high = value
    return all(end is None or _is_finite(end) for end in value) and (low is None or high is None or low <= high)


def _is_kernel(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("name"), str)
        and all(_is_finite(value.get(name)) for name in ("count", "seconds"))
    )


# The stored fields that the gate uses, and a check of each.
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "estimate": _is_positive,
    "ci": _is_interval,
    "confidence": lambda value: _is_positive(value) and value < 1,
    "samples": lambda value: isinstance(value, list) and bool(value) and all(map(_is_finite, value)),
    "converged": lambda value: isinstance(value, bool),
    "stopped": lambda value: isinstance(value, str),
    "throttled": _is_finite,
    "quantity": lambda value: isinstance(value, str),
    "cold": lambda value: isinstance(value, bool),
    "gpu": _is_text,
    "driver": _is_text,
    "power_limit_w": lambda value: value is None or _is_finite(value),
    "kernels": lambda value: isinstance(value, list) and all(map(_is_kernel, value)),
}


def _damage(facts: object) -> str:
    """Which stored field is missing or invalid; empty if all are valid."""
    if not isinstance(facts, Mapping):
        return "what gpu_benchmark stored is no object"
    for name, holds in _FIELDS.items():
        if name not in facts:
            return f"it has no {name}"
        if not holds(facts[name]):
            text = repr(facts[name])
            return f"its {name} is {text if len(text) <= 40 else text[:37] + '...'}"
    return ""
