# SPDX-License-Identifier: Apache-2.0
"""pytest's plugin: the fixture `gpu_benchmark`, with results in pytest-benchmark's table, files and comparisons.

Every run of pytest imports it, so it imports almost nothing. The first test that measures loads gpuscope's core, or
pytest-benchmark when it asks for facts about the machine.

PYTEST_DONT_REWRITE: it has no assertions, and pytest would warn if it was imported before.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from gpuscope.pytest_plugin import options
from gpuscope.pytest_plugin.replay import CLOCK, ReplayClock
from gpuscope.pytest_plugin.session import STATE, State

if TYPE_CHECKING:
    from gpuscope.pytest_plugin.fixture import GpuBenchmark


class _Fixtures:
    @pytest.fixture
    def _gpu_benchmark_item(self, request: pytest.FixtureRequest) -> pytest.Item:
        """The test with its clock and options; a test that uses request.getfixturevalue gets them only now."""
        item: pytest.Item = request.node
        if CLOCK not in item.stash:
            _give_clock(item)
            _read_markers(item)
        return item


class _BesideBenchmark(_Fixtures):
    # The item comes first: `benchmark` reads the marker that has the clock.
    # Asking for `benchmark` makes a test a benchmark for --benchmark-only and --benchmark-skip.
    @pytest.fixture
    def gpu_benchmark(self, _gpu_benchmark_item: pytest.Item, benchmark: Any) -> GpuBenchmark:
        """Measures a function on the GPU; pytest-benchmark shows, saves and compares the result."""
        from gpuscope.pytest_plugin.fixture import GpuBenchmark

        return GpuBenchmark(_gpu_benchmark_item, benchmark)


class _Alone(_Fixtures):
    @pytest.fixture
    def gpu_benchmark(self, request: pytest.FixtureRequest, _gpu_benchmark_item: pytest.Item) -> GpuBenchmark:
        """Measures a function on the GPU."""
        from gpuscope.pytest_plugin.fixture import GpuBenchmark

        try:
            benchmark = request.getfixturevalue("benchmark")
        except pytest.FixtureLookupError:
            benchmark = None
        return GpuBenchmark(_gpu_benchmark_item, benchmark)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options."""
    options.add(parser)


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark's, which loads the baselines
def pytest_configure(config: pytest.Config) -> None:
    """Makes the fixture, on top of pytest-benchmark's if that is installed."""
    config.addinivalue_line("markers", options.MARKER)
    known = any(config.pluginmanager.hasplugin(name) for name in ("benchmark", "pytest_benchmark.plugin", "codspeed"))
    config.pluginmanager.register(_BesideBenchmark() if known else _Alone(), "gpuscope-fixture")
    options.check(config)
    config.stash[STATE] = State()


@pytest.hookimpl(tryfirst=True)  # later, other plugins have read the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives pytest-benchmark our clock for the tests that use `gpu_benchmark`."""
    for item in items:
        if "gpu_benchmark" in getattr(item, "fixturenames", ()):
            _give_clock(item)


@pytest.hookimpl(tryfirst=True)  # before the fixtures, which would warn about not being used
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reads the test's markers."""
    if CLOCK in item.stash:
        _read_markers(item)


def _give_clock(item: pytest.Item) -> None:
    item.stash[CLOCK] = ReplayClock()
    marker = item.get_closest_marker("benchmark")
    given = marker.kwargs if marker else {}
    item.add_marker(pytest.mark.benchmark(**{"timer": item.stash[CLOCK], **given}), append=False)


def _read_markers(item: pytest.Item) -> None:
    try:
        item.stash[options.CHOSEN] = options.of(item)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Ends the run before measuring if the gate has nothing to compare with."""
    if options.fails(session.config):
        session.config.stash[STATE].check_baselines(session.config.pluginmanager.getplugin("pytest-benchmark"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Compares with the baselines."""
    state = session.config.stash[STATE]
    state.judge()
    watched = any(CLOCK in item.stash for item in getattr(session, "items", ()))
    state.gated = watched and options.fails(session.config) and not session.config.getoption("collectonly")
    if state.gated and (state.slower() or state.unjudged()) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, object, object]:
    """Adds our section after pytest-benchmark's table."""
    try:
        return (yield)
    finally:  # pytest-benchmark raises here when its own gate fails
        config.stash[STATE].write(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Adds the GPUs: only facts that differ between machines, as pytest-benchmark warns of changes."""
    from gpuscope import _core

    try:
        core = _core.environment()
    except Exception:  # pytest-benchmark's run does not depend on us
        return
    if core["devices"]:
        kept = ("name", "capability", "memory_bytes")
        machine_info["gpus"] = [{name: device[name] for name in kept} for device in core["devices"]]
        machine_info["gpu_driver"] = core["driver_version"]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: Mapping[str, Any]) -> None:
    """Adds the samples."""
    for entry in output_json["benchmarks"]:
        if (measured := config.stash[STATE].measured.get(entry["fullname"])) is not None:
            # pytest-benchmark drops the samples of saved runs; the gate needs them.
            entry["extra_info"] = {**entry["extra_info"], "gpuscope": measured.stored()}


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # before pytest-benchmark's, which does not check the file
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, machine_info: Mapping[str, Any], compared_benchmark: Mapping[str, Any]
) -> None:
    """Keeps the baselines."""
    config.stash[STATE].add_baseline(machine_info, compared_benchmark)
