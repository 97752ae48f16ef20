# SPDX-License-Identifier: Apache-2.0
"""The measurements of one run of pytest, its baselines, the verdicts, and the section that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gpuscope.errors import InvalidArgument
from gpuscope.text import columns_of, one_line, padded, printable
from gpuscope.units import format_change, format_rough, format_seconds

if TYPE_CHECKING:
    from gpuscope.pytest_plugin.baselines import Baseline
    from gpuscope.pytest_plugin.gate import Verdict
    from gpuscope.pytest_plugin.measured import Measured


class State:
    """The state of one session; tests are named by their node id, which is pytest-benchmark's ``fullname``."""

    def __init__(self) -> None:
        self.measured: dict[str, Measured] = {}
        self.baselines: list[Baseline] = []  # named by --benchmark-compare
        self.processor = ""  # this machine's CPU as pytest-benchmark names it, once a baseline is loaded
        self.verdicts: dict[str, Verdict] = {}  # set after the tests, if there are baselines
        self.gated = False  # set after the tests: whether --gpu-benchmark-fail had tests to watch

    def add_baseline(self, machine_info: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Adds one of pytest-benchmark's files, and this machine's ``machine_info``."""
        from gpuscope.pytest_plugin.baselines import Baseline, processor

        self.processor = processor(machine_info)
        try:
            self.baselines.append(Baseline.of(run))
        except InvalidArgument as error:
            raise pytest.UsageError(str(error)) from None

    def check_baselines(self, session: Any) -> None:
        """Raises pytest.UsageError unless pytest-benchmark read all files that --benchmark-compare names."""
        from gpuscope.pytest_plugin.baselines import unread_files

        if unread := unread_files(session):
            others = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise pytest.UsageError(
                f"--gpu-benchmark-fail: {unread[0]}{others} cannot be read as a saved run of pytest-benchmark;"
                " delete it or save it again"
            )
        if not self.baselines:
            raise pytest.UsageError(
                "--gpu-benchmark-fail has nothing to compare with: --benchmark-compare found no saved run; save one"
                " with --benchmark-save or --benchmark-autosave in a run without --gpu-benchmark-fail"
            )
        if not any(baseline.tests for baseline in self.baselines):
            raise pytest.UsageError(
                "--gpu-benchmark-fail has nothing to compare with: the saved runs that --benchmark-compare found hold"
                " no test"
            )

    def judge(self) -> None:
        """Compares each measured test with the baselines."""
        if not self.measured or not self.baselines:
            return
        from gpuscope.pytest_plugin.gate import judge

        self.verdicts = judge(self.measured, self.baselines, self.processor)

    def slower(self) -> list[str]:
        """The tests that are significantly slower than their baseline by more than their margin."""
        return [test for test, verdict in self.verdicts.items() if verdict.kind == "slower"]

    def unjudged(self) -> list[str]:
        """Sentences on tests that the gate could not compare; each fails the run."""
        if not self.measured:
            return ["nothing was measured, so that nothing was compared"]
        if all(verdict.kind == "new" for verdict in self.verdicts.values()):
            return ["no baseline has any of the tests that were measured"]
        return [
            f"NOT COMPARED {test}: {reason}"
            for test, verdict in self.verdicts.items()
            for reason in self._not_compared(test, verdict)
        ]

    def _not_compared(self, test: str, verdict: Verdict) -> list[str]:
        """The test's damaged baselines, and the reason if the test was compared with none."""
        damaged = [baseline.damage_of(test) for baseline in self.baselines if test in baseline.damaged]
        if verdict.kind == "refused" and verdict.reasons[-1] not in damaged:
            return [*damaged, verdict.reasons[-1]]
        return damaged

    def write(self, terminal: pytest.TerminalReporter) -> None:
        """Writes the facts that pytest-benchmark's table lacks, and why the gate fails the run."""
        if self.measured:
            terminal.section(one_line(f"gpuscope: {_where(list(self.measured.values()))}"), "-")
        width = max((columns_of(one_line(test)) for test in self.measured), default=0)
        for test, measured in self.measured.items():
            verdict = self.verdicts.get(test)
            bad = verdict is not None and verdict.kind == "slower"
            terminal.write_line(f"{padded(one_line(test), width)}  {_line(measured.facts, verdict)}", red=bad)
            for note in _notes(measured, verdict):
                terminal.write_line(f"    {printable(note)}", yellow=True)
        if self.gated and (unjudged := self.unjudged()):
            terminal.section("--gpu-benchmark-fail could not compare", "=", red=True)
            for sentence in unjudged:
                terminal.write_line(one_line(sentence))
        if self.gated and (slower := self.slower()):
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
    """One test's result, as ``12.34 us +-0.4%  n=173  kernel, cold  same: +0.3% (...)``."""
    low, high = facts["ci"]
    known = low is not None and high is not None and facts["estimate"]
    unsure = f"+-{format_rough(100 * (high - low) / 2 / abs(facts['estimate']))}%" if known else "+-?"
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
