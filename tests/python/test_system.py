# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.machines import GPU, WITH_GPU, WITHOUT_GPU, root_of
from gpuscope import _core
from gpuscope.errors import NotAvailable
from gpuscope.system import Check, Environment, environment, judge


def check(found: Environment, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


def look(core, root: Path = Path("/nowhere"), torch_profiler: str = "absent", **variables: str) -> Environment:
    return judge(core, torch_profiler=torch_profiler, root=root, variables=variables)


def test_cupti_is_live_on_a_whole_installation():
    found = look(WITH_GPU)
    assert (found.tier, found.tier_reason) == ("cupti", "")
    assert not [check for check in found.checks if check.ok is False]


def test_devices_are_described():
    (device,) = look(WITH_GPU).devices
    assert {name: getattr(device, name) for name in GPU} == GPU


def test_a_machine_without_gpu_has_nothing_to_fix():
    found = look(WITHOUT_GPU)
    assert (found.tier, found.gpu_present) == ("cpu", False)
    assert not [check for check in found.checks if check.ok is False]


def test_missing_libcupti_leaves_cuda_events_and_names_the_wheel_of_the_drivers_cuda():
    core = {**WITH_GPU, "cuda_version": "12.4", "cupti_path": None, "cupti_version": None, "cupti_error": "not found"}
    found = look(core)
    assert (found.tier, check(found, "CUPTI").fix) == ("events", "pip install nvidia-cuda-cupti-cu12")


def test_an_old_libcupti_is_refused_by_its_release():
    found = look({**WITH_GPU, "cupti_version": 18})
    assert found.tier == "events"
    assert "11.8" in check(found, "CUPTI").found
    assert "12.0" in check(found, "CUPTI").why


def test_a_libcupti_newer_than_the_driver_is_refused():
    found = look({**WITH_GPU, "cuda_version": "12.8", "cupti_version": 130000})
    assert found.tier == "events"
    assert check(found, "CUPTI").fix == "pip install nvidia-cuda-cupti-cu12"


def test_two_libcuptis_in_one_process_are_refused():
    found = look({**WITH_GPU, "cupti_loaded": ["/a/libcupti.so.12", "/b/libcupti.so.13"]})
    assert found.tier == "events"
    assert "/a/libcupti.so.12, /b/libcupti.so.13" in check(found, "CUPTI").found


@pytest.mark.parametrize(
    ("number", "release"), [(19, "12.0"), (28, "12.9"), (130000, "13.0"), (130401, "13.4"), (99, "interface 99")]
)
def test_cupti_versions_read_as_cuda_releases(number: int, release: str):
    assert look({**WITH_GPU, "cupti_version": number}).cupti_version == release


def test_another_tool_is_named_with_the_variable_to_unset():
    found = look({**WITH_GPU, "injection": ["CUDA_INJECTION64_PATH=/opt/nsys/libToolsInjection64.so"]})
    assert found.tier == "events"
    assert "nsys" in found.tier_reason
    assert check(found, "other tools").fix == "unset CUDA_INJECTION64_PATH"


def test_a_recording_torch_profiler_takes_cupti():
    found = look(WITH_GPU, torch_profiler="active")
    assert (found.tier, check(found, "torch.profiler").ok) == ("events", False)


def test_an_idle_torch_profiler_is_no_obstacle():
    assert look(WITH_GPU, torch_profiler="idle").tier == "cupti"


def test_a_forked_child_sees_only_the_cpu():
    found = look({**WITH_GPU, "forked": True})
    assert (found.tier, check(found, "process").ok) == ("cpu", False)


def test_restricted_counters_do_not_matter_to_tracing():
    found = look({**WITH_GPU, "profiling_admin_only": True})
    assert (found.tier, check(found, "counters").ok) == ("cupti", None)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in check(found, "counters").fix


def test_a_gpu_on_the_bus_without_a_driver_is_noticed(tmp_path: Path):
    found = look(WITHOUT_GPU, root=root_of(tmp_path, pci=("0x10de", "0x030200")))
    assert found.gpu_present
    assert check(found, "driver").fix == "install the NVIDIA driver"


def test_other_makers_and_other_devices_are_no_gpu(tmp_path: Path):
    assert not look(WITHOUT_GPU, root=root_of(tmp_path / "amd", pci=("0x1002", "0x030000"))).gpu_present
    assert not look(WITHOUT_GPU, root=root_of(tmp_path / "audio", pci=("0x10de", "0x040300"))).gpu_present


def test_a_container_started_without_its_gpu_is_told_apart(tmp_path: Path):
    root = root_of(tmp_path, pci=("0x10de", "0x030200"), module=True)
    assert "docker run --gpus all" in check(look(WITHOUT_GPU, root=root), "driver").fix
    with_library = {**WITHOUT_GPU, "cuda_path": "/lib/libcuda.so.1", "cuda_error": "CUDA_ERROR_NO_DEVICE"}
    found = check(look(with_library, root=root), "driver")
    assert "/dev/nvidia0" in found.found
    assert "docker run --gpus all" in found.fix


def test_hidden_devices_are_blamed_on_the_variable(tmp_path: Path):
    root = root_of(tmp_path, pci=("0x10de", "0x030200"), device_file=True)
    core = {**WITHOUT_GPU, "cuda_path": "/lib/libcuda.so.1", "cuda_error": "CUDA_ERROR_NO_DEVICE"}
    assert check(look(core, root=root, CUDA_VISIBLE_DEVICES=""), "driver").fix == "unset CUDA_VISIBLE_DEVICES"


def test_every_failed_check_says_how_to_fix_it(tmp_path: Path):
    broken = {
        **WITH_GPU,
        "cupti_path": None,
        "cupti_error": "not found",
        "injection": ["/opt/ncu/libcuda-injection.so"],
        "nvml_error": "not found",
        "forked": True,
    }
    failed = [check for check in look(broken, torch_profiler="active").checks if check.ok is False]
    assert len(failed) == 5
    assert all(check.fix for check in failed)


def test_nothing_known_is_an_answer_too():
    assert look({}).tier == "cpu"


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch):
    def fail():
        raise RuntimeError("no such luck")

    monkeypatch.setattr(_core, "environment", fail, raising=False)
    assert "no such luck" in check(environment(), "CUPTI").found


def test_frameworks_are_found_without_importing_them(tmp_path: Path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    info = tmp_path / "torch-2.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    code = "from gpuscope import environment as e; print([f for f in e().frameworks if f.name == 'torch'])"
    path = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path, check=True)
    assert done.stdout == "[Framework(name='torch', version='2.9.1', imported=False)]\n"


def test_the_environment_is_text_and_json():
    found = look(WITH_GPU)
    assert str(found).splitlines()[1:3] == [
        "GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB",
        "driver 580.159.04, CUDA 13.0, CUPTI 13.0",
    ]
    assert found.to_dict()["conditions"]["driver"] == "580.159.04"


def test_clocks_and_limits_are_read_without_making_a_context(monkeypatch):
    state = {"sm_hz": 1.2e9, "memory_hz": 2.6e9, "power_limit_w": 700.0, "why": ""}
    monkeypatch.setattr(_core, "environment", lambda: WITH_GPU)
    monkeypatch.setattr(_core, "clock_state", lambda device=0: state)
    monkeypatch.setattr(_core, "device_limits", lambda device=0: {"sm_hz_max": 1.98e9})
    (device,) = environment().devices
    assert str(device).endswith("SM 1200 of 1980 MHz, memory 2600 MHz, power limit 700 W")


def test_a_gpu_whose_clocks_cannot_be_read_says_why(monkeypatch):
    def fail(device=0):
        raise NotAvailable("no such GPU")

    monkeypatch.setattr(_core, "environment", lambda: WITH_GPU)
    monkeypatch.setattr(_core, "device_limits", fail)
    (device,) = environment().devices
    assert (device.sm_hz, "no such GPU" in device.why) == (None, True)
