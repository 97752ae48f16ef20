# SPDX-License-Identifier: Apache-2.0
"""Threads that burst, end or never stop: nothing of the recording is lost, nothing after it is kept.

``benchmarks/python/load.py`` does the same for longer, and says what it took.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import child
import pytest

import gpuscope as gs

if TYPE_CHECKING:
    from gpuscope._core import Kernels

LOAD = Path(__file__).parents[2] / "benchmarks" / "python" / "load.py"


@pytest.mark.parametrize("scene", ["burst", "short", "stop", "windows", "cycles", "ten", "ring", "aggregate"])
def test_nothing_is_lost_under_load(scene: str) -> None:
    answer = child.last_facts(child.run(sys.executable, LOAD, "--quick", "--only", scene))
    lines: list[dict[str, Any]] = answer["rows"]["load_lost"]["detail"]
    assert lines
    for line in lines:
        assert line["complete"], line
        assert (line["lost"], line["refused"] if scene != "aggregate" else 0, line["after"]) == (0, 0, 0), line


def test_every_thread_that_begins_at_once_has_its_kernels(kernels: Kernels) -> None:
    barrier = threading.Barrier(64)

    def work() -> None:
        barrier.wait()
        with gs.record_function("work"):
            kernels.spin(1, count=500)

    with gs.profile() as prof:
        threads = [threading.Thread(target=work) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    audit = prof.audit()
    assert (audit.launches, audit.kernels, audit.pool_exhausted) == (32_000, 32_000, 0), str(audit)
    assert audit.complete, str(audit)
    assert len(set(prof.trace.kernels.region.tolist())) == 64


def test_a_stop_waits_for_what_runs_as_long_as_it_is_told(kernels: Kernels) -> None:
    prof = gs.profile()
    prof.start()
    kernels.spin(3_000_000_000)
    prof.stop(timeout=math.inf)
    assert prof.audit().complete, str(prof.audit())
    assert prof.trace.kernels.duration_ns[0] > 2_900_000_000


def test_what_still_runs_is_named(kernels: Kernels) -> None:
    prof = gs.profile()
    prof.start()
    kernels.spin(1_500_000_000)
    kernels.spin(1)
    prof.stop(timeout=0)
    audit = prof.audit()
    kernels.synchronize()
    assert not audit.complete
    assert audit.missing + audit.incomplete == 2, str(audit)
    assert "gpuscope_spin" in audit.verdict, str(audit)


def test_threads_go_on_unharmed_after_a_stop(kernels: Kernels) -> None:
    done = threading.Event()
    counts = [0] * 4

    def work(number: int) -> None:
        while not done.is_set():
            kernels.spin(20_000, count=10)
            counts[number] += 10

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        with gs.profile() as prof:
            time.sleep(0.1)
        assert prof.audit().complete, str(prof.audit())
        assert prof.audit().launches == prof.audit().kernels - prof.audit().unattributed > 0
        before = sum(counts)
        time.sleep(0.05)
        assert sum(counts) > before
    done.set()
    for thread in threads:
        thread.join()
