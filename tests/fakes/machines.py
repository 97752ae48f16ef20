# SPDX-License-Identifier: Apache-2.0
"""What the core finds on machines of several kinds, and the parts of their file systems that tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuscope import _core

GPU: dict[str, Any] = {
    "ordinal": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-00000000-0000-0000-0000-000000000001",
    "memory_bytes": 85_520_809_984,
    "multiprocessors": 132,
    "capability": "9.0",
}

WITH_GPU: dict[str, Any] = {
    "driver_version": "580.159.04",
    "cuda_version": "13.0",
    "cuda_path": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "cuda_error": "",
    "cupti_path": "/site-packages/nvidia/cu13/lib/libcupti.so.13",
    "cupti_version": 130001,
    "cupti_error": "",
    "cupti_loaded": ["/site-packages/nvidia/cu13/lib/libcupti.so.13"],
    "nvml_path": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "nvml_error": "",
    "devices": [GPU],
    "profiling_admin_only": False,
    "injection": [],
    "forked": False,
}

WITHOUT_GPU: dict[str, Any] = {
    "driver_version": None,
    "cuda_version": None,
    "cuda_path": None,
    "cuda_error": "libcuda.so.1 was not found",
    "cupti_path": None,
    "cupti_version": None,
    "cupti_error": "libcupti was not found",
    "cupti_loaded": [],
    "nvml_path": None,
    "nvml_error": "libnvidia-ml.so.1 was not found",
    "devices": [],
    "profiling_admin_only": None,
    "injection": [],
    "forked": False,
}


def root_of(
    folder: Path, *, pci: tuple[str, str] | None = None, module: bool = False, device_file: bool = False
) -> Path:
    """A file system with a PCI device of some vendor and class, the driver's kernel module, or its device file."""
    if pci is not None:
        slot = folder / "sys/bus/pci/devices/0000:01:00.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(f"{pci[0]}\n")
        (slot / "class").write_text(f"{pci[1]}\n")
    if module:
        (folder / "proc/driver/nvidia").mkdir(parents=True)
        (folder / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module\n")
    if device_file:
        (folder / "dev").mkdir(parents=True)
        (folder / "dev/nvidia0").touch()
    return folder


FIGURES = {
    "busy_ratio": 0.99,
    "memory_busy_ratio": 0.25,
    "memory_used_bytes": 61 << 30,
    "memory_free_bytes": 18 << 30,
    "memory_reserved_bytes": 1 << 29,
    "memory_total_bytes": 80 << 30,
    "power_w": 612.4,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "temperature_c": 67.0,
    "sm_hz": 1.755e9,
    "sm_max_hz": 1.98e9,
    "pcie_width": 16,
    "pcie_width_max": 16,
}
OTHERS = [name for name in _core.GPU_FIGURES if name not in FIGURES]


XIDS = [(31, 2, 1_700_000_000_125_000_000), (79, 1, 1_700_000_003_500_000_000)]
COST = {  # of the core's sampler
    "rounds": 3,
    "skipped": 1,
    "dropped": 2,
    "cpu_ns": 10**9,
    "elapsed_ns": 500 * 10**9,
    "longest_ns": 10**6,
    "mean_ns": 30_000,
    "p99_ns": 90_000,
}
INSTANCES = [
    {
        "gpu_instance": 7 + number,
        "compute_instance": 0,
        "uuid": f"MIG-{number}",
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "memory_used_bytes": 3 << 30,
        "memory_total_bytes": 10 << 30,
        "figures": dict.fromkeys(_core.GPM_FIGURES) | {"sm_active_ratio": 0.25, "tensor_active_ratio": 0.125},
        "why": {"dram_bandwidth_ratio": "Not Supported"},
    }
    for number in range(2)
]


def gpu(index=0, *, why=None, **facts):
    """What the core says of a GPU; keywords replace its figures and facts."""
    figures = FIGURES | dict.fromkeys(OTHERS)
    figures |= {name: facts.pop(name) for name in [*facts] if name in figures}
    return {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "pci_address": f"00000000:0{index}:00.0",
        "figures": figures,
        "throttle_reasons": [],
        "throttle_faults": [],
        "throttled_s": {"sw_power_cap": 1.5},
        "mig": False,
        "instances": None,
        "xid_errors": [],
        "processes": [],
        "why": why or {},
    } | facts


def sample(facts, time_s=1e9, **changed):
    """What the core's sampler says of a GPU at a moment, or of the host where `facts` is None."""
    time_ns = round(time_s * 1e9)
    return {
        "time_ns": time_ns,
        "took_ns": 5000,
        "process_cpu_s": 1.5,
        "resident_bytes": 4096,
        "slow_time_ns": time_ns,
        "rare_time_ns": changed.get("slow_time_ns", time_ns),
        "host_time_ns": time_ns,
        "host": dict.fromkeys(_core.HOST_FIGURES) | {"why": {}},
        "gpu": facts,
    } | changed
