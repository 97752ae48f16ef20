# SPDX-License-Identifier: Apache-2.0
"""Training steps of ResNet-50 and GPT-2, profiled over not profiled: by gpuscope, and by torch.profiler alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import measure
from launches import Mode, against, time_rounds
from workload import Workload, torch_wait

STEPS = 10  # a round
SETTLE = 2
ROUNDS = 20
QUICK_ROUNDS = 5
OTHER_ROUNDS = 8  # torch.profiler takes seconds to end a round
ROWS = {"resnet50": "training_resnet50", "gpt2": "training_gpt2"}


def resnet50(device: str) -> Callable[[], Any]:
    import torch
    import torchvision

    model = torchvision.models.resnet50(num_classes=10).to(device)
    images = torch.randn(8, 3, 64, 64, device=device)
    labels = torch.randint(0, 10, (8,), device=device)
    return trained(model, lambda: torch.nn.functional.cross_entropy(model(images), labels))


def gpt2(device: str) -> Callable[[], Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=128, n_head=4, vocab_size=1000, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).to(device)
    words = torch.randint(0, 1000, (4, 64), device=device)
    return trained(model, lambda: model(input_ids=words, labels=words).loss)


def trained(model: Any, forward: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        forward().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


MODELS: dict[str, Callable[[str], Callable[[], Any]]] = {"resnet50": resnet50, "gpt2": gpt2}


def workload(model: str, device: str) -> Workload:
    step = MODELS[model](device)

    def launch(steps: int) -> None:
        for _ in range(steps):
            step()

    made = Workload(model, launch, torch_wait(device))
    made.run(SETTLE * 2)
    return made


def under_gpuscope(kept: list[Any]) -> Mode:
    import gpuscope

    @contextlib.contextmanager
    def mode() -> Any:
        with gpuscope.profile() as prof:
            yield
        kept[:] = [prof]

    return mode


def under_torch(device: str) -> Mode:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    return lambda: profile(activities=activities)


def on_over_off(model: str, device: str, tool: str, rounds: int) -> dict[str, Any]:
    """ns are those of a step."""
    kept: list[Any] = []
    on = under_torch(device) if tool == "torch.profiler" else under_gpuscope(kept)
    spent = time_rounds(workload(model, device), {"off": contextlib.nullcontext, "on": on}, rounds, STEPS, SETTLE)
    found = {"on over off": against(spent, "on", "off"), "ns a step": measure.medians(spent)}
    if kept:
        trace, audit = kept[0].trace, kept[0].audit()
        if not audit.complete or not len(trace.regions):
            raise RuntimeError(f"a recording that lacks something proves nothing: {audit.verdict}")
        found["of the last round"] = {"regions": len(trace.regions), "kernels": len(trace.kernels)}
    return found


def measured(model: str, device: str, quick: bool) -> measure.Row:
    options = ["--model", model, "--device", device, *(["--quick"] if quick else [])]
    ours = measure.child("training.py", "--tool", "gpuscope", *options)
    theirs = measure.child("training.py", "--tool", "torch.profiler", *options)
    row: measure.Row = ours if "error" in ours else {"value": ours["on over off"]["ratio"], "detail": ours}
    other = theirs if "error" in theirs else {"value": theirs["on over off"]["ratio"], **theirs}
    return {**row, "others": {"torch.profiler": other}}


def main() -> None:
    options = measure.arguments(__doc__, tool="", model="", device="cuda")
    if options.tool:
        rounds = OTHER_ROUNDS if options.tool == "torch.profiler" else ROUNDS
        turns = min(QUICK_ROUNDS, rounds) if options.quick else rounds
        measure.answer(on_over_off(options.model, options.device, options.tool, turns))
        return
    why = measure.why_not_available(gpu=options.device == "cuda")
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS.values()}})
        return
    measure.answer({"rows": {name: measured(model, options.device, options.quick) for model, name in ROWS.items()}})


if __name__ == "__main__":
    main()
