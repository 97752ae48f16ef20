# SPDX-License-Identifier: Apache-2.0
"""torch's operators, on a machine without a GPU: the same path as with one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import types
from collections import Counter

import pytest

import gpuscope as gs
from gpuscope._core import TorchCallbacks, TorchRanges
from gpuscope.frameworks import torch_operators
from gpuscope.trace import NONE

torch = pytest.importorskip("torch")

OP, RANGE = 1, 2
CPU = [torch.profiler.ProfilerActivity.CPU]


def names(prof, kind=None):
    trace = prof.trace
    paths = trace.paths
    return [
        trace.string(int(paths.name[path]))
        for path in trace.regions.path.tolist()
        if kind is None or paths.kind[path] == kind
    ]


def run_alone(code):
    """Runs a program in a process of its own, where nothing was recorded before."""
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def small_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 2)
    )


def training_step(model, optimizer):
    loss = model(torch.ones(2, 3, 8, 8)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_operators_are_recorded_by_default():
    with gs.profile() as prof:
        torch.ones(2)
    assert names(prof, OP) == ["aten::ones", "aten::empty", "aten::fill_"]


def test_operators_are_left_out_when_only_cuda_is_asked_for():
    with gs.profile(activities=[gs.ProfilerActivity.CUDA]) as prof:
        torch.ones(2) + 1
    assert names(prof) == []


def test_operators_lie_in_the_region_that_called_them():
    with gs.profile() as prof, gs.record_function("mine"):
        torch.zeros(2)
    assert [node.name for node in prof.tree().root.children[0].children] == ["aten::zeros"]


def test_operators_match_those_of_torch_profiler():
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    training_step(model, optimizer)
    with gs.profile() as ours:
        training_step(model, optimizer)
    with torch.profiler.profile(activities=CPU, acc_events=True) as theirs:
        training_step(model, optimizer)
    raw = Counter(event.name() for event in theirs.profiler.kineto_results.events())
    del raw["PyTorch Profiler (0)"]
    assert Counter(names(ours)) == raw


def test_shapes_match_those_of_torch_profiler():
    model = small_model()
    with gs.profile(record_shapes=True) as ours:
        model(torch.ones(2, 3, 8, 8))
    with torch.profiler.profile(activities=CPU, record_shapes=True, acc_events=True) as theirs:
        model(torch.ones(2, 3, 8, 8))
    trace = ours.trace
    shapes = Counter(
        (trace.string(int(trace.paths.name[trace.regions.path[region]])), trace.string(int(shape)))
        for region, shape in zip(trace.details.region.tolist(), trace.details.shapes.tolist(), strict=True)
        if shape != NONE
    )
    events = theirs.profiler.kineto_results.events()
    assert shapes == Counter((event.name(), str(event.shapes())) for event in events if event.shapes())


def test_shapes_are_left_out_unless_asked_for():
    with gs.profile() as prof:
        torch.ones(2) + 1
    assert set(prof.trace.details.shapes.tolist()) <= {NONE}


def test_backward_operators_know_their_forward_ones():
    model = small_model()
    with gs.profile() as prof:
        model(torch.ones(2, 3, 8, 8)).sum().backward()
    trace, details = prof.trace, prof.trace.details

    def name(region):
        return trace.string(int(trace.paths.name[trace.regions.path[region]]))

    pairs = {
        name(region): name(forward)
        for region, forward in zip(details.region.tolist(), details.forward.tolist(), strict=True)
        if forward != NONE
    }
    assert pairs["ConvolutionBackward0"] == "aten::convolution"
    assert pairs["AddmmBackward0"] == "aten::addmm"
    assert pairs["ReluBackward0"] == "aten::relu"


def test_ranges_of_libraries_are_told_from_operators():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with gs.profile() as prof:
        optimizer.step()
    assert "Optimizer.step#SGD.step" in names(prof, RANGE)


def test_the_wait_for_a_dataloader_is_a_range():
    loader = torch.utils.data.DataLoader(range(4), batch_size=2)
    with gs.profile() as prof:
        list(loader)
    assert any("DataLoader" in name and "__next__" in name for name in names(prof, RANGE))


def test_allocations_are_those_that_torch_reports():
    with gs.profile(profile_memory=True) as prof:
        tensor = torch.empty(1000, dtype=torch.float32)
        del tensor
    assert prof.trace.memory.bytes.tolist() == [4000, -4000]
    assert set(prof.trace.memory.ordinal.tolist()) == {NONE}
    assert prof.trace.memory.region[0] != NONE


def test_allocations_are_left_out_unless_asked_for():
    with gs.profile() as prof:
        torch.empty(1000)
    assert len(prof.trace.memory) == 0


def test_torch_knows_that_it_is_profiled_while_a_window_is_open():
    with gs.profile():
        assert torch.autograd.profiler._is_profiler_enabled
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_torch_profiler_around_a_window_stays_known_to_torch():
    with cpu_profiler():
        with gs.profile():
            pass
        assert torch.autograd.profiler._is_profiler_enabled


def test_nothing_stays_on_when_the_window_has_closed():
    with gs.profile(profile_memory=True):
        torch.ones(2)
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled
    assert torch.autograd.profiler._enable_profiler is torch.autograd._enable_profiler


def test_every_window_of_a_schedule_has_its_operators():
    counts = []
    with gs.profile(
        schedule=gs.schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda prof: counts.append(names(prof, OP).count("aten::mul")),
    ) as prof:
        for _ in range(6):
            torch.ones(2) * 2
            prof.step()
    assert counts == [1, 1]


def cpu_profiler():
    return torch.profiler.profile(activities=CPU, acc_events=True)


def test_torch_profiler_inside_a_window_and_the_window_are_both_whole():
    with gs.profile() as ours:
        torch.ones(2) + 1
        with cpu_profiler() as theirs:
            torch.ones(2) * 2
        torch.ones(2) - 3
    assert {"aten::ones", "aten::mul"} <= {event.key for event in theirs.key_averages()}
    assert {"aten::add", "aten::mul", "aten::sub"} <= set(names(ours))


def test_a_window_inside_torch_profiler_and_the_profiler_are_both_whole():
    with cpu_profiler() as theirs, gs.profile() as ours:
        torch.ones(2) * 2
    assert "aten::mul" in {event.key for event in theirs.key_averages()}
    assert "aten::mul" in names(ours)


def test_allocations_step_aside_for_torch_profiler_and_say_so():
    with gs.profile(profile_memory=True) as ours:
        first = torch.empty(10)
        with cpu_profiler() as theirs:
            second = torch.empty(20)
        third = torch.empty(30)
    assert "aten::empty" in {event.key for event in theirs.key_averages()}
    assert ours.trace.memory.bytes.tolist() == [40, 120]
    assert any("torch.profiler ran inside" in remark for remark in ours.audit().remarks)
    del first, second, third


def test_allocations_leave_a_running_torch_profiler_alone_and_say_so():
    with cpu_profiler() as theirs, gs.profile(profile_memory=True) as ours:
        torch.empty(10)
    assert "aten::empty" in {event.key for event in theirs.key_averages()}
    assert "aten::empty" in names(ours)
    assert any("torch.profiler runs" in remark for remark in ours.audit().remarks)


def test_torch_profiler_before_and_after_is_as_ever():
    for _ in range(3):
        with cpu_profiler() as theirs:
            torch.ones(2) * 2
        with gs.profile() as ours:
            torch.ones(2) * 2
        assert "aten::mul" in {event.key for event in theirs.key_averages()}
        assert names(ours).count("aten::mul") == 1


def test_an_operator_that_raises_is_closed():
    with gs.profile() as prof:
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        torch.ones(2)
    tops = [node.name for node in prof.tree().root.children]
    assert "aten::ones" in tops
    assert all(flag & 32 == 0 for flag in prof.trace.regions.flags.tolist())  # none is open


def test_operators_of_every_thread_are_recorded():
    def work():
        with gs.record_function("request"):
            torch.ones(2) * 2

    with gs.profile() as prof:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert names(prof).count("aten::mul") == 4
    assert [(node.name, node.count) for node in prof.tree().root.children] == [("request", 4)]


def test_a_window_may_be_ended_by_another_thread():
    prof = gs.profile()
    thread = threading.Thread(target=prof.start)
    thread.start()
    thread.join()
    torch.ones(2) * 2
    prof.stop()
    assert "aten::mul" in names(prof)
    with gs.profile() as second:
        torch.ones(2) + 1
    assert names(second).count("aten::add") == 1


def test_operators_of_two_threads_at_once_are_none_of_each_other():
    square = torch.randn(200, 200)

    def work():
        for _ in range(100):
            square @ square

    with gs.profile(record_shapes=True, with_flops=True) as prof:
        thread = threading.Thread(target=work)
        thread.start()
        work()
        thread.join()
    regions = prof.trace.regions
    inside = regions.parent != NONE
    assert (regions.thread[inside] == regions.thread[regions.parent[inside]]).all()
    row = next(row for row in prof.key_averages() if row.key == "aten::mm")
    assert (row.count, row.flops) == (200, 200 * 2 * 200**3)


def test_types_and_shapes_of_all_kinds_of_arguments_are_those_of_torch_profiler():
    def work():
        wide = torch.ones(1, 2, 1, 2, 1, 2, 2)
        torch.cat([torch.ones(2), torch.ones(3)])
        torch.nn.functional.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
        torch.ones(2, dtype=torch.bfloat16) * torch.ones((), dtype=torch.int64)
        torch.nn.functional.layer_norm(wide, (2,), None, None)
        torch.embedding(torch.ones(4, 3), torch.tensor([1, 2]))

    work()
    with gs.profile(record_shapes=True) as ours:
        work()
    with torch.profiler.profile(activities=CPU, record_shapes=True, acc_events=True) as theirs:
        work()
    trace, details = ours.trace, ours.trace.details

    def name(region):
        return trace.string(int(trace.paths.name[trace.regions.path[region]]))

    mine = Counter(
        (name(region), trace.string(int(shape)), trace.string(int(types)))
        for region, shape, types in zip(
            details.region.tolist(), details.shapes.tolist(), details.types.tolist(), strict=True
        )
        if shape != NONE
    )
    events = [event for event in theirs.profiler.kineto_results.events() if event.shapes()]
    assert mine == Counter(
        (event.name(), str(event.structured_input_shapes()), str(event.dtypes())) for event in events
    )


def test_shapes_of_results_are_recorded_where_flops_are_counted():
    with gs.profile(with_flops=True) as prof:
        torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3), stride=2)
    trace, details = prof.trace, prof.trace.details
    results = {
        trace.string(int(trace.paths.name[trace.regions.path[region]])): trace.string(int(result))
        for region, result in zip(details.region.tolist(), details.results.tolist(), strict=True)
        if result != NONE
    }
    assert results["aten::conv2d"] == "[[1, 4, 3, 3]]"


def test_a_torch_whose_callbacks_cannot_be_used_is_recorded_by_its_ranges(monkeypatch):
    monkeypatch.setattr("gpuscope.frameworks.torch_operators.why_no_callbacks", lambda: "another layout")
    with gs.profile(record_shapes=True, profile_memory=True) as prof:
        torch.ones(2, 3) * 2
    assert "aten::mul" in names(prof, OP)
    assert "[[2, 3], []]" in {prof.trace.string(int(shape)) for shape in prof.trace.details.shapes if shape != NONE}
    assert any("another layout" in remark for remark in prof.audit().remarks)


@pytest.mark.parametrize("memory", [False, True])
def test_a_window_that_ends_in_the_middle_of_backward_leaves_torch_as_it_was(memory):
    weight = torch.ones(2, requires_grad=True)
    prof = gs.profile(profile_memory=memory)
    product = weight * 2
    product.register_hook(lambda _: prof.stop())
    prof.start()
    product.sum().backward()
    assert "SumBackward0" in names(prof)
    assert weight.grad is not None
    with cpu_profiler() as theirs:
        torch.ones(2) * 2
    assert "aten::mul" in {event.key for event in theirs.key_averages()}
    with gs.profile() as again:
        torch.ones(2) * 2
    assert "aten::mul" in names(again)


@pytest.mark.parametrize("shapes", [False, True])
def test_fake_and_subclassed_tensors_pass_through(shapes):
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Mine(torch.Tensor):
        pass

    with gs.profile(record_shapes=shapes, with_flops=shapes) as prof:
        with FakeTensorMode():
            torch.empty(4, 4) @ torch.empty(4, 4)
        torch.ones(2).as_subclass(Mine) + 1
    assert "aten::add" in names(prof)


def test_two_hundred_windows_leave_nothing_behind():
    for _ in range(200):
        with gs.profile(record_shapes=True, profile_memory=True) as prof:
            torch.ones(2)
        assert names(prof)[0] == "aten::ones"


def test_torch_imported_inside_the_window_is_recorded_from_there_on():
    code = """
        import sys
        import gpuscope as gs
        prof = gs.profile()
        before = set(sys.meta_path)
        with prof:
            import torch
            torch.ones(2) + 1
        keys = {average.key for average in prof.key_averages()}
        assert "aten::add" in keys, keys
        assert not torch.autograd._profiler_enabled()
        assert {finder for finder in sys.meta_path if type(finder).__name__ == "WhenImported"} <= before
        assert type(torch.__spec__.loader).__name__ != "_Loader"
    """
    run_alone(code)


def fast_row(name):
    with torch._C._profiler._RecordFunctionFast(name):
        torch.ones(2)


@pytest.fixture(params=["callbacks", "ranges"])
def capture(request, monkeypatch):
    """Each way in which operators are captured."""
    if request.param == "ranges":
        monkeypatch.setattr("gpuscope.frameworks.torch_operators.why_no_callbacks", lambda: "another layout")
    return request.param


@pytest.mark.parametrize("memory", [False, True])
def test_rows_of_compiled_code_are_recorded(capture, memory):
    with gs.profile(profile_memory=memory) as prof:
        fast_row("## Call CompiledFxGraph ##")
    assert names(prof)[:2] == ["## Call CompiledFxGraph ##", "aten::ones"]


def test_rows_of_compiled_code_are_operators_as_torch_has_them():
    with gs.profile() as prof:
        fast_row("compiled")
    assert "compiled" in names(prof, OP)


def test_rows_of_compiled_code_are_those_of_torch_profiler():
    @torch.compile(backend="eager")
    def function(x):
        return x * 2

    function(torch.ones(2))
    with gs.profile() as ours:
        function(torch.ones(2))
    with cpu_profiler() as theirs:
        function(torch.ones(2))
    raw = Counter(event.name() for event in theirs.profiler.kineto_results.events())
    del raw["PyTorch Profiler (0)"]
    assert any("Dynamo" in name for name in raw)
    assert Counter(names(ours)) == raw


def test_what_torch_compiles_meanwhile_is_named_as_under_torch_profiler():
    def dynamo_rows(profile, read):
        torch._dynamo.reset()
        with profile as prof:
            torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
        return Counter(name for name in read(prof) if "dynamo" in name or "compile" in name)

    raw = dynamo_rows(cpu_profiler(), lambda prof: [e.name() for e in prof.profiler.kineto_results.events()])
    assert raw
    assert dynamo_rows(gs.profile(), names) == raw


def test_data_loaders_and_pipes_are_named_as_under_torch_profiler():
    def work():
        list(torch.utils.data.DataLoader(range(4), batch_size=2))
        list(torch.utils.data.datapipes.iter.IterableWrapper(range(3)))

    def rows(found):
        return Counter(name for name in found if name.startswith(("enumerate(", "IterableWrapper(")))

    with gs.profile() as ours:
        work()
    with cpu_profiler() as theirs:
        work()
    raw = rows(event.name() for event in theirs.profiler.kineto_results.events())
    assert any("IterableWrapper" in name for name in raw)
    assert rows(names(ours)) == raw


def test_torch_finds_a_profiler_on_the_thread_while_operators_are_recorded(capture):
    with gs.profile():
        assert torch.autograd._profiler_enabled()
    assert not torch.autograd._profiler_enabled()


def test_torch_finds_no_profiler_where_operators_are_not_recorded():
    with gs.profile(activities=[gs.ProfilerActivity.CUDA]):
        assert not torch.autograd._profiler_enabled()
        assert not torch.autograd.profiler._is_profiler_enabled


def test_a_window_that_ends_by_an_exception_leaves_torch_without_a_profiler():
    with pytest.raises(ZeroDivisionError), gs.profile():
        raise ZeroDivisionError
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled


def test_rows_of_compiled_code_come_after_a_torch_profiler_inside_the_window(capture):
    with gs.profile() as ours:
        with cpu_profiler():
            pass
        assert torch.autograd.profiler._is_profiler_enabled
        fast_row("after")
    assert "after" in names(ours)
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled


def test_rows_of_compiled_code_come_after_a_torch_profiler_around_the_beginning():
    theirs, ours = cpu_profiler(), gs.profile()
    theirs.start()
    ours.start()
    fast_row("inside")
    theirs.stop()
    assert torch.autograd.profiler._is_profiler_enabled
    fast_row("after")
    ours.stop()
    assert {"inside", "after"} <= set(names(ours))
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_torch_profiler_that_outlasts_the_window_stays_on():
    theirs, ours = cpu_profiler(), gs.profile()
    ours.start()
    theirs.start()
    ours.stop()
    assert torch.autograd.profiler._is_profiler_enabled
    fast_row("later")
    theirs.stop()
    assert "later" in {event.key for event in theirs.key_averages()}
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("profiler", [torch.autograd.profiler.emit_itt, torch.autograd.profiler_legacy.profile])
def test_other_profilers_of_torch_run_inside_a_window(profiler):
    with gs.profile() as ours:
        with profiler():
            torch.ones(2)
        fast_row("after")
    assert {"aten::ones", "after"} <= set(names(ours))
    assert not torch.autograd._profiler_enabled()


def test_torch_finds_a_profiler_after_one_of_another_thread_has_ended():
    def work():
        with cpu_profiler():
            torch.ones(2)

    with gs.profile():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert torch.autograd.profiler._is_profiler_enabled
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_torch_without_profilers_that_cost_nothing_is_recorded_and_the_audit_says_what_is_missing(monkeypatch):
    class WithoutThem:
        def __getattr__(self, name):
            return (lambda: False) if name == "drop_ranges" else getattr(TorchRanges, name)

    monkeypatch.setattr("gpuscope.frameworks.torch_profiler.TorchRanges", WithoutThem())
    with gs.profile() as prof:
        assert not torch.autograd._profiler_enabled()
        torch.ones(2) * 2
    assert "aten::mul" in names(prof, OP)
    assert any("rows of compiled code" in remark for remark in prof.audit().remarks)


@pytest.fixture
def measured(monkeypatch):
    """What the measurements are given that windows make: the work, and what is asked of torch."""
    given = []
    monkeypatch.setattr(torch_operators, "_measured", set())
    monkeypatch.setattr(TorchCallbacks, "measure", lambda *work, **options: given.append((*work, options)))
    return given


def window(**options):
    with gs.profile(**options):
        torch.ones(2)


def test_what_torch_takes_to_call_callbacks_is_measured_once_for_what_is_asked_of_it(measured):
    for options in ({}, {"record_shapes": True}) * 2:
        window(**options)
    assert [asked["shapes"] for *_, asked in measured] == [False, True]


def test_autograds_engine_is_not_begun_where_it_would_make_threads_for_gpus(measured, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    window()
    assert [backward for _, backward, _ in measured] == [None]


def test_autograds_engine_is_left_alone_where_backward_passes_are_compiled(measured, monkeypatch):
    compiled = types.SimpleNamespace(compiled_autograd_enabled=True)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", compiled)
    window()
    compiled.compiled_autograd_enabled = False
    window()
    assert [backward is not None for _, backward, _ in measured] == [False, True]


def test_autograds_engine_is_measured_once_the_program_has_begun_it(measured, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    window()
    begun, ends = threading.Event(), threading.Event()

    def engine():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w", encoding="utf-8") as name:
            name.write("pt_autograd_0")
        begun.set()
        ends.wait()

    thread = threading.Thread(target=engine)
    thread.start()
    begun.wait()
    try:
        window()
        window()
    finally:
        ends.set()
        thread.join()
    assert [backward is not None for _, backward, _ in measured] == [False, True]


def test_a_measurement_that_fails_is_made_again():
    run_alone(
        """
        import torch
        import gpuscope as gs
        from gpuscope._core import TorchCallbacks

        with gs.profile():
            torch.ones(2)
        calls = []

        def fails():
            calls.append(torch.ones(2))
            if len(calls) > 5:
                raise KeyboardInterrupt

        for _ in range(2):
            calls.clear()
            try:
                TorchCallbacks.measure(fails, fails, numbers=True)
            except KeyboardInterrupt:
                pass
            assert len(calls) == 6
        with gs.profile() as prof:
            torch.ones(2)
        assert {row.key for row in prof.key_averages()} == {"aten::ones", "aten::empty", "aten::fill_"}
        """
    )
