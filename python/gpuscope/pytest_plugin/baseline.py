# SPDX-License-Identifier: Apache-2.0
"""Stored runs, and which of them a new one may be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuscope.pytest_plugin.measured import Measured


@dataclass(frozen=True)
class Baseline:
    """One file of pytest-benchmark's.

    Attributes:
        label: when it was measured, and at which commit.
        processor: the machine's, as pytest-benchmark names it.
        tests: by full name, the facts and samples that gpuscope stored, empty when it stored none.
    """

    label: str
    processor: str
    tests: Mapping[str, Mapping[str, Any]]

    @staticmethod
    def of(run: Mapping[str, Any]) -> Baseline:
        """From the parsed file."""
        commit = ((run.get("commit_info") or {}).get("id") or "")[:8]
        label = f"the baseline of {str(run.get('datetime', 'an unknown time'))[:19]}"
        return Baseline(
            label=f"{label} (commit {commit})" if commit else label,
            processor=processor(run.get("machine_info") or {}),
            tests={
                entry["fullname"]: (entry.get("extra_info") or {}).get("gpuscope") or {} for entry in run["benchmarks"]
            },
        )

    def refusal(self, test: str, measured: Measured, processor: str) -> str:
        """Why this run says nothing about `test` as it was measured now: one sentence; empty when it does.

        Args:
            test: one of `tests`.
            measured: this run's.
            processor: this machine's.
        """
        then, now = self.tests[test], measured.facts
        if not then.get("samples"):
            return f"{self.label} was not measured with gpu_benchmark"
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
