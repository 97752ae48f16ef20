# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import itertools
import queue
import random
import sys
import threading
import time
import weakref

import pytest

import gpuscope
from gpuscope import _core


class Recorded:
    """The rows of a window, by name."""

    def __init__(self, store):
        self.store = store
        self.regions = store.columns("region")
        self.marks = store.columns("mark")
        self.paths = store.columns("path")

    def path(self, region):
        """The names of the regions around a place, outermost first."""
        names = []
        path = self.regions["path"][region] if region < len(self.regions["path"]) else 0xFFFFFFFF
        while path != 0xFFFFFFFF:
            names.append(self.store.string(int(self.paths["name"][path])))
            path = self.paths["parent"][path]
        return names[::-1]

    def mark(self, name):
        names = [self.store.string(int(string)) for string in self.marks["name"]]
        return self.path(self.marks["region"][names.index(name)])


@pytest.fixture
def record():
    session = _core.Session(cuda=False)

    @contextlib.contextmanager
    def recording():
        gc.collect()  # generators of other tests
        session.open()
        done = []
        yield done
        done.append(Recorded(session.cut()))

    yield recording
    session.stop()


def test_tasks_that_share_a_region_each_close_their_own(record):
    shared = _core.record_function("shared")

    async def first(entered, leave):
        with shared:
            await entered.wait()
        leave.set()

    async def second(entered, leave):
        with shared:
            entered.set()
            await leave.wait()
            _core.mark("second is inside")
        _core.mark("second is outside")

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        await asyncio.gather(first(entered, leave), second(entered, leave))

    with record() as done, _core.record_function("root"):
        asyncio.run(main())
    assert done[0].mark("second is inside") == ["root", "shared"]
    assert done[0].mark("second is outside") == ["root"]


def test_a_generator_closed_from_another_task_leaves_that_tasks_regions_alone(record):
    def generate():
        with _core.record_function("same name"):
            yield

    async def begin():
        generator = generate()
        next(generator)
        return generator

    async def end(generator):
        with _core.record_function("same name"):
            generator.close()
            _core.mark("inside")

    async def main():
        generator = await asyncio.create_task(begin())
        await asyncio.create_task(end(generator))

    with record() as done, _core.record_function("root"):
        asyncio.run(main())
    assert done[0].mark("inside") == ["root", "same name"]


def test_threads_that_share_a_region_each_close_their_own(record):
    shared = _core.record_function("shared")
    entered, leave = threading.Event(), threading.Event()

    def first():
        with _core.record_function("outer"), shared:
            entered.wait(10)
        leave.set()

    def second():
        with _core.record_function("outer"):
            with shared:
                entered.set()
                leave.wait(10)
                _core.mark("second is inside")
            _core.mark("second is outside")

    with record() as done:
        threads = [threading.Thread(target=first), threading.Thread(target=second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert done[0].mark("second is inside") == ["outer", "shared"]
    assert done[0].mark("second is outside") == ["outer"]


def test_a_region_is_reentrant(record):
    region = _core.record_function("r")
    with record() as done:
        with region, region:
            _core.mark("twice")
            with region:
                pass
        with region:
            _core.mark("once")
    assert done[0].mark("twice") == ["r", "r"]
    assert done[0].mark("once") == ["r"]


# -- where tasks lie -------------------------------------------------------------------------------------------------


def parents_of(store):
    """The name of the region around each region, by its name; None for an outermost one."""
    recorded = Recorded(store)
    regions = recorded.regions
    names = [recorded.path(row)[-1] for row in range(len(regions["path"]))]
    parents = {}
    # Of what is suspended, where it began: the garbage collector may close a generator in another thread's region.
    for row in regions["start_ns"].argsort(kind="stable").tolist():
        parent = regions["parent"][row]
        parents.setdefault(names[row], names[parent] if parent < len(names) else None)
    return parents


def test_independent_tasks_are_siblings(record):
    async def handle(name):
        with _core.record_function(name):
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(handle(f"request {number}") for number in range(5)))

    with record() as done:
        asyncio.run(main())
    assert parents_of(done[0].store) == {f"request {number}": None for number in range(5)}


def test_a_task_lies_where_it_was_created_even_if_that_was_left_before_it_ran(record):
    async def work():
        with _core.record_function("work"):
            await asyncio.sleep(0)

    async def main():
        with _core.record_function("creates"):
            task = asyncio.create_task(work())
        with _core.record_function("waits"):
            await task

    with record() as done:
        asyncio.run(main())
    assert parents_of(done[0].store) == {"creates": None, "waits": None, "work": "creates"}


def test_a_task_that_sets_variables_first_lies_where_it_was_created(record):
    variable = contextvars.ContextVar("variable")

    async def work(entered):
        variable.set(1)
        await entered.wait()
        with _core.record_function("work"):
            pass

    async def main():
        entered = asyncio.Event()
        with _core.record_function("creates"):
            task = asyncio.create_task(work(entered))
            await asyncio.sleep(0)
        with _core.record_function("waits"):
            entered.set()
            await task

    with record() as done:
        asyncio.run(main())
    assert parents_of(done[0].store)["work"] == "creates"


def test_what_runs_in_a_copied_context_on_another_thread_lies_where_that_was_copied(record):
    def work():
        with _core.record_function("work"):
            pass

    async def main():
        with _core.record_function("hands over"):
            await asyncio.to_thread(work)
        with _core.record_function("later"):
            pass

    with record() as done:
        asyncio.run(main())
    assert parents_of(done[0].store) == {"hands over": None, "work": "hands over", "later": None}


@pytest.mark.parametrize("loop_is_older", [True, False])
def test_what_another_thread_submits_lies_where_it_was_submitted(record, loop_is_older):
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    numbers = range(50)  # some of them are read while they go on

    def open_region():
        with _core.record_function("first use of this thread"):
            pass

    async def work(number):
        with _core.record_function(f"work {number}"):
            await asyncio.sleep(0)

    def submit():
        if not loop_is_older:
            open_region()
        running.start()
        loop.call_soon_threadsafe(open_region)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        for number in numbers:
            with _core.record_function(f"submits {number}"):
                asyncio.run_coroutine_threadsafe(work(number), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()

    with record() as done:
        submitting = threading.Thread(target=submit)
        submitting.start()
        submitting.join()
    parents = parents_of(done[0].store)
    assert [parents[f"work {number}"] for number in numbers] == [f"submits {number}" for number in numbers]


def test_a_task_in_a_region_that_is_still_open_lies_in_it_in_the_next_window():
    session = _core.Session(cuda=False)

    async def work():
        with _core.record_function("work"):
            await asyncio.sleep(0)

    async def main():
        session.open()
        with _core.record_function("around"):
            session.cut()
            session.open()
            await asyncio.create_task(work())
            return session.cut()

    try:
        assert parents_of(asyncio.run(main())) == {"around": None, "work": "around"}
    finally:
        session.stop()


class Program:
    """A random program of tasks, threads and generators, which notes in a context variable where it is.

    It sets others beside that: up to 16, and what has a hash of its own, lie otherwise in a context than the rest.
    """

    def __init__(self, seed, variables=0):
        self.others = [contextvars.ContextVar(f"other {number}") for number in range(variables)]
        self.name = f"{seed}.{variables}"
        self.random = random.Random(seed)
        self.here = contextvars.ContextVar("here", default=None)
        self.expected = {}
        self.numbers = itertools.count()  # threads open regions too
        self.left = 60

    def open(self):
        """A region of a new name."""
        name = f"{self.name}.{next(self.numbers)}"  # what another left open may be closed while this one runs
        self.expected[name] = self.here.get()
        return name, _core.record_function(name)

    def set_another(self):
        if self.others:
            self.random.choice(self.others).set(self.random.random())

    @contextlib.contextmanager
    def region(self):
        name, region = self.open()
        with region:
            token = self.here.set(name)
            try:
                yield
            finally:
                self.here.reset(token)
                self.set_another()

    def work(self):
        """On a thread: nothing is suspended."""
        for _ in range(self.random.randrange(3)):
            with self.region():
                pass

    def items(self):
        name, region = self.open()

        @region
        def generate():
            for _ in range(self.random.randrange(1, 4)):
                token = self.here.set(name)
                self.work()
                self.here.reset(token)
                yield

        return generate()

    async def decorated(self):
        name, region = self.open()

        @region
        async def call():
            token = self.here.set(name)
            await self.steps()
            self.here.reset(token)

        await call()

    async def steps(self):
        tasks = []
        generators = []
        for _ in range(self.random.randrange(1, 5)):
            self.left -= 1
            if self.left < 0:
                break
            await self.step(tasks, generators)
        for task in tasks:
            if self.random.random() < 0.2:
                task.cancel()
        if self.random.random() < 0.9:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def step(self, tasks, generators):
        self.set_another()
        choice = self.random.randrange(9)
        if choice == 0:
            with self.region():
                await self.steps()
        elif choice == 1:
            with self.region():
                tasks.append(asyncio.create_task(self.steps()))
        elif choice == 2:
            tasks.append(asyncio.create_task(self.steps()))
        elif choice == 3:
            await asyncio.sleep(0)
        elif choice == 4:
            await self.decorated()
        elif choice == 5:
            tasks.append(asyncio.create_task(self.decorated()))
        elif choice == 6:
            with self.region():
                await asyncio.to_thread(self.work)
        elif choice == 7:
            one, other = self.items(), self.items()
            for _ in zip(one, other, strict=False):
                await asyncio.sleep(0)
        elif sys.version_info >= (3, 11):
            async with asyncio.TaskGroup() as group:
                with self.region():
                    group.create_task(self.steps())
                group.create_task(self.decorated())


@pytest.mark.parametrize("variables", [0, 10, 60])
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_lie_where_context_variables_say(record, seed, variables):
    program = Program(seed, variables)

    async def main():
        for variable in program.others:
            variable.set(None)
        await program.steps()
        with program.region():
            await program.steps()

    with record() as done:
        asyncio.run(main())
    recorded = {name: parent for name, parent in parents_of(done[0].store).items() if name in program.expected}
    assert recorded == {name: parent for name, parent in program.expected.items() if name in recorded}
    assert len(recorded) > len(program.expected) / 2  # what was cancelled first never ran
    assert done[0].store.info().get("audit.unmatched_exits", "0") == "0"


def test_loops_of_several_threads_do_not_disturb_each_other(record):
    programs = [Program(seed, 5) for seed in range(100, 104)]
    with record() as done:
        threads = [
            threading.Thread(target=lambda program=program: asyncio.run(program.steps())) for program in programs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorded = parents_of(done[0].store)
    for program in programs:
        assert {name: recorded.get(name, parent) for name, parent in program.expected.items()} == program.expected


def test_the_garbage_collector_may_close_generators_while_a_task_begins(record):
    def generate():
        with _core.record_function("abandoned"):
            yield

    def abandon():
        generator = generate()
        next(generator)
        cycle = [generator]
        cycle.append(cycle)

    async def work():
        with _core.record_function("work"):
            abandon()
            await asyncio.sleep(0)

    async def main():
        with _core.record_function("creates"):
            await asyncio.gather(*(work() for _ in range(20)))

    thresholds = gc.get_threshold()
    with record() as done:
        try:
            for threshold in range(1, 80):
                gc.set_threshold(threshold, 1, 1)
                asyncio.run(main())
        finally:
            gc.set_threshold(*thresholds)
    assert parents_of(done[0].store) == {"creates": None, "work": "creates", "abandoned": "work"}


def test_a_region_that_is_left_in_another_task_than_it_was_entered_in_ends(record):
    region = _core.record_function("moves")

    async def enter():
        region.__enter__()

    async def leave():
        with _core.record_function("leaves"):
            region.__exit__(None, None, None)
            with _core.record_function("inside"):
                pass

    async def main():
        await asyncio.create_task(enter())
        await asyncio.create_task(leave())

    with record() as done:
        asyncio.run(main())
    assert parents_of(done[0].store) == {"moves": None, "leaves": None, "inside": "leaves"}
    assert done[0].store.info().get("audit.unmatched_exits", "0") == "0"


def test_an_asynchronous_generator_that_the_loop_closes_ends_where_it_ran(record):
    async def generate():
        with _core.record_function("inside"):
            yield

    async def begin():
        with _core.record_function("begins"):
            generator = generate()
            await generator.__anext__()
            return generator

    async def main():
        generator = await asyncio.create_task(begin())
        with _core.record_function("later"):
            del generator
            gc.collect()
            await asyncio.sleep(0)
            _core.mark("after")

    with record() as done:
        asyncio.run(main())
    assert parents_of(done[0].store) == {"begins": None, "inside": "begins", "later": None}
    assert done[0].mark("after") == ["later"]


def test_values_of_context_variables_live_no_longer(record):
    class Value:
        pass

    variable = contextvars.ContextVar("variable")

    async def main():
        value = Value()
        token = variable.set(value)
        with _core.record_function("inside"):
            await asyncio.sleep(0)
        variable.reset(token)
        reference = weakref.ref(value)
        del value, token
        return reference()

    with record():
        assert asyncio.run(main()) is None


def on_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def generate_in(region):
    with region:
        yield


def begun(generator):
    next(generator)
    return generator


def test_a_shared_region_may_end_on_a_thread_that_has_opened_none(record):
    shared = _core.record_function("shared")
    generators = []
    with record() as done:
        for _ in range(2):
            on_another_thread(lambda: generators.append(begun(generate_in(shared))))
        on_another_thread(generators.clear)
    assert parents_of(done[0].store) == {"shared": None}


def test_a_region_that_ends_on_another_thread_is_not_one_of_its_name_there(record):
    generators = []
    with record() as done:
        on_another_thread(lambda: generators.append(begun(generate_in(_core.record_function("region")))))
        with _core.record_function("region"):
            generators.clear()
            with _core.record_function("inside"):
                pass
    assert parents_of(done[0].store)["inside"] == "region"
    assert not (done[0].regions["flags"] & int(_core.Flag.OPEN)).any()


def test_a_region_that_workers_take_turns_in_lasts_until_it_ends(record):
    waiting, ends = threading.Event(), threading.Event()
    generators = []

    def begin():
        generators.append(begun(generate_in(_core.record_function("region"))))
        waiting.set()
        ends.wait()
        with _core.record_function("later"):
            pass

    with record() as done:
        thread = threading.Thread(target=begin)
        thread.start()
        waiting.wait()
        on_another_thread(generators.clear)
        _core.mark("after")
        ends.set()
        thread.join()
    rows, store = done[0].regions, done[0].store
    names = [done[0].path(row)[-1] for row in range(len(rows["start_ns"]))]
    end_ns = rows["start_ns"] + rows["duration_ns"]
    assert end_ns[names.index("region")] <= store.columns("mark")["start_ns"][0]


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_a_call_that_waits_in_a_region_of_its_own_name_takes_no_longer(mode):
    @gpuscope.record_function("fetch")
    async def fetch():
        with gpuscope.record_function("fetch"):
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    with gpuscope.profile(mode=mode) as prof:
        asyncio.run(fetch())
    (row,) = prof.key_averages()
    assert row.elapsed_time_total < 60e6, "us"


def test_a_context_lies_where_it_was_made_on_every_thread_that_runs_it(record):
    with record() as done, _core.record_function("outer"):
        context = contextvars.copy_context()
        for name in ("first", "second"):
            on_another_thread(lambda: context.run(generate_and_end, name))  # noqa: B023 - at once
            time.sleep(0.1)  # so that the second thread has the log of the first
    assert parents_of(done[0].store) == {"outer": None, "first": "outer", "second": "outer"}


def generate_and_end(name):
    begun(generate_in(_core.record_function(name))).close()


def test_the_end_of_a_region_that_was_entered_before_the_recording_ends_none_of_it(record):
    reused = _core.record_function("region")
    reused.__enter__()
    with record() as done, _core.record_function("region"):
        reused.__exit__(None, None, None)
        with _core.record_function("inside"):
            pass
    assert parents_of(done[0].store)["inside"] == "region"


def test_a_greenlet_inside_of_an_operator_of_a_task_ends_with_its_recording():
    greenlet = pytest.importorskip("greenlet")
    torch = pytest.importorskip("torch")

    def switch():
        with gpuscope.record_function("before"):
            pass
        context = contextvars.copy_context()
        other = greenlet.greenlet(lambda: generate_and_end("green"))
        other.gr_context = context
        other.switch()

    def add(tensor):
        contextvars.copy_context().run(switch)
        return tensor.clone()

    def run():
        operator = torch.library.custom_op(
            "gpuscope_test::switch", add, mutates_args=(), schema="(Tensor tensor) -> Tensor"
        )
        operator(torch.ones(2))
        torch.ones(2).add(1)

    with gpuscope.profile() as prof:
        on_another_thread(run)
    assert {"before", "green", "aten::add"} <= {row.key for row in prof.key_averages()}


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_what_opens_after_a_region_has_ended_on_another_thread_lies_beside_it(mode):
    generators = []
    with gpuscope.profile(mode=mode) as prof:
        for _ in range(3):
            generators.append(begun(generate_in(gpuscope.record_function("request"))))
            on_another_thread(generators.clear)
            with gpuscope.record_function("later"):
                gpuscope.mark("now")
    assert {row.key: row.count for row in prof.key_averages()} == {"request": 3, "later": 3}
    tree = prof.tree()
    assert "  request" not in tree
    assert "  later" not in tree


def test_a_context_that_two_threads_run_in_turns_has_its_region_ended_by_the_second(record):
    context = contextvars.copy_context()
    waiting, ends = threading.Event(), threading.Event()
    generator = generate_in(_core.record_function("region"))

    def begin():
        context.run(next, generator)
        waiting.set()
        ends.wait()
        context.run(generate_and_end, "later")

    with record() as done:
        thread = threading.Thread(target=begin)
        thread.start()
        waiting.wait()
        on_another_thread(lambda: context.run(generator.close))
        ends.set()
        thread.join()
    assert parents_of(done[0].store) == {"region": None, "later": None}
    assert done[0].store.info().get("audit.unmatched_exits", "0") == "0"


def test_a_region_that_ends_on_another_thread_takes_as_long_as_it_was_open(record):
    moments = []
    generators = []
    with record() as done:
        for _ in range(3):
            began_ns = _core.now_ns()
            generators.append(begun(generate_in(_core.record_function("request"))))
            on_another_thread(generators.clear)
            moments.append((began_ns, _core.now_ns()))
    rows = done[0].regions
    ends_ns = rows["start_ns"] + rows["duration_ns"]
    assert len(rows["start_ns"]) == 3
    for (began_ns, ended_ns), start_ns, end_ns in zip(moments, rows["start_ns"], ends_ns, strict=True):
        assert began_ns <= start_ns <= end_ns <= ended_ns


class Worker:
    """A thread that calls what it is given, and is waited for."""

    def __init__(self):
        self.calls = queue.Queue()
        self.thread = threading.Thread(target=self.run_all)
        self.thread.start()

    def run_all(self):
        for call, done in iter(self.calls.get, None):
            call()
            done.set()

    def run(self, call):
        done = threading.Event()
        self.calls.put((call, done))
        done.wait()

    def end(self):
        self.calls.put(None)
        self.thread.join()


@pytest.mark.parametrize("creator_is_older", [True, False])
def test_tasks_keep_their_places_while_regions_of_others_end_elsewhere(record, creator_is_older):
    older, younger, third = workers = [Worker() for _ in range(3)]
    creator, runner = (older, younger) if creator_is_older else (younger, older)
    generators = []

    def create():
        with _core.record_function("parent"):
            context = contextvars.copy_context()
            runner.run(lambda: context.run(generate_and_end, "child"))

    with record() as done:
        for worker in workers:
            worker.run(lambda: _core.mark("first"))
        for _ in range(50):
            creator.run(create)
            generators.append(begun(generate_in(_core.record_function("request"))))
            third.run(generators.clear)
            _core.mark("later")
    for worker in workers:
        worker.end()
    rows = done[0].regions
    names = [done[0].path(row)[-1] for row in range(len(rows["start_ns"]))]
    around = [names[rows["parent"][row]] for row, name in enumerate(names) if name == "child"]
    assert around == ["parent"] * 50


def test_a_region_from_before_the_window_that_ends_on_another_thread_is_in_it():
    begins, ends = threading.Event(), threading.Event()
    generators = []

    def begin():
        generators.append(begun(generate_in(gpuscope.record_function("request"))))
        begins.set()
        ends.wait()
        gpuscope.mark("later")

    with gpuscope.profile(schedule=gpuscope.schedule(wait=0, warmup=1, active=1, repeat=1)) as prof:
        thread = threading.Thread(target=begin)
        thread.start()
        begins.wait()
        prof.step()
        on_another_thread(generators.clear)
        ends.set()
        thread.join()
        prof.step()
    assert [row.count for row in prof.key_averages() if row.key == "request"] == [1]
