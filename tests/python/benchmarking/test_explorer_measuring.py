# SPDX-License-Identifier: Apache-2.0
"""Exploring: what is measured, what is left out, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fakes.backends import FakeBackend
from gpuscope.benchmarking import explorer
from gpuscope.benchmarking.backends import OPERATIONS
from gpuscope.benchmarking.explorer import Exploration, explore
from gpuscope.errors import InvalidArgument

SIDES = ("cpu", "gpu", "gpu+transfers")


@pytest.fixture
def exploring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Exploration]:
    """Explores with fake processors, for as short as it goes."""

    def run(
        cpu: FakeBackend | None = None, gpu: FakeBackend | None = None, why: str = "", **options: Any
    ) -> Exploration:
        monkeypatch.setattr(explorer.backends, "choose", lambda backend: (cpu or FakeBackend(), gpu, why))
        return explore(**{"operations": ["copy"], "sizes": [4, 8], "budget": 0.01, **options})

    return run


def test_every_operation_is_measured_at_every_size_on_every_side(exploring):
    found = exploring(gpu=FakeBackend("gpu"), operations=None)
    measured = {(point.operation, point.n, point.side) for point in found.points}
    assert measured == {(operation.name, n, side) for operation in OPERATIONS for n in (4, 8) for side in SIDES}
    assert all(point.wall.value > 0 and point.rate > 0 for point in found.points)


def test_a_speedup_compares_with_the_cpu_at_the_same_size(exploring):
    points = exploring(gpu=FakeBackend("gpu")).points
    cpu = {point.n: point for point in points if point.side == "cpu"}
    for point in points:
        if point.side == "cpu":
            assert point.speedup is None
        else:
            assert point.speedup.value == pytest.approx(cpu[point.n].wall.value / point.wall.value, rel=0.05)


def test_sizes_visited_once_are_not_compared(exploring):
    found = exploring(gpu=FakeBackend("gpu"), budget=1e-9)
    assert {crossover.answer.kind for crossover in found.crossovers} == {"unknown"}
    assert {point.speedup.low for point in found.points if point.speedup} == {0.0}


def test_transfers_take_every_input_there_and_the_result_back(exploring):
    gpu = FakeBackend("gpu")
    exploring(gpu=gpu, operations=["elementwise"], sizes=[4])
    assert gpu.given > 0
    assert gpu.taken >= 2 * gpu.given


def test_crossovers_are_answered_with_and_without_transfers(exploring):
    found = exploring(gpu=FakeBackend("gpu"), operations=["copy", "sort"])
    answered = {(crossover.operation, crossover.transfers) for crossover in found.crossovers}
    assert answered == {(name, transfers) for name in ("copy", "sort") for transfers in (False, True)}


def test_without_a_gpu_the_cpu_alone_is_measured_and_the_reason_kept(exploring):
    found = exploring(gpu=None, why="PyTorch finds no GPU")
    assert {point.side for point in found.points} == {"cpu"}
    assert (found.gpu, found.why_no_gpu, found.crossovers) == (None, "PyTorch finds no GPU", ())


def test_sizes_that_do_not_fit_in_the_gpus_memory_are_left_out_with_a_remark(exploring):
    found = exploring(gpu=FakeBackend("gpu", free=1000), sizes=[8, 32])
    assert {(point.n, point.side) for point in found.points if point.n == 32} == {(32, "cpu")}
    assert len(found.remarks) == 2
    assert "copy, n = 32, on the GPU: it needs" in found.remarks[0]


def test_an_operation_that_raises_is_a_remark_and_the_others_are_measured(exploring):
    def broken(*_: Any) -> None:
        raise RuntimeError("no such plan\nand more")

    found = exploring(FakeBackend(functions={"fft": broken}), operations=["fft", "copy"])
    assert {point.operation for point in found.points} == {"copy"}
    assert "fft, n = 4, on the CPU: RuntimeError: no such plan" in found.remarks


def test_an_interruption_keeps_what_was_measured(exploring):
    def interrupt(matrix: Any) -> None:
        sizes.append(len(matrix))
        if sizes[0] != sizes[-1]:
            raise KeyboardInterrupt

    sizes: list[int] = []
    found = exploring(FakeBackend(functions={"copy": interrupt}), sizes=[4, 8], budget=60)
    assert found.interrupted
    assert [point.n for point in found.points] == sizes[:1]


def test_an_interruption_before_anything_was_measured_is_passed_on(exploring):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exploring(FakeBackend(functions={"copy": interrupt}))


def test_an_error_of_the_progress_ends_it_and_keeps_what_was_measured(exploring):
    told = []

    def progress(line):
        told.append(line)
        if len(told) == 3:
            raise ValueError("the terminal is gone")

    with pytest.raises(ValueError, match="the terminal is gone") as caught:
        exploring(sizes=[4, 8, 16], budget=1, progress=progress, operations=["sort"])
    assert len(told) == 3
    assert 0 < len(caught.value.measured.points) < 9


def test_an_error_of_the_progress_before_anything_was_measured_is_raised(exploring):
    def progress(line):
        raise ValueError("the terminal is gone")

    with pytest.raises(ValueError, match="the terminal is gone"):
        exploring(sizes=[4], budget=1, progress=progress, operations=["sort"])


def test_progress_says_what_is_measured_and_how_much_time_is_left(exploring):
    lines: list[str] = []
    exploring(sizes=[4], budget=1, progress=lines.append, operations=["sort"])
    assert lines[0] == "sort, n = 4, on the CPU; about 1 s left"


def test_warnings_that_differ_in_figures_alone_are_told_once():
    texts = ("times gather around 1.2 us (80%), 3 ms (20%)", "times gather around 7 us (60%), 8 us (40%)", "other")
    assert len({explorer.pattern(text) for text in texts}) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": ["matmul", "gemm"]}, "operations contains 'gemm'; accepted are matmul, "),
        ({"operations": []}, "operations is empty; accepted are matmul, "),
        ({"sizes": [0]}, "sizes contains 0; accepted are integers of at least 1"),
        ({"sizes": []}, "sizes is empty; accepted are integers of at least 1"),
        ({"operations": "matmul"}, "operations is 'matmul'; accepted is a list of matmul, "),
        ({"operations": 5}, "operations is 5; accepted is a list of matmul, "),
        ({"operations": [[]]}, "operations contains []; accepted are matmul, "),
        ({"sizes": 64}, "sizes is 64; accepted are integers, as [256, 1024]"),
        ({"sizes": [10**400]}, "sizes contains an integer of 1329 bits; accepted are integers of at least 1"),
        ({"sizes": [1.5]}, "sizes contains 1.5; accepted are integers of at least 1"),
        ({"dtype": "float16"}, "dtype is 'float16'; accepted are 'float32', 'float64'"),
        ({"budget": 0}, "budget is 0; accepted are seconds above 0"),
        ({"budget": float("nan")}, "budget is nan; accepted are seconds above 0"),
        ({"budget": 10**400}, "budget is an integer of 1329 bits; accepted are seconds above 0"),
        ({"backend": "jax"}, "backend is 'jax'; accepted are 'torch', 'cupy', 'numpy', None"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(options, message):
    with pytest.raises(InvalidArgument) as caught:
        explore(**options)
    assert str(caught.value).startswith(message)
