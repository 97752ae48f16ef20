# SPDX-License-Identifier: Apache-2.0
"""A torch with a caching allocator on GPUs that are not there, and libraries beside it."""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from types import SimpleNamespace

from gpuscope import _core, devices
from gpuscope.errors import NotAvailable
from gpuscope.frameworks import torch_memory
from gpuscope.memory import allocators

SEGMENT = 1024  # what it reserves at a time


class FakeTorch:
    """`take` and `give` are the program's allocations; `reports` has torch report them, as it does when asked to."""

    def __init__(self, devices=1):
        self.devices = devices
        self.device = 0
        self.begun = True  # torch has begun to use CUDA
        self.broken = ""  # what asking for counters raises
        self.restarts = 0
        self.acquired = 0
        self.watches = []
        self.retries = self.ooms = 0
        self._all = defaultdict(lambda: defaultdict(lambda: {"current": 0, "peak": 0, "allocated": 0, "freed": 0}))

    def put_in(self, monkeypatch, name="torch"):
        devices.why_no_gpu.cache_clear()
        monkeypatch.setattr(_core, "find_device", self._find_device)
        monkeypatch.setattr(_core, "stream_device", lambda stream: self.device)
        monkeypatch.setattr(torch_memory, "acquire_reports", lambda: "for the test")
        monkeypatch.setitem(sys.modules, name, self.module())
        return self

    def module(self):
        torch = types.ModuleType("torch")
        torch.cuda = SimpleNamespace(
            is_initialized=lambda: self.begun,
            current_stream=lambda device=None: SimpleNamespace(cuda_stream=0, device_index=self.device),
            memory_allocated=lambda device=0: self.stats(device)["allocated_bytes"]["all"]["current"],
            memory_reserved=lambda device=0: self.stats(device)["reserved_bytes"]["all"]["current"],
            max_memory_allocated=lambda device=0: self.stats(device)["allocated_bytes"]["all"]["peak"],
            reset_peak_memory_stats=self._restart,
        )
        torch._C = SimpleNamespace(_cuda_memoryStats=self.stats)
        return torch

    # -- what the program does ---------------------------------------------------------------------------------------

    def take(self, size, device=0, reported=True):
        self._change(device, "allocated_bytes", size)
        missing = self.allocated(device) - self._all[device]["reserved_bytes"]["current"]
        if missing > 0:
            self._change(device, "reserved_bytes", -(-missing // SEGMENT) * SEGMENT)
        if self.acquired and reported:
            for watch in self.watches:
                watch.report(device, self.allocated(device))

    def give(self, size, device=0):
        self._change(device, "allocated_bytes", -size)

    def allocated(self, device=0):
        return self._all[device]["allocated_bytes"]["current"]

    # -- what it answers ---------------------------------------------------------------------------------------------

    def stats(self, device=0):
        if self.broken:
            raise RuntimeError(self.broken)
        names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes")
        nested = {name: {"all": dict(self._all[device][name])} for name in names}
        nested["active_bytes"] = nested["allocated_bytes"]
        return nested | {"num_alloc_retries": self.retries, "num_ooms": self.ooms}

    def reports(self, monkeypatch):
        """Torch's reports can be had."""
        fake = self

        class PeakMemory:
            def __init__(self, device):
                self.device, self.bytes, self.closed = device, None, False
                fake.watches.append(self)

            def report(self, device, allocated):
                if device == self.device:
                    self.bytes = max(self.bytes or 0, allocated)

            def close(self):
                fake.watches.remove(self)

        monkeypatch.setattr(torch_memory, "acquire_reports", self._acquire)
        monkeypatch.setattr(torch_memory, "release_reports", self._release)
        monkeypatch.setattr(_core, "PeakMemory", PeakMemory)
        return self

    def _acquire(self):
        self.acquired += 1
        return ""

    def _release(self):
        self.acquired -= 1

    def _find_device(self, device=0):
        if device >= self.devices:
            raise NotAvailable(f"GPU {device} is not available: there are {self.devices}")
        return device

    def _restart(self, device=0):
        self.restarts += 1
        for stat in self._all[device].values():
            stat["peak"] = stat["current"]

    def _change(self, device, name, change):
        stat = self._all[device][name]
        stat["current"] += change
        stat["peak"] = max(stat["peak"], stat["current"])
        stat["allocated" if change > 0 else "freed"] += abs(change)


def pool(library, allocated, reserved=None, peak=None, device=0, **more):
    """One row of `gpuscope.memory.allocators.pools`."""
    more = {"peak_reserved_bytes": None, "largest_free_bytes": None, "graph_reserved_bytes": 0, "note": ""} | more
    return SimpleNamespace(
        library=library,
        device=device,
        allocated_bytes=allocated,
        reserved_bytes=allocated if reserved is None else reserved,
        peak_allocated_bytes=peak,
        **more,
    )


def put_pools(monkeypatch, pools):
    """`gpuscope.memory.allocators` answers with what `pools` holds, and CuPy is imported."""

    def asked(device=None, *, detail=True):
        return tuple(one for one in pools if device in (None, one.device))

    monkeypatch.setattr(allocators, "pools", asked)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
