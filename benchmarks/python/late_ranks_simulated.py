# SPDX-License-Identifier: Apache-2.0
"""How often the late rank of a job and its reason are named, and how often healthy jobs are blamed, by simulation.

Recordings of eight ranks are made with 2 % noise, reduced and diagnosed, in 20 programs: five reasons, each by 0.5 to
4 ms in steps of 3 ms, in every step or each fifth. Needs no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import measure

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes.late_ranks import MS, REASONS, Late, make_job

RANKS, STEPS, NOISE = 8, 15, 0.02
PLANS = ((1, MS // 2, 1), (3, MS, 1), (6, 2 * MS, 1), (4, 4 * MS, 5))
"""The rank, by how much it is late, and in which steps, as `Late`."""


def planted() -> tuple[int, list[str]]:
    """The number of programs, and those whose first finding is another one."""
    missed = []
    for why, name in REASONS.items():
        for seed, (rank, by_ns, every) in enumerate(PLANS):
            job = make_job(Late(rank, why, by_ns, every), ranks=RANKS, steps=STEPS, noise=NOISE, seed=seed)
            first = next(iter(job.diagnose().findings), None)
            if first is None or first.ranks != (rank,) or name not in first.sentence:
                missed.append(f"{name}, rank {rank}, {by_ns / MS} ms: {first.sentence if first else 'nothing'}")
    return len(REASONS) * len(PLANS), missed


def alarms(windows: int) -> list[str]:
    """Findings of healthy jobs."""
    jobs = (make_job(ranks=RANKS, steps=STEPS, noise=NOISE, seed=seed) for seed in range(windows))
    return [each.sentence for job in jobs for each in job.diagnose().findings if each.ranks]


def main() -> None:
    windows = 20 if measure.arguments(__doc__).quick else 200
    number, missed = planted()
    blamed = alarms(windows)
    rows = {
        "late_missed": {"value": len(missed) / number, "detail": missed},
        "late_alarms": {"value": len(blamed), "detail": blamed},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
