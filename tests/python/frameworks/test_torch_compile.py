# SPDX-License-Identifier: Apache-2.0
"""Regions in code that torch compiles are what torch's own are there."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpuscope

torch = pytest.importorskip("torch")
dynamo = pytest.importorskip("torch._dynamo")
testing = pytest.importorskip("torch._dynamo.testing")

HERE = gpuscope.record_function("made outside")


def under_ours(x: Any) -> Any:
    with gpuscope.record_function("inside"):
        return x.sin() + 1


def under_theirs(x: Any) -> Any:
    with torch.profiler.record_function("inside"):
        return x.sin() + 1


def under_an_instance(x: Any) -> Any:
    with HERE:
        return x.sin() + 1


@gpuscope.record_function("decorated")
def decorated(x: Any) -> Any:
    return x.sin() + 1


def beside_marks(x: Any) -> Any:
    y = x.sin()
    gpuscope.mark("here")
    gpuscope.step()
    return y + 1


def in_a_timed_block(x: Any) -> Any:
    with gpuscope.timed("test_torch_compile"):
        return x.sin() + 1


@gpuscope.timed("test_torch_compile")
def timed(x: Any) -> Any:
    return x.sin() + 1


class Module(torch.nn.Module):
    def forward(self, x):
        with gpuscope.record_function("forward"):
            return x.sin() + 1


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    dynamo.reset()


def graphs(function: Callable[..., Any], **options: Any) -> list[list[str]]:
    """The calls in each graph that Dynamo makes of a function."""
    backend = testing.EagerAndRecordGraphs()
    x = torch.ones(3)
    assert torch.equal(torch.compile(function, backend=backend, **options)(x), x.sin() + 1)
    return [[str(node.target) for node in graph.graph.nodes if node.op.startswith("call")] for graph in backend.graphs]


@pytest.mark.parametrize(
    "function", [under_ours, under_an_instance, decorated, beside_marks, in_a_timed_block, timed, Module()]
)
def test_no_graph_is_broken(function: Callable[..., Any]) -> None:
    assert graphs(function, fullgraph=True) == graphs(under_theirs, fullgraph=True)


def test_no_graph_is_broken_while_a_profiler_runs() -> None:
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]):
        assert len(graphs(under_ours, fullgraph=True)) == 1


@pytest.mark.parametrize("function", [under_ours, under_an_instance, decorated])
def test_a_region_is_in_the_graph_where_torch_puts_its_own(function: Callable[..., Any]) -> None:
    if not hasattr(dynamo.config, "capture_profiler_record_function"):
        pytest.skip("this torch leaves its regions out of graphs")
    with dynamo.config.patch(capture_profiler_record_function=True):
        with_ours = graphs(function, fullgraph=True)
        assert with_ours == graphs(under_theirs, fullgraph=True)
    assert any("record_function_enter" in call for call in with_ours[0])


@pytest.mark.parametrize(("function", "name"), [(in_a_timed_block, "timed"), (beside_marks, "mark")])
def test_what_is_left_out_of_a_graph_is_said(function: Callable[..., Any], name: str) -> None:
    with pytest.warns(UserWarning, match=rf"{name}\(\) inside of compiled code is left out of the graph"):
        graphs(function)


@pytest.mark.parametrize("inherited", [torch.profiler.record_function, gpuscope.record_function])
def test_a_subclass_of_a_region_breaks_the_graph_once_as_torchs_does(inherited: type) -> None:
    named = type("Named", (inherited,), {})  # a class that Dynamo has not met

    def under_subclass(x: Any) -> Any:
        with named("inside"):
            return x.sin() + 1

    assert graphs(under_subclass) == [["sin", "<built-in function add>"]]


def test_a_changed_region_is_compiled_again() -> None:
    def function(x: Any, region: Any) -> Any:
        with region:
            return x + 1

    counter = testing.CompileCounter()
    compiled = torch.compile(function, backend=counter)
    for region in (gpuscope.record_function("one"), gpuscope.record_function("two")):
        compiled(torch.ones(3), region)
    assert counter.frame_count == 2


def test_torchscript_compiles_a_region_as_torchs() -> None:
    x = torch.ones(3)
    scripted = torch.jit.script(Module())
    assert torch.equal(scripted(x), x.sin() + 1)
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof:
        scripted(x)
    assert "forward" in {event.name for event in prof.events()}


@pytest.mark.parametrize("strict", [True, False])
def test_export_has_the_graph_that_it_has_with_torchs(strict: bool) -> None:
    exported = torch.export.export(Module(), (torch.ones(3),), strict=strict)
    assert [node.name for node in exported.graph.nodes if node.op == "call_function"] == ["sin", "add"]


def test_functional_transforms_pass_through_regions() -> None:
    x = torch.ones(2, 3)
    assert torch.equal(torch.func.vmap(under_ours)(x), x.sin() + 1)
    assert torch.equal(torch.func.grad(lambda y: under_ours(y).sum())(x), x.cos())


def test_the_first_use_may_be_inside_of_compiled_code() -> None:
    script = (
        "import gpuscope, torch\n"
        "@torch.compile(backend='eager', fullgraph=True)\n"
        "def f(x):\n"
        "    with gpuscope.record_function('a'):\n"
        "        return x + 1\n"
        "print(f(torch.ones(1)).item())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr


def test_a_compiler_of_another_layout_is_said_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.variables.builder import VariableBuilder

    from gpuscope.frameworks import torch_compile

    monkeypatch.delattr(VariableBuilder, "_id_dispatch")
    with pytest.warns(RuntimeWarning, match="does not take gpuscope's regions"):
        torch_compile._register_regions()


def test_the_text_beside_the_name_is_in_the_graph() -> None:
    if not hasattr(dynamo.config, "capture_profiler_record_function"):
        pytest.skip("this torch leaves its regions out of graphs")
    region = gpuscope.record_function("named", "text beside")
    entered = []

    def backend(graph: Any, _inputs: Any) -> Any:
        entered.extend(node.args for node in graph.graph.nodes if "record_function_enter" in str(node.target))
        return graph

    @torch.compile(backend=backend, fullgraph=True)
    def function(x: Any) -> Any:
        with region:
            return x + 1

    torch._dynamo.reset()
    with dynamo.config.patch(capture_profiler_record_function=True):
        function(torch.ones(3))
    assert entered == [("named", "text beside")]


@pytest.mark.parametrize("raised", ["ImportError", "RuntimeError"])
@pytest.mark.parametrize("missing", ["torch._dynamo", "torch._dynamo.variables.builder"])
def test_regions_work_where_dynamo_cannot_be_imported(missing: str, raised: str) -> None:
    program = f"""
import importlib.util, sys, warnings

class Broken:
    def find_spec(self, fullname, path=None, target=None):
        if fullname == {missing!r}:
            raise {raised}("not in this torch")

sys.meta_path.insert(0, Broken())
warnings.simplefilter("ignore")
import gpuscope
import torch
try:
    import torch._dynamo
except Exception:
    pass
with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof:
    with gpuscope.record_function("region"):
        torch.ones(1) + 1
assert "region" in [row.key for row in prof.key_averages()]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
