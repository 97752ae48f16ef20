# SPDX-License-Identifier: Apache-2.0
"""The diagnosis as a whole: guards against false alarms, ranking, verdicts, the page, recordings that lack much."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

import gpuscope
from fakes.disturbances import least_disturbed
from fakes.loops import ADD, SMS, Loop
from fakes.recordings import aggregate, make_trace
from gpuscope._core import FunctionKind, RegionKind
from gpuscope.diagnosis import break_down, check_wanted, diagnose, find_steps, known_findings
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.rules import RULES
from gpuscope.errors import InvalidArgument
from gpuscope.steps.steps import as_passed

MIB = 1 << 20


def compute(loop, count=10, gpu=100.0, **options):
    with loop.at("train.py", 20):
        for _ in range(count):
            loop.launch(gpu=gpu, **options)


def diagnosed(step, count=14, make=Loop, change=None):
    loop = make()
    for number in loop.steps(count):
        step(loop, number)
    if change is None:
        return diagnose(loop.trace())
    tables, info = loop.tables(), dict(loop.trace().info)
    change(tables, info)
    return diagnose(make_trace(tables, info=info))


def ids(found):
    return [each.id for each in found if each.severity != "info"]


# -- guards ------------------------------------------------------------------------------------------------------------


def test_a_wait_while_the_gpu_works_costs_nothing():
    def step(loop, number):
        compute(loop, 20)
        with loop.at("train.py", 30):
            loop.wait()
        loop.work(1)

    loop = Loop()
    for number in loop.steps(14):
        with loop.at("train.py", 29):
            loop.launch(gpu=5000, stream=9)
        step(loop, number)
    assert ids(diagnose(loop.trace())) == []


def test_copies_and_collectives_beside_computing_are_not_lost():
    def step(loop, number):
        loop.copy(20 * MIB, 500, stream=8)
        loop.launch("ncclDevKernel_AllReduce", 500, stream=9, grid_x=SMS)
        compute(loop)

    assert ids(diagnosed(step)) == []


def test_a_wait_for_data_behind_queued_work_is_not_input_bound():
    def step(loop, number):
        compute(loop)
        with loop.region("load", RegionKind.REGION):
            loop.work(700)

    assert ids(diagnosed(step)) == []


def test_a_launch_that_waits_for_room_in_the_queue_means_a_busy_gpu():
    assert diagnosed(lambda loop, number: compute(loop, 1500, 20, host=1)).verdict == "fine"


def test_kernels_of_low_occupancy_are_no_finding():
    assert ids(diagnosed(lambda loop, number: compute(loop, registers=255, dynamic_shared_bytes=200 << 10))) == []


def test_what_tracing_adds_between_the_nodes_of_a_graph_is_no_gain_of_fusing_them():
    found = diagnosed(lambda loop, number: loop.graph(40, 4, name=ADD))
    chains = next(each for each in found if each.id == "R20")
    assert chains.alone == pytest.approx(0.8 * 39 / 40, abs=0.01)


def test_the_saving_of_a_graph_is_the_time_that_the_gpu_does_not_work():
    def step(loop, number):
        compute(loop, 100, 2, host=10)

    (finding,) = diagnosed(step).findings
    assert (finding.id, finding.saving is None) == ("R19", False)
    assert finding.saving == pytest.approx(0.7, abs=0.1)


def test_steps_that_start_up_and_the_last_are_left_out():
    def step(loop, number):
        compute(loop)
        loop.wait()
        loop.work(5000 if number in (0, 1, 2, 13) else 0)

    found = diagnosed(step)
    assert ids(found) == []
    assert found.left_out == 4


def test_steps_that_the_host_leaves_at_once_are_those_of_the_gpu():
    def step(loop):
        compute(loop)
        loop.launch("spin", 700, grid_x=1)

    def of(waits):
        loop = Loop()
        for _ in loop.steps(12, waits=waits):
            step(loop)
        return diagnose(loop.trace())

    for found in (of(waits=False), of(waits=True)):
        (finding,) = found.findings
        assert (finding.id, finding.saving is None) == ("R29", False)
        assert finding.saving == pytest.approx(700 / 1711, abs=0.01)
        assert found.breakdown.steps.durations_ns.mean() == pytest.approx(1711_000, rel=0.01)


def test_a_wait_in_a_library_has_the_line_of_the_program_that_called_it():
    def step(loop, number):
        compute(loop)
        with loop.at("train.py", 77), loop.at("/usr/lib/python3.12/site-packages/torch/cuda/__init__.py", 1162):
            loop.wait()
        loop.work(500)

    found = diagnosed(step)
    assert str(found.findings[0].where[0]) == "train.py:77"
    assert found.breakdown.devices[0].drains[0].where == "train.py:77"


def test_calls_are_counted_in_the_steps_of_the_host():
    loop = Loop()
    for _ in loop.steps(12, waits=False):
        compute(loop)
    trace = loop.trace()
    steps = find_steps(trace)
    context = Context(trace, steps, break_down(trace, as_passed(trace, steps)))
    assert np.bincount(context.call_step).tolist() == [10] * 12


def test_with_few_steps_fewer_are_left_out():
    assert diagnosed(lambda loop, number: compute(loop), 7).left_out == 2
    assert diagnosed(lambda loop, number: compute(loop), 5).left_out == 0


def test_a_small_pageable_copy_to_the_gpu_is_no_slow_copy():
    def step(loop, number):
        for _ in range(10):
            loop.copy(64 << 10, 60)
        compute(loop)

    assert "R09" not in [each.id for each in diagnosed(step)]


def test_names_alone_are_no_finding():
    def step(loop, number):
        with loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            loop.work(2)
        with loop.region("aten::item"), loop.region("aten::_local_scalar_dense"):
            loop.work(1)
        with loop.region("Optimizer.step#Adam.step", RegionKind.RANGE):
            compute(loop)

    assert ids(diagnosed(step)) == []


def launches_and_reads(loop, number):
    for _ in range(20):
        with loop.at("train.py", 20), loop.region("aten::add"):
            loop.launch(gpu=2, host=8)
            loop.work(2)
    with loop.at("train.py", 30), loop.region("aten::item"):
        loop.copy(4, 2, to_gpu=False)
        loop.wait()
    with loop.at("train.py", 40):
        loop.launch(ADD, gpu=300 + 10 * (number % 7), grid_x=SMS // 4)
        loop.wait()


def test_of_a_long_recording_savings_are_those_of_edits_of_all_its_steps(monkeypatch):
    monkeypatch.setattr("gpuscope.diagnosis.replay.MOST_CALLS", 500)
    monkeypatch.setattr("gpuscope.diagnosis.replay.LEAST_REPLAYED", 12)
    found = diagnosed(launches_and_reads, 100)
    monkeypatch.setattr("gpuscope.diagnosis.context.is_replayed", lambda trace, steps: np.ones(len(steps) + 1, bool))
    assert {"R19", "R29"} <= set(ids(found))
    assert str(found) == str(diagnosed(launches_and_reads, 100))


def test_of_a_long_recording_only_the_steps_that_are_replayed_are_edited(monkeypatch):
    def edited():
        loop = Loop()
        for number in loop.steps(100):
            launches_and_reads(loop, number)
        trace = loop.trace()
        steps = find_steps(trace)
        context = Context(trace, steps, break_down(trace, as_passed(trace, steps)))
        edits = [cause.edit for rule in RULES for cause in rule.find(context)]
        return sum(len(each.unwaited) + len(each.host_spans) + len(each.kernels) for each in edits)

    every = edited()
    monkeypatch.setattr("gpuscope.diagnosis.replay.MOST_CALLS", 500)
    monkeypatch.setattr("gpuscope.diagnosis.replay.LEAST_REPLAYED", 12)
    assert 0 < edited() < every / 3


def test_what_came_once_is_no_finding_of_each_step():
    def step(loop, number):
        compute(loop)
        loop.wait()
        with loop.region("load", RegionKind.REGION):
            loop.work(1500 if number == 6 else 1)

    assert "R01" not in ids(diagnosed(step))


def test_a_checkpoint_in_one_step_is_judged_by_the_whole_run():
    def step(loop, number):
        compute(loop)
        loop.wait()
        if number == 6:
            with loop.function("train.py(41): save"), loop.function("<built-in method write of _io.FileIO>"):
                loop.work(3000)

    finding = next(each for each in diagnosed(step) if each.id == "R26")
    assert finding.share == pytest.approx(0.21, abs=0.05)


def test_one_cause_is_one_finding_and_what_lies_in_it_is_listed_under_it():
    def step(loop, number):
        compute(loop, 100, 3, host=15)
        with loop.at("train.py", 90), loop.region("Optimizer.step#Adam.step", RegionKind.RANGE):
            for _ in range(40):  # of which the kernels alone are less than 2 %
                loop.launch("adam", 3, 15)
        compute(loop, 160, 3, host=15)

    found = diagnosed(step)
    first = found.findings[0]
    assert (first.id, [part.id for part in first.parts]) == ("R19", ["R21"])
    assert "of it R21 the optimizer updates one tensor at a time at train.py:90" in found.page(200)
    assert sum(each.saving for each in found.findings) <= 1


def test_two_causes_are_both_found_and_their_savings_add_up_to_no_more_than_the_idle_time():
    def step(loop, number):
        with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            loop.work(1500)
        with loop.at("train.py", 51):
            loop.copy(8 * MIB, 800)
        compute(loop)
        loop.wait()

    found = diagnosed(step)
    assert [each.id for each in found.findings] == ["R02", "R09"]
    assert found.findings[0].saving > found.findings[1].saving
    assert sum(each.saving for each in found.findings) == pytest.approx(0.65, abs=0.07)
    assert [each.severity for each in found.findings] == ["critical", "warn"]


def test_what_may_save_little_is_not_critical():
    def step(loop, number):
        compute(loop)
        loop.wait()
        with loop.at("train.py", 48), loop.region("load", RegionKind.REGION):
            loop.work(900 if number % 2 else 1)

    (finding,) = (each for each in diagnosed(step, 12) if each.id == "R01")
    assert finding.saving > 0.2 > finding.interval[0]
    assert finding.severity == "warn"


def test_what_saves_little_is_folded_into_a_line():
    def step(loop, number):
        compute(loop, 40)
        loop.wait()
        with loop.function("Garbage collection", FunctionKind.GARBAGE):
            loop.work(50)

    found = diagnosed(step)
    assert not found.findings
    assert "R23" in [each.id for each in found.small]
    assert "small things: R23 Python collects garbage" in found.page()


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_gpu_that_works_is_fine_and_the_limit_is_named():
    found = diagnosed(lambda loop, number: compute(loop))
    assert (found.verdict, found.findings, found.doubts) == ("fine", (), ())
    assert "the limit is matmul, conv on tensor cores (99 %)" in found.summary


@pytest.mark.parametrize(
    ("kernel", "shorter"),
    [
        ("nvjet_hsh_128x256", "bfloat16 or FP8"),
        ("sm90_xmma_fprop_implicit_gemm_bf16f32", "depthwise separable convolutions"),
        ("vectorized_layer_norm_kernel", "in-place operations"),
        ("flash_fwd_kernel", ""),
    ],
)
def test_a_gpu_that_works_is_told_what_shortens_its_limit(kernel, shorter):
    found = diagnosed(lambda loop, number: compute(loop, name=kernel))
    assert found.verdict == "fine", str(found)
    assert shorter in found.summary.partition("; what shortens it: ")[2]
    assert bool(shorter) == ("what shortens it" in found.summary)
    assert "fine: the GPU works 99 % of the time" in found.page()


def test_a_gpu_that_is_idle_for_no_known_cause_is_not_fine():
    def hold_back(tables, info):
        kernels = tables["kernel"]
        kernels["duration_ns"] = [duration // 2 for duration in kernels["duration_ns"]]

    found = diagnosed(lambda loop, number: compute(loop), change=hold_back)
    assert (found.verdict, found.findings) == ("not enough evidence", ())
    assert "the GPU is idle 50 % of the time, and no rule says why" in found.doubts[0]
    assert "queued, held back on the GPU" in found.doubts[0]


def test_a_cause_in_each_fourth_step_alone_is_found():
    def step(loop, number):
        compute(loop)
        loop.wait()
        with loop.at("train.py", 48), loop.region("load", RegionKind.REGION):
            loop.work(3000 if number % 4 == 0 else 1)

    found = diagnosed(step, 40)
    assert found.findings[0].id == "R01"
    assert found.findings[0].share == pytest.approx(0.42, abs=0.03)


def test_missing_records_are_not_enough_evidence():
    def lose(tables, info):
        info["audit.missing"] = "5"

    found = diagnosed(lambda loop, number: compute(loop), change=lose)
    assert found.verdict == "not enough evidence"
    assert "INCOMPLETE" in found.doubts[0]


def slow(tables, info):
    info["audit.overhead_ns"] = str(10**7)


def test_a_recording_that_took_long_itself_is_not_enough_evidence():
    def step(loop, number):
        compute(loop, 5)
        loop.wait()
        with loop.at("train.py", 30):
            loop.work(60 if number % 2 else 30)

    (doubt,) = diagnosed(step, change=slow).doubts
    assert re.match(r"recording took \d+ % of the time, which slowed the host down", doubt)
    assert "without with_stack and record_shapes it takes less" in doubt
    assert not any(doubt.startswith("recording took ") for doubt in diagnosed(step).doubts)


def test_a_recording_that_took_long_of_a_host_that_is_ahead_is_evidence():
    found = diagnosed(lambda loop, number: compute(loop), change=slow)
    assert (found.verdict, found.doubts) == ("fine", ())


def test_a_recording_that_took_long_while_kernels_were_queued_is_evidence():
    found = diagnosed(lambda loop, number: compute(loop, 100, gpu=15.0, host=3.0), change=slow)
    assert found.breakdown.devices[0].idle_ns > 0.02 * found.breakdown.wall_ns
    assert not any(doubt.startswith("recording took ") for doubt in found.doubts), found


@pytest.mark.parametrize(("count", "said"), [(1, "one step cannot show"), (2, "2 steps cannot show")])
def test_few_steps_are_not_enough_evidence(count, said):
    found = diagnosed(lambda loop, number: compute(loop), count)
    assert found.verdict == "not enough evidence"
    assert any(said in doubt for doubt in found.doubts)


def test_a_fault_in_one_step_is_told_with_its_doubt():
    def step(loop, number):
        compute(loop, 100, 2, host=10)

    found = diagnosed(step, 1)
    assert (found.verdict, found.findings[0].id) == ("findings", "R19")
    assert found.findings[0].interval is None or found.findings[0].interval[0] > 0
    assert found.doubts


def test_totals_alone_say_what_to_record():
    found = diagnose(aggregate())
    assert (found.verdict, found.findings) == ("not enough evidence", ())
    assert 'record with mode="full" or "ring"' in found.page()


def test_an_empty_recording_is_not_enough_evidence():
    assert diagnose(make_trace({}, info={})).verdict == "not enough evidence"


def test_without_a_gpu_causes_of_the_host_are_found_and_the_rest_is_said():
    loop = Loop()
    for _ in loop.steps(12):
        with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            loop.work(600)
        loop.work(400)
    found = diagnose(make_trace(loop.tables(), info=dict(loop.trace().info)))
    assert {each.id for each in found.findings if each.severity != "info"} == {"R02"}
    assert found.findings[0].share == pytest.approx(0.6, abs=0.01)
    assert "no GPU work" in found.page()


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (1_000_000, "60 % of the run is spent in load (run.py:7)"),
        (100_000, "no function of the program takes 20 % of the run; other: 94 %"),
    ],
)
def test_without_gpu_work_the_functions_are_named_that_took_the_time(ms, said):
    samples = {"start_ns": [0, 60 * ms], "duration_ns": [60 * ms, 30 * ms], "stack": [0, 1], "count": [60, 30]}
    found = diagnose(
        make_trace(
            {
                "stack": {
                    "parent": [2**32 - 1] * 2,
                    "function": ["load", "main"],
                    "file": ["a/run.py"] * 2,
                    "line": [7, 9],
                },
                "thread": {"system_id": [7]},
                "python_sample": {**samples, "cpu_ns": samples["duration_ns"], "thread": [0, 0]},
            },
            info={"session.start_ns": "0", "session.stop_ns": "100000000"},
        )
    )
    assert found.summary == said


def test_a_function_that_writes_while_the_gpu_waits_is_named():
    def step(loop, number):
        compute(loop)
        loop.wait()
        since = loop.now
        with loop.function("train.py(45): save"), loop.function("<built-in method write of _io.FileIO>"):
            loop.work(2000)
        with loop.at("train.py", 46, "save"):
            loop.sampled(since, 1.0, looks=100)

    finding = next(each for each in diagnosed(step).findings if each.id == "R26")
    assert finding.title == "save (train.py:46) reads or writes while the GPU waits"


def test_files_are_read_between_no_launches_where_there_is_no_gpu():
    loop = Loop()
    for _ in loop.steps(14):
        with loop.function("<built-in method write of _io.BufferedWriter object>"):
            loop.work(600)
        loop.work(400)
    (finding,) = diagnose(loop.trace()).findings
    assert finding.title == "files or sockets are read or written in the steps"


def test_a_number_and_its_sign_stay_on_one_line():
    page = diagnosed(lambda loop, number: (loop.work(300), compute(loop))).page(60)
    assert not [line for line in page.splitlines() if line.strip().startswith("%")]


def test_a_program_without_anything_is_not_enough_evidence():
    found = diagnose(
        make_trace({}, info={"session.stop_ns": "1000", "session.tier_reason": "no NVIDIA driver was found"})
    )
    assert found.verdict == "not enough evidence"
    assert any("no NVIDIA driver was found" in doubt for doubt in found.doubts)


def test_of_several_gpus_the_busiest_is_diagnosed():
    def second(tables, info):
        kernels = tables["kernel"]
        tables["track"] = {"device": [0, 1], "context": [1, 2], "stream": [7, 7]}
        tables["device"] = {name: values * 2 for name, values in tables["device"].items()}
        tables["device"]["ordinal"] = [0, 1]
        kernels["track"] = [at % 2 if at % 10 == 1 else 0 for at in range(len(kernels["track"]))]

    found = diagnosed(lambda loop, number: compute(loop), change=second)
    assert any("those of GPU 0, the busiest" in each for each in found.unseen)
    assert "R47" in [each.id for each in found]


def test_what_was_not_recorded_is_named_with_its_option():
    found = diagnosed(lambda loop, number: compute(loop))
    assert any("--with-stack" in each for each in found.unseen)
    assert any("--profile-memory" in each for each in found.unseen)


def test_where_no_model_reproduces_the_program_nothing_is_promised():
    def sleepy(loop, number):
        with loop.at("train.py", 48), loop.region("load", RegionKind.REGION):
            loop.work(1000)
        compute(loop)
        loop.wait()

    def without_launches(tables, info):
        first = tables["api"]["call"].index(0)
        for column in tables["api"].values():
            del column[first : first + 20]
        tables.pop("call_stack")
        info["audit.launches"] = "3"

    diagnosis = diagnosed(sleepy, change=without_launches)
    first = diagnosis.findings[0]
    assert any(each.startswith("no saving is known: the launches of") for each in diagnosis.doubts)
    assert (first.id, first.saving, first.interval, first.alone) == ("R01", None, None, None)
    assert first.worth() == "49 % of the time"


def test_what_is_not_promised_is_not_critical():
    def step(loop, number):
        with loop.at("train.py", 48), loop.region("load", RegionKind.REGION):
            loop.work(1000)

    (finding,) = (each for each in diagnosed(step).findings if each.id != "R51")  # without a GPU there is no model
    assert (finding.saving, finding.severity) == (None, "warn")
    assert finding.share > 0.9


# -- asking ------------------------------------------------------------------------------------------------------------


def test_findings_are_asked_for_by_id_and_severity():
    found = diagnosed(lambda loop, number: compute(loop, 100, 2, host=10))
    assert all(found.matches([wanted]) for wanted in ("R19", "critical", "warn"))
    assert not found.matches(["R09", "R49", "R50"])
    assert diagnosed(lambda loop, number: compute(loop)).matches(["R49"])
    assert diagnose(aggregate()).matches(["R50"])


def test_names_that_are_asked_for_are_checked_and_the_nearest_offered():
    assert check_wanted(["r09", "CRITICAL", "R9"]) == ("R09", "critical", "R09")
    with pytest.raises(InvalidArgument, match="fail_on contains 'critcal'; did you mean critical"):
        check_wanted(["critcal"])
    with pytest.raises(InvalidArgument, match="fail_on contains 'everything'; accepted are critical, warn, info, R01"):
        check_wanted(["everything"])


def test_each_rule_has_an_id_that_can_be_asked_for():
    assert {rule.id for rule in RULES} < set(known_findings())
    assert {"R49", "R50"} < set(known_findings())


def test_the_findings_that_the_docs_name_exist():
    pages = (Path(__file__).resolve().parents[3] / "docs").rglob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "R39" in text
    assert set(re.findall(r"\bR\d\d\b", text)) <= set(known_findings())


@least_disturbed
def test_a_profiler_and_a_recording_are_diagnosed_alike(tmp_path):
    with gpuscope.profile() as prof:
        for _ in range(4):
            with gpuscope.record_function("load"):
                time.sleep(0.003)
            prof.step()
    prof.save(tmp_path / "run.gscope")
    found = prof.diagnose()
    assert {each.id for each in found.findings if each.severity != "info"} == {"R01"}
    assert gpuscope.load(tmp_path / "run.gscope").diagnose().to_dict() == found.to_dict()


# -- text and JSON -----------------------------------------------------------------------------------------------------


def everything(loop, number):
    with loop.at("/a/very/long/path/of/a/program/train.py", 48), loop.region("x" * 90, RegionKind.REGION):
        loop.work(400)
    with loop.region("y" * 70), loop.region("aten::to"), loop.region("aten::copy_"):
        loop.launch(ADD, 300, 20, grid_x=8)
    compute(loop, 100, 4, host=12, grid_x=16)
    loop.copy(8 * MIB, 400)
    loop.wait()


@pytest.mark.parametrize("width", [10, 40, 60, 80, 120])
def test_the_page_fits_the_terminal(width):
    found = diagnosed(everything)
    assert len(found.findings) >= 2
    assert max(map(len, found.page(width).splitlines())) <= max(width, 40) or "x" * 41 in found.page(width)


def test_names_of_the_program_cannot_command_the_terminal():
    def step(loop, number):
        with loop.region("load\x1b[31m data\n", RegionKind.REGION):
            loop.work(10)
        with loop.region("data", RegionKind.REGION), loop.region("\x1b]0;x\x07", RegionKind.REGION):
            loop.work(1000)
        compute(loop)
        loop.wait()

    assert "\x1b" not in str(diagnosed(step))
    assert "\x1b" not in diagnosed(step).page()


def test_the_json_has_what_the_page_says():
    found = diagnosed(everything)
    values = json.loads(found.to_json())
    assert values["verdict"] == "findings"
    assert [each["id"] for each in values["findings"]] == [each.id for each in found.findings]
    (launches,) = (each for each in values["findings"] if each["id"] == "R19")
    assert launches["where"][0] == {
        "file": "train.py",
        "line": 20,
        "function": "step",
        "region": None,
        "kernel": None,
    }
    assert values["steps"]["steps"] == 10
    page = " ".join(str(found).split())
    assert all(", ".join(each["evidence"]) in page for each in values["findings"])


def test_evidence_without_a_name_is_a_text_of_its_own_in_json():
    texts = [text for each in diagnosed(everything) for text in each.to_dict()["evidence"]]
    assert "8.00 MiB a step at 21.0 GB/s" in texts
    assert "not overlapped 100 %" in texts


def test_saving_and_interval_are_shares():
    for finding in diagnosed(everything):
        assert finding.saving is None or 0 <= finding.saving <= 1
        if finding.interval is not None:
            assert 0 <= finding.interval[0] <= finding.interval[1] <= 1


def test_random_damage_of_references_breaks_nothing():
    loop = Loop()
    for number in loop.steps(8):
        everything(loop, number)
    tables, info = loop.tables(), dict(loop.trace().info)
    rng = np.random.default_rng(1)
    for _ in range(20):
        damaged = {name: {column: list(values) for column, values in table.items()} for name, table in tables.items()}
        for name in ("kernel", "memcpy", "api"):
            rows = rng.integers(0, len(damaged[name]["correlation"]), 5).tolist()
            for row in rows:
                damaged[name]["correlation"][row] = int(rng.integers(0, 2000))
                damaged[name]["start_ns"][row] = int(rng.integers(0, 10**8))
        with contextlib.suppress(InvalidArgument):
            assert diagnose(make_trace(damaged, info=info)).page()


def test_the_profiler_s_own_time_between_steps_is_no_part_of_what_a_fault_costs():
    loop, edges = Loop(), []
    for _ in range(14):
        compute(loop, 10, 100)
        loop.wait()
        loop.work(300 + 100)
        edges.append(loop.now)
    words = [edges[0], *(after - before for before, after in itertools.pairwise(edges))]
    loop.info = {
        "session.step_edges_ns": " ".join(map(str, words)),
        "session.step_costs_ns": " ".join(["100000"] * len(words)),
        "session.step_thread": "1",
    }
    found = diagnose(loop.trace())
    (finding,) = found.findings
    assert (finding.id, finding.saving) == ("R16", pytest.approx(1 - 1010 / 1317, abs=0.01))
    own = {part.name: part.exclusive_ns for part in found.breakdown.devices[0].parts}["profiler overhead"]
    assert own / len(found.breakdown.steps) == pytest.approx(100_000, rel=0.01)


# -- what the recording itself took ------------------------------------------------------------------------------------


def of_operators(loop, number):
    """The GPU works for a while, and then waits for each of many small operators."""
    compute(loop, 10, gpu=200)
    loop.wait()
    for _ in range(60):
        with loop.at("train.py", 40), loop.region("aten::add"):
            loop.launch(gpu=2, host=8)
            loop.work(8)


def of_a_loader(loop, number):
    """The host waits for data, and launches what follows."""
    with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        loop.work(1500)
    compute(loop, 10, gpu=100)


def saved(step, **costs):
    def recorded(tables, info):
        info.update({f"audit.{event}_cost_ns": str(cost) for event, cost in costs.items()})

    return diagnosed(step, change=recorded).findings[0].saving


def test_no_fix_saves_what_the_recording_took():
    assert saved(of_operators, launch=2000, region=1000) < saved(of_operators) - 0.02


def test_a_program_that_waits_for_data_waits_longer_where_nothing_records_it():
    assert saved(of_a_loader, launch=2000, region=1000) == pytest.approx(saved(of_a_loader))


def test_a_loader_in_the_training_thread_takes_as_long_where_nothing_records_it():
    """The GPU has work for 1040 us; the host for 1120, and for 120 more that recording took of it."""

    def step(loop, number):
        with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            loop.work(1000)
        compute(loop, 10, gpu=103, host=12 + 12)

    assert saved(step, launch=12_000) == pytest.approx(1 - 1040 / 1120, abs=0.01)


def test_of_two_loaders_the_one_with_workers_is_waited_for_longer_where_nothing_records_it():
    def step(loop, number):
        for iterator, us in (("_SingleProcess", 300), ("_MultiProcessing", 1200)):
            with loop.at("train.py", 48), loop.region(f"enumerate(DataLoader)#{iterator}DataLoaderIter.__next__"):
                loop.work(us)
        compute(loop, 10, gpu=100)
        loop.wait()

    assert saved(step, launch=2000, region=20_000) == pytest.approx(saved(step))


@pytest.mark.parametrize(
    ("function", "host_us"),
    [("torch/serialization.py(961): save", 1120), ("<built-in method recv_into of _socket.socket>", 1240)],
)
def test_a_file_takes_as_long_where_nothing_records_it_and_a_socket_waits_longer(function, host_us):
    """The GPU has work for 1040 us and the host for 1120, and for 120 more where launches take twice as long."""

    def step(loop, number):
        with loop.at("train.py", 66), loop.function(function):
            loop.work(1000)
        compute(loop, 10, gpu=103, host=12 + 12)

    assert saved(step, launch=12_000) == pytest.approx(1 - 1040 / host_us, abs=0.01)
