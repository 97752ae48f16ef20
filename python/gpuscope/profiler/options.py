# SPDX-License-Identifier: Apache-2.0
"""What the arguments of `profile` may be, before anything begins."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from gpuscope.errors import InvalidArgument
from gpuscope.integrations import Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def check_callable(argument: str, value: object) -> None:
    """Raises InvalidArgument for what is neither callable nor None."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{argument} is {value!r}; accepted is a callable or None")


def check_timeout(argument: str, value: object) -> None:
    """Raises InvalidArgument for what is no time: seconds above 0, or None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and math.isfinite(value) and value > 0):  # type: ignore[arg-type,operator]
        raise InvalidArgument(f"{argument} is {value!r}; accepted are seconds above 0, or None")


def check_flags(flags: Mapping[str, object]) -> dict[str, bool]:
    """Reads switches by name.

    Raises:
        InvalidArgument: one is neither true nor false.
    """
    for name, value in flags.items():
        if value not in (True, False, None):
            raise InvalidArgument(f"{name} is {value!r}; accepted are True and False")
    return {name: bool(value) for name, value in flags.items()}


_OF_OPERATORS = {
    "record_shapes": "shapes",
    "profile_memory": "allocations of tensors",
    "with_flops": "operations",
    "with_modules": "modules",
}


def without_torch(wanted: Wanted) -> Iterator[str]:
    """A sentence for each option that had nothing to work on, because the program never imported PyTorch."""
    if "torch" not in sys.modules:
        for option, what in _OF_OPERATORS.items():
            if getattr(wanted, option) and not (option == "record_shapes" and wanted.with_flops):
                yield f"{option}: no {what} were recorded, as the program did not import PyTorch"
