# SPDX-License-Identifier: Apache-2.0
"""What a watch costs programs on a GPU: its heartbeat, and its windows with a budget of 1 %.

Three programs: a launch-bound loop, training of a small GPT-2, and decoding by replays of a CUDA graph. The heartbeat
is measured in short blocks with a watch and without, in turns; the windows by what the watch states after a while.
"""

from __future__ import annotations

import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np

import gpuscope as gs

BLOCK_S, PAIRS = 1.0, 11
WATCHED_S = 30.0
Step = Callable[[], None]


def launches() -> Step:
    import torch

    x = torch.zeros(16, device="cuda")

    def step() -> None:
        for _ in range(200):
            x.add_(1)
        torch.cuda.synchronize()

    return step


def training() -> Step:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=8192)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 8192, (8, 256), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def decoding() -> Step:
    import torch

    x, weight = torch.randn(8, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda") / 32
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.tanh(x @ weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            x = torch.tanh(x @ weight)

    def step() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return step


def block(step: Step, seconds: float, after: Step | None) -> float:
    """Mean time of a step in s."""
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter()) < began + seconds:
        step()
        if after is not None:
            after()
        count += 1
    return (now - began) / count


def heartbeat(step: Step, pairs: int) -> dict[str, float]:
    """Extra time by a watch without windows in percent, with its 95 % interval by resampled pairs."""
    ratios = []
    for number in range(pairs + 1):
        times: dict[bool, float] = {}
        for watched in (number % 2 == 0, number % 2 != 0):
            if not watched:
                times[watched] = block(step, BLOCK_S, None)
                continue
            with tempfile.TemporaryDirectory() as folder:
                watch = gs.watch(Path(folder) / "job", budget=0)
                times[watched] = block(step, BLOCK_S, watch.step)
                watch.stop()
        if number:
            ratios.append(times[True] / times[False] - 1)
    random = np.random.default_rng(0)
    drawn = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"cost_%": 100 * statistics.median(ratios), "low_%": 100 * float(low), "high_%": 100 * float(high)}


def windows(step: Step, seconds: float) -> dict[str, Any]:
    """What the watch says of its own cost, and the memory and disk that it took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        watch = gs.watch(Path(folder) / "job")
        mean_s = block(step, seconds, watch.step)
        said = watch.summary()
        watch.stop()
    cost = said.cost
    return {
        "step_ms": 1e3 * mean_s,
        "stated_%": None if cost is None else 100 * cost.job,
        "stated_high_%": None if cost is None or not math.isfinite(cost.job_high) else 100 * cost.job_high,
        "in_a_window_%": None if cost is None else 100 * cost.step,
        "spent_%": None if said.spent is None else 100 * said.spent,
        "period": said.period,
        "windows": said.windows,
        "recorded_steps": said.recorded,
        "steps": said.steps,
        "MB": said.window_bytes / 1e6,
        "more_memory_MB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3,
        "watcher_%": 100 * said.watcher,
        "notes": [*said.notes],
    }


def main() -> None:
    quick = measure.arguments(__doc__).quick
    beats, stated = {}, {}
    for make in (launches, training, decoding):
        step = make()
        block(step, 2.0, None)
        beats[make.__name__] = heartbeat(step, 5 if quick else PAIRS)
        stated[make.__name__] = windows(step, WATCHED_S / 4 if quick else WATCHED_S)
    highs = [each["stated_high_%"] for each in stated.values() if each["stated_high_%"] is not None]
    rows = {
        "watch_heartbeat_gpu": {"value": round(max(each["high_%"] for each in beats.values()), 3), "detail": beats},
        "watch_windows_gpu": {"value": round(max(highs), 3), "detail": stated}
        if len(highs) == len(stated)
        else {"skipped": "too few windows for an interval", "detail": stated},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
