# SPDX-License-Identifier: Apache-2.0
"""gpuscope and torch.profiler in one process, one after the other and one inside the other: neither harms the other."""

from __future__ import annotations

from typing import Any

import pytest
from child import last_facts, run_code

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

PROGRAM = """
import json
import torch
import theirs
import gpuscope as gs
from reading import OP, RANGE, Reading
from torch.profiler import ProfilerActivity, profile
BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(32, 64, device="cuda")
def steps(count):
    for _ in range(count):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
def of_theirs(prof):
    return {"operators": theirs.operators(prof).total(), "kernels": sum(map(theirs.is_gpu_work, prof.events()))}
def of_ours(prof):
    reading, audit = Reading(prof.trace), prof.audit()
    return {
        "operators": reading.operators().total(),
        "kernels": sum(len(table) for table in reading.gpu_work()),
        "complete": audit.complete,
        "said": [*audit.reasons, *audit.remarks, audit.tier_reason],
    }
def torch_alone(count=5):
    with profile(activities=BOTH) as prof:
        steps(count)
    return of_theirs(prof)
def gpuscope_alone(count=5):
    with gs.profile() as prof:
        steps(count)
    return of_ours(prof)
steps(3)
"""


def together(code: str) -> Any:
    return last_facts(run_code(PROGRAM + code))


def counts(found: dict[str, Any]) -> tuple[int, int]:
    return found["operators"], found["kernels"]


def test_each_sees_the_same_after_the_other_ran():
    found = together(
        """
turns = [torch_alone, gpuscope_alone, torch_alone, gpuscope_alone, gpuscope_alone, torch_alone]
print(json.dumps({"turns": [turn() for turn in turns]}))
"""
    )["turns"]
    assert len(set(map(counts, found))) == 1, found
    assert all(turn.get("complete", True) for turn in found), found


def test_each_sees_the_same_when_gpuscope_came_first():
    found = together("print(json.dumps({'turns': [gpuscope_alone(), torch_alone(), gpuscope_alone()]}))")["turns"]
    assert len(set(map(counts, found))) == 1, found


def test_a_torch_profiler_inside_has_all_of_its_own_and_we_say_what_we_lack():
    found = together(
        """
expected = torch_alone(2)
with gs.profile() as outer:
    steps(1)
    with profile(activities=BOTH) as inner:
        steps(2)
    steps(1)
alone = gpuscope_alone(4)
print(json.dumps({"expected": expected, "inner": of_theirs(inner), "outer": of_ours(outer), "alone": alone}))
"""
    )
    assert found["inner"] == found["expected"]
    check_outer(found["outer"], found["alone"])


def test_gpuscope_inside_a_torch_profiler_leaves_it_whole_and_says_what_it_lacks():
    found = together(
        """
expected = torch_alone(4)
with profile(activities=BOTH) as outer:
    steps(1)
    with gs.profile() as inner:
        steps(2)
    steps(1)
alone = gpuscope_alone(2)
print(json.dumps({"expected": expected, "outer": of_theirs(outer), "inner": of_ours(inner), "alone": alone}))
"""
    )
    assert found["outer"] == found["expected"]
    check_outer(found["inner"], found["alone"])


def check_outer(ours: dict[str, Any], alone: dict[str, Any]) -> None:
    """All operators are there; GPU work that is missing is said to be, and the next window has all of it again."""
    said = " ".join(filter(None, ours["said"]))
    assert ours["operators"] == alone["operators"], ours
    assert ours["kernels"] < alone["kernels"], ours
    assert "torch.profiler" in said or "CUPTI" in said, ours
    assert alone["complete"], alone
