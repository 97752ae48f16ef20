# SPDX-License-Identifier: Apache-2.0
"""How many slow ranks of a large job are found, how often healthy ones are named, and how long the answer takes.

Jobs are simulated: fleet tables of ranks with roles, clock errors and planted faults. Needs no GPU. Noise: 2 % from
step to step, 0.5 % from rank to rank, and 1 % of the steps up to twice as long.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measure
import numpy as np

from gpuscope.cli.fleet import read_job
from gpuscope.fleet.instances import KINDS
from gpuscope.fleet.stragglers import find_stragglers
from gpuscope.fleet.tables import RANKS_PER_FILE, checked, write

Array = np.ndarray[Any, Any]
Table = dict[str, Array]

US, MS = 1_000, 1_000_000
EPOCH_NS = 1_790_000_000_000_000_000
PER_NODE, NODES_OF_GROUP = 8, 16
STEP_NS = 200 * MS  # of compute


@dataclass(frozen=True)
class Faults:
    """Planted faults; None for none.

    Attributes:
        slow_ranks: by rank, by how much its compute takes longer.
        slow_node: a node, by how much, and its first and last step.
        slow_link: two nodes, an even one and the next, and by how much transfers between them take longer.
        late_data: a rank that waits for data, ns in each step.
        garbage: a rank that pauses 30 ms in every fifth step.
        other_order: a rank that makes its first two calls in the other order, from step 3 on.
    """

    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    slow_node: tuple[int, float, int, int] | None = None
    slow_link: tuple[int, float] | None = None
    late_data: tuple[int, int] | None = None
    garbage: int | None = None
    other_order: int | None = None


@dataclass(frozen=True)
class Job:
    """Fleet tables; times of `collectives` and `reasons` are aligned up to the clock error."""

    ranks: Table
    steps: Table
    collectives: Table
    reasons: Table
    clock_error_ns: Array


def noise(random: np.random.Generator, shape: tuple[int, ...], deviation: float, tails: float) -> Array:
    """Factors around 1; a share of them is in a heavy tail."""
    factors = 1 + deviation * random.standard_normal(shape, np.float32)
    tail = random.random(shape, np.float32) < tails
    factors[tail] *= 1 + random.random(int(tail.sum()), np.float32)
    return factors


def rank_table(ranks: int, roles: int) -> Table:
    number = np.arange(ranks)
    node = number // PER_NODE
    return {
        "rank": number.astype(np.int32),
        "world_size": np.full(ranks, ranks, np.int32),
        "local_rank": (number % PER_NODE).astype(np.int32),
        "host": np.array([f"node-{each:04}" for each in node.tolist()], dtype=object),
        "role": (1000 + node // NODES_OF_GROUP % roles).astype(np.int64),
        "start_ns": np.full(ranks, EPOCH_NS - 20_000 * MS),
    }


def computes(random: np.random.Generator, ranks: Table, steps: int, faults: Faults, tails: float = 0.01) -> Array:
    """Factors of each rank's compute in each step."""
    number = len(ranks["rank"])
    factors = noise(random, (number, steps), 0.02, tails) * (
        1 + 0.005 * random.standard_normal((number, 1), np.float32)
    )
    for rank, slower in faults.slow_ranks.items():
        factors[rank] *= 1 + slower
    if faults.slow_node is not None:
        node, slower, begin, end = faults.slow_node
        factors[node * PER_NODE : (node + 1) * PER_NODE, begin : end + 1] *= 1 + slower
    return factors


def step_table(random: np.random.Generator, ranks: Table, steps: int, faults: Faults) -> Table:
    """The columns that a comparison of compute needs."""
    factors = computes(random, ranks, steps, faults)
    return {
        "rank": np.repeat(ranks["rank"], steps),
        "step": np.tile(np.arange(steps, dtype=np.int32), len(ranks["rank"])),
        "compute_ns": (STEP_NS * (1 + 0.1 * (ranks["role"] - 1000))[:, None] * factors).astype(np.int64).reshape(-1),
    }


def simulate(
    ranks: int, steps: int, faults: Faults | None = None, *, roles: int = 4, calls: int = 24, seed: int = 0
) -> Job:
    """A job of data-parallel groups of 16 nodes, with pairs of nodes and all ranks of a node as further groups."""
    random, faults = np.random.default_rng(seed), faults or Faults()
    table = rank_table(ranks, roles)
    number, node = np.arange(ranks), np.arange(ranks) // PER_NODE
    local, nodes = number % PER_NODE, int(node[-1]) + 1
    groups = {
        "node": node,
        "data": 1_000_000 + node // NODES_OF_GROUP * PER_NODE + local,
        "pair": 2_000_000 + node // 2 * PER_NODE + local,
        "world": np.full(ranks, 3_000_000),
    }
    plan = [("data", "all_reduce", 64 << 20), ("node", "all_gather", 16 << 20), ("data", "reduce_scatter", 32 << 20)]
    plan = [plan[each % 3] for each in range(calls - 2)] + [("pair", "send", 8 << 20), ("world", "barrier", 0)]
    dense = {name: np.unique(group, return_inverse=True)[1] for name, group in groups.items()}
    sizes = {name: np.bincount(each)[each] for name, each in dense.items()}

    shape = (ranks, steps, calls)
    columns = {name: np.empty(shape, np.int64) for name in ("communicator", "sequence", "bytes", "start_ns", "end_ns")}
    columns |= {name: np.empty(shape, np.int64) for name in ("before_compute_ns", "before_idle_ns")}
    columns |= {name: np.empty(shape, np.int32) for name in ("rank", "size", "step")} | {
        "kind": np.empty(shape, np.int8)
    }
    columns["rank"][:], columns["step"][:] = number[:, None, None], np.arange(steps)[None, :, None]

    factors = computes(random, table, steps, faults, tails=0.0)
    piece = STEP_NS / calls * (1 + 0.1 * (table["role"] - 1000))
    now = np.full(ranks, float(MS))  # since EPOCH_NS, by a perfect clock
    error = np.repeat(random.normal(0, 500, nodes), PER_NODE)[:ranks]
    seen, reasons, step_rows = dict.fromkeys(groups, 0), [], []
    for step in range(steps):
        began, computed, lost = now.copy(), np.zeros(ranks), np.zeros(ranks)
        for call, (name, kind, size) in enumerate(plan):
            compute = piece * factors[:, step] * (1 + 0.01 * random.standard_normal(ranks))
            idle = 50 * US * (1 + 0.1 * random.standard_normal(ranks))
            if call == 0 and faults.late_data is not None:
                rank, late = faults.late_data
                reasons.append((rank, now[rank], now[rank] + late, "data"))
                idle[rank] += late
            if call == 5 and step % 5 == 0 and faults.garbage is not None:
                reasons.append((faults.garbage, now[faults.garbage], now[faults.garbage] + 30 * MS, "garbage"))
                idle[faults.garbage] += 30 * MS
            arrival = now + compute + idle
            last = np.full(len(np.unique(dense[name])), -np.inf)
            np.maximum.at(last, dense[name], arrival)
            transfer = np.full(len(last), 30 * US + size / 100) * (1 + 0.03 * random.standard_normal(len(last)))
            if faults.slow_link is not None and name in ("data", "pair"):
                first, slower = faults.slow_link
                hit = np.intersect1d(groups[name][node == first], groups[name][node == first + 1])
                transfer[np.searchsorted(np.unique(groups[name]), hit)] *= 1 + slower
            release = last[dense[name]] + transfer[dense[name]] + random.gamma(2.0, 2 * US, ranks)
            at = (slice(None), step, call)
            columns["communicator"][at], columns["size"][at] = groups[name], sizes[name]
            columns["sequence"][at], columns["bytes"][at], columns["kind"][at] = seen[name], size, KINDS.index(kind)
            columns["start_ns"][at], columns["end_ns"][at] = arrival + error, release + error
            columns["before_compute_ns"][at], columns["before_idle_ns"][at] = compute, idle
            seen[name] += 1
            computed, lost, now = computed + compute, lost + idle, release
        step_rows.append((began, now - began, computed, lost))
    columns["start_ns"] += EPOCH_NS
    columns["end_ns"] += EPOCH_NS
    if faults.other_order is not None:
        swapped = columns["bytes"][faults.other_order, 3:], columns["kind"][faults.other_order, 3:]
        for each in swapped:
            each[:, [0, 2]] = each[:, [2, 0]]  # both of the data-parallel group
    began, duration, computed, lost = (np.stack(each, axis=1) for each in zip(*step_rows, strict=True))
    steps_of = {
        "rank": np.repeat(table["rank"], steps),
        "step": np.tile(np.arange(steps, dtype=np.int32), ranks),
        "start_ns": EPOCH_NS + began.astype(np.int64).reshape(-1),
        "duration_ns": duration.astype(np.int64).reshape(-1),
        "compute_ns": computed.astype(np.int64).reshape(-1),
        "idle_ns": lost.astype(np.int64).reshape(-1),
    }
    table["end_ns"] = EPOCH_NS + now.astype(np.int64) + 5_000 * MS
    why = {
        "rank": np.array([each[0] for each in reasons], np.int64),
        "start_ns": EPOCH_NS + np.array([each[1] for each in reasons], np.int64),
        "end_ns": EPOCH_NS + np.array([each[2] for each in reasons], np.int64),
        "reason": np.array([each[3] for each in reasons], dtype=object),
    }
    return Job(table, steps_of, {k: v.reshape(-1) for k, v in columns.items()}, why, np.full(ranks, 2_000.0))


def detection(ranks: int, jobs: int) -> dict[str, float]:
    """Share of jobs of 100 steps in which a rank 5 % slower is missed, and of jobs with a false alarm."""
    missed = alarms = 0
    table = rank_table(ranks, 4)
    for seed in range(jobs):
        random = np.random.default_rng(seed)
        slow = int(random.integers(ranks))
        found = find_stragglers(step_table(random, table, 100, Faults({slow: 0.05})), table)
        named = [each.rank for each in found.stragglers]
        missed += slow not in named
        alarms += bool(set(named) - {slow}) or bool(found.nodes) or any(t.rank != slow for t in found.transients)
    return {"missed": missed / jobs, "alarms": alarms / jobs}


def healthy_alarms(ranks: int, windows: int) -> int:
    """Number of findings in windows of 50 steps without a fault."""
    random, table = np.random.default_rng(1), rank_table(ranks, 4)
    found = 0
    for _ in range(0, windows, 50):
        result = find_stragglers(step_table(random, table, 50 * 50, Faults()), table)
        found += len(result.stragglers) + len(result.nodes) + len(result.transients)
    return found


def write_job(folder: Path, ranks: int) -> None:
    """Writes the tables of a job of 40 steps with 24 collectives each, with six faults, as ``gpuscope merge`` does.

    The clocks of nodes are 2 ms apart.
    """
    faults = Faults({ranks // 3: 0.05}, None, (2, 0.5), (ranks // 2 + 1, 8 * MS), ranks // 5, ranks // 7)
    job, steps, calls = simulate(ranks, 40, faults), 40, 24
    ahead = np.random.default_rng(2).normal(0, 2 * MS, -(-ranks // PER_NODE)).astype(np.int64).repeat(PER_NODE)
    kinds, names = np.array(KINDS, object), np.array([f"kernel {each}" for each in range(100)], object)
    for part, first in enumerate(range(0, ranks, RANKS_PER_FILE)):
        own = np.arange(first, min(first + RANKS_PER_FILE, ranks))

        def rows(table: Table, of_rank: int, first: int = first, last: int = int(own[-1]) + 1) -> Table:
            found = {name: values[first * of_rank : last * of_rank].copy() for name, values in table.items()}
            for name in {"start_ns", "end_ns"} & found.keys():
                found[name] += ahead[found["rank"]]
            return found

        rank, step, collective = rows(job.ranks, 1), rows(job.steps, steps), rows(job.collectives, steps * calls)
        count, pieces = len(own), (len(own) * steps, calls)
        rank |= {"process": own, "steps": np.full(count, steps), "complete": np.ones(count, bool)}
        rank |= {name: np.full(count, "", object) for name in ("device", "source", "verdict")}
        rank["overhead"] = np.full(count, 0.01)
        exposed = step["duration_ns"] - step["compute_ns"] - step["idle_ns"]
        step |= {"communication_ns": exposed, "exposed_ns": exposed}
        step |= {"copy_ns": np.zeros_like(exposed), "launches": np.full_like(exposed, 1000)}
        collective["kind"] = kinds[collective["kind"]]
        collective |= {"called_ns": collective["start_ns"], "source": np.full(len(exposed) * calls, "nvtx", object)}
        last = np.zeros((len(exposed), 1), np.int64)
        segment = {
            name: np.append(collective[of].reshape(pieces), last, axis=1).reshape(-1)
            for name, of in (("compute_ns", "before_compute_ns"), ("host_ns", "before_idle_ns"))
        }
        segment |= {name: step[name].repeat(calls + 1) for name in ("rank", "step")}
        segment |= {"position": np.tile(np.arange(calls + 1), len(exposed)), "copy_ns": np.zeros(len(segment["rank"]))}
        kernel = {
            "rank": own.repeat(len(names)),
            "name": np.tile(names, count),
            "kernel": np.tile(np.arange(100), count),
        }
        kernel |= {name: np.full(len(kernel["rank"]), MS) for name in ("count", "total_ns", "min_ns", "max_ns")}
        anchor = {"rank": own.repeat(10), "realtime_ns": EPOCH_NS + np.tile(np.arange(10) * 1000 * MS, count)}
        anchor["time_ns"] = anchor["realtime_ns"] + ahead[anchor["rank"]]
        why = np.isin(job.reasons["rank"], own)
        reason = {name: values[why] for name, values in job.reasons.items()}
        reason |= {name: reason[name] + ahead[reason["rank"]] for name in ("start_ns", "end_ns")}
        device = {"rank": own, "device": own % PER_NODE, "peak_memory_bytes": np.full(count, 60 << 30)}
        device |= {"power_mw": np.full(count, 500_000), "sm_mhz": np.full(count, 1740)}
        made = {"rank": rank, "step": step, "collective": collective, "segment": segment, "kernel_stat": kernel}
        made |= {"anchor": anchor, "reason": reason, "device": device}
        write(folder, {name: checked(name, columns) for name, columns in made.items()}, part)


def diagnose(folder: str) -> None:
    """What ``gpuscope fleet`` does with a folder of tables: reads and diagnoses them."""
    began, spent = time.perf_counter(), time.process_time()
    job = read_job([folder], False, lambda text: None, whole=False)
    opened = time.perf_counter() - began
    text = str(job.diagnose())
    seconds, cpu = time.perf_counter() - began, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    found = {"seconds": round(seconds, 2), "CPU": round(cpu, 2), "open": round(opened, 2), "gb": round(peak, 2)}
    measure.answer(found | {"text": text.splitlines()})


def main() -> None:
    options = measure.arguments(__doc__, ranks=10_000, jobs=200, diagnose="", write="")
    if options.diagnose or options.write:
        diagnose(options.diagnose) if options.diagnose else write_job(Path(options.write), options.ranks)
        return
    ranks, jobs = (1_024, 20) if options.quick else (options.ranks, options.jobs)
    with tempfile.TemporaryDirectory() as folder:
        measure.child(Path(__file__).name, "--write", folder, "--ranks", str(ranks))  # in its own memory
        spent = measure.child(Path(__file__).name, "--diagnose", folder)
    found = detection(ranks, jobs)
    alarms = healthy_alarms(1_024, 200)
    rows = {
        "fleet_missed": {"value": found["missed"]},
        "fleet_alarms": {"value": found["alarms"]},
        "fleet_healthy": {"value": alarms},
        "fleet_seconds": {"value": spent["CPU"], "detail": {name: spent[name] for name in ("seconds", "open")}},
        "fleet_memory": {"value": spent["gb"], "detail": spent["text"]},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
