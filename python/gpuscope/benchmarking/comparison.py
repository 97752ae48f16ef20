# SPDX-License-Identifier: Apache-2.0
"""Compares the times of two functions that take turns in balanced blocks; the blocks' ratios are tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.arguments import Quantity, check_budget, check_choice, check_count, check_fraction, check_function
from gpuscope.benchmarking.charts import view_of_calls
from gpuscope.benchmarking.engine import CLOCK, TINY, Engine, function_name
from gpuscope.benchmarking.kernel_times import Kernel
from gpuscope.benchmarking.per_call import PerCall
from gpuscope.benchmarking.result import format_modes
from gpuscope.benchmarking.samples import Samples, joined
from gpuscope.benchmarking.stopping import Budget, WarmUp
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.figures import Distribution, format_estimate, format_rows
from gpuscope.page.chart import Chart
from gpuscope.results import Abstention, Result, abstained, heading, kept_on_error, plain_fields, plain_values
from gpuscope.stats import Ratio
from gpuscope.stats.location import COARSE, TRIMMED, is_coarse, on_ticks
from gpuscope.stats.ratio import log
from gpuscope.text import brief, columns_of, padded
from gpuscope.units import format_digits, format_rough, format_seconds

VERSION = 1

WARM_UP = 0.25  # of the budget, at most
PILOT, PILOT_TIME = 8, 0.05  # blocks that show how coarse the clock is, and their largest share of the budget
LONGEST_BATCH = 0.25  # seconds; an interrupted batch is lost
TAGGED = 0.05

# Kinds of calls, by the function and the one before it. A lead only precedes the first call of a block.
A_AFTER_A, A_AFTER_B, B_AFTER_B, B_AFTER_A, LEAD_A, LEAD_B = range(6)
FUNCTION = np.array([0, 0, 1, 1, 0, 1], dtype=np.uint32)
# The two blocks, led by a call of the last function. Each function follows itself as often as the other, and its mean
# position is the middle of the block, so that neither neighbours nor a steady drift favour one.
ABBA = (A_AFTER_A, B_AFTER_A, B_AFTER_B, A_AFTER_B)
BAAB = (B_AFTER_B, A_AFTER_B, A_AFTER_A, B_AFTER_A)
# Calls of a function in a block, more where the clock is coarse.
FEWEST_CALLS, MOST_CALLS = 2, 32

_CUT_SHORT = {"interrupted": "interrupted", "error": "ended by an error"}

Verdict = Literal["faster", "slower", "same", "inconclusive"]

CONFIDENCE = 0.95
"""Of the reported interval, over all looks together."""
LOOKS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""When the blocks are judged, as shares of the time for sampling."""
FEWEST_BLOCKS = 10
FIRST_BLOCKS = 32  # attempts at most; the last one counts
# On a coarse clock blocks are joined to 30 to 59 groups. Few means of many calls are nearly normal. Many means of few
# calls are multiples of a tick, and their middle is not their mean.
JOINED_BLOCKS = 30
# A budget larger by more than this is not advised.
LARGEST_BUDGET_FACTOR = 1000.0
# Factor on the sample size that raises the power from 50 % (a difference of one half width) to 90 %: the squared sum of
# the normal quantiles for 97.5 % and 90 %, over the square of the first.
POWER = ((1.96 + 1.28) / 1.96) ** 2


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


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """The result of `compare`: the ratio of b's time over a's. ``print(result)`` shows one line.

    Attributes:
        verdict: "slower" or "faster": the whole interval of the ratio is outside the margin. "same": inside it.
            "inconclusive": neither.
        ratio: b over a, with its 95 % interval over all looks at the data.
        margin: ratios this close to 1 count as no difference, as a fraction.
        null: each function over itself in neighbouring blocks; 1 apart from noise.
        quantity: kernel, stream or wall, as in `BenchmarkResult`.
        a: the valid calls of a, in the order called.
        b: the valid calls of b.
        blocks: number of blocks behind the ratio.
        names: of a and b.
        kernels: the kernels of a call of a, and of b; empty without CUPTI.
        warnings: one sentence each.
        stopped: "verdict", "precision", "budget", "interrupted" or "error".
        seconds: duration of the whole comparison.
        advice: how to get a verdict, when it is inconclusive.
        carry_over: time of a call after the other function, over its time after its own function. It is above 1 if
            the functions evict each other's data from a cache. The ratio has as many calls of both kinds.
        calls_per_sample: most calls behind one time in `a` and `b`. It is above 1 if a call is so short that rows of
            calls take turns; then only the first call of a row follows the other function.
        conditions: of both.
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
    carry_over: Ratio | None = None
    calls_per_sample: int = 1
    conditions: Conditions = UNKNOWN

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
        samples = {"a": self.a.samples.tolist(), "b": self.b.samples.tolist()}
        others = plain_fields(self, without=("a", "b"))
        open_ = [Abstention("verdict", self.advice)] if self.verdict == "inconclusive" else []
        head = {**heading("comparison"), "version": VERSION, "abstained": abstained(open_)}
        return {**head, **others, **samples, "culprit": plain_values(self.culprit)}

    def plot(self) -> Chart:
        """The times of both functions in call order and as a distribution, as a page and in notebooks."""
        title = f"{self.names[1]} against {self.names[0]}"
        return Chart(title, [view_of_calls(self.names, (self.a, self.b), self.quantity, str(self))])

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
            f"{self.blocks} block{'' if self.blocks == 1 else 's'}{format_rows(self.calls_per_sample)}, "
            f"margin {100 * self.margin:.3g} %)"
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
        width = max(map(columns_of, self.names))
        for name, samples in zip(self.names, (self.a.samples, self.b.samples), strict=True):
            time = stats.estimate(samples)
            lines.append(f"  {padded(name, width)}  {self.quantity} {format_estimate(time)}, {time.n} samples")
        for name, kernels in zip(self.names, self.kernels, strict=False):
            lines += [f"    {format_seconds(k.seconds, 4):>9}  {k.count:6g} x  {k.name}  ({name})" for k in kernels]
        if self.stopped in _CUT_SHORT:
            lines.append(f"  warning: {_CUT_SHORT[self.stopped]} before the verdict was settled")
        lines += [f"  {self.conditions.line}"] if self.conditions.line else []
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])


def _short(value: float) -> str:
    return f"{value:.3f}" if 0.1 <= value < 10 else format_digits(value)


def compare(
    a: Callable[..., object],
    b: Callable[..., object],
    *,
    names: Sequence[str] | None = None,
    stream: object = None,
    device: int | None = None,
    cold: bool = True,
    quantity: Quantity | None = None,
    margin: float = 0.01,
    precision: float | None = None,
    budget: float = 1.0,
    seed: int | None = None,
    setup: Callable[[], object] | None = None,
    teardown: Callable[..., object] | None = None,
) -> Comparison:
    """Decides whether `b` is faster or slower than `a`, the same, or whether that is inconclusive.

    The functions take turns, so that drifting clocks affect both alike. The result's `carry_over` shows their effect on
    each other through caches. Sampling ends with the verdict. Blocks of the same function are the control.

    Args:
        a: the baseline, called without arguments, or with those from `setup`.
        b: the function to compare with `a`.
        names: of a and b, in the result; None takes the functions' names.
        stream: the stream of their work, of any framework; None is the current stream.
        device: ordinal of the GPU; None is the stream's.
        cold: clear the L2 cache before each call.
        quantity: None takes the first of kernel, stream and wall that both functions have.
        margin: ratios this close to 1 count as no difference, as a fraction.
        precision: half of the interval's width to reach, as a fraction; None ends with the verdict.
        budget: seconds in total with warm-up; half of it is for samples. A single call is not cut short.
        seed: of the order of turns; None takes a random one.
        setup: called before each call of either and not timed; see `benchmark`. Single calls take turns then.
        teardown: called after each call with its arguments, and not timed.

    Raises:
        InvalidArgument: an argument is out of range, or the stream is of another device.
        NotAvailable: the quantity cannot be measured here, or no call could be measured completely.
        Exception: raised by the functions; its attribute ``measured`` has the result until then.
    """
    for name, function in (("a", a), ("b", b)):
        check_function(name, function, "a function called without arguments")
    check_choice("quantity", quantity, (*get_args(Quantity), None))
    margin = check_fraction("margin", margin)
    if precision is not None:
        precision = check_fraction("precision", precision)
    spent = Budget(check_budget(budget))
    if seed is not None:
        seed = check_count("seed", seed, 0)
    named, per_call = _names(a, b, names), PerCall(setup, teardown)
    with Engine([a, b], stream=stream, device=device, cold=cold, per_call=per_call) as engine:
        run = _ComparisonRun(engine, quantity, np.random.default_rng(seed), spent, margin, precision)
        with kept_on_error(lambda: run.result(named, "error") if run.blocks else None):
            run.measure()
            return run.result(named, run.stopped)


def block_order(random: np.random.Generator, blocks: int, calls: int) -> NDArray[np.uint32]:
    """The kinds of the calls of some blocks: each a lead, and `ABBA` or `BAAB` at random, repeated.

    `calls` is the even number of calls of each function in a block.
    """
    rows = np.array([[LEAD_A, *ABBA * (calls // 2)], [LEAD_B, *BAAB * (calls // 2)]], np.uint32)
    return rows[random.integers(0, 2, blocks)].reshape(-1)


def _width(calls: int) -> int:
    """Calls in a block with so many `calls` of each function, and the lead."""
    return 1 + 2 * calls


def calls_per_block(seconds: NDArray[np.float64], cells: NDArray[np.uint32], tick: float) -> int:
    """Calls of a function per block that make the clock's tick small against a mean's spread."""
    spreads = []
    for function in (0, 1):
        own = seconds[(FUNCTION[cells] == function) & np.isfinite(seconds)]
        spreads.append(float(np.quantile(own, 0.84) - np.quantile(own, 0.16)) / 2 if len(own) else 0.0)
    spread = max(min(spreads), tick / 4)
    wanted = 8 * (tick / spread) ** 2 if tick else 0.0
    return int(min(max(2 * math.ceil(wanted / 2), FEWEST_CALLS), MOST_CALLS))


@dataclass(frozen=True)
class Logs:
    """Logarithms of ratios, one row per block."""

    ratio: NDArray[np.float64]  # b over a
    null: NDArray[np.float64]  # each function over itself in the next block
    carry_over: NDArray[np.float64]  # after the other function over after itself


def without_outliers_on(
    tick: float, seconds: NDArray[np.float64], cells: NDArray[np.uint32]
) -> tuple[NDArray[np.float64], float]:
    """The times without outliers, and the clock's tick if it is coarse for a kind of call, else 0.

    On a coarse clock means decide, as in `stats.estimate`. Times some ticks from the median and outside the central
    80 % are dropped, as there.
    """
    kept, coarsest = seconds.copy(), 0.0
    for kind in range(LEAD_A):
        own = np.flatnonzero((cells == kind) & np.isfinite(seconds))
        if not len(own):
            continue
        values, found = on_ticks(seconds[own], tick)
        ordered = np.sort(values)
        if is_coarse(ordered, found):
            coarsest = max(coarsest, found)
            cut, middle = int(TRIMMED * len(own)), float(np.median(ordered))
            low = min(middle - COARSE * found, float(ordered[cut]))
            high = max(middle + COARSE * found, float(ordered[len(own) - cut - 1]))
            kept[own[(values < low) | (values > high)]] = np.nan
    return kept, coarsest


def log_ratios(seconds: NDArray[np.float64], cells: NDArray[np.uint32], calls: int, together: int = 1) -> Logs:
    """Log ratios of the mean times of each kind of call, per block or per group of `together` blocks.

    `seconds` is nan for invalid calls. Blocks without a valid call of each kind are dropped.
    """
    width = together * _width(calls)
    end = len(seconds) // width * width
    rows, kinds = seconds[:end].reshape(-1, width), cells[:end].reshape(-1, width)
    valid = np.isfinite(rows)
    sums = np.array([np.where(valid & (kinds == kind), rows, 0.0).sum(axis=1) for kind in range(4)])
    counts = np.array([(valid & (kinds == kind)).sum(axis=1) for kind in range(4)])
    whole = ((counts > 0) & (sums > 0)).all(axis=0)
    means = sums[:, whole] / counts[:, whole]
    a, b = np.log(means[A_AFTER_A] + means[A_AFTER_B]), np.log(means[B_AFTER_B] + means[B_AFTER_A])
    after_itself, after_other = np.log(means[[A_AFTER_A, B_AFTER_B]]), np.log(means[[A_AFTER_B, B_AFTER_A]])
    pairs = len(a) // 2
    # Every other pair is inverted, so that a steady drift cancels.
    sign = np.where(np.arange(pairs) % 2, -1.0, 1.0)
    null = [sign * (each[1 : 2 * pairs : 2] - each[0 : 2 * pairs : 2]) for each in (a, b)]
    return Logs(b - a, np.stack(null, axis=1).reshape(-1), (after_other - after_itself).mean(axis=0))


class Looks:
    """Alpha spending for interim looks: stopping at the first clear look would err more often.

    The spending function is linear: after a share t of the time, all looks together may err in t x 5 % of all cases
    (K. Kim and D. L. DeMets, Biometrika 74, 1987). Adding the increments is valid for any dependence.
    """

    def __init__(self) -> None:
        self._spent = 0.0

    def confidence(self, share: float) -> float:
        """The confidence of a look at this share of the time, with the error of skipped looks."""
        level = max((1 - CONFIDENCE) * min(share, 1.0) - self._spent, 1e-9)
        self._spent += level
        return 1 - level


@dataclass(frozen=True)
class Judgement:
    """The result of one look."""

    verdict: Verdict  # on b over a
    ratio: Ratio  # b over a
    null: Ratio  # each function over itself: 1 apart from noise
    margin: float  # ratios this close to 1 count as no difference, as a fraction
    biased: bool  # the control itself showed a difference
    noisy: bool  # the control's interval reaches beyond the margin


def judge(
    logs: NDArray[np.float64], null_logs: NDArray[np.float64], margin: float, confidence: float, step: float
) -> Judgement:
    """The verdict on blocks.

    A difference must be outside the margin and beyond the control's. "same" means an interval inside the margin, which
    is two one-sided tests at half the level each. `step` is the relative resolution of the clock; it widens the
    interval if all blocks have the same ratio.
    """
    ratio, null = ratio_of_blocks(logs, confidence, step), ratio_of_blocks(null_logs, confidence, step)
    reach = max(abs(log(null.low)), abs(log(null.high)))
    biased = null.low > 1 or null.high < 1
    inner = math.log1p(margin)
    outer = max(inner, reach)
    low, high = log(ratio.low), log(ratio.high)
    verdict: Verdict = "inconclusive"
    if low > outer:
        verdict = "slower"
    elif high < -outer:
        verdict = "faster"
    elif -inner <= low and high <= inner:
        verdict = "same"
    return Judgement(verdict, ratio, null, margin, biased, reach > inner)


def _budget_factor(judgement: Judgement) -> float | None:
    """Factor on the time that would give a verdict, by the square-root law; None if no time would.

    If the interval is wider than the margin, the ratio is partly noise. It is then assumed one standard error nearer
    to 1, and at least half of the margin away from the margin.
    """
    half, inner = _half_width(judgement), math.log1p(judgement.margin)
    away = abs(abs(log(judgement.ratio.value)) - inner)
    if half > inner:
        away = max(abs(max(abs(log(judgement.ratio.value)) - half / 1.96, 0.0) - inner), inner / 2)
    if half > math.sqrt(LARGEST_BUDGET_FACTOR / POWER) * away:
        return None
    return max(POWER * (half / away) ** 2, 1.5) if away else None


def _half_width(judgement: Judgement) -> float:
    """Half of the interval of the ratio's logarithm."""
    return (log(judgement.ratio.high) - log(judgement.ratio.low)) / 2


def ratio_of_blocks(logs: NDArray[np.float64], confidence: float, step: float) -> Ratio:
    """The paired ratio; autocorrelated blocks are grouped if enough groups remain."""
    if not len(logs):
        return Ratio(1.0, 0.0, math.inf, 0, 1.0)
    size = max(1, min(round(stats.autocorrelation_time(logs)), len(logs) // FEWEST_BLOCKS))
    means = logs[: len(logs) // size * size].reshape(-1, size).mean(axis=1)
    found = stats.paired_ratio(means, confidence=confidence)
    low, high = found.low, found.high
    if low == high:
        low, high = low * math.exp(-step), high * math.exp(step)
    return Ratio(found.value, low, high, len(logs), found.p)


class _ComparisonRun:
    """One comparison: its samples so far, kept on an interrupt."""

    def __init__(
        self,
        engine: Engine,
        quantity: Quantity | None,
        random: np.random.Generator,
        whole: Budget,
        margin: float,
        precision: float | None,
    ) -> None:
        self.engine, self.whole, self.margin, self.precision = engine, whole, margin, precision
        self.spent = whole  # the budget of the current phase
        self._given, self._random = quantity, random
        self.stopped = "budget"
        self.warnings: list[str] = []
        self.judgement: Judgement | None = None
        self._calls, self._cost = FEWEST_CALLS, 0.0
        self._looks = Looks()
        self._quantity: Quantity = "wall"
        self._parts: list[Samples] = []
        self._cells: list[NDArray[np.uint32]] = []
        self._carry_over: Ratio | None = None
        self._judged = -1

    @property
    def blocks(self) -> int:
        """Number of blocks sampled."""
        return sum(map(len, self._cells)) // _width(self._calls)

    def measure(self) -> None:
        """Samples and judges until there is a verdict, the budget is spent, or Ctrl-C is pressed."""
        try:
            self.engine.prepare()
            self.spent = self.whole.for_samples()
            warm_up = self._warm_up(self.engine.sample_seconds)
            self.warnings = [*warm_up.warnings]
            self.spent = self.whole.for_samples()
            self._pilot(warm_up.sample_seconds)
            if not warm_up.samples:
                # If only the first calls were slow (compilation), there is time to warm up after all.
                warm_up = self._warm_up(self._cost / _width(self._calls))
                if warm_up.samples:
                    self.warnings = [*warm_up.warnings]
                    self._parts, self._cells, self._calls = [], [], FEWEST_CALLS
                    self._pilot(warm_up.sample_seconds)
            for share in LOOKS:
                self._sample_until(share)
                if self._look(share):
                    return
        except KeyboardInterrupt:
            self.stopped = "interrupted"
            if not self.blocks:
                raise

    def _warm_up(self, sample_seconds: float) -> WarmUp:
        """Warms up, unless the budget has no time for a warm-up and a block of calls this long."""
        fits = self.spent.left >= (2 + _width(FEWEST_CALLS)) * sample_seconds
        return self.engine.warm_up(self.spent.share(WARM_UP).seconds if fits else 0.0)

    def _pilot(self, sample_seconds: float) -> None:
        """Samples some blocks of the best quantity that is available, and sets the calls per block.

        The blocks show how coarse the clock is. They are part of the result unless blocks need more calls.
        """
        block = _width(FEWEST_CALLS) * sample_seconds
        count = int(min(max(PILOT_TIME * self.spent.seconds / max(block, 1e-9), 1), PILOT))
        while True:
            self._quantity = self._given or self.engine.headline
            self._sample(count)
            if not self._is_lost:
                break
            self._parts, self._cells = [], []
            if self._given is not None:
                why = self.engine.absent[self._given]
                raise NotAvailable(f"{self._given} time cannot be compared: {why}")
        times = self._parts[0].times(self._quantity)
        valid = times[np.isfinite(times)]
        tick = on_ticks(valid, self._tick)[1] if len(valid) else self._tick
        room = self.spent.left / FEWEST_BLOCKS / max(self._cost, 1e-9)  # a block's time, in shortest blocks
        most = FEWEST_CALLS * max(int(room), 1)
        self._calls = min(calls_per_block(times, self._cells[0], tick), most)
        if self._calls > FEWEST_CALLS:
            self._cost *= self._calls / FEWEST_CALLS
            self._parts, self._cells = [], []

    @property
    def _tick(self) -> float:
        return self.engine.tick if self._quantity in ("kernel", "span", "stream") else 0.0

    def _sample_until(self, share: float) -> None:
        """Samples blocks until this share of the time is spent."""
        end = share * self.spent.seconds
        while not self._parts or (end - self.spent.spent >= self._cost / 2 and not self._is_lost):
            room = min(end - self.spent.spent, LONGEST_BATCH)
            self._sample(max(1, int(room / max(self._cost, 1e-9))))

    def _sample(self, count: int) -> None:
        """Samples up to `count` blocks in the remaining time; the first one is always complete."""
        if not self._parts:
            self._append_first()
            count -= 1
        if count and not self._is_lost:
            self._append(block_order(self._random, count, self._calls), self.spent.left)

    def _append_first(self) -> None:
        """A first block, however long it takes; repeated if a call's time is 0, as for calls of 20 ns."""
        for _ in range(FIRST_BLOCKS):
            self._parts, self._cells = [], []
            self._append(block_order(self._random, 1, self._calls), math.inf)
            if self._is_lost or not (self._parts[0].times(self._quantity) == 0).any():
                return

    @property
    def _is_lost(self) -> bool:
        """Whether the quantity became unavailable, as when the gate did not hold: samples lack it."""
        return self._quantity in self.engine.absent

    def _append(self, cells: NDArray[np.uint32], seconds: float) -> None:
        began = self.spent.spent
        samples = self.engine.sample(self._quantity, FUNCTION[cells], seconds)
        width, called = _width(self._calls), len(samples.which)
        self._cost = (self.spent.spent - began) / called * width
        if self._parts and self._is_lost:
            return  # earlier blocks are kept
        if whole := called // width * width:
            self._parts.append(samples.first(whole))
            self._cells.append(cells[:whole])

    def _look(self, share: float) -> bool:
        """Judges the blocks so far; returns whether to stop."""
        logs, tick = self._log_ratios()
        if share < 1 and len(logs.ratio) < FEWEST_BLOCKS:
            return False
        judgement = self._judge(share, logs, tick)
        if self.precision is not None:
            settled = (judgement.ratio.high - judgement.ratio.low) / 2 <= self.precision * judgement.ratio.value
        else:
            settled = judgement.verdict != "inconclusive"
        if settled:
            self.stopped = "verdict" if self.precision is None else "precision"
        return settled

    def _judge(self, share: float, logs: Logs, tick: float) -> Judgement:
        if not len(logs.ratio):
            raise NotAvailable(
                f"{self._quantity} time cannot be compared: no block had a whole sample of each function"
            )
        step = tick / float(np.nanmedian(joined(self._parts).times(self._quantity)))
        self.judgement = judge(logs.ratio, logs.null, self.margin, self._looks.confidence(share), step)
        self._carry_over = ratio_of_blocks(logs.carry_over, CONFIDENCE, step)
        self._judged = len(self._parts)
        return self.judgement

    def _log_ratios(self) -> tuple[Logs, float]:
        """Log ratios of the blocks so far, and the clock's tick."""
        seconds, cells = joined(self._parts).times(self._quantity), np.concatenate(self._cells)
        kept, coarse = without_outliers_on(self._tick, seconds, cells)
        blocks = len(cells) // _width(self._calls)
        logs = log_ratios(kept, cells, self._calls, max(1, blocks // JOINED_BLOCKS) if coarse else 1)
        return logs, max(coarse, self._tick)

    def result(self, names: tuple[str, str], stopped: str) -> Comparison:
        """The comparison of the samples so far."""
        judgement = self.judgement
        if judgement is None or self._judged < len(self._parts):
            judgement = self._judge(1.0, *self._log_ratios())
        samples = joined(self._parts)
        seconds = samples.times(self._quantity)
        valid = np.isfinite(seconds)
        a, b = (Distribution(seconds[valid & (samples.which == function)]) for function in (0, 1))
        return Comparison(
            verdict=judgement.verdict,
            ratio=judgement.ratio,
            margin=judgement.margin,
            null=judgement.null,
            quantity=self._quantity,
            a=a,
            b=b,
            blocks=judgement.ratio.n,
            names=names,
            kernels=samples.kernels,
            warnings=(*self.warnings, *self._cautions(judgement, samples), *self._modes(names, (a, b))),
            stopped=stopped,
            seconds=self.whole.spent,
            advice=_advice(judgement, self.whole.spent),
            carry_over=self._carry_over,
            calls_per_sample=samples.calls_per_sample,
            conditions=Conditions.now(self.engine.device if self.engine.on_gpu else None),
        )

    def _cautions(self, judgement: Judgement, samples: Samples) -> list[str]:
        found = []
        if judgement.biased:
            percent = format_rough(100 * abs(judgement.null.value - 1))
            found.append(
                f"the control differs from itself by {percent} %, as something disturbs the machine: a difference must "
                "be larger than that"
            )
        elif judgement.noisy:
            found.append("the control's interval is wider than the margin, so that a difference must be beyond it")
        carried = self._carry_over
        if carried is not None and (carried.low > 1 + self.margin or carried.high < 1 / (1 + self.margin)):
            found.append(
                f"a {'call' if samples.calls_per_sample == 1 else 'row of calls'} takes {_short(carried.value)} times "
                "as long after the other function as after its own, as where they share a cache; the ratio has half "
                "of each"
            )
        found += self._caution_of_the_clock(samples)
        if self._is_lost:
            why = self.engine.absent[self._quantity]
            found.append(f"{self._quantity} time could not be measured to the end, so that there is less of it: {why}")
        lost = int(np.count_nonzero(~samples.valid))
        if lost:
            found.append(f"{lost} of {len(samples.valid)} samples were not whole and were left out")
        throttled = float(samples.throttled.mean()) if len(samples.throttled) else 0.0
        if throttled > TAGGED:
            found.append(
                f"{format_rough(100 * throttled)} % of the samples were taken throttled or with a shifted clock"
            )
        return found

    def _modes(self, names: tuple[str, str], both: tuple[Distribution, Distribution]) -> list[str]:
        """A warning for each function with several modes, as the ratio describes one or none."""
        found = []
        for name, times in zip(names, both, strict=True):
            modes = stats.modes(times.samples, tick=on_ticks(times.samples, self._tick)[1])
            if len(modes) > 1:
                found.append(f"the samples of {name} gather around {len(modes)} values: {format_modes(modes)}")
        return found

    def _caution_of_the_clock(self, samples: Samples) -> list[str]:
        """A warning if reading the clock in short rows biases the ratio by more than the margin."""
        seconds = samples.times(self._quantity)
        short, long = sorted(float(np.nanmedian(seconds[samples.which == function])) for function in (0, 1))
        reading = CLOCK / samples.calls_per_sample
        if self._quantity != "wall" or short >= TINY or reading * (1 / short - 1 / long) <= self.margin:
            return []
        return [
            f"reading the clock is about {format_seconds(reading)} of the {format_seconds(short)} of the shorter "
            "function, as its rows are short next to a long function: the true ratio is further from 1"
        ]


def _advice(judgement: Judgement, seconds: float) -> str:
    if judgement.verdict != "inconclusive":
        return ""
    if not math.isfinite(judgement.ratio.high):
        n = judgement.ratio.n
        wanted = format_rough(seconds * 2 * FEWEST_BLOCKS / n)
        return f"{n} block{'' if n == 1 else 's'} cannot give an interval; a budget of about {wanted} s would"
    factor, half = _budget_factor(judgement), math.expm1(_half_width(judgement))
    if half > judgement.margin:
        longer = f"{'about' if factor else 'more than'} {format_rough((factor or LARGEST_BUDGET_FACTOR) * seconds)} s"
        return (
            f"the noise is too large for a margin of {100 * judgement.margin:.3g} %: the ratio is known to "
            f"+-{format_rough(100 * half)} % after {format_rough(seconds)} s; a budget of {longer} would settle it"
        )
    if factor is None:
        return "the ratio is at the margin: another margin would settle it"
    return f"a budget of about {format_rough(factor * seconds)} s would settle it"


def _names(a: object, b: object, names: Sequence[str] | None) -> tuple[str, str]:
    if names is not None:
        given = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else []
        if len(given) != 2 or not all(isinstance(name, str) and name for name in given):
            raise InvalidArgument(f"names is {brief(names)}; accepted are two names, of a and of b")
        return names[0], names[1]
    own = function_name(a), function_name(b)
    return own if own[0] != own[1] and "<lambda>" not in own else ("a", "b")
