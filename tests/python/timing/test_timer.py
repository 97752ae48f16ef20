# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gpuscope import _core, streams
from gpuscope.errors import InvalidArgument
from gpuscope.timing import Timer, timed, timings


@pytest.mark.usefixtures("no_gpu")
class TestWithoutAGpu:
    def test_wall_time_is_the_cpus(self):
        with Timer() as timer:
            time.sleep(0.01)
        assert timer.wall_time == timer.launch_time >= 0.01
        assert timer.wall_error == 0

    def test_gpu_time_is_absent_with_the_reason(self):
        with Timer() as timer:
            pass
        assert timer.gpu_time is None
        assert timer.why == "the GPU is not available: for the test"

    def test_is_ready_at_once(self):
        with Timer() as timer:
            assert not timer.ready
        assert timer.ready

    def test_line_says_what_was_timed(self):
        with Timer() as timer:
            pass
        assert str(timer).startswith("CPU ")
        assert str(timer).endswith("(no GPU time: the GPU is not available: for the test)")


def test_nothing_is_timed_yet():
    timer = Timer()
    assert (timer.gpu_time, timer.launch_time, timer.wall_time, timer.wall_error) == (None, None, None, None)
    assert timer.why == str(timer) == "no block has been timed yet"
    assert not timer.ready


def test_gpu_time_is_the_time_between_the_events(gpu):
    with Timer() as timer:
        gpu.work(0.002)
    assert timer.gpu_time == 0.002
    assert timer.why == ""


def test_wall_time_ends_when_the_gpu_does(gpu):
    began = time.perf_counter()
    with Timer() as timer:
        gpu.work(0.002)
    wall_time, took = timer.wall_time, time.perf_counter() - began
    assert wall_time is not None
    assert timer.wall_error is not None
    assert -0.5 < wall_time < took + 0.5  # the fake GPU ends with the host
    assert timer.wall_error >= 4e-6


def test_wall_time_counts_from_the_anchor(gpu, monkeypatch):
    # The anchor says: the GPU's 5 ms are the host's 2 s. The block ends 30 ms later on the GPU.
    monkeypatch.setattr(_core, "monotonic_ns", lambda: 2_000_000_000)
    with Timer() as timer:
        pass
    with timer:
        gpu.work(0.03)
    assert timer.wall_time == pytest.approx(0.03)
    assert timer.launch_time == 0
    assert timer.wall_error == pytest.approx(4e-6 + 0.5e-6 + 0.03 * 1e-4, rel=1e-2)


def test_block_does_not_wait(gpu):
    gpu.busy = True
    with Timer() as timer:
        pass
    assert gpu.waited == 0
    assert not timer.ready
    assert timer.launch_time is not None
    assert "not done yet" in repr(timer)
    assert gpu.waited == 0


def test_reading_waits_once(gpu):
    with Timer() as timer:
        pass
    timer.gpu_time, timer.wall_time, timer.why, str(timer)
    assert gpu.waited == 1


def test_events_go_back_when_the_times_are_read(gpu):
    with Timer() as timer:
        pass
    gpu.made.clear()
    before = gpu.live
    timer.gpu_time  # noqa: B018
    assert gpu.live < before


def test_exception_keeps_the_measurement(gpu):
    timer = Timer()

    def fail() -> None:
        with timer:
            gpu.work(0.004)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert timer.gpu_time == 0.004


def test_can_be_entered_again(gpu):
    timer = Timer()
    for milliseconds in (1, 2):
        with timer:
            gpu.work(milliseconds / 1e3)
        assert timer.gpu_time == milliseconds / 1e3


def test_can_be_entered_inside_its_own_block(gpu):
    timer = Timer()
    with timer:
        gpu.work(0.001)
        with timer:
            gpu.work(0.002)
        assert timer.gpu_time == 0.002
    assert timer.gpu_time == 0.003


def test_timers_nest(gpu):
    with Timer() as outer, Timer() as inner:
        gpu.work(0.001)
    assert outer.gpu_time == inner.gpu_time == 0.001


def test_both_events_are_on_the_stream(gpu):
    with Timer(stream=streams.Stream(1007, 1, "int")):
        pass
    assert [event.streams for event in gpu.made[:2]] == [[1007], [1007]]
    assert {event.device for event in gpu.made[:2]} == {1}


def test_stream_that_is_none_is_refused_on_entering():
    with pytest.raises(InvalidArgument, match=r"^stream is 1\.5"), Timer(stream=1.5):
        pytest.fail("the block ran")


@pytest.mark.parametrize("when", ["at the begin", "at the end"])
def test_capture_leaves_no_gpu_time(gpu, when):
    gpu.capturing = when == "at the begin"
    with Timer() as timer:
        gpu.capturing = True
    assert timer.gpu_time is None
    assert timer.wall_time is None
    assert timer.launch_time is not None
    assert "captured into a CUDA graph" in timer.why
    assert timer.ready


def test_capture_records_nothing(gpu):
    gpu.capturing = True
    with Timer():
        pass
    assert all(event.streams == [] for event in gpu.made)


def test_broken_gpu_does_not_hide_the_programs_error(gpu):
    timer = Timer()

    def fail() -> None:
        with timer:
            gpu.broken = True
            raise RuntimeError("the program's")

    with pytest.raises(RuntimeError, match="the program's"):
        fail()
    assert timer.gpu_time is None
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in timer.why


def test_gpu_that_breaks_later_is_told_of(gpu):
    with Timer() as timer:
        pass
    gpu.broken = True
    assert timer.ready
    assert timer.gpu_time is None
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(timer)


def test_without_an_anchor_only_the_wall_time_is_absent(gpu):
    gpu.answers = False
    with Timer() as timer:
        gpu.work(0.001)
    assert timer.gpu_time == 0.001
    assert timer.wall_time is None
    assert "did not answer in time" in timer.why
    assert "did not answer in time" in str(timer)


def test_anchor_is_taken_later_when_the_gpu_was_silent(gpu):
    gpu.answers = False
    with Timer() as timer:
        gpu.work(0.001)
    gpu.answers = True
    assert timer.wall_time is not None


def test_silent_gpu_is_not_asked_every_time(gpu):
    gpu.answers = False
    for _ in range(100):
        with Timer():
            pass
    assert gpu.asked < 10


def test_anchor_serves_many_blocks(gpu):
    for _ in range(100):
        with Timer():
            pass
    assert gpu.asked < 10


def test_anchor_is_taken_anew_once_the_program_has_reset_the_gpu(gpu):
    with Timer():
        pass
    asked = gpu.asked
    gpu.resets += 1
    with Timer() as timer:
        gpu.work(0.005)
    assert gpu.asked == asked + 1
    assert timer.wall_time is not None


def test_line_has_all_three_times(gpu):
    with Timer() as timer:
        gpu.work(0.00123)
    assert str(timer).startswith("GPU 1.23 ms, launch ")
    assert " wall " in str(timer)
    assert "+-" in str(timer)


def test_thousands_leave_nothing_behind(gpu):
    timer = Timer()
    for _ in range(5000):
        with timer:
            pass
    assert gpu.live <= len(gpu.made) + 6


def test_a_decorated_function_is_timed_at_each_call(gpu):
    timer = Timer()

    @timer
    def work(seconds: float) -> float:
        """What it does."""
        gpu.work(seconds)
        return seconds

    for seconds in (0.001, 0.002):
        assert work(seconds) == seconds
        assert timer.gpu_time == seconds
    assert (work.__name__, work.__doc__) == ("work", "What it does.")


def test_a_decorator_with_a_name_adds_each_call_to_its_totals(gpu):
    @Timer("work")
    def work(seconds: float) -> None:
        gpu.work(seconds)

    for milliseconds in (1, 2, 6):
        work(milliseconds / 1e3)
    spread = timings()["work"].gpu
    assert spread is not None
    assert (spread.count, spread.total) == (3, pytest.approx(0.009))


def test_a_timer_without_a_name_adds_to_no_totals(gpu):
    with Timer():
        gpu.work(0.001)
    assert not timings()


def test_a_block_of_timed_has_its_own_times_too(gpu):
    with timed("x") as block:
        gpu.work(0.001)
    assert block.gpu_time == 0.001


def test_a_recursive_function_leaves_the_time_of_its_outermost_call(gpu):
    timer = Timer("down")

    @timer
    def down(levels: int) -> None:
        gpu.work(0.001)
        if levels:
            down(levels - 1)

    down(2)
    assert timer.gpu_time == pytest.approx(0.003)
    assert timings()["down"].count == 3


def test_threads_that_share_a_timer_do_not_end_each_others_blocks(gpu):
    timer = Timer("both")
    has_begun, may_end = threading.Event(), threading.Event()

    @timer
    def wait() -> None:
        has_begun.set()
        assert may_end.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    assert has_begun.wait(60)
    gpu.work(0.001)
    with timer:
        gpu.work(0.002)
        may_end.set()
        thread.join()
        assert timer.gpu_time == pytest.approx(0.003)
        gpu.work(0.004)
    assert timer.gpu_time == pytest.approx(0.006)
    assert timings()["both"].count == 2


def test_a_coroutine_is_timed_once_a_call_without_its_sleep(gpu):
    timer = Timer("nap")

    @timer
    async def nap() -> None:
        gpu.work(0.001)
        await asyncio.sleep(0)
        gpu.work(0.002)

    async def beside() -> None:
        gpu.work(0.5)

    async def both() -> None:
        await asyncio.gather(nap(), beside())

    asyncio.run(both())
    assert timer.gpu_time == pytest.approx(0.003)
    assert timings()["nap"].count == 1


def test_a_generator_is_timed_from_one_item_to_the_next(gpu):
    timer = Timer()

    @timer
    def items():
        gpu.work(0.001)
        yield 1
        gpu.work(0.002)
        yield 2

    times = []
    for _ in items():
        times.append(timer.gpu_time)
        gpu.work(0.5)
    assert times == pytest.approx([0.001, 0.002])


def test_a_method_and_a_static_method_are_timed(gpu):
    timer = Timer()

    class Model:
        @timer
        def forward(self) -> str:
            gpu.work(0.001)
            return "forward"

        @timer
        @staticmethod
        def load() -> str:
            gpu.work(0.002)
            return "load"

    assert (Model().forward(), timer.gpu_time) == ("forward", 0.001)
    assert (Model.load(), timer.gpu_time) == ("load", 0.002)


def test_a_decorated_function_that_raises_is_timed(gpu):
    timer = Timer()

    @timer
    def fail() -> None:
        gpu.work(0.004)
        raise RuntimeError("the program's")

    with pytest.raises(RuntimeError, match="the program's"):
        fail()
    assert timer.gpu_time == 0.004


def test_a_decorator_without_parentheses_says_how_it_is_written():
    def step() -> None: ...

    with pytest.raises(InvalidArgument, match=r"^name is the function step; .*, as in @Timer\('step'\)$"):
        Timer(step)


def test_a_stream_in_place_of_a_name_says_how_it_is_given():
    with pytest.raises(InvalidArgument, match=r"^name is 7; accepted are .*, and streams as stream=\.\.\.$"):
        Timer(7)
