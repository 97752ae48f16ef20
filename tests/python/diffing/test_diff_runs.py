# SPDX-License-Identifier: Apache-2.0
"""What `diff` says of recordings without steps: run times, functions, regions; and when it says nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuscope as gs
from fakes.loops import Loop
from fakes.versions import SAMPLED, program, version
from gpuscope.diffing import Change, Diff
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.recording import Recording

BEFORE = {"parse": 1000.0, "clean": 2600.0, "report": 400.0}
"""What functions take in a run, in ms."""


def regions(spans: Mapping[str, float]) -> Recording:
    """A run without steps whose regions take so many ms, each once, without samples."""
    loop = Loop(info={"session.tier": "cpu"})
    for name, ms in spans.items():
        with loop.region(name):
            loop.work(1000 * ms)
    return Recording(loop.trace().store)


def changed(found: Diff) -> dict[str, Change]:
    return {change.name: change for change in found.changes}


def test_a_faster_program_says_so_in_the_first_line_and_names_the_function_and_the_line() -> None:
    found = gs.diff(program(BEFORE), program({**BEFORE, "clean": 40.0}, file="etl_2.py", seed=1))
    first, second, *_ = str(found).splitlines()
    assert first == f"2.8 times faster: {found.step.before_ns / 1e9:.2f} s -> {found.step.after_ns / 1e9:.2f} s"
    assert second.startswith("clean (etl.py:20) changed most: 2.6")
    assert found.verdict == "faster"
    assert list(changed(found)) == ["clean"]
    assert changed(found)["clean"].delta_ns == pytest.approx(-2560e6, rel=0.05)


def test_a_slower_program_fails_a_gate_and_a_faster_one_does_not() -> None:
    before, after = program(BEFORE), program({**BEFORE, "parse": 5000.0}, seed=1)
    assert gs.diff(before, after).fails(0.2)
    assert not gs.diff(after, before).fails(0.2)
    assert "2.0 times slower" in str(gs.diff(before, after))


def test_findings_about_own_functions_are_compared_and_are_no_promises() -> None:
    before = program(BEFORE)
    assert "R51" in [finding.id for finding in before.diagnose()]
    assert gs.diff(before, program(BEFORE, seed=1)).promises == ()


def test_a_recording_with_itself_is_the_same_in_run_time_and_functions() -> None:
    recording = program(BEFORE)
    found = gs.diff(recording, recording)
    assert str(found).startswith("same: run time 4.0")
    assert (found.verdict, found.unit, found.changes) == ("same", "run", ())
    assert {node.verdict for node in found.nodes if node.name in BEFORE} == {"same"}
    assert not found.fails(0.01)


def test_single_runs_are_the_same_below_ten_percent_unless_a_margin_is_given() -> None:
    sides = program(BEFORE), program({name: 1.07 * ms for name, ms in BEFORE.items()}, seed=1)
    found = gs.diff(*sides)
    assert (found.verdict, found.margin) == ("same", 0.1)
    assert not found.fails(0.05)
    assert any("one run each was compared" in doubt and "below 10 %" in doubt for doubt in found.doubts)
    assert gs.diff(*sides, margin=0.02).verdict == "slower"


def test_functions_add_up_to_the_run() -> None:
    found = gs.diff(program(BEFORE), program({**BEFORE, "clean": 40.0}))
    for side in ("before_ns", "after_ns"):
        parts = sum(getattr(node, side) for node in found.nodes if node.kind == "function")
        assert parts == pytest.approx(getattr(found.step, side), rel=0.01)


def test_phases_that_come_one_after_the_other_are_no_noise() -> None:
    """Each function has one stretch of the run: from piece to piece it is there or not."""
    found = gs.diff(program(BEFORE, rounds=1), program({**BEFORE, "report": 600.0}, rounds=1, seed=1))
    change = changed(found)["report"]
    assert change.verdict == "slower"
    assert change.interval_ns[0] < 200e6 < change.interval_ns[1]


def test_intervals_of_few_samples_are_wide() -> None:
    few = [program({"parse": 30.0, "clean": 30.0}, rounds=5, seed=seed) for seed in (1, 2)]
    many = [program({"parse": 30.0, "clean": 30.0}, rounds=5, seed=seed, look_ms=0.1) for seed in (1, 2)]
    widths = [
        np.diff(next(node for node in gs.diff(*sides).nodes if node.name == "parse").interval_ns)[0]
        for sides in (few, many)
    ]
    assert widths[0] > widths[1]


def test_a_dominant_change_is_certain_among_many_small_functions() -> None:
    """Equal shares of the level for each of 400 functions would leave the large one uncertain."""
    small = {f"helper_{chr(97 + n // 20)}{chr(97 + n % 20)}": 4.0 for n in range(400)}
    found = gs.diff(program({"clean": 600.0, **small}, rounds=3), program({"clean": 300.0, **small}, rounds=3, seed=1))
    assert found.changes[0].name == "clean"
    assert "clean" not in {node.name for node in found.uncertain}


def test_certain_changes_come_first_and_no_uncertain_interval_leaves_out_zero() -> None:
    noisy = {f"helper_{chr(97 + n)}": 30.0 for n in range(20)}
    found = gs.diff(program({**BEFORE, **noisy}), program({**BEFORE, **noisy, "clean": 3400.0}, seed=5))
    certain = [node.verdict not in ("inconclusive", "same") for node in found.nodes]
    assert certain == sorted(certain, reverse=True)
    uncertain = [node for node in found.nodes if node.verdict == "inconclusive"]
    assert len(uncertain) > 10
    assert all(node.interval_ns[0] <= 0 <= node.interval_ns[1] for node in uncertain)
    nearest = [node.size_ns[0] for node in uncertain]
    assert nearest == sorted(nearest, reverse=True)


def test_a_function_that_moved_to_another_file_is_the_same_one() -> None:
    loop_functions = {"parse": 500.0, "clean": 500.0}
    found = gs.diff(program(loop_functions, file="a.py"), program(loop_functions, file="b.py", seed=1))
    assert found.shared == 1.0
    assert {node.name for node in found.nodes} == {"parse", "clean", "(in no function)"}


def test_waits_for_a_cpu_that_other_processes_had_are_left_out() -> None:
    busy = {"machine.cpus": "2", "machine.cpus_busy": "2.0", "host.thread_waits": "recorded"}

    found = gs.diff(*(program(BEFORE, seed=int(ms), waits_ms=ms, info=busy) for ms in (0.0, 3000.0)))
    assert found.after.waited_ns == pytest.approx(3e9, rel=0.01)
    assert found.verdict != "slower"
    assert not found.changes
    assert "without waits for a CPU" in str(found)
    assert any("3.00 s after" in doubt for doubt in found.doubts)


def test_regions_without_samples_are_compared_and_functions_are_said_not_to_be() -> None:
    found = gs.diff(regions({"load": 100, "train": 900}), regions({"load": 100, "train": 300}))
    assert changed(found)["train"].delta_ns == pytest.approx(-600e6)
    assert found.verdict == "faster"
    (why,) = found.not_compared
    assert why == "functions: the recording before has no samples of Python (python_samples=True)"
    assert f"not compared: {why}" in str(found)


def test_with_nothing_but_run_times_nothing_else_is_called_the_same() -> None:
    found = gs.diff(bare(100.0), bare(100.0))
    text = str(found)
    assert text.startswith("same: run time 100 ms -> 100 ms")
    assert "no node changed" not in text
    assert "not compared: what the time is spent on" in text
    assert "nothing shows that both are versions of one program" in text


def bare(ms: float, info: Mapping[str, str] | None = None) -> Recording:
    loop = Loop(info={"session.tier": "cpu", **(info or {})})
    loop.work(1000 * ms)
    return Recording(loop.trace().store)


def test_three_samples_compare_no_functions() -> None:
    found = gs.diff(program({"parse": 2.9}, rounds=1), program(BEFORE))
    assert "functions: the recording before has 3 samples of Python; 20 are the least" in found.not_compared
    assert not any(node.kind == "function" for node in found.nodes)


def test_a_ring_compares_no_functions() -> None:
    ring = program(BEFORE, info={"session.mode": "ring", "audit.evicted": "500"})
    assert any("keeps only its latest part" in why for why in gs.diff(program(BEFORE), ring).not_compared)


def test_other_sampling_intervals_are_told_and_compared() -> None:
    found = gs.diff(program(BEFORE), program(BEFORE, look_ms=10.0, info={"samples.interval_ns": "10000000"}, seed=1))
    assert "time between samples of Python: 1.00 ms before, 10.0 ms after" in found.unlike
    assert found.verdict == "same"
    assert not found.changes


def test_programs_that_share_little_have_no_verdict() -> None:
    found = gs.diff(program(BEFORE), program({"sieve": 500.0, "report": 50.0}, file="primes.py"))
    assert (found.verdict, found.changes, found.uncertain, found.promises) == ("not comparable", (), (), ())
    assert {node.verdict for node in found.nodes} == {"not comparable"}
    assert str(found).startswith("not comparable: functions, regions and kernels that both have take 10 % of the time")
    assert "faster" not in str(found)
    with pytest.raises(InvalidArgument, match=r"fail_over is for versions of one program; not comparable"):
        found.fails(0.05)


def test_programs_of_other_kernels_and_no_common_region_are_not_comparable() -> None:
    found = gs.diff(version({"gemm": 4e6}), regions({"load": 100.0, "train": 900.0}))
    assert found.verdict == "not comparable"


def test_most_of_one_side_in_common_is_enough() -> None:
    """What takes three quarters of the time may be gone."""
    found = gs.diff(program(BEFORE), program({name: BEFORE[name] for name in ("parse", "report")}))
    assert found.matched == pytest.approx(0.35, abs=0.02)
    assert changed(found)["clean"].verdict == "gone"
    assert found.verdict == "faster"


def test_a_side_with_steps_and_one_without_are_compared_as_runs() -> None:
    found = gs.diff(version({"gemm": 4e6}, steps=30), version({"gemm": 4e6}, steps=1, info={}))
    assert found.unit == "step"
    stepless = gs.diff(version({"gemm": 4e6}), [version({"gemm": 4e6}), bare(100.0)])
    assert stepless.unit == "run"
    assert any("no steps are known after" in doubt for doubt in stepless.doubts)


def test_three_runs_a_side_are_replicates() -> None:
    speeds = (1.0, 1.08, 0.95)
    before = [program({name: speed * ms for name, ms in BEFORE.items()}, seed=n) for n, speed in enumerate(speeds)]
    after = [program({"parse": speed * 1000, "clean": 40.0, "report": 400}, seed=n) for n, speed in enumerate(speeds)]
    found = gs.diff(before, after)
    assert (found.replicates, found.verdict, found.margin) == ("runs", "faster", 0.02)
    assert not any("one run each" in doubt for doubt in found.doubts)
    assert gs.diff(before, before[::-1]).verdict != "slower"


def test_forms_hold_the_places_and_what_was_not_compared(tmp_path: Path) -> None:
    found = gs.diff(program(BEFORE), program({**BEFORE, "clean": 40.0}))
    read = json.loads(found.to_json(tmp_path / "diff.json"))
    assert (read["unit"], read["summary"], read["not_compared"]) == ("run", found.sentence, [])
    assert read["changes"][0]["where_before"] == "etl.py:20"
    assert set(found.to_pandas().kind) == {"run", "function"}
    assert found.markdown().startswith("**2.8 times faster")
    assert "| clean (etl.py:20) |" in found.markdown()


def test_steps_without_gpu_work_compare_functions() -> None:
    def stepped(clean_us: float, seed: int) -> Recording:
        random, loop = np.random.default_rng(seed), Loop(info={**SAMPLED, "session.tier": "cpu"})
        for _ in loop.steps(20):
            for line, name, us in ((10, "parse", 5000), (20, "clean", clean_us)):
                with loop.at("etl.py", line, name):
                    since = loop.now
                    loop.work(us * (1 + 0.02 * random.standard_normal()))
                    loop.sampled(since, 1.0, looks=5)
        return Recording(loop.trace().store)

    found = gs.diff(stepped(5000, 1), stepped(9000, 2))
    assert found.unit == "step"
    assert changed(found)["clean"].delta_ns == pytest.approx(4e6, rel=0.15)
    assert found.head()[1].endswith(": slower")


def test_regions_nested_deeper_than_any_program_are_compared_in_bounded_memory() -> None:
    def nested(count: int) -> Any:
        with gs.profile() as prof:
            opened = [gs.record_function(f"level {depth}") for depth in range(count)]
            for each in opened:
                each.__enter__()
            for each in reversed(opened):
                each.__exit__(None, None, None)
        return prof

    found = gs.diff(nested(1500), nested(1500), findings=False)
    assert max(len(node.path) for node in found.nodes) < 600
    assert len(found.to_html()) < 50_000_000


def test_a_damaged_side_is_refused_and_a_cut_one_is_said_not_to_be_compared(tmp_path: Path) -> None:
    program(BEFORE).save(tmp_path / "whole.gscope")
    whole = (tmp_path / "whole.gscope").read_bytes()
    (tmp_path / "damaged.gscope").write_bytes(b"x" * 200)
    (tmp_path / "cut.gscope").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptTrace):
        gs.diff(tmp_path / "whole.gscope", tmp_path / "damaged.gscope")
    found = gs.diff(tmp_path / "whole.gscope", tmp_path / "cut.gscope")
    assert any("functions: the recording after is damaged" in why for why in found.not_compared)
    assert not any(math.isnan(value) for value in found.step.interval_ns)
