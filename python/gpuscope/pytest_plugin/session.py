# SPDX-License-Identifier: Apache-2.0
"""What one run of pytest measured, what it is compared with, the verdicts, and the section that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gpuscope.text import one_line, printable
from gpuscope.units import format_change, format_seconds

if TYPE_CHECKING:
    from gpuscope.pytest_plugin.gate import Baseline, Verdict
    from gpuscope.pytest_plugin.measured import Measured


class State:
    """Of one session; tests go by their node id, which is pytest-benchmark's ``fullname``."""

    def __init__(self) -> None:
        self.measured: dict[str, Measured] = {}
        self.baselines: list[Baseline] = []  # named by --benchmark-compare, the oldest first
        self.processor = ""  # this machine's, as pytest-benchmark names it, once it has loaded a baseline
        self.verdicts: dict[str, Verdict] = {}  # once the tests are over and if there are baselines

    def add_baseline(self, machine_info: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Takes in one of pytest-benchmark's files, and this machine's ``machine_info``."""
        from gpuscope.pytest_plugin.gate import Baseline, processor

        self.processor = processor(machine_info)
        self.baselines.append(Baseline.of(run))

    def judge(self) -> None:
        """Compares each measured test with the baselines."""
        if not self.measured or not self.baselines:
            return
        from gpuscope.pytest_plugin.gate import judge

        self.verdicts = {
            test: judge(test, measured, self.baselines, self.processor) for test, measured in self.measured.items()
        }

    def slower(self) -> list[str]:
        """The tests that are surely slower than their baseline by more than their margin."""
        return [test for test, verdict in self.verdicts.items() if verdict.kind == "slower"]

    def write(self, terminal: pytest.TerminalReporter, *, failing: bool) -> None:
        """Writes what pytest-benchmark's table has no column for; `failing`: a slower test fails the run."""
        terminal.section(one_line(f"gpuscope: {_where(list(self.measured.values()))}"), "-")
        width = max(len(one_line(test)) for test in self.measured)
        for test, measured in self.measured.items():
            verdict = self.verdicts.get(test)
            bad = verdict is not None and verdict.kind == "slower"
            terminal.write_line(f"{one_line(test):{width}}  {_line(measured.facts, verdict)}", red=bad)
            for note in _notes(measured, verdict):
                terminal.write_line(f"    {printable(note)}", yellow=True)
        if failing and not self.verdicts:
            terminal.write_line("nothing to compare with: --benchmark-compare found no saved run", yellow=True)
        if failing and (slower := self.slower()):
            tests = (
                "1 benchmark is slower than its baseline"
                if len(slower) == 1
                else f"{len(slower)} benchmarks are slower than their baseline"
            )
            terminal.section(tests, "=", red=True)
            for test in slower:
                verdict = self.verdicts[test]
                allowed = format_change(1 + self.measured[test].margin)
                line = f"SLOWER {test}: {_verdict_text(verdict)}, allowed {allowed}: {verdict.culprit}"
                terminal.write_line(one_line(line))


STATE = pytest.StashKey[State]()


def _line(facts: dict[str, Any], verdict: Verdict | None) -> str:
    """One test's result, as ``12.34 us +-0.4%  n=173 (120 independent)  kernel, cold  same: +0.3% (...)``."""
    low, high = facts["ci"]
    unsure = "+-?" if low is None or high is None else f"+-{100 * (high - low) / 2 / facts['estimate']:.2g}%"
    texts = [
        f"{format_seconds(facts['estimate'], 4)} {unsure}",
        f"n={facts['n']}",
        facts["quantity"] + (", cold" if facts["cold"] else ", hot") * (facts["gpu"] is not None),
    ]
    if verdict is not None:
        texts.append(_verdict_text(verdict))
    return "  ".join(texts)


def _verdict_text(verdict: Verdict) -> str:
    """As ``slower: +12.0% (+11.2% to +12.7%, 3 runs)``."""
    if verdict.ratio is None or verdict.low is None or verdict.high is None:
        return {"new": "no baseline", "refused": "not compared"}[verdict.kind]
    runs = "1 run" if verdict.runs == 1 else f"{verdict.runs} runs"
    low, high = format_change(verdict.low), format_change(verdict.high)
    return f"{verdict.kind}: {format_change(verdict.ratio)} ({low} to {high}, {runs})"


def _notes(measured: Measured, verdict: Verdict | None) -> list[str]:
    notes = [] if verdict is None else list(verdict.reasons)
    if verdict is not None and verdict.culprit:
        notes.append(verdict.culprit)
    if "comparison" in measured.facts:
        notes.append(measured.facts["comparison"]["text"])
    return notes + [f"warning: {text}" for text in measured.facts["warnings"]]


def _where(measured: Sequence[Measured]) -> str:
    gpus = sorted({str(one.facts["gpu"]) for one in measured if one.facts["gpu"]})
    if all(one.facts["gpu"] for one in measured):
        return "; ".join(gpus)
    reasons = sorted({one.on_cpu for one in measured if one.on_cpu})
    return "; ".join([*gpus, f"wall time on the CPU ({'; '.join(reasons)})" if reasons else "wall time on the CPU"])
