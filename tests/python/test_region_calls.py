# SPDX-License-Identifier: Apache-2.0
"""Calls of decorated coroutines and generators: each counts once, with the time that it ran and from start to end."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import pytest

import gpuscope

MODES = ["full", "ring", "aggregate"]


def profiled(mode, program):
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], mode=mode) as prof:
        program()
    return prof


def row_of(prof, name):
    return next(row for row in prof.key_averages() if row.key == name)


@gpuscope.record_function("request")
async def request(suspensions=3):
    for _ in range(suspensions):
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_counts_once_however_often_it_is_suspended(mode):
    async def main():
        await asyncio.gather(*(request() for _ in range(4)))

    prof = profiled(mode, lambda: asyncio.run(main()))
    assert row_of(prof, "request").count == 4
    assert prof.tree().find("request").count == 4


@pytest.mark.parametrize("mode", MODES)
def test_elapsed_time_is_that_from_start_to_end(mode):
    async def others():
        time.sleep(0.015)  # while the request is suspended

    async def main():
        await asyncio.gather(request(), others())

    prof = profiled(mode, lambda: asyncio.run(main()))
    row, node = row_of(prof, "request"), prof.tree().find("request")
    assert row.elapsed_time_total - row.cpu_time_total >= 15_000
    assert row.elapsed_time == row.elapsed_time_total
    assert node.elapsed_ns == pytest.approx(1000 * row.elapsed_time_total)


@pytest.mark.parametrize("mode", MODES)
def test_the_shortest_and_longest_call_are_of_whole_calls(mode):
    @gpuscope.record_function("works")
    async def works():
        for _ in range(4):
            until = time.perf_counter() + 0.001
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    row = row_of(profiled(mode, lambda: asyncio.run(works())), "works")
    assert row.min >= 4000
    assert row.min == pytest.approx(row.max)
    assert row.max == pytest.approx(row.cpu_time_total, abs=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_a_region_that_is_never_suspended_elapses_as_long_as_it_runs(mode):
    @gpuscope.record_function("plain")
    def plain():
        pass

    row = row_of(profiled(mode, plain), "plain")
    assert row.elapsed_time_total == row.cpu_time_total


@pytest.mark.parametrize("mode", MODES)
def test_a_generator_counts_once_a_call(mode):
    @gpuscope.record_function("items")
    def items():
        yield from range(3)

    def program():
        for _ in items():
            time.sleep(0.002)
        list(items())

    row = row_of(profiled(mode, program), "items")
    assert row.count == 2
    assert row.elapsed_time_total - row.cpu_time_total >= 6000


def test_a_call_counts_once_in_a_subclass_of_the_region():
    class Region(gpuscope.record_function):
        pass

    @Region("numbers")
    def numbers():
        yield from range(3)

    prof = profiled("full", lambda: list(numbers()))
    assert row_of(prof, "numbers").count == 1


def test_what_a_subclass_does_at_the_ends_is_done_at_each_resumption():
    entered = []

    class Region(gpuscope.record_function):
        def __enter__(self):
            entered.append(self)
            return super().__enter__()

    region = Region("numbers")

    @region
    def numbers():
        yield from range(3)

    list(numbers())
    assert entered == [region] * 4


@pytest.mark.parametrize("mode", MODES)
def test_an_asynchronous_generator_counts_once_a_call(mode):
    @gpuscope.record_function("items")
    async def items():
        for item in range(3):
            await asyncio.sleep(0)
            yield item

    async def main():
        return [item async for item in items()] + [item async for item in items()]

    assert row_of(profiled(mode, lambda: asyncio.run(main())), "items").count == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ends", ["cancelled", "failed", "abandoned"])
def test_a_call_that_does_not_return_ends(mode, ends):
    @gpuscope.record_function("stops")
    async def stops():
        await asyncio.sleep(0.005)
        if ends == "failed":
            raise ValueError
        await asyncio.sleep(60)

    ended_after = []

    async def main():
        began = time.perf_counter()
        if ends == "abandoned":
            stopped = stops()
            stopped.send(None)
            del stopped
            gc.collect()
        else:
            task = asyncio.create_task(stops())
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        ended_after.append(time.perf_counter() - began)
        time.sleep(0.05)

    row = row_of(profiled(mode, lambda: asyncio.run(main())), "stops")
    assert row.count == 1
    assert row.elapsed_time_total < 1e6 * ended_after[0] + 5000


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_suspended_when_recording_ends_elapses_until_then(mode):
    async def main():
        prof = gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], mode=mode)
        prof.start()
        task = asyncio.create_task(request(1000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(0.02)
        prof.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return prof

    row = row_of(asyncio.run(main()), "request")
    assert row.count == 1
    assert row.elapsed_time_total - row.cpu_time_total >= 20_000


@pytest.mark.parametrize("mode", MODES)
def test_a_call_counts_in_each_window_that_it_ran_in(mode):
    counts = []

    async def main():
        with gpuscope.profile(
            activities=[gpuscope.ProfilerActivity.CPU],
            mode=mode,
            schedule=gpuscope.schedule(wait=0, warmup=0, active=1, repeat=2),
            on_trace_ready=lambda prof: counts.append(row_of(prof, "request").count),
        ) as prof:
            task = asyncio.create_task(request(10))
            await asyncio.sleep(0.012)
            prof.step()
            await task
            prof.step()

    asyncio.run(main())
    assert counts == [1, 1]


def test_tables_have_elapsed_times_where_something_was_suspended():
    assert "Elapsed total" in profiled("full", lambda: asyncio.run(request())).key_averages().table()
    with_none = profiled("full", lambda: asyncio.run(request(0)))
    assert "Elapsed" not in with_none.key_averages().table()


def test_rows_are_sorted_by_elapsed_time():
    prof = profiled("full", lambda: asyncio.run(request()))
    assert prof.key_averages().sorted_by("elapsed_time_total")[0].key == "request"


def test_a_chrome_trace_has_one_asynchronous_span_a_call(tmp_path):
    async def main():
        await asyncio.gather(request(), request())

    prof = profiled("full", lambda: asyncio.run(main()))
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    of_request = [event for event in events if event.get("name") == "request"]
    spans = [event for event in of_request if event["ph"] in "be"]
    assert sorted(event["ph"] for event in spans) == ["b", "b", "e", "e"]
    begin = {event["id"]: event["ts"] for event in spans if event["ph"] == "b"}
    assert all(event["ts"] - begin[event["id"]] >= 15_000 for event in spans if event["ph"] == "e")
    assert len([event for event in of_request if event["ph"] == "X"]) == 8  # what ran, as before


def test_calls_survive_a_file(tmp_path):
    prof = profiled("full", lambda: asyncio.run(request()))
    prof.save(str(tmp_path / "run.gscope"))
    loaded = gpuscope.load(str(tmp_path / "run.gscope"))
    row = row_of(loaded, "request")
    assert (row.count, row.elapsed_time_total) == (1, row_of(prof, "request").elapsed_time_total)


@pytest.mark.parametrize("mode", MODES)
def test_recursive_calls_are_told_apart(mode):
    @gpuscope.record_function("recursive")
    async def recursive(depth):
        with gpuscope.record_function("before"):
            await asyncio.sleep(0)
        if depth:
            await asyncio.gather(recursive(depth - 1), recursive(depth - 1))

    row = row_of(profiled(mode, lambda: asyncio.run(recursive(2))), "recursive")
    assert row.count == 7
