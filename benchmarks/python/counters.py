# SPDX-License-Identifier: Apache-2.0
"""Hardware counters on this GPU: what it offers, what sampling them costs, and whether they count what is known.

Six parts, chosen with ``--only names,cost,meaning,gaps,exact,ncu``, default exact; what cannot be had is said with the
reason. ``cost``: a launch-bound loop and a loop of large kernels under `profile` alone and with samples every
20 us to 1 ms, in turns, as ratios of the loops and of their kernels, and what start and stop take. ``meaning``: what
the front end's counters say of a host that sleeps, a stream that waits for another's event, dependent kernels and an
idle process, as shares of time beside those that the program made, and what the diagnosis says of its gaps. ``gaps``:
the latter of the programs of tests/gpu, those with a fault at 40 % of a step and the tuned ones. ``exact``: bytes of a
copy and operations of a product of known size; durations as a range, which is longer than what runs in it, and as a
recording has them. ``ncu``: a copy, a reduction, a product and random accesses by Nsight Compute, where it is.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib.util
import io
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np

INTERVALS_US = (20, 100, 1000)
ROUNDS = 4
LOOPS = 5
COST_SECONDS = 18.0  # of each of the two programs
LAUNCHES = 10_000
COPY_BYTES = 1 << 30
SHARE = 0.4  # of a step that a fault takes
CHAINS = 1 << 26  # places of a pointer chase: 256 MiB
MATRIX = 8192
MS = 1_000_000
TENSOR = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
EXACT = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
HIT_RATE = "lts__t_sector_hit_rate.pct"
PARTS = ("names", "cost", "meaning", "gaps", "exact", "ncu")

Answer = dict[str, Any]


def names() -> Answer:
    """What the chip has, and which of the set "why" fit into one pass."""
    from gpuscope import _core
    from gpuscope.counters.names import OVERVIEW, WHY, list_counters

    chip = _core.counter_chip()
    began = time.perf_counter()
    chosen, unknown, too_many = _core.choose_counters(chip, sampling=True, wanted=list(WHY))
    choosing_s = time.perf_counter() - began
    overview = _core.choose_counters(chip, sampling=False, wanted=list(OVERVIEW))
    return {
        "chip": chip,
        "of_a_call": len(list_counters()),
        "to_sample": len(list_counters(sampling=True)),
        "why": {"one_pass": len(chosen), "unknown": unknown, "too_many": too_many, "choosing_s": choosing_s},
        "overview": {"one_pass": len(overview[0]), "unknown": overview[1], "too_many": overview[2]},
    }


def launch_bound(kernels: Any) -> None:
    for _ in range(LAUNCHES // 1000):
        kernels.spin(0, count=1000)
    kernels.synchronize()


def large_kernels(kernels: Any) -> Callable[[Any], None]:
    """A product of torch's where it is there, else copies."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():

        def copies(kernels: Any) -> None:
            for _ in range(50):
                kernels.copy(COPY_BYTES)
            kernels.synchronize()

        return copies
    a = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)

    def products(_: Any) -> None:
        for _ in range(30):
            a @ a
        torch.cuda.synchronize()

    return products


def cost(rounds: int) -> Answer:
    """Time of a loop with samples over that without, both under `profile`, by interval.

    Starting and stopping takes a second, so that one recording measures several loops; the rounds end where their time
    is spent.
    """
    import gpuscope as gs
    from gpuscope import _core

    kernels = _core.Kernels()
    answer: Answer = {}
    for name, work in (("launch_bound", launch_bound), ("large_kernels", large_kernels(kernels))):
        began = time.perf_counter()
        spent: dict[int, list[float]] = {interval: [] for interval in (0, *INTERVALS_US)}
        lengths: dict[int, list[float]] = {interval: [] for interval in spent}
        edges: dict[int, list[float]] = {interval: [] for interval in spent}
        audits: dict[int, Answer] = {}
        work(kernels)
        for number in range(rounds):
            if number and time.perf_counter() - began > COST_SECONDS * number / (number + 1):
                break  # another round as long as those before would take too long
            order = list(spent)
            turn = number % len(order)
            for interval in order[turn:] + order[:turn]:
                options = {"counters": "why", "counter_interval_us": interval} if interval else {}
                prof = gs.profile(**options)
                at = [time.perf_counter()]
                prof.start()
                at.append(time.perf_counter())
                work(kernels)  # the first after a start may wait for it
                loops = [timed(work, kernels) for _ in range(LOOPS)]
                at.append(time.perf_counter())
                prof.stop()
                at.append(time.perf_counter())
                spent[interval].append(statistics.median(loops))
                lengths[interval].append(float(np.median(prof.trace.kernels.duration_ns)))
                edges[interval].append(at[1] - at[0] + at[3] - at[2])
                if interval:
                    audits[interval] = facts(prof)
        answer[name] = {
            "rounds": len(spent[0]),
            "profile_alone_ms": statistics.median(spent[0]) / MS,
            "start_and_stop_s": round(statistics.median(edges[0]), 3),
            **{
                f"{interval}_us": {
                    "ratio": round(measure.paired_ratio(spent[interval], spent[0]), 4),
                    "kernel_duration_ratio": round(measure.paired_ratio(lengths[interval], lengths[0]), 4),
                    "start_and_stop_s": round(statistics.median(edges[interval]), 3),
                    **audits[interval],
                }
                for interval in INTERVALS_US
            },
        }
    return answer


def timed(work: Callable[[Any], None], kernels: Any) -> float:
    began = time.perf_counter_ns()
    work(kernels)
    return float(time.perf_counter_ns() - began)


def facts(prof: Any) -> Answer:
    """Of one recording's samples: how many, how long, what was lost, and what reading them took of a core."""
    found = prof.counters()
    info = prof.trace.info
    samples = prof.trace.counter_samples
    recorded_ns = int(info["session.stop_ns"]) - int(info["session.start_ns"])
    if not len(found):
        return {"why": found.why, "overflows": found.overflows}
    return {
        "samples": len(samples),
        "median_us": float(np.median(samples.duration_ns)) / 1e3,
        "sampled_share": float(samples.duration_ns.sum()) / recorded_ns,
        "overflows": found.overflows,
        "reading_share_of_a_core": int(info.get("audit.counter_cpu_ns", 0)) / recorded_ns,
        "metrics": len(found.metrics),
        **{
            f"{step}_ms": round(int(info.get(f"audit.counter_{step}_ns", 0)) / MS, 1)
            for step in ("make", "start", "stop", "decode", "disable")
        },
        "last_interval_us": found.interval_ns[1] / 1e3,
        "why": found.why,
    }


def sleeping_host(kernels: Any) -> None:
    for _ in range(100):
        kernels.spin(MS)
        kernels.synchronize()
        time.sleep(0.003)


def dependent_kernels(kernels: Any) -> None:
    for _ in range(20):
        kernels.spin(20_000, count=200)
    kernels.synchronize()


def event_wait(kernels: Any) -> None:
    """One stream spins while another waits for it, in turns: never both, never the host."""
    import torch

    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(100):
        kernels.spin(2 * MS, stream=first.cuda_stream)
        second.wait_stream(first)
        kernels.spin(2 * MS, stream=second.cuda_stream)
        first.wait_stream(second)
    torch.cuda.synchronize()


def idle(_: Any) -> None:
    time.sleep(0.3)


def meaning() -> Answer:
    """The means of all counters over known programs, beside the share of time that kernels ran."""
    import gpuscope as gs
    from gpuscope import _core

    kernels = _core.Kernels()
    kernels.spin(MS)
    kernels.synchronize()
    programs: list[Callable[[Any], None]] = [sleeping_host, dependent_kernels, idle]
    try:
        import torch

        programs += [event_wait] if torch.cuda.is_available() else []
    except ImportError:
        pass
    answer: Answer = {}
    for program in programs:
        with gs.profile(counters="why", sync=True) as prof:
            program(kernels)
        found = prof.counters()
        if not len(found):
            answer[program.__name__] = {"why": found.why}
            continue
        ran = prof.trace.kernels
        begin = int(ran.start_ns[0]) if len(ran) else None
        end = int((ran.start_ns + ran.duration_ns).max()) if len(ran) else None
        busy = busy_ns(ran.start_ns, ran.start_ns + ran.duration_ns) / (end - begin) if begin and end else 0.0
        means = {name: round(value, 3) for name, value in found.mean(begin, end).items()}
        gaps = [each.to_dict() for each in prof.diagnose().idle_by_counters]
        answer[program.__name__] = {"kernels_ran_percent": round(100 * busy, 2), **means, "idle_by_counters": gaps}
    return answer


def gaps() -> Answer:
    """How far the front end's share of idle time that the host made is from that by causes, in points, by program."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))
    from faults import faults, recorded
    from tuned import TUNED

    programs: dict[str, Callable[[], Any]] = {each.name: lambda each=each: each.faulty(SHARE) for each in faults()}
    programs |= {each.__name__: each for each in TUNED}
    answer: Answer = {}
    for name, program in programs.items():
        try:
            found = recorded(program(), counters="why").diagnose().idle_by_counters
        except Exception as error:  # a library that is not there, a fault that this machine cannot make
            answer[name] = {"skipped": f"{type(error).__name__}: {error}"}
            continue
        answer[name] = [each.to_dict() for each in found if each.is_enough]
        print(name, answer[name], file=sys.stderr, flush=True)
    points = [each["agreement_points"] for rows in answer.values() if isinstance(rows, list) for each in rows]
    return {"programs": answer, "answered": len(points), "worst points": max(points, default=None)}


def busy_ns(start: Any, end: Any) -> int:
    """The time in which at least one of the spans is."""
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(end[order])
    begins = np.maximum(start[order], np.append(np.int64(-(2**62)), reached[:-1]))
    return int(np.maximum(reached - begins, 0).sum())


def recorded_ns(work: Callable[[], Any], times: int = 5) -> float:
    """The median time of a kernel that `work` launches, as a recording has it."""
    import gpuscope as gs
    from gpuscope import _core

    work()
    with gs.profile() as prof:
        for _ in range(times):
            work()
        _core.Kernels().synchronize()
    return float(np.median(prof.trace.kernels.duration_ns))


def exact() -> Answer:
    """Counted over made."""
    import gpuscope as gs
    from gpuscope import _core

    kernels = _core.Kernels()
    answer: Answer = {}
    copied = gs.measure_counters(lambda: kernels.copy(COPY_BYTES), [*EXACT, HIT_RATE])
    answer["copy"] = {
        "read_over_made": copied["dram__bytes_read.sum"] / COPY_BYTES,
        "written_over_made": copied["dram__bytes_write.sum"] / COPY_BYTES,
        "recorded_ns": recorded_ns(lambda: kernels.copy(COPY_BYTES)),
        **copied.to_dict(),
    }
    durations = [gs.measure_counters(lambda: kernels.spin(MS), [EXACT[0]])[EXACT[0]] for _ in range(5)]
    answer["spin"] = {
        "range_over_made": statistics.median(durations) / MS,
        "recorded_over_made": recorded_ns(lambda: kernels.spin(MS)) / MS,
    }
    try:
        import torch
    except ImportError:
        return answer | {"product": {"skipped": "torch is not installed"}}
    if not torch.cuda.is_available():
        return answer | {"product": {"skipped": "torch sees no GPU"}}
    for size in (1024, 4096, MATRIX):
        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        try:
            counted = gs.measure_counters(lambda a=a: a @ a, [TENSOR, *EXACT])
        except gs.errors.GpuscopeError as error:
            answer["product"] = {"skipped": str(error)}
            break
        made = 2 * size**3
        answer[f"product_{size}"] = {
            "operations_over_made": counted[TENSOR] / made,
            "recorded_ns": recorded_ns(lambda a=a: a @ a),
            **counted.to_dict(),
        }
    return answer


def calls() -> dict[str, Callable[[], Any]]:
    """What is compared with ncu, ready to be called; the product and the random accesses where torch is."""
    from gpuscope import _core

    kernels = _core.Kernels()
    found: dict[str, Callable[[], Any]] = {
        "copy": lambda: kernels.copy(COPY_BYTES),
        "reduction": lambda: kernels.reduce(COPY_BYTES // 4),
    }
    try:
        import torch
    except ImportError:
        return found
    if torch.cuda.is_available():
        a = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
        found["product"] = lambda: a @ a
        table = torch.zeros(COPY_BYTES // 4, device="cuda")
        places = torch.randint(len(table), (1 << 24,), device="cuda")
        found["gather"] = lambda: table[places]  # a sector for each
    if importlib.util.find_spec("cupy") is not None:
        found["pointer chase"] = pointer_chase()
    return found


def pointer_chase() -> Callable[[], Any]:
    """Threads that each follow a chain of places all over the memory: where to read next is known when it is read."""
    import cupy

    follow = cupy.RawKernel(
        r"""extern "C" __global__ void follow(const unsigned* next, unsigned* ends, int hops) {
              unsigned at = (blockIdx.x * blockDim.x + threadIdx.x) * 4099u & (CHAINS - 1u);
              for (int hop = 0; hop < hops; ++hop) at = next[at];
              ends[blockIdx.x * blockDim.x + threadIdx.x] = at;
            }""".replace("CHAINS", str(CHAINS)),
        "follow",
    )
    following = cupy.random.permutation(CHAINS).astype(cupy.uint32)
    ends = cupy.empty(132 * 256, cupy.uint32)
    return lambda: follow((132,), (256,), (following, ends, cupy.int32(1000)))


def call_under_ncu(name: str) -> None:
    """Makes the call once before, and once for ncu to see."""
    from gpuscope import _core

    driver = ctypes.CDLL("libcuda.so.1")
    call = calls()[name]
    call()
    _core.Kernels().synchronize()
    driver.cuProfilerStart()
    call()
    _core.Kernels().synchronize()
    driver.cuProfilerStop()


def by_ncu() -> Answer:
    """Calls by Nsight Compute, with its clock control off, beside `measure_counters` and what a recording has."""
    import gpuscope as gs

    ncu = shutil.which("ncu")
    if ncu is None:
        return {"skipped": "ncu is not installed"}
    answer: Answer = {}
    for name, call in calls().items():
        metrics = [*EXACT, HIT_RATE, *([TENSOR] if name == "product" else [])]
        command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
        command += ["--profile-from-start", "off", "--metrics", ",".join(metrics)]
        command += [sys.executable, __file__, "--work", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=measure.CHILD_SECONDS, check=False)
        table = done.stdout[done.stdout.find('"ID"') :] if '"ID"' in done.stdout else ""
        theirs: dict[str, float] = {}
        for row in csv.DictReader(io.StringIO(table)):
            value = float(row["Metric Value"].replace(",", ""))
            theirs[row["Metric Name"]] = theirs.get(row["Metric Name"], 0.0) + value  # of all kernels of the call
        if not theirs:
            answer[name] = {"skipped": (done.stdout + done.stderr).strip()[-500:]}
            continue
        ours = gs.measure_counters(call, metrics)
        recorded = recorded_ns(call)
        answer[name] = {
            "ncu": theirs,
            "ours": ours.to_dict(),
            "recorded_ns": recorded,
            "ours_over_ncu": {
                metric: round(ours[metric] / theirs[metric], 5)
                for metric in metrics
                if theirs.get(metric) and metric not in (HIT_RATE, EXACT[0])
            },
            "recorded_duration_over_ncu": recorded / theirs[EXACT[0]] if theirs.get(EXACT[0]) else None,
            "hit_rate_points": ours[HIT_RATE] - theirs.get(HIT_RATE, math.nan),
        }
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="exact", help=f"parts, with commas: {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="no difference")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # what ncu runs
    options = parser.parse_args()
    if options.work:
        call_under_ncu(options.work)
        return
    if reason := measure.why_not_available(gpu=True):
        measure.answer({"rows": {"counters_exact": {"skipped": reason}}})
        return
    parts: dict[str, Callable[[], Answer]] = {
        "names": names,
        "cost": lambda: cost(options.rounds),
        "meaning": meaning,
        "gaps": gaps,
        "exact": exact,
        "ncu": by_ncu,
    }
    answer: Answer = {}
    for part in options.only.split(","):
        try:
            answer[part] = parts[part]()
        except Exception as error:  # one part that fails ends no other
            answer[part] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{part}: {json.dumps(answer[part], indent=2)}", file=sys.stderr, flush=True)
    known = {**answer.get("exact", {}).get("copy", {}), **answer.get("exact", {}).get("product_4096", {})}
    off = [abs(value - 1) for name, value in known.items() if name.endswith("_over_made")]
    row = {"value": round(max(off), 4)} if off else {"error": "the part exact has no copy"}
    measure.answer({"rows": {"counters_exact": {**row, "detail": answer}}})


if __name__ == "__main__":
    main()
