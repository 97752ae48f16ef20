# SPDX-License-Identifier: Apache-2.0
"""A day of `GPUMonitor` with its log, history, rows and Prometheus, on a clock that runs ahead: what grows.

Samples are made as the core's sampler would give them, of GPUs that are not there, at simulated times; all that Python
does with them is as in a run. ``--sampler-seconds`` then has the core's own threads sample as fast as they may.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

DAY_S = 86_400
WARM_S = 10  # after which the core has what it needs
TAKE_S = 60  # simulated, between two looks at the monitor
BEGIN_NS = 1_800_000_000_000_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Sampler:
    """The core's sampler at simulated times; `advance` makes the rounds of a while."""

    why = ""
    made: Sampler
    costs: dict[str, Any]  # that the core tells, all 0

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns, self.now_ns, self.rounds = interval_ns, BEGIN_NS, 0
        self.samples: list[dict[str, Any]] = []
        Sampler.made = self

    def advance(self, seconds: float, gpus: int) -> None:
        from gpuscope import _core

        for _ in range(round(seconds * 1e9 / self.interval_ns)):
            self.now_ns += self.interval_ns
            self.rounds += 1
            for gpu in range(gpus):
                figures: dict[str, Any] = dict.fromkeys(_core.GPU_FIGURES, 0.5)
                figures["energy_total_j"] = self.rounds * 40.0
                figures |= dict.fromkeys([name for name in figures if name.startswith("pcie_")], None)
                # Reasons change now and then, processes come and go, errors happen.
                why = {"fan_ratio": "Not Supported"} if self.rounds % 7200 < 3600 else {}
                facts = {
                    "index": gpu,
                    "name": "NVIDIA H100 80GB HBM3",
                    "uuid": f"GPU-{gpu}",
                    "pci_address": f"00000000:0{gpu}:00.0",
                    "figures": figures,
                    "throttle_reasons": [],
                    "throttle_faults": [],
                    "throttled_s": {"sw_power_cap": self.rounds * 0.01},
                    "mig": False,
                    "instances": None,
                    "xid_errors": [(31, 1 + self.rounds // 3600, self.now_ns)],
                    "processes": [(self.rounds % 30_000 + 2, 1 << 30)],
                    "why": why,
                }
                self.samples.append(
                    {
                        "time_ns": self.now_ns,
                        "took_ns": 20_000,
                        "process_cpu_s": self.rounds * 0.1,
                        "resident_bytes": 1 << 30,
                        "slow_time_ns": self.now_ns,
                        "rare_time_ns": self.now_ns,
                        "host_time_ns": self.now_ns,
                        "host": dict.fromkeys(_core.HOST_FIGURES, float(self.rounds)) | {"why": {}},
                        "gpu": facts,
                    }
                )

    def take(self) -> list[dict[str, Any]]:
        taken, self.samples = self.samples, []
        return taken

    def cost(self) -> dict[str, Any]:
        return self.costs | {"rounds": self.rounds, "elapsed_ns": self.rounds, "limited": {}}

    def stop(self) -> bool:
        return True


def simulate(hours: float, gpus: int, interval: float, folder: Path) -> dict[str, float]:
    """What the process has after the first hour, in which history fills, and at the end."""
    from gpuscope import GPUMonitor, _core
    from gpuscope.monitor.history import History
    from gpuscope.monitor.processes import ProcessReader
    from gpuscope.monitor.prometheus import Collector
    from gpuscope.monitor.rows import Rows

    Sampler.costs = dict.fromkeys(_core.GpuSampler(1_000_000_000).cost(), 0)
    _core.GpuSampler = Sampler  # type: ignore[misc, assignment]
    history, rows, processes = History(), Rows(), ProcessReader()
    found: dict[str, float] = {}
    monitor = GPUMonitor(folder / "gpu.csv", interval)
    collector = Collector(monitor)
    with monitor:
        monitor.take()
        for minute in range(int(hours * 60)):
            Sampler.made.advance(TAKE_S, gpus)
            monitor._collect(Sampler.made)  # as the thread that writes does each second
            taken = monitor.take()
            history.append(taken)
            for _ in rows.lines(taken):
                pass
            processes.rows((each.gpu.index, process) for each in taken[-gpus:] for process in each.gpu.processes)
            for _ in collector.collect():
                pass
            if minute in (59, int(hours * 60) - 1):
                name = "hour" if minute == 59 else "end"
                found |= {f"resident_{name}": resident_bytes(), f"files_{name}": open_files()}
                found[f"kept_{name}"] = sum(len(kept) for kept in history._samples.values())
                (folder / "gpu.csv").write_bytes(b"")  # the file alone may grow; this disk need not hold it
    return found


def main() -> None:
    options = measure.arguments(__doc__, hours=24.0, gpus=1, interval=1.0, sampler_seconds=20.0)
    hours = 2.0 if options.quick else options.hours
    began = time.perf_counter()
    from gpuscope import _core

    real = _core.GpuSampler
    with tempfile.TemporaryDirectory() as folder:
        found = simulate(hours, options.gpus, options.interval, Path(folder))
    _core.GpuSampler = real  # type: ignore[misc]
    took = time.perf_counter() - began
    sampler = real(1_000_000)  # a round each ms, a hundred times as often as at 10 Hz
    before = 0
    for second in itertools.count():
        time.sleep(1)
        sampler.take()
        if second == WARM_S:
            before = resident_bytes()
        if second >= options.sampler_seconds:
            break
    sampler.stop()
    rounds = sampler.cost()["rounds"]
    detail = {
        **found,
        "hours": hours,
        "took_s": round(took, 1),
        "core_rounds": rounds,
        "core_growth_kib": (resident_bytes() - before) / 1024,
    }
    growth = (found["resident_end"] - found["resident_hour"]) / 2**20
    measure.answer({"rows": {"day of the monitor": {"value": round(growth, 3), "detail": detail}}})


if __name__ == "__main__":
    sys.exit(main())
