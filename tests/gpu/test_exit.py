# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PROCESSES = 8


def test_processes_that_also_ran_torch_profiler_end_without_an_abort():
    """Half of them died in Kineto's callback, with gpuscope or without it, where nobody kept the primary context."""
    command = [sys.executable, "benchmarks/python/operators.py", "--quick"]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    ended = [(process.communicate()[1][-200:], process.returncode) for process in running]
    assert [end for end in ended if end[1] != 0] == []
