# SPDX-License-Identifier: Apache-2.0
"""Leaks of every kind that was planted, on the CPU; tests/gpu has the same programs on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch._C._autograd.SavedTensor, "data"):
    pytest.skip("this torch does not show what was saved", allow_module_level=True)

from fakes.leaking import MIB, PLANTS  # noqa: E402
from gpuscope.memory.history.leaks import find_leaks  # noqa: E402


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_leak_is_found_with_its_holder_and_size(plant):
    program = plant("cpu")
    leak = find_leaks(program.step, steps=8).leaks[0]
    assert (leak.holder.name, leak.holder.kind) == (plant.holder, plant.kind)
    assert (leak.holder.saved_by, leak.holder.error) == (plant.saved_by, plant.error)
    assert leak.bytes_per_step == pytest.approx(MIB, rel=0.01)
    assert (leak.holder.advice != "") == bool(plant.saved_by or plant.error)
