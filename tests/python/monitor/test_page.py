# SPDX-License-Identifier: Apache-2.0
"""The page of the monitor, driven by Textual's pilot: what it says at which size, and what keys do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from fakes.machines import INSTANCES, XIDS, gpu, sample
from fakes.monitors import BEGIN_S, FakeMonitor, series, taken
from gpuscope.monitor.history import History, moment
from gpuscope.monitor.programs import Program
from gpuscope.monitor.rows import Rows, row

pytest.importorskip("textual")

from textual.widgets import Static

from gpuscope.monitor import page, panels, processes

USEFUL = {
    "sm_active_ratio": 0.72,
    "sm_occupancy_ratio": 0.2,
    "tensor_active_ratio": 0.38,
    "dram_bandwidth_ratio": 0.61,
    "fp32_active_ratio": 0.03,
    "fp64_active_ratio": 0.0,
    "pcie_received_bytes_per_s": 1.2e9,
    "pcie_sent_bytes_per_s": 0.3e9,
    "temperature_margin_c": 20.0,
    "ecc_uncorrected": 0,
}
HOST = {"machine_cpus": 8, "machine_cpu_s": 1.0, "machine_memory_used_bytes": 1 << 33, "why": {}}


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def shown(app):
    """The text on the page, lines without trailing space."""
    screen = app.screen_stack[0]
    parts = [str(screen.query_one(f"#{name}", Static).content) for name in ("head", "body", "foot")]
    return "\n".join(line.rstrip() for part in parts for line in part.split("\n"))


def drive(monitor, *keys, size=(80, 24), samples=(), look=None, then=None):
    """What the page says after some keys; `then` may look at it itself."""

    async def run():
        app = page.MonitorPage(monitor, samples, look)
        app._unicode = True
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
            await pilot.pause()
            if then is not None:
                return await then(app, pilot)
            return shown(app)

    return asyncio.run(run())


def one(**facts):
    return FakeMonitor(taken(sample(gpu(**(USEFUL | facts)), host=HOST)))


def several(count):
    return FakeMonitor(taken(*(sample(gpu(index, **USEFUL), host=HOST) for index in range(count))))


def test_rows_stand_in_the_order_of_the_questions():
    lines = [line[2:] for line in drive(one()).splitlines()]
    rows = [line.split()[0] for line in lines[2:7]]
    assert rows == ["useful", "active", "memory", "power", "links"]
    assert "tensor 38 %  DRAM 61 %  FP32  3 %" in lines[2]
    assert "SM 72 %  occupancy 20 %  busy 99 %" in lines[3]
    assert "61.0 of 80.0 GiB  76 %" in lines[4]
    assert "612 of 700 W" in lines[5]
    assert "67 C, 20 to its limit  1755 of 1980 MHz" in lines[5]
    assert "PCIe 1.2 in 0.3 out" in lines[6]


def test_what_is_not_known_has_its_reason():
    absent = dict.fromkeys(("tensor_active_ratio", "dram_bandwidth_ratio", "fp32_active_ratio", "fp64_active_ratio"))
    text = drive(one(**absent, why={"tensor_active_ratio": "this driver's NVML cannot tell"}))
    assert "useful  not known: this driver's NVML cannot tell" in text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (400, 60), (40, 10), (10, 4)])
@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_no_line_is_wider_than_the_terminal(size, count):
    text = drive(several(count), size=size)
    assert max(map(len, text.splitlines())) <= size[0]
    assert all(f"{index}" in text for index in range(count)) or size[0] < 80


def test_many_gpus_take_a_line_each_and_few_a_frame():
    assert "┌" in drive(several(2))
    few = drive(several(8))
    assert "┌" not in few
    assert sum("tensor" in line for line in few.splitlines()) == 8
    assert "┌" in drive(several(8), "f")
    assert "┌" not in drive(several(1), "c")
    assert "┌" in drive(several(1), "c", "a")


def test_wide_terminals_have_gpus_beside_each_other():
    assert drive(several(8), size=(400, 24)).splitlines()[1].count("┌") == 4
    assert drive(several(8), size=(400, 60)).splitlines()[1].count("┌") == 2  # wide enough for their graphs
    assert drive(several(1), size=(400, 60)).splitlines()[1].count("┌") == 1


def test_a_throttled_gpu_says_so_in_words_first_of_its_row():
    monitor = FakeMonitor(series(60, throttled_s=lambda s: 0.12 * s, **USEFUL))
    text = drive(monitor)
    assert "612 of 700 W  THROTTLED 12 % of 60 s: power limit" in text
    monitor = FakeMonitor(series(60, throttled_s=lambda s: 0.12 * s, **USEFUL))
    assert "THROTTLED 12 %" in drive(monitor, "c")


@pytest.mark.parametrize(("count", "every_s", "said"), [(3, 1.0, "2 s"), (3, 300.0, "300 s")])
def test_a_share_of_throttling_says_of_which_time_it_is(count, every_s, said):
    text = drive(FakeMonitor(series(count, every_s=every_s, throttled_s=lambda s: 0.5 * s, **USEFUL)))
    assert f"THROTTLED 50 % of {said}: power limit" in text


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"throttle_faults": ["hw_thermal_slowdown"]}, "THROTTLED now: heat (board)"),
        ({"pcie_width": 4}, "4 OF 16 LANES"),
        ({"ecc_uncorrected": 2}, "2 MEMORY ERRORS"),
        ({"remapping_pending": True}, "RESET NEEDED"),
        ({"mig": True}, "H100 80GB HBM3  MIG"),
        ({"why": {"all": "GPU is lost"}}, "GPU is lost: looked for again"),
    ],
)
def test_what_asks_for_action_is_said_in_words(facts, said):
    assert said in drive(one(**facts))
    assert said not in drive(one())


def test_errors_that_the_driver_told_are_said_in_words():
    assert "XID 31 x2, XID 79" in drive(one(xid_errors=XIDS))
    assert "memory errors 0, Xid none" in drive(one())
    lost = drive(one(xid_errors=XIDS, why={"all": "GPU is lost"}), size=(200, 24))
    assert "Xid 79: the GPU has fallen off the bus" in lost


def test_the_parts_of_a_split_gpu_have_a_line_each():
    text = drive(one(mig=True, instances=INSTANCES))
    assert "7/0     SM 25 %  tensor 12 %  DRAM    -     3.0 of 10.0 GiB  MIG 1g.10gb" in text
    assert "8/0     SM 25 %" in text
    assert "8/0     SM 25 %" in drive(one(mig=True, instances=INSTANCES), "c")


def test_the_head_says_what_sampling_takes_and_what_is_read_less_often():
    monitor = one()
    monitor.cost = replace(monitor.cost, limited={"memory": 2})
    assert "for 1.00 % of a CPU, memory/2 of it" in drive(monitor, size=(120, 40)).splitlines()[0]


def test_programs_that_are_profiled_say_their_step_and_verdict(monkeypatch):
    told = [Program(4821, "train.py", 0, 1204, 8.3125, "recording", "saves 31 %: waits for data")]
    monkeypatch.setattr(page, "programs", lambda: told * 6)
    lines = drive(one(), size=(120, 40)).splitlines()
    line = "program train.py 4821  step 1204  8.31 steps/s  recording  verdict: saves 31 %: waits for data"
    assert (lines.count(line), "        and 2 more" in lines) == (4, True)
    assert "program" not in drive(one(), "p", size=(120, 40))  # the past of programs is not kept


def test_programs_say_the_region_that_they_are_in_and_a_long_one_leaves_room_for_the_verdict(monkeypatch):
    told = [
        Program(1, "train.py", 0, 7, None, "recording", "", "forward"),
        Program(2, "train.py", 0, 7, None, "recording", "input-bound", "decoder.layers." * 9),
    ]
    monkeypatch.setattr(page, "programs", lambda: told)
    lines = drive(one(), size=(100, 40)).splitlines()
    assert "program train.py 1  step 7  in forward  recording" in lines
    (long,) = (line for line in lines if line.startswith("program train.py 2"))
    assert "  recording  verdict: input-bound" in long
    assert "  in decoder" in long


def test_a_machine_without_a_gpu_shows_its_host_and_says_so():
    rows = [
        sample(None, BEGIN_S + n, host={**HOST, "machine_cpu_s": 4.0 * n, "io_pressure_s": 0.5 * n}) for n in range(4)
    ]
    text = drive(FakeMonitor(taken(*rows), why="libnvidia-ml was not found"))
    assert "no GPU: libnvidia-ml was not found" in text
    assert "CPU 50 % of 8" in text
    assert "disk 50 %" in text
    assert "useful" not in text


def test_the_host_says_what_limits_it():
    host = {**HOST, "cpu_limit_cpus": 1.5, "memory_limit_bytes": 2 << 30, "memory_charged_bytes": 1 << 30}
    rows = [sample(gpu(), BEGIN_S + n, host={**host, "cpu_throttled_s": 0.3 * n}) for n in range(4)]
    text = drive(FakeMonitor(taken(*rows)), size=(160, 24))
    assert ", limit 1.5" in text
    assert "STOPPED BY ITS LIMIT 0.30 s a second" in text
    assert "limit 1.0 of 2.0" in text


def test_pause_and_scroll_back_and_forth():
    samples = series(30, every_s=1.0, power_w=lambda s: 100 + s, power_limit_w=700.0)

    async def look(app, pilot):
        assert "129 of 700 W" in shown(app)
        await pilot.press("left")
        assert "128 of 700 W" in shown(app)
        assert "PAUSED 1.0 s ago" in shown(app)
        await pilot.press("left_square_bracket")
        assert "118 of 700 W" in shown(app)
        await pilot.press("right")
        assert "119 of 700 W" in shown(app)
        app._monitor.add(*series(1, begin_s=BEGIN_S + 30, power_w=500.0))
        app._look_for_samples()
        assert "119 of 700 W" in shown(app)  # it stays
        await pilot.press("p")
        assert "500 of 700 W" in shown(app)
        assert "PAUSED" not in shown(app)

    drive(FakeMonitor(samples), then=look)


def test_scrolling_ends_at_both_ends():
    samples = series(3, power_w=lambda s: 100 + s)
    assert "100 of 700 W" in drive(FakeMonitor(samples), *["left"] * 9)
    assert "102 of 700 W" in drive(FakeMonitor(samples), "left", *["right"] * 9)
    assert "100 of 700 W" in drive(FakeMonitor(samples), "left_square_bracket")


def test_every_moment_has_every_gpu_of_its_round():
    rows = [sample(gpu(g, power_w=100.0 + n), BEGIN_S + n + g / 1000, host=HOST) for n in range(20) for g in range(8)]
    for keys in (["left"], ["left"] * 25, ["left_square_bracket"] * 3, ["left_square_bracket", "right"]):
        lines = drive(FakeMonitor(taken(*rows)), *keys).splitlines()
        powers = {line.split("W")[0].split()[-1] for line in lines if "tensor" in line}
        assert (len([line for line in lines if "tensor" in line]), len(powers)) == (8, 1)


def test_a_recording_is_shown_from_its_end_and_scrolled():
    samples = series(30, power_w=lambda s: 100 + s)
    text = drive(None, samples=samples)
    assert "RECORDING" in text
    assert "129 of 700 W" in text
    assert "processes are not in the log" in text
    assert "127 of 700 W" in drive(None, "left", "left", samples=samples)
    assert "100 of 700 W" in drive(None, "p", samples=samples)  # from its beginning


def test_a_number_shows_one_gpu_and_0_all():
    assert "┌─ 1 " in drive(several(8), "2")
    assert "┌─ 0 " not in drive(several(8), "2")
    assert sum("tensor" in line for line in drive(several(8), "2", "0").splitlines()) == 8


def test_graphs_are_of_the_last_minutes_and_chosen():
    samples = series(60, sm_active_ratio=lambda s: s / 60, busy_ratio=1.0)
    text = drive(FakeMonitor(samples), size=(120, 16))
    assert "SM active " in text
    assert "▄▅▅" in text
    assert "busy ██" in text
    first = next(line for line in text.splitlines() if "useful" in line)
    assert first.rstrip(" │").endswith("█")
    changed = drive(FakeMonitor(samples), "g", size=(120, 16))
    assert "graph: busy" in changed
    assert "busy" in next(line for line in changed.splitlines() if "useful" in line)


def high(samples, width=36, height=4, unicode=True):
    """The titles and the bars of the graphs that stand under the rows of a GPU."""
    history = History()
    history.append(samples)
    lines = panels.gpu_lines(moment(history, 0), width, 0, unicode, 5 + 1 + height)[5:]
    titles, *bars = ["".join(text for text, _ in line) for line in lines]
    return titles, bars


def test_tall_terminals_have_graphs_under_the_rows():
    samples = series(60, sm_active_ratio=lambda s: s / 60, busy_ratio=1.0)
    low, tall = (drive(FakeMonitor(samples), size=(120, height)).splitlines() for height in (16, 40))
    assert len([line for line in low if line.startswith("│")]) == 5
    titles = next(at for at, line in enumerate(tall) if "busy 100 %" in line and "SM active" in line)
    assert tall[titles - 1].startswith("│ links")
    assert "SM active" not in next(line for line in tall if "useful" in line)  # it is said once
    frame = next(at for at, line in enumerate(tall) if line.startswith("└"))
    assert frame - titles - 1 == 9
    full = [line.count("█") for line in tall[titles + 1 : frame]]
    assert full == sorted(full)  # of a figure that grows there is more below
    assert full[0] < full[-1]
    assert all("██████████" in line for line in tall[titles + 1 : frame])  # of one that is at its most
    assert "no process computes" in "".join(tall)


def test_graphs_leave_few_lines_to_no_graph():
    assert sum(line.startswith("│") for line in drive(several(2), size=(100, 30)).splitlines()) == 10


def test_bars_are_as_high_as_the_figure():
    _, bars = high(series(3, sm_active_ratio=lambda s: (0.0, 0.5, 1.0)[int(s)], busy_ratio=None))
    assert [line.rstrip()[-3:] for line in bars] == ["  █", "  █", " ██", "▁██"]


def test_a_graph_of_more_samples_than_columns_has_their_means():
    _, bars = high(series(60, sm_active_ratio=lambda s: s % 2, busy_ratio=None), width=32)
    assert {line.strip() for line in bars} == {"", "█" * 30}
    assert [bool(line.strip()) for line in bars] == [False, False, True, True]


def test_a_figure_that_is_not_known_has_no_graph_and_a_gap_is_marked():
    titles, bars = high(series(3, sm_active_ratio=None, busy_ratio=lambda s: None if s == 1 else 1.0), width=80)
    assert titles.split()[0] == "busy"
    assert "SM active" not in titles
    assert bars[0].strip()[:3] == "█ █"
    assert bars[-1].strip()[:3] == "█·█"


def test_graphs_need_no_unicode():
    _, bars = high(series(3, sm_active_ratio=lambda s: (0.0, 0.6, 1.0)[int(s)], busy_ratio=None), unicode=False)
    assert [line.rstrip()[-3:] for line in bars] == ["  #", " _#", " ##", "_##"]
    assert all(line.isascii() for line in bars)


def test_help_says_keys_and_what_figures_mean():
    async def look(app, pilot):
        words = str(app.screen.query_one(Static).content)
        assert "Ctrl-C   end" in words
        assert "Busy is nvidia-smi's utilization" in words
        await pilot.press("x")
        assert len(app.screen_stack) == 1

    drive(one(), "question_mark", then=look, size=(120, 40))


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends(key):
    async def look(app, pilot):
        return app._exit

    assert drive(one(), key, then=look)


def test_light_and_dark():
    async def look(app, pilot):
        return app.current_theme.dark

    assert drive(one(), then=look)
    assert not drive(one(), "l", then=look)


def test_a_look_is_kept_for_the_next_time():
    drive(one(), "c", "g", "g", "l", "f2")
    look = page.Look()
    look.load(page.config_path())
    assert (look.mode, look.graph, look.light) == ("compact", 2, True)
    page.config_path().write_text('{"mode": "odd", "graph": "x", "sort": 999, "light": 1}')
    look = page.Look()
    look.load(page.config_path())
    assert (look.mode, look.graph, look.sort < len(processes.SORTS), look.light) == ("auto", 0, True, False)


def test_r_records_what_comes(tmp_path):
    async def look(app, pilot):
        await pilot.press("r")
        app._monitor.add(*series(3))
        app._look_for_samples()
        await pilot.press("r")
        app._monitor.add(*series(3))
        app._look_for_samples()

    drive(one(), then=look)
    (path,) = tmp_path.glob("gpu-*.jsonl")
    assert len(path.read_text().splitlines()) == 3


@pytest.fixture
def sleeper(monkeypatch):
    """A process that this one can see and end."""
    from gpuscope.monitor import snapshot

    monkeypatch.setattr(snapshot, "_is_the_hosts_number", lambda: True)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={"MARK": "here"})
    yield process
    process.kill()
    process.wait()


def test_processes_have_what_the_host_says_of_them(sleeper):
    text = drive(one(processes=[(sleeper.pid, 20 << 30), (2**22 + 1, None)]), size=(240, 30))
    assert f"{sleeper.pid}" in text
    assert "20.00G" in text
    assert "time.sleep(600)" in text
    assert "not to be seen from here" in text


def test_a_signal_is_sent_after_a_yes_alone(sleeper):
    async def look(app, pilot):
        await pilot.press("down", "T")
        assert f"Send SIGTERM to {sleeper.pid} (" in str(app.screen.query_one(Static).content)
        await pilot.press("n")
        assert sleeper.poll() is None
        await pilot.press("T", "y")

    drive(one(processes=[(sleeper.pid, 1)]), then=look)
    assert sleeper.wait(60) == -signal.SIGTERM


@pytest.fixture
def another_by_its_number(sleeper, monkeypatch):
    """Makes the process look like one that began later."""

    def begin():
        stat = processes._stat
        monkeypatch.setattr(processes, "_stat", lambda pid: [*stat(pid)[:19], "1", *stat(pid)[20:]])

    return begin


def test_no_signal_is_sent_to_another_process_that_has_the_number_by_now(sleeper, another_by_its_number, monkeypatch):
    sent = []

    async def look(app, pilot):
        await pilot.press("down", "T")
        another_by_its_number()
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda *arguments: sent.append(arguments))
            await pilot.press("y")
        return shown(app)

    assert f"process {sleeper.pid} has ended" in drive(one(processes=[(sleeper.pid, 1)]), then=look)
    assert sent == []


def test_another_process_that_has_the_number_of_a_tagged_one_is_not_tagged(sleeper, another_by_its_number):
    async def look(app, pilot):
        await pilot.press("down", "space")
        before = shown(app)
        another_by_its_number()
        app.draw()
        return before, shown(app)

    before, after = drive(one(processes=[(sleeper.pid, 1)]), then=look)
    assert f">*   0 {sleeper.pid:>8}" in before
    assert f"    0 {sleeper.pid:>8}" in after
    assert f"*   0 {sleeper.pid:>8}" not in after


def test_no_signal_is_sent_to_what_nobody_selected_or_to_the_past(sleeper, monkeypatch):
    facts = {"processes": [(sleeper.pid, 1)]}
    sent = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda *arguments: sent.append(arguments))
        assert "no process that can be seen from here is selected" in drive(one(**facts), "K")
        assert "signals are sent to what runs now" in drive(one(**facts), "p", "down", "K")
        assert "no process that can be seen" in drive(one(processes=[(2**22 + 1, 1)]), "down", "K")
    assert sent == []


def test_a_process_stays_selected_whatever_rows_come_and_go(sleeper):
    async def look(app, pilot):
        app._monitor.add(*taken(sample(gpu(processes=[(2, 1), (3, 1), (sleeper.pid, 1)]), BEGIN_S + 1)))
        app._look_for_samples()
        before = app._selected().process.pid
        app._monitor.add(*taken(sample(gpu(processes=[(3, 1), (4, 1)]), BEGIN_S + 2)))
        app._look_for_samples()
        return before, app._selected()

    assert drive(one(processes=[(sleeper.pid, 1)]), "down", then=look) == (sleeper.pid, None)


def test_cpu_shares_are_of_half_a_second_however_often_they_are_asked_for(monkeypatch):
    moment = [100.0]
    spent = [1000]

    def fields(pid):
        return ["S", "1", *["0"] * 9, str(spent[0]), "0", *["0"] * 6, "7", "0", "0"]

    job = processes.GpuProcess(7, 1, "job", "me")
    monkeypatch.setattr(processes, "named_process", lambda pid, memory_bytes: job)
    monkeypatch.setattr(processes, "_stat", fields)
    monkeypatch.setattr(processes._core, "monotonic_ns", lambda: round(moment[0] * 1e9))
    reader = processes.ProcessReader()
    told = []
    for passed_s, ticks in ((0.0, 0), (0.1, 10), (0.4, 40), (0.01, 10), (0.5, 0)):
        moment[0] += passed_s
        spent[0] += ticks * reader._ticks // 100
        told.append(reader.rows([(0, job)])[0].cpu_ratio)
    assert told[:2] == [None, None]
    assert told[2:4] == [pytest.approx(1.0)] * 2
    assert told[4] == pytest.approx(0.1 / 0.51)


def test_the_environment_of_a_process_is_shown(sleeper):
    async def look(app, pilot):
        return str(app.screen.query_one(Static).content)

    assert "MARK=here" in drive(one(processes=[(sleeper.pid, 1)]), "down", "e", then=look)
    assert "no process is selected" in drive(one(processes=[(sleeper.pid, 1)]), "e")


def test_processes_are_tagged_and_sorted(sleeper):
    facts = {"processes": [(sleeper.pid, 1 << 30), (2**22 + 1, 5 << 30)]}
    text = drive(one(**facts), "down", "space")
    assert f" *   0 {sleeper.pid:>8}" in text
    assert f">    0 {2**22 + 1:>8}" in text
    by_memory = drive(one(**facts), "o", "g")
    assert by_memory.index(f"{2**22 + 1}") < by_memory.index(f"{sleeper.pid} ")
    assert "memoryv" in by_memory
    turned = drive(one(**facts), "o", "g", "slash")
    assert turned.index(f"{2**22 + 1}") > turned.index(f"{sleeper.pid} ")
    assert "pidv" in drive(one(**facts), "full_stop")


def test_a_tree_has_children_under_their_parents():
    rows = [processes.ProcessRow(0, gpu_process(pid), parent=parent) for pid, parent in ((7, 9), (9, 1), (8, 7))]
    assert [(depth, row.process.pid) for depth, row in processes.as_tree(rows)] == [(0, 9), (1, 7), (2, 8)]
    circle = [processes.ProcessRow(0, gpu_process(7), parent=7)]
    assert len(processes.as_tree(circle)) == 1


def gpu_process(pid):
    from gpuscope.monitor import GpuProcess

    return GpuProcess(pid, 1, "a", "me")


def test_a_process_of_another_namespace_gets_no_command(sleeper, monkeypatch):
    from gpuscope.monitor import snapshot

    monkeypatch.setattr(snapshot, "_is_the_hosts_number", lambda: False)
    monkeypatch.setattr(snapshot, "_uses_gpus", lambda folder: False)
    found = snapshot.named_process(sleeper.pid, 5)  # the host means another process by that number
    assert (found.command, found.user, found.memory_bytes) == (None, None, 5)


def test_history_keeps_ten_minutes_and_no_more():
    history = History()
    for chunk in range(100):
        history.append(series(20, every_s=1.0, begin_s=BEGIN_S + 20 * chunk))
    assert history.end_ns - history.begin_ns <= 600e9
    assert len(history.window(0, 1e9)) <= 601


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_breaks_neither_history_nor_page(step_s):
    before = series(5, power_w=100.0)
    after = series(5, begin_s=BEGIN_S + 5 + step_s, power_w=200.0)
    monitor = FakeMonitor([*before, *after])
    assert "200 of 700 W" in drive(monitor)
    for keys in (("left",) * 12, ("p", "["), ("p", "right")):
        assert "of 700 W" in drive(FakeMonitor([*before, *after]), *keys)


def test_steps_go_through_all_that_any_gpu_has():
    history = History(None)
    history.append(series(5) + series(2, index=1, begin_s=BEGIN_S + 0.001))
    times, at = [], history.step(None, -100)
    while not times or at != times[-1]:
        times.append(at)
        at = history.step(at, 1)
    assert [round(time_ns / 1e9 - BEGIN_S, 3) for time_ns in times] == [0.001, 1.001, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(("count", "late_s", "begin_s"), [(5, 0.001, 0.001), (5, 3.0, 0.0), (1, 0.001, 0.001)])
def test_a_history_begins_with_the_gpus_that_were_there(count, late_s, begin_s):
    history = History(None)
    history.append(series(count) + series(count, index=1, begin_s=BEGIN_S + late_s))
    assert history.begin_ns == pytest.approx((BEGIN_S + begin_s) * 1e9)


def test_a_gpu_that_was_not_read_for_long_is_not_as_it_was():
    history = History(None)
    history.append(series(60) + series(5, index=1))
    found = moment(history, 1, history.end_ns)
    assert (found.gpu.power_w, found.gpu.why) == (None, {"all": "it was not read for 55 s"})
    assert moment(history, 1, round((BEGIN_S + 5.5) * 1e9)).gpu.power_w == 612.4


def test_rows_tell_of_the_last_minute_and_the_last_seconds():
    samples = [
        replace(each, slow_time_ns=each.time_ns // 10**9 * 10**9, rare_time_ns=0)
        for each in series(700, every_s=0.1, throttled_s=lambda s: 0.25 * int(s), pcie_sent_bytes_per_s=None)
    ]
    *_, last = Rows().lines(samples)
    history = History()
    history.append(samples)
    assert last == row(moment(history, 0))
    assert last.split()[10] == "25"


def test_rows_have_rates_however_long_the_interval():
    host = [dict(HOST, machine_cpu_s=4.0 * 60 * number) for number in range(3)]
    samples = taken(*(sample(gpu(), BEGIN_S + 60 * number, host=each) for number, each in enumerate(host)))
    *_, last = Rows().lines(samples)
    assert last.split()[-1] == "50"


def test_a_moment_of_nothing_is_none():
    assert moment(History(), 0) is None


def test_names_of_others_move_no_cursor():
    text = drive(one(name="\x1b[31mGPU\n", why={"all": "\x1b[2J"}))
    assert "\x1b" not in text


def test_processes_that_nvml_does_not_tell_have_its_reason():
    text = drive(one(processes=None, why={"processes": "Not Supported"}))
    assert "processes are not known: Not Supported" in text


def test_without_unicode_bars_and_frames_are_ascii():
    async def look(app, pilot):
        app._unicode = False
        app.draw()
        return shown(app)

    text = drive(FakeMonitor(series(60, **USEFUL)), then=look, size=(120, 24))
    assert "+- 0 H100" in text
    assert "7777" in text
