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
from gpuscope.monitor.rows import SampleRows, row

pytest.importorskip("textual")

from textual.widgets import Static

from gpuscope.monitor import layout, page, panels, processes

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


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_what_asks_for_action_is_not_cut_while_there_are_figures_to_cut(width):
    monitor = FakeMonitor(series(60, throttled_s=lambda s: 0.12 * s, pcie_width=4, **USEFUL))
    line = drive(monitor, "c", size=(width, 24)).splitlines()[1]
    assert line.endswith("THROTTLED 12 %, 4 OF 16 LANES" if width > 30 else "…")
    assert "THROTTLED 12 %" in line


def test_a_line_that_is_cut_ends_in_a_mark_wherever_it_is_cut():
    line = [("abc", ""), ("", ""), ("日本", "bold"), ("", ""), ("d", "")]
    for width in range(-1, 12):
        text = "".join(part for part, _ in panels.cut(line, width))
        assert panels.columns_of(text) <= max(0, width)
        assert (text == "abc日本d") == (width >= 8)
        assert text.endswith("…") or width <= 0 or width >= 8


@pytest.mark.parametrize("count", [0, 1, 2, 8])
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (20, 5)])
def test_nothing_is_cut_without_a_sign(count, size, monkeypatch):
    facts = USEFUL | {"processes": [(2**22 + 1, 1 << 30)], "throttle_faults": ["hw_thermal_slowdown"]}
    told = [processes.ProcessRow(-1, gpu_process(7), cpu_ratio=0.5)]
    monkeypatch.setattr(page.ProcessReader, "of_user", lambda reader: told)
    monkeypatch.setattr(page, "programs", lambda: [Program(1, "train.py", 0, 7, None, "recording", "a verdict " * 9)])

    def lines():
        rows = taken(*(sample(gpu(index, **facts), host=HOST) for index in range(count))) if count else hosts(3)
        return drive(FakeMonitor(rows), size=size).splitlines()

    seen = lines()
    for module in (layout, page, panels, processes):
        monkeypatch.setattr(module, "cut", lambda line, width: line)
    whole = {*(line.strip("│ ") for line in lines())}
    assert [line for line in seen if line.strip("│ ") not in whole and "…" not in line and "─" not in line] == []
    assert any("…" in line for line in seen)


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


def test_the_head_says_what_sampling_takes():
    assert "for 1.00 % of a CPU" in drive(one(), size=(120, 40)).splitlines()[0]


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


def hosts(count, every_s=1.0, **figures):
    """Samples of a machine without a GPU whose CPUs are half used and whose tasks wait for storage half the time."""

    def host(seconds):
        counters = {"machine_cpu_s": 4.0 * seconds, "io_pressure_s": 0.5 * seconds}
        return {**HOST, "machine_memory_total_bytes": 1 << 34, **counters, **figures}

    moments = [number * every_s for number in range(count)]
    return taken(*(sample(None, BEGIN_S + at, host=host(at)) for at in moments))


def without_gpu(**figures):
    return FakeMonitor(hosts(60, **figures), why="libnvidia-ml was not found (no such file or directory)")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 50)])
def test_a_machine_without_a_gpu_has_a_frame_for_its_host_with_graphs(size):
    lines = drive(without_gpu(), size=size).splitlines()
    assert any(line.startswith("┌─ host ─") for line in lines)
    rows = [line[2:] for line in lines if line.startswith("│")]
    assert rows[0].startswith("busy    CPU 50 % of 8")
    assert rows[1].startswith("memory  RAM 8.0 of 16.0 GiB")
    assert rows[2].startswith("waits   disk 50 %")
    assert rows[3].startswith("CPU 50 %")
    assert max(line.count("█") for line in rows) >= 58  # half of the bars are full, each a second at most


def test_the_key_g_has_the_next_figure_of_the_host_first():
    lines = drive(without_gpu(), "g").splitlines()
    assert "graph: RAM" in lines[-1]
    assert next(line for line in lines if "RAM 50 %" in line).startswith("│ RAM 50 %")


def test_a_reading_that_several_samples_have_is_one_rate():
    every = [replace(each, host_time_ns=each.time_ns // 10**9 * 10**9) for each in hosts(9, every_s=0.5)]
    host = [replace(each.host, machine_cpu_s=4.0 * (each.host_time_ns / 1e9 - BEGIN_S)) for each in every]
    history = History()
    history.append(replace(each, host=facts) for each, facts in zip(every, host, strict=True))
    assert moment(history, -1).series("machine_cpu_s") == [4.0] * 7


def test_a_counter_of_the_host_that_began_anew_has_a_gap():
    history = History()
    history.append(hosts(3) + [replace(each, time_ns=each.time_ns + 10**10) for each in hosts(2)])
    later = [replace(each, host_time_ns=each.time_ns) for each in history.window(-1, 60)]
    history = History()
    history.append(later)
    assert moment(history, -1).series("machine_cpu_s") == [4.0, 4.0, None, 4.0]


@pytest.mark.parametrize("size", [(60, 20), (40, 10), (20, 5), (10, 4)])
def test_the_host_and_the_reason_have_room_on_small_terminals(size):
    lines = drive(without_gpu(), size=size).splitlines()
    assert max(map(len, lines)) <= size[0]
    assert "no GPU:"[: size[0] - 2] in "\n".join(lines)
    assert any("CPU" in line or "host" in line for line in lines[: size[1]])


def test_without_a_gpu_the_users_processes_are_listed_the_busiest_first(worker, sleeper, monkeypatch):
    found, known = processes._others_of_user, {worker.pid, sleeper.pid, os.getpid()}  # others may be busier
    monkeypatch.setattr(processes, "_others_of_user", lambda: [pid for pid in found() if pid in known])

    async def look(app, pilot):
        while app._processes.busiest().split()[2:3] != [str(worker.pid)]:
            await pilot.pause(0.1)
            app._processes.of_user(0.0)
            app.draw()
        return shown(app)

    lines = drive(without_gpu(), then=look).splitlines()
    table = lines[next(at for at, line in enumerate(lines) if "cpuv" in line) :]
    assert "memory" not in table[0]
    assert "gpu" not in table[0]
    pids = [line.split()[0] for line in table[1:-1] if line]
    assert str(worker.pid) in pids
    assert (str(sleeper.pid) in pids, str(os.getpid()) in pids) == (True, False)
    assert pids.index(str(worker.pid)) < pids.index(str(sleeper.pid))
    assert "  python" in next(line for line in table if str(worker.pid) in line)  # without its folders


def test_processes_that_neither_run_python_nor_use_a_cpu_and_those_of_others_are_left_out(monkeypatch):
    idle = subprocess.Popen(["sleep", "600"])
    try:
        reader = processes.ProcessReader()
        assert idle.pid not in {row.process.pid for row in reader.of_user()}
        monkeypatch.setattr(os, "geteuid", lambda: 2**31)
        assert reader.of_user(0.0) == []
    finally:
        idle.kill()
        idle.wait()


def test_processes_of_the_user_are_looked_for_once_a_second(monkeypatch):
    looks = []
    monkeypatch.setattr(processes, "_others_of_user", lambda: looks.append(1) or [])
    now = [100.0]
    monkeypatch.setattr(processes._core, "monotonic_ns", lambda: round(now[0] * 1e9))
    reader = processes.ProcessReader()
    for passed_s in (0.0, 0.5, 0.5, 0.5):
        now[0] += passed_s
        reader.of_user()
    assert len(looks) == 2


def test_processes_of_the_user_stay_as_they_were_while_the_page_is_paused(monkeypatch):
    looks = [[processes.ProcessRow(-1, gpu_process(pid), cpu_ratio=0.5)] for pid in (7, 8)]
    monkeypatch.setattr(page.ProcessReader, "of_user", lambda reader: looks[0])

    async def look(app, pilot):
        await pilot.press("p")
        looks.pop(0)
        await pilot.press("left")
        return shown(app)

    assert "      7 me" in drive(without_gpu(), then=look)


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


def test_a_recording_without_figures_of_the_host_has_no_line_of_it():
    assert not [line for line in drive(None, samples=series(3)).splitlines() if line.startswith("host")]


def test_a_recording_of_a_machine_without_a_gpu_is_shown():
    text = drive(None, samples=hosts(30))
    assert "RECORDING" in text
    assert "CPU 50 % of 8" in text
    assert "processes are not in the log" in text


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
    lines = panels.frame_lines(moment(history, 0), width, 0, unicode, 5 + 1 + height)[5:]
    titles, *bars = ["".join(text for text, _ in line) for line in lines]
    return titles, bars


def test_tall_terminals_have_graphs_under_the_rows():
    samples = series(60, sm_active_ratio=lambda s: s / 60, busy_ratio=1.0)
    low, tall = (drive(FakeMonitor(samples), size=(120, height)).splitlines() for height in (16, 40))
    assert len([line for line in low if line.startswith("│")]) == 5
    titles = next(at for at, line in enumerate(tall) if "busy 100 %" in line and "SM active" in line)
    assert tall[titles - 1].startswith("│ links")
    assert "SM active" not in next(line for line in tall if "useful" in line)  # it is said once
    others = next(at for at, line in enumerate(tall) if "power 87 %" in line and "memory 76 %" in line)
    assert others - titles - 1 == 10
    full = [line.count("█") for line in tall[titles + 1 : others]]
    assert full == sorted(full)  # of a figure that grows there is more below
    assert full[0] < full[-1]
    assert all("██████████" in line for line in tall[titles + 1 : others])  # of one that is at its most
    assert "no process computes" in "".join(tall)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_graphs_take_the_lines_that_nothing_else_needs(count, monkeypatch):
    monkeypatch.setattr(page.ProcessReader, "of_user", lambda reader: [])
    rows = [sample(gpu(index, **USEFUL), BEGIN_S + n, host=HOST) for n in range(60) for index in range(count)]
    monitor = FakeMonitor(taken(*rows) if count else hosts(60), why="" if count else "none")
    _, *lines, _ = drive(monitor, size=(220, 50)).splitlines()
    assert 50 - 2 - len(lines) <= (8 if count else 12)  # which processes may take
    assert max(map(len, lines)) > 200
    assert sum("█" in line for line in lines) >= 14


def test_graphs_of_a_recording_take_the_lines_of_its_processes():
    samples = series(60, sm_active_ratio=lambda s: s / 60, busy_ratio=1.0)
    live, again = drive(FakeMonitor(samples)), drive(None, samples=samples)
    assert sum("█" in line for line in again.splitlines()) > sum("█" in line for line in live.splitlines())


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

    monkeypatch.setattr(snapshot, "is_the_hosts_number", lambda: True)
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
        assert "signals reach only running processes" in drive(one(**facts), "p", "down", "K")
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

    monkeypatch.setattr(snapshot, "is_the_hosts_number", lambda: False)
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


@pytest.mark.parametrize(("gib", "shown"), [(61.04, "61.0"), (99.97, "100"), (141.2, "141")])
def test_rows_have_encoder_decoder_and_memory_in_their_columns(gib, shown):
    facts = {"encoder_busy_ratio": 0.31, "decoder_busy_ratio": 1.0, "memory_used_bytes": int(gib * (1 << 30))}
    names, _, line = SampleRows().lines(series(1, **facts))
    columns = dict(zip(names.split()[1:], line.split()[1:], strict=True))
    assert (columns["enc"], columns["dec"], columns["mem"]) == ("31", "100", shown)
    assert len(line) == len(names) == 80


def test_rows_tell_of_the_last_minute_and_the_last_seconds():
    samples = [
        replace(each, slow_time_ns=each.time_ns // 10**9 * 10**9, rare_time_ns=0)
        for each in series(700, every_s=0.1, throttled_s=lambda s: 0.25 * int(s), pcie_sent_bytes_per_s=None)
    ]
    *_, last = SampleRows().lines(samples)
    history = History()
    history.append(samples)
    assert last == row(moment(history, 0))
    assert last.split()[12] == "25"


def test_rows_have_rates_however_long_the_interval():
    host = [dict(HOST, machine_cpu_s=4.0 * 60 * number) for number in range(3)]
    samples = taken(*(sample(gpu(), BEGIN_S + 60 * number, host=each) for number, each in enumerate(host)))
    *_, last = SampleRows().lines(samples)
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


@pytest.mark.parametrize("count", [0, 2, 64])
@pytest.mark.parametrize("size", [(60, 20), (20, 5)])
def test_a_terminal_without_unicode_is_given_ascii_alone(count, size, monkeypatch):
    rows = [processes.ProcessRow(-1, replace(gpu_process(7), command="日本 é"), cpu_ratio=0.5)] * 30
    monkeypatch.setattr(page.ProcessReader, "of_user", lambda reader: rows)
    samples = [sample(gpu(index, name="日本", **USEFUL), host=HOST) for index in range(count)]

    async def run():
        app = page.MonitorPage(FakeMonitor(taken(*samples) if count else hosts(3), why="" if count else "日本"))
        app._unicode = False
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            strips = [strip.text for strip in app.screen._compositor.render_strips()]
            await pilot.press("question_mark")
            return [*strips, *(strip.text for strip in app.screen._compositor.render_strips())]

    lines = asyncio.run(run())
    assert [line for line in lines if not line.isascii()] == []
    assert any(line.rstrip().endswith("~") for line in lines)


def test_rows_that_have_no_room_are_scrolled_to():
    monitor = FakeMonitor(taken(sample(gpu(processes=[(pid, 1) for pid in range(2**22, 2**22 + 50)], **USEFUL))))

    async def look(app, pilot):
        def seen():
            return " ".join(strip.text for strip in app.screen._compositor.render_strips())

        assert f"{2**22}" in seen()
        assert f"{2**22 + 49}" not in seen()
        await pilot.press("up")  # selects the last one
        await pilot.pause()
        assert f">    0 {2**22 + 49:>8}" in seen()
        await pilot.press("down", *["pageup"] * 9)
        await pilot.pause()
        assert "useful" in seen()
        await pilot.press("pagedown")
        await pilot.pause()
        assert "useful" not in seen()

    drive(monitor, then=look)


def test_the_page_follows_the_size_of_its_terminal():
    async def look(app, pilot):
        for size in ((20, 5), (1, 1), (3, 2), (220, 50), (5, 3), (80, 24)):
            await pilot.resize_terminal(*size)
            for _ in range(500):
                await pilot.pause(0.01)
                if fits := size == (1, 1) or max(map(len, shown(app).splitlines())) <= size[0]:
                    break
            assert fits
        return shown(app)

    for keys in ((), ("f",), ("c",)):
        assert "61.0 of 80.0" in drive(several(1), *keys, then=look) or keys == ("c",)
        assert "CPU 50 % of 8" in drive(without_gpu(), *keys, then=look)
