# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of torch, torch.compile and XLA: each kernel of a replay has where it was captured and launched."""

from __future__ import annotations

from collections import Counter

import pytest
from child import facts
from reading import Reading

import gpuscope as gs

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

REPLAYS = 20


class Layer(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x + 1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Layer()
        self.second = Layer()

    def forward(self, x):
        return self.second(self.first(x))


def warmed_up(work):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    return torch.cuda.CUDAGraph()


def test_kernels_of_a_replay_have_the_modules_and_operators_of_their_capture():
    model, x = Model(), torch.zeros(1024, device="cuda")
    graph = warmed_up(lambda: model(x))
    with gs.profile(with_modules=True) as prof:
        with gs.record_function("capture"), torch.cuda.graph(graph):
            model(x)
        for _ in range(REPLAYS):
            with gs.record_function("replay"):
                graph.replay()
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    kernels = reading.graph_kernels()
    captured = Counter("/".join(name for name in path if "." in name or "::" in name) for _, path in kernels)
    assert captured == {
        f"Model.{layer}/{operator}": REPLAYS
        for layer in ("first", "second")
        for operator in ("aten::add", "aten::sigmoid")
    }
    assert {path[0] for _, path in kernels} == {"capture"}
    regions = prof.trace.kernels.region.tolist()
    assert {"/".join(reading.region(regions[kernel])) for kernel, _ in kernels} == {"replay"}
    assert prof.audit().complete, prof.audit().reasons


def test_the_tree_shows_captured_work_under_its_replay():
    x = torch.zeros(1024, device="cuda")
    graph = warmed_up(lambda: x + 1)
    with gs.profile() as prof:
        with gs.record_function("capture"), torch.cuda.graph(graph):
            x.add(1)
        with gs.record_function("replay"):
            graph.replay()
        torch.cuda.synchronize()
    replay = prof.tree().find("replay")
    assert replay is not None
    assert replay.device_ns > 0
    assert any("capture" in node.name for node in replay), str(prof.tree())


def test_a_graph_captured_before_profiling_is_said_to_be():
    x = torch.zeros(1024, device="cuda")
    graph = warmed_up(lambda: x + 1)
    with torch.cuda.graph(graph):
        x.add(1)
    with gs.profile() as prof, gs.record_function("replay"):
        graph.replay()
        torch.cuda.synchronize()
    assert "captured before profiling" in str(prof.tree())
    assert prof.audit().complete, prof.audit().reasons


def test_triton_kernels_of_compiled_code_are_named_by_their_operators_and_lie_in_its_region():
    triton = facts("compiled.py")["triton"]
    assert [name.startswith("triton_poi_fused_") and "gelu" in name for name in triton["names"]] == [True]
    assert triton["kernels"] == triton["in region"] == 5
    assert all("/" in path for path in triton["paths"]), "no operator is around the compiled code"
    assert triton["complete"]


def test_kernels_that_compiled_code_replays_have_the_region_that_captured_them():
    inside = facts("compiled.py")["inside"]
    assert inside["graph launches"] >= 5, inside["audit"]
    assert inside["nodes"] >= 5
    assert inside["captured in"] == ["capturing"]
    assert inside["complete"], inside["audit"]


def test_compiled_code_captured_before_profiling_is_said_to_be():
    before = facts("compiled.py")["before"]
    assert before["graph launches"] >= 5, before["audit"]
    assert before["captured in"] == [""]
    assert "captured before profiling" in before["tree"]
    assert before["complete"], before["audit"]


def test_kernels_of_xla_are_in_the_region_that_ran_them_and_know_that_of_their_capture():
    found = facts("jax_graphs.py")
    assert found["kernels again"] >= 10
    assert found["outside"] == 0
    assert found["complete"], found["audit"]
    if found["nodes again"] == 0:
        pytest.skip("this XLA ran no command buffers")
    assert set(found["captured in"]) <= {"first", "again"}, found["captured in"]


def test_annotations_of_jax_are_ranges_with_the_kernels_inside():
    found = facts("jax_graphs.py")
    assert found["annotations"] == 10
    assert found["under annotation"] == found["kernels again"]
