# SPDX-License-Identifier: Apache-2.0
"""The conditions that results carry, and how two of them differ."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fakes.machines import WITH_GPU
from gpuscope import _core
from gpuscope.conditions import RECORDED, Conditions, recorded


def torch_of(tf32="none", **settings):
    """A module with the settings of torch that are read, as of torch 2.9."""
    part = SimpleNamespace(fp32_precision=tf32)
    values = {"benchmark": False, "deterministic": False, "precision": "highest", "autocast": (), "gradients": True}
    values |= settings
    return SimpleNamespace(
        __version__="2.9.0",
        backends=SimpleNamespace(
            cudnn=SimpleNamespace(benchmark=values["benchmark"], conv=part), cuda=SimpleNamespace(matmul=part)
        ),
        get_float32_matmul_precision=lambda: values["precision"],
        are_deterministic_algorithms_enabled=lambda: values["deterministic"],
        is_autocast_enabled=lambda kind: kind in values["autocast"],
        get_autocast_dtype=lambda kind: "torch.bfloat16",
        is_grad_enabled=lambda: values["gradients"],
    )


@pytest.fixture
def machine(monkeypatch):
    """A machine with a GPU, and torch in the program."""
    monkeypatch.setattr(_core, "environment", lambda: WITH_GPU)
    monkeypatch.setattr(_core, "clock_state", lambda device=0: {"power_limit_w": 700.0, "why": ""})

    def with_torch(**settings):
        monkeypatch.setitem(sys.modules, "torch", torch_of(**settings))

    with_torch()
    return with_torch


def test_the_machine_and_the_settings_of_torch_are_read(machine):
    machine(benchmark=True, tf32="tf32", autocast=("cuda",), deterministic=True)
    found = Conditions.now(0)
    assert (found.gpu, found.driver, found.power_limit_w) == ("NVIDIA H100 80GB HBM3", "580.159.04", 700.0)
    assert (found.torch, found.cudnn_benchmark, found.cudnn_tf32, found.matmul_tf32) == ("2.9.0", True, True, True)
    assert (found.deterministic, found.autocast, found.float32_matmul_precision) == (True, "cuda bfloat16", "highest")


def test_each_value_that_is_absent_has_a_reason(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = Conditions.now(dtype=None)
    absent = {name for name, value in vars(found).items() if value is None}
    assert absent == set(found.absent)
    assert all(found.absent.values())
    assert found.absent["cudnn_benchmark"] == "torch is not imported"


def test_torch_is_not_imported_for_the_conditions():
    code = "import sys, gpuscope as gs; gs.environment(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_torch_that_does_not_know_a_setting_leaves_the_others(machine, monkeypatch):
    old = torch_of()
    del old.is_autocast_enabled
    monkeypatch.setitem(sys.modules, "torch", old)
    found = Conditions.now(0)
    assert found.autocast is None
    assert found.absent["autocast"].startswith("torch does not say")
    assert found.cudnn_benchmark is False


def test_tf32_of_an_older_torch_is_read_by_its_old_name(machine, monkeypatch):
    old = torch_of()
    old.backends = SimpleNamespace(
        cudnn=SimpleNamespace(benchmark=False, allow_tf32=True),
        cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)),
    )
    monkeypatch.setitem(sys.modules, "torch", old)
    assert Conditions.now(0).line.endswith("TF32 in cuDNN only")


def test_the_line_has_batch_type_workers_gpu_and_its_settings(machine):
    found = Conditions.now(0, batch_size=32, dtype="float32", workers=4)
    gpu = "NVIDIA H100 80GB HBM3, cudnn.benchmark off, TF32 off"
    assert found.line == f"conditions: batch 32, float32, 4 workers, {gpu}"


def test_the_line_of_work_on_the_cpu_has_no_settings_of_the_gpu(machine):
    assert Conditions.now(batch_size=32).line == "conditions: batch 32, CPU"


def test_there_is_no_line_where_only_the_cpu_is_known():
    assert Conditions.now().line == ""


def test_differences_are_named_in_one_line(machine):
    before = Conditions.now(0, batch_size=32)
    machine(benchmark=True)
    text = before.differences(Conditions.now(0, batch_size=64))
    assert text == "the conditions differ: cudnn_benchmark off before, on after; batch_size 32 before, 64 after"


def test_a_value_that_only_one_side_knows_is_no_difference(machine):
    after = Conditions.now(0)
    assert replace(after, cudnn_benchmark=None, driver=None).differences(after) == ""


def test_a_gpu_on_one_side_only_is_a_difference(machine):
    assert "gpu none before, NVIDIA H100 80GB HBM3 after" in Conditions.now().differences(Conditions.now(0))


def test_conditions_are_read_again_from_json(machine):
    found = Conditions.now(0, dtype="float16")
    assert Conditions.of(json.loads(json.dumps(vars(found)))) == found


def test_a_recording_keeps_the_settings_as_text(machine):
    machine(benchmark=True)
    found = recorded()
    assert set(found) == set(RECORDED)
    assert found["conditions.cudnn_benchmark"] == "on"
