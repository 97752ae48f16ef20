# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading

import pytest

import gpuscope as gs
from gpuscope import _core
from gpuscope.analysis.rows import stack_texts
from gpuscope.trace import NONE, Trace

pytestmark = pytest.mark.skipif(not _core.knows_stacks(), reason="frames cannot be read in this version of Python")


def real_stack():
    """What Python itself says of the caller: its innermost 64 frames."""
    frame, frames = sys._getframe(1), []
    while frame is not None and len(frames) < 64:
        code = frame.f_code
        name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
        frames.append(f"{code.co_filename}({frame.f_lineno}): {name}")
        frame = frame.f_back
    return tuple(frames)


class Recorded(dict):
    """The stacks of a window's regions by the region's name, in the order of entering."""

    def __init__(self, store):
        super().__init__()
        self.trace = trace = Trace(store)
        texts = stack_texts(trace)
        stacks = dict(zip(trace.details.region.tolist(), trace.details.stack.tolist(), strict=True))
        for row, path in enumerate(trace.regions.path.tolist()):
            stack = stacks.get(row, NONE)
            name = trace.string(int(trace.paths.name[path]))
            self.setdefault(name, []).append(texts[stack] if stack != NONE else ())


# Where calls of functions are recorded too, a stack is found by what they told.
@pytest.fixture(params=[False, True], ids=["frames", "functions"])
def record(request):
    session = _core.Session(cuda=False, with_stack=True)
    if request.param and not _core.PythonFunctions.start([], None):
        pytest.skip("another tool watches the calls of functions")

    @contextlib.contextmanager
    def recording():
        session.open()
        done = []
        yield done
        done.append(Recorded(session.cut()))

    yield recording
    session.stop()
    _core.PythonFunctions.stop()


def functions(stack):
    return [frame.rpartition(": ")[2].rpartition(".")[2] for frame in stack]


def test_a_region_carries_the_frames_that_python_itself_names(record):
    def inner():
        with gs.record_function("r"): expected.append(real_stack())  # fmt: skip  # noqa: E701

    expected = []
    with record() as done:
        inner()
        inner()
        (lambda: inner())()
    assert done[0]["r"] == expected
    assert len(set(expected)) == 3


def test_a_loop_that_enters_many_thousand_times_makes_one_stack(record):
    with record() as done:
        for _ in range(20_000):
            with gs.record_function("r"):
                pass
    assert len(done[0]["r"]) == 20_000
    assert len(set(done[0]["r"])) == 1
    assert len(done[0].trace.stacks) <= len(real_stack())


def test_profilers_that_come_and_go_see_the_same_stacks():
    def work():
        with gs.record_function("r"):
            pass

    stacks = set()
    for _ in range(20):
        with gs.profile(activities=[gs.ProfilerActivity.CPU], with_stack=True) as profiler:
            work()
        stacks.update(Recorded(profiler.trace.store)["r"])
    assert len(stacks) == 1


def test_without_with_stack_no_stack_is_recorded():
    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as profiler, gs.record_function("r"):
        pass
    assert len(profiler.trace.stacks) == 0
    assert not _core.Session.active()


def test_aggregate_mode_says_that_it_has_no_stacks():
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_stack=True, mode="aggregate") as profiler:
        pass
    assert "with_stack" in profiler.trace.info["session.notes"]


def test_frames_of_gpuscope_itself_are_left_out(record):
    @gs.record_function("decorated")
    def work():
        pass

    with record() as done:
        work()
    (stack,) = done[0]["decorated"]
    assert functions(stack)[0] == "test_frames_of_gpuscope_itself_are_left_out"


def test_generators_are_seen_where_they_are_resumed(record):
    def produce():
        for _ in range(2):
            with gs.record_function("r"):
                pass
            yield

    def first(generator):
        next(generator)

    def second(generator):
        next(generator)

    with record() as done:
        generator = produce()
        first(generator)
        second(generator)
    assert [functions(stack)[:2] for stack in done[0]["r"]] == [["produce", "first"], ["produce", "second"]]


def test_coroutines_are_seen_with_those_that_await_them(record):
    async def leaf(name):
        await asyncio.sleep(0)
        with gs.record_function(name):
            await asyncio.sleep(0)

    async def branch(name):
        await leaf(name)

    async def main():
        await asyncio.gather(branch("a"), branch("b"), leaf("c"))

    with record() as done:
        asyncio.run(main())
    assert [functions(done[0][name][0])[:2] for name in "ab"] == [["leaf", "branch"]] * 2
    assert functions(done[0]["c"][0])[0] == "leaf"


def test_of_a_deep_recursion_the_innermost_frames_are_kept(record):
    def dive(depth):
        if depth > 0:
            return dive(depth - 1)
        with gs.record_function("r"):
            return real_stack()

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)
    try:
        with record() as done:
            expected = dive(2000)
    finally:
        sys.setrecursionlimit(limit)
    (stack,) = done[0]["r"]
    assert len(stack) == 64
    assert stack[1:] == expected[1:]


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_of_calls_and_generators_are_seen_as_python_sees_them(record, seed):
    chance = random.Random(seed)
    expected, suspended = [], []

    def region():
        with gs.record_function("r"): expected.append(real_stack())  # fmt: skip  # noqa: E701

    def generator():
        while True:
            region()
            yield
            act()

    def here():
        region()

    def there():
        act(); act()  # fmt: skip  # noqa: E702

    def fail():
        act()
        raise LookupError

    def tried():
        with contextlib.suppress(LookupError):
            fail()

    def new():
        suspended.append(generator())

    def resumed():
        if suspended:
            mine = suspended.pop(chance.randrange(len(suspended)))
            next(mine)
            suspended.append(mine)

    def thrown():
        if suspended:
            with contextlib.suppress(LookupError):
                suspended.pop().throw(LookupError())

    def call(_):
        act()

    def through_c():
        list(map(call, range(2)))

    def act():
        left[0] -= 1
        if left[0] > 0:
            chance.choice([here, there, tried, new, resumed, resumed, thrown, through_c])()

    with record() as done:
        for _ in range(20):
            left = [40]
            act()
    assert done[0].get("r", []) == expected


def test_exceptions_leave_no_frames_behind(record):
    def fail():
        with gs.record_function("failing"):
            raise ValueError

    with record() as done:
        for _ in range(100):
            with contextlib.suppress(ValueError):
                fail()
            with gs.record_function("after"):
                pass
    assert {functions(stack)[0] for stack in done[0]["failing"]} == {"fail"}
    assert {functions(stack)[0] for stack in done[0]["after"]} == {"test_exceptions_leave_no_frames_behind"}


def test_every_thread_has_its_own_stack(record):
    def first():
        for _ in range(500):
            with gs.record_function("r1"):
                pass

    def second():
        for _ in range(500):
            with gs.record_function("r2"):
                pass

    with record() as done:
        threads = [threading.Thread(target=target) for target in (first, second) * 8]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {tuple(functions(stack)) for stack in done[0]["r1"]} == {("first", "run", "_bootstrap_inner", "_bootstrap")}
    assert {functions(stack)[0] for stack in done[0]["r2"]} == {"second"}
    assert len(done[0]["r1"]) == len(done[0]["r2"]) == 4000


def test_code_without_a_file_is_named_by_what_it_was_compiled_as(record):
    with record() as done:
        exec("\n\nwith record_function('r'):\n    pass", {"record_function": gs.record_function})
    assert done[0]["r"][0][0] == "<string>(3): <module>"


def test_code_that_takes_the_place_of_freed_code_is_told_apart(record):
    """Made and dropped in a row, codes of one shape lie at the same addresses."""
    with record() as done:
        for number in range(2000):
            blank = "\n" * (number % 7)
            names = {"record_function": gs.record_function}
            source = f"def f{number}():\n{blank}  with record_function('r'):\n    pass"
            exec(compile(source, f"<cell {number % 11}>", "exec"), names)
            names[f"f{number}"]()
            del names
            if number % 500 == 0:
                gc.collect()
    expected = [f"<cell {number % 11}>({2 + number % 7}): f{number}" for number in range(2000)]
    assert [stack[0] for stack in done[0]["r"]] == expected


def test_codes_that_differ_in_their_lines_alone_are_told_apart(record):
    with record() as done:
        for number in range(1000):
            names = {"record_function": gs.record_function}
            body = "\n" * (number % 5)
            exec(f"def f():\n{body}  with record_function('r'):\n    pass", names)
            names["f"]()
            del names
    assert [stack[0] for stack in done[0]["r"]] == [f"<string>({2 + number % 5}): f" for number in range(1000)]


@pytest.mark.parametrize("name", ["größe", "переменная", "変数", "𐌀"], ids=["Latin", "Cyrillic", "Han", "Old Italic"])
def test_names_of_every_script_are_kept(record, name):
    names = {"region": gs.record_function("r")}
    exec(compile(f"class {name}:\n  def f(self):\n    with region: pass", f"/{name}/🐍.py", "exec"), names)
    with record() as done:
        names[name]().f()
    qualified = f"{name}.f" if sys.version_info >= (3, 11) else "f"
    assert done[0]["r"][0][0] == f"/{name}/🐍.py(3): {qualified}"


def test_a_file_name_that_is_no_unicode_does_no_harm(record):
    with record() as done:
        exec(compile("with r: pass", os.fsdecode(b"/caf\xe9.py"), "exec"), {"r": gs.record_function("r")})
    assert done[0]["r"][0][0] == "/caf�.py(1): <module>"


def test_a_forked_child_goes_on_and_the_parent_keeps_its_stacks(record):
    with record() as done:
        with gs.record_function("before"):
            pass
        child = os.fork()
        if child == 0:
            with gs.record_function("in the child"):
                pass
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with gs.record_function("after"):
            pass
    assert status == 0
    assert [len(done[0][name]) for name in ("before", "after")] == [1, 1]
    assert "in the child" not in done[0]


def test_stacks_survive_saving_and_loading(tmp_path):
    def work():
        with gs.record_function("r"):
            pass

    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_stack=True) as profiler:
        work()
    profiler.save(tmp_path / "run.gscope")
    loaded = gs.load(tmp_path / "run.gscope").trace
    assert Recorded(loaded.store) == Recorded(profiler.trace.store)
    assert functions(Recorded(loaded.store)["r"][0])[0] == "work"


# -- operators of torch, which run without the GIL ---------------------------------------------------------------------


def test_operators_of_torch_carry_the_frames_that_called_them():
    torch = pytest.importorskip("torch")
    x = torch.ones(2)

    def inner():
        with gs.record_function("r"): return x.exp(), real_stack()  # fmt: skip  # noqa: E701

    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_stack=True) as profiler:
        expected = [inner()[1] for _ in range(50)]
    recorded = Recorded(profiler.trace.store)
    assert recorded["aten::exp"] == expected
    assert recorded["r"] == expected


def lines_of_operators(work):
    """The functions around each operator, innermost first, and its own line, by its name in the order of calls."""
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_stack="operators") as prof:
        work()
    found = {}
    for name, stacks in Recorded(prof.trace.store).items():
        found[name] = [(functions(stack), stack[0].rpartition(":")[0] if stack else "") for stack in stacks]
    return found


def test_operators_inside_of_operators_are_where_the_outermost_is():
    torch = pytest.importorskip("torch")
    weight, images = torch.ones(2, 1, 3, 3), torch.ones(1, 1, 8, 8)

    def twice():
        torch.conv2d(images, weight)
        torch.conv2d(images, weight)

    found = lines_of_operators(lambda: (twice(), twice()))
    outer = found["aten::conv2d"]
    assert found["aten::_convolution"] == found["aten::convolution"] == outer
    assert outer[0] != outer[1]
    assert outer == [*outer[:2], *outer[:2]]
    assert all(names[:2] == ["twice", "<lambda>"] for names, _ in outer)


def test_python_that_an_operator_calls_is_seen():
    torch = pytest.importorskip("torch")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.mul(2)

        @staticmethod
        def backward(ctx, gradient):
            return helper(gradient)

    def helper(x):
        x.neg()
        return x.neg()

    def work():
        x = torch.ones(3, requires_grad=True)
        Twice.apply(x).sum().backward()
        x.detach().neg()

    with torch.library._scoped_library("gpuscope_test", "DEF") as library:
        library.define("call(Tensor x) -> Tensor")
        library.impl("call", helper, "CPU")
        found = lines_of_operators(lambda: (work(), torch.ops.gpuscope_test.call(torch.ones(3))))
    names = [names[0] for names, _ in found["aten::neg"]]
    assert names == ["helper", "helper", "work", "helper", "helper"]
    lines = [line for _, line in found["aten::neg"]]
    assert lines[0] == lines[3] != lines[1] == lines[4]
    assert [names[0] for names, _ in found["aten::mul"]] == ["forward"]


def test_a_range_that_outlives_the_function_that_opened_it_hides_no_line():
    torch = pytest.importorskip("torch")
    x, ranges = torch.ones(3), []

    def begin(make):
        ranges.append(make("a::range"))
        ranges[-1].__enter__()
        x.add(1)

    def first(make):
        begin(make)
        x.neg()

    def second(make):
        begin(make)
        x.neg()

    for make in (torch._C._profiler._RecordFunctionFast, torch.autograd.profiler.record_function):

        def work(make=make):
            first(make)
            second(make)
            while ranges:
                ranges.pop().__exit__(None, None, None)

        found = lines_of_operators(work)
        assert [names[:2] for names, _ in found["aten::add"]] == [["begin", "first"], ["begin", "second"]]
        assert [names[0] for names, _ in found["aten::neg"]] == ["first", "second"]


def test_an_operator_that_fails_leaves_nothing_behind():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)

    def fail():
        with contextlib.suppress(RuntimeError):
            torch.mm(x, x)

    def work():
        fail()
        torch.mm(x, x.t())

    found = lines_of_operators(lambda: (work(), work()))
    assert [names[0] for names, _ in found["aten::mm"]] == ["fail", "work"] * 2


def test_operators_on_many_threads_while_stacks_are_new_do_no_harm():
    torch = pytest.importorskip("torch")
    names = {"torch": torch, "x": torch.ones(4)}
    for number in range(40):
        exec(compile(f"def f{number}():\n  return x.exp()", f"<cell {number}>", "exec"), names)

    def work():
        for _ in range(50):
            for number in range(40):
                names[f"f{number}"]()
            exec("x.exp()", {"x": names["x"]})

    # torch's ranges are on on the thread that opened the window alone: regions stand for operators on the others
    with gs.profile(activities=[gs.ProfilerActivity.CPU], with_stack=True) as profiler:
        threads = [threading.Thread(target=gs.record_function("thread")(work)) for _ in range(4)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    stacks = Recorded(profiler.trace.store)["aten::exp"]
    assert {stack[0] for stack in stacks} >= {f"<cell {number}>(2): f{number}" for number in range(40)}
