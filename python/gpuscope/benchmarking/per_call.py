# SPDX-License-Identifier: Apache-2.0
"""Runs `setup` and `teardown` around each measured call, outside of its time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuscope.arguments import check_done, check_function


@dataclass(frozen=True)
class PerCall:
    """`setup` runs before each call, `teardown` after it with the arguments of the call.

    The result of `setup` is the argument of the call, unless None. A pair (args, kwargs) of a tuple or list and a dict
    is several arguments, as in pytest-benchmark's ``pedantic``.
    """

    setup: Callable[[], object] | None = None
    teardown: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        if self.setup is not None:
            check_function("setup", self.setup, "None or a function without arguments")
        if self.teardown is not None:
            check_function("teardown", self.teardown, "None or a function of the call's arguments")

    def __bool__(self) -> bool:
        return self.setup is not None or self.teardown is not None

    @contextlib.contextmanager
    def around(self, function: Callable[..., object]) -> Iterator[Callable[[], object]]:
        """The function with its arguments, to call once between `setup` and `teardown`."""
        made: Any = None if self.setup is None else check_done("setup", self.setup())
        args, kwargs = (made,) if made is not None else (), {}
        if isinstance(made, tuple) and [*map(type, made)] in ([tuple, dict], [list, dict]):
            args, kwargs = made
        try:
            yield functools.partial(function, *args, **kwargs) if args or kwargs else function
        finally:
            if self.teardown is not None:
                check_done("teardown", self.teardown(*args, **kwargs))

    def call(self, function: Callable[..., object]) -> object:
        """Calls the function once and returns its result."""
        with self.around(function) as call:
            return call()
