# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for a driver with its watch, and for frameworks that hold GPU memory.

>>> machine = Machine(monkeypatch)              # no framework is imported, GPU 0 is in use
>>> machine.use_torch(segment(0x1000, 512))     # from here on one is
"""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import numpy as np

from gpuscope import _core, devices
from gpuscope.devices import HOST
from gpuscope.errors import NotAvailable
from gpuscope.memory.usage import bare_context

MIB = 1 << 20
ALLOCATION_KINDS = ("device", "pool", "managed", "pinned", "virtual", "array")
MODULES = ("torch", "cupy", "rmm", "jax", "jax._src.xla_bridge")
TYPES = {"address": np.uint64, "kind": np.uint8, "device": np.int32, "pool": np.uint64, "library": np.uint32}


def segment(address, *blocks, pool=(0, 0), expandable=False, device=0, kind="large"):
    """A segment of torch's; blocks are sizes, negative for those that are free."""
    at, parts = address, []
    for size in blocks:
        state = "inactive" if size < 0 else "active_allocated"
        parts.append({"address": at, "size": abs(size), "requested_size": abs(size) - 1, "state": state})
        at += abs(size)
    return {
        "device": device,
        "address": address,
        "total_size": at - address,
        "allocated_size": sum(size for size in blocks if size > 0),
        "segment_pool_id": pool,
        "segment_type": kind,
        "is_expandable": expandable,
        "blocks": parts,
    }


class Machine:
    """What the driver and NVML say. Tests set:

    Attributes:
        contexts: ordinals of GPUs with a context.
        gpus: how many there are.
        process: NVML's figure for this process by GPU; where there is none, `process_why` says why.
        cuda_pools: what `_core.memory_pools` returns, by GPU.
        watching, from_start, unknown_releases, code_bytes, services: the watch.
        context_bytes: what a bare context takes; None where it cannot be measured.
        cupti_bytes, services_bytes: what CUPTI adds, and what the driver keeps for what kernels call.
    """

    def __init__(self, monkeypatch):
        self.contexts, self.gpus = [0], 1
        self.process, self.process_why = {}, ""
        self.cuda_pools = {}
        self.watching = self.from_start = True
        self.unknown_releases = self.code_bytes = 0
        self.services, self.services_bytes, self.cupti_bytes = [], 0, 0
        self.context_bytes = None
        self.contexts_measured = 0
        self.pieces, self.stacks = [], {}
        self._monkeypatch = monkeypatch
        devices.why_no_gpu.cache_clear()
        for name in ("find_device", "devices_in_use", "process_memory", "memory_pools", "allocation_watch"):
            monkeypatch.setattr(_core, name, getattr(self, name), raising=False)
        monkeypatch.setattr(_core, "live_allocations", self.live_allocations, raising=False)
        monkeypatch.setattr(_core, "stack_frames", lambda stack: self.stacks[stack], raising=False)
        monkeypatch.setattr(_core, "ALLOCATION_KINDS", ALLOCATION_KINDS, raising=False)
        monkeypatch.setattr(bare_context, "_measure", self._measure)
        monkeypatch.setattr(bare_context, "_measured", {})
        for module in MODULES:
            monkeypatch.delitem(sys.modules, module, raising=False)

    def take(self, size, library, kind="device", *, address=None, device=None, pool=0, at=None, region=""):
        """A library takes memory from the driver; `at` is (function, file, line) of the program."""
        if address is None:
            address = 1 << 40 if not self.pieces else max(one["address"] + one["bytes"] for one in self.pieces)
        stack = 0
        if at is not None:
            stack = len(self.stacks) + 1
            self.stacks[stack] = [("call", "/x/site-packages/library.py", 1), at, ("main", "main.py", 9)]
        device = (HOST if kind == "pinned" else 0) if device is None else device
        self.pieces.append(
            {
                "address": address,
                "bytes": size,
                "kind": ALLOCATION_KINDS.index(kind),
                "device": device,
                "pool": pool,
                "library": library,
                "stack": stack,
                "region": region,
            }
        )

    def find_device(self, device=0):
        if device >= self.gpus:
            raise NotAvailable(f"device {device}: this process sees {self.gpus} devices")
        return device

    def devices_in_use(self):
        self.find_device(0)
        return list(self.contexts)

    def process_memory(self, device=0):
        return {
            "process": self.process.get(device, 0 if device not in self.contexts else None),
            "used": 50_000 * MIB,
            "free": 29_500 * MIB,
            "total": 80_000 * MIB,
            "name": "fake GPU",
            "context": device in self.contexts,
            "why": self.process_why,
        }

    def memory_pools(self, device=0):
        return self.cuda_pools.get(device, []) if device in self.contexts else []

    def allocation_watch(self):
        return {
            "watching": self.watching,
            "from_start": self.from_start,
            "unknown_releases": self.unknown_releases,
            "code_bytes": self.code_bytes,
            "services": self.services,
            "cupti_path": "/lib/libcupti.so",
        }

    def live_allocations(self):
        libraries = list(dict.fromkeys(one["library"] for one in self.pieces))
        regions = list(dict.fromkeys(["", *(one["region"] for one in self.pieces)]))
        rows = [
            one | {"library": libraries.index(one["library"]), "region": regions.index(one["region"])}
            for one in self.pieces
        ]
        names = ("address", "bytes", "kind", "device", "pool", "library", "stack", "region")
        columns = {name: np.array([row[name] for row in rows], dtype=TYPES.get(name, np.int64)) for name in names}
        return columns | {"libraries": libraries, "regions": regions}

    def _measure(self, device, services, cupti):
        self.contexts_measured += 1
        if self.context_bytes is None:
            return None
        return self.context_bytes + (self.cupti_bytes if cupti else 0), self.services_bytes if services else 0

    def add_cuda_pool(self, used, reserved, handle=0x77, device=0):
        pool = {
            "pool": handle,
            "used": used,
            "reserved": reserved,
            "peak_used": used + 1,
            "peak_reserved": reserved + 1,
        }
        self.cuda_pools.setdefault(device, []).append(pool)

    def imported(self, name, module):
        self._monkeypatch.setitem(sys.modules, name, module)
        return module

    def use_torch(self, *segments, backend="native", initialized=True, pinned=None, old=False):
        """torch with these segments; `backend` as torch names it, `old` without include_traces."""

        def refused(*_args, **_kwargs):
            raise RuntimeError(f"{backend} does not yet support this.\nException raised from here")

        def stats(device):
            mine = [one for one in segments if one["device"] == device]
            allocated = sum(one["allocated_size"] for one in mine)
            reserved = sum(one["total_size"] for one in mine)
            return {
                "allocated_bytes.all.current": allocated,
                "allocated_bytes.all.peak": 2 * allocated,
                "reserved_bytes.all.current": reserved,
                "reserved_bytes.all.peak": 2 * reserved,
            }

        cuda = SimpleNamespace(
            is_initialized=lambda: initialized,
            get_allocator_backend=lambda: backend,
            memory_stats=refused if backend == "pluggable" else stats,
            memory_snapshot=(lambda: list(segments)) if old else (lambda *, include_traces: list(segments)),
        )
        if backend != "native":
            cuda.memory_snapshot = refused
        if pinned is not None:
            cuda.host_memory_stats = lambda: {"allocated_bytes.current": pinned} if pinned else {}
        return self.imported("torch", SimpleNamespace(cuda=cuda))

    def use_cupy(self, used, total, *, kind="MemoryPool", device=0, allocator="default"):
        """CuPy whose default pool, or another of that kind, holds so much on one device."""
        current = [0]

        class Device:
            def __init__(self, number):
                self.number = number

            def __enter__(self):
                self.before, current[0] = current[0], self.number

            def __exit__(self, *_):
                current[0] = self.before

        def pool(name, in_use, held):
            here = lambda size: lambda _self: size if current[0] == device else 0  # noqa: E731
            methods = {
                "used_bytes": here(in_use),
                "total_bytes": here(held),
                "free_bytes": here(held - in_use),
                "malloc": lambda _self, _size: None,
            }
            return type(name, (), methods)()

        if allocator == "default" and kind == "MemoryPool":
            default = mine = pool("MemoryPool", used, total)
        else:
            default, mine = pool("MemoryPool", 0, 0), pool(kind, used, total)
        chosen = mine.malloc if allocator in ("default", "own") else allocator
        cuda = SimpleNamespace(Device=Device, get_allocator=lambda: chosen)
        return self.imported("cupy", SimpleNamespace(get_default_memory_pool=lambda: default, cuda=cuda))

    def use_rmm(self, *layers):
        """RMM whose current resource consists of these layers, each a dict of attributes, outermost first."""
        resource = None
        for layer in reversed(layers):
            resource = SimpleNamespace(**layer) if resource is None else SimpleNamespace(**layer, upstream_mr=resource)
        mr = SimpleNamespace(get_per_device_resource=lambda device: resource)
        return self.imported("rmm", SimpleNamespace(mr=mr))

    def use_jax(self, *stats, started=True):
        """JAX with a GPU for each of the given statistics."""

        def device(number, facts):
            return SimpleNamespace(local_hardware_id=number, platform="gpu", memory_stats=lambda: facts)

        devices = [device(number, facts) for number, facts in zip(itertools.count(), stats)]
        client = SimpleNamespace(local_devices=lambda: devices)
        bridge = SimpleNamespace(_backends={"cuda": client} if started else {})
        self.imported("jax", SimpleNamespace())
        return self.imported("jax._src.xla_bridge", bridge)
