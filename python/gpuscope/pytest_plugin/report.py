# SPDX-License-Identifier: Apache-2.0
"""What pytest-benchmark's table has no column for: precision, quantity, verdict and warnings of each test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuscope.pytest_plugin.gate import Verdict, change
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.pytest_plugin.session import State
from gpuscope.units import format_seconds


def write(terminal: pytest.TerminalReporter, state: State, *, failing: bool) -> None:
    """Writes the section after pytest-benchmark's table.

    Args:
        terminal: where to.
        state: the session's.
        failing: whether a slower test fails the run.
    """
    terminal.section(f"gpuscope: {_where(list(state.measured.values()))}", "-")
    width = max(len(test) for test in state.measured)
    for test, measured in state.measured.items():
        verdict = state.verdicts.get(test)
        bad = verdict is not None and verdict.kind == "slower"
        terminal.write_line(f"{test:{width}}  {line(measured.facts, verdict)}", red=bad)
        for note in _notes(measured, verdict):
            terminal.write_line(f"    {note}", yellow=True)
    if failing and not state.verdicts:
        terminal.write_line("nothing to compare with: --benchmark-compare found no saved run", yellow=True)
    if failing and (slower := state.slower()):
        tests = (
            "1 benchmark is slower than its baseline"
            if len(slower) == 1
            else (f"{len(slower)} benchmarks are slower than their baseline")
        )
        terminal.section(tests, "=", red=True)
        for test in slower:
            verdict = state.verdicts[test]
            allowed = change(1 + state.measured[test].margin)
            terminal.write_line(f"SLOWER {test}: {verdict_text(verdict)}, allowed {allowed}: {verdict.culprit}")


def line(facts: dict[str, Any], verdict: Verdict | None) -> str:
    """One test's result, as ``12.34 us +-0.4%  n=173 (120 independent)  kernel, cold  same: +0.3% (...)``."""
    low, high = facts["ci"]
    unsure = "+-?" if low is None or high is None else f"+-{100 * (high - low) / 2 / facts['estimate']:.2g}%"
    texts = [
        f"{format_seconds(facts['estimate'], 4)} {unsure}",
        f"n={facts['n']}",
        facts["quantity"] + (", cold" if facts["cold"] else ", hot") * (facts["gpu"] is not None),
    ]
    if verdict is not None:
        texts.append(verdict_text(verdict))
    return "  ".join(texts)


def verdict_text(verdict: Verdict) -> str:
    """As ``slower: +12.0% (+11.2% to +12.7%, 3 runs)``."""
    if verdict.ratio is None or verdict.low is None or verdict.high is None:
        return {"new": "no baseline", "refused": "not compared"}[verdict.kind]
    runs = "1 run" if verdict.runs == 1 else f"{verdict.runs} runs"
    return f"{verdict.kind}: {change(verdict.ratio)} ({change(verdict.low)} to {change(verdict.high)}, {runs})"


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
