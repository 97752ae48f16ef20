# SPDX-License-Identifier: Apache-2.0
"""The fixture `gpu_benchmark`: measures with gpuscope, then lets pytest-benchmark have the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import pytest

from gpuscope.errors import NotAvailable
from gpuscope.pytest_plugin import options
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.pytest_plugin.replay import CLOCK, replay
from gpuscope.pytest_plugin.session import STATE

if TYPE_CHECKING:
    from gpuscope.benchmarking.comparison import Comparison
    from gpuscope.benchmarking.result import BenchmarkResult

T = TypeVar("T")


class GpuBenchmark:
    """Measures one function a test, as pytest-benchmark's ``benchmark`` does, but on the GPU.

    Example::

        def test_scale(gpu_benchmark):
            y = gpu_benchmark(scale, x, 2.0)
            assert gpu_benchmark.result.median < 20e-6
    """

    def __init__(self, item: pytest.Item, benchmark: Any | None) -> None:
        self._item = item
        self._options = item.stash[options.CHOSEN]
        self._benchmark = benchmark
        # A plugin that replaces pytest-benchmark may pass isinstance with its class, but not a check of the type.
        self._replaced = benchmark is not None and not type(benchmark).__module__.startswith("pytest_benchmark.")
        self._used = False
        self._result: BenchmarkResult | None = None

    @property
    def enabled(self) -> bool:
        """Whether functions are measured; if not, they are called once and `result` skips the test."""
        return self._why_disabled() == ""

    @property
    def result(self) -> BenchmarkResult:
        """The result. A test that asks for it is skipped if pytest-benchmark does not measure.

        Raises:
            NotAvailable: nothing has been measured yet.
        """
        if self._result is None:
            if why := self._why_disabled():
                pytest.skip(f"not measured: {why}")
            raise NotAvailable("nothing has been measured yet: call gpu_benchmark(function) first")
        return self._result

    def __call__(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        setup: Callable[[], object] | None = None,
        teardown: Callable[..., object] | None = None,
        **kwargs: Any,
    ) -> T:
        """Measures ``function(*args, **kwargs)``; all other keywords are the function's.

        Args:
            function: the function to measure.
            *args: its arguments.
            setup: is called before each call and not timed; it may return the call's arguments: see
                `gpuscope.benchmark`.
            teardown: is called after each call, with the same arguments as it, and not timed.
            **kwargs: for the function; use functools.partial if it takes `setup` or `teardown` itself.

        Returns:
            The function's result.

        Raises:
            NotAvailable: the quantity that the marker names cannot be measured here.
            KeyboardInterrupt: Ctrl-C was pressed.
            Exception: whatever the function raises.
        """
        call = function
        if args or kwargs:
            call = partial(function, *args, **kwargs)
            teardown = teardown and partial(teardown, *args, **kwargs)
        once = _once(call, setup, teardown)
        if not self.enabled:
            return self._called(once)
        from gpuscope.benchmarking import benchmark

        chosen = self._options
        with self._measuring():
            result = benchmark(
                call,
                **_given(setup=setup, teardown=teardown),
                name=self._item.name,
                stream=chosen.stream,
                cold=chosen.cold,
                graph=chosen.graph,
                precision=chosen.precision,
                budget=chosen.budget,
                bytes=chosen.bytes,
                flops=chosen.flops,
            )
            _end_if_interrupted(result)
            if (chosen.quantity or result.quantity) not in result.quantities:
                why = result.absent.get(str(chosen.quantity), "it was not measured")
                raise NotAvailable(f"no {chosen.quantity} time: {why}")
        self._result = result
        return cast(T, self._show(Measured.of(result, chosen), result.value, once))

    def compare(
        self,
        a: Callable[[], object],
        b: Callable[[], object],
        *,
        margin: float = 0.01,
        names: tuple[str, str] = ("", ""),
        setup: Callable[[], object] | None = None,
        teardown: Callable[..., object] | None = None,
    ) -> Comparison:
        """Determines whether `b` is faster or slower than `a`, measured in turns: see `gpuscope.compare`.

        pytest-benchmark gets the samples of `b`, the function under test; those of `a` and the ratio are saved too. If
        pytest-benchmark does not measure, the test is skipped after one call of each function.

        Args:
            a: the function to compare with, called without arguments.
            b: the function under test, called without arguments.
            margin: ratios this close to 1 count as no difference, as a fraction.
            names: of the two; the functions' own if empty.
            setup: is called before each call of either and not timed: see `gpuscope.compare`.
            teardown: is called after each call, with the same arguments as it, and not timed.

        Raises:
            NotAvailable: the quantity that the marker names cannot be measured here.
            KeyboardInterrupt: Ctrl-C was pressed.
            Exception: whatever the functions raise.
        """
        once_a, once_b = (_once(each, setup, teardown) for each in (a, b))
        if why := self._why_disabled():
            once_a()
            self._called(once_b)
            pytest.skip(f"not measured: {why}")
        from gpuscope.benchmarking.comparison import compare

        chosen = self._options
        with self._measuring():
            comparison = compare(
                a,
                b,
                names=names if any(names) else None,
                stream=chosen.stream,
                cold=chosen.cold,
                quantity=cast(Any, chosen.quantity),
                margin=margin,
                budget=chosen.budget,
                **_given(setup=setup, teardown=teardown),
            )
            _end_if_interrupted(comparison)
        self._show(Measured.of_comparison(comparison, chosen), None, once_b)
        return comparison

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        if self._used:
            pytest.fail(
                "gpu_benchmark measures once a test: parametrize it, or use gpu_benchmark.compare", pytrace=False
            )
        self._used = True
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self._benchmark is not None:
                self._benchmark.pedantic(_raise, args=(error,))  # records the test as tried and failed
            raise

    def _show(self, measured: Measured, value: object, call: Callable[[], object]) -> object:
        self._item.config.stash[STATE].measured[self._item.nodeid] = measured
        if self._benchmark is None:
            return value
        self._benchmark.extra_info["gpuscope"] = measured.facts
        return replay(self._benchmark, self._item.stash[CLOCK], measured.samples, value, call)

    def _why_disabled(self) -> str:
        if self._replaced:
            return f"{type(self._benchmark).__module__} has taken pytest-benchmark's place"
        if self._benchmark is None or self._benchmark.enabled:
            return ""
        return "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist runs the tests)"

    def _called(self, call: Callable[[], T]) -> T:
        benchmark = cast(Any, self._benchmark)
        return cast(T, benchmark(self._synchronized(call)) if self._replaced else benchmark.pedantic(call))

    def _synchronized(self, call: Callable[[], T]) -> Callable[[], T]:
        from gpuscope import _core, streams

        if not _core.environment()["devices"]:
            return call
        stream = streams.resolve(self._options.stream)

        def synchronized() -> T:
            value = call()
            _core.synchronize(stream.device)
            return value

        return synchronized


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _once(
    function: Callable[..., T], setup: Callable[[], object] | None, teardown: Callable[..., object] | None
) -> Callable[[], T]:
    """Calls the function as it is measured."""
    if setup is None and teardown is None:
        return function
    from gpuscope.benchmarking.per_call import PerCall

    return cast("Callable[[], T]", partial(PerCall(setup, teardown).call, function))


def _end_if_interrupted(result: BenchmarkResult | Comparison) -> None:
    """Passes Ctrl-C on to pytest: a benchmark only ends early by it, and the next one would begin."""
    if result.stopped == "interrupted":
        raise KeyboardInterrupt


def _raise(error: BaseException) -> NoReturn:
    raise error
