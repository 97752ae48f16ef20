# SPDX-License-Identifier: Apache-2.0
"""A process that has profiled goes on as before."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_torch_can_be_imported_after_profiling():
    pytest.importorskip("torch")
    code = """
import gpuscope as gs
with gs.profile() as prof:
    with gs.record_function("a"):
        pass
prof.key_averages().table()
gs.environment()
import torch
print(torch.ones(2).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr[-2000:]
