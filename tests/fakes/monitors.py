# SPDX-License-Identifier: Apache-2.0
"""Samples of GPUs that are not there, and a monitor that gives them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.machines import gpu, sample
from gpuscope.monitor.gpu_monitor import MonitorCost, _samples
from gpuscope.monitor.sample import GpuSample

BEGIN_S = 1e9


def taken(*facts) -> list[GpuSample]:
    """The samples that a monitor makes of what the core says."""
    return _samples(SimpleNamespace(take=lambda: [*facts]))


def series(count, *, every_s=1.0, index=0, begin_s=BEGIN_S, throttled_s=0.0, **figures) -> list[GpuSample]:
    """So many samples of a GPU; a figure may be a function of the seconds since the first."""
    made = []
    for number in range(count):
        at = number * every_s
        now = {name: value(at) if callable(value) else value for name, value in figures.items()}
        throttled = throttled_s(at) if callable(throttled_s) else throttled_s
        made.append(sample(gpu(index, throttled_s={"sw_power_cap": throttled}, **now), begin_s + at))
    return taken(*made)


class FakeMonitor:
    """A `GPUMonitor` whose samples are put in."""

    def __init__(self, samples: Iterable[GpuSample] = (), why: str = "") -> None:
        self.interval = 0.5
        self.why = why
        self.error = ""
        self.cost = MonitorCost(rounds=3, cpu_s=0.01, elapsed_s=1.0, dropped=2, mean_s=3e-5, p99_s=9e-5)
        self._samples = [*samples]
        self._latest: dict[int, GpuSample] = {}

    def add(self, *samples: GpuSample) -> None:
        self._samples += samples

    def take(self) -> list[GpuSample]:
        taken, self._samples = self._samples, []
        return taken

    def latest(self) -> list[GpuSample]:
        for each in self.take():
            self._latest[-1 if each.gpu is None else each.gpu.index] = each
        return [each for _, each in sorted(self._latest.items())]


def nvml_library(folder: Path) -> dict[str, str]:
    """Variables with which a program finds a libnvidia-ml of GPUs that are not there."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = Path(__file__).with_name("nvml_library.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source, "-lm"], check=True, timeout=300
    )
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])}
