# SPDX-License-Identifier: Apache-2.0
"""What a user can set: by the marker, on the command line, and in pytest's configuration, in this order."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from typing import Any

import pytest

from gpuscope.pytest_plugin.replay import ReplayClock

QUANTITIES = ("kernel", "span", "stream", "launch", "wall", "marginal")


@dataclass(frozen=True)
class Options:
    """How one test measures.

    Attributes:
        cold: flush the L2 cache before each call.
        quantity: which time the table shows; None: the GPU's, as far as it can be had.
        target: half-width of the confidence interval, as a fraction of the estimate, at which measuring ends.
        budget: seconds after which it ends all the same.
        bytes: moved per call.
        flops: done per call.
        margin: how much slower than the baseline, as a fraction, a test may become.
        stream: where the function puts its work; None: the framework's current stream.
        graph: also replay the function as a CUDA graph.
    """

    cold: bool = True
    quantity: str | None = None
    target: float = 0.01
    budget: float = 2.0
    bytes: int | None = None
    flops: int | None = None
    margin: float = 0.05
    stream: object = None
    graph: bool = False


CHOSEN = pytest.StashKey[Options]()
NAMES = tuple(field.name for field in fields(Options))
MARKER = (
    "gpu_benchmark(cold=True, quantity=None, target=0.01, budget=2.0, bytes=None, flops=None, margin=0.05, stream=None,"
    " graph=False): how the fixture gpu_benchmark measures, and how much slower than its baseline the test may become."
)


def fraction(text: str) -> float:
    """``5%`` or ``0.05``, as a number."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a fraction; accepted are 5% or 0.05, above 0 and below 1")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time; accepted are seconds above 0")
    return value


def _quantity(text: str) -> str:
    if text not in QUANTITIES:
        raise argparse.ArgumentTypeError(f"{text} is not a quantity; accepted are {', '.join(QUANTITIES)}")
    return text


def _mode(text: str) -> bool:
    if text not in ("cold", "hot"):
        raise argparse.ArgumentTypeError(f"{text} is not a state of the cache; accepted are cold and hot")
    return text == "cold"


# Command line and ini name, the field of Options, how its text is read, help.
_SETTINGS = (
    ("target", "target", fraction, "confidence interval's half-width at which measuring ends, as 1%% or 0.01"),
    ("budget", "budget", _seconds, "seconds after which measuring ends at the latest"),
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
        type=fraction,
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
            need = "pytest-benchmark, which keeps the baselines: pip install 'gpuscope[bench]'"
        else:
            need = "a baseline: add --benchmark-compare, and save one with --benchmark-save or --benchmark-autosave"
        raise pytest.UsageError(f"--gpu-benchmark-fail needs {need}")
    if fails(config) and (config.getoption("benchmark_disable", False) or config.getoption("dist", "no") != "no"):
        raise pytest.UsageError(
            "--gpu-benchmark-fail needs measurements, and pytest-benchmark measures nothing with --benchmark-disable or"
            " under pytest-xdist: leave these out"
        )


def _is_margin(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and value > 0 and math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False


def of(item: pytest.Item) -> Options:
    """The options of one test; a marker on it wins over one on its class or module.

    Raises:
        pytest.UsageError: a marker has an argument that it does not know, or a timer.
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
    if chosen.get("quantity") not in (None, *QUANTITIES):
        raise pytest.UsageError(f"quantity is {chosen['quantity']!r}; accepted are {', '.join(QUANTITIES)}")
    if not _is_margin(chosen.get("margin", Options.margin)):
        raise pytest.UsageError(f"margin is {chosen['margin']!r}; accepted are fractions above 0")
    return Options(**chosen)


def _defaults(config: pytest.Config) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, field, read, _ in (*_SETTINGS, ("margin", "margin", fraction, "")):
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
