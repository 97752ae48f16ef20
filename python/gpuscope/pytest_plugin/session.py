# SPDX-License-Identifier: Apache-2.0
"""What one run of pytest measured, what it is compared with, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpuscope.pytest_plugin.gate import Baseline, Verdict
    from gpuscope.pytest_plugin.measured import Measured


class State:
    """Of one session.

    Attributes:
        measured: by the test's node id, which is pytest-benchmark's ``fullname``.
        baselines: the runs named by --benchmark-compare, as pytest-benchmark ordered them: the oldest first.
        processor: this machine's, as pytest-benchmark names it; empty until it has loaded a baseline.
        verdicts: one a measured test, once the tests are over and if there are baselines.
    """

    def __init__(self) -> None:
        self.measured: dict[str, Measured] = {}
        self.baselines: list[Baseline] = []
        self.processor = ""
        self.verdicts: dict[str, Verdict] = {}

    def add_baseline(self, machine_info: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Takes in one stored run.

        Args:
            machine_info: pytest-benchmark's of this run.
            run: a whole file of pytest-benchmark's.
        """
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


STATE = pytest.StashKey[State]()
