# SPDX-License-Identifier: Apache-2.0
"""The conditions of a measurement: machine, versions, torch settings and workload."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gpuscope import _core
from gpuscope.text import one_line

_PYTHON = ".".join(map(str, sys.version_info[:3]))
_WORKLOAD = ("batch_size", "dtype", "mode", "workers")
RECORDED = {f"conditions.{name}": name for name in ("python", "torch", "cudnn_benchmark", "cudnn_tf32", "matmul_tf32")}
"""Keys of `recorded`, and the attributes of `Conditions` that they hold."""


def _autocast(torch: Any) -> str:
    kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {type_name(torch.get_autocast_dtype(kind))}" for kind in kinds) or "off"


def _tf32(part: Any, legacy: Any) -> bool:
    """A switch of TF32. torch 2.9 renamed it; the old name raises once the new one was set."""
    return bool(part.fp32_precision == "tf32" if hasattr(part, "fp32_precision") else legacy.allow_tf32)


_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "cudnn_benchmark": lambda torch: bool(torch.backends.cudnn.benchmark),
    "cudnn_tf32": lambda torch: _tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn),
    "matmul_tf32": lambda torch: _tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul),
    "float32_matmul_precision": lambda torch: str(torch.get_float32_matmul_precision()),
    "deterministic": lambda torch: bool(torch.are_deterministic_algorithms_enabled()),
    "autocast": _autocast,
    "gradients": lambda torch: bool(torch.is_grad_enabled()),
}


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement. Values that are not known are None.

    Attributes:
        gpu: name of the GPU that was used; None if none was.
        driver: its version.
        cuda: the newest CUDA that the driver supports.
        python: its version.
        torch: its version, if imported.
        power_limit_w: of the GPU, in watts.
        cudnn_benchmark: cuDNN times its algorithms and uses the fastest.
        cudnn_tf32: float32 convolutions may use TF32.
        matmul_tf32: float32 matrix products on the GPU may use TF32.
        float32_matmul_precision: "highest", "high" or "medium".
        deterministic: torch allows only deterministic algorithms.
        autocast: "off", or device kind and type, as "cuda bfloat16".
        gradients: torch records operators for a backward pass.
        batch_size: samples in a batch.
        dtype: of a module's parameters, else of the input, as "float32".
        mode: "train" or "eval", of a module.
        workers: worker processes of the loader.
        absent: why a value is None, by its name.
    """

    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None
    python: str | None = None
    torch: str | None = None
    power_limit_w: float | None = None
    cudnn_benchmark: bool | None = None
    cudnn_tf32: bool | None = None
    matmul_tf32: bool | None = None
    float32_matmul_precision: str | None = None
    deterministic: bool | None = None
    autocast: str | None = None
    gradients: bool | None = None
    batch_size: int | None = None
    dtype: str | None = None
    mode: str | None = None
    workers: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def now(device: int | None = None, core: Mapping[str, Any] | None = None, **workload: Any) -> Conditions:
        """The conditions of this moment and thread; creates no CUDA context and imports no framework.

        Args:
            device: ordinal of the GPU that was used; None if none was.
            core: the result of ``_core.environment()``; None calls it.
            workload: those of batch_size, dtype, mode and workers that the measurement has.
        """
        core, torch = core or _core.environment(), sys.modules.get("torch")
        state: Mapping[str, Any] = {"why": "no GPU was used"} if device is None else _core.clock_state(device)
        values, absent = _settings(torch)
        values |= workload | {
            "gpu": next((each["name"] for each in core.get("devices") or () if each["ordinal"] == device), None),
            "driver": core.get("driver_version"),
            "cuda": core.get("cuda_version"),
            "python": _PYTHON,
            "torch": _version(torch),
            "power_limit_w": state.get("power_limit_w"),
        }
        absent |= dict.fromkeys(_WORKLOAD, "no part of this measurement") | dict.fromkeys(workload, "not known")
        absent |= {"gpu": state["why"], "power_limit_w": state["why"], "torch": "torch is not imported"}
        absent |= {"driver": core.get("nvml_error") or "", "cuda": core.get("cuda_error") or ""}
        absent = {name: absent.get(name) or "not known" for name in _NAMES if values.get(name) is None}
        return Conditions(**values, absent=absent)

    @staticmethod
    def of(values: Mapping[str, Any]) -> Conditions:
        """The conditions stored in a file."""
        return Conditions(**{each.name: values[each.name] for each in fields(Conditions) if each.name in values})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**vars(self), "absent": dict(self.absent)}

    def __str__(self) -> str:
        return "\n".join(f"{name}: {_shown(value)}" for name in _NAMES if (value := getattr(self, name)) is not None)

    @property
    def line(self) -> str:
        """One line: "conditions: batch 32, float32, 4 workers, NVIDIA H100, TF32 off".

        Empty if only the CPU is known. The mode is not included. Settings of the GPU are shown if it was used.
        """
        parts = [f"batch {self.batch_size}"] if self.batch_size is not None else []
        parts += [self.dtype] if self.dtype else []
        parts += [f"{self.workers} worker{'s' * (self.workers != 1)}"] if self.workers is not None else []
        parts.append(self.gpu or "CPU")
        if self.gpu and self.cudnn_benchmark is not None:
            parts.append(f"cudnn.benchmark {_shown(self.cudnn_benchmark)}")
        if self.gpu and self.matmul_tf32 is not None:
            some = "in matrix products only" if self.matmul_tf32 else "in cuDNN only"
            parts.append(f"TF32 {_shown(self.matmul_tf32) if self.matmul_tf32 == self.cudnn_tf32 else some}")
        parts += [f"autocast {self.autocast}"] if self.autocast not in (None, "off") else []
        parts += ["deterministic algorithms"] if self.deterministic else []
        return f"conditions: {', '.join(parts)}" if len(parts) > 1 else ""

    @property
    def settings(self) -> str:
        """The settings of torch in one line; empty if torch is not imported."""
        known = {name: getattr(self, name) for name in _SETTINGS}
        return ", ".join(f"{name} {_shown(value)}" for name, value in known.items() if value is not None)

    def differences(self, after: Conditions) -> str:
        """One line of the values that are known on both sides and differ; empty if none do."""
        pairs = {name: (getattr(self, name), getattr(after, name)) for name in _NAMES}
        if self.python and after.python:
            pairs["gpu"] = (self.gpu or "none", after.gpu or "none")
        found = [
            f"{name} {_shown(before)} before, {_shown(now)} after"
            for name, (before, now) in pairs.items()
            if before != now and before is not None and now is not None
        ]
        return f"the conditions differ: {'; '.join(found)}" if found else ""


UNKNOWN = Conditions()
_NAMES = tuple(each.name for each in fields(Conditions) if each.name != "absent")


def recorded() -> dict[str, str]:
    """The conditions that a recording stores, as text by the keys of `RECORDED`."""
    torch = sys.modules.get("torch")
    values = _settings(torch)[0] | {"python": _PYTHON, "torch": _version(torch)}
    return {key: _shown(values[name]) for key, name in RECORDED.items() if values.get(name) is not None}


def type_name(dtype: object) -> str:
    """The name of any library's number type: "float32"."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def _version(torch: Any) -> str | None:
    return str(torch.__version__) if hasattr(torch, "__version__") else None


def _settings(torch: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The torch settings of the calling thread, and why some are absent."""
    if torch is None:
        return {}, dict.fromkeys(_SETTINGS, "torch is not imported")
    values, absent = {}, {}
    for name, read in _SETTINGS.items():
        try:
            values[name] = read(torch)
        except Exception as error:  # torch is of an older version, or only partly imported
            absent[name] = f"torch does not say: {one_line(str(error))[:100]}"
    return values, absent


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else one_line(str(value))
