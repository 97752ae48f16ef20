# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: the error for a wrong one names the argument, its value and the accepted values.

A number may be of any numeric type, as NumPy's and `fractions.Fraction`; the checks return Python's own.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Coroutine, Sequence
from typing import Literal, TypeVar, cast

from gpuscope.errors import InvalidArgument
from gpuscope.text import brief

T = TypeVar("T")

# The fixed values of arguments: here those that the command line or pytest accepts too.
Mode = Literal["full", "ring", "aggregate"]
Graphs = Literal["node", "launch"]
Quantity = Literal["kernel", "span", "stream", "launch", "wall"]
BackendName = Literal["torch", "cupy", "numpy"]
FloatType = Literal["float32", "float64"]

OPERATOR_OPTIONS = {
    "record_shapes": "the shapes of operators' inputs",
    "with_stack": "where in the program operators, regions and launches are",
    "profile_memory": "what PyTorch's allocators hand out, and what libraries take from the driver",
    "with_modules": "the torch.nn.Module that operators run in",
    "with_flops": "floating-point operations of operators, from their shapes",
}
"""Options of `profile` that record details of operators."""

# Functions whose call only makes an object: the kind, the tests of function and result, and how to run it.
_SUSPENDED = (
    ("a coroutine", inspect.iscoroutinefunction, inspect.iscoroutine, "asyncio.run on it"),
    ("an asynchronous generator", inspect.isasyncgenfunction, inspect.isasyncgen, "asyncio.run on it"),
    ("a generator", inspect.isgeneratorfunction, inspect.isgenerator, "list on it"),
    # Checked on the type: mock objects have every attribute.
    ("a future", None, lambda value: hasattr(type(value), "add_done_callback"), "result() on it"),
    ("an awaitable", None, inspect.isawaitable, "asyncio.run on what awaits it"),
)


class Suspended(InvalidArgument):
    """A call returned an object for its work, as a coroutine, before the work was done."""


def as_float(value: object) -> float:
    """A number as a float: nan for other values, infinite for numbers too large."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if cast(int, value) > 0 else -math.inf


def type_of_option(parse: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse's ``type=``, which shows only messages of its own errors."""

    def parse_option(text: str) -> T:
        try:
            return parse(text)
        except InvalidArgument as error:
            from argparse import ArgumentTypeError

            raise ArgumentTypeError(str(error)) from None

    return parse_option


def check_choice(name: str, value: object, accepted: Sequence[object]) -> None:
    """Raises InvalidArgument unless the argument is one of the values, as those of a ``Literal``."""
    if not any(value is one or (isinstance(value, str) and value == one) for one in accepted):
        raise InvalidArgument(f"{name} is {brief(value)}; accepted are {', '.join(map(repr, accepted))}")


def check_fraction(name: str, value: object) -> float:
    """The argument, if it is between 0 and 1.

    Raises:
        InvalidArgument: it does not.
    """
    number = as_float(value)
    if not 0 < number < 1:
        raise InvalidArgument(f"{name} is {brief(value)}; accepted are fractions above 0 and below 1")
    return number


def check_positive(name: str, value: object, unit: str = "numbers") -> float:
    """The argument, if it is a finite number above 0; integers stay integers.

    Raises:
        InvalidArgument: it is not.
    """
    number = as_float(value)
    if not 0 < number < math.inf:
        limit = ", which a float can hold" if number == math.inf else ""
        raise InvalidArgument(f"{name} is {brief(value)}; accepted are {unit} above 0{limit}")
    return int(value) if isinstance(value, numbers.Integral) else number


def check_budget(value: object) -> float:
    """The argument, if it is a time above 0.

    Raises:
        InvalidArgument: it is not.
    """
    return check_positive("budget", value, "seconds")


def check_count(name: str, value: object, least: int, most: float = math.inf) -> int:
    """The argument, if it is an integer from `least` to `most`.

    Raises:
        InvalidArgument: it is not.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        limit = f" to {most}" if most < math.inf else ""
        raise InvalidArgument(f"{name} is {brief(value)}; accepted are integers from {least}{limit}")
    return int(value)


def check_function(name: str, value: object, accepted: str) -> None:
    """Raises InvalidArgument unless a call runs the argument; `accepted` describes the accepted functions."""
    if not callable(value):
        raise InvalidArgument(f"{name} is {brief(value)}; accepted is {accepted}")
    for kind, is_kind, _, runs_it in _SUSPENDED:
        if is_kind is not None and (is_kind(value) or is_kind(type(value).__call__)):
            raise InvalidArgument(
                f"{name} is {brief(value)}, {kind} function, whose call runs nothing of it; accepted is {accepted}, "
                f"as one that calls {runs_it}"
            )


def check_done(name: str, value: T) -> T:
    """The result of a call, if its work is done; a coroutine is closed.

    Raises:
        Suspended: it is a coroutine, a generator, a future or another awaitable.
    """
    for kind, _, is_kind, runs_it in _SUSPENDED:
        if is_kind(value):
            if isinstance(value, Coroutine):
                value.close()
            raise Suspended(
                f"{name} returned {kind}, whose work is not done when the call returns; accepted are functions that "
                f"wait for their work, as one that calls {runs_it}"
            )
    return value


def check_progress(value: object) -> None:
    """Raises InvalidArgument unless the argument is None or a function for lines of progress."""
    if value is not None:
        check_function("progress", value, "a function of one line of text, as print")
