# SPDX-License-Identifier: Apache-2.0
"""Named regions of a program's time: `record_function`, `mark`, and both as decorators."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpuscope._core import mark, record_function, region_of_call
from gpuscope.errors import InvalidArgument
from gpuscope.text import brief
from gpuscope.threads import shared_lock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
    from contextlib import AbstractContextManager

    Region = AbstractContextManager[Any]

Block = TypeVar("Block")

__all__ = ["OpenBlocks", "body_of", "decorate", "decorate_calls", "mark", "record_function"]


def decorate(region: Region, function: Any) -> Any:
    """Wraps a callable so that `region` is open whenever its body runs, and only then.

    A coroutine or generator closes the region at each suspension and opens it again at each resumption. So tasks of one
    thread are not in each other's regions. A recording still counts each call once.

    Args:
        region: a context manager that can be entered any number of times.
        function: a function, method, class or static method, coroutine function, generator function or asynchronous
            generator function, or another callable.

    Raises:
        InvalidArgument: `function` cannot be called.
    """
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(decorate(region, function.__func__))
    if not callable(function):
        raise InvalidArgument(f"a region decorates callables, not {brief(function)}")
    return functools.wraps(function)(_wrapper_of(function)(region, function))


def decorate_calls(region: Region, function: Any, coroutine: Callable[[Callable[..., Any]], Any]) -> Any:
    """As `decorate`, but a coroutine function is wrapped by `coroutine`: each call is one region, suspended or not."""
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(decorate_calls(region, function.__func__, coroutine))
    if callable(function) and inspect.iscoroutinefunction(body_of(function)):
        return coroutine(function)
    return decorate(region, function)


class OpenBlocks(Generic[Block]):
    """The blocks of an object that can be entered again, also by several threads and tasks at once. Any thread."""

    def __init__(self) -> None:
        self._lock = shared_lock()
        self._blocks: list[tuple[object, Block]] = []

    def push(self, block: Block) -> None:
        """Adds a block that has begun."""
        with self._lock:
            self._blocks.append((_current_task(), block))

    def pop(self) -> Block:
        """The block that ends: the last one of this thread or task, else the last of any."""
        task = _current_task()
        with self._lock:
            own = (at for at in reversed(range(len(self._blocks))) if self._blocks[at][0] == task)
            return self._blocks.pop(next(own, -1))[1]


def _current_task() -> object:
    """The asyncio task or the thread that runs now."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            return asyncio.current_task() or threading.get_ident()
    return threading.get_ident()


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call runs, for `inspect`: for an object the ``__call__`` of its class."""
    plain = isinstance(function, (type, functools.partial)) or inspect.isroutine(function)
    return function if plain else type(function).__call__


def _wrapper_of(function: Callable[..., Any]) -> Callable[[Region, Callable[..., Any]], Callable[..., Any]]:
    body = body_of(function)
    if inspect.iscoroutinefunction(body):
        return _coroutine
    if inspect.isasyncgenfunction(body):
        return _async_generator
    if inspect.isgeneratorfunction(body):
        code = getattr(body, "__code__", None)
        return _awaitable_generator if code and code.co_flags & inspect.CO_ITERABLE_COROUTINE else _generator
    return _function


def _function(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with region:
            return function(*args, **kwargs)

    return wrapper


def _resumed(begin: Callable[..., tuple[Region, Any]], is_step: bool = False) -> Callable[..., Any]:
    """A generator function that runs another generator inside of a region.

    Args:
        begin: returns the region and the generator, from the arguments.
        is_step: it runs one step of an asynchronous generator, which may continue after the step.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        region, inner = begin(*args, **kwargs)
        resume, value = inner.send, None
        while True:
            try:
                with region:
                    try:
                        item = resume(value)
                    except StopIteration as stop:
                        if is_step:
                            return stop.value
                        raise  # out of the region too: a call ends with the exception that leaves it
                    finally:
                        value = None  # an exception thrown in would keep this frame alive
            except StopIteration as stop:
                return stop.value
            try:
                resume, value = inner.send, (yield item)
            # GeneratorExit too: the body may end, raise or yield again, and the caller must see that.
            except BaseException as thrown:
                resume, value = inner.throw, thrown

    return wrapper


def _one_call(region: Region) -> Region:
    """The region to open at each resumption of one call; a recording counts the call once."""
    # A subclass with its own __enter__ or __exit__ is entered at each resumption.
    kind = type(region)
    is_plain = kind.__enter__ is record_function.__enter__ and kind.__exit__ is record_function.__exit__
    return region_of_call(region) if is_plain else region


def _generator(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    return _resumed(lambda *args, **kwargs: (_one_call(region), function(*args, **kwargs)))


def _awaitable_generator(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    return types.coroutine(_generator(region, function))


def _coroutine(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    resume_inside: Callable[..., Awaitable[Any]] = types.coroutine(
        _resumed(lambda awaitable: (_one_call(region), awaitable.__await__()))
    )

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await resume_inside(function(*args, **kwargs))

    return wrapper


_step_inside: Callable[..., Awaitable[Any]] = types.coroutine(
    _resumed(lambda one_call, step: (one_call, step.__await__()), is_step=True)
)


def _async_generator(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        one_call, inner = _one_call(region), function(*args, **kwargs)
        step = _first_step(inner)
        while True:
            try:
                item = await _step_inside(one_call, step)
            except StopAsyncIteration:
                return
            finally:
                del step  # an exception thrown in lives on in it, and would keep this frame alive
            try:
                step = inner.asend((yield item))
            except BaseException as thrown:
                step = inner.athrow(thrown)

    return wrapper


def _first_step(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    # By these hooks the event loop learns of asynchronous generators, which it closes at its end. It knows the wrapper
    # already; closing the inner one at the same time would collide.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
