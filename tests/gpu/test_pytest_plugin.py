# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin on a real GPU, in a pytest of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import gpuscope

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

PLUGIN = [] if metadata.entry_points(group="pytest11", name="gpuscope") else ["-p", "gpuscope.pytest_plugin"]

TESTS = """
import os
import pytest
from gpuscope import _core

KERNELS = _core.Kernels()
SPIN_NS = int(os.environ.get("SPIN_NS", "20000"))

@pytest.mark.gpu_benchmark(cold=False, precision=0.02)
def test_spin(gpu_benchmark):
    assert gpu_benchmark(lambda: KERNELS.spin(SPIN_NS) or 42) == 42
    assert gpu_benchmark.result.median < 1e-3
"""


@pytest.fixture
def run(tmp_path):
    """Runs pytest on `TESTS`, with spins of so many ns."""
    (tmp_path / "test_spins.py").write_text(TESTS)

    def run(*arguments, spin_ns=20_000):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, *arguments]
        path = os.pathsep.join([str(Path(gpuscope.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        variables = os.environ | {"SPIN_NS": str(spin_ns), "PYTHONPATH": path}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)

    return run


def test_table_shows_the_gpus_time(run, tmp_path):
    done = run("--benchmark-json=out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (entry,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    facts = entry["extra_info"]["gpuscope"]
    assert facts["quantity"] in ("kernel", "stream")
    # The kernel spins for 20 us by the GPU's own clock; anything of the host's would add microseconds.
    assert 19e-6 < entry["stats"]["median"] < 26e-6
    assert facts["gpu"]
    assert facts["driver"]


def test_machine_info_names_the_gpu(run, tmp_path):
    run("--benchmark-json=out.json")
    machine = json.loads((tmp_path / "out.json").read_text())["machine_info"]
    assert machine["gpus"][0]["name"] == gpuscope.environment().devices[0].name


def test_longer_spins_fail_the_gate_and_name_the_kernel(run):
    assert run("--benchmark-save=x").returncode == 0
    done = run("--benchmark-compare", "--gpu-benchmark-fail", spin_ns=30_000)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SLOWER test_spins.py::test_spin" in done.stdout
    assert "spin" in done.stdout.split("allowed +5.0%:")[1]


def test_same_spins_do_not_fail_the_gate(run):
    assert run("--benchmark-save=x").returncode == 0
    done = run("--benchmark-compare", "--gpu-benchmark-fail")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SLOWER" not in done.stdout


def test_spins_without_measurement_under_disable(run):
    done = run("--benchmark-disable", "-rs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not measured" in done.stdout
