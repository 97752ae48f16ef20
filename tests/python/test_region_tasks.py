# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from gpuscope import _core


class Recorded:
    """The rows of a window, by name."""

    def __init__(self, store):
        self.store = store
        self.regions = store.columns("region")
        self.marks = store.columns("mark")
        self.paths = store.columns("path")

    def path(self, region):
        """The names of the regions around a place, outermost first."""
        names = []
        path = self.regions["path"][region] if region < len(self.regions["path"]) else 0xFFFFFFFF
        while path != 0xFFFFFFFF:
            names.append(self.store.string(int(self.paths["name"][path])))
            path = self.paths["parent"][path]
        return names[::-1]

    def mark(self, name):
        names = [self.store.string(int(string)) for string in self.marks["name"]]
        return self.path(self.marks["region"][names.index(name)])


@pytest.fixture
def record():
    session = _core.Session(cuda=False)

    @contextlib.contextmanager
    def recording():
        session.open()
        done = []
        yield done
        done.append(Recorded(session.cut()))

    yield recording
    session.stop()


def test_tasks_that_share_a_region_each_close_their_own(record):
    shared = _core.record_function("shared")

    async def first(entered, leave):
        with shared:
            await entered.wait()
        leave.set()

    async def second(entered, leave):
        with shared:
            entered.set()
            await leave.wait()
            _core.mark("second is inside")
        _core.mark("second is outside")

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        await asyncio.gather(first(entered, leave), second(entered, leave))

    with record() as done, _core.record_function("root"):
        asyncio.run(main())
    assert done[0].mark("second is inside") == ["root", "shared"]
    assert done[0].mark("second is outside") == ["root"]


def test_a_generator_closed_from_another_task_leaves_that_tasks_regions_alone(record):
    def generate():
        with _core.record_function("same name"):
            yield

    async def begin():
        generator = generate()
        next(generator)
        return generator

    async def end(generator):
        with _core.record_function("same name"):
            generator.close()
            _core.mark("inside")

    async def main():
        generator = await asyncio.create_task(begin())
        await asyncio.create_task(end(generator))

    with record() as done, _core.record_function("root"):
        asyncio.run(main())
    assert done[0].mark("inside") == ["root", "same name"]


def test_threads_that_share_a_region_each_close_their_own(record):
    shared = _core.record_function("shared")
    entered, leave = threading.Event(), threading.Event()

    def first():
        with _core.record_function("outer"), shared:
            entered.wait(10)
        leave.set()

    def second():
        with _core.record_function("outer"):
            with shared:
                entered.set()
                leave.wait(10)
                _core.mark("second is inside")
            _core.mark("second is outside")

    with record() as done:
        threads = [threading.Thread(target=first), threading.Thread(target=second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert done[0].mark("second is inside") == ["outer", "shared"]
    assert done[0].mark("second is outside") == ["outer"]


def test_a_region_is_reentrant(record):
    region = _core.record_function("r")
    with record() as done:
        with region, region:
            _core.mark("twice")
            with region:
                pass
        with region:
            _core.mark("once")
    assert done[0].mark("twice") == ["r", "r"]
    assert done[0].mark("once") == ["r"]
