# SPDX-License-Identifier: Apache-2.0
"""Profiling programs as tutorials have them, written for torch.profiler, and small models to run them on.

Each is the text of a program: `changed` gives it with its import line changed and nothing else.
"""

from __future__ import annotations

import sys
import types
from typing import Any

# -- programs that run on any machine --------------------------------------------------------------------------------

MATRIX_PRODUCT = """
from torch.profiler import profile, record_function, ProfilerActivity

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    record_shapes=True,
    profile_memory=True,
    with_stack=True,
) as prof:
    with record_function("my_matmul"):
        y = x @ x

print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=10))
"""

INSTEAD_OF_TIMING = """
# For comprehensive profiling, use torch.profiler instead of manual timing
from torch.profiler import profile, ProfilerActivity

with profile(activities=[ProfilerActivity.CUDA]) as prof:
    output = model(data)

print(prof.key_averages().table(sort_by="cuda_time_total"))
"""

MEMORY_BOTTLENECK = """
from torch.profiler import profile, ProfilerActivity

def diagnose_memory_bottleneck(model, sample_input):
    \"\"\"Check if operations are memory-bandwidth limited\"\"\"
    # Profile memory and compute
    with profile(
        activities=[ProfilerActivity.CUDA],
        profile_memory=True
    ) as prof:
        output = model(sample_input)

    # Analyze operations
    for evt in prof.key_averages():
        if evt.cuda_time_total > 0 and evt.self_cuda_memory_usage > 0:
            memory_gb = evt.self_cuda_memory_usage / 1e9
            time_s = evt.cuda_time_total / 1e6  # us to s
            if memory_gb > 1.0 and time_s > 0.01:
                bandwidth = memory_gb / time_s  # GB/s
                print(f"{evt.key:40s}: {bandwidth:.1f} GB/s")

    print("\\nIf bandwidth < 500 GB/s, likely memory-bound")

diagnose_memory_bottleneck(model, data)
"""

TOO_MANY_ITERATIONS = """
from torch.profiler import profile, ProfilerActivity

# Profiling 100 epochs - output is massive, unusable
with profile(activities=[ProfilerActivity.CUDA]) as prof:
    for epoch in range(100):
        for batch in dataloader:
            # ... training ...
            pass
"""

A_FEW_ITERATIONS = """
from torch.profiler import profile, ProfilerActivity, schedule

# Profile just a few iterations
with profile(
    activities=[ProfilerActivity.CUDA],
    schedule=schedule(wait=1, warmup=2, active=3, repeat=1)
) as prof:
    for epoch in range(1):
        for step, batch in enumerate(dataloader):
            if step >= 10:
                break
            # ... training ...
            prof.step()
"""

WHOLE_MODEL = """
from torch.profiler import profile

# Profiling entire model - too coarse, can't identify bottleneck
with profile() as prof:
    output = model(data)
"""

NARROWING_DOWN = """
from torch.profiler import profile, record_function

# Phase 1: Coarse
with record_function("forward"):
    output = model(data)
    loss = criterion(output, target)
with record_function("backward"):
    loss.backward()

# Phase 2: Found forward is slow, profile in detail
with profile() as prof:
    output = model(data)
# Now see which layer is slow

# Phase 3: Found layer X is slow, profile that layer
with profile() as prof:
    output = model.layer_x(data)
# Now see which operation in layer X is slow
"""

TIME_AND_MEMORY = """
from torch.profiler import profile, ProfilerActivity

# Only looking at time, ignoring memory
with profile(activities=[ProfilerActivity.CUDA]) as prof:
    output = model(data)

# Profile both compute AND memory
with profile(
    activities=[ProfilerActivity.CUDA],
    profile_memory=True
) as prof:
    output = model(data)

# Check both time and memory
print(prof.key_averages().table(sort_by="cuda_time_total"))
print(prof.key_averages().table(sort_by="self_cuda_memory_usage"))
"""

EVALUATION_AND_TRAINING = """
from torch.profiler import profile

# Profiling in eval mode when you care about training speed
model.eval()
with torch.no_grad():
    with profile() as prof:
        output = model(data)

# Profile in the mode you actually use
model.train()
with profile() as prof:
    output = model(data)
    loss = criterion(output, target)
    loss.backward()  # Include backward if profiling training
"""

ANYWHERE = {
    "matrix product": MATRIX_PRODUCT,
    "instead of timing": INSTEAD_OF_TIMING,
    "memory bottleneck": MEMORY_BOTTLENECK,
    "too many iterations": TOO_MANY_ITERATIONS,
    "a few iterations": A_FEW_ITERATIONS,
    "whole model": WHOLE_MODEL,
    "narrowing down": NARROWING_DOWN,
    "time and memory": TIME_AND_MEMORY,
    "evaluation and training": EVALUATION_AND_TRAINING,
}


# -- what they run on ------------------------------------------------------------------------------------------------


def changed(program: str, everywhere: bool = False) -> str:
    """The program with its import of torch.profiler's names changed; or each other mention of torch.profiler too."""
    text = program.replace("from torch.profiler import", "from gpuscope import")
    assert text != program
    return "import gpuscope\n" + text.replace("torch.profiler.", "gpuscope.") if everywhere else text


def surroundings(device: str) -> dict[str, Any]:
    """The names that the programs expect to find, small."""
    import torch

    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer_x = torch.nn.Conv2d(3, 4, 3)
            self.rest = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))

        def forward(self, images: Any) -> Any:
            return self.rest(self.layer_x(images))

    model = Model().to(device)
    batches = [(torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))) for _ in range(24)]
    data, target = (each.to(device) for each in batches[0])
    return {
        "__name__": "__main__",
        "torch": torch,
        "model": model,
        "dataloader": torch.utils.data.DataLoader(batches, batch_size=None),
        "dataset": [(images[0], int(labels[0])) for images, labels in batches],
        "criterion": torch.nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "data": data,
        "target": target,
        "x": torch.randn(64, 64, device=device),
    }


def stand_in_for_torchvision() -> dict[str, types.ModuleType]:
    """torchvision with the few names that the programs import, for machines that lack it; as rows of sys.modules."""
    import torch

    class FakeData(torch.utils.data.Dataset):  # type: ignore[misc]
        def __init__(self, size: int, image_size: tuple[int, ...], transform: Any = None) -> None:
            self._size, self._image_size = size, image_size

        def __len__(self) -> int:
            return self._size

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(self._image_size), index % 10

    def resnet50() -> torch.nn.Module:
        layers = torch.nn
        return layers.Sequential(
            layers.Conv2d(3, 8, 7, 4),
            layers.ReLU(),
            layers.AdaptiveAvgPool2d(1),
            layers.Flatten(),
            layers.Linear(8, 10),
        )

    def nothing(*_: Any) -> None:
        return None

    names = ("torchvision", "torchvision.models", "torchvision.transforms", "torchvision.datasets")
    modules = {name: types.ModuleType(name) for name in names}
    modules["torchvision.models"].resnet50 = resnet50  # type: ignore[attr-defined]
    for name in ("Compose", "Resize", "CenterCrop", "ToTensor"):
        setattr(modules["torchvision.transforms"], name, nothing)
    modules["torchvision.datasets"].FakeData = FakeData  # type: ignore[attr-defined]
    for name in names[1:]:
        setattr(modules["torchvision"], name.partition(".")[2], modules[name])
    return modules


def run(program: str, device: str, folder: Any, monkeypatch: Any, **names: Any) -> dict[str, Any]:
    """Runs a program in a folder of its own; what it leaves behind, by name. `names` replace its surroundings."""
    namespace = surroundings(device) | names
    monkeypatch.chdir(folder)
    try:
        import torchvision  # noqa: F401
    except ImportError:
        for name, module in stand_in_for_torchvision().items():
            monkeypatch.setitem(sys.modules, name, module)
    exec(compile(program, "seed.py", "exec"), namespace)
    return namespace
