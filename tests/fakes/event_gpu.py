# SPDX-License-Identifier: Apache-2.0
"""A GPU that does what the test says, in the place of `_core`'s events."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope import _core
from gpuscope.errors import CudaError, InvalidArgument
from gpuscope.timing import measurement


class FakeGpu:
    """Its clock stands still but for `work`; what is put on it is done at once unless `busy`."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000
        self.busy = False
        self.capturing: bool | set[int] = False  # every stream, or these handles
        self.broken = False
        self.answers = True
        self.asked = 0
        self.resets = 0
        self.waited = 0
        self.live = 0
        self.made: list[FakeEvent] = []  # the first few

    def work(self, seconds: float) -> None:
        """As if a kernel of so long had been launched and was done."""
        self.now_ns += round(seconds * 1e9)

    def check(self) -> None:
        if self.broken:
            raise CudaError("event_record failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)", "event_record", 700)

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
        gpu = self

        def event(device: int = 0, **options: bool) -> FakeEvent:
            gpu.check()
            return FakeEvent(gpu, device, options)

        event.from_ipc_handle = lambda device, handle: FakeEvent(gpu, device, {"timing": False})
        monkeypatch.setattr(_core, "Event", event)
        monkeypatch.setattr(_core, "find_device", lambda device=0: device)
        monkeypatch.setattr(_core, "stream_device", lambda stream: stream // 1000)
        monkeypatch.setattr(_core, "is_capturing", lambda stream, device: gpu.captures(stream))
        monkeypatch.setattr(_core, "synchronize", lambda device=0: gpu.wait(device))
        monkeypatch.setattr(_core, "synchronize_stream", lambda stream, device=0: gpu.wait(stream))
        monkeypatch.setattr(_core, "HostAnchors", lambda device: FakeAnchors(gpu, device))
        monkeypatch.setattr(measurement, "_anchors", measurement._Anchors())
        return self

    def captures(self, stream: int) -> bool:
        return self.capturing if isinstance(self.capturing, bool) else stream in self.capturing

    def wait(self, target: int) -> float:
        self.waited += 1
        return 0.25 + target


class FakeEvent:
    def __init__(self, gpu: FakeGpu, device: int, options: dict[str, bool]) -> None:
        self.gpu = gpu
        self.device = device
        self.options = options
        self.handle = 0xE0 + gpu.live
        self.at_ns: int | None = None
        self.streams: list[int] = []
        self.waits: list[tuple[int, int]] = []
        gpu.live += 1
        if len(gpu.made) < 4:
            gpu.made.append(self)

    def __del__(self) -> None:
        self.gpu.live -= 1

    def record(self, stream: int = 0, into_graphs: bool = True) -> bool:
        self.gpu.check()
        if not into_graphs and self.gpu.captures(stream):
            return False
        if stream // 1000 != self.device:
            raise InvalidArgument(f"stream is of device {stream // 1000}; this event is of device {self.device}")
        self.streams.append(stream)
        self.at_ns = self.gpu.now_ns
        return True

    def wait(self, stream: int = 0, device: int | None = None) -> None:
        self.waits.append((stream, self.device if device is None else device))

    def query(self) -> bool:
        self.gpu.check()
        return not self.gpu.busy

    def synchronize(self) -> float:
        self.gpu.check()
        self.gpu.waited += 1
        return 0.0

    def elapsed_time(self, end: Any) -> float:
        assert self.at_ns is not None
        return (end.at_ns - self.at_ns) / 1e6

    def ipc_handle(self) -> bytes:
        return bytes(64)


class FakeAnchors:
    def __init__(self, gpu: FakeGpu, device: int) -> None:
        self.gpu = gpu
        self.device = device
        self.resets = gpu.resets

    def was_reset(self) -> bool:
        return self.gpu.resets != self.resets

    def take(self, timeout_ns: int) -> tuple[FakeEvent, int, int] | None:
        self.gpu.asked += 1
        if not self.gpu.answers:
            return None
        event = FakeEvent(self.gpu, self.device, {})
        event.at_ns = self.gpu.now_ns
        return event, _core.monotonic_ns(), 4000
