# SPDX-License-Identifier: Apache-2.0
"""What changed between two jobs."""

from __future__ import annotations

import pytest

from fakes.fleets import job_tables, make_fleet
from gpuscope.errors import NotAvailable
from gpuscope.fleet.job import Fleet


def job(**options):
    return make_fleet(8, steps=40, noise=0.01, **options)


def test_two_recordings_of_one_job_do_not_differ():
    found = job().diff(job(seed=2))
    assert found.step.verdict == "same"
    assert [each.verdict for each in found.parts] == ["same"] * 4
    assert found.ranks == ()


def test_a_longer_transfer_makes_the_step_and_its_communication_slower():
    found = job().diff(job(seed=2, transfer_ms=2.0))
    assert found.step.verdict == "slower"
    assert found.step.change == pytest.approx(2 / 12.2, abs=0.02)  # 1 ms for each of two calls
    assert found.step.low < found.step.change < found.step.high
    assert {each.name: each.verdict for each in found.parts} == {
        "compute": "same",
        "exposed communication": "slower",
        "exposed copies": "same",
        "idle": "same",
    }


def test_a_rank_that_became_slow_is_named_with_its_change():
    found = job().diff(job(seed=2, slow={3: 1.2}))
    assert [each.name for each in found.ranks] == ["rank 3"]
    assert found.ranks[0].change == pytest.approx(0.2, abs=0.02)
    assert found.ranks[0].low > 0.1


def test_kernels_are_times_per_step_and_rank():
    found = job().diff(make_fleet(4, steps=40, transfer_ms=1.0))
    assert [each.name for each in found.kernels] == ["gemm"]
    assert found.kernels[0].before_s == pytest.approx(8e-3, rel=0.01)
    assert found.kernels[0].change == pytest.approx(0, abs=0.01)
    assert any("8 and 4 ranks" in note for note in found.notes)


def test_a_new_kernel_is_new():
    tables = job_tables(8, steps=40)
    tables["kernel_stat"]["kernel"][:] = 12
    found = job().diff(Fleet(tables))
    assert {(each.before_s > 0, each.after_s > 0) for each in found.kernels} == {(True, False), (False, True)}
    assert "new" in str(found)


def test_slow_steps_at_the_start_are_left_out_and_told():
    tables = job_tables(8, steps=40, noise=0.01)
    tables["step"]["duration_ns"][tables["step"]["step"] == 0] *= 50
    found = job().diff(Fleet(tables))
    assert found.step.verdict == "same"
    assert found.steps == (40, 39)
    assert "1 steps at the start after are left out" in found.notes


def test_few_steps_are_not_compared():
    with pytest.raises(NotAvailable, match="they have 40 and 3 steps; 4 are needed"):
        job().diff(make_fleet(8, steps=3))


def test_the_verdict_stands_first():
    lines = str(job().diff(job(seed=2, transfer_ms=2.0))).splitlines()
    assert lines[0].startswith("verdict: slower: a step takes ")
    assert lines[1] == "40 and 40 steps of 8 and 8 ranks"
