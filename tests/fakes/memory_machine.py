# SPDX-License-Identifier: Apache-2.0
"""A machine whose memory ends at a chosen byte, and the part of torch that tells of it."""

from __future__ import annotations

from types import SimpleNamespace


class OutOfMemoryError(RuntimeError):
    """Named and worded as torch's."""


OutOfMemoryError.__module__ = "torch"


class Machine:
    """A program: called with a batch size, it takes `fixed` and `per_sample` bytes each out of `capacity`.

    `block` is what its allocator rounds up to. `sizes` are those it was called with.
    """

    def __init__(self, capacity, fixed=0, per_sample=1, *, block=1, error=None):
        self.capacity = capacity
        self.fixed = fixed
        self.per_sample = per_sample
        self.block = block
        self.error = error or (lambda: OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"))
        self.sizes = []
        self.peak = fixed
        self.failures = 0

    def needed(self, size):
        return self.fixed + -(-size * self.per_sample // self.block) * self.block

    @property
    def largest(self):
        size = max(0, (self.capacity - self.fixed) // self.block * self.block // self.per_sample)
        return size if self.fixed <= self.capacity else 0

    def __call__(self, size):
        self.sizes.append(size)
        if self.needed(size) > self.capacity:
            self.failures += 1
            raise self.error()
        self.peak = max(self.peak, self.needed(size))


def torch_on(machine, **more):
    """A stand-in for the module torch on this machine."""

    def reset(device=None):
        machine.peak = machine.fixed

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_stream=lambda device=None: SimpleNamespace(cuda_stream=0, device_index=0),
        current_device=lambda: 0,
        synchronize=lambda device=None: None,
        empty_cache=lambda: None,
        mem_get_info=lambda device=None: (machine.capacity - machine.fixed, machine.capacity),
        memory_reserved=lambda device=None: machine.fixed,
        max_memory_allocated=lambda device=None: machine.peak,
        reset_peak_memory_stats=reset,
        memory_stats=lambda device=None: {"num_ooms": machine.failures},
        get_rng_state_all=list,
        set_rng_state_all=lambda states: None,
        **more,
    )
    return SimpleNamespace(cuda=cuda, get_rng_state=lambda: None, set_rng_state=lambda state: None)
