# SPDX-License-Identifier: Apache-2.0
"""Finds the fastest of several candidates that take turns, leaving out those that are shown to be slower."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.arguments import (
    Quantity,
    as_float,
    check_budget,
    check_choice,
    check_count,
    check_done,
    check_fraction,
    check_positive,
)
from gpuscope.benchmarking.comparison import LONGEST_BATCH, Looks, ratio_of_blocks
from gpuscope.benchmarking.engine import Engine, function_name
from gpuscope.benchmarking.stopping import Budget
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.figures import format_estimate
from gpuscope.results import Result, kept_on_error, plain_fields, plain_values
from gpuscope.stats import Ratio
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.timing import synchronize
from gpuscope.units import first_line

SCHEMA = "gpuscope.tuned"
VERSION = 1

# Seconds for each candidate, as Triton's do_bench takes: 25 ms of warm-up and 100 ms of calls.
WARM_UP, SAMPLING = 0.025, 0.1
LOOKS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""When candidates are left out, as shares of the time for sampling."""
FEWEST_BLOCKS = 10  # before a candidate is left out, unless it is far slower
FIRST_BLOCKS = 3  # before that; of heavy-tailed times, fewer are often far from each other
GROUPS = 64  # of neighbouring blocks, whose means are compared
# A candidate is far slower if each of its blocks takes more than `FAR` times as long as any block of the fastest. If a
# first call takes more than `LONG` seconds, a second one shows whether only its compilation was slow.
FAR, LONG = 2.0, 0.05
SHORTEST = 1e-10  # seconds; a clock that saw less saw nothing

_STOPPED = {"interrupted": "interrupted", "error": "ended by an error"}


@dataclass(frozen=True)
class Candidate:
    """One candidate of `tune`.

    Attributes:
        name: as given, or the function's.
        estimate: seconds of a call with its own interval; None if it was not measured.
        ratio: its time over the winner's, from the blocks that both took part in, with the interval that holds for
            all candidates and looks together; None for the winner and for candidates without blocks.
        blocks: in which it took its turn.
        left_out: why it was left out early: "slower", "far slower" or "error"; empty if it was measured to the end.
        error: the exception that it raised, as "ValueError: ..."; None if it raised none.
    """

    name: str
    estimate: stats.Estimate | None
    ratio: Ratio | None
    blocks: int
    left_out: str = ""
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """The columns of a frame; seconds, None if not known."""
        columns: dict[str, Any] = {"name": self.name}
        columns["seconds"], columns["low"], columns["high"] = _plain_interval(self.estimate)
        columns["ratio"], columns["ratio_low"], columns["ratio_high"] = _plain_interval(self.ratio)
        return {**columns, "blocks": self.blocks, "left_out": self.left_out, "error": self.error}


@dataclass(frozen=True, repr=False)
class Tuned(Result):
    """The result of `tune`. ``print(result)`` shows one line, ``result.table()`` all candidates.

    Attributes:
        winner: name of the candidate with the shortest time.
        function: the winner itself, as given.
        ties: names of the candidates that are not shown to be slower than the winner.
        candidates: all, the fastest first, those that failed last.
        quantity: kernel, stream or wall, as in `BenchmarkResult`.
        margin: ties within this fraction end the measurement.
        stopped: "winner" (all others are slower), "tie" (those left are within the margin), "budget", "interrupted"
            or "error".
        seconds: duration of the whole.
        warnings: one sentence each.
        conditions: of all candidates.
    """

    winner: str
    function: Callable[..., object] = field(compare=False)
    ties: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    quantity: str
    margin: float
    stopped: str
    seconds: float
    warnings: tuple[str, ...] = ()
    conditions: Conditions = UNKNOWN

    def __str__(self) -> str:
        first = self.candidates[0]
        time = f" ({self.quantity} {format_estimate(first.estimate)})" if first.estimate else ""
        tied = f", tied with {', '.join(self.ties)}" if self.ties else ""
        failed = sum(one.error is not None for one in self.candidates)
        slower = len(self.candidates) - 1 - len(self.ties) - failed
        counts = [f"{count} {what}" for count, what in ((slower, "slower"), (failed, "failed")) if count]
        end = f"; {_STOPPED[self.stopped]}" if self.stopped in _STOPPED else ""
        return f"{self.winner} is the fastest{time}{tied}{'; ' if counts else ''}{', '.join(counts)}{end}"

    def table(self) -> str:
        """A line for each candidate: its time, its ratio to the winner with the interval, and why it was left out."""
        rows = [("candidate", self.quantity, "ratio", "interval", "blocks", "")]
        for one in self.candidates:
            time = format_estimate(one.estimate) if one.estimate else "-"
            ratio = f"{one.ratio.value:.4f}" if one.ratio else "-"
            interval = f"{one.ratio.low:.4f} to {one.ratio.high:.4f}" if one.ratio else "-"
            note = "fastest" if one.name == self.winner else "tied" if one.name in self.ties else ""
            rows.append((one.name, time, ratio, interval, str(one.blocks), note or one.error or one.left_out))
        return "\n".join([*align_columns(rows, left=(0, 5)), *(f"warning: {warning}" for warning in self.warnings)])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the function as JSON types; None stands for the ends of an interval that has none."""
        return {"schema": SCHEMA, "version": VERSION, **plain_fields(self, without=("function",))}

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        return [one.row() for one in self.candidates]


def tune(
    candidates: Mapping[str, Callable[..., object]] | Sequence[Callable[..., object]],
    args: Sequence[object] = (),
    *,
    stream: object = None,
    device: int | None = None,
    cold: bool = True,
    quantity: Quantity | None = None,
    margin: float = 0.005,
    budget: float | None = None,
    seed: int | None = None,
) -> Tuned:
    """Finds the fastest of several functions that do the same work, and those that tie with it.

    All candidates take turns in blocks of random order, each block followed by its reverse, so that drifting clocks
    affect all alike. Those that are shown to be slower leave the blocks. The true fastest is left out in at most 5 % of
    calls, all looks and candidates together.

    A candidate that raises is left out and its error kept. A candidate that takes far longer than another is called
    twice and left out. A call that runs is not cut short.

    Args:
        candidates: functions by name, or functions. Their results are dropped.
        args: passed to each call of each.
        stream: the stream of their work, of any framework; None is the current stream.
        device: ordinal of the GPU; None is the stream's.
        cold: clear the L2 cache before each call.
        quantity: None takes the first of kernel, stream and wall that all candidates have.
        margin: as a fraction; when all that are left are this close to the fastest, measuring ends.
        budget: seconds in total, without first calls; None is 0.125 s for each candidate.
        seed: of the order of turns; None takes a random one.

    Raises:
        InvalidArgument: an argument is out of range, or the stream is of another device.
        NotAvailable: the quantity cannot be measured here, or every candidate raised; the message has their errors.
        Exception: raised by a candidate that no repeated call shows; its attribute ``measured`` has the result so far.
    """
    named = _named(candidates)
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise InvalidArgument(f"args is {brief(args)}; accepted is a tuple of the arguments of a call")
    check_choice("quantity", quantity, (*get_args(Quantity), None))
    margin = check_fraction("margin", margin)
    seconds = len(named) * (WARM_UP + SAMPLING) if budget is None else check_budget(budget)
    if seed is not None:
        seed = check_count("seed", seed, 0)
    run = _Tuning(named, tuple(args), margin, np.random.default_rng(seed))
    with kept_on_error(lambda: run.result("error") if run.blocks else None):
        run.screen()
        run.measure(quantity, seconds, {"stream": stream, "device": device, "cold": cold})
        return run.result(run.stopped)


def triton_bench(
    kernel_call: Callable[[], object],
    warmup: float = WARM_UP * 1e3,
    rep: float = SAMPLING * 1e3,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Times a call as ``triton.testing.do_bench``, for ``triton.autotune(..., do_bench=gpuscope.triton_bench)``.

    On a GPU the time is that of events on the stream, behind a gate, with a cold L2 cache; without one that of the
    host. A call that takes longer than `rep` is not repeated. Triton asks for one configuration after another, so that
    their times share no blocks: `tune` decides between close ones.

    Args:
        kernel_call: called without arguments.
        warmup: milliseconds of warm-up, at most; it ends when times are steady.
        rep: milliseconds of samples, at most.
        grad_to_none: tensors whose gradients are dropped before each call.
        quantiles: fractions; None returns what `return_mode` says.
        return_mode: "mean", "median", "min", "max" or "all".

    Returns:
        Milliseconds: a list with a number for each quantile; else one number, or the list of all.

    Raises:
        InvalidArgument: an argument is out of range.
        Exception: raised by the call, as Triton expects of a configuration that does not fit.
    """
    check_choice("return_mode", return_mode, ("mean", "median", "min", "max", "all"))
    warmup, rep = (check_positive(name, given, "milliseconds") for name, given in (("warmup", warmup), ("rep", rep)))
    fractions = [as_float(q) for q in quantiles or ()]
    if not all(0 <= q <= 1 for q in fractions):
        raise InvalidArgument(f"quantiles is {brief(quantiles)}; accepted are fractions from 0 to 1")
    began = Budget(math.inf)
    check_done(function_name(kernel_call), _without_gradients(kernel_call, grad_to_none)())
    synchronize()
    first = began.spent
    if first > rep / 1e3:
        # A second call shows whether only its compilation was slow.
        began = Budget(math.inf)
        _without_gradients(kernel_call, grad_to_none)()
        synchronize()
        first = began.spent
    if first > rep / 1e3:
        times = np.array([first])
    else:
        with Engine([_without_gradients(kernel_call, grad_to_none)]) as engine:
            engine.warm_up(warmup / 1e3)
            quantity: Quantity = "stream" if "stream" not in engine.absent else "wall"
            count = max(int(rep / 1e3 / max(engine.sample_seconds, 1e-9)), 1)
            times = engine.sample(quantity, np.zeros(count, np.uint32), rep / 1e3).times(quantity)
            times = times[np.isfinite(times)]
            if not len(times):
                times = engine.sample("wall", np.zeros(1, np.uint32)).times("wall")
    times = 1e3 * times
    if fractions:
        found = np.quantile(times, fractions).tolist()
        return found[0] if len(found) == 1 else found
    return times.tolist() if return_mode == "all" else float(getattr(np, return_mode)(times))


class _Tuning:
    """One call of `tune`: the candidates that still take turns, and the times so far."""

    def __init__(
        self, named: Mapping[str, Callable[..., object]], args: tuple[object, ...], margin: float, random: Any
    ) -> None:
        self.names, self.given = list(named), list(named.values())
        self.calls = [functools.partial(each, *args) if args else each for each in self.given]
        self.margin, self._random = margin, random
        self.whole, self.stopped = Budget(math.inf), "budget"
        self.alive = list(range(len(self.calls)))
        self.left_out: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.first = [math.inf] * len(self.calls)  # seconds of the last call before the blocks
        self.quantity: Quantity = "wall"
        self.on_gpu, self._device = False, 0
        self._tick, self._cost = 0.0, 0.0
        self._rows: list[NDArray[np.float64]] = []  # logarithms of seconds: a row for each block, nan outside of it
        self._seconds: list[list[NDArray[np.float64]]] = [[] for _ in self.calls]
        self._confidence = [1 - 1e-9] * len(self.calls)  # of a candidate's last comparison

    @property
    def blocks(self) -> int:
        """Number of blocks sampled."""
        return len(self._rows)

    def screen(self) -> None:
        """Calls each candidate once, again if that took long, and leaves out those that raise or are far slower."""
        for each in list(self.alive):
            self._try(each)
        fastest = min(self.first)
        for each in sorted(self.alive, key=self.first.__getitem__):
            if self.first[each] > max(LONG, FAR * fastest) and len(self.alive) > 1:
                self._try(each)  # the first call may have compiled
                fastest = min(fastest, self.first[each])
        for each in list(self.alive):
            if self.first[each] > max(LONG, 2 * FAR * fastest):
                self._leave(each, "far slower")
        self._check_any()

    def measure(self, quantity: Quantity | None, seconds: float, where: dict[str, Any]) -> None:
        """Samples blocks until a winner or a tie is found, or the budget is spent."""
        spent = Budget(seconds)
        while True:
            began = list(self.alive)
            try:
                with Engine([self.calls[each] for each in began], **where) as engine:
                    self._sample(engine, began, quantity, spent)
                return
            except KeyboardInterrupt:
                self.stopped = "interrupted"
                if not self.blocks:
                    raise
                return
            except GpuscopeError:
                raise
            except Exception:  # of a candidate, which is found by calling each again
                for each in began:
                    self._try(each)
                self._check_any()
                if self.alive == began:
                    raise
                self._rows, self._seconds = [], [[] for _ in self.calls]

    def _try(self, each: int) -> None:
        spent = Budget(math.inf)
        try:
            check_done(self.names[each], self.calls[each]())
            synchronize()
            self.first[each] = spent.spent
        except Exception as error:
            self.errors[each] = f"{type(error).__name__}: {first_line(str(error))}".rstrip(": ")
            self._leave(each, "error")

    def _leave(self, each: int, why: str) -> None:
        if each in self.alive:
            self.alive.remove(each)
            self.left_out[each] = why

    def _check_any(self) -> None:
        if not self.alive:
            reasons = "; ".join(f"{self.names[each]}: {error}" for each, error in self.errors.items())
            raise NotAvailable(f"no candidate could be measured: {reasons}")

    def _sample(self, engine: Engine, began: list[int], quantity: Quantity | None, spent: Budget) -> None:
        engine.prepare()
        self.on_gpu, self._device = engine.on_gpu, engine.device
        engine.warm_up(spent.seconds * WARM_UP / (WARM_UP + SAMPLING))
        self.quantity = quantity or engine.headline
        looks, sampling = Looks(), spent.for_samples() if not self.blocks else spent
        self._cost = 2 * len(self.alive) * engine.sample_seconds
        for share in LOOKS:
            end = share * sampling.seconds
            while not self.blocks or end - sampling.spent >= self._cost / 2:
                count = max(1, int(min(end - sampling.spent, LONGEST_BATCH) / max(self._cost, 1e-9)))
                self._append(engine, began, 1 if self.blocks < FIRST_BLOCKS else count, sampling)
                if self.quantity in engine.absent:
                    if quantity is not None:
                        raise NotAvailable(f"{quantity} time cannot be measured: {engine.absent[quantity]}")
                    self.quantity, self._rows = engine.headline, []
                    self._seconds = [[] for _ in self.calls]
                if self.blocks == FIRST_BLOCKS:
                    self._leave_far_slower()
            self._tick = engine.tick_of(self.quantity)
            if self._look(looks, share):
                return

    def _append(self, engine: Engine, began: list[int], blocks: int, spent: Budget) -> None:
        """Samples up to so many blocks; the first one is always complete."""
        m = len(self.alive)
        turns = np.array([self._random.permutation(m) for _ in range(blocks)])
        turns = np.concatenate([turns, turns[:, ::-1]], axis=1)
        order = np.array([began.index(each) for each in self.alive], np.uint32)[turns].reshape(-1)
        start = spent.spent
        samples = engine.sample(self.quantity, order, spent.left if self.blocks else math.inf)
        whole = len(samples.which) // (2 * m)
        self._cost = (spent.spent - start) / max(len(samples.which), 1) * 2 * m
        seconds = samples.times(self.quantity)[: whole * 2 * m].reshape(whole, 2 * m)
        places = np.argsort(turns[:whole], axis=1, kind="stable")
        pairs = np.take_along_axis(seconds, places, axis=1).reshape(whole, m, 2)
        rows = np.full((whole, len(self.calls)), np.nan)
        rows[:, self.alive] = np.log(np.maximum(pairs, SHORTEST)).mean(axis=2)
        self._rows += list(rows)
        for at, each in enumerate(self.alive):
            self._seconds[each].append(pairs[:, at].reshape(-1))

    def _logs(self, each: int, other: int) -> NDArray[np.float64]:
        """Logarithms of the ratio of two candidates, the means of groups of blocks that both were in."""
        if not self._rows:
            return np.empty(0)
        rows = np.array(self._rows)
        logs = rows[:, each] - rows[:, other]
        logs = logs[np.isfinite(logs)]
        size = max(1, len(logs) // GROUPS)
        means: NDArray[np.float64] = logs[: len(logs) // size * size].reshape(-1, size).mean(axis=1)
        return means

    def _best(self) -> int:
        """The candidate with the smallest distance from the mean of those left, by the mean of the middle half."""
        rows = np.array(self._rows)[:, self.alive]
        rows = rows[np.isfinite(rows).all(axis=1)]
        if not len(rows):
            return min(self.alive, key=self.first.__getitem__)
        size = max(1, len(rows) // GROUPS)
        away = (rows - rows.mean(axis=1, keepdims=True))[: len(rows) // size * size]
        means = np.sort(away.reshape(-1, size, len(self.alive)).mean(axis=1), axis=0)
        quarter = len(means) // 4
        return self.alive[int(np.argmin(means[quarter : len(means) - quarter].mean(axis=0)))]

    def _leave_far_slower(self) -> None:
        rows, best = np.array(self._rows), self._best()
        for each in list(self.alive):
            if np.nanmin(rows[:, each]) > np.nanmax(rows[:, best]) + math.log(FAR):
                self._leave(each, "far slower")

    def _look(self, looks: Looks, share: float) -> bool:
        """Leaves out the candidates that are shown to be slower; returns whether to stop."""
        if self.blocks < FEWEST_BLOCKS and share < 1:
            return False
        best = self._best()
        confidence = 1 - (1 - looks.confidence(share)) / max(len(self.calls) - 1, 1)
        within = True
        for each in [other for other in self.alive if other != best]:
            self._confidence[each] = confidence
            ratio = self._ratio(each, best)
            within &= ratio.high <= 1 + self.margin
            if ratio.low > 1:
                self._leave(each, "slower")
        if len(self.alive) == 1:
            self.stopped = "winner"
        elif within:
            self.stopped = "tie"
        return self.stopped != "budget"

    def _ratio(self, each: int, best: int) -> Ratio:
        step = self._tick / math.exp(float(np.nanmedian(np.array(self._rows)[:, best])))
        return ratio_of_blocks(self._logs(each, best), self._confidence[each], step)

    def result(self, stopped: str) -> Tuned:
        """The candidates so far."""
        best = self._best()
        found = []
        for each, name in enumerate(self.names):
            parts = self._seconds[each]
            times = np.concatenate(parts) if parts else np.empty(0)
            times = times[np.isfinite(times)]
            ratio = self._ratio(each, best) if each != best and len(times) else None
            estimate = stats.estimate(times, tick=self._tick) if len(times) else None
            error = self.errors.get(each)
            found.append(Candidate(name, estimate, ratio, len(times) // 2, self.left_out.get(each, ""), error))
        ties = [each for each in self.alive if each != best]
        ranks = {each: (each != best, each not in ties, found[each].error is not None) for each in range(len(found))}
        order = sorted(ranks, key=lambda each: (*ranks[each], one.value if (one := found[each].ratio) else math.inf))
        return Tuned(
            winner=self.names[best],
            function=self.given[best],
            ties=tuple(self.names[each] for each in order if each in ties),
            candidates=tuple(found[each] for each in order),
            quantity=self.quantity,
            margin=self.margin,
            stopped=stopped,
            seconds=self.whole.spent,
            warnings=tuple(f"{self.names[each]} was left out: {error}" for each, error in self.errors.items()),
            conditions=Conditions.now(self._device if self.on_gpu else None),
        )


def _named(candidates: object) -> dict[str, Callable[..., object]]:
    """The candidates by name; of equal names all but the first get a number."""
    accepted = "functions by name, or a list of functions"
    if isinstance(candidates, Mapping):
        named = {str(name): function for name, function in candidates.items()}
    elif isinstance(candidates, Sequence) and not isinstance(candidates, str):
        named = {}
        for function in candidates:
            name, number = function_name(function), 1
            while (unique := name if number == 1 else f"{name} {number}") in named:
                number += 1
            named[unique] = function
    else:
        raise InvalidArgument(f"candidates is {brief(candidates)}; accepted are {accepted}")
    if not named:
        raise InvalidArgument(f"candidates is empty; accepted are {accepted}")
    for name, function in named.items():
        if not callable(function):
            raise InvalidArgument(f"candidate {name} is {brief(function)}; accepted are {accepted}")
    return named


def _plain_interval(found: stats.Estimate | Ratio | None) -> list[float | None]:
    return plain_values((found.value, found.low, found.high)) if found else [None] * 3


def _without_gradients(call: Callable[[], object], tensors: Sequence[Any] | None) -> Callable[[], object]:
    if not tensors:
        return call

    def without_gradients() -> object:
        for tensor in tensors:
            tensor.grad = None
        return call()

    return without_gradients
