# SPDX-License-Identifier: Apache-2.0
"""The names that torch.profiler had before devices were more than CUDA's."""

from __future__ import annotations

from typing import Protocol


class DeviceTimed(Protocol):
    """Anything with the device times (us) and memory (bytes) of torch.profiler."""

    @property
    def device_time(self) -> float:
        """Inclusive, per event."""

    @property
    def device_time_total(self) -> float:
        """Inclusive."""

    @property
    def self_device_time_total(self) -> float:
        """Exclusive."""

    @property
    def device_memory_usage(self) -> int:
        """Inclusive, in bytes."""

    @property
    def self_device_memory_usage(self) -> int:
        """Exclusive, in bytes."""


class OldNames:
    """Gives a class with device times and memory their old names too."""

    __slots__ = ()

    @property
    def cuda_time(self: DeviceTimed) -> float:
        """``device_time`` under its old name."""
        return self.device_time

    @property
    def cuda_time_total(self: DeviceTimed) -> float:
        """``device_time_total`` under its old name."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self: DeviceTimed) -> float:
        """``self_device_time_total`` under its old name."""
        return self.self_device_time_total

    @property
    def cuda_memory_usage(self: DeviceTimed) -> int:
        """``device_memory_usage`` under its old name."""
        return self.device_memory_usage

    @property
    def self_cuda_memory_usage(self: DeviceTimed) -> int:
        """``self_device_memory_usage`` under its old name."""
        return self.self_device_memory_usage
