# SPDX-License-Identifier: Apache-2.0
"""Self times of regions that end in any order.

A region has the time in which it was the most recently entered one of its thread or task that was still open.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import threading

import pytest

import gpuscope
from gpuscope import _core
from gpuscope.analysis.rows import NS_PER_US


class Program:
    """A random program of enters and exits on threads and tasks: each names its regions after itself."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def steps(self, owner):
        """Enters and leaves regions in any order, within one around all."""
        opened = []
        with gpuscope.record_function(f"{owner} around"):
            for _ in range(40):
                if opened and self.random.random() < 0.5:
                    opened.pop(self.random.randrange(len(opened))).__exit__(None, None, None)
                else:
                    opened.append(gpuscope.record_function(f"{owner} {self.random.randrange(4)}"))
                    opened[-1].__enter__()
                yield
            while opened:
                opened.pop(self.random.randrange(len(opened))).__exit__(None, None, None)

    def on_thread(self, owner):
        for _ in self.steps(owner):
            pass

    async def in_task(self, owner):
        for _ in self.steps(owner):
            if self.random.random() < 0.5:
                await asyncio.sleep(0)

    async def tasks(self):
        await asyncio.gather(*(self.in_task(f"task {number}") for number in range(4)))

    def run(self):
        threads = [threading.Thread(target=self.on_thread, args=(f"thread {number}",)) for number in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(self.tasks())))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


OWNERS = [*(f"thread {number}" for number in range(3)), *(f"task {number}" for number in range(4))]
SEEDS = range(6)


def recorded(program, mode="full"):
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], mode=mode) as prof:
        program()
    return prof


def names_of(trace):
    return [trace.string(int(name)) for name in trace.paths.name[trace.regions.path]]


def model(trace, rows):
    """The self time of each row, by going through all moments."""
    starts, ends = ({row: int(at) for row, at in enumerate(times)} for times in
                    (trace.regions.start_ns, trace.regions.start_ns + trace.regions.duration_ns))  # fmt: skip
    self_ns = dict.fromkeys(rows, 0)
    moments = sorted({at for row in rows for at in (starts[row], ends[row])})
    for begin, end in itertools.pairwise(moments):
        if open_rows := [row for row in rows if starts[row] <= begin and ends[row] >= end]:
            self_ns[max(open_rows, key=lambda row: (starts[row], row))] += end - begin
    return self_ns


@pytest.mark.parametrize("seed", SEEDS)
def test_each_region_has_the_time_in_which_it_was_entered_last_and_open(seed):
    trace = recorded(Program(seed).run).trace
    names = names_of(trace)
    found = trace.instances.self_cpu_ns
    for owner in OWNERS:
        rows = [row for row, name in enumerate(names) if name.startswith(owner)]
        expected = model(trace, rows)
        assert {row: int(found[row]) for row in rows} == expected
        around = rows[[names[row] for row in rows].index(f"{owner} around")]
        assert sum(expected.values()) == trace.regions.duration_ns[around]


@pytest.mark.parametrize("mode", ["full", "ring", "aggregate"])
@pytest.mark.parametrize("seed", SEEDS)
def test_self_times_add_up_to_the_time_in_which_regions_were_open(seed, mode):
    prof = recorded(Program(seed).run, mode)
    tree = list(prof.tree())
    averages = prof.key_averages()
    for owner in OWNERS:
        around = next(node for node in tree if node.name == f"{owner} around")
        assert sum(node.self_cpu_ns for node in tree if node.name.startswith(owner)) == around.cpu_ns
        own = sum(row.self_cpu_time_total for row in averages if row.key.startswith(owner))
        assert own == pytest.approx(around.cpu_ns / NS_PER_US)


def test_events_have_the_self_times_of_their_regions():
    prof = recorded(lambda: Program(0).on_thread("thread 0"))
    expected = model(prof.trace, range(len(prof.trace.regions)))
    found = [event.self_cpu_time_total for event in prof.events()]
    assert found == pytest.approx([self_ns / NS_PER_US for self_ns in expected.values()])


def speedscope_self_ns(document):
    """The time in which each name is innermost."""
    names = [frame["name"] for frame in document["shared"]["frames"]]
    self_ns = dict.fromkeys(names, 0)
    for profile in document["profiles"]:
        opened, last = [], 0
        for event in profile["events"]:
            if opened:
                self_ns[opened[-1]] += event["at"] - last
            last = event["at"]
            if event["type"] == "O":
                opened.append(names[event["frame"]])
            else:
                assert opened.pop() == names[event["frame"]]
    return self_ns


@pytest.mark.parametrize("seed", SEEDS)
def test_speedscope_shows_the_self_times(seed, tmp_path):
    prof = recorded(lambda: Program(seed).on_thread("thread 0"))
    prof.export_speedscope(str(tmp_path / "run.json"))
    found = speedscope_self_ns(json.loads((tmp_path / "run.json").read_text()))
    expected = dict.fromkeys(found, 0)
    names = names_of(prof.trace)
    for row, self_ns in model(prof.trace, range(len(names))).items():
        expected[names[row]] += self_ns
    assert found == expected


def test_many_spans_that_overlap_make_no_file_that_grows_with_their_square(tmp_path):
    def program():
        regions = [gpuscope.record_function("one of many") for _ in range(2000)]
        for region in regions:
            region.__enter__()
        for region in regions:
            region.__exit__(None, None, None)

    recorded(program).export_speedscope(str(tmp_path / "run.json"))
    document = json.loads((tmp_path / "run.json").read_text())
    assert len(document["profiles"][0]["events"]) < 10_000


def test_collapsed_stacks_have_all_of_the_time(tmp_path):
    prof = recorded(lambda: Program(1).on_thread("thread 0"))
    prof.export_stacks(str(tmp_path / "stacks.txt"))
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    shown_us = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
    around = prof.tree().find("thread 0 around")
    assert shown_us * NS_PER_US == pytest.approx(around.cpu_ns, abs=NS_PER_US * len(list(prof.tree())))


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_a_task_takes_time_from_its_creator_only_while_both_are_open(mode):
    async def works(creator_ends):
        with gpuscope.record_function("works"):
            creator_ends.set()
            await asyncio.sleep(0.03)

    async def main():
        ends = asyncio.Event()
        with gpuscope.record_function("creates"):
            task = asyncio.create_task(works(ends))
            until = _core.now_ns() + 20_000_000
            while _core.now_ns() < until:
                pass
            await ends.wait()
        await task

    creates = recorded(lambda: asyncio.run(main()), mode).tree().find("creates")
    assert creates.self_cpu_ns >= 20_000_000


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_tasks_that_wait_at_one_time_leave_the_region_around_them_its_own_time(mode):
    async def waits():
        with gpuscope.record_function("waits"):
            await asyncio.sleep(0.02)

    async def main():
        with gpuscope.record_function("serves"):
            until = _core.now_ns() + 10_000_000
            while _core.now_ns() < until:
                pass
            await asyncio.gather(*(waits() for _ in range(5)))

    serves = recorded(lambda: asyncio.run(main()), mode).tree().find("serves")
    assert 10_000_000 <= serves.self_cpu_ns <= serves.cpu_ns - 20_000_000


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_a_coroutine_that_is_suspended_in_a_region_counts_that_regions_time_once(mode):
    @gpuscope.record_function("call")
    async def call():
        with gpuscope.record_function("inside"):
            await asyncio.sleep(0.001)

    async def main():
        with gpuscope.record_function("around"):
            await call()

    tree = recorded(lambda: asyncio.run(main()), mode).tree()
    around = tree.find("around")
    assert sum(node.self_cpu_ns for node in tree) == around.cpu_ns


def test_a_generators_region_takes_over_from_the_one_around_its_first_step():
    def generate():
        with gpuscope.record_function("generates"):
            yield

    def program():
        generator = generate()
        with gpuscope.record_function("begins"):
            next(generator)
        with contextlib.closing(generator):
            pass

    trace = recorded(program).trace
    rows = range(len(trace.regions))
    assert dict(enumerate(trace.instances.self_cpu_ns.tolist())) == model(trace, rows)


def test_regions_of_a_file_that_overlap_share_no_time(tmp_path):
    spans = [("first", 0, 20), ("second", 10, 30)]
    events = [{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "name": name, "ts": ts, "dur": dur}
              for name, ts, dur in spans]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps(events))
    rows = gpuscope.load(tmp_path / "trace.json").key_averages()
    assert {row.key: row.self_cpu_time_total for row in rows} == {"first": 10.0, "second": 30.0}
