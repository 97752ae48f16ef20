# SPDX-License-Identifier: Apache-2.0
"""`find_max_batch_size`: the largest batch that a model or a function can take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from numbers import Integral
from typing import Any

from gpuscope.errors import InvalidArgument
from gpuscope.memory.batch_size.measuring import release
from gpuscope.memory.batch_size.random_state import kept_random
from gpuscope.memory.batch_size.result import LimitedBy, MaxBatchSize
from gpuscope.memory.batch_size.search import Search
from gpuscope.memory.batch_size.torch_model import ModelStep, device_of, is_model
from gpuscope.memory.batch_size.torch_state import kept_state
from gpuscope.memory.batch_size.tries import NOT_TRIED, Tries
from gpuscope.memory.failures.delivery import muted

LARGEST = 2**31 - 1  # without a limit: what needs no memory would be tried for ever


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

    Sizes are doubled from `start` and then closed in on from both sides; what the peaks so far and the memory that is
    free now predict is tried sooner, so that few tries fail. Others may use the GPU too. Is there no GPU, or does the
    work need much of the host, it ends before the host would swap. Only out-of-memory errors mean "does not fit"; any
    other is raised as it is. Ctrl-C keeps the largest size that is known to fit.

    A model is afterwards as it was: modes, parameters, gradients, buffers, the optimizer's state; so are the random
    generators of Python, NumPy and torch. torch's peak statistics are reset.

    Args:
        fn_or_model: a torch.nn.Module, or a function of any framework that is called with a batch size.
        input_shape: of one sample, without the batch dimension; inputs are random, or zeros for an integer `dtype`.
        start: the size tried first.
        device: where a model is moved to, and stays; None leaves it where it is. For a function, the GPU it uses.
        training: forward, loss, backward and, with an optimizer, its step; by default forward only, in evaluation mode.
        limit: no larger size is tried; None is 2**31 - 1.
        multiple_of: only multiples of it are tried, as tensor cores like 8.
        margin: the share of the size that ``.recommended`` leaves free.
        dtype: of the inputs; by default that of the model's first floating parameter.
        make_input: called with a batch size in place of `input_shape`; gives a tensor, a tuple of positional
            arguments or a mapping of keywords.
        make_target: called with a batch size; what the loss is given as its second argument.
        loss: called with the model's output and the target if there is one; by default the mean of the first output.
        optimizer: steps in each try, and is put back with the parameters, copies of which wait in the host's memory;
            True takes the memory that Adam would, and changes nothing.
        steps: how often each size is run; what allocators hold settles with the second.
        progress: called with one line after each try; ``print`` will do.

    Returns:
        An int with ``.recommended``, ``.tries``, ``.bytes_per_sample``, ``.report()`` and more; 0 when nothing fits.

    Raises:
        InvalidArgument: an argument is out of range, or does not go with the others.
        NotAvailable: the host has no memory for the copies of a model's state.
    """
    for name, value in (("start", start), ("multiple_of", multiple_of), ("steps", steps)):
        _check_whole(name, value)
    if limit is not None:
        _check_whole("limit", limit)
        if limit < multiple_of:
            raise InvalidArgument(f"limit is {limit}; accepted is at least multiple_of, which is {multiple_of}")
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < 1:
        raise InvalidArgument(f"margin is {margin!r}; accepted is a share from 0 to below 1")
    optimizer = None if optimizer is False else optimizer
    model = fn_or_model if is_model(fn_or_model) else None
    with ExitStack() as kept:
        if model is None:
            given = {"input_shape": input_shape, "make_input": make_input, "make_target": make_target, "loss": loss}
            _check_function(fn_or_model, given | {"optimizer": optimizer, "dtype": dtype}, training)
            step: Callable[[int], object] = fn_or_model
            ordinal, on_host = _ordinal(device), _is_cpu(device)
        else:
            _check_model(model, input_shape, make_input, training, make_target, loss, optimizer)
            if device is not None:
                model.to(device)
            place = device_of(model)
            ordinal, on_host = _ordinal(place), _is_cpu(place)
            kept.enter_context(kept_state(model, None if optimizer is True else optimizer))
            make = make_input if make_input is not None else _maker(input_shape or (), dtype, model, place)
            step = ModelStep(model, make, training=training, make_target=make_target, loss=loss, optimizer=optimizer)
        kept.callback(release)
        kept.enter_context(kept_random())
        kept.enter_context(muted())
        tries = Tries(step, int(steps), ordinal, on_host)
        most = LARGEST if limit is None else int(limit)
        search = Search(-(-int(start) // int(multiple_of)), most // int(multiple_of))
        interrupted = _run(search, tries, int(multiple_of), progress)
        largest = search.fits * int(multiple_of)
        limited_by, why = _verdict(search, tries, int(multiple_of), most, interrupted)
        return MaxBatchSize(
            largest,
            limited_by=limited_by,
            why=why,
            training=bool(training),
            margin=float(margin),
            multiple_of=int(multiple_of),
            tries=tuple(tries.done),
            room=tries.room(),
        )


def _run(search: Search, tries: Tries, unit: int, progress: Callable[[str], object] | None) -> bool:
    """Searches; True when Ctrl-C ended it, which goes on where nothing is known to fit."""
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
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise InvalidArgument(f"{name} is {value!r}; accepted are whole numbers above 0")


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
        raise InvalidArgument(f"input_shape is {shape!r}; accepted are a sample's sizes, as (3, 224, 224)")
    if not training:
        for name, value in (("make_target", make_target), ("loss", loss), ("optimizer", optimizer)):
            if value is not None:
                raise InvalidArgument(f"{name} is given without training=True; a forward alone has no use for it")
    if make_target is not None and loss is None:
        raise InvalidArgument("make_target is given without loss; accepted with it is a loss(output, target)")
    if any("Uninitialized" in type(each).__name__ for each in model.parameters()):
        raise InvalidArgument("fn_or_model has parameters without a shape yet; call it once with one batch first")


def _is_cpu(device: Any) -> bool:
    return str(getattr(device, "type", device)).partition(":")[0] == "cpu"


def _ordinal(device: Any) -> int | None:
    """The number of a GPU in any of its forms; None is the current one."""
    if isinstance(device, Integral):
        return int(device)
    index = getattr(device, "index", None) if not isinstance(device, str) else device.partition(":")[2]
    return int(index) if index not in (None, "") and not callable(index) else None
