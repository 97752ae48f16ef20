# SPDX-License-Identifier: Apache-2.0
"""How many slow steps a watch finds, how often it is wrong, and how true its stated cost is, by simulation; and the
cost of its heartbeat on this machine. Needs no GPU.

Programs have 100,000 steps of 1 s with 1 to 5 % noise and a level that drifts. 20 steps take 1.5 times as long. For the
cost, steps in windows take longer by a known share, and the steps after switches by another one.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import measure
import numpy as np

import gpuscope as gs
from gpuscope.watching.controller import Place, StepController, begins_window
from gpuscope.watching.dumps import Dumps, Moment
from gpuscope.watching.triggers import Beat, SlowStep

STEPS, PLANTED, FACTOR = 100_000, 20, 1.5
NOISES = (0.01, 0.05)
STEPS_A_DAY = 86_400
COSTS = ((0.03, 0.1), (0.16, 0.3), (0.6, 2.0), (3.0, 5.0))  # of a step in a window, of a step after a switch
LEARNING = 10_000
RATE = 100  # steps a second, of the heartbeat


def times(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Times of steps, and the planted ones."""
    noise = np.repeat(random.uniform(*NOISES, 20), STEPS // 20)
    drift = np.cumsum(random.normal(0, 0.0005, STEPS)) + 0.1 * np.sin(np.arange(STEPS) / 5000)
    seconds = np.exp(drift + noise * random.normal(0, 1, STEPS))
    planted = np.sort(random.choice(np.arange(300, STEPS), PLANTED, replace=False))
    seconds[planted] *= FACTOR
    return seconds, planted


def beats(seconds: np.ndarray) -> Iterator[Beat]:
    for step, each in enumerate(seconds):
        yield Beat(step, np.array([each]), np.ones(1, bool), float(each))


def slow_steps(seed: int) -> tuple[list[int], int]:
    """The planted steps that were missed, and false dumps."""
    seconds, planted = times(np.random.default_rng(seed))
    trigger, known = SlowStep(), {*planted.tolist()}
    found: set[int | None] = set()
    dumped = 0
    with tempfile.TemporaryDirectory() as folder:
        dumps = Dumps(Path(folder) / "dumps")
        now = 0.0
        for beat in beats(seconds):
            now += beat.passed_s
            for event in trigger.check(beat):
                found.add(event.step)
                if event.step not in known:
                    dumped += dumps.take(event, now, lambda: Moment(0, {})) is not None
    return sorted(known - found), dumped


def stated_cost(cost: float, switch: float, noise: float, seed: int) -> dict[str, float]:
    """The stated and the true extra time of a program once the period has followed the cost, in percent."""
    random = np.random.default_rng(seed)
    controller = StepController(0.01)
    places = {(False, False): Place.OUTSIDE, (False, True): Place.FIRST_INSIDE, (True, True): Place.INSIDE}
    until, was_inside, lost, total = -1, False, 0.0, 0.0
    for step in range(STEPS):
        if until <= step and begins_window(step, controller.period):
            until = step + controller.size
        inside = step < until
        place = places.get((was_inside, inside), Place.FIRST_OUTSIDE)
        extra = cost * inside + switch * (place in (Place.FIRST_INSIDE, Place.FIRST_OUTSIDE))
        level = math.exp(0.1 * math.sin(step / 5000))
        controller.add([(level * (1 + extra) * math.exp(noise * random.normal()), place)])
        was_inside = inside
        if step >= LEARNING:
            lost, total = lost + level * extra, total + level
    stated = controller.cost()
    assert stated is not None
    true = (controller.size * cost + 2 * switch) / controller.period if controller.period else 0.0
    return {
        "cost": cost,
        "noise": noise,
        "stated_%": 100 * stated.job,
        "true_%": 100 * true,
        "high_%": 100 * stated.job_high,
        "error": 100 * abs(stated.job - true),
        "of_program_%": 100 * lost / total,
        "step_error": 100 * abs(stated.step - cost),
    }


def heartbeat(seconds: float) -> dict[str, float]:
    """Time of `Watch.step` over that of an empty function, and CPU time of the watcher, at `RATE` steps a second."""
    work = np.random.default_rng(0).normal(size=200_000)  # steps that leave the caches to others
    with tempfile.TemporaryDirectory() as folder:
        watch = gs.watch(Path(folder) / "job", budget=0)
        calls = {"step": watch.step, "empty": lambda: None}
        spent: dict[str, list[float]] = {name: [] for name in calls}
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for name, call in calls.items():
                work.sum()
                began = time.perf_counter()
                call()
                spent[name].append(time.perf_counter() - began)
                time.sleep(0.5 / RATE)
        watcher = watch.summary().watcher
        watch.stop()
    step = statistics.median(spent["step"]) - statistics.median(spent["empty"])
    return {"step_us": 1e6 * step, "watcher_%": 100 * watcher, "share_%": 100 * step * RATE}


def main() -> None:
    quick = measure.arguments(__doc__).quick
    missed, false = zip(*(slow_steps(seed) for seed in range(1 if quick else 5)), strict=True)
    costs = [stated_cost(*each, noise, seed=3) for each in COSTS for noise in NOISES]
    beat = heartbeat(5 if quick else 20)
    days = len(false) * STEPS / STEPS_A_DAY
    rows = {
        "watch_slow_missed": {"value": max(map(len, missed)), "detail": [*missed]},
        "watch_false_dumps": {"value": round(sum(false) / days, 3), "detail": [*false]},
        "watch_cost_error": {"value": round(max(each["error"] for each in costs), 4), "detail": costs},
        "watch_overhead": {"value": round(max(each["of_program_%"] for each in costs), 4), "detail": costs},
        "watch_heartbeat": {"value": round(beat["share_%"], 4), "detail": beat},
        "watch_thread": {"value": round(beat["watcher_%"], 4)},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
