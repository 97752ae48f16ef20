# SPDX-License-Identifier: Apache-2.0
"""Which of two functions is faster, by turns that they take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking import blocks
from gpuscope.benchmarking.blocks import CONFIDENCE, FEWEST_BLOCKS, LOOKS, Judgement, Looks, Verdict, judge, patience
from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.kernel_times import Kernel
from gpuscope.benchmarking.samples import Quantity, Samples, joined
from gpuscope.benchmarking.stopping import Budget, check_budget, check_fraction
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.results import Distribution, Result, format_estimate, without_nan
from gpuscope.stats import Ratio
from gpuscope.units import format_seconds

SCHEMA = "gpuscope.comparison"
VERSION = 1

WARM_UP = 0.25  # of the budget, at most
PILOT, PILOT_TIME = 8, 0.05  # blocks that show how coarse the clock is, and the most of the budget for them
LONGEST_BATCH = 0.25  # seconds; what is being sampled is lost when it is interrupted
TAGGED = 0.05


@dataclass(frozen=True)
class Growth:
    """How one kernel's time differs between two functions.

    Attributes:
        name: of the kernel, copy or fill.
        before: seconds per call of the first function; 0 when it does not run there.
        after: seconds per call of the second.
    """

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Comparison(Result):
    """The result of `compare`, on the ratio of b's time over a's. ``print(result)`` says it in one line.

    Attributes:
        verdict: "slower" or "faster": b's time lies outside of the margin, all of the interval. "same": inside of it.
            "inconclusive": the interval is too wide to say.
        ratio: b over a, with its interval of 95 % over all looks at the data.
        margin: ratios this close to 1 count as no difference, as a fraction; at least what was asked for.
        null: the same function a over a, measured in the same turns. It is 1 but for noise.
        quantity: kernel, stream or wall, as in `BenchmarkResult`.
        a: the valid calls of a, in the order called.
        b: those of b.
        blocks: how many turns the ratio rests on.
        names: of a and b.
        kernels: what ran in a call of a, and of b; empty without CUPTI.
        warnings: what a reader should know, a sentence each.
        stopped: "verdict", "target", "budget" or "interrupted".
        seconds: what the comparison took, everything included.
        advice: what would settle it, when it is inconclusive.
    """

    verdict: Verdict
    ratio: Ratio
    margin: float
    null: Ratio
    quantity: str
    a: Distribution
    b: Distribution
    blocks: int
    names: tuple[str, str]
    kernels: tuple[tuple[Kernel, ...], ...]
    warnings: tuple[str, ...]
    stopped: str
    seconds: float
    advice: str = ""

    @property
    def culprit(self) -> Growth | None:
        """The kernel whose time per call grew most from a to b; None when none grew, or without CUPTI."""
        if len(self.kernels) != 2:
            return None
        before, after = ({kernel.name: kernel.seconds for kernel in side} for side in self.kernels)
        grown = [Growth(name, before.get(name, 0.0), seconds) for name, seconds in after.items()]
        most = max(grown, key=lambda one: one.after - one.before, default=None)
        return most if most is not None and most.after > most.before else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types; None stands for the ends of an interval that has none."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "verdict": self.verdict,
            "ratio": without_nan(asdict(self.ratio)),
            "margin": self.margin,
            "null": without_nan(asdict(self.null)),
            "quantity": self.quantity,
            "a": self.a.samples.tolist(),
            "b": self.b.samples.tolist(),
            "blocks": self.blocks,
            "names": list(self.names),
            "kernels": [[asdict(kernel) for kernel in side] for side in self.kernels],
            "culprit": None if self.culprit is None else asdict(self.culprit),
            "warnings": list(self.warnings),
            "stopped": self.stopped,
            "seconds": self.seconds,
            "advice": self.advice,
        }

    def __bool__(self) -> bool:
        raise TypeError("a Comparison is neither true nor false; read its verdict")

    def __str__(self) -> str:
        a, b = self.names
        ratio = self.ratio
        value, low, high = ratio.value, ratio.low, ratio.high
        if self.verdict == "faster":
            value, low, high = 1 / value, 1 / high, 1 / low if low else math.inf
        facts = (
            f"({100 * CONFIDENCE:g} %: {_short(low)} to {_short(high)}, {self.quantity} time, "
            f"{self.blocks} block{'' if self.blocks == 1 else 's'}, margin {100 * self.margin:.3g} %)"
        )
        if self.verdict == "slower" and self.culprit is not None and sum(map(len, self.kernels)) > 2:
            grown = self.culprit.after - self.culprit.before
            facts += f", most of it in {self.culprit.name}: +{1e6 * grown:.3g} us"
        if self.verdict in ("faster", "slower"):
            return f"{b} is {_short(value)}x {self.verdict} than {a} {facts}"
        if self.verdict == "same":
            return f"{b} is as fast as {a}: ratio {_short(value)} {facts}"
        advice = f"; {self.advice}" if self.advice else ""
        return f"{b} against {a} is inconclusive: ratio {_short(value)} {facts}{advice}"

    def report(self) -> str:
        """Several lines: the verdict, the time of each function, its kernels, and the warnings."""
        lines = [str(self)]
        width = max(map(len, self.names))
        for name, samples in zip(self.names, (self.a.samples, self.b.samples), strict=True):
            time = stats.estimate(samples)
            lines.append(f"  {name:<{width}}  {self.quantity} {format_estimate(time)}, {time.n} samples")
        for name, kernels in zip(self.names, self.kernels, strict=False):
            lines += [f"    {format_seconds(k.seconds, 4):>9}  {k.count:6g} x  {k.name}  ({name})" for k in kernels]
        if self.stopped == "interrupted":
            lines.append("  warning: interrupted before the verdict was settled")
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def compare(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    names: Sequence[str] | None = None,
    stream: object = None,
    device: int | None = None,
    cold: bool = True,
    quantity: Quantity | None = None,
    margin: float = 0.01,
    target: float | None = None,
    budget: float = 1.0,
    seed: int | None = None,
) -> Comparison:
    """Says whether `b` is faster or slower than `a`, or the same, or that it cannot be told.

    The two take turns in random order, back and forth, so that drifting clocks affect both alike; `a` takes a third
    turn as a control, which must show no difference. Sampling ends when the verdict is settled, at one of a few looks
    that share the 5 % of error among them.

    Args:
        a: what to compare with, called without arguments.
        b: what to compare.
        names: of the two, in the result; None takes the functions'.
        stream: where they put their work, of any framework; None is the current stream.
        device: its ordinal; None is the stream's.
        cold: clear the L2 cache before each call.
        quantity: "kernel", "stream", "wall" and so on; None takes the first of these three that both functions have.
        margin: ratios this close to 1 count as no difference, as a fraction.
        target: half of the interval's width to reach, as a fraction; sampling then goes on until it is reached.
        budget: seconds for everything, warming up included. A single call is not cut short.
        seed: of the order of turns; None takes another one each time.

    Raises:
        InvalidArgument: an argument is out of range, or the stream is of another device.
        NotAvailable: the quantity cannot be measured here, or no call could be measured whole.
        Exception: whatever the functions raise.
    """
    _check(a, b, quantity, margin, target, budget)
    named = _names(a, b, names)
    spent = Budget(budget)
    with Engine([a, b], stream=stream, device=device, cold=cold) as engine:
        run = _Run(engine, quantity, np.random.default_rng(seed), spent, margin, target)
        run.measure()
        return run.result(named)


class _Run:
    """One comparison under way: what has been sampled so far, kept when it is interrupted."""

    def __init__(
        self,
        engine: Engine,
        quantity: Quantity | None,
        random: np.random.Generator,
        spent: Budget,
        margin: float,
        target: float | None,
    ) -> None:
        self.engine, self.spent, self.margin, self.target = engine, spent, margin, target
        self._given, self._random = quantity, random
        self.stopped = "budget"
        self.warnings: list[str] = []
        self.judgement: Judgement | None = None
        self._began, self._calls, self._cost = 0.0, blocks.FEWEST_CALLS, 0.0
        self._looks = Looks()
        self._quantity: Quantity = "wall"
        self._parts: list[Samples] = []
        self._arms: list[NDArray[np.uint32]] = []
        self._judged = -1

    def measure(self) -> None:
        """Samples and looks until the verdict is settled, the budget is used up, or Ctrl-C is pressed."""
        try:
            self.engine.prepare()
            warm_up = self.engine.warm_up(self.spent.share(WARM_UP).seconds)
            if not warm_up.steady:
                self.warnings.append(f"time or clock were not steady after {warm_up.seconds:.2g} s of warming up")
            self._began = self.spent.spent
            self._pilot(warm_up.seconds / max(warm_up.calls, 1))
            for share in LOOKS:
                self._sample_until(share)
                if self._look(share):
                    return
        except KeyboardInterrupt:
            self.stopped = "interrupted"
            if not self._parts:
                raise

    def _pilot(self, call_seconds: float) -> None:
        """Takes some turns in each quantity that may do, the best one first, until one can be had.

        They show how coarse the clock is, and are part of the result unless blocks must have more calls than they have.
        """
        block = blocks.ARMS * blocks.FEWEST_CALLS * call_seconds
        count = int(min(max(PILOT_TIME * self.spent.seconds / max(block, 1e-9), 1), PILOT))
        while True:
            self._quantity = self._given or self.engine.headline
            self._sample(count)
            if self._given is not None or self._quantity not in self.engine.absent:
                break
            self._parts, self._arms = [], []  # the gate did not hold
        self._calls = blocks.calls_per_block(self._seconds(self._parts[0]), self._arms[0], self._tick)
        if self._calls > blocks.FEWEST_CALLS:
            self._cost *= self._calls / blocks.FEWEST_CALLS
            self._parts, self._arms = [], []

    @property
    def _tick(self) -> float:
        return self.engine.tick if self._quantity in ("kernel", "span", "stream") else 0.0

    def _seconds(self, samples: Samples) -> NDArray[np.float64]:
        return np.where(samples.valid, samples.seconds[self._quantity], np.nan)

    def _sample_until(self, share: float) -> None:
        """Samples blocks up to this share of the time that there is for them."""
        end = self._began + share * (self.spent.seconds - self._began)
        while not self._parts or end - self.spent.spent >= self._cost / 2:
            room = min(end - self.spent.spent, LONGEST_BATCH)
            self._sample(max(1, int(room / max(self._cost, 1e-9))))

    def _sample(self, count: int) -> None:
        arms = blocks.order(self._random, count, self._calls)
        began = self.spent.spent
        samples = self.engine.sample(self._quantity, blocks.FUNCTION[arms])
        self._cost = (self.spent.spent - began) / count
        self._parts.append(samples)
        self._arms.append(arms)

    def _look(self, share: float) -> bool:
        """Judges the blocks so far; whether that settles it."""
        if share < 1 and len(self._log_ratios()[0]) < FEWEST_BLOCKS:
            return False
        judgement = self._judge(share)
        if self.target is not None:
            settled = (judgement.ratio.high - judgement.ratio.low) / 2 <= self.target * judgement.ratio.value
        else:
            settled = judgement.verdict != "inconclusive"
        if settled:
            self.stopped = "verdict" if self.target is None else "target"
        return settled

    def _judge(self, share: float) -> Judgement:
        logs, null = self._log_ratios()
        if not len(logs):
            raise NotAvailable(
                f"{self._quantity} time cannot be compared: no block had a whole sample of each function"
            )
        seconds = self._seconds(joined(self._parts))
        step = self._tick / float(np.nanmedian(seconds))
        self.judgement = judge(logs, null, self.margin, self._looks.confidence(share), step)
        self._judged = len(self._parts)
        return self.judgement

    def _log_ratios(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return blocks.log_ratios(self._seconds(joined(self._parts)), np.concatenate(self._arms), self._calls)

    def result(self, names: tuple[str, str]) -> Comparison:
        """The comparison of what was sampled."""
        judgement = self.judgement
        if judgement is None or self._judged < len(self._parts):
            judgement = self._judge(1.0)
        samples = joined(self._parts)
        seconds = self._seconds(samples)
        valid = np.isfinite(seconds)
        spent = self.spent.spent
        return Comparison(
            verdict=judgement.verdict,
            ratio=judgement.ratio,
            margin=judgement.margin,
            null=judgement.null,
            quantity=self._quantity,
            a=Distribution(seconds[valid & (samples.which == 0)]),
            b=Distribution(seconds[valid & (samples.which == 1)]),
            blocks=judgement.ratio.n,
            names=names,
            kernels=samples.kernels,
            warnings=(*self.warnings, *self._cautions(judgement, samples)),
            stopped=self.stopped,
            seconds=spent,
            advice=_advice(judgement, spent),
        )

    def _cautions(self, judgement: Judgement, samples: Samples) -> list[str]:
        found = []
        if judgement.biased:
            found.append(
                f"the control differs from itself by {100 * abs(judgement.null.value - 1):.2g} %: the machine is not "
                f"quiet, and the margin was widened to {100 * judgement.margin:.2g} %"
            )
        elif judgement.noisy:
            found.append("the control's interval is wider than the margin, so that a difference must be beyond it")
        lost = int(np.count_nonzero(~samples.valid))
        if lost:
            found.append(f"{lost} of {len(samples.valid)} samples were not whole and were left out")
        throttled = float(samples.throttled.mean()) if len(samples.throttled) else 0.0
        if throttled > TAGGED:
            found.append(f"{100 * throttled:.2g} % of the samples were taken throttled or with a shifted clock")
        return found


def _advice(judgement: Judgement, seconds: float) -> str:
    if judgement.verdict != "inconclusive":
        return ""
    if not math.isfinite(judgement.ratio.high):
        n = judgement.ratio.n
        wanted = seconds * 2 * FEWEST_BLOCKS / n
        return f"{n} block{'' if n == 1 else 's'} cannot give an interval; a budget of about {wanted:.2g} s would"
    factor = patience(judgement)
    if factor is None:
        return "the ratio lies at the margin: another margin would settle it"
    return f"a budget of about {factor * seconds:.2g} s would settle it"


def _check(a: object, b: object, quantity: object, margin: object, target: object, budget: object) -> None:
    for name, function in (("a", a), ("b", b)):
        if not callable(function):
            raise InvalidArgument(f"{name} is {function!r}; accepted is a function called without arguments")
    if quantity is not None and quantity not in get_args(Quantity):
        accepted = ", ".join(get_args(Quantity))
        raise InvalidArgument(f"quantity is {quantity!r}; accepted are {accepted}, or None")
    check_fraction("margin", margin)
    if target is not None:
        check_fraction("target", target)
    check_budget(budget)


def _names(a: object, b: object, names: Sequence[str] | None) -> tuple[str, str]:
    if names is not None:
        if isinstance(names, str) or len(names) != 2 or not all(isinstance(name, str) and name for name in names):
            raise InvalidArgument(f"names is {names!r}; accepted are two names, of a and of b")
        return names[0], names[1]
    own = _name(a), _name(b)
    return own if own[0] != own[1] and "<lambda>" not in own else ("a", "b")


def _name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
