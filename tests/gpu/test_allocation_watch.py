# SPDX-License-Identifier: Apache-2.0
"""The ledger of the driver's allocations agrees with what the frameworks say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
from child import last_facts, run_code

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

PROGRAM = """
import json
import torch
import gpuscope as gs
from gpuscope import _core
from gpuscope.memory.allocation_watch import unwatch_allocations, watch_allocations
def held():
    live = _core.live_allocations()
    found = {}
    for size, kind, library, device in zip(live["bytes"], live["kind"], live["library"], live["device"]):
        key = f'{live["libraries"][library]} {_core.ALLOCATION_KINDS[kind]} {device}'
        found[key] = found.get(key, 0) + int(size)
    return found
def say(**facts):
    print(json.dumps({**facts, "state": _core.allocation_watch()}))
why = watch_allocations()
assert why == "", why
"""


def watched(code: str, **more: str) -> dict[str, Any]:
    return last_facts(run_code(PROGRAM + code, **more))


def test_segments_of_torch_are_all_there_is_of_torch():
    found = watched(
        """
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
during, reserved = held(), torch.cuda.memory_reserved()
del x
torch.cuda.empty_cache()
say(during=during, reserved=reserved, after=held())
"""
    )
    assert found["during"] == {"libc10_cuda.so device 0": found["reserved"]}
    assert found["after"] == {}
    assert found["state"]["from_start"] is True
    assert found["state"]["contexts"] == 1
    assert found["state"]["unknown_releases"] == 0


def test_expandable_segments_are_virtual_memory():
    found = watched(
        """
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
during, reserved = held(), torch.cuda.memory_reserved()
del x
torch.cuda.empty_cache()
say(during=during, reserved=reserved, after=held())
""",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert found["during"] == {"libc10_cuda.so virtual 0": found["reserved"]}
    assert found["after"] == {}


def test_pinned_memory_is_the_hosts():
    found = watched("x = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)\nsay(held=held())")
    assert sum(size for key, size in found["held"].items() if key.endswith(" pinned -1")) >= 1 << 20


def test_workspaces_are_of_the_library_that_took_them():
    found = watched(
        """
x = torch.randn(512, 512, device="cuda")
(x @ x).sum().item()
say(held=held(), stacks=int((_core.live_allocations()["stack"] != 0).sum()))
"""
    )
    assert any(key.startswith("libcublas") for key in found["held"]), found["held"]
    assert found["stacks"] > 0
    assert found["state"]["modules"] > 0


@pytest.mark.parametrize("mode", ["LAZY", "EAGER"])
def test_code_is_known_where_it_is_loaded_whole(mode):
    found = watched('torch.ones(1, device="cuda").item()\nsay()', CUDA_MODULE_LOADING=mode)
    assert (found["state"]["code_bytes"] is not None) == (mode == "EAGER")


def test_kernels_that_assert_are_known():
    found = watched(
        'before = _core.allocation_watch()["services"]\ntorch.ones(1, device="cuda").item()\nsay(before=before)'
    )
    assert (found["before"], found["state"]["services"]) == ([], ["assert"])


def test_refused_memory_is_kept_with_what_lived():
    found = watched(
        """
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    pass
say()
"""
    )
    failure = found["state"]["failed"][-1]
    assert failure["bytes"] >= 1 << 50
    assert failure["library"] == "libc10_cuda.so"
    assert failure["live_bytes"] >= 100 << 20
    assert failure["device"] == 0


def test_a_recording_beside_it_is_complete_and_leaves_it_on():
    found = watched(
        """
x = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
with gs.profile() as prof:
    for _ in range(20):
        x += 1
    y = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
z = torch.empty(70 << 20, dtype=torch.uint8, device="cuda")
say(held=held(), reserved=torch.cuda.memory_reserved(), complete=prof.audit().complete,
    kernels=len(prof.trace.kernels))
"""
    )
    assert found["complete"]
    assert found["kernels"] == 20
    assert found["held"]["libc10_cuda.so device 0"] == found["reserved"]


def test_torch_profiler_inside_sees_the_gpu():
    found = watched(
        """
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(1 << 20, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    for _ in range(5):
        x += 1
    torch.cuda.synchronize()
say(kernels=sum(str(event.device_type).endswith("CUDA") for event in prof.events()))
"""
    )
    assert found["kernels"] >= 5
    assert found["state"]["gaps"] == 1
    assert found["state"]["watching"] or "CUPTI" in found["state"]["why"]


def test_pools_of_cupy_are_of_cupy():
    pytest.importorskip("cupy")
    found = watched(
        """
import cupy
x = cupy.zeros(10 << 20, dtype=cupy.uint8)
say(held=held(), reserved=cupy.get_default_memory_pool().total_bytes())
"""
    )
    of_cupy = sum(size for key, size in found["held"].items() if key.startswith("cupy"))
    assert of_cupy == found["reserved"], found["held"]
