# SPDX-License-Identifier: Apache-2.0
"""Programs of tutorials that look at GPU memory, and what of them gpuscope takes the place of; see `fakes.seeds`."""

from __future__ import annotations

_DEFINED_THERE = '''
def track_memory(stage_name):
    """Print current memory usage"""
    allocated = torch.cuda.memory_allocated() / 1e9
    reserved = torch.cuda.memory_reserved() / 1e9
    print(f"{stage_name:30s} - Allocated: {allocated:6.2f} GB, "
          f"Reserved: {reserved:6.2f} GB")
'''

TRACK_MEMORY = f"""
import torch
{_DEFINED_THERE}
# Track at each training phase
track_memory("Start")

data, target = next(iter(dataloader))
data, target = data.cuda(), target.cuda()
track_memory("After data to GPU")

output = model(data)
track_memory("After forward")

loss = criterion(output, target)
track_memory("After loss")

loss.backward()
track_memory("After backward")

optimizer.step()
track_memory("After optimizer step")

optimizer.zero_grad()
track_memory("After zero_grad")
"""

STAGES = (
    *("Start", "After data to GPU", "After forward", "After loss", "After backward"),
    *("After optimizer step", "After zero_grad"),
)

PEAK_MEMORY = '''
def analyze_peak_memory(model, batch, target):
    """Find peak memory usage and what causes it"""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()

    # Run one iteration
    data, target = batch.cuda(), target.cuda()

    with track_memory("forward"):
        output = model(data)
    forward_peak = torch.cuda.max_memory_allocated() / 1e9

    loss = criterion(output, target)
    loss_peak = torch.cuda.max_memory_allocated() / 1e9

    with track_memory("backward"):
        loss.backward()
    backward_peak = torch.cuda.max_memory_allocated() / 1e9

    with track_memory("optimizer"):
        optimizer.step()
    optimizer_peak = torch.cuda.max_memory_allocated() / 1e9

    optimizer.zero_grad()
    final_peak = torch.cuda.max_memory_allocated() / 1e9

    return {
        'forward': forward_peak,
        'backward': backward_peak,
        'optimizer': optimizer_peak,
        'peak': final_peak
    }

peaks = analyze_peak_memory(model, data, target)
'''

SUMMARY = '''
def print_memory_summary():
    """Print detailed memory breakdown"""
    print(torch.cuda.memory_summary())

print_memory_summary()
'''


def tracked(program: str) -> str:
    """The program with gpuscope's `track_memory` in place of its own."""
    text = program.replace(_DEFINED_THERE, "from gpuscope import track_memory\n")
    assert text != program
    return text


def watched(program: str) -> str:
    """The program with gpuscope's `track_memory` at hand."""
    return f"from gpuscope import track_memory\n{program}"


def unwatched(program: str) -> str:
    """The program with blocks that do nothing in place of gpuscope's."""
    return f"from contextlib import nullcontext as track_memory\n{program}"


def summed_up(program: str) -> str:
    """The program with gpuscope's `memory_summary` in place of torch's."""
    text = program.replace("torch.cuda.memory_summary()", "memory_summary()")
    assert text != program
    return f"from gpuscope import memory_summary\n{text}"
