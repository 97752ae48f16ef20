# SPDX-License-Identifier: Apache-2.0
"""torch's operators beside torch.profiler's: the same names, shapes, GPU work, memory and floating-point operations."""

from __future__ import annotations

from statistics import median

import pytest
from child import facts

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

MEASURED = ("aten::mm", "aten::addmm", "aten::conv2d")
SHARE = 0.02  # an operator with less of the GPU's time is not compared by time


@pytest.fixture(params=["resnet50", "gpt2", "mixed"])
def training(request):
    return facts("compare_training.py", request.param)


@pytest.fixture(params=["resnet50", "gpt2"])
def model(request):
    return facts("compare_training.py", request.param)


def test_operators_have_the_names_counts_and_shapes_of_torch_profiler(training):
    assert (training["missing"], training["extra"]) == ([], [])
    assert training["operators"]["ours"] == training["operators"]["theirs"] > 100


def test_the_table_by_shapes_reads_as_torch_profilers(training):
    assert training["table"]["ours"] == training["table"]["theirs"] != []


def test_gpu_work_lies_in_the_operators_that_torch_profiler_puts_it_in(training):
    assert training["work by operator"]["ours"] == training["work by operator"]["theirs"] != {}
    assert training["outside"] == 0


def test_the_gpu_time_is_that_of_torch_profiler(model):
    ours, theirs = (median(model["device us"][who]) for who in ("ours", "theirs"))
    assert ours == pytest.approx(theirs, rel=0.01)


def test_the_gpu_time_of_each_operator_is_that_of_torch_profiler(model):
    spent = model["device us by operator"]
    total = median(model["device us"]["theirs"])
    for name in spent["theirs"][0]:
        ours, theirs = (median(turn.get(name, 0.0) for turn in spent[who]) for who in ("ours", "theirs"))
        if theirs > SHARE * total:
            assert ours == pytest.approx(theirs, rel=0.05), name


def test_nothing_of_the_training_is_lost(training):
    assert training["audit"]["complete"], training["audit"]["text"]


def test_optimizer_steps_are_ranges(training):
    assert training["ranges"]["Optimizer.step#AdamW.step"] > 0


def test_each_operator_takes_the_device_memory_that_torch_profiler_says(model):
    assert model["self_device_memory_usage"]["ours"] == model["self_device_memory_usage"]["theirs"] != {}


def test_each_operator_takes_the_host_memory_that_torch_profiler_says(model):
    assert model["self_cpu_memory_usage"]["ours"] == model["self_cpu_memory_usage"]["theirs"]


@pytest.mark.parametrize("name", MEASURED)
def test_floating_point_operations_are_counted_as_torch_profiler_does(model, name):
    theirs = model["flops"]["theirs"].get(name)
    if theirs is None:
        pytest.skip(f"this model runs no {name}")
    assert model["flops"]["ours"].get(name) == theirs


def test_kernels_lie_in_the_modules_of_a_resnet():
    modules = facts("compare_training.py", "resnet50")["modules"]
    assert {"ResNet", "ResNet.layer1", "ResNet.layer1.0", "ResNet.layer1.0.conv1"} <= set(modules["seen"])
    assert {"ResNet.layer1.0.conv1", "ResNet.layer4.2.bn3", "ResNet.fc"} <= set(modules["launching"])
