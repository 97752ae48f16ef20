# SPDX-License-Identifier: Apache-2.0
"""What recording costs is measured on this GPU, by launches that are in no recording and disturb nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import gpuscope as gs

LAUNCHES = 2_000
CALIBRATION = "gpuscope_empty"
CAPTURES = """
import torch
import gpuscope as gs

values, other, graph = torch.zeros(1000, device="cuda"), torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
prof = gs.profile()
prof.start()
for _ in range(2000):
    other += 1
torch.cuda.synchronize()
with torch.cuda.graph(graph, capture_error_mode="global"):
    values += 1
    prof.stop()
    values += 1
graph.replay()
print(values[0].item())
"""


def record(kernels: Any) -> Any:
    with gs.profile() as prof:
        for _ in range(LAUNCHES):
            kernels.spin(1_000, 0)
        kernels.synchronize()
    return prof


def test_the_overhead_is_measured_and_its_launches_are_in_no_recording(kernels):
    for _ in range(2):
        prof = record(kernels)
        found = prof.audit()
        assert found.complete, found.verdict
        assert found.overhead_source == "measured"
        assert found.launches == found.kernels == LAUNCHES
        assert CALIBRATION not in prof.trace.kernel_names()
        assert 0 < found.overhead_cupti_ns / LAUNCHES < 20_000
        assert found.overhead_ns == found.overhead_own_ns + found.overhead_cupti_ns


def test_an_end_while_a_stream_is_captured_spoils_nothing():
    """In a process of its own, so that the end is the first one that measures."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", CAPTURES], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2.0"], done.stderr
