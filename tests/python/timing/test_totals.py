# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.event_gpu import FakeEvent
from gpuscope.errors import InvalidArgument
from gpuscope.timing import Timed, reset_timings, timed, timings, totals
from gpuscope.timing.measurement import Steps
from gpuscope.timing.totals import _Sum


def test_blocks_of_a_name_add_up(gpu):
    for milliseconds in (1, 2, 6):
        with timed("x"):
            gpu.work(milliseconds / 1e3)
    spread = timed("x").summary().gpu
    assert spread is not None
    assert spread.count == 3
    assert spread.total == pytest.approx(0.009)
    assert spread.mean == pytest.approx(0.003)
    assert (spread.min, spread.median, spread.max) == (0.001, 0.002, 0.006)


def test_blocks_do_not_wait(gpu):
    gpu.busy = True
    for _ in range(10):
        with timed("x"):
            pass
    assert gpu.waited == 0


def test_reading_waits_for_all_blocks(gpu):
    gpu.busy = True
    for _ in range(10):
        with timed("x"):
            gpu.work(0.001)
    summary = timed("x").summary()
    assert summary.gpu is not None
    assert summary.gpu.count == 10
    assert gpu.waited == 10


def while_waiting(gpu, monkeypatch, happens):
    """Has something happen, once, while a reader waits for the GPU."""
    gpu.busy = True
    coming = iter([happens])
    monkeypatch.setattr(FakeEvent, "synchronize", lambda event: next(coming, float)())


def test_block_waited_for_in_vain_is_read_the_next_time(gpu, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    while_waiting(gpu, monkeypatch, interrupt)
    with timed("x"):
        gpu.work(0.001)
    with pytest.raises(KeyboardInterrupt):
        timings()
    assert timings()["x"].gpu.count == 1


def test_step_of_a_coroutine_waited_for_in_vain_is_read_the_next_time(gpu, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    @timed("c")
    async def work() -> None:
        gpu.work(0.001)

    while_waiting(gpu, monkeypatch, interrupt)
    asyncio.run(work())
    with pytest.raises(KeyboardInterrupt):
        timings()
    assert timings()["c"].gpu.total == 0.001


def test_two_readers_that_wait_for_a_block_both_have_it(gpu, monkeypatch):
    found = []
    while_waiting(gpu, monkeypatch, lambda: found.append(timings()))
    with timed("x"):
        gpu.work(0.001)
    found.append(timings())
    assert [each["x"].gpu.count for each in found] == [1, 1]


def test_memory_stays_bounded_while_the_gpu_is_busy(gpu):
    gpu.busy = True
    for _ in range(3000):
        with timed("x"):
            pass
    gpu.made.clear()
    assert gpu.live <= 2 * 1024 + 2
    summary = timed("x").summary()
    assert summary.count == 3000
    assert summary.launch is not None
    assert summary.launch.count == 3000
    assert summary.gpu is not None
    assert summary.gpu.count == 1024
    assert "waiting for the GPU already" in summary.why


def test_events_go_back_as_blocks_end(gpu):
    for _ in range(5000):
        with timed("x"):
            pass
    assert gpu.live <= len(gpu.made) + 4


def test_block_that_raises_counts(gpu):
    with pytest.raises(RuntimeError), timed("x"):
        raise RuntimeError
    assert timed("x").summary().count == 1


def test_blocks_nest(gpu):
    with timed("outer"):
        gpu.work(0.001)
        with timed("inner"), timed("outer"):
            gpu.work(0.002)
    result = timings()
    assert result["inner"].gpu.total == 0.002
    assert result["outer"].gpu.total == pytest.approx(0.005)
    assert result["outer"].count == 2


def test_captured_block_has_the_reason(gpu):
    with timed("x"):
        pass
    gpu.capturing = True
    with timed("x"):
        pass
    summary = timed("x").summary()
    assert summary.count == 2
    assert summary.gpu.count == 1
    assert "CUDA graph" in summary.why


def test_stream_is_the_one_given(gpu):
    with timed("x", stream=1003):
        pass
    assert gpu.made[0].streams == [1003]


async def while_suspended(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """What it returns. While it is suspended for the first time, something else runs for so long."""

    async def something_else() -> None:
        time.sleep(seconds)

    return (await asyncio.gather(coroutine, something_else()))[0]


@pytest.mark.usefixtures("no_gpu")
class TestDecorator:
    def test_function_counts_once_a_call(self):
        @timed("f")
        def add(a: int, b: int = 2) -> int:
            "Adds."
            return a + b

        assert add(1) == 3
        assert add(1, b=5) == 6
        assert (add.__name__, add.__doc__) == ("add", "Adds.")
        assert timings()["f"].count == 2

    def test_methods(self):
        class Thing:
            @timed("m")
            def method(self) -> Thing:
                return self

            @timed("m")
            @classmethod
            def of_class(cls) -> type:
                return cls

            @timed("m")
            @staticmethod
            def static(value: int) -> int:
                return value

        thing = Thing()
        assert thing.method() is thing
        assert Thing.of_class() is Thing
        assert Thing.static(4) == 4
        assert timings()["m"].count == 3

    def test_coroutine_counts_once_a_call_and_without_its_sleep(self):
        @timed("c")
        async def nap() -> int:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return 5

        assert asyncio.run(while_suspended(nap(), 0.05)) == 5
        timing = timings()["c"]
        assert timing.count == 1
        assert timing.wall is not None
        assert timing.elapsed is not None
        assert timing.elapsed.total - timing.wall.total >= 0.05

    def test_coroutine_elapses_from_its_start_to_its_end(self):
        @timed("elapses")
        async def nap() -> None:
            await asyncio.sleep(0)

        asyncio.run(while_suspended(nap(), 0.02))
        timing = timings()["elapses"]
        assert timing.elapsed is not None
        assert timing.launch is not None
        assert timing.elapsed.total - timing.launch.total >= 0.02

    def test_blocks_that_are_no_coroutines_have_no_elapsed_time(self):
        with timed("block"):
            pass
        assert timings()["block"].elapsed is None

    def test_coroutine_that_raises_counts(self):
        @timed("c")
        async def fail() -> None:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            asyncio.run(fail())
        assert timings()["c"].count == 1

    def test_callable_object_with_a_coroutine(self):
        class Callable:
            async def __call__(self) -> int:
                await asyncio.sleep(0)
                return 1

        assert asyncio.run(timed("c")(Callable())()) == 1
        assert timings()["c"].count == 1

    def test_generator_counts_its_runs(self):
        @timed("g")
        def three():
            sent = yield 1
            yield sent
            return 7

        generator = three()
        assert next(generator) == 1
        assert generator.send("x") == "x"
        assert timings()["g"].count == 2

    def test_coroutine_that_never_ran_has_no_gpu_time(self):
        @timed("c")
        async def work() -> None: ...

        async def wrong() -> None:
            with pytest.raises(TypeError):
                await work(1)  # type: ignore[call-arg]

        asyncio.run(wrong())
        assert timings()["c"].gpu is None

    def test_what_cannot_be_called_is_refused(self):
        with pytest.raises(InvalidArgument):
            timed("x")(5)  # type: ignore[type-var]


def test_coroutines_gpu_time_is_the_sum_of_its_steps(gpu):
    @timed("c")
    async def work(other: asyncio.Event) -> None:
        gpu.work(0.001)
        await asyncio.sleep(0)
        gpu.work(0.002)

    async def main() -> None:
        gate = asyncio.Event()
        await asyncio.gather(work(gate), work(gate))

    asyncio.run(main())
    spread = timings()["c"].gpu
    assert spread is not None
    assert (spread.min, spread.max) == (pytest.approx(0.003), pytest.approx(0.003))


def test_coroutine_of_very_many_steps_stays_bounded(gpu):
    gpu.busy = True
    steps = Steps(None)
    for _ in range(1500):
        with steps:
            pass
    assert gpu.live <= 2 * 1025 + len(gpu.made) + 1
    result = steps.result()
    assert result.gpu is None
    assert "waited for the GPU at once" in result.why


def test_tasks_that_share_an_object_keep_their_own_blocks(gpu):
    shared = timed("x")

    async def block(before: float, pauses: int) -> None:
        gpu.work(before)
        with shared:
            for _ in range(pauses):
                await asyncio.sleep(0)
                gpu.work(0.001)

    async def main() -> None:
        await asyncio.gather(block(0, 1), block(0.002, 4))

    asyncio.run(main())
    spread = shared.summary().gpu
    assert spread is not None
    assert (spread.min, spread.max) == (pytest.approx(0.003), pytest.approx(0.005))


def test_block_may_end_on_another_thread(gpu):
    shared = timed("x")
    shared.__enter__()
    thread = threading.Thread(target=shared.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert shared.summary().count == 1


@pytest.mark.usefixtures("no_gpu")
def test_threads_share_a_name():
    shared = timed("x")

    def many() -> None:
        for _ in range(500):
            with shared:
                pass
            with timed("x"):
                pass

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timing = timings()["x"]
    assert timing.count == 4000
    assert timing.wall is not None
    assert timing.wall.count == 4000


@pytest.mark.usefixtures("no_gpu")
class TestTimings:
    def test_names_come_in_the_order_of_their_first_use(self):
        for name in ("b", "a", "b"):
            with timed(name):
                pass
        assert list(timings()) == ["b", "a"]

    def test_reset_forgets(self):
        with timed("x"):
            pass
        reset_timings()
        assert len(timings()) == 0
        with timed("x"):
            pass
        assert timings()["x"].count == 1

    def test_decorated_functions_survive_a_reset(self):
        @timed("f")
        def nothing() -> None: ...

        nothing()
        reset_timings()
        nothing()
        assert timings()["f"].count == 1

    def test_name_without_blocks_has_no_times(self):
        summary = timed("x").summary()
        assert (summary.count, summary.gpu, summary.wall, summary.launch) == (0, None, None, None)

    def test_table_of_the_cpu_says_why(self):
        with timed("x"):
            pass
        text = str(timings())
        assert " ".join(text.splitlines()[0].split()) == "name calls CPU total CPU mean CPU median CPU min CPU max"
        assert text.splitlines()[-1] == "no GPU time for any name: the GPU is not available: for the test"

    def test_figures_go_to_json_and_pandas(self):
        pandas = pytest.importorskip("pandas")
        with timed("x"):
            pass
        found = timings()
        read = json.loads(found.to_json())
        assert read["x"]["gpu"] is None
        assert read["x"]["wall"]["p99"] == found["x"].wall.p99
        frame = found.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame["launch_mean"].tolist() == [found["x"].launch.mean]

    def test_empty_table_says_so(self):
        assert str(timings()) == "nothing has been timed yet"


def test_table_has_the_longest_first(gpu):
    for name, seconds in (("short", 0.001), ("long", 0.005), ("n" * 60, 0.002)):
        with timed(name):
            gpu.work(seconds)
    lines = str(timings()).splitlines()
    heading = "name calls GPU total GPU mean GPU median GPU min GPU max wall total"
    assert " ".join(lines[0].split()) == heading
    assert [line.split()[0] for line in lines[2:]] == ["long", "n" * 37 + "...", "short"]
    assert lines[2].split()[1:4] == ["1", "5.00", "ms"]
    assert max(map(len, lines)) <= 120


def test_table_tells_of_blocks_without_a_gpu_time(gpu):
    with timed("x"), timed("y"):
        pass
    gpu.capturing = True
    with timed("x"):
        pass
    assert str(timings()).splitlines()[-1].startswith("no GPU or wall time for some of x: the stream was being")


@pytest.mark.parametrize("name", ["", None, 3])
def test_name_is_a_text(name):
    with pytest.raises(InvalidArgument, match=r"^name is .*; accepted are strings that are not empty$"):
        timed(name)


def test_a_decorator_without_a_name_says_how_it_is_given_one():
    def step():
        pass

    with pytest.raises(InvalidArgument, match=r"^name is the function step; .*, as in @timed\('step'\)$"):
        timed(step)


def test_repr_names_it():
    assert repr(timed("x")) == "timed('x')"
    assert isinstance(timed("x"), Timed)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=200))
def test_spread_is_that_of_the_samples(samples):
    sums = _Sum()
    for sample in samples:
        sums.add(sample)
    spread = sums.spread()
    assert spread is not None
    assert spread.count == len(samples)
    assert spread.total == pytest.approx(sum(samples))
    assert spread.min == min(samples) <= spread.mean <= max(samples) == spread.max
    assert spread.median == spread.p50 == statistics.median(samples)
    assert spread.std == pytest.approx(np.std(samples), rel=1e-6, abs=1e-9 * max(samples))
    assert (spread.p90, spread.p95, spread.p99) == pytest.approx(np.quantile(samples, [0.9, 0.95, 0.99]))


def test_median_of_very_many_comes_from_a_bounded_sample():
    sums = _Sum()
    for sample in range(100_000):
        sums.add(float(sample))
    assert len(sums._sample) == totals._KEPT
    spread = sums.spread()
    assert spread is not None
    # Five standard errors of a sample's median: 5 * 0.5 / sqrt(4096) of the ranks.
    assert abs(spread.median - 50_000) < 100_000 * 5 * 0.5 / 64
