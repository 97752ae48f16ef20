# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out for real: the reports, and the largest batch that fits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from child import environment, run_code

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

# A small share of the GPU, so that it is full in no time.
LIMITED = """
import io, json, sys, torch
from gpuscope.memory.limits.batch_size import find_max_batch_size
from gpuscope.memory.limits.out_of_memory_reports import report_out_of_memory
SHARE = 0.02
torch.cuda.set_per_process_memory_fraction(SHARE)
LIMIT = int(SHARE * torch.cuda.get_device_properties(0).total_memory)
file = io.StringIO()
def caught(call, kind=Exception):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("nothing ran out")
"""

NET = """
nn = torch.nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
).cuda()
def state():
    values = [value.clone() for value in model.state_dict().values()]
    return [*values, torch.get_rng_state(), torch.cuda.get_rng_state()]
def fits(size, training):
    try:
        x = torch.randn(size, 3, 128, 128, device="cuda")
        if training:
            model(x).float().mean().backward()
        else:
            with torch.no_grad():
                model(x)
        return True
    except RuntimeError:  # out of memory, or what a convolution makes of it
        return False
    finally:
        x = None
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
"""


def test_torch_that_asks_for_a_tebibyte_is_reported_once():
    run_code(
        LIMITED
        + """
torch.zeros(1, device="cuda")
reports = report_out_of_memory(file=file)
def step():
    with reports:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
caught(step, torch.OutOfMemoryError)
assert reports.count == 1, reports
report = reports.reports[0]
assert (report.library, report.device, report.requested_bytes) == ("torch", 0, 1 << 40), report
assert report.free_bytes > 0 and report.total_bytes > report.free_bytes, report
assert "more than all of this GPU" in report.advice[0], report.advice
assert "asked for 1.00 TiB on GPU 0" in file.getvalue(), file.getvalue()
"""
    )


def test_torch_that_is_only_begun_later_is_observed():
    run_code(
        LIMITED.partition("SHARE =")[0]
        + """
file = io.StringIO()
assert not torch.cuda.is_initialized()
with report_out_of_memory(file=file) as reports:
    torch.zeros(1, device="cuda")
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    assert reports.count == 1, reports
"""
    )


def test_the_limit_of_torchs_own_is_named():
    run_code(
        LIMITED
        + """
held = torch.empty(LIMIT // 2, dtype=torch.uint8, device="cuda")
with report_out_of_memory(file=file) as reports:
    caught(lambda: torch.empty(LIMIT, dtype=torch.uint8, device="cuda"))
report = reports.reports[0]
assert report.allowed_bytes is not None and abs(report.allowed_bytes - LIMIT) < LIMIT / 50, report
assert any("torch itself is limited" in text for text in report.advice), report.advice
"""
    )


def test_fragments_are_told_as_such():
    run_code(
        LIMITED
        + """
size = 64 << 20
# Whole segments, of which each second half is let go: what is free lies in pieces of 32 MiB.
whole = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(LIMIT // size)]
del whole
halves = []
try:
    while True:
        halves.append(torch.empty(size // 2, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
del halves[::2]
with report_out_of_memory(file=file) as reports:
    caught(lambda: torch.empty(LIMIT // 3, dtype=torch.uint8, device="cuda"))
report = reports.reports[0]
print(report)
if report.pool is not None:
    assert report.verdict.startswith("fragmentation: "), report
    assert any("expandable_segments" in text for text in report.advice), report.advice
"""
    )


def test_a_report_takes_no_gpu_memory():
    run_code(
        LIMITED
        + """
x = torch.zeros(1, device="cuda")
before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.memory_reserved()
with report_out_of_memory(file=file) as reports:
    caught(lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda"))
assert reports.count == 1
after = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.memory_reserved()
assert after == before, (before, after)
"""
    )


def test_running_out_in_a_backward_is_reported_once():
    run_code(
        LIMITED
        + """
class Greedy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()
    @staticmethod
    def backward(ctx, grad):
        return torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
x = torch.ones(4, device="cuda", requires_grad=True)
reports = report_out_of_memory(file=file)
def step():
    with reports:
        Greedy.apply(x).backward()
caught(step)
assert reports.count == 1, reports
assert reports.reports[0].stack, reports.reports[0]
"""
    )


def test_an_error_that_nobody_catches_is_reported_before_the_traceback(tmp_path):
    code = (
        LIMITED
        + f"""
report_out_of_memory({str(tmp_path / "oom-{pid}.txt")!r})
torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False, env=environment()
    )
    assert done.returncode == 1
    assert done.stderr.count("gpuscope: out of GPU memory: torch asked for 1.00 TiB") == 1
    assert done.stderr.index("gpuscope: out") < done.stderr.index("Traceback")
    (written,) = tmp_path.glob("oom-*.json")
    assert json.loads(written.read_text())["requested_bytes"] == 1 << 40


def test_cupy_is_reported():
    pytest.importorskip("cupy")
    run_code(
        LIMITED
        + """
import cupy
reports = report_out_of_memory(file=file)
def step():
    with reports:
        cupy.empty(1 << 40, dtype=cupy.uint8)
error = caught(step)
assert isinstance(error, cupy.cuda.memory.OutOfMemoryError), error
report = reports.reports[0]
assert (report.library, report.requested_bytes, report.device) == ("cupy", 1 << 40, 0), report
"""
    )


def test_jax_is_reported():
    pytest.importorskip("jax")
    run_code(
        LIMITED
        + """
import jax, jax.numpy as jnp
if jax.default_backend() != "gpu":
    sys.exit(0)
reports = report_out_of_memory(file=file)
def step():
    with reports:
        jnp.zeros(1 << 38, dtype=jnp.float32).block_until_ready()
caught(step)
assert [each.library for each in reports.reports] == ["jax"], reports.reports
""",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )


def test_numba_is_reported():
    pytest.importorskip("numba.cuda")
    run_code(
        LIMITED
        + """
from numba import cuda
try:
    cuda.device_array(16, "u1")
except AttributeError:  # numba-cuda trails NumPy's removals
    sys.exit(0)
reports = report_out_of_memory(file=file)
def step():
    with reports:
        cuda.device_array(1 << 40, "u1")
caught(step)
assert reports.count == 1 and reports.reports[0].library in ("numba", "CUDA"), reports.reports
"""
    )


def test_the_driver_itself_is_reported():
    run_code(
        LIMITED
        + """
import ctypes
torch.zeros(1, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")
reports = report_out_of_memory(file=file)
def step():
    with reports:
        pointer = ctypes.c_uint64()
        code = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 40))
        assert code == 2, code
        raise RuntimeError("cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY")
caught(step)
assert [each.library for each in reports.reports] == ["CUDA"], reports.reports
"""
    )


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
def test_the_largest_batch_of_a_network_fits_and_a_much_larger_one_does_not(training):
    run_code(
        LIMITED
        + NET
        + f"""
training = {training}
before, mode = state(), model.training
found = find_max_batch_size(model, (3, 128, 128), training=training, progress=print)
print(found.report())
assert found > 0 and found.limited_by == "memory", found
assert all(torch.equal(a, b) for a, b in zip(before, state()))
assert model.training == mode and all(each.grad is None for each in model.parameters())
assert fits(found.recommended, training)
assert not fits(int(found * 1.1) + 1, training)
assert found.bytes_per_sample > 0
assert len(found.tries) <= 24, found.report()  # doubling and bisection alone take 17; cuDNN's workspaces jump
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < LIMIT / 2
"""
    )


def test_training_with_an_optimizer_leaves_the_model_as_it_was():
    run_code(
        LIMITED
        + NET
        + """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
before = state()
found = find_max_batch_size(model, (3, 128, 128), training=True, optimizer=optimizer)
estimated = find_max_batch_size(model, (3, 128, 128), training=True, optimizer=True)
assert all(torch.equal(a, b) for a, b in zip(before, state()))
assert optimizer.state_dict()["state"] == {}
assert abs(found - estimated) <= 0.05 * found, (found, estimated)
"""
    )


def test_the_search_is_not_reported_as_out_of_memory():
    run_code(
        LIMITED
        + NET
        + """
with report_out_of_memory(file=file) as reports:
    find_max_batch_size(model, (3, 128, 128))
assert reports.count == 0, reports.reports
"""
    )


def test_memory_that_others_hold_makes_the_batch_smaller():
    run_code(
        LIMITED
        + NET
        + """
alone = find_max_batch_size(model, (3, 128, 128))
held = torch.empty(LIMIT // 2, dtype=torch.uint8, device="cuda")
beside = find_max_batch_size(model, (3, 128, 128))
assert 0.2 * alone < beside < 0.7 * alone, (alone, beside)
"""
    )


def test_a_function_of_cupy():
    pytest.importorskip("cupy")
    run_code(
        LIMITED
        + """
import cupy
cupy.get_default_memory_pool().set_limit(size=1 << 30)
found = find_max_batch_size(lambda size: cupy.zeros((size, 1 << 20), dtype=cupy.uint8), multiple_of=4, progress=print)
print(found.report())
assert found in (1020, 1024), found
"""
    )


def test_the_call_of_the_seeds():
    run_code(
        LIMITED
        + NET
        + """
max_bs = find_max_batch_size(model, (3, 128, 128))
print(f"Max inference batch size: {max_bs}")
print(f"Recommended training batch size: {int(max_bs * 0.4)}")
"""
    )


def test_a_model_that_is_still_on_the_cpu_is_refused():
    run_code(
        LIMITED
        + NET
        + """
from gpuscope.errors import InvalidArgument
try:
    find_max_batch_size(model.cpu(), (3, 128, 128))
except InvalidArgument as error:
    assert "fn_or_model is on the CPU" in str(error)
else:
    raise AssertionError("not refused")
assert find_max_batch_size(model, (3, 128, 128), device="cuda").limited_by == "memory"
"""
    )


def test_a_model_without_parameters_is_tried_on_the_gpu():
    run_code(
        LIMITED
        + """
found = find_max_batch_size(torch.nn.Tanh(), (1 << 20,))
print(found.report())
assert found.limited_by == "memory" and found.bytes_per_sample >= 4 << 20
"""
    )
