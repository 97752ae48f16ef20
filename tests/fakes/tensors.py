# SPDX-License-Identifier: Apache-2.0
"""Tensors for tests of who holds memory: torch's own where it is installed, else a class with what such tests need.

>>> from fakes.tensors import needs_autograd, torch
>>> kept = [torch.ones(10)]
"""

from __future__ import annotations

import itertools
import sys
import types

import pytest

_addresses = itertools.count(1 << 40, 1 << 20)


class Storage:
    def __init__(self):
        self._address = next(_addresses)

    def data_ptr(self):
        return self._address


class Tensor:
    """Memory and views of it; it has no autograd graph."""

    grad_fn = property(lambda tensor: None)

    def __init__(self, storage=None):
        self._storage = storage or Storage()

    def untyped_storage(self):
        return self._storage

    def __getitem__(self, index):
        return Tensor(self._storage)

    def view(self, *shape):
        return Tensor(self._storage)


try:
    import torch
except ImportError:
    torch = types.SimpleNamespace(Tensor=Tensor, ones=lambda size: Tensor())

needs_autograd = pytest.mark.skipif(isinstance(torch, types.SimpleNamespace), reason="torch is not installed")


@pytest.fixture(autouse=True)
def tensors_of_torch(monkeypatch):
    """The product finds the class of tensors where the program imported it from."""
    monkeypatch.setitem(sys.modules, "torch", torch)
