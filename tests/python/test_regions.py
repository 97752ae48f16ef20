# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import pickle
import sys
import types
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope.errors import InvalidArgument
from gpuscope.regions import decorate


class Region:
    """A region whose openings and closings can be counted, and in which the body writes what it does."""

    def __init__(self):
        self.log = []
        self.depth = 0

    def __enter__(self):
        self.depth += 1
        self.log.append("+")

    def __exit__(self, *raised):
        self.depth -= 1
        self.log.append("-")

    def __call__(self, function):
        return decorate(self, function)

    def inside(self, word):
        assert self.depth > 0, f"{word} ran outside its region"
        self.log.append(word)


@pytest.fixture
def region():
    region = Region()
    yield region
    assert region.depth == 0


# -- functions -------------------------------------------------------------------------------------------------------


def test_a_function_runs_inside_and_returns_its_value(region):
    @region
    def add(a, *, b):
        region.inside("add")
        return a + b

    assert add(1, b=2) == 3
    assert region.log == ["+", "add", "-"]


def test_an_exception_passes_and_closes_the_region(region):
    error = ValueError()

    @region
    def fail():
        raise error

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the very object is compared
        fail()
    assert caught.value is error
    assert region.log == ["+", "-"]


def test_recursion_opens_the_region_again(region):
    @region
    def fall(depth):
        region.inside(depth)
        return fall(depth - 1) if depth else None

    fall(2)
    assert region.log == ["+", 2, "+", 1, "+", 0, "-", "-", "-"]


def function(x: int) -> str:
    """Doc."""


async def coroutine_function(x: int) -> str:
    """Doc."""


def generator_function(x: int) -> str:
    """Doc."""
    yield


async def async_generator_function(x: int) -> str:
    """Doc."""
    yield


KINDS = [function, coroutine_function, generator_function, async_generator_function]
PREDICATES = [inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction]


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_and_kind_of_the_function_stay(region, kind):
    wrapped = region(kind)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__module__) == (kind.__name__, "Doc.", __name__)
    assert wrapped.__wrapped__ is kind
    assert inspect.signature(wrapped) == inspect.signature(kind)
    assert [test(wrapped) for test in PREDICATES] == [test(kind) for test in PREDICATES]


class Methods:
    region = Region()

    @region
    def plain(self, x):
        return (self, x)

    @region
    @classmethod
    def class_inside(cls, x):
        return (cls, x)

    @classmethod
    @region
    def class_outside(cls, x):
        return (cls, x)

    @region
    @staticmethod
    def static_inside(x):
        return x

    @staticmethod
    @region
    def static_outside(x):
        return x

    @region
    async def waits(self, x):
        return (self, x)


@pytest.mark.parametrize("name", ["class_inside", "class_outside", "static_inside", "static_outside", "plain"])
def test_methods_keep_their_binding_in_either_order(name):
    instance = Methods()
    Methods.region.log.clear()
    expected = {"class": (Methods, 1), "stati": 1, "plain": (instance, 1)}[name[:5]]
    assert getattr(instance, name)(1) == expected
    if name != "plain":
        assert getattr(Methods, name)(1) == expected
    assert Methods.region.log[:2] == ["+", "-"]


def test_an_async_method_is_bound():
    instance = Methods()
    assert asyncio.run(instance.waits(2)) == (instance, 2)


def test_callable_objects_are_wrapped(region):
    class Adder:
        def __call__(self, a, b):
            region.inside("call")
            return a + b

    assert region(Adder())(1, 2) == 3
    assert region(functools.partial(Adder(), 1))(5) == 6
    assert region(len)("abc") == 3
    assert isinstance(region(dict)(a=1), dict)


def test_a_callable_object_whose_call_is_a_coroutine_function_is_awaited_inside(region):
    class Waits:
        async def __call__(self):
            await asyncio.sleep(0)
            region.inside("call")
            return 1

    assert asyncio.run(region(Waits())()) == 1


def test_a_partial_of_a_coroutine_function_is_awaited_inside(region):
    async def add(a, b):
        region.inside("add")
        return a + b

    wrapped = region(functools.partial(add, 1))
    assert inspect.iscoroutinefunction(wrapped)
    assert asyncio.run(wrapped(2)) == 3


@pytest.mark.parametrize("thing", [None, 3, "name"])
def test_what_cannot_be_called_is_refused(region, thing):
    with pytest.raises(InvalidArgument, match="a region decorates callables"):
        region(thing)


def test_a_property_is_refused(region):
    with pytest.raises(InvalidArgument):
        region(property(function))


# -- generators ------------------------------------------------------------------------------------------------------


def test_a_generator_is_inside_while_its_body_runs_and_outside_in_between(region):
    @region
    def numbers():
        for number in range(2):
            region.inside(number)
            yield number

    for _ in numbers():
        assert region.depth == 0
    assert region.log == ["+", 0, "-", "+", 1, "-", "+", "-"]


def test_a_generator_that_is_not_begun_opens_nothing(region):
    @region
    def numbers():
        yield 1

    numbers().close()
    assert region.log == []


def test_a_generator_returns_its_value(region):
    @region
    def numbers():
        yield 1
        return "end"

    def outer():
        return (yield from numbers())

    steps = outer()
    next(steps)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == "end"


def test_an_abandoned_generator_cleans_up_inside(region):
    @region
    def numbers():
        try:
            yield 1
        finally:
            region.inside("finally")

    steps = numbers()
    next(steps)
    del steps
    gc.collect()
    assert region.log[-2:] == ["finally", "-"]


def test_a_generator_does_not_keep_a_thrown_exception_alive(region):
    class Payload(Exception):  # noqa: N818
        pass

    @region
    def swallows():
        while True:
            with contextlib.suppress(Payload):
                yield

    steps = swallows()
    next(steps)
    thrown = Payload()
    alive = weakref.ref(thrown)
    gc.disable()
    try:
        steps.throw(thrown)
        thrown.__traceback__ = None
        del thrown
        assert alive() is None
    finally:
        gc.enable()
    steps.close()


class Odd(Exception):  # noqa: N818
    pass


def scripted(reactions):
    """A generator function that answers each resumption as the script says."""

    def body():
        seen = []
        for item, reaction in enumerate(reactions):
            try:
                seen.append((yield item))
            except BaseException as error:
                seen.append(type(error).__name__)
                if reaction == "reraise":
                    raise
                if reaction == "replace":
                    raise Odd(len(seen)) from error
            if reaction == "return":
                return seen
            if reaction == "raise":
                raise Odd(tuple(map(str, seen)))
        return seen

    return body


RESUMPTIONS = {
    "next": next,
    "send": lambda steps: steps.send("sent"),
    "throw": lambda steps: steps.throw(KeyError("thrown")),
    "throw type": lambda steps: steps.throw(KeyError),
    "throw exit": lambda steps: steps.throw(GeneratorExit()),
    "throw stop": lambda steps: steps.throw(StopIteration("early")),
    "throw interrupt": lambda steps: steps.throw(KeyboardInterrupt()),
    "close": lambda steps: steps.close(),
}


def outcome(resume, steps):
    try:
        return ("gave", resume(steps))
    except BaseException as error:
        cause = error.__cause__
        return ("raised", type(error), str(error), type(cause), getattr(error, "value", None))


@settings(max_examples=800, deadline=None)
@given(
    reactions=st.lists(st.sampled_from(["go on", "return", "raise", "reraise", "replace"]), max_size=5),
    resumptions=st.lists(st.sampled_from(sorted(RESUMPTIONS)), max_size=7),
)
def test_a_decorated_generator_answers_everything_as_the_bare_one(reactions, resumptions):
    region = Region()
    body = scripted(reactions)
    bare, wrapped = body(), region(body)()
    for name in [*resumptions, *["next"] * 7]:  # to the end, as it may refuse to be closed
        assert outcome(RESUMPTIONS[name], wrapped) == outcome(RESUMPTIONS[name], bare), name
        assert region.depth == 0


def test_an_exception_thrown_into_a_generator_has_no_context_of_the_wrapper(region):
    @region
    def numbers():
        try:
            yield 1
        except KeyError:
            region.inside("caught")
        raise ValueError

    steps = numbers()
    next(steps)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        steps.throw(KeyError())
    assert caught.value.__context__ is sys.exc_info()[1]  # None, if no earlier test has left an exception behind


# -- coroutines ------------------------------------------------------------------------------------------------------


def test_tasks_that_take_turns_are_each_in_their_own_region_only():
    inner, outer = Region(), Region()
    order = []

    def make(region, other, name):
        @region
        async def work():
            for turn in range(3):
                assert (region.depth, other.depth) == (1, 0)
                order.append((name, turn))
                await asyncio.sleep(0)
            return name

        return work()

    async def main():
        return await asyncio.gather(make(inner, outer, "a"), make(outer, inner, "b"))

    assert asyncio.run(main()) == ["a", "b"]
    assert order[:4] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]  # they did take turns
    assert inner.log == ["+", "-"] * 4


def test_an_exception_of_a_coroutine_passes(region):
    @region
    async def fail():
        await asyncio.sleep(0)
        raise Odd

    with pytest.raises(Odd):
        asyncio.run(fail())
    assert region.log == ["+", "-"] * 2


def test_cancellation_reaches_the_coroutine_inside_its_region(region):
    @region
    async def wait():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            region.inside("cancelled")
            await asyncio.sleep(0)
            region.inside("cleaned")
            raise

    async def main():
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert region.log == ["+", "-", "+", "cancelled", "-", "+", "cleaned", "-"]


def test_wait_for_and_shield_work_through_the_wrapper(region):
    @region
    async def slow():
        await asyncio.sleep(60)

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(slow(), 0.01)

    asyncio.run(main())


def test_a_coroutine_that_is_closed_cleans_up_inside(region):
    @types.coroutine
    def pause():
        yield "pause"

    @region
    async def work():
        try:
            await pause()
        finally:
            region.inside("finally")

    coroutine = work()
    assert coroutine.send(None) == "pause"
    coroutine.close()
    assert region.log == ["+", "-", "+", "finally", "-"]


def test_a_coroutine_that_is_never_awaited_is_reported_by_its_name(region):
    @region
    async def forgotten():
        pass

    with pytest.warns(RuntimeWarning, match=r"forgotten.*was never awaited"):
        del [forgotten()][0]


def test_a_generator_based_coroutine_stays_awaitable(region):
    @region
    @types.coroutine
    def pause():
        region.inside("before")
        value = yield "pause"
        region.inside(value)
        return value

    async def main():
        return await pause()

    steps = main()
    assert steps.send(None) == "pause"
    with pytest.raises(StopIteration) as stop:
        steps.send("resumed")
    assert stop.value.value == "resumed"


# -- asynchronous generators -----------------------------------------------------------------------------------------


def test_an_async_generator_is_inside_while_its_body_runs_and_outside_in_between(region):
    @region
    async def numbers():
        for number in range(2):
            region.inside(number)
            await asyncio.sleep(0)
            region.inside(number)
            yield number

    async def main():
        seen = []
        async for number in numbers():
            assert region.depth == 0
            seen.append(number)
        return seen

    assert asyncio.run(main()) == [0, 1]
    assert region.log == ["+", 0, "-", "+", 0, "-", "+", 1, "-", "+", 1, "-", "+", "-"]


def scripted_async(reactions):
    def body():
        async def generator():
            seen = []
            for item, reaction in enumerate(reactions):
                await asyncio.sleep(0)
                try:
                    seen.append((yield (item, tuple(map(str, seen)))))
                except BaseException as error:
                    seen.append(type(error).__name__)
                    await asyncio.sleep(0)
                    if reaction == "reraise":
                        raise
                    if reaction == "replace":
                        raise Odd(len(seen)) from error
                if reaction == "return":
                    return
                if reaction == "raise":
                    raise Odd(tuple(map(str, seen)))

        return generator

    return body()


ASYNC_RESUMPTIONS = {
    "anext": lambda steps: steps.__anext__(),
    "asend": lambda steps: steps.asend("sent"),
    "athrow": lambda steps: steps.athrow(KeyError("thrown")),
    "athrow exit": lambda steps: steps.athrow(GeneratorExit()),
    "athrow stop": lambda steps: steps.athrow(StopAsyncIteration("early")),
    "aclose": lambda steps: steps.aclose(),
}


async def async_outcome(resume, steps):
    try:
        return ("gave", await resume(steps))
    except BaseException as error:
        return ("raised", type(error), str(error), type(error.__cause__))


@settings(max_examples=600, deadline=None)
@given(
    reactions=st.lists(st.sampled_from(["go on", "return", "raise", "reraise", "replace"]), max_size=5),
    resumptions=st.lists(st.sampled_from(sorted(ASYNC_RESUMPTIONS)), max_size=7),
)
def test_a_decorated_async_generator_answers_everything_as_the_bare_one(reactions, resumptions):
    region = Region()
    body = scripted_async(reactions)

    async def main():
        bare, wrapped = body(), region(body)()
        for name in [*resumptions, *["anext"] * 7]:
            resume = ASYNC_RESUMPTIONS[name]
            assert await async_outcome(resume, wrapped) == await async_outcome(resume, bare), name
            assert region.depth == 0

    asyncio.run(main())


def test_the_event_loop_closes_an_unfinished_async_generator_once_and_without_complaint(region):
    complaints = []

    @region
    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            region.inside("finally")

    kept = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        kept.append(numbers())
        await kept[0].__anext__()

    asyncio.run(main())
    assert region.log.count("finally") == 1
    assert complaints == []


def test_the_hooks_of_the_event_loop_are_left_as_they_were(region):
    @region
    async def numbers():
        yield 1

    async def main():
        before = sys.get_asyncgen_hooks()
        async for _ in numbers():
            pass
        assert sys.get_asyncgen_hooks() == before

    asyncio.run(main())


class Numbered(gpuscope.record_function):
    def __init__(self, name, number):
        super().__init__(name)
        self.number = number


def test_a_class_may_be_derived_with_arguments_of_its_own():
    with Numbered("derived", 3) as region:
        assert (region.name, region.number) == ("derived", 3)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda region: pickle.loads(pickle.dumps(region))])
def test_a_copy_is_a_region_of_the_same_name(copied):
    region = gpuscope.record_function("copied")
    with region:
        again = copied(region)
    assert (type(again), again.name) == (gpuscope.record_function, "copied")
    assert again is not region


def test_its_signature_is_torchs():
    assert list(inspect.signature(gpuscope.record_function).parameters) == ["name", "args"]


def test_mark_tells_what_it_takes():
    assert str(inspect.signature(gpuscope.mark)) == "(name, /)"
