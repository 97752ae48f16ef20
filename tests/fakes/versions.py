# SPDX-License-Identifier: Apache-2.0
"""Recordings of versions of one program whose every difference is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fakes.gscope import NONE, make_store
from fakes.loops import Loop
from gpuscope.recording import Recording

START = 1_700_000_000_000_000_000
LAUNCH_NS = 2_000
INFO = {"session.mode": "full", "session.tier": "cupti", "process.id": "1", "process.argv": "python train.py"}

SAMPLED = {"samples.interval_ns": "1000000"}


def version(
    kernels: Mapping[str, float],
    *,
    seed: int = 0,
    steps: int = 30,
    noise: float = 0.02,
    waits_ns: float = 0.0,
    device: str = "NVIDIA H100",
    info: Mapping[str, str] | None = None,
    slow_steps: Callable[[int], float] = lambda step: 1.0,
) -> Recording:
    """A program that launches kernels in the region "forward" of each step, all at once, and waits for them.

    Args:
        kernels: of each how long it takes, in ns; a name with "*3" at its end is launched 3 times.
        seed: of the noise.
        steps: how many.
        noise: standard deviation of each kernel's time in a step, a share of it.
        waits_ns: what the program does in each step before it launches.
        device: the GPU's name.
        info: further facts.
        slow_steps: what every time of a step is multiplied with.
    """
    random = np.random.default_rng(seed)
    names = [name.partition("*")[0] for name in kernels]
    repeats = np.array([int(name.partition("*")[2] or 1) for name in kernels])
    variant = np.repeat(np.arange(len(names)), repeats)
    mean_ns = np.repeat(np.array(list(kernels.values())), repeats)
    region: dict[str, list[Any]] = {name: [] for name in ("start_ns", "duration_ns", "parent", "path", "thread")}
    api: dict[str, list[Any]] = {name: [] for name in ("start_ns", "duration_ns", "correlation", "region", "call")}
    kernel: dict[str, list[Any]] = {
        name: [] for name in ("start_ns", "duration_ns", "correlation", "variant", "region", "track")
    }
    now = START
    for step in range(steps):
        factors = 1 + noise * random.standard_normal(len(names))
        durations = (mean_ns * factors[variant] * slow_steps(step)).astype(np.int64)
        begin = now + round(waits_ns * (1 + noise * random.standard_normal()) * slow_steps(step))
        launches = begin + 1000 + LAUNCH_NS * np.arange(len(variant))
        ends = []
        free = 0
        for launch, duration in zip(launches.tolist(), durations.tolist(), strict=True):
            free = max(free, launch + 3000) + duration
            ends.append(free)
        starts = np.array(ends) - durations
        last = max(int(launches[-1]) + LAUNCH_NS, ends[-1]) + 2000
        outer = len(region["start_ns"])
        for name, values in (
            ("start_ns", [now, begin]),
            ("duration_ns", [last - now, last - begin]),
            ("parent", [NONE, outer]),
            ("path", [step, steps + step]),
            ("thread", [0, 0]),
        ):
            region[name] += values
        numbers = np.arange(len(variant)) + 1 + step * len(variant)
        for table, rows in (
            (api, {"start_ns": launches, "duration_ns": np.full(len(variant), LAUNCH_NS - 500), "call": 0 * numbers}),
            (kernel, {"start_ns": starts, "duration_ns": durations, "variant": variant, "track": 0 * numbers}),
        ):
            rows |= {"correlation": numbers, "region": np.full(len(variant), outer + 1)}
            for name, values in rows.items():
                table[name] += values.tolist()
        waits = int(launches[-1]) + LAUNCH_NS
        call = {"start_ns": waits, "duration_ns": last - 1000 - waits, "call": 1, "correlation": 0, "region": outer + 1}
        for name, value in call.items():
            api[name].append(value)
        now = last
    sizes = {f"{what}_{axis}": [1] * len(names) for what in ("grid", "block") for axis in "xyz"}
    sizes |= {name: [0] * len(names) for name in ("static_shared_bytes", "dynamic_shared_bytes", "registers")}
    tables: dict[str, dict[str, list[Any]]] = {
        "device": {"ordinal": [0], "name": [device], "uuid": ["GPU-0"], "multiprocessors": [132]},
        "thread": {"system_id": [1], "name": ["MainThread"]},
        "track": {"device": [0], "context": [1], "stream": [7]},
        "path": {
            "name": [f"ProfilerStep#{step}" for step in range(steps)] + ["forward"] * steps,
            "parent": [NONE] * steps + list(range(steps)),
        },
        "variant": {"name": names, **sizes},
        "call": {"name": ["cuLaunchKernel", "cuStreamSynchronize"], "kind": [1, 5]},
        "region": region,
        "api": {**api, "thread": [0] * len(api["call"])},
        "kernel": kernel,
    }
    facts = {**INFO, "session.start_ns": str(START), "session.stop_ns": str(now), **(info or {})}
    return Recording(make_store(tables, info=facts))


def program(
    functions: Mapping[str, float],
    *,
    file: str = "etl.py",
    seed: int = 0,
    rounds: int = 50,
    noise: float = 0.02,
    look_ms: float = 1.0,
    waits_ms: float = 0.0,
    info: Mapping[str, str] | None = None,
) -> Recording:
    """A run without steps that calls functions in turns, which a sampler sees; some rounds wait for a CPU too."""
    random = np.random.default_rng(seed)
    loop = Loop(info={**SAMPLED, "session.tier": "cpu", "process.argv": f"python {file}", **(info or {})})
    began = loop.now
    for turn in range(rounds):
        for line, (name, ms) in enumerate(functions.items()):
            left = ms / rounds * (1 + noise * random.standard_normal())
            with loop.at(file, 10 * (line + 1), name):
                if waits_ms and turn % 10 == 0:
                    since = loop.now
                    loop.wait_for_cpu(waits_ms * 1000 / (rounds / 10) / len(functions))
                    loop.sampled(since, 0.0)
                while left > 0:
                    since, looks = loop.now, min(left, look_ms)
                    loop.work(1000 * looks)
                    loop.sampled(since, 1.0)
                    left -= looks
    loop.process(began, 0.5, process=4242)
    return Recording(loop.trace().store)
