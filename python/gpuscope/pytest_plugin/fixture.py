# SPDX-License-Identifier: Apache-2.0
"""The fixture `gpu_benchmark`: measures with gpuscope, then lets pytest-benchmark have the samples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from gpuscope.errors import NotAvailable
from gpuscope.pytest_plugin import options
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.pytest_plugin.replay import CLOCK, replay
from gpuscope.pytest_plugin.session import STATE

if TYPE_CHECKING:
    from gpuscope.benchmark.result import BenchmarkResult

T = TypeVar("T")


class GpuBenchmark:
    """Measures one function a test, as pytest-benchmark's ``benchmark`` does, but on the GPU.

    Example::

        def test_scale(gpu_benchmark):
            y = gpu_benchmark(scale, x, 2.0)
            assert gpu_benchmark.result.median < 20e-6
    """

    def __init__(self, item: pytest.Item, benchmark: Any | None) -> None:
        self._options = item.stash[options.CHOSEN]
        self._item = item
        self._benchmark = benchmark
        # A plugin that takes pytest-benchmark's place may pass for its class by isinstance, but not by type.
        self._replaced = benchmark is not None and not type(benchmark).__module__.startswith("pytest_benchmark.")
        self._result: BenchmarkResult | None = None

    @property
    def enabled(self) -> bool:
        """Whether functions are measured; if not, they are called once and `result` skips the test."""
        return self._why_disabled() == ""

    @property
    def result(self) -> BenchmarkResult:
        """What was measured. A test that asks for it is skipped where pytest-benchmark does not measure.

        Raises:
            NotAvailable: nothing has been measured yet.
        """
        if self._result is None:
            if why := self._why_disabled():
                pytest.skip(f"not measured: {why}")
            raise NotAvailable("nothing has been measured yet: call gpu_benchmark(function) first")
        return self._result

    def __call__(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Measures ``function(*args, **kwargs)``; all keywords are the function's.

        Returns:
            What the function returned.
        """
        call = functools.partial(function, *args, **kwargs) if args or kwargs else function
        if self._replaced:
            return cast(T, cast(Any, self._benchmark)(self._synchronized(call)))
        if not self.enabled:
            return cast(T, cast(Any, self._benchmark).pedantic(call))
        from gpuscope.benchmark import benchmark

        chosen = self._options
        result = self._measure(
            lambda: benchmark(
                call,
                name=self._item.name,
                stream=chosen.stream,
                cold=chosen.cold,
                graph=chosen.graph,
                target=chosen.target,
                budget=chosen.budget,
                bytes=chosen.bytes,
                flops=chosen.flops,
            )
        )
        return cast(T, self._show(result, call))

    def _measure(self, measure: Callable[[], BenchmarkResult]) -> BenchmarkResult:
        if self._result is not None:
            pytest.fail(
                "gpu_benchmark measures once a test: parametrize the test, or use gpu_benchmark.compare", pytrace=False
            )
        try:
            result = measure()
            quantity = self._options.quantity
            if quantity is not None and quantity not in result.quantities:
                raise NotAvailable(f"no {quantity} time: {result.absent.get(quantity, 'it was not measured')}")
        except Exception as error:
            if self._benchmark is not None:
                self._benchmark.pedantic(_raise, args=(error,))  # which takes down that the test was tried and failed
            raise
        return result

    def _show(self, result: BenchmarkResult, call: Callable[[], object]) -> object:
        self._result = result
        measured = Measured.of(result, self._options)
        self._item.config.stash[STATE].measured[self._item.nodeid] = measured
        if self._benchmark is None:
            return result.value
        self._benchmark.extra_info["gpuscope"] = measured.facts
        return replay(self._benchmark, self._item.stash[CLOCK], measured.samples, result.value, call)

    def _why_disabled(self) -> str:
        if self._replaced:
            return f"{type(self._benchmark).__module__} has taken pytest-benchmark's place"
        if self._benchmark is None or self._benchmark.enabled:
            return ""
        return "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist runs the tests)"

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


def _raise(error: Exception) -> None:
    raise error
