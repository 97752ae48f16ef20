# SPDX-License-Identifier: Apache-2.0
"""Programs of tutorials that measure by themselves: times, throughput, latency, loaders, GPUs; see `fakes.seeds`.

They expect a GPU. `on_cpu` changes the sizes and devices in their text, and `stand_in_for_cuda` provides the rest.
"""

from __future__ import annotations

import types
from typing import Any

# -- timing a call -----------------------------------------------------------------------------------------------------

SUBMISSION_ONLY = """
import time

x = torch.randn(5000, 5000, device='cuda')
t0 = time.time()
y = x @ x
print(f"Time: {time.time() - t0:.4f}s")  # WRONG: the launch, not the work

start = time.time()
output = model(data)
end = time.time()
print(f"Time: {end - start:.4f}s")
"""

SYNCHRONIZED = """
import time

x = torch.randn(5000, 5000, device='cuda')
torch.cuda.synchronize()
t0 = time.perf_counter()
y = x @ x
torch.cuda.synchronize()  # wait for GPU to finish
t1 = time.perf_counter()
print(f"MatMul time: {t1 - t0:.4f} s")
"""

EVENTS = """
x = torch.randn(5000, 5000, device='cuda')
start = torch.cuda.Event(enable_timing=True)
end = torch.cuda.Event(enable_timing=True)
start.record()
y = x @ x
end.record()
torch.cuda.synchronize()
print(f"GPU time: {start.elapsed_time(end):.2f} ms")

start_event = torch.cuda.Event(enable_timing=True)
end_event = torch.cuda.Event(enable_timing=True)
start_event.record()
output = model(data)
end_event.record()
torch.cuda.synchronize()
elapsed_time_ms = start_event.elapsed_time(end_event)
print(f"GPU Time: {elapsed_time_ms:.2f} ms")
"""

MEDIAN_OF_RUNS = """
import time
import numpy as np

x = torch.randn(5000, 5000, device='cuda')
# Warmup (excluded from timing)
for _ in range(3):
    _ = x @ x
torch.cuda.synchronize()

# Timed runs
times = []
for _ in range(10):
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    y = x @ x
    torch.cuda.synchronize()
    times.append(time.perf_counter() - t0)
print(f"Median: {np.median(times)*1000:.2f} ms")
print(f"Std: {np.std(times)*1000:.2f} ms")

# Even better: CUDA Events
start = torch.cuda.Event(enable_timing=True)
end = torch.cuda.Event(enable_timing=True)
times = []
for _ in range(10):
    start.record()
    y = x @ x
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(f"Median: {np.median(times):.2f} ms")
"""

WITHOUT_WARM_UP = """
import time

# The mistake: the first operation is timed
x = torch.randn(5000, 5000, device='cuda')
torch.cuda.synchronize()
t0 = time.perf_counter()
y = x @ x
torch.cuda.synchronize()
print(f"Time: {time.perf_counter() - t0:.4f}s")

start = time.time()
output = model(data)
end = time.time()

# The correction: warm up first
for _ in range(5):
    _ = model(data)
torch.cuda.synchronize()
start = torch.cuda.Event(enable_timing=True)
end = torch.cuda.Event(enable_timing=True)
start.record()
output = model(data)
end.record()
torch.cuda.synchronize()
"""

ITERATION_BY_ITERATION = """
model.eval()
with torch.no_grad():
    for i in range(10):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        output = model(data)
        end.record()
        torch.cuda.synchronize()
        print(f"Iteration {i}: {start.elapsed_time(end):.2f} ms")
"""

SYNCHRONIZED_LAYERS = """
# The mistake: waiting after every operation
x = data
for layer in (model.layer_x, model.rest):
    x = layer(x)
    torch.cuda.synchronize()  # blocks the pipeline

for batch, target in list(dataloader)[:4]:
    output = model(batch.cuda())
    torch.cuda.synchronize()
    loss = criterion(output, target.cuda())
    torch.cuda.synchronize()
    loss.backward()

# The correction: wait only for a result
x = data
for layer in (model.layer_x, model.rest):
    x = layer(x)
torch.cuda.synchronize()
result = x.cpu()

for batch, target in list(dataloader)[:4]:
    output = model(batch.cuda())
    loss = criterion(output, target.cuda())
    loss.backward()
"""

# -- throughput and latency --------------------------------------------------------------------------------------------

THROUGHPUT = """
def measure_throughput(model, dataloader, num_batches=100):
    model.train()
    torch.cuda.synchronize()
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    total_samples = 0
    start.record()
    for i, (data, target) in enumerate(dataloader):
        if i >= num_batches:
            break
        data, target = data.cuda(), target.cuda()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total_samples += data.size(0)
    end.record()
    torch.cuda.synchronize()
    elapsed_ms = start.elapsed_time(end)
    throughput = total_samples / (elapsed_ms / 1000.0)
    print(f"Throughput: {throughput:.2f} samples/sec")
    print(f"Time per batch: {elapsed_ms / num_batches:.2f} ms")
    return throughput

throughput = measure_throughput(model, dataloader, num_batches=20)
"""

LATENCY = """
import numpy as np

def measure_latency(model, sample_input, num_iterations=100, warmup=10):
    model.eval()
    sample_input = sample_input.cuda()
    # Warmup
    with torch.no_grad():
        for _ in range(warmup):
            _ = model(sample_input)
    # Ensure warmup completed
    torch.cuda.synchronize()
    # Measure
    latencies = []
    with torch.no_grad():
        for _ in range(num_iterations):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            output = model(sample_input)
            end.record()
            torch.cuda.synchronize()
            latencies.append(start.elapsed_time(end))
    latencies = np.array(latencies)
    print(f"Latency - Mean: {latencies.mean():.2f} ms, "
          f"Std: {latencies.std():.2f} ms, "
          f"Median: {np.median(latencies):.2f} ms, "
          f"Min: {latencies.min():.2f} ms, "
          f"Max: {latencies.max():.2f} ms, "
          f"P95: {np.percentile(latencies, 95):.2f} ms, "
          f"P99: {np.percentile(latencies, 99):.2f} ms")
    return latencies

latencies = measure_latency(model, data, num_iterations=30, warmup=5)
"""

# -- loaders -----------------------------------------------------------------------------------------------------------

LOADER_AGAINST_MODEL = """
import time
import numpy as np

def profile_dataloader_vs_model(model, dataloader, num_batches=50):
    \"\"\"Separate data loading time from model computation time\"\"\"
    model.train()
    data_times = []
    compute_times = []
    batch_iterator = iter(dataloader)
    for i in range(num_batches):
        # Time data loading
        data_start = time.time()
        data, target = next(batch_iterator)
        data_end = time.time()
        data_times.append(data_end - data_start)
        # Time computation
        data, target = data.cuda(non_blocking=True), target.cuda(non_blocking=True)
        torch.cuda.synchronize()
        compute_start = torch.cuda.Event(enable_timing=True)
        compute_end = torch.cuda.Event(enable_timing=True)
        compute_start.record()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        compute_end.record()
        torch.cuda.synchronize()
        compute_times.append(compute_start.elapsed_time(compute_end))
    avg_data_time = np.mean(data_times) * 1000  # to ms
    avg_compute_time = np.mean(compute_times)
    print(f"Avg data loading time: {avg_data_time:.2f} ms")
    print(f"Avg computation time: {avg_compute_time:.2f} ms")
    if avg_data_time > avg_compute_time:
        print("BOTTLENECK: Data loading (CPU-bound)")
    else:
        print("Data loading is fast enough. Bottleneck is in model computation.")
    return avg_data_time, avg_compute_time

data_ms, compute_ms = profile_dataloader_vs_model(model, dataloader, num_batches=20)
"""

LOADER_ALONE = """
import time
from torch.utils.data import DataLoader

def benchmark_dataloader(loader: DataLoader, num_batches: int = 50) -> dict:
    \"\"\"Measure how fast the dataloader can deliver batches.\"\"\"
    times = []
    # Warm up
    batch_iter = iter(loader)
    next(batch_iter)
    for i in range(num_batches):
        start = time.time()
        try:
            batch = next(batch_iter)
        except StopIteration:
            batch_iter = iter(loader)
            batch = next(batch_iter)
        times.append(time.time() - start)
    avg_ms = sum(times) / len(times) * 1000
    throughput = len(times) / sum(times)
    return {
        "avg_batch_time_ms": round(avg_ms, 2),
        "batches_per_second": round(throughput, 2),
        "slowest_batch_ms": round(max(times) * 1000, 2),
        "fastest_batch_ms": round(min(times) * 1000, 2),
    }

stats = benchmark_dataloader(dataloader, num_batches=20)
print(f"workers= 0: {stats['avg_batch_time_ms']:6.1f}ms/batch, "
      f"{stats['batches_per_second']:.1f} batches/sec")
"""

LOADER_BY_WORKERS = (
    LOADER_ALONE[: LOADER_ALONE.index("stats = ")]
    + """
for workers in [0, 2]:
    loader = DataLoader(
        dataset, batch_size=4, num_workers=workers,
        pin_memory=True, persistent_workers=workers > 0,
    )
    stats = benchmark_dataloader(loader, num_batches=8)
    print(f"workers={workers:2d}: {stats['avg_batch_time_ms']:6.1f}ms/batch, "
          f"{stats['batches_per_second']:.1f} batches/sec")
"""
)

FASTER_LOADERS = """
from torch.utils.data import DataLoader, Dataset

# More workers
dataloader = DataLoader(dataset, batch_size=4, num_workers=2, pin_memory=True, persistent_workers=True)
first = next(iter(dataloader))

# Cache dataset in RAM
class CachedDataset(Dataset):
    def __init__(self, dataset):
        self.cache = [dataset[i] for i in range(len(dataset))]

    def __getitem__(self, idx):
        return self.cache[idx]

    def __len__(self):
        return len(self.cache)

# Prefetch data
dataloader = DataLoader(CachedDataset(dataset), batch_size=4, num_workers=2, prefetch_factor=4, pin_memory=True)
first = next(iter(dataloader))
"""

AUGMENTED_ON_GPU = """
import kornia
import torch.nn as nn

class GPUAugmentation(nn.Module):
    def __init__(self):
        super().__init__()
        self.augment = nn.Sequential(
            kornia.augmentation.RandomHorizontalFlip(p=0.5),
            kornia.augmentation.ColorJitter(0.2, 0.2, 0.2, 0.1),
            kornia.augmentation.RandomResizedCrop((8, 8)),
        )

    def forward(self, x):
        return self.augment(x)

# Apply on GPU
gpu_augment = GPUAugmentation().cuda()
for data, target in dataloader:
    data = data.cuda()
    data = gpu_augment(data)  # Augment on GPU
    output = model(data)
"""

FASTER_KERNELS = """
# Mixed precision
from torch.cuda.amp import autocast

with autocast():
    output = model(data)
    loss = criterion(output, target)

# Fusing
compiled = torch.compile(model)
output = compiled(data)
"""

# -- utilization and conditions ----------------------------------------------------------------------------------------

UTILIZATION = """
import subprocess

result = subprocess.run(['nvidia-smi', '--query-gpu=utilization.gpu,memory.used',
                         '--format=csv,noheader,nounits'],
                        capture_output=True, text=True)
gpu_util, mem_used = result.stdout.strip().split("\\n")[0].split(',')
print(f"GPU Utilization: {gpu_util}%, Memory: {mem_used} MB")
"""

CPU_BOTTLENECK = (
    LOADER_AGAINST_MODEL[: LOADER_AGAINST_MODEL.index("data_ms, ")]
    + """
import subprocess

def diagnose_cpu_bottleneck(model, dataloader):
    \"\"\"Check if training is CPU-bound\"\"\"
    result = subprocess.run(
        ['nvidia-smi', '--query-gpu=utilization.gpu', '--format=csv,noheader,nounits'],
        capture_output=True, text=True
    )
    gpu_util = int(result.stdout.strip().split("\\n")[0])
    print(f"GPU Utilization: {gpu_util}%")
    if gpu_util < 70:
        print("LOW GPU UTILIZATION - likely CPU-bound")
        data_time, compute_time = profile_dataloader_vs_model(model, dataloader, num_batches=8)
        if data_time > compute_time:
            print("BOTTLENECK: Data loading")
        else:
            print("BOTTLENECK: CPU preprocessing")
    else:
        print("GPU utilization is healthy")
    return gpu_util

gpu_util = diagnose_cpu_bottleneck(model, dataloader)
"""
)

CONDITIONS = """
import json

using_amp = False
profiling_config = {
    'model': model.__class__.__name__,
    'batch_size': 4,
    'input_shape': (3, 8, 8),
    'device': 'cuda:0',
    'dtype': 'float16' if using_amp else 'float32',
    'mode': 'train' if model.training else 'eval',
    'num_workers': dataloader.num_workers,
    'cudnn_benchmark': torch.backends.cudnn.benchmark,
    'gpu': torch.cuda.get_device_name(0),
}
print(json.dumps(profiling_config, indent=2))
"""

SNAPSHOT = """
import subprocess
import json
import time

def gpu_snapshot() -> list[dict]:
    \"\"\"Get current GPU stats as structured data.\"\"\"
    result = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,name,utilization.gpu,utilization.memory,"
         "memory.used,memory.total,temperature.gpu,power.draw",
         "--format=csv,noheader,nounits"],
        capture_output=True, text=True,
    )
    gpus = []
    for line in result.stdout.strip().split("\\n"):
        parts = [p.strip() for p in line.split(",")]
        gpus.append({
            "index": int(parts[0]),
            "name": parts[1],
            "gpu_util_pct": float(parts[2]),
            "mem_util_pct": float(parts[3]),
            "mem_used_mb": float(parts[4]),
            "mem_total_mb": float(parts[5]),
            "temp_c": float(parts[6]),
            "power_w": float(parts[7]),
        })
    return gpus

for _ in range(2):
    stats = gpu_snapshot()
    for gpu in stats:
        print(f"GPU {gpu['index']}: {gpu['gpu_util_pct']:.0f}% util, "
              f"{gpu['mem_used_mb']:.0f}/{gpu['mem_total_mb']:.0f} MB, "
              f"{gpu['temp_c']}C, {gpu['power_w']}W")
    time.sleep(0.1)
"""

MONITOR = (
    SNAPSHOT[: SNAPSHOT.index("for _ in range(2)")]
    + """
import threading
import csv
from datetime import datetime

class GPUMonitor:
    \"\"\"Background GPU monitoring that logs to CSV.\"\"\"
    def __init__(self, log_path: str = "gpu_metrics.csv", interval: float = 5.0):
        self.log_path = log_path
        self.interval = interval
        self.running = False
        self._thread = None
        with open(log_path, "w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["timestamp", "gpu_idx", "util_pct", "mem_used_mb",
                             "mem_total_mb", "temp_c", "power_w"])

    def start(self):
        self.running = True
        self._thread = threading.Thread(target=self._monitor_loop, daemon=True)
        self._thread.start()

    def stop(self):
        self.running = False
        if self._thread:
            self._thread.join()

    def _monitor_loop(self):
        while self.running:
            stats = gpu_snapshot()
            timestamp = datetime.now().isoformat()
            with open(self.log_path, "a", newline="") as f:
                writer = csv.writer(f)
                for gpu in stats:
                    writer.writerow([
                        timestamp, gpu["index"], gpu["gpu_util_pct"],
                        gpu["mem_used_mb"], gpu["mem_total_mb"],
                        gpu["temp_c"], gpu["power_w"],
                    ])
            time.sleep(self.interval)

monitor = GPUMonitor(interval=0.1)
monitor.start()
for _ in range(8):
    output = model(data)
monitor.stop()
print(f"GPU metrics saved to {monitor.log_path}")
"""
)

TIMINGS = {
    "submission only": SUBMISSION_ONLY,
    "synchronized": SYNCHRONIZED,
    "events": EVENTS,
    "median of runs": MEDIAN_OF_RUNS,
    "without warm-up": WITHOUT_WARM_UP,
    "iteration by iteration": ITERATION_BY_ITERATION,
    "synchronized layers": SYNCHRONIZED_LAYERS,
    "throughput": THROUGHPUT,
    "latency": LATENCY,
    "loader against model": LOADER_AGAINST_MODEL,
    "loader alone": LOADER_ALONE,
    "loader by workers": LOADER_BY_WORKERS,
    "faster loaders": FASTER_LOADERS,
    "augmented on GPU": AUGMENTED_ON_GPU,
    "faster kernels": FASTER_KERNELS,
    "utilization": UTILIZATION,
    "CPU bottleneck": CPU_BOTTLENECK,
    "conditions": CONDITIONS,
    "snapshot": SNAPSHOT,
    "monitor": MONITOR,
}


# -- what they run with ------------------------------------------------------------------------------------------------

# The program's own function, and the statement that calls gpuscope's in its place.
WITH_OURS = {
    "throughput": (
        "measure_throughput",
        "throughput = measure_throughput(model, dataloader, num_batches=20, criterion=criterion, optimizer=optimizer)\n"
        "print(throughput)\n",
    ),
    "latency": (
        "measure_latency",
        "latencies = measure_latency(model, data, num_iterations=30, warmup=5)\nprint(latencies)\n",
    ),
    "loader alone": ("benchmark_dataloader", None),
    "loader by workers": ("benchmark_dataloader", None),
    "snapshot": ("gpu_snapshot", None),
    "monitor": ("GPUMonitor", None),
}


def with_ours(name: str) -> str:
    """The program with an import of gpuscope's function in place of its own, and the same call where it has one."""
    program, (function, call) = TIMINGS[name], WITH_OURS[name]
    begin = max(program.find(f"\ndef {function}("), program.find(f"\nclass {function}:")) + 1
    end = next(at for at in range(begin, len(program)) if program[at] == "\n" and program[at + 1 : at + 2] not in " \n")
    used = program[end + 1 :] if call is None else call
    return f"{program[:begin]}from gpuscope import {function}\n{used}"


def on_cpu(program: str) -> str:
    """The program with small sizes, and on the CPU where it names a device."""
    return program.replace("5000", "50").replace("device='cuda'", "device='cpu'")


class ClockEvent:
    """A CUDA event of a GPU without a queue: its time is that of a clock."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.at = 0.0

    def record(self) -> None:
        self.at = self._clock()

    def elapsed_time(self, end: ClockEvent) -> float:
        return 1000 * (end.at - self.at)


def stand_in_for_cuda(monkeypatch: Any, clock: Any) -> None:
    """What the programs call of torch.cuda, on a CPU; events read the clock, a function that returns seconds."""
    import torch

    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **_: self)
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: ClockEvent(clock))
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "none")
    monkeypatch.setattr(torch.cuda, "memory_summary", lambda: "none")


NVIDIA_SMI = r"""#!/bin/sh
case "$1" in
  *index*) echo "0, NVIDIA Fake, 41, 7, 1024, 81920, 55, 210.5" ;;
  *memory.used*) echo "41, 1024" ;;
  *) echo "41" ;;
esac
"""


def stand_in_for_nvidia_smi(folder: Any, monkeypatch: Any) -> None:
    """A program of that name which answers the queries for one GPU."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")


def stand_in_for_kornia() -> dict[str, types.ModuleType]:
    """kornia with the augmentations that the programs use, as rows of sys.modules; they change nothing."""
    import torch

    module = types.ModuleType("kornia")
    names = ("RandomHorizontalFlip", "ColorJitter", "RandomResizedCrop")
    unchanged = {name: type(name, (torch.nn.Identity,), {}) for name in names}
    module.augmentation = types.SimpleNamespace(**unchanged)  # type: ignore[attr-defined]
    return {"kornia": module}
