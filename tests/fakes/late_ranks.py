# SPDX-License-Identifier: Apache-2.0
"""Jobs with one rank that arrives late at its collectives, for a planted reason. Times in ns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fakes.rank_recordings import ALL_REDUCE, GEMM, RankRecording
from gpuscope.fleet.job import Fleet
from gpuscope.fleet.reduce import reduce
from gpuscope.fleet.tables import join

US, MS = 1_000, 1_000_000
COMMUNICATOR = 0xF00D
COMPUTE_NS = 3 * MS


def data(rank: RankRecording, start: int, end: int) -> None:
    rank.region("load batch", start, end)


def garbage(rank: RankRecording, start: int, end: int) -> None:
    rank.collection(start, end)


def synchronization(rank: RankRecording, start: int, end: int) -> None:
    rank.synchronization(start - 20 * US, end)


def host_code(rank: RankRecording, start: int, end: int) -> None:
    rank.sample(start, end, "/home/me/data.py", "tokenize", 31)


def clock(rank: RankRecording, start: int, end: int) -> None:
    """The kernel takes longer: see `make_job`."""


REASONS: Mapping[Callable[[RankRecording, int, int], None], str] = {
    data: "waiting for data",
    garbage: "garbage collection",
    synchronization: "synchronization",
    host_code: "tokenize (data.py)",
    clock: "throttled clock",
}
"""What makes a rank late, and its name in answers."""


@dataclass(frozen=True)
class Late:
    """A planted reason: rank `rank` is late by `by_ns` in every `every`-th step, because of `why`."""

    rank: int
    why: Callable[[RankRecording, int, int], None]
    by_ns: int = 2 * MS
    every: int = 1


def make_job(late: Late | None = None, *, ranks: int = 4, steps: int = 12, noise: float = 0.0, seed: int = 0) -> Fleet:
    """A job on one host: in each step of about 3 ms a kernel and an all-reduce.

    Args:
        late: the planted reason; None for none.
        ranks: number of ranks.
        steps: number of steps.
        noise: deviation of times, relative.
        seed: of the noise.
    """
    random = np.random.default_rng(seed)
    recordings = [
        RankRecording(
            20 * steps * MS, process_rank=f"{rank}", process_world_size=f"{ranks}", process_host="node", process_id="9"
        )
        for rank in range(ranks)
    ]
    now = np.full(ranks, MS)
    for rank, recording in enumerate(recordings):
        recording.creation_of_nccl(0, COMMUNICATOR, ranks, rank)
    for step in range(steps):
        factors = 1 + noise * random.standard_normal((2, ranks))
        arrivals = []
        for rank, recording in enumerate(recordings):
            mine = late if late is not None and late.rank == rank and step % late.every == 0 else None
            at, compute = int(now[rank]), int(COMPUTE_NS * factors[0, rank])
            launch = at + int(50 * US * factors[1, rank])
            mhz = 1980
            if mine is not None and mine.why is clock:
                mhz = 1980 * compute // (compute + mine.by_ns)
                compute += mine.by_ns
            elif mine is not None:
                mine.why(recording, at, at + mine.by_ns)
                launch += mine.by_ns
            for moment in (at, launch + compute):
                recording.clock(moment, mhz)
            recording.step(at, at + 10, step)
            recording.kernel(GEMM, launch + 5 * US, launch + 5 * US + compute, launched=launch)
            call = recording.call_of_nccl("ncclAllReduce", launch + 2 * US, COMMUNICATOR, 1 << 20)
            arrivals.append((launch + 5 * US + compute, call))
        release = max(arrival for arrival, _ in arrivals) + 200 * US
        for recording, (arrival, call) in zip(recordings, arrivals, strict=True):
            recording.kernel(ALL_REDUCE, arrival, release, region=call)
        now[:] = release
    return Fleet(join([reduce(recording.trace(), f"rank{rank}") for rank, recording in enumerate(recordings)]))
