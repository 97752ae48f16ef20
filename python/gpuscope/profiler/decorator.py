# SPDX-License-Identifier: Apache-2.0
"""`profile` as a decorator."""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def decorate(
    profiler: AbstractContextManager[Any], is_running: Callable[[], bool], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Records every call of `function`; a call from within such a call belongs to the outer one.

    Raises:
        InvalidArgument: `function` is no function or coroutine function.
    """
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"profile decorates {function!r}; accepted are functions and coroutine functions, and in a generator "
            "`with profile():`"
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if is_running() else profiler:
            return function(*args, **kwargs)

    async def run(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if is_running() else profiler:
            return await function(*args, **kwargs)

    return functools.wraps(function)(run if inspect.iscoroutinefunction(function) else call)
