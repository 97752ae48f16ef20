# SPDX-License-Identifier: Apache-2.0
"""Options of a user: by the marker, on the command line, and in pytest's configuration, in this order."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import pytest

from gpuscope.arguments import Quantity, check_budget, check_fraction, check_positive, type_of_option
from gpuscope.errors import InvalidArgument
from gpuscope.pytest_plugin.replay import ReplayClock
from gpuscope.text import brief
from gpuscope.units import parse_seconds, parse_share

QUANTITIES = (*get_args(Quantity), "marginal")


@dataclass(frozen=True)
class BenchmarkOptions:
    """How one test measures.

    Attributes:
        cold: flush the L2 cache before each call.
        quantity: which time the table shows; None: the GPU's, if available.
        precision: half-width of the confidence interval, as a fraction of the estimate, at which measuring ends.
        budget: seconds after which measuring ends in any case.
        bytes: moved per call.
        flops: done per call.
        margin: how much slower than the baseline, as a fraction, a test may become.
        stream: where the function puts its work; None: the framework's current stream.
        graph: also replay the function as a CUDA graph.
    """

    cold: bool = True
    quantity: str | None = None
    precision: float = 0.01
    budget: float = 2.0
    bytes: float | None = None
    flops: float | None = None
    margin: float = 0.05
    stream: object = None
    graph: bool = False


CHOSEN = pytest.StashKey[BenchmarkOptions]()
NAMES = tuple(field.name for field in fields(BenchmarkOptions))
MARKER = (
    "gpu_benchmark(cold=True, quantity=None, precision=0.01, budget=2.0, bytes=None, flops=None, margin=0.05, "
    "stream=None, graph=False): how the fixture gpu_benchmark measures, and how much slower than its baseline the test "
    "may become."
)


_share = type_of_option(parse_share)
_seconds = type_of_option(parse_seconds)


@type_of_option
def _quantity(text: str) -> str:
    if text not in QUANTITIES:
        raise InvalidArgument(f"{brief(text)} is not a quantity; accepted are {', '.join(QUANTITIES)}")
    return text


@type_of_option
def _mode(text: str) -> bool:
    if text not in ("cold", "hot"):
        raise InvalidArgument(f"{brief(text)} is not a state of the cache; accepted are cold and hot")
    return text == "cold"


# Command line and ini name, the field of BenchmarkOptions, how its text is read, help.
_SETTINGS = (
    ("precision", "precision", _share, "confidence interval's half-width at which measuring ends, as 1%% or 0.01"),
    ("budget", "budget", _seconds, "time after which measuring ends at the latest, as 2s or 500ms"),
    ("quantity", "quantity", _quantity, f"the time to show: {', '.join(QUANTITIES)}; default: the GPU's"),
    ("cache", "cold", _mode, "cold: flush the L2 cache before each call; hot: leave it as it is"),
)


def add(parser: pytest.Parser) -> None:
    """Declares the options to pytest."""
    group = parser.getgroup("gpu-benchmark", "GPU benchmarks (gpuscope)")
    for name, _, read, text in _SETTINGS:
        group.addoption(f"--gpu-benchmark-{name}", type=read, help=text)
        parser.addini(f"gpu_benchmark_{name}", text.replace("%%", "%"))
    group.addoption(
        "--gpu-benchmark-fail",
        nargs="?",
        type=_share,
        const=True,
        metavar="MARGIN",
        help="fail the run when a test is surely slower than its --benchmark-compare baseline by more than MARGIN"
        " (default: 5%%; the marker's margin wins)",
    )
    parser.addini("gpu_benchmark_margin", "how much slower than its baseline a test may become, as 5% or 0.05")


def fails(config: pytest.Config) -> bool:
    """Whether a test slower than its baseline fails the run."""
    return bool(config.getoption("gpu_benchmark_fail"))


def check(config: pytest.Config) -> None:
    """Raises pytest.UsageError for wrong settings before any test runs."""
    _defaults(config)
    if fails(config) and not config.getoption("benchmark_compare", None):
        if not config.pluginmanager.hasplugin("benchmark"):
            need = "pytest-benchmark, which keeps the baselines: pip install pytest-benchmark"
        else:
            need = "a baseline: add --benchmark-compare, and save one with --benchmark-save or --benchmark-autosave"
        raise pytest.UsageError(f"--gpu-benchmark-fail needs {need}")
    disabled = config.getoption("benchmark_disable", False) and not config.getoption("benchmark_enable", False)
    if fails(config) and (disabled or config.getoption("dist", "no") != "no"):
        raise pytest.UsageError(
            "--gpu-benchmark-fail needs measurements, and pytest-benchmark measures nothing with --benchmark-disable or"
            " under pytest-xdist: leave these out"
        )


def of(item: pytest.Item) -> BenchmarkOptions:
    """The options of one test; a marker on it wins over one on its class or module.

    Raises:
        pytest.UsageError: a marker has an unknown argument, an invalid value or a timer.
    """
    own = [marker for marker in item.iter_markers("benchmark") if "timer" in marker.kwargs]
    if any(not isinstance(marker.kwargs["timer"], ReplayClock) for marker in own):
        raise pytest.UsageError("gpu_benchmark has a clock of its own: remove timer= from @pytest.mark.benchmark")
    chosen = _defaults(item.config)
    for marker in reversed(list(item.iter_markers("gpu_benchmark"))):
        if marker.args:
            raise pytest.UsageError("@pytest.mark.gpu_benchmark takes no positional arguments; name them")
        for name in marker.kwargs:
            if name not in NAMES:
                raise pytest.UsageError(
                    f"@pytest.mark.gpu_benchmark has no argument {name}; accepted are {', '.join(NAMES)}"
                )
        chosen |= marker.kwargs
    try:
        return _checked(BenchmarkOptions(**chosen))
    except InvalidArgument as error:
        raise pytest.UsageError(f"@pytest.mark.gpu_benchmark: {error}") from None


def _checked(given: BenchmarkOptions) -> BenchmarkOptions:
    """The options with plain numbers; raises InvalidArgument for an invalid one."""
    for name in ("cold", "graph"):
        if not isinstance(getattr(given, name), bool):
            raise InvalidArgument(f"{name} is {brief(getattr(given, name))}; accepted are True and False")
    if given.quantity is not None and not (isinstance(given.quantity, str) and given.quantity in QUANTITIES):
        raise InvalidArgument(f"quantity is {brief(given.quantity)}; accepted are {', '.join(QUANTITIES)}, or None")
    return replace(
        given,
        precision=check_fraction("precision", given.precision),
        budget=check_budget(given.budget),
        bytes=None if given.bytes is None else check_positive("bytes", given.bytes),
        flops=None if given.flops is None else check_positive("flops", given.flops),
        margin=check_positive("margin", given.margin, "fractions"),
    )


def _defaults(config: pytest.Config) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, field, read, _ in (*_SETTINGS, ("margin", "margin", _share, "")):
        if text := config.getini(f"gpu_benchmark_{name}"):
            try:
                chosen[field] = read(text)
            except argparse.ArgumentTypeError as error:
                raise pytest.UsageError(f"gpu_benchmark_{name}: {error}") from None
    for name, field, *_ in _SETTINGS:
        if (value := config.getoption(f"gpu_benchmark_{name}")) is not None:
            chosen[field] = value
    margin = config.getoption("gpu_benchmark_fail")
    if isinstance(margin, float):
        chosen["margin"] = margin
    return chosen
