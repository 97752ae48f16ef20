# SPDX-License-Identifier: Apache-2.0
"""Programs that leak NumPy's arrays, and healthy ones, without a GPU and without PyTorch."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from gpuscope.memory.history import history
from gpuscope.memory.history import leaks as leaks_module
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.history.leaks import find_leaks
from gpuscope.memory.usage.tracking import memory_stages, reset_memory_stages, track_memory

SIZE = 3_000_000  # numbers
BYTES = 8 * SIZE

kept_by_the_module: list[object] = []


@pytest.fixture(autouse=True)
def _ended():
    yield
    record_memory_history(None)
    kept_by_the_module.clear()


def load():
    return np.ones(SIZE)


LOADING_LINE = load.__code__.co_firstlineno + 1


def is_load(leak):
    return (leak.place.file, leak.place.line, leak.place.function) == (__file__, LOADING_LINE, "load")


class Program:
    """Steps of each kind."""

    def __init__(self):
        self.kept = []
        self.by_name = {}
        self.grown = np.ones(1)

    def leaky(self):
        self.kept.append(load())

    def through_a_view(self):
        self.kept.append(load()[:10].reshape(2, 5))

    def in_a_dict(self):
        self.by_name[str(len(self.by_name))] = load()

    def in_tuples_in_a_dict(self):
        self.by_name[len(self.by_name)] = (load(), 1)
        gc.collect()  # Python's collector passes over tuples and dicts of arrays from then on

    def of_a_subclass(self):
        self.kept.append(np.ma.masked_array(load()))

    def in_a_module(self):
        kept_by_the_module.append(load())

    def in_a_thread(self):
        thread = threading.Thread(target=self.leaky)
        thread.start()
        thread.join()

    def made_anew_and_larger(self):
        self.grown = np.append(self.grown, np.ones(SIZE // 100))

    def of_many_small_ones(self):
        self.kept.extend(np.arange(100) for _ in range(50))

    def in_a_cycle(self):
        pair = [load()]
        pair.append(pair)

    def healthy(self):
        x = np.linspace(0.0, 1.0, 20_000).reshape(200, 100)
        weights = np.zeros((100, 10))
        for _ in range(20):
            weights += 0.1 * (x.T @ np.tanh(x @ weights + 0.5))
        np.concatenate([weights, weights]).sort(axis=0)

    def keeps_the_last(self):
        self.kept = [*self.kept[-3:], load()]


@pytest.fixture
def program():
    return Program()


@pytest.mark.parametrize(
    ("step", "holder"),
    [
        ("leaky", "program.kept"),
        ("through_a_view", "program.kept"),
        ("of_a_subclass", "program.kept"),
        ("in_a_thread", "program.kept"),
        ("in_a_dict", "program.by_name"),
        ("in_tuples_in_a_dict", "program.by_name"),
    ],
)
def test_a_planted_leak_is_found_at_its_line_with_its_holder(program, step, holder):
    check_planted_leak(program, step, holder)


def test_a_planted_leak_of_a_module_is_found_at_its_line_with_its_holder(program, whole_heap):
    check_planted_leak(program, "in_a_module", "test_leaks_of_arrays.kept_by_the_module")


def check_planted_leak(program, step, holder):
    (leak,) = find_leaks(getattr(program, step), steps=10)
    assert is_load(leak)
    assert (leak.bytes_per_step, leak.allocations_per_step, leak.device) == (BYTES, 1, -1)
    assert leak.growths[0].source == "numpy"
    assert leak.holder.name.endswith(holder)


def test_an_array_that_is_made_anew_and_larger_is_found(program):
    (leak,) = find_leaks(program.made_anew_and_larger, steps=12)
    qualified = "Program." * (sys.version_info >= (3, 11))
    assert (leak.place.function, leak.allocations) == (f"{qualified}made_anew_and_larger", 0)
    assert leak.bytes_per_step == BYTES // 100
    assert leak.holder.name == "program.grown"


def test_an_array_that_a_local_variable_has_grow_is_found():
    grown = np.ones(1)
    with find_leaks() as leaks:
        for _ in range(12):
            grown = np.append(grown, np.ones(SIZE // 100))
            leaks.step()
    (leak,) = leaks.report()
    assert leak.holder.name == "grown"


def test_many_small_arrays_are_one_leak(program):
    (leak,) = find_leaks(program.of_many_small_ones, steps=10)
    assert (leak.bytes_per_step, leak.allocations_per_step) == (50 * 800, 50)


def test_a_leak_of_a_thread_that_goes_on_is_found():
    kept, begins, ended, wanted = [], threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60), [True]

    def work():
        while True:
            begins.wait()
            if not wanted:
                return
            kept.append(load())
            ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    with find_leaks() as leaks:
        for _ in range(10):
            begins.wait()
            ended.wait()
            leaks.step()
    wanted.clear()
    begins.wait()
    thread.join()
    (leak,) = leaks.report()
    assert is_load(leak)
    assert leak.holder.kind == "list"


def test_arrays_in_cycles_are_told_as_such(program):
    gc.collect()
    gc.disable()
    try:
        (leak,) = find_leaks(program.in_a_cycle, steps=8)
    finally:
        gc.enable()
    assert leak.cycles
    assert "memory of arrays does not make it do" in " ".join(str(leak).split())


@pytest.mark.parametrize("step", ["healthy", "keeps_the_last"])
@pytest.mark.parametrize("steps", [10, 30])
def test_a_healthy_program_has_none(program, step, steps):
    report = find_leaks(getattr(program, step), steps=steps)
    assert report.judged
    assert not report, str(report)


def test_a_cache_that_has_filled_up_is_none():
    cached = functools.lru_cache(maxsize=4)(lambda number: np.ones(SIZE // 100))
    numbers = iter(range(1000))
    assert not find_leaks(lambda: cached(next(numbers)), steps=20)


def test_a_history_without_numpy_is_used_as_it_is(program):
    with record_memory_history(numpy=False):
        assert not find_leaks(program.leaky, steps=8)


def test_the_growth_of_resident_memory_is_of_the_steps_after_the_warm_up(program, monkeypatch):
    warm_up, later = [0, 9000, 9500, 9800], [10_000 + 64 * step for step in range(7)]
    resident = iter([*warm_up[:3], *later, later[-1] + 1])
    monkeypatch.setattr(leaks_module, "resident_bytes", lambda: next(resident))
    monkeypatch.setattr(history, "own_bytes", lambda: 0)
    report = find_leaks(program.healthy, steps=9)
    assert report.warmup == 3
    assert report.resident_bytes_per_step == 64
    assert report.to_dict()["resident_bytes_per_step"] == 64


def test_what_the_history_itself_takes_is_no_growth(program, monkeypatch):
    own = iter(range(0, 5000, 100))
    grows = iter(range(7000, 12_000, 100))
    monkeypatch.setattr(leaks_module, "resident_bytes", lambda: next(grows))
    monkeypatch.setattr(history, "own_bytes", lambda: next(own))
    assert find_leaks(program.healthy, steps=8).resident_bytes_per_step == 0


def test_what_is_not_recorded_is_one_line(program):
    lines = str(find_leaks(program.healthy, steps=8)).split("\n")
    (line,) = [line for line in lines if "memray" in line]
    assert line.startswith("resident memory: ")
    assert line.endswith(" a step; malloc of C libraries is not recorded, memray shows it")


def test_resident_memory_has_no_growth_without_steps_to_judge(program):
    with find_leaks() as leaks:
        program.leaky()
    assert leaks.report().resident_bytes_per_step is None
    assert "memray" not in str(leaks)


@pytest.fixture
def stages():
    reset_memory_stages()
    yield
    reset_memory_stages()


def test_a_stage_names_the_line_that_took_most(stages, program):
    with record_memory_history(), track_memory("step", "cpu") as block:
        small = np.ones(1000)
        program.leaky()
        load()
    assert block.stage.where == f"test_leaks_of_arrays.py:{LOADING_LINE} load"
    assert block.stage.where_bytes == BYTES
    assert f"new from {block.stage.where} (22.9 MiB)" in str(block)
    assert block.stage.where in str(memory_stages())
    del small


def test_a_statement_names_what_is_new_since_the_one_before(stages, program, capsys):
    with record_memory_history():
        track_memory("before", "cpu")
        program.leaky()
        track_memory("after", "cpu")
    before, after = capsys.readouterr().out.splitlines()
    assert "new from" not in before
    assert "load (22.9 MiB)" in after


def test_a_stage_that_leaves_nothing_names_no_line(stages):
    with record_memory_history(), track_memory("step", "cpu") as block:
        load()
    assert (block.stage.where, block.stage.where_bytes) == ("", 0)


def test_a_stage_without_a_history_names_no_line(stages, program):
    with track_memory("step", "cpu") as block:
        program.leaky()
    assert block.stage.where == ""
    assert "new from" not in str(block)
    assert "New from" not in str(memory_stages())


SCRIPT = """\
import numpy as np
import gpuscope

kept = []

def load():
    return np.ones(3_000_000)

def step():
    load().sum()
    {leak}

for _ in range(10):
    with gpuscope.track_memory("a step"):
        step()
    gpuscope.step()
"""


def told_by_the_command(tmp_path, leak, *options):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(leak=leak))
    command = [sys.executable, "-m", "gpuscope", "memory", *options, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    return done.stderr


def test_the_command_names_the_line_of_a_leak(tmp_path):
    said = told_by_the_command(tmp_path, "kept.append(load())")
    assert "1. program.py:7 load: 22.9 MiB a step\n" in said
    assert "held by program.kept: a list of 10\n" in said
    assert "program.py:7 load (22.9 MiB)" in said  # the stage's
    (line,) = [line for line in said.splitlines() if "memray" in line]
    assert line.startswith("resident memory: +22.")


def test_the_command_finds_nothing_in_a_healthy_program(tmp_path):
    said = told_by_the_command(tmp_path, "pass")
    assert "no leaks in 10 steps" in said
    assert "New from" not in said


def test_the_command_leaves_numpy_out_when_told_so(tmp_path):
    said = told_by_the_command(tmp_path, "kept.append(load())", "--no-numpy")
    assert "program.py:7" not in said
    assert "no allocations were recorded" in said
