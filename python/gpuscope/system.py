# SPDX-License-Identifier: Apache-2.0
"""Checks the requirements of a profiler on this machine and in this process, and names fixes."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuscope import _core
from gpuscope.conditions import Conditions
from gpuscope.errors import GpuscopeError
from gpuscope.results import Result, plain_fields
from gpuscope.text import one_line
from gpuscope.units import format_bytes

Tier = Literal["cupti", "cupti-shared", "events", "cpu"]

# The import name of each framework and the distributions that may provide it.
_FRAMEWORKS = (
    ("torch", ("torch",)),
    ("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")),
    ("jax", ("jax",)),
    ("numba", ("numba",)),
    ("triton", ("triton", "pytorch-triton")),
)

# Up to CUDA 12.9 CUPTI counted its interface versions (cupti_version.h); since then they read xxyyzz.
_CUPTI_RELEASES = {
    18: "11.8",
    19: "12.0",
    20: "12.2",
    21: "12.3",
    22: "12.4",
    23: "12.5",
    24: "12.6",
    25: "12.7",
    26: "12.8",
    27: "12.9",
    28: "12.9",
}
_OLDEST_CUPTI = 19

_START_WITH_GPUS = "start the container with its GPUs: docker run --gpus all ..."


@dataclass(frozen=True)
class Device:
    """One GPU that CUDA shows to this process. Values that NVML does not report are None.

    Attributes:
        memory_bytes: total device memory.
        capability: compute capability, as ``"9.0"``.
        sm_hz: clock of the multiprocessors now; it is lower while they are idle.
        sm_hz_max: their highest clock.
        memory_hz: clock of the memory now.
        power_limit_w: watts at which the board lowers its clocks.
        why: why clocks or limits are None; empty if none is.
    """

    ordinal: int
    name: str
    uuid: str
    memory_bytes: int
    multiprocessors: int
    capability: str
    sm_hz: float | None = None
    sm_hz_max: float | None = None
    memory_hz: float | None = None
    power_limit_w: float | None = None
    why: str = ""

    def __str__(self) -> str:
        parts = [f"GPU {self.ordinal}: {self.name}", format_bytes(self.memory_bytes)]
        if self.sm_hz is not None:
            most = f" of {self.sm_hz_max / 1e6:.0f}" if self.sm_hz_max else ""
            parts.append(f"SM {self.sm_hz / 1e6:.0f}{most} MHz")
        parts += [f"memory {self.memory_hz / 1e6:.0f} MHz"] if self.memory_hz is not None else []
        parts += [f"power limit {self.power_limit_w:.0f} W"] if self.power_limit_w is not None else []
        return ", ".join([*parts, *([f"the rest is not known: {self.why}"] if self.why else [])])


@dataclass(frozen=True)
class Framework:
    """A GPU framework that Python can import here, and whether this process has done so."""

    name: str
    version: str | None
    imported: bool


@dataclass(frozen=True)
class Check:
    """One requirement of profiling.

    Attributes:
        ok: True: works. False: prevents something. None: makes no difference here.
        found: a description of the state.
        why: the consequence; empty when ``ok``.
        fix: the one step that would change it; empty when there is nothing to do.
    """

    name: str
    ok: bool | None
    found: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, repr=False)
class Environment(Result):
    """Facts about this machine and process that matter for measurements. ``print`` shows them.

    Attributes:
        cuda_version: the newest CUDA that the driver supports, as ``"13.0"``.
        cupti_version: the CUDA release of the CUPTI library found, as ``"13.0"``.
        torch_profiler: ``"active"`` while torch.profiler records and so owns CUPTI, ``"idle"`` when torch is imported
            (once it has recorded it keeps CUPTI's subscription), ``"absent"`` otherwise.
        gpu_present: whether the machine has an NVIDIA GPU, usable or not.
        tier: how a profile started now would measure: CUPTI tracing, CUDA events or CPU only.
        tier_reason: why it is not CUPTI; empty when it is.
        checks: all checks.
        conditions: versions and this thread's torch settings, with the first GPU.
    """

    gpuscope_version: str
    python_version: str
    platform: str
    driver_version: str | None
    cuda_version: str | None
    cupti_version: str | None
    cupti_path: str | None
    devices: tuple[Device, ...]
    frameworks: tuple[Framework, ...]
    torch_profiler: Literal["active", "idle", "absent"]
    gpu_present: bool
    tier: Tier
    tier_reason: str
    checks: tuple[Check, ...]
    conditions: Conditions

    def __str__(self) -> str:
        versions = (("driver", self.driver_version), ("CUDA", self.cuda_version), ("CUPTI", self.cupti_version))
        frameworks = [f"{each.name} {each.version or ''}{' (imported)' * each.imported}" for each in self.frameworks]
        lines = [f"gpuscope {self.gpuscope_version}, Python {self.python_version}, {self.platform}"]
        lines += [str(device) for device in self.devices] or ["no NVIDIA GPU that CUDA shows"]
        lines += [", ".join(f"{name} {version}" for name, version in versions if version)]
        lines += [f"frameworks: {', '.join(frameworks)}" if frameworks else ""]
        lines += [f"torch: {self.conditions.settings or self.conditions.absent['cudnn_benchmark']}"]
        lines += [f"tracing: {self.tier}{f' ({self.tier_reason})' if self.tier_reason else ''}"]
        return "\n".join(one_line(line) for line in lines if line)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return plain_fields(self)


def bytecode_version() -> str:
    """The Python version that decides the bytecode of a source, as "cpython 3.12"."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def environment() -> Environment:
    """Looks at driver, CUDA, CUPTI, NVML, other tools and frameworks.

    Creates no CUDA context, imports no framework and never raises: a value that cannot be read becomes a failed check.
    """
    core: Mapping[str, Any]
    try:
        core = _core.environment()
        core = {**core, "devices": [{**each, **_clocks(each["ordinal"])} for each in core["devices"]]}
    except Exception as error:
        core = {"cuda_error": f"looking for it failed: {error}", "cupti_error": f"looking for it failed: {error}"}
    return judge(core, torch_profiler=_torch_profiler(), root=Path("/"), variables=os.environ)


def judge(core: Mapping[str, Any], *, torch_profiler: str, root: Path, variables: Mapping[str, str]) -> Environment:
    """The checks and the tier from ``_core.environment()``; `root` has ``/dev``, ``/proc``, ``/sys``."""
    devices = tuple(Device(**facts) for facts in core.get("devices") or ())
    present = bool(devices) or _gpu_on_machine(root)
    driver = _check_driver(core, devices, present=present, root=root, variables=variables)
    cupti = _check_cupti(core, present=present)
    tools = _check_tools(core)
    torch = _check_torch_profiler(torch_profiler)
    process = _check_process(core)
    tier, reason = _tier(
        ("cpu", process), ("cpu", driver), ("events", cupti), ("events", tools), ("events", torch), devices=devices
    )
    return Environment(
        gpuscope_version=_core.__version__,
        python_version=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        driver_version=core.get("driver_version"),
        cuda_version=core.get("cuda_version"),
        cupti_version=_cupti_release(core.get("cupti_version")),
        cupti_path=core.get("cupti_path"),
        devices=devices,
        frameworks=_frameworks(),
        torch_profiler=torch_profiler,  # type: ignore[arg-type]
        gpu_present=present,
        tier=tier,
        tier_reason=reason,
        checks=(
            driver,
            cupti,
            tools,
            torch,
            process,
            _check_nvml(core, present=present),
            _check_nvtx(core),
            _check_counters(core),
        ),
        conditions=Conditions.now(0 if devices else None, core=core),
    )


def _clocks(ordinal: int) -> dict[str, Any]:
    """A GPU's clocks and their limits by NVML; makes no CUDA context."""
    try:
        state = _core.clock_state(ordinal)
        known = {name: state.get(name) for name in ("sm_hz", "memory_hz", "power_limit_w", "why")}
        return known | {"sm_hz_max": _core.device_limits(ordinal).get("sm_hz_max")}
    except GpuscopeError as error:
        return {"why": str(error)}


def _tier(*obstacles: tuple[Tier, Check], devices: tuple[Device, ...]) -> tuple[Tier, str]:
    for tier, check in obstacles:
        if check.ok is False:
            return tier, check.found
    if not devices:
        return "cpu", "this machine has no NVIDIA GPU"
    return "cupti", ""


def _check_driver(
    core: Mapping[str, Any], devices: tuple[Device, ...], *, present: bool, root: Path, variables: Mapping[str, str]
) -> Check:
    error = core.get("cuda_error") or ""
    if devices:
        return Check("driver", True, f"{core.get('driver_version') or 'unknown version'}, CUDA {core['cuda_version']}")
    if not present:
        return Check("driver", None, "this machine has no NVIDIA GPU")
    module_loaded = (root / "proc/driver/nvidia/version").exists()
    if not core.get("cuda_path"):
        why = "the machine has a GPU, but libcuda.so.1 was not found"
        return Check("driver", False, why, "", _START_WITH_GPUS if module_loaded else "install the NVIDIA driver")
    hidden = variables.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        found = f"CUDA_VISIBLE_DEVICES={hidden!r} leaves no GPU visible"
        return Check("driver", False, found, error, "unset CUDA_VISIBLE_DEVICES")
    if not (root / "dev/nvidia0").exists():
        return Check("driver", False, "the device file /dev/nvidia0 is missing", error, _START_WITH_GPUS)
    fix = "look at nvidia-smi; after a driver update, restart the machine"
    return Check("driver", False, error or "CUDA shows no device", "", fix)


def _check_cupti(core: Mapping[str, Any], *, present: bool) -> Check:
    version: int | None = core.get("cupti_version")
    path: str = core.get("cupti_path") or ""
    driver_major = _major(core.get("cuda_version")) or 13
    install = "pip install " + ("nvidia-cuda-cupti-cu12" if driver_major <= 12 else "'nvidia-cuda-cupti>=13,<14'")
    loaded = core.get("cupti_loaded") or []
    error = core.get("cupti_error") or ("" if path else "libcupti was not found")
    if not present:  # without a driver libcupti does not even return its version
        found, why, fix = (path, "", "") if path else (error, "needed where there is a GPU", install)
        return Check("CUPTI", None, found, why, fix)
    if error:
        return Check("CUPTI", False, error, "no kernel can be traced", install)
    release = _cupti_release(version) or "of unknown version"
    if version is not None and version < _OLDEST_CUPTI:
        return Check("CUPTI", False, f"{release}, {path}", "gpuscope needs CUPTI of CUDA 12.0 or newer", install)
    if core.get("cuda_version") and (_major(release) or 0) > driver_major:
        found = f"CUPTI {release} is newer than the driver, which supports CUDA {core['cuda_version']}"
        return Check("CUPTI", False, found, path, install)
    if len(loaded) > 1:
        found = f"{len(loaded)} libraries in one process: {', '.join(loaded)}"
        return Check("CUPTI", False, found, "two of them cannot share a driver", "keep one CUDA version of packages")
    return Check("CUPTI", True, f"{release}, {path}")


def _check_tools(core: Mapping[str, Any]) -> Check:
    tools = list(core.get("injection") or ())
    if not tools:
        return Check("other tools", True, "none")
    variables = [tool.partition("=")[0] for tool in tools if "=" in tool]
    fix = f"unset {' '.join(variables)}" if variables else "run the program outside that tool"
    return Check("other tools", False, ", ".join(tools), "only one tool at a time can trace a process", fix)


def _check_torch_profiler(state: str) -> Check:
    if state == "active":
        why = "it owns CUPTI while it records"
        return Check("torch.profiler", False, "recording", why, "stop it before gpuscope starts")
    return Check("torch.profiler", True, "idle" if state == "idle" else "not in use")


def _check_process(core: Mapping[str, Any]) -> Check:
    if core.get("forked"):
        why = "CUDA and CUPTI do not survive a fork"
        return Check("process", False, "forked from a profiled process", why, "start it with the spawn method")
    return Check("process", True, "not forked")


def _check_nvml(core: Mapping[str, Any], *, present: bool) -> Check:
    if core.get("nvml_path") and not core.get("nvml_error"):
        return Check("NVML", True, core["nvml_path"])
    error = core.get("nvml_error") or "libnvidia-ml.so.1 was not found"
    if not present:
        return Check("NVML", None, error)
    return Check("NVML", False, error, "no clocks, power and utilization", "install the NVIDIA driver's NVML library")


def _check_nvtx(core: Mapping[str, Any]) -> Check:
    libraries = core.get("nvtx_libraries") or ()
    if libraries:
        return Check("NVTX", True, f"ranges come from {', '.join(sorted({Path(name).name for name in libraries}))}")
    why = "a library looks for its tool once, at its first NVTX call"
    fix = "make the profiler before that call, or start the program with gpuscope run"
    return Check("NVTX", None, "no library has sent ranges", why, fix)


def _check_counters(core: Mapping[str, Any]) -> Check:
    restricted = core.get("profiling_admin_only")
    if restricted is None:
        return Check("counters", None, "not known without a driver")
    if not restricted:
        return Check("counters", True, "open to every user")
    why = "hardware counters need it; tracing does not"
    fix = "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia kernel module"
    return Check("counters", None, "administrators only", why, fix)


def _gpu_on_machine(root: Path) -> bool:
    """Whether a GPU (display or 3D controller of vendor 0x10de) is plugged in, without NVIDIA software."""
    if (root / "dev/nvidia0").exists():
        return True
    try:
        return any(
            (slot / "vendor").read_text().strip() == "0x10de" and (slot / "class").read_text().startswith("0x03")
            for slot in (root / "sys/bus/pci/devices").iterdir()
        )
    except OSError:
        return False


def _cupti_release(version: int | None) -> str | None:
    if version is None:
        return None
    if version >= 10000:
        return f"{version // 10000}.{version // 100 % 100}"
    return _CUPTI_RELEASES.get(version, f"interface {version}")


def _major(version: str | None) -> int | None:
    head = (version or "").partition(".")[0]
    return int(head) if head.isdigit() else None


def _frameworks() -> tuple[Framework, ...]:
    found = []
    for name, distributions in _FRAMEWORKS:
        imported = name in sys.modules
        if imported or _importable(name):
            found.append(Framework(name, _installed_version(distributions), imported))
    return tuple(found)


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _installed_version(distributions: tuple[str, ...]) -> str | None:
    from importlib import metadata  # slow to import

    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _torch_profiler() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return "absent"
    try:
        return "active" if torch.autograd._profiler_enabled() else "idle"
    except Exception:  # torch half imported, or built without its profiler
        return "idle"
