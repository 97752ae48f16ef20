# SPDX-License-Identifier: Apache-2.0
"""The answers of a whole job, of tables with known delays."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.rank_tables import MS, START, job_tables
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.fleet import tables
from gpuscope.fleet.job import Fleet


def test_an_even_job_is_fine():
    found = Fleet(job_tables()).diagnose()
    assert found.verdict == "verdict: no rank holds the others up"
    assert not found.has_straggler


def test_waiting_for_a_late_rank_is_no_cost_of_communication():
    found = Fleet(job_tables(idle_ns={3: 8 * MS})).diagnose()
    assert [each.kind for each in found.findings] == ["late rank"]


def test_idle_time_is_a_finding_of_all_ranks_only():
    one = Fleet(job_tables(idle_ns={3: 8 * MS})).diagnose()
    every = Fleet(job_tables(idle_ns=dict.fromkeys(range(16), 8 * MS))).diagnose()
    assert "idle" not in [each.kind for each in one.findings]
    assert every.verdict.startswith("verdict: Every rank is idle for at least 41.")


def test_ranks_without_work_that_is_seen_have_no_answer():
    found = job_tables()
    found["collective"] = tables.empty("collective")
    step = found["step"]
    for column in ("compute_ns", "communication_ns", "exposed_ns"):
        step[column] = np.zeros_like(step[column])
    step["idle_ns"] = step["duration_ns"].copy()
    found = Fleet(found).diagnose()
    assert found.verdict.endswith("slow ranks are not known, as the recordings have neither GPU work nor collectives")
    assert "; no GPU work was recorded" in str(found)


def test_without_collectives_the_parts_of_a_step_are_known():
    found = job_tables()
    found["collective"] = tables.empty("collective")
    found["step"]["exposed_ns"] = np.zeros_like(found["step"]["exposed_ns"])
    assert Fleet(found).diagnose().verdict.startswith("verdict: not known who waits for whom")


def test_a_slow_rank_is_the_verdict():
    found = Fleet(job_tables(slower={5: 0.08})).diagnose()
    assert found.has_straggler
    assert found.findings[0].kind == "straggler"
    assert found.findings[0].ranks == (5,)
    assert found.verdict.startswith("verdict: rank 5 (host0) computes ")


def test_what_a_slow_rank_costs_is_near_what_it_added_to_the_others():
    found = Fleet(job_tables(slower={5: 0.08}, noise=0.001)).diagnose()
    assert found.findings[0].cost_s == pytest.approx(0.08 * 10e-3 * 120 * 15, rel=0.2)


def test_a_rank_whose_gpu_waits_for_its_host_is_late_because_of_that():
    found = Fleet(job_tables(idle_ns={3: 2 * MS})).diagnose()
    late = [each for each in found.findings if each.kind == "late rank"]
    assert [each.ranks for each in late] == [(3,)]
    assert "its GPU waits for its host" in late[0].sentence


def test_clocks_of_hosts_that_differ_change_no_answer():
    apart = Fleet(job_tables(idle_ns={3: 2 * MS}, ahead_ns={"host1": 30_000_000_000_000})).diagnose()
    assert apart.clock.usable
    assert [each.ranks for each in apart.findings if each.kind == "late rank"] == [(3,)]


def test_a_rank_that_counts_from_another_number_is_compared_with_its_peers():
    late = job_tables(idle_ns={3: 2 * MS}, per_host=1)
    collective = late["collective"]
    kept = (collective["rank"] != 5) | (collective["sequence"] >= 41)
    late["collective"] = {name: values[kept] for name, values in collective.items()}
    late["collective"]["bytes"] = (late["collective"]["sequence"] * 7919 % 97 + 1) << 10
    late["collective"]["sequence"] = np.where(
        late["collective"]["rank"] == 5, late["collective"]["sequence"] - 41, late["collective"]["sequence"]
    )
    fleet = Fleet(late)
    assert [(each.rank, each.shift, each.used) for each in fleet.clock.late_starts] == [(5, 41, True)]
    assert [each.ranks for each in fleet.diagnose().findings if each.kind == "late rank"] == [(3,)]


def test_missing_ranks_are_said_in_the_first_line_and_by_number():
    found = Fleet(job_tables(ranks=15, world_size=16)).diagnose()
    assert str(found).startswith("15 of 16 ranks on 2 hosts\n")
    assert [each.ranks for each in found.findings if each.kind == "missing"] == [(15,)]


def test_the_text_fits_a_screen():
    found = Fleet(job_tables(slower={rank: 0.1 * (rank + 1) for rank in range(6)})).diagnose()
    assert len(str(found).splitlines()) <= 40


def test_parts_of_a_step_add_up():
    breakdown = Fleet(job_tables(idle_ns={3: 2 * MS})).breakdown()
    assert sum(breakdown.shares.values()) == pytest.approx(1)
    assert breakdown.extremes["idle"][2] == 3


def test_a_job_without_steps_says_so():
    found = job_tables()
    found["step"] = tables.empty("step")
    with pytest.raises(NotAvailable, match=r"no rank has a step; call prof\.step"):
        Fleet(found).breakdown()
    assert any("no rank has a step" in note for note in Fleet(found).diagnose().notes)


def test_a_job_without_ranks_is_refused():
    with pytest.raises(InvalidArgument, match="the job has no rank; accepted are recordings of at least one"):
        Fleet({})


def test_an_even_job_would_gain_nothing_from_even_ranks():
    assert Fleet(job_tables(noise=0.0)).what_if().slowdown == pytest.approx(1, abs=0.01)


def test_one_slow_rank_slows_the_whole_job():
    found = Fleet(job_tables(slower={5: 0.5}, noise=0.0)).what_if()
    assert found.slowdown == pytest.approx(1 + (5 - 5 / 16) / (10 + 5 / 16 + 1), rel=0.05)
    assert found.worst_ranks == (5,)


def test_tables_come_back_from_parquet(tmp_path):
    given = job_tables()
    given["collective"]["called_ns"] = np.full_like(given["collective"]["called_ns"], -1)  # as in a CUDA graph
    tables.write(tmp_path, given, 0)
    found = Fleet.open(tmp_path)
    for name, columns in given.items():
        for column, values in columns.items():
            assert np.array_equal(found.table(name)[column], values), (name, column)


def test_aligned_times_keep_the_epoch():
    fleet = Fleet(job_tables())
    assert abs(int(fleet.clock.aligned(0, START)) - START) < MS


ANSWERS = {
    name: (lambda job, name=name: getattr(job, name)())
    for name in ("diagnose", "waits", "stragglers", "breakdown", "what_if")
} | {"clock": lambda job: job.clock, "diff": lambda job: job.diff(job)}


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_says_how_many_ranks_are_missing(answer):
    assert "16 of 20 ranks" in str(ANSWERS[answer](Fleet(job_tables(16, world_size=20))))
