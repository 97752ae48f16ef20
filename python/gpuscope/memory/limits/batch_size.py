# SPDX-License-Identifier: Apache-2.0
"""`find_max_batch_size`: the largest batch that a model or a function can take."""

from __future__ import annotations

import gc
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np

from gpuscope import _core
from gpuscope.arguments import check_done, check_function, check_progress
from gpuscope.devices import find_ordinal, is_cpu, ordinal_of, why_no_gpu
from gpuscope.errors import GpuscopeWarning, InvalidArgument, NotAvailable
from gpuscope.frameworks import cupy as cupy_pools
from gpuscope.frameworks import jax as jax_pools
from gpuscope.frameworks import torch as torch_framework
from gpuscope.frameworks import torch_memory
from gpuscope.frameworks.torch import initialized
from gpuscope.frameworks.torch_model import ModelStep, is_model, kept_random, kept_state
from gpuscope.memory import host
from gpuscope.memory.limits.out_of_memory_errors import is_out_of_memory, may_be_out_of_memory
from gpuscope.memory.limits.out_of_memory_reports import muted
from gpuscope.results import Result
from gpuscope.streams import refuse_capture
from gpuscope.text import brief, shown
from gpuscope.units import first_line, format_bytes

LARGEST = 2**31 - 1  # default limit: a function without memory use would be tried forever

LimitedBy = Literal["memory", "limit", "interrupted"]
NOT_TRIED = "not tried"
HOST_SHARE = 0.5  # of the host memory that is free at the start; other programs need memory too
_WHY_LESS = "a peak varies from run to run, memory fragments over a long one, and other shapes take more"

_GUESSES = 2  # a rough one and a refined one
_NEARBY = 32  # assumed relative error of a guess: 1 / _NEARBY
_EXACT = 2  # if the guess fits: its error is less than twice this


def find_max_batch_size(
    fn_or_model: Any,
    input_shape: Sequence[int] | None = None,
    start: int = 8,
    device: Any = None,
    *,
    training: bool = False,
    limit: int | None = None,
    multiple_of: int = 1,
    margin: float = 0.1,
    dtype: Any = None,
    make_input: Callable[[int], Any] | None = None,
    make_target: Callable[[int], Any] | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    steps: int = 2,
    progress: Callable[[str], object] | None = None,
) -> MaxBatchSize:
    """Finds the largest batch size that fits in memory, by trying: ``find_max_batch_size(model, (3, 224, 224))``.

    Sizes double from `start` until one fails; then the search bisects. Only an out-of-memory error means "does not
    fit"; any other error is raised. Ctrl-C returns the largest size known to fit, with a warning. The model and the
    random generators are restored; torch's peak statistics are reset.

    The search uses at most half of the host memory that is free at its start. It searches host memory only with
    ``device="cpu"``: without a GPU, or with a model on the CPU, it raises. Large batches take minutes on the CPU: pass
    `limit` and ``progress=print`` there.

    Args:
        fn_or_model: a torch.nn.Module, or a function of the batch size in any framework.
        input_shape: of one sample. Inputs are random, or zeros for an integer `dtype`.
        start: the first size.
        device: the model moves there and stays; None leaves it. For a function: the GPU it uses, default the current
            one. ``"cpu"``: host memory.
        training: forward, loss, backward and optimizer step; default forward only, in evaluation mode.
        limit: the largest size, default 2**31 - 1.
        multiple_of: sizes are multiples of it.
        margin: share that ``.recommended`` leaves free.
        dtype: of the inputs, default that of the model's first floating-point parameter.
        make_input: replaces `input_shape`. Called with a batch size, returns a tensor, a tuple of arguments or a
            mapping of keywords.
        make_target: called with a batch size, returns the loss's second argument.
        loss: called with the output and, if given, the target; default the mean of the first output.
        optimizer: steps in each try and is restored. True allocates what Adam would.
        steps: runs per size.
        progress: called with one line per try, as ``print``.

    Returns:
        An int with ``.recommended``, ``.tries``, ``.bytes_per_sample``, ``.report()`` and more; 0 when nothing fits.

    Raises:
        InvalidArgument: an argument is out of range or contradicts another; `device` is None and the model is on the
            CPU of a machine with a GPU.
        NotAvailable: there is no GPU and `device` is not ``"cpu"``; the host has no memory for copies of the model's
            state.
    """
    for name, value in (("start", start), ("multiple_of", multiple_of), ("steps", steps)):
        _check_whole(name, value)
    if limit is not None:
        _check_whole("limit", limit)
        if limit < multiple_of:
            raise InvalidArgument(
                f"limit is {brief(limit)}; accepted is at least multiple_of, which is {brief(multiple_of)}"
            )
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < 1:
        raise InvalidArgument(f"margin is {brief(margin)}; accepted is a share from 0 to below 1")
    check_progress(progress)
    refuse_capture("find_max_batch_size")
    optimizer = None if optimizer is False else optimizer
    model = fn_or_model if is_model(fn_or_model) else None
    with ExitStack() as kept:
        if model is None:
            given = {"input_shape": input_shape, "make_input": make_input, "make_target": make_target, "loss": loss}
            _check_function(fn_or_model, given | {"optimizer": optimizer, "dtype": dtype}, training)
            step: Callable[[int], object] = fn_or_model
            on_host = is_cpu(device)
            ordinal = None if device is None or on_host else ordinal_of(device)
            if not on_host:
                _check_gpu(ordinal)
        else:
            _check_model(model, input_shape, make_input, training, make_target, loss, optimizer)
            _check_kinds(dtype, optimizer, {"make_input": make_input, "make_target": make_target, "loss": loss})
            place = _place(model, device)
            ordinal, on_host = find_ordinal(place), is_cpu(place)
            kept.enter_context(kept_state(model, None if optimizer is True else optimizer, host.available_memory()[0]))
            make = make_input if make_input is not None else _maker(input_shape or (), dtype, model, place)
            step = ModelStep(
                model, make, place, training=training, make_target=make_target, loss=loss, optimizer=optimizer
            )
        kept.callback(release, ordinal)
        kept.enter_context(kept_random())
        kept.enter_context(muted())
        tries = Tries(step, int(steps), ordinal, on_host)
        most = LARGEST if limit is None else int(limit)
        search = Search(-(-int(start) // int(multiple_of)), most // int(multiple_of))
        interrupted = _run(search, tries, int(multiple_of), progress)
        largest = search.fits * int(multiple_of)
        limited_by, why = _verdict(search, tries, int(multiple_of), most, interrupted)
        if interrupted:
            text = f"interrupted: {largest:,} is the largest batch known to fit"
            warnings.warn(text, GpuscopeWarning, stacklevel=2)
        return MaxBatchSize(
            largest,
            limited_by=limited_by,
            why=why,
            training=bool(training),
            margin=float(margin),
            multiple_of=int(multiple_of),
            tries=tuple(tries.done),
            room_bytes=tries.room(),
        )


def _run(search: Search, tries: Tries, unit: int, progress: Callable[[str], object] | None) -> bool:
    """Searches; returns whether Ctrl-C ended it. Raises KeyboardInterrupt if no size is known to fit."""
    try:
        while True:
            predicted = tries.predicted()
            number = search.next(None if predicted is None else predicted // unit)
            if number is None:
                return False
            tried = tries.run(number * unit)
            search.add(number, tried.fits)
            if progress is not None:
                progress(str(tried))
    except KeyboardInterrupt:
        if not search.fits:
            raise
        return True


def _verdict(search: Search, tries: Tries, unit: int, limit: int, interrupted: bool) -> tuple[LimitedBy, str]:
    if interrupted:
        return "interrupted", "interrupted; a larger one may fit"
    if search.fails is None:
        return "limit", f"all fit up to the limit of {limit}"
    failed = next(each for each in reversed(tries.done) if each.size == search.fails * unit)
    verb = "was" if failed.error.startswith(NOT_TRIED) else "does not:"
    return "memory", f"{failed.size} {verb} {failed.error}"


def _check_gpu(ordinal: int | None) -> None:
    """Raises NotAvailable if there is no GPU, or not this one. None: the current one."""
    if why := why_no_gpu():
        raise NotAvailable(
            f'find_max_batch_size is not available: {why}; device="cpu" searches in half of the host\'s free memory'
        )
    if ordinal is not None:
        _core.find_device(ordinal)


def _place(model: Any, device: Any) -> Any:
    """Moves the model to the device; returns its torch.device."""
    ordinal = None if device is None else find_ordinal(device)
    if ordinal is not None:
        _check_gpu(ordinal)
    if device is not None:
        model.to(device)
    place = torch_framework.device_of(model)
    if place is None:  # no parameters and no buffers
        if device is None:
            _check_gpu(None)
        return torch_framework.make_device("cuda" if device is None else device)
    if device is None and is_cpu(place):
        _check_gpu(None)
        raise InvalidArgument(
            'device is None and fn_or_model is on the CPU; accepted are device="cuda", which moves it to the GPU, and '
            'device="cpu", which searches in half of the host\'s free memory'
        )
    return place


def _maker(shape: Sequence[int], dtype: Any, model: Any, device: Any) -> Callable[[int], Any]:
    import torch

    floating = (each.dtype for each in model.parameters() if each.is_floating_point())
    kind = next(floating, torch.get_default_dtype()) if dtype is None else dtype

    def make(size: int) -> Any:
        if kind.is_floating_point or kind.is_complex:
            return torch.randn(size, *shape, dtype=kind, device=device)
        return torch.zeros(size, *shape, dtype=kind, device=device)

    return make


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 < int(value) < 2**63:
        limit = " and below 2**63" if isinstance(value, Integral) and int(value) >= 2**63 else ""
        raise InvalidArgument(f"{name} is {brief(value)}; accepted are whole numbers above 0{limit}")


def _check_function(function: Any, given: dict[str, Any], training: bool) -> None:
    if not callable(function):
        kind = type(function).__name__
        raise InvalidArgument(f"fn_or_model is a {kind}; accepted are models of torch and functions of a batch size")
    wrong = [name for name, value in (given | {"training": training or None}).items() if value is not None]
    if wrong:
        raise InvalidArgument(f"{wrong[0]} is given with a function; a function is called with the batch size alone")


def _check_model(
    model: Any, shape: Any, make_input: Any, training: bool, make_target: Any, loss: Any, optimizer: Any
) -> None:
    if (shape is None) == (make_input is None):
        what = "missing" if shape is None else "given together with make_input"
        raise InvalidArgument(f"input_shape is {what}; a model takes one of input_shape and make_input")
    if shape is not None and (
        isinstance(shape, (str, bytes))
        or not isinstance(shape, Sequence)
        or not all(isinstance(each, Integral) and int(each) > 0 for each in shape)
    ):
        raise InvalidArgument(f"input_shape is {brief(shape)}; accepted are a sample's sizes, as (3, 224, 224)")
    if not training:
        for name, value in (("make_target", make_target), ("loss", loss), ("optimizer", optimizer)):
            if value is not None:
                raise InvalidArgument(f"{name} is given without training=True; a forward alone has no use for it")
    if make_target is not None and loss is None:
        raise InvalidArgument("make_target is given without loss; accepted with it is a loss(output, target)")
    if any("Uninitialized" in type(each).__name__ for each in model.parameters()):
        raise InvalidArgument("fn_or_model has parameters without a shape yet; call it once with one batch first")


def _check_kinds(dtype: Any, optimizer: Any, functions: Mapping[str, Any]) -> None:
    import torch

    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise InvalidArgument(f"dtype is {brief(dtype)}; accepted are torch's, as torch.float16, and None")
    if optimizer is not None and optimizer is not True and not hasattr(optimizer, "param_groups"):
        raise InvalidArgument(f"optimizer is {brief(optimizer)}; accepted are torch's optimizers, True and None")
    for name, function in functions.items():
        if function is not None:
            check_function(name, function, "a function")


class MaxBatchSize(int, Result):
    """The largest batch size that fits, as an int; 0 when none does.

    Attributes:
        limited_by: "memory"; "limit" if all sizes up to it fit; "interrupted" by Ctrl-C, so a larger one may fit.
        why: why the next size does not fit, as text.
        training: whether full training steps were tried, not only the forward.
        margin: share that `recommended` leaves free.
        multiple_of: only its multiples were tried.
        tries: the sizes tried, in order.
        room_bytes: the highest possible peak at the end, in bytes; None if unknown.
    """

    limited_by: LimitedBy
    why: str
    training: bool
    margin: float
    multiple_of: int
    tries: tuple[Try, ...]
    room_bytes: int | None

    def __new__(
        cls,
        value: int,
        *,
        limited_by: LimitedBy = "memory",
        why: str = "",
        training: bool = False,
        margin: float = 0.1,
        multiple_of: int = 1,
        tries: tuple[Try, ...] = (),
        room_bytes: int | None = None,
    ) -> MaxBatchSize:
        """See the attributes of the class."""
        self = super().__new__(cls, value)
        self.limited_by = limited_by
        self.why = why
        self.training = training
        self.margin = margin
        self.multiple_of = multiple_of
        self.tries = tries
        self.room_bytes = room_bytes
        return self

    @property
    def recommended(self) -> int:
        """The size to work with: less by `margin`, a multiple of `multiple_of`, at least that if it fits.

        A peak varies from run to run, memory fragments over a long one, and other shapes take more. If the limit itself
        fits with the margin free, it is the limit.
        """
        peak = next((each.peak_bytes for each in self.tries if each.size == self and each.fits), None)
        spare = peak is not None and self.room_bytes is not None and peak <= (1 - self.margin) * self.room_bytes
        if self.limited_by == "limit" and spare:
            return int(self)
        less = int(round(int(self) * (1 - self.margin), 6)) // self.multiple_of * self.multiple_of  # 0.1 of 100 is 10
        return max(less, min(int(self), self.multiple_of))

    @property
    def bytes_per_sample(self) -> int | None:
        """Bytes per sample, by a line through the peaks; None if fewer than two tries fit."""
        found = self._line()
        return None if found is None else max(0, round(found[1]))

    @property
    def fixed_bytes(self) -> int | None:
        """Bytes that do not depend on the batch size, as parameters; None if fewer than two tries fit."""
        found = self._line()
        return None if found is None else max(0, round(found[0]))

    def report(self) -> str:
        """The largest size, the recommended size and why, and every try, one line each."""
        what = "training" if self.training else "batch"
        lines = [f"largest {what} size that fits: {int(self)} ({self.why})"]
        if self:
            same = f"a margin of {100 * self.margin:.3g} % gives no smaller size"
            same = "the limit; memory does not end the search" if self.limited_by == "limit" else same
            lines.append(f"  recommended: {self.recommended} ({_WHY_LESS if self.recommended < self else same})")
        if self.bytes_per_sample is not None and self.fixed_bytes is not None:
            sample = format_bytes(self.bytes_per_sample) if self.bytes_per_sample else "less than can be measured"
            lines.append(f"  a sample takes {sample}, all else {format_bytes(self.fixed_bytes)}")
        return "\n".join([*lines, *(f"  {each}" for each in self.tries)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; sizes in bytes, times in seconds."""
        names = ("limited_by", "why", "training", "margin", "multiple_of", "room_bytes")
        facts = {name: getattr(self, name) for name in (*names, "recommended", "bytes_per_sample", "fixed_bytes")}
        return {"value": int(self), **facts, "tries": [vars(each) for each in self.tries]}

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per try."""
        return [vars(each) for each in self.tries]

    def _line(self) -> tuple[float, float] | None:
        return line((each.size, each.peak_bytes) for each in self.tries if each.fits and each.peak_bytes is not None)

    def __str__(self) -> str:
        return int.__repr__(self)

    def __repr__(self) -> str:
        return f"<MaxBatchSize {int(self)}, limited by {self.limited_by}, {len(self.tries)} tries>"


class Search:
    """Finds the largest number that fits, if every number below a fitting one fits too.

    Tries the doubled or the predicted number, then bisects: O(log(answer)) tries with any predictions. Numbers count
    multiples of a unit.

    Attributes:
        fits: the largest known to fit; 0 at first.
        fails: the smallest known to fail; None at first.
    """

    def __init__(self, start: int, limit: int | None = None, growth: int = 16) -> None:
        """`growth`: largest ratio of a prediction to the largest number known to fit."""
        self.fits = 0
        self.fails: int | None = None
        self._start = start if limit is None else min(start, limit)
        self._limit = limit
        self._growth = growth
        self._guesses = 0
        self._guessed = 0
        self._step = 0

    def add(self, number: int, fits: bool) -> None:
        """Adds the result of a try."""
        if fits and number == self._guessed:
            self._step = 1  # a prediction that fits may be exact
        if fits:
            self.fits = max(self.fits, number)
        else:
            self.fails = number if self.fails is None else min(self.fails, number)

    def next(self, predicted: int | None = None) -> int | None:
        """The number to try next; None if the answer is known. `predicted`: the largest expected to fit."""
        if self.fits == self._limit or (self.fails is not None and self.fails - self.fits <= 1):
            return None
        if not self.fits:
            return self._start if self.fails is None else self.fails // 2
        number = self._guess(predicted) or (self._upwards(predicted) if self.fails is None else self._between())
        return number if self._limit is None else min(number, self._limit)

    def _guess(self, predicted: int | None) -> int | None:
        if predicted is None or predicted <= self.fits or self._guesses == _GUESSES:
            return None
        if predicted > self._growth * self.fits:
            return self._growth * self.fits if self.fails is None else None
        if self.fails is not None and predicted >= self.fails:
            return None
        self._guesses += 1
        self._guessed = predicted
        self._step = max(1, predicted // _NEARBY)
        return predicted

    def _upwards(self, predicted: int | None) -> int:
        if predicted is None or predicted > self.fits:
            return 2 * self.fits if not self._step else self.fits + self._doubled()
        self._step = self._step or max(1, self.fits // _NEARBY)
        return self.fits + self._doubled()

    def _between(self) -> int:
        assert self.fails is not None
        middle = (self.fits + self.fails) // 2
        return max(middle, self.fails - self._doubled()) if self._step else middle

    def _doubled(self) -> int:
        # A larger error than _EXACT means a bad prediction: libraries choose algorithms by size.
        step = self._step
        self._step = 2 * step if step != _EXACT else max(2 * step, self.fits // _NEARBY)
        return step


@dataclass(frozen=True)
class Try:
    """One batch size that was tried.

    Attributes:
        size: samples.
        fits: whether all its steps ran.
        peak_bytes: peak memory of the GPU if torch, CuPy or JAX use one, else of the host; None if unknown.
        seconds: total time of its steps.
        error: why it does not fit, as text; "" if it fits.
    """

    size: int
    fits: bool
    peak_bytes: int | None
    seconds: float
    error: str

    @shown
    def __str__(self) -> str:
        failed = self.error if self.error.startswith(NOT_TRIED) else f"does not fit: {self.error}"
        what = "fits" if self.fits else failed
        peak = "" if self.peak_bytes is None else f", {format_bytes(self.peak_bytes)} at its peak"
        return f"batch size {self.size}: {what}{peak if self.fits else ''}, {self.seconds:.2f} s"


class Tries:
    """Runs a function at several batch sizes, `steps` times each, within the memory of GPU and host.

    Attributes:
        done: the tries with a result, in order.
    """

    def __init__(self, step: Callable[[int], object], steps: int, device: int | None, on_host: bool) -> None:
        self.done: list[Try] = []
        self._step = step
        self._steps = steps
        self._device = device
        self._gpu = None if on_host else GpuMeter(device)
        self._host = HostMeter()
        self._host_peaks: list[tuple[int, int]] = []
        self._host_before = 0
        release(device)

    def run(self, size: int) -> Try:
        """Tries one size and adds it to `done`. Only out-of-memory errors are caught."""
        refused = self._more_than_the_host_has(size)
        tried = Try(size, False, None, 0.0, refused) if refused else self._run(size)
        self.done.append(tried)
        return tried

    def predicted(self) -> int | None:
        """The largest size expected to fit, from the peaks so far and the memory available now."""
        meter = self._gpu if self._gpu is not None and self._gpu.peak() else self._host
        room, found = meter.room(), self.line()
        if room is None or found is None or found[1] <= 0:
            return None
        if meter is self._gpu:
            return max(0, int((room - found[0]) // found[1]))
        # On the host one size too large is not safe: at most double.
        most = max(0, int((room - found[0]) // found[1]))
        return most if most <= 2 * max(each.size for each in self.done if each.fits) else None

    def line(self) -> tuple[float, float] | None:
        """Fixed bytes and bytes per sample, from the peaks of sizes that fit."""
        return line((each.size, each.peak_bytes) for each in self.done if each.fits and each.peak_bytes is not None)

    def room(self) -> int | None:
        """The highest possible peak now, in bytes."""
        gpu = self._gpu.room() if self._gpu is not None else None
        return self._host.room() if gpu is None else gpu

    def _run(self, size: int) -> Try:
        for meter in (self._gpu, self._host):
            if meter is not None:
                meter.start()
        self._host_before = self._host.now() or 0
        failures = torch_memory.count_failures()
        error = ""
        started = _core.monotonic_ns()
        try:
            for _ in range(self._steps):
                finish(check_done("fn_or_model", self._step(size)), self._device)
        except Exception as raised:
            ran_out = may_be_out_of_memory(raised) and torch_memory.count_failures() > failures
            if not ran_out and not is_out_of_memory(raised):
                self._add_note(raised, size)
                release(self._device)
                raise
            error = first_line(raised)
            _clear_frames(raised)
        seconds = (_core.monotonic_ns() - started) / 1e9
        on_host, on_gpu = self._host.peak(), self._gpu.peak() if self._gpu is not None else None
        if on_host is not None and not error:
            self._host_peaks.append((size, on_host))
        release(self._device)
        return Try(size, not error, on_host if on_gpu is None else on_gpu, seconds, error)

    def _more_than_the_host_has(self, size: int) -> str:
        """Why a size is not tried: it would use more host memory than allowed. Empty if it may be tried."""
        room = self._host.room()
        if room is None or not self._host_peaks:
            return ""
        known, peak = max(self._host_peaks)
        found = line(self._host_peaks)
        growth = max(0, peak - self._host_before) / known if found is None else max(0.0, found[1])
        expected = peak + growth * (size - known)
        if size <= known or expected <= room:
            return ""
        return (
            f"{NOT_TRIED}: the process would have {format_bytes(expected)} of the host's memory; the search stops at "
            f"{format_bytes(room)}, {100 * HOST_SHARE:.0f} % of what was free at its start"
        )

    def _add_note(self, raised: BaseException, size: int) -> None:
        ran = max((each.size for each in self.done if each.fits), default=0)
        if hasattr(raised, "add_note"):  # of Python 3.11
            raised.add_note(f"raised at batch size {size}; " + (f"{ran} ran" if ran else "none ran before"))


def _clear_frames(error: BaseException | None) -> None:
    """Releases the objects that the frames of an error's traceback hold."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def release(device: int | None = None) -> None:
    """Returns unused memory to the driver; for CuPy, of one GPU. None: the current one."""
    gc.collect()
    torch, cupy = initialized(), cupy_pools.in_use()
    if torch is not None:
        torch.cuda.empty_cache()
    if cupy is not None:
        with cupy.cuda.Device(device):
            cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def finish(result: object, device: int | None = None) -> None:
    """Waits for the work of a step on a GPU, and raises its errors. None: the current one."""
    torch, cupy, jax = initialized(), cupy_pools.in_use(), sys.modules.get("jax")
    if torch is not None:
        torch.cuda.synchronize(device)
    if cupy is not None:
        cupy.cuda.Device(device).synchronize()
    if jax is not None and hasattr(jax, "block_until_ready"):
        jax.block_until_ready(result)


class GpuMeter:
    """The memory of torch, CuPy and JAX on a GPU, default the current one. Figures are None if no library has them."""

    def __init__(self, device: int | None = None) -> None:
        self._device = device
        self._jax_before: int | None = None

    def start(self) -> None:
        """A try begins."""
        torch = initialized()
        self._jax_before = jax_pools.memory_stat(self._device, "peak_bytes_in_use")
        if torch is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        """Peak bytes in use since `start`. For CuPy, the bytes its pool holds now; for JAX, only a new record."""
        torch, cupy = initialized(), cupy_pools.in_use()
        peak = int(torch.cuda.max_memory_allocated(self._device)) if torch is not None else 0
        peak += self._held_by(cupy)
        if peak:
            return peak
        record = jax_pools.memory_stat(self._device, "peak_bytes_in_use")
        return None if record == self._jax_before else record

    def room(self) -> int | None:
        """The highest possible `peak`: free bytes of the GPU now, plus bytes held already."""
        torch, cupy = initialized(), cupy_pools.in_use()
        if torch is not None:
            free, total = torch.cuda.mem_get_info(self._device)
        elif cupy is not None:
            with cupy.cuda.Device(self._device):
                free, total = cupy.cuda.runtime.memGetInfo()
        else:
            return jax_pools.memory_stat(self._device, "bytes_limit")
        held = int(torch.cuda.memory_reserved(self._device)) if torch is not None else 0
        held += self._held_by(cupy)
        room = int(free) + held
        share = getattr(torch.cuda, "get_per_process_memory_fraction", None) if torch is not None else None
        return room if share is None else min(room, int(share(self._device) * total))

    def _held_by(self, cupy: Any) -> int:
        if cupy is None:
            return 0
        with cupy.cuda.Device(self._device):  # the pool answers for the current device
            return int(cupy.get_default_memory_pool().total_bytes())


class HostMeter:
    """The host memory of this process. A search may use HOST_SHARE of the memory that is free at its start."""

    def __init__(self) -> None:
        free, held = host.available_memory()[0], self.now()
        self._most = None if free is None or held is None else held + int(HOST_SHARE * free)

    def start(self) -> None:
        """A try begins."""
        host.reset_peak_resident()

    def now(self) -> int | None:
        """Resident bytes."""
        return host.resident()

    def peak(self) -> int | None:
        """Peak resident bytes since `start`."""
        return host.peak_resident()

    def room(self) -> int | None:
        """Resident bytes allowed: those at the start plus HOST_SHARE of the free memory. Less if others took memory."""
        free, held = host.available_memory()[0], self.now()
        if self._most is None or free is None or held is None:
            return self._most
        return min(self._most, held + free)


def line(points: Iterable[tuple[int, int]]) -> tuple[float, float] | None:
    """Bytes at size 0 and bytes per sample, by least squares over (size, bytes); None for fewer than two sizes."""
    sizes, peaks = np.array(list(points), dtype=np.float64).reshape(-1, 2).T
    if len(np.unique(sizes)) < 2:
        return None
    centred = sizes - sizes.mean()
    slope = float((centred * (peaks - peaks.mean())).sum() / (centred**2).sum())
    return float(peaks.mean() - slope * sizes.mean()), slope
