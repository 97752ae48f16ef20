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

    # Identify bottleneck
    if forward_peak > backward_peak * 0.8:
        print("Activations dominate memory usage")
    elif backward_peak > forward_peak * 1.5:
        print("Gradients dominate memory usage")
    else:
        print("Memory usage balanced across phases")

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

PEAK_OF_A_STEP = """
def measure_memory(model, sample_batch):
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    # Run one iteration
    output = model(sample_batch)
    loss = criterion(output, target)
    loss.backward()
    torch.cuda.synchronize()
    peak_memory = torch.cuda.max_memory_allocated() / 1e9
    print(f"Peak memory: {peak_memory:.2f} GB")
    return peak_memory

peak_gb = measure_memory(model, data)
"""

SNAPSHOT_FILE = '''
import pickle
import torch.cuda

def capture_memory_snapshot(filename="memory_snapshot.pickle"):
    """Capture detailed memory snapshot for analysis"""
    # Enable memory history tracking
    torch.cuda.memory._record_memory_history(max_entries=100000)
    try:
        for i, (data, target) in enumerate(dataloader):
            if i >= 5:
                break
            data, target = data.cuda(), target.cuda()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        # Capture snapshot
        torch.cuda.memory._dump_snapshot(filename)
        print(f"Memory snapshot saved to {filename}")
    finally:
        # Disable tracking
        torch.cuda.memory._record_memory_history(enabled=None)

capture_memory_snapshot()
'''

COMPONENTS = '''
def profile_memory_usage(model, sample_batch, sample_target):
    """Comprehensive memory profiling"""
    device = next(model.parameters()).device
    # Reset memory stats
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()

    def print_memory(stage):
        allocated = torch.cuda.memory_allocated() / 1e9
        reserved = torch.cuda.memory_reserved() / 1e9
        peak = torch.cuda.max_memory_allocated() / 1e9
        print(f"{stage:30s} | Alloc: {allocated:5.2f} GB | "
              f"Reserved: {reserved:5.2f} GB | Peak: {peak:5.2f} GB")

    print_memory("Initial")
    data = sample_batch.to(device)
    target = sample_target.to(device)
    print_memory("After data to GPU")
    output = model(data)
    print_memory("After forward")
    loss = criterion(output, target)
    print_memory("After loss")
    loss.backward()
    print_memory("After backward")
    optimizer.step()
    print_memory("After optimizer step")
    optimizer.zero_grad()
    print_memory("After zero_grad")
    peak_memory = torch.cuda.max_memory_allocated() / 1e9
    print(f"\\nPeak memory usage: {peak_memory:.2f} GB")
    print(torch.cuda.memory_summary())

    allocated = torch.cuda.memory_allocated() / 1e9
    reserved = torch.cuda.memory_reserved() / 1e9
    if reserved > allocated * 1.5:
        print("Memory fragmentation detected")
    # Estimate memory components
    param_memory = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e9
    optimizer_memory = 0.0
    if isinstance(optimizer, torch.optim.Adam):
        optimizer_memory = param_memory * 2
    # Activations (peak - parameters - gradients - optimizer)
    activation_memory = peak_memory - param_memory - param_memory - optimizer_memory
    if activation_memory > peak_memory * 0.5:
        print("Activations dominate memory usage")
    return {
        'peak_gb': peak_memory,
        'parameters_gb': param_memory,
        'fragmentation_ratio': reserved / allocated if allocated > 0 else 1.0
    }

found = profile_memory_usage(model, data, target)
'''

LARGEST_BATCH = '''
def memory_report() -> dict:
    """Snapshot of current GPU memory usage."""
    return {
        "allocated_mb": torch.cuda.memory_allocated() / 1024**2,
        "reserved_mb": torch.cuda.memory_reserved() / 1024**2,
        "max_allocated_mb": torch.cuda.max_memory_allocated() / 1024**2,
    }

def find_max_batch_size(model, input_shape: tuple, start: int = 8, device: str = "cuda") -> int:
    """Binary search for the largest batch size that fits in GPU memory."""
    model = model.to(device)
    low, high = start, start
    # Find upper bound
    while True:
        try:
            torch.cuda.empty_cache()
            x = torch.randn(high, *input_shape, device=device)
            with torch.no_grad():
                _ = model(x)
            del x
            torch.cuda.empty_cache()
            high *= 2
        except torch.cuda.OutOfMemoryError:
            break
    # Binary search between low and high
    best = low
    while low <= high:
        mid = (low + high) // 2
        try:
            torch.cuda.empty_cache()
            x = torch.randn(mid, *input_shape, device=device)
            with torch.no_grad():
                _ = model(x)
            del x
            torch.cuda.empty_cache()
            best = mid
            low = mid + 1
        except torch.cuda.OutOfMemoryError:
            high = mid - 1
            torch.cuda.empty_cache()
    return best

report = memory_report()
model = model.eval()
max_bs = find_max_batch_size(model, (3, 8, 8))
print(f"Max inference batch size: {max_bs}")
print(f"Recommended training batch size: {int(max_bs * 0.4)}")
'''

KEPT_LOSSES = """
losses = []
for data, target in dataloader:
    loss = criterion(model(data.cuda()), target.cuda())
    losses.append(loss)  # BAD: keeps the computation graph in memory

losses = []
for data, target in dataloader:
    loss = criterion(model(data.cuda()), target.cuda())
    losses.append(loss.item())  # GOOD: extracts the scalar value
"""

THEIR_OWN = {
    "track memory": TRACK_MEMORY,
    "summary": SUMMARY,
    "peak of a step": PEAK_OF_A_STEP,
    "snapshot file": SNAPSHOT_FILE,
    "components": COMPONENTS,
    "largest batch": LARGEST_BATCH,
    "kept losses": KEPT_LOSSES,
}
"""Those that run as they stand."""


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


def with_largest_batch(program: str) -> str:
    """The program with gpuscope's `find_max_batch_size` and `memory_snapshot` in place of its own functions."""
    begin, end = program.index("def memory_report"), program.index("report = memory_report()")
    ours = "from gpuscope import find_max_batch_size, memory_snapshot\n\n"
    return program[:begin] + ours + program[end:].replace("memory_report()", "memory_snapshot()")
