# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import pytest

import gpuscope as gs
from gpuscope import _core

torch = pytest.importorskip("torch")
nn = torch.nn
from torch.nn.modules import module as torch_hooks  # noqa: E402

X = torch.ones(2, 4)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"left": nn.ReLU(), "right": nn.Tanh()})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.heads["left"](x) + self.heads["right"](self.norm(x))


class Calls(nn.Module):
    """Calls what it is given, whether or not it holds it."""

    def __init__(self, forward, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)
        self.__dict__["run"] = forward

    def forward(self, x):
        return self.run(self, x)


def hooks_there():
    return [*torch_hooks._global_forward_hooks, *torch_hooks._global_forward_pre_hooks]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert hooks_there() == []
    assert not [message for _, message, *_ in warnings.filters if message and "global hooks" in message.pattern]
    assert torch_hooks._global_forward_hooks_always_called == {}


BY_HOOKS, BY_CALLS = {}, {"with_stack": True}  # calls of Python functions say what hooks of torch's say otherwise


@pytest.fixture(autouse=True, params=[BY_HOOKS, BY_CALLS], ids=["by hooks", "by calls"])
def seen(request, monkeypatch):
    """How calls of modules are seen."""
    if request.param and not _core.knows_stacks():
        pytest.skip("calls of functions are not known in this version of Python")
    monkeypatch.setattr(sys.modules[__name__], "OPTIONS", request.param)
    return request.param


OPTIONS = BY_HOOKS


def profiling(**options):
    return gs.profile(activities=[gs.ProfilerActivity.CPU], with_modules=True, **OPTIONS, **options)


def modules_of(profiler):
    """Names of the module regions in order of entering, each with the one around it."""
    trace = profiler.trace
    paths, regions = trace.paths, trace.regions

    def name(row):
        return trace.string(int(paths.name[regions.path[row]]))

    def parent(row):
        row = regions.parent[row]
        while row < len(regions) and paths.kind[regions.path[row]] != 3:
            row = regions.parent[row]
        return name(row) if row < len(regions) else None

    rows = [row for row, path in enumerate(regions.path.tolist()) if paths.kind[path] == 3]
    return [(name(row), parent(row)) for row in rows]


def paths_of(profiler):
    return [name for name, _ in modules_of(profiler)]


def test_paths_are_the_names_that_lead_to_a_module():
    with profiling() as profiler:
        nn.Sequential(Branch(), nn.Flatten())(X)
    assert modules_of(profiler) == [
        ("Sequential", None),
        ("Sequential.0", "Sequential"),
        ("Sequential.0.layers.0", "Sequential.0"),
        ("Sequential.0.layers.1", "Sequential.0"),
        ("Sequential.0.heads.left", "Sequential.0"),
        ("Sequential.0.norm", "Sequential.0"),
        ("Sequential.0.heads.right", "Sequential.0"),
        ("Sequential.1", "Sequential"),
    ]


def test_without_with_modules_torch_gets_no_hooks():
    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as profiler:
        assert hooks_there() == []
        nn.Linear(4, 4)(X)
    assert paths_of(profiler) == []


def test_a_shared_module_has_the_name_under_which_it_is_called():
    shared = nn.Linear(4, 4)
    first = nn.Sequential(shared)
    second = Calls(lambda self, x: self.other(x), other=shared)
    both = Calls(lambda self, x: self.a(self.b(x)), a=first, b=second)
    with profiling() as profiler:
        both(X)
    assert paths_of(profiler) == ["Calls", "Calls.b", "Calls.b.other", "Calls.a", "Calls.a.0"]


def test_a_module_that_its_caller_does_not_hold_goes_by_its_class():
    hidden = nn.Linear(4, 4)
    net = Calls(lambda _, x: hidden(x))
    with profiling() as profiler:
        net(X)
        net(X)
        net.late = hidden
        net(X)
    assert paths_of(profiler) == ["Calls", "Calls.Linear"] * 2 + ["Calls", "Calls.late"]


def test_a_module_that_calls_itself_keeps_its_name():
    def count_down(self, x):
        self.__dict__["left"] -= 1
        return self(x) if self.left > 0 else x

    inner = Calls(count_down)
    inner.__dict__["left"] = 3
    with profiling() as profiler:
        Calls(lambda self, x: self.loop(x), loop=inner)(X)
    assert paths_of(profiler) == ["Calls", "Calls.loop", "Calls.loop.loop", "Calls.loop.loop.loop"]


def test_modules_that_hold_each_other_end_the_search():
    first, second = Calls(lambda self, x: nn.functional.relu(x)), Calls(lambda self, x: self.other(x))
    second.other = first
    first.__dict__["_modules"]["back"] = second
    with profiling() as profiler:
        second(X)
        second.run = lambda self, x: nn.Identity()(x)
    assert paths_of(profiler) == ["Calls", "Calls.other"]


def test_renamed_and_replaced_modules_get_their_new_names():
    net = nn.Sequential(nn.ReLU(), nn.Tanh())
    with profiling() as profiler:
        net(X)
        net._modules["0"], net._modules["1"] = net._modules["1"], net._modules["0"]
        net(X)
        for _ in range(300):
            net[0] = nn.ReLU()  # often at the address of the last
            net(X)
    assert set(paths_of(profiler)) == {"Sequential", "Sequential.0", "Sequential.1"}


def test_a_lazy_module_is_seen_from_its_first_call():
    net = nn.Sequential(nn.LazyLinear(3))
    with profiling() as profiler:
        net(X)
        net(X)
    assert paths_of(profiler) == ["Sequential", "Sequential.0"] * 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_model_that_raises_leaves_no_region_open(error):
    def fail(self, x):
        raise error

    failing = nn.Sequential(Calls(fail))
    good = nn.Sequential(nn.ReLU())
    with profiling() as profiler:
        for _ in range(3):
            with pytest.raises(error):
                failing(X)
            good(X)
    expected = [("Sequential", None), ("Sequential.0", "Sequential")] * 6
    assert modules_of(profiler) == expected


def test_an_interrupt_that_the_caller_survives_does_not_hold_the_next_child():
    def interrupt(self, x):
        raise KeyboardInterrupt

    def survive(self, x):
        try:
            self.bad(x)
        except KeyboardInterrupt:
            return self.good(x)

    net = Calls(survive, bad=Calls(interrupt), good=nn.ReLU())
    with profiling() as profiler:
        net(X)
    assert modules_of(profiler) == [("Calls", None), ("Calls.bad", "Calls"), ("Calls.good", "Calls")]


def test_many_windows_leave_nothing_behind():
    net = nn.Sequential(nn.ReLU())
    with profiling(schedule=gs.schedule(wait=0, warmup=0, active=1, repeat=0)) as profiler:
        for _ in range(500):
            net(X)
            profiler.step()
            assert paths_of(profiler) == ["Sequential", "Sequential.0"]


def test_results_and_arguments_pass_through_and_modules_die_as_ever():
    net = Calls(lambda self, x: {"sum": self.inner(x).sum()}, inner=nn.Linear(4, 4))
    expected = net(X)
    with profiling() as profiler:
        assert torch.equal(net(X)["sum"], expected["sum"])
        dead = weakref.ref(net)
        del net
        assert dead() is None
    assert paths_of(profiler) == ["Calls", "Calls.inner"]


def test_hooks_of_the_program_run_as_ever():
    net = nn.Linear(4, 4)
    seen = []
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net.register_forward_hook(lambda module, args, result: seen.append(args[0]))
    with profiling():
        net(X)
    assert torch.equal(seen[0], X * 2)


def test_every_thread_has_its_own_modules():
    nets = [nn.Sequential(nn.ReLU(), Branch()) for _ in range(4)]

    def work(net):
        for _ in range(100):
            net(X)

    with profiling() as profiler:
        threads = [threading.Thread(target=work, args=(net,)) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = modules_of(profiler)
    assert len(found) == 400 * 8
    assert all(name.rpartition(".")[0].startswith(parent or "") for name, parent in found)


def test_a_module_that_outlasts_the_window_on_another_thread_is_closed_there():
    entered, leave = threading.Event(), threading.Event()

    def wait(self, x):
        entered.set()
        leave.wait()
        return self.child(x)

    net = Calls(wait, child=nn.ReLU())
    thread = threading.Thread(target=lambda: (net(X), net(X)))
    profiler = profiling(schedule=gs.schedule(wait=0, warmup=0, active=1, repeat=0))
    with profiler:
        thread.start()
        entered.wait()
        profiler.step()
        assert paths_of(profiler) == ["Calls"]
        leave.set()
        thread.join()
        nn.Tanh()(X)
        profiler.step()
        assert "Tanh" in paths_of(profiler)


def test_a_window_inside_of_a_forward_sees_the_modules_inside():
    def forward(self, x):
        with profiling() as profiler:
            self.a(x)
        self.b(x)
        return profiler

    profiler = Calls(forward, a=nn.ReLU(), b=nn.Tanh())(X)
    assert paths_of(profiler) == ["ReLU"]


def test_a_window_that_ends_inside_of_a_forward_ends_its_modules():
    profiler = profiling()

    def forward(self, x):
        profiler.stop()
        return self.a(x)

    profiler.start()
    Calls(forward, a=nn.ReLU())(X)
    assert paths_of(profiler) == ["Calls"]
    with profiler:
        nn.ReLU()(X)
    assert modules_of(profiler) == [("ReLU", None)]


# -- what torch makes of modules -------------------------------------------------------------------------------------


@pytest.fixture
def counter():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    yield CompileCounterWithBackend("eager")
    torch._dynamo.reset()


@pytest.mark.parametrize("way", ["wrapped", "in place", "inner", "function"])
def test_compiled_modules_are_neither_broken_nor_compiled_again(counter, way, seen):
    net = Branch()
    if way == "wrapped":
        run, expected = torch.compile(net, backend=counter, fullgraph=True), ["Branch"]
    elif way == "in place":
        net.compile(backend=counter, fullgraph=True)
        run, expected = net, [] if seen is BY_HOOKS else ["Branch"]  # torch calls no hooks of it
    elif way == "inner":
        run = nn.Sequential(nn.ReLU(), torch.compile(net, backend=counter, fullgraph=True))
        expected = ["Sequential", "Sequential.0", "Sequential.1"]
    else:
        run, expected = torch.compile(lambda x: net(x).relu(), backend=counter, fullgraph=True), []
    before = run(X)
    for _ in range(12):  # more than torch compiles one function anew before it gives up
        with profiling() as profiler:
            assert torch.equal(run(X), before)
        run(X)
        assert paths_of(profiler) == expected
    assert counter.frame_count == 1


def test_what_is_compiled_in_a_window_is_compiled_once_more_at_most(counter):
    run = torch.compile(Branch(), backend=counter, fullgraph=True)
    for _ in range(12):
        with profiling():
            run(X)
        run(X)
    assert counter.frame_count <= 2


def test_modules_behind_a_graph_break_are_seen_below_the_compiled_one(counter):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            return self.eager(x)

        @torch.compiler.disable
        def eager(self, x):
            return self.second(x)

    run = nn.Sequential(torch.compile(Broken(), backend=counter))
    run(X)
    with profiling() as profiler:
        run(X)
    assert modules_of(profiler)[-1] == ("Sequential.0.second", "Sequential.0")


def test_a_scripted_module_is_one_region():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        traced = torch.jit.trace(nn.Linear(4, 4), X)
        with profiling() as profiler:
            scripted(X)
            traced(X)
            torch.jit.script(nn.Linear(4, 4))(X)
    assert paths_of(profiler)[0] == "Sequential"
    assert len(paths_of(profiler)) == 3


def test_checkpointed_modules_are_seen_again_in_the_backward_pass():
    from torch.utils.checkpoint import checkpoint

    net = nn.Linear(4, 4)
    x = X.clone().requires_grad_()
    with profiling() as profiler:
        checkpoint(net, x, use_reentrant=False).sum().backward()
    assert paths_of(profiler) == ["Linear", "Linear"]


def test_wrappers_of_data_parallel_training_are_part_of_the_path(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
        with profiling() as profiler:
            net(X).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert paths_of(profiler) == [f"DistributedDataParallel{name}" for name in ("", ".module", ".module.0")]


def test_replicas_on_threads_are_named_from_their_own_root():
    net = nn.Sequential(Branch())
    replicas = [net._replicate_for_data_parallel() for _ in range(2)]
    for replica in replicas:
        replica._modules["0"] = net[0]._replicate_for_data_parallel()
    with profiling() as profiler:
        threads = [threading.Thread(target=replica, args=(X,)) for replica in replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(set(paths_of(profiler)))[:2] == ["Sequential", "Sequential.0"]


def test_torch_may_be_imported_within_the_window():
    script = """
        import gpuscope as gs
        with gs.profile(activities=[gs.ProfilerActivity.CPU], with_modules=True) as profiler:
            import torch
            torch.nn.Sequential(torch.nn.ReLU())(torch.ones(1))
        hooks = torch.nn.modules.module
        assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
        trace = profiler.trace
        print(*[trace.string(int(name)) for name, kind in zip(trace.paths.name, trace.paths.kind) if kind == 3])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["Sequential", "Sequential.0"], done.stderr


def test_what_keeps_the_calls_is_no_function_of_the_program():
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_modules=True, with_stack=True) as profiler:
        nn.ReLU()(X)
    called = [event.trace_name for event in profiler.events() if event.is_python_function]
    # Whoever runs the test may have begun in a text, too.
    assert [name for name in called if name.startswith("<string>") and not name.endswith(": <module>")] == []


class Scaled(nn.Module):
    def triple(self, x):
        return x * 3

    def forward(self, x, y):
        return self.triple(x) + (y - 2)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaled = Scaled()

    def halve(self, x):
        return x / 2

    def forward(self, x, y):
        return self.halve(self.scaled(x, y)).relu()


HIERARCHIES = {
    "aten::mul": "TOP(Scripted)::forward.scaled(Scaled)::forward.SELF(Scaled)::triple.",
    "aten::sub": "TOP(Scripted)::forward.scaled(Scaled)::forward.",
    "aten::add": "TOP(Scripted)::forward.scaled(Scaled)::forward.",
    "aten::div": "TOP(Scripted)::forward.SELF(Scripted)::halve.",
    "aten::relu": "TOP(Scripted)::forward.",
}


@pytest.fixture
def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated
        return torch.jit.script(Scripted())


def hierarchies(prof, path):
    prof.export_chrome_trace(str(path))
    rows = json.loads(path.read_text())["traceEvents"]
    found = [(row["name"], row["args"].get("Module Hierarchy")) for row in rows if row.get("cat") == "cpu_op"]
    return [(name, hierarchy) for name, hierarchy in found if name in HIERARCHIES]


def test_operators_of_torchscript_have_their_modules_and_methods(scripted, tmp_path):
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_modules=True) as prof:
        scripted(torch.rand(4, 4), torch.rand(4, 4))
    found = hierarchies(prof, tmp_path / "trace.json")
    assert dict(found) == HIERARCHIES
    assert set(found) == set(HIERARCHIES.items())


def test_torchs_profiler_writes_the_same_of_them(scripted, tmp_path):
    found = []
    for index, profile in enumerate((gs.profile, torch.profiler.profile)):
        with profile(activities=[torch.profiler.ProfilerActivity.CPU], with_modules=True) as prof:
            scripted(torch.rand(4, 4), torch.rand(4, 4))
        found.append(hierarchies(prof, tmp_path / f"{index}.json"))
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [{}, {"with_modules": True}], ids=["not asked for", "eager"])
def test_others_have_none(options, scripted, tmp_path):
    model = Scripted() if options else scripted
    with gs.profile(activities=[gs.ProfilerActivity.CPU], **options) as prof:
        model(torch.rand(4, 4), torch.rand(4, 4))
    assert {hierarchy for _, hierarchy in hierarchies(prof, tmp_path / "trace.json")} == {None}


def test_they_survive_a_file(scripted, tmp_path):
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_modules=True) as prof:
        scripted(torch.rand(4, 4), torch.rand(4, 4))
    prof.save(tmp_path / "run.gscope")
    assert dict(hierarchies(gs.load(tmp_path / "run.gscope"), tmp_path / "trace.json")) == HIERARCHIES


def test_they_are_no_keywords_of_the_operators(scripted):
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_modules=True, record_shapes=True) as prof:
        scripted(torch.rand(4, 4), torch.rand(4, 4))
    assert [event.kwinputs for event in prof.events() if event.kwinputs] == []
