# SPDX-License-Identifier: Apache-2.0
"""The profiling programs of tutorials that need a GPU; see `fakes.seeds`."""

from __future__ import annotations

FIND_BOTTLENECKS = """
import torch
from torch.profiler import profile, ProfilerActivity

model = torch.nn.Sequential(
    torch.nn.Linear(1024, 2048),
    torch.nn.ReLU(),
    torch.nn.Linear(2048, 512),
).cuda()

x = torch.randn(256, 1024, device='cuda')

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    record_shapes=True,
    profile_memory=True,
) as prof:
    for _ in range(10):
        y = model(x)

print(prof.key_averages().table(
    sort_by="cuda_time_total", row_limit=10))

prof.export_chrome_trace("trace.json")
"""

_BOTTLENECK_TYPE = """
def diagnose_bottleneck_type(model, dataloader):
    \"\"\"Systematic bottleneck categorization\"\"\"
    from torch.profiler import profile, ProfilerActivity

    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for i, (data, target) in enumerate(dataloader):
            if i >= 5:
                break
            data, target = data.cuda(), target.cuda()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()

    # Look for high memory-bound ops
    events = prof.key_averages()
    for evt in events:
        if evt.cuda_time_total > 0:
            # If many large tensor ops with low FLOPS -> memory-bound
            pass

    # Profile phases
    times = profile_training_phases(model, *next(iter(dataloader)))

    # Interpret results
    if times.get('data_loading', 0) > times['forward'] + times['backward']:
        print("BOTTLENECK: CPU-bound (data loading)")
    elif times['forward'] > times['backward'] * 2:
        print("BOTTLENECK: GPU-bound (forward pass)")
    elif times['backward'] > times['forward'] * 2:
        print("BOTTLENECK: GPU-bound (backward pass)")
    else:
        print("BOTTLENECK: Mixed or memory-bound")
    return prof

prof = diagnose_bottleneck_type(model, dataloader)
"""

TRAINING_STEP = """
from torch.profiler import profile, ProfilerActivity, schedule

def profile_training_step(model, dataloader, num_steps=10):
    \"\"\"Profile one training step to identify bottleneck phase\"\"\"
    # Use schedule to reduce profiling overhead
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=2, active=5, repeat=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler('./profiler_logs'),
        record_shapes=True,
        profile_memory=True,
        with_stack=True
    ) as prof:
        for step, (data, target) in enumerate(dataloader):
            if step >= num_steps:
                break

            data, target = data.cuda(), target.cuda()
            optimizer.zero_grad()

            # Forward
            output = model(data)
            loss = criterion(output, target)

            # Backward
            loss.backward()

            # Optimizer
            optimizer.step()

            prof.step()  # Notify profiler of step boundary

    # Print summary
    print(prof.key_averages().table(
        sort_by="cuda_time_total",
        row_limit=20,
        max_src_column_width=80
    ))

    return prof

prof = profile_training_step(model, dataloader)
"""

TRAINING_PHASES = """
from torch.profiler import record_function

def profile_training_phases(model, batch, target):
    \"\"\"Time each phase of training separately\"\"\"
    data, target = batch.cuda(), target.cuda()
    optimizer.zero_grad()
    torch.cuda.synchronize()

    # Profile each phase
    phases = {}

    # Forward pass
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)

    with record_function("forward_pass"):
        start.record()
        output = model(data)
        loss = criterion(output, target)
        end.record()

    torch.cuda.synchronize()
    phases['forward'] = start.elapsed_time(end)

    # Backward pass
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)

    with record_function("backward_pass"):
        start.record()
        loss.backward()
        end.record()

    torch.cuda.synchronize()
    phases['backward'] = start.elapsed_time(end)

    # Optimizer step
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)

    with record_function("optimizer_step"):
        start.record()
        optimizer.step()
        end.record()

    torch.cuda.synchronize()
    phases['optimizer'] = start.elapsed_time(end)

    # Print breakdown
    total = sum(phases.values())
    print("Phase Breakdown:")
    for phase, time_ms in phases.items():
        print(f"  {phase:15s}: {time_ms:7.2f} ms ({time_ms/total*100:5.1f}%)")

    return phases

phases = profile_training_phases(model, data, target)
"""

BOTTLENECK_TYPE = TRAINING_PHASES + _BOTTLENECK_TYPE

MODEL_MODULES = """
from torch.profiler import profile, record_function, ProfilerActivity

def profile_model_modules(model, sample_input):
    \"\"\"Profile time spent in each model module\"\"\"
    model.eval()
    sample_input = sample_input.cuda()

    # Add hooks to time each module
    module_times = {}
    def make_hook(name):
        def hook(module, input, output):
            if name not in module_times:
                module_times[name] = []
            torch.cuda.synchronize()
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            end.record()
            torch.cuda.synchronize()
        return hook

    # Register hooks
    hooks = []
    for name, module in model.named_modules():
        if len(list(module.children())) == 0:  # Leaf modules only
            hook = module.register_forward_hook(make_hook(name))
            hooks.append(hook)

    # Better approach: Use record_function
    class ProfilingModule(torch.nn.Module):
        def __init__(self, module, name):
            super().__init__()
            self.module = module
            self.name = name

        def forward(self, *args, **kwargs):
            with record_function(f"module_{self.name}"):
                return self.module(*args, **kwargs)

    # Or just use torch.profiler with record_shapes=True
    # It will automatically show module breakdown
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        with record_function("model_forward"):
            output = model(sample_input)

    print(prof.key_averages(group_by_input_shape=True).table(
        sort_by="cuda_time_total", row_limit=20
    ))

    # Clean up
    for hook in hooks:
        hook.remove()
    return prof

prof = profile_model_modules(model, data)
"""

OPERATIONS_IN_DETAIL = """
from torch.profiler import profile, ProfilerActivity

def profile_operations_detailed(model, sample_input):
    \"\"\"Get detailed breakdown of all operations\"\"\"
    model.eval()
    sample_input = sample_input.cuda()

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        with_stack=True,
        profile_memory=True
    ) as prof:
        output = model(sample_input)

    # Group by operation type
    print("\\n=== Top Operations by CUDA Time ===")
    print(prof.key_averages().table(
        sort_by="cuda_time_total",
        row_limit=30,
        max_src_column_width=100
    ))

    print("\\n=== Top Operations by Memory ===")
    print(prof.key_averages().table(
        sort_by="self_cuda_memory_usage",
        row_limit=20,
        max_src_column_width=100
    ))

    print("\\n=== Grouped by Input Shape ===")
    print(prof.key_averages(group_by_input_shape=True).table(
        sort_by="cuda_time_total",
        row_limit=20
    ))

    # Export for trace view
    prof.export_chrome_trace("detailed_trace.json")
    return prof

prof = profile_operations_detailed(model, data)
"""

GPU_BOTTLENECK = """
from torch.profiler import profile, ProfilerActivity

def diagnose_gpu_bottleneck(model, sample_input):
    \"\"\"Identify GPU bottleneck operations\"\"\"
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        output = model(sample_input)
        loss = criterion(output, target)
        loss.backward()

    # Find top GPU operations
    events = prof.key_averages()
    cuda_events = [(evt.key, evt.cuda_time_total) for evt in events
                   if evt.cuda_time_total > 0]
    cuda_events.sort(key=lambda x: x[1], reverse=True)

    print("Top 10 GPU operations:")
    total_time = sum(time for _, time in cuda_events)
    for i, (name, time) in enumerate(cuda_events[:10], 1):
        percentage = (time / total_time) * 100
        print(f"{i:2d}. {name:40s} {time/1000:8.2f} ms ({percentage:5.1f}%)")

    # Check for optimization opportunities
    top_op = cuda_events[0][0]
    if 'conv' in top_op.lower():
        print("\\nBottleneck: Convolution operations")
    elif 'mm' in top_op.lower() or 'matmul' in top_op.lower():
        print("\\nBottleneck: Matrix multiplication")
    elif 'copy' in top_op.lower():
        print("\\nBottleneck: Memory copies")
    return cuda_events

cuda_events = diagnose_gpu_bottleneck(model, data)
"""

COMPREHENSIVE = """
import torch
import torch.nn as nn
from torch.profiler import profile, ProfilerActivity, schedule
from torch.utils.data import DataLoader
import numpy as np

def comprehensive_profiling(model, dataloader, device='cuda'):
    \"\"\"
    Complete profiling workflow following systematic methodology
    \"\"\"
    # Step 1: Measure baseline performance
    model = model.to(device)
    model.train()

    # Warmup
    for i, (data, target) in enumerate(dataloader):
        if i >= 5:
            break
        data, target = data.to(device), target.to(device)
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()

    # Measure baseline
    times = []
    for i, (data, target) in enumerate(dataloader):
        if i >= 10:
            break
        data, target = data.to(device), target.to(device)
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    times = np.array(times)
    print(f"  Mean: {times.mean():.2f} ms/iteration")
    print(f"  P95: {np.percentile(times, 95):.2f} ms")

    # Check GPU utilization
    import subprocess
    result = subprocess.run(
        ['nvidia-smi', '--query-gpu=utilization.gpu,memory.used',
         '--format=csv,noheader,nounits'],
        capture_output=True, text=True
    )
    gpu_util, mem_used = result.stdout.strip().split("\\n")[0].split(',')
    if int(gpu_util) < 70:
        print("LOW GPU UTILIZATION - likely CPU-bound")

    # Profile data loading vs computation
    data_times = []
    compute_times = []
    batch_iter = iter(dataloader)
    for i in range(20):
        import time
        data_start = time.time()
        data, target = next(batch_iter)
        data_times.append((time.time() - data_start) * 1000)  # to ms
        data, target = data.to(device), target.to(device)
        torch.cuda.synchronize()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        compute_times.append(start.elapsed_time(end))
    avg_data = np.mean(data_times)
    avg_compute = np.mean(compute_times)
    if avg_data > avg_compute:
        print("BOTTLENECK: Data loading (CPU-bound)")
    else:
        print("BOTTLENECK: Model computation (GPU-bound)")

    # Profile training phases
    data, target = next(iter(dataloader))
    data, target = data.to(device), target.to(device)
    phases = {}
    for phase in ('forward', 'backward', 'optimizer'):
        torch.cuda.synchronize()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        if phase == 'forward':
            output = model(data)
            loss = criterion(output, target)
        elif phase == 'backward':
            loss.backward()
        else:
            optimizer.step()
            optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        phases[phase] = start.elapsed_time(end)

    # Detailed profiling
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=2, active=3, repeat=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler('./profiler_logs'),
        record_shapes=True,
        profile_memory=True,
        with_stack=True
    ) as prof:
        for step, (data, target) in enumerate(dataloader):
            if step >= 10:
                break
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            prof.step()

    # Print summary
    print("\\nTop operations by CUDA time:")
    print(prof.key_averages().table(
        sort_by="cuda_time_total",
        row_limit=15,
        max_src_column_width=60
    ))

    print("\\nTop operations by memory:")
    print(prof.key_averages().table(
        sort_by="self_cuda_memory_usage",
        row_limit=10,
        max_src_column_width=60
    ))

    prof.export_chrome_trace("detailed_trace.json")
    return {
        'baseline_ms': times.mean(),
        'gpu_utilization': int(gpu_util),
        'data_loading_ms': avg_data,
        'computation_ms': avg_compute,
        'forward_ms': phases['forward'],
        'backward_ms': phases['backward'],
        'optimizer_ms': phases['optimizer'],
    }, prof

results, prof = comprehensive_profiling(model, dataloader)
"""

TRAIN_RESNET = """
import torch
from torch.profiler import profile, record_function, ProfilerActivity
from torchvision.models import resnet50
from torch.utils.data import DataLoader
import torchvision.transforms as T
import torchvision.datasets as datasets

model = resnet50().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = torch.nn.CrossEntropyLoss()

# Create a sample dataloader
transform = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()])
dataset = datasets.FakeData(size=48, image_size=(3, 224, 224), transform=T.ToTensor())
loader = DataLoader(dataset, batch_size=8, num_workers=2, pin_memory=True)

# Profile 5 training steps
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
    on_trace_ready=torch.profiler.tensorboard_trace_handler("./profiler_logs"),
    record_shapes=True,
    profile_memory=True,
    with_stack=True,
) as prof:
    for step, (images, labels) in enumerate(loader):
        if step >= 5:
            break

        with record_function("data_transfer"):
            images = images.cuda(non_blocking=True)
            labels = labels.cuda(non_blocking=True)

        with record_function("forward"):
            outputs = model(images)
            loss = criterion(outputs, labels)

        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()

        with record_function("optimizer"):
            optimizer.step()

        prof.step()

# Print summary
print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=15))
"""

ON_A_GPU = {
    "find bottlenecks": FIND_BOTTLENECKS,
    "bottleneck type": BOTTLENECK_TYPE,
    "training step": TRAINING_STEP,
    "training phases": TRAINING_PHASES,
    "model modules": MODEL_MODULES,
    "operations in detail": OPERATIONS_IN_DETAIL,
    "GPU bottleneck": GPU_BOTTLENECK,
    "comprehensive": COMPREHENSIVE,
    "train ResNet": TRAIN_RESNET,
}
