# SPDX-License-Identifier: Apache-2.0
"""GPU work that is left out on request, and windows put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import gpuscope as gs

if TYPE_CHECKING:
    from gpuscope._core import Kernels

CPU, CUDA = gs.ProfilerActivity.CPU, gs.ProfilerActivity.CUDA


def launch(kernels: Kernels, region: str, count: int = 5) -> None:
    with gs.record_function(region):
        for _ in range(count):
            kernels.spin(20_000)


def counts(prof: gs.profile) -> dict[str, int]:
    return {row.key: row.count for row in prof.key_averages()}


def test_launches_are_left_out_while_the_gpu_is_toggled_off(kernels: Kernels) -> None:
    with gs.profile() as prof:
        for _ in range(3):
            launch(kernels, "on")
            prof.toggle_collection_dynamic(False, [CUDA])
            launch(kernels, "off")
            prof.toggle_collection_dynamic(True, [CUDA])
        launch(kernels, "on")
    rows = {row.key: row for row in prof.key_averages()}
    assert len(prof.trace.kernels) == 20
    assert rows["on"].device_time_total > 0
    assert rows["off"].count == 3
    assert rows["off"].device_time_total == 0
    audit = prof.audit()
    assert audit.complete, audit
    assert audit.launches == 20
    assert audit.gpu_off == 3
    assert any("left out on request 3 times" in remark for remark in audit.remarks)


def test_kernels_of_a_hidden_region_belong_to_the_one_around(kernels: Kernels) -> None:
    with gs.profile() as prof, gs.record_function("outer"):
        prof.toggle_collection_dynamic(False, [CPU])
        launch(kernels, "hidden")
    rows = {row.key: row for row in prof.key_averages()}
    assert "hidden" not in rows
    assert len(prof.trace.kernels) == 5
    assert rows["outer"].device_time_total == pytest.approx(sum(prof.trace.kernels.duration_ns) / 1e3)


def test_windows_that_accumulate_hold_the_kernels_of_all(kernels: Kernels) -> None:
    seen = []
    with gs.profile(
        acc_events=True,
        schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=3),
        on_trace_ready=lambda p: seen.append(len(p.trace.kernels)),
    ) as prof:
        for step in range(6):
            launch(kernels, "work", step + 1)
            prof.step()
    assert seen == [2, 6, 12]
    assert prof.audit().launches == 12
    assert prof.audit().complete, prof.audit()
    assert counts(prof)["work"] == 3


def test_events_that_are_not_named_get_no_rows(kernels: Kernels) -> None:
    with gs.profile(activities=[CPU, {CUDA: ["GPU_MEMCPY"]}]) as prof:
        launch(kernels, "work")
    assert len(prof.trace.kernels) == 0
    assert len(prof.trace.api) > 0
    assert prof.audit().complete, prof.audit()
    assert prof.audit().launches == 5
