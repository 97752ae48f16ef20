# SPDX-License-Identifier: Apache-2.0
"""Programs with a leak that was planted, a way of keeping memory each, for the CPU and the GPU.

>>> for plant in PLANTS:
...     program = plant("cuda")
...     report = find_leaks(program.step)
...     assert report.leaks[0].holder.name == program.holder
"""

from __future__ import annotations

import torch

MIB = 1 << 20
NUMBERS = MIB // 4  # of float32: a block of its own


class Planted:
    """A step leaves a MiB behind, which `holder` keeps: as the program calls it, its variable being `program`."""

    holder = ""
    kind = "list"
    saved_by = ""  # the operation of autograd that holds the memory
    error = ""

    def __init__(self, device):
        self.device = device
        self.weight = torch.ones(NUMBERS, device=device, requires_grad=True)
        self.kept = []

    def new(self):
        return torch.ones(NUMBERS, device=self.device)

    def step(self):
        raise NotImplementedError


class Losses(Planted):
    """A list of losses with their graphs: exp() has saved its result."""

    holder, saved_by = "program.kept", "ExpBackward0"

    def step(self):
        self.kept.append((self.weight * 2).exp().sum())


class Total(Planted):
    """A sum of losses, whose graph spans the steps."""

    holder, kind, saved_by = "program.total", "Tensor", "ExpBackward0"

    def __init__(self, device):
        super().__init__(device)
        self.total = torch.zeros((), device=device)

    def step(self):
        self.total = self.total + (self.weight * 2).exp().sum()


class State(Planted):
    """A state that is handed on to the next step with its graph."""

    holder, kind, saved_by = "program.state", "Tensor", "TanhBackward0"

    def __init__(self, device):
        super().__init__(device)
        self.state = torch.zeros(NUMBERS, device=device)

    def step(self):
        self.state = (self.state + self.weight).tanh()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class SavedTensors(Planted):
    """A function of the program's own saves a tensor for backward."""

    holder, saved_by = "program.kept", "ScaleBackward"

    def step(self):
        self.kept.append(Scale.apply(self.weight))


class Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scaled = x * 2
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scaled


class ContextAttribute(Planted):
    """A function of the program's own keeps a tensor as an attribute of its context."""

    holder, saved_by = "program.kept", "NotedBackward"

    def step(self):
        self.kept.append(Noted.apply(self.weight))


class Closures(Planted):
    """Callbacks that are made anew in each step have a tensor in their closure."""

    holder = "program.kept"

    def step(self):
        batch = self.new()
        self.kept.append(lambda: batch)


class ModuleAttribute(Planted):
    """A module remembers what it was given."""

    holder = "program.model.encoder[1].seen"

    def __init__(self, device):
        super().__init__(device)
        self.model = torch.nn.Module()
        self.model.encoder = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())
        self.model.encoder[1].seen = []

    def step(self):
        self.model.encoder[1].seen.append(self.new())


class Errors(Planted):
    """Exceptions are kept, whose tracebacks have the frames of the functions that raised them."""

    holder, error = "program.kept", "ValueError"

    def read(self):
        batch = self.new()
        raise ValueError(f"a bad batch of {len(batch)}")

    def step(self):
        try:
            self.read()
        except ValueError as error:
            self.kept.append(error)


PLANTS = (Losses, Total, State, SavedTensors, ContextAttribute, Closures, ModuleAttribute, Errors)
