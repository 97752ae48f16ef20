# SPDX-License-Identifier: Apache-2.0
"""What `diff` says of recordings whose every difference is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes.loops import Loop
from fakes.versions import version
from gpuscope.diagnosis.context import Where
from gpuscope.diagnosis.findings import Diagnosis, Finding
from gpuscope.diffing import Change, Diff
from gpuscope.diffing.changes import promises_of
from gpuscope.errors import CorruptTrace, InvalidArgument, NotAvailable
from gpuscope.recording import Recording
from gpuscope.text import columns_of

MS = 1e6
KERNELS = {"gemm": 4 * MS, "relu": 1 * MS, "norm": 2 * MS, "small*20": 0.05 * MS}


def by_name(found: Diff) -> dict[str, Change]:
    return {change.name: change for change in found.changes}


def test_equal_programs_have_no_difference() -> None:
    found = gs.diff(version(KERNELS, seed=1), version(KERNELS, seed=2))
    assert not found.changes
    assert found.verdict == "same"
    assert found.matched == 1.0
    assert not found.fails(0.01)
    assert "no node changed" in str(found)


def test_a_slower_kernel_is_named_with_what_it_costs() -> None:
    found = gs.diff(version(KERNELS, seed=1), version({**KERNELS, "gemm": 4.8 * MS}, seed=2))
    (change,) = found.changes
    assert (change.name, change.verdict, change.path) == ("gemm", "slower", ("forward",))
    assert change.delta_ns == pytest.approx(0.8 * MS, rel=0.1)
    assert change.interval_ns[0] < 0.8 * MS < change.interval_ns[1]
    assert change.more_often_ns == 0
    assert found.step.delta_ns == pytest.approx(0.8 * MS, rel=0.1)
    assert found.verdict == "slower"
    assert found.fails(0.05)
    assert not found.fails(0.2)


def test_more_often_is_told_from_slower() -> None:
    before = version(KERNELS, seed=1)
    more = {"gemm": 4 * MS, "relu": 1 * MS, "norm": 2 * MS, "small*30": 0.05 * MS}
    change = by_name(gs.diff(before, version(more, seed=2)))["small"]
    assert change.verdict == "more often"
    assert (change.count_before, change.count_after) == (20, 30)
    assert change.more_often_ns == pytest.approx(0.5 * MS, rel=0.05)
    assert abs(change.slower_ns) < 0.05 * MS
    fewer = by_name(gs.diff(version(more, seed=2), before))["small"]
    assert fewer.verdict == "less often"


def test_what_came_and_what_went_are_named() -> None:
    fused = {"gemm": 4 * MS, "fused": 1.5 * MS, "small*20": 0.05 * MS}
    found = gs.diff(version(KERNELS, seed=1), version(fused, seed=2))
    names = by_name(found)
    assert {name: names[name].verdict for name in ("fused", "relu", "norm")} == {
        "fused": "new",
        "relu": "gone",
        "norm": "gone",
    }
    assert found.verdict == "faster"


def test_names_that_compilers_number_are_the_same_kernels() -> None:
    found = gs.diff(
        version({"triton_poi_3": 2 * MS, "triton_red_4": 2 * MS}, seed=1),
        version({"triton_poi_7": 3 * MS, "triton_red_9": 2 * MS}, seed=2),
    )
    (change,) = found.changes
    assert (change.name, change.was, change.verdict) == ("triton_poi_7", "forward/triton_poi_3", "slower")
    assert found.matched == 1.0


def test_idle_time_is_named_by_its_cause() -> None:
    found = gs.diff(version(KERNELS, seed=1), version(KERNELS, seed=2, waits_ns=2 * MS))
    assert found.step.delta_ns == pytest.approx(2 * MS, rel=0.1)
    assert {change.kind for change in found.changes} <= {"idle", "host"}
    assert sum(change.delta_ns for change in found.nodes if change.kind == "idle") == pytest.approx(2 * MS, rel=0.1)
    busy_ns = found.after.busy_ns - found.before.busy_ns
    assert abs(busy_ns) < 0.1 * MS


def test_a_host_that_runs_ahead_is_judged_by_what_it_launched() -> None:
    """The host's own steps are a tenth of what the GPU takes for them."""

    def ahead(kernel_ns: float, seed: int) -> Any:
        recording = version({"gemm": kernel_ns}, seed=seed, steps=20)
        regions = recording.trace.regions
        steps = regions.parent == 0xFFFFFFFF
        assert steps.sum() == 20
        return recording

    found = gs.diff(ahead(4 * MS, 1), ahead(5 * MS, 2))
    assert found.step.before_ns == pytest.approx(4 * MS, rel=0.05)


def test_differences_of_kinds_add_up() -> None:
    found = gs.diff(version(KERNELS, seed=1), version({**KERNELS, "relu": 2 * MS}, seed=2, waits_ns=1 * MS))
    gpu = sum(change.delta_ns for change in found.nodes if change.kind == "gpu")
    idle = sum(change.delta_ns for change in found.nodes if change.kind == "idle")
    assert gpu + idle == pytest.approx(found.step.delta_ns, abs=0.01 * MS)


def test_less_than_the_margin_is_the_same() -> None:
    before, after = version(KERNELS, seed=1, noise=0.001), version({**KERNELS, "gemm": 4.04 * MS}, seed=2, noise=0.001)
    assert not gs.diff(before, after).changes
    assert by_name(gs.diff(before, after, margin=0.005))["gemm"].verdict == "slower"


def test_a_few_steps_are_inconclusive_and_say_so() -> None:
    found = gs.diff(version(KERNELS, seed=1, steps=1), version({**KERNELS, "gemm": 9 * MS}, seed=2, steps=1))
    assert found.verdict == "inconclusive"
    assert not found.fails(0.01)
    assert any("fewer than" in doubt for doubt in found.doubts)


def test_noise_of_many_nodes_names_none() -> None:
    """Four nodes in a hundred would be false at 5 % each."""
    kernels = {f"kernel_{chr(97 + number // 26)}{chr(97 + number % 26)}": 0.1 * MS for number in range(200)}
    named = sum(
        bool(gs.diff(version(kernels, seed=2 * n, noise=0.1), version(kernels, seed=2 * n + 1, noise=0.1)).changes)
        for n in range(10)
    )
    assert named <= 2


def test_a_dominant_change_is_not_hidden_by_many_small_nodes() -> None:
    """Of 300 equal parts of the level, none would let six noisy steps show a quarter more."""
    small = {f"kernel_{chr(97 + number // 26)}{chr(97 + number % 26)}": 0.005 * MS for number in range(300)}
    found = gs.diff(
        version({"gemm": 4 * MS, **small}, seed=1, steps=10, noise=0.1),
        version({"gemm": 5.4 * MS, **small}, seed=2, steps=10, noise=0.1),
    )
    assert found.changes[0].name == "gemm"
    assert "gemm" not in {node.name for node in found.uncertain}


def test_what_hardly_takes_time_is_not_named_and_its_interval_does_not_leave_out_zero() -> None:
    before, after = ({"gemm": 4 * MS, "tiny": ns} for ns in (500.0, 1000.0))
    found = gs.diff(version(before, seed=1, noise=0.001), version(after, seed=2, noise=0.001))
    (tiny,) = (node for node in found.nodes if node.name == "tiny")
    assert tiny.verdict == "inconclusive"
    assert tiny.interval_ns[0] <= 0 <= tiny.interval_ns[1]


def test_slow_drift_is_no_change() -> None:
    """Ten steps of a phase are ten looks at one state and not ten states."""

    def phases(seed: int) -> Any:
        return version(KERNELS, seed=seed, steps=60, noise=0.005, slow_steps=lambda step: 1.0 + 0.1 * (step // 20 == 1))

    def other(seed: int) -> Any:
        return version(KERNELS, seed=seed, steps=60, noise=0.005, slow_steps=lambda step: 1.0 + 0.1 * (step // 20 == 0))

    assert gs.diff(phases(1), other(2)).verdict != "slower"
    assert gs.diff(phases(1), other(2)).verdict != "faster"


def test_several_runs_a_side_are_compared_as_runs() -> None:
    """Runs differ by 10 %, steps by 0.5 %: the steps alone would be sure of a difference."""
    speeds = (1.0, 1.1, 0.95, 1.05, 1.02, 0.97)
    runs = [version({"gemm": 4 * MS * speed}, seed=n, noise=0.005) for n, speed in enumerate(speeds)]
    assert gs.diff(runs[0], runs[1]).verdict == "slower"
    found = gs.diff(runs[:3], runs[3:])
    assert found.replicates == "runs"
    assert (found.before.runs, found.after.runs) == (3, 3)
    assert found.verdict == "inconclusive"
    slower = [version({"gemm": 8 * MS * speed}, seed=9 + n, noise=0.005) for n, speed in enumerate(speeds[3:])]
    assert gs.diff(runs[:3], slower).verdict == "slower"


def test_what_is_unlike_is_said_and_another_gpu_fails_no_gate() -> None:
    found = gs.diff(version(KERNELS), version(KERNELS, device="NVIDIA A100", info={"session.mode": "ring"}))
    assert "GPUs: NVIDIA H100 before, NVIDIA A100 after" in found.unlike
    assert "mode: full before, ring after" in found.unlike
    with pytest.raises(InvalidArgument, match="like GPUs"):
        found.fails(0.05)


def test_every_recording_of_a_side_is_asked_for_what_is_unlike() -> None:
    same = [version(KERNELS, seed=seed) for seed in range(3)]
    mixed = [same[0], version(KERNELS, device="NVIDIA A100", info={"session.mode": "ring"}), same[2]]
    found = gs.diff(same, mixed)
    assert "GPUs: NVIDIA H100 before, NVIDIA H100 and NVIDIA A100 after" in found.unlike
    assert "mode: full before, full and ring after" in found.unlike
    with pytest.raises(InvalidArgument, match="like GPUs"):
        found.fails(0.05)


def test_gpus_that_are_mixed_alike_on_both_sides_are_unlike() -> None:
    mixed = [version(KERNELS), version(KERNELS, device="NVIDIA A100")]
    assert gs.diff(mixed, mixed).unlike == (
        "GPUs: NVIDIA H100 and NVIDIA A100 before, NVIDIA H100 and NVIDIA A100 after",
    )


def test_one_recording_without_steps_is_a_comparison_without_steps() -> None:
    with gs.profile() as prof:
        sum(range(100))
    found = gs.diff(version(KERNELS), [version(KERNELS), prof])
    assert found.after.source == "the whole run"
    assert not found.has_steps


def test_steps_that_are_regions_have_no_time_of_their_own_beside_steps_that_are_none() -> None:
    sides = []
    for schedule in (None, gs.schedule(wait=0, warmup=0, active=8, repeat=1)):
        with gs.profile(schedule=schedule) as prof:
            for _ in range(8):
                with gs.record_function("work"):
                    sum(range(100))
                prof.step()
        sides.append(prof)
    found = gs.diff(*sides)
    assert [node.name for node in found.nodes if node.kind == "host"] == ["work"]
    assert "(in no region)" in [node.name for node in gs.diff(sides[1], sides[1]).nodes]


def test_other_programs_are_said_to_be_two() -> None:
    found = gs.diff(version({"gemm": 4 * MS}), version({"sort": 4 * MS}))
    assert found.matched == 0
    assert any("two programs" in doubt for doubt in found.doubts)


def test_no_more_can_be_saved_than_there_was() -> None:
    long, short = {"gemm": 40 * MS}, {"other": 1 * MS}
    found = gs.diff(version(long, seed=1, steps=4, noise=0.5), version(short, seed=2, steps=4))
    for change in (found.step, *found.changes):
        assert change.interval_ns[0] >= -change.before_ns


def test_findings_that_are_gone_have_their_promise_beside_them() -> None:
    slow = version({"gemm": 1 * MS}, seed=1, waits_ns=3 * MS)
    found = gs.diff(slow, version({"gemm": 1 * MS}, seed=2))
    (idle,) = (promise for promise in found.promises if promise.id == "R24")
    assert idle.is_gone
    assert idle.saving == pytest.approx(0.75, abs=0.05)
    (small,) = (promise for promise in found.promises if promise.id == "R29")  # which nobody mended
    assert not small.is_gone
    assert any("is gone" in line for line in found.head())
    assert not gs.diff(slow, slow, findings=False).promises


@pytest.mark.parametrize(("saving", "said"), [(None, "nothing"), (0.1, "10 %")])
def test_a_saving_that_is_not_known_promises_nothing(saving: float | None, said: str) -> None:
    (promise,) = promises_of(found(replace(at("log", line=30), saving=saving)), found())
    assert promise.worth == said


def _copies(*, round_trip: bool) -> Recording:
    """A program that makes tensors on the CPU in each step, and may fetch others and bring them back."""
    loop = Loop()
    for _ in loop.steps(14):
        for _ in range(10):
            loop.launch()
        if round_trip:
            loop.copy(1 << 20, 100, to_gpu=False, pinned=True)
            loop.copy(1 << 20, 100, pinned=True)
        with loop.region("aten::zeros"):
            loop.work(300)
        with loop.region("aten::to"):
            loop.copy(2 << 20, 150, waits=True)
    return Recording(loop.trace().store)


def test_a_finding_is_gone_though_another_one_of_its_rule_is_still_there() -> None:
    found = gs.diff(_copies(round_trip=True), _copies(round_trip=False))
    gone = {promise.title: promise.is_gone for promise in found.promises if promise.id == "R14"}
    assert gone == {
        "data is copied to the host and back in the same step": True,
        "tensors are created on the CPU and then copied": False,
    }


def at(function: str, *, line: int, saving: float = 0.1) -> Finding:
    where = (Where("train.py", line, function),)
    return Finding("R15", "a value is read", saving, None, saving, saving, "warn", where, {}, "", "")


def found(*findings: Finding, small: tuple[Finding, ...] = (), blind: tuple[str, ...] = ()) -> Diagnosis:
    return Diagnosis("findings", findings, small, (), (), "", None, blind=blind)


@pytest.mark.parametrize(("left", "is_gone"), [(0.019, False), (0.005, True)])
def test_a_finding_that_is_as_large_as_before_is_not_gone_where_it_stands_among_small_things(
    left: float, is_gone: bool
) -> None:
    (promise,) = promises_of(found(at("log", line=30, saving=0.021)), found(small=(at("log", line=30, saving=left),)))
    assert promise.is_gone is is_gone


def test_a_finding_may_be_gone_where_the_recording_after_lacks_what_it_is_found_by() -> None:
    def waiting_for_the_gil(*, sampled: bool) -> Recording:
        loop = Loop()
        for _ in loop.steps(14):
            loop.launch(gpu=1000)
            loop.wait()
            since = loop.now
            loop.work(1000)
            with loop.at("train.py", 50):
                for thread in range(2 if sampled else 0):
                    loop.sampled(since, thread, thread=thread)
        return Recording(loop.trace().store)

    difference = gs.diff(waiting_for_the_gil(sampled=True), waiting_for_the_gil(sampled=False))
    (promise,) = (each for each in difference.promises if each.id == "R25")
    assert promise.is_gone is None
    assert "it may be gone" in difference.page(width=1000)


def test_of_two_findings_that_say_the_same_the_one_at_the_other_place_is_gone() -> None:
    before = found(at("log", line=30), at("clip", line=50))
    assert [each.is_gone for each in promises_of(before, found(at("clip", line=44)))] == [True, False]
    moved = found(at("clip_all", line=44))
    assert sorted(each.is_gone for each in promises_of(before, moved)) == [False, True]
    inside = replace(at("train", line=9), id="R16", parts=(at("log", line=30), at("clip", line=50)))
    assert not any(each.is_gone for each in promises_of(before, found(inside)))


def test_forms_hold_the_same_figures(tmp_path: Path) -> None:
    found = gs.diff(version(KERNELS, seed=1), version({**KERNELS, "gemm": 4.8 * MS}, seed=2))
    (change,) = found.changes
    read = json.loads(found.to_json(tmp_path / "diff.json"))
    assert read["changes"][0]["difference_s"] == pytest.approx(change.delta_ns / 1e9)
    assert len(read["nodes"]) == len(found.nodes)
    frame = found.to_pandas()
    assert len(frame) == len(found.nodes) + 1
    assert set(frame.verdict) >= {"slower", "same"}
    markdown = found.markdown()
    assert "| slower |" in markdown
    assert "gemm" in markdown
    assert found.page(80).count("\n") > 4
    assert all(len(line) <= 80 for line in found.table(width=80).split("\n"))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_text_fits_the_terminal(width: int) -> None:
    names = ["gemm" * 40, "\u884c\u5217" * 30, "short"]
    found = gs.diff(version(dict.fromkeys(names, 4 * MS)), version(dict.fromkeys(names, 8 * MS)))
    assert len(found.changes) == len(names)
    assert [line for line in found.table(width=width).splitlines() if columns_of(line) > width] == []
    page = found.page(width)
    assert [line for line in page.splitlines() if columns_of(line) > width] == []
    assert "slower" in page
    assert ("before" in found.table(width=width).splitlines()[0]) == (width > 60)


def test_names_of_others_harm_neither_terminal_nor_page() -> None:
    evil = "<script>|`x`\x1b[31m" + "y" * 10_000
    found = gs.diff(version({"gemm": 4 * MS}), version({"gemm": 4 * MS, evil: 2 * MS}))
    markdown = found.markdown()
    assert "<script>" not in markdown
    assert "\x1b" not in str(found)
    assert "\x1b" not in markdown
    assert all(line.count("|") == 7 for line in markdown.split("\n") if line.startswith("| +"))


def test_a_comment_keeps_below_the_limit_of_github() -> None:
    before = {f"a{chr(97 + number // 26)}{chr(97 + number % 26)}{'x' * 150}": 0.1 * MS for number in range(500)}
    after = dict.fromkeys(before, 0.2 * MS)
    found = gs.diff(version(before, steps=6, noise=0), version(after, steps=6, noise=0), findings=False)
    assert len(found.changes) >= 500
    assert len(found.markdown()) < 65_536


@pytest.mark.parametrize("margin", [0, 1, -0.5, float("nan"), "much"])
def test_a_margin_that_is_no_fraction_is_refused(margin: Any) -> None:
    with pytest.raises(InvalidArgument, match="margin is"):
        gs.diff(version(KERNELS), version(KERNELS), margin=margin)


def test_wrong_sides_are_refused(tmp_path: Path) -> None:
    good = version(KERNELS)
    with pytest.raises(InvalidArgument, match="after has no recording"):
        gs.diff(good, [])
    for wrong in ([3], 3, None, good.trace):
        with pytest.raises(InvalidArgument, match=r"after has .*; accepted are recordings"):
            gs.diff(good, wrong)  # type: ignore[arg-type]
    damaged = tmp_path / "damaged.gscope"
    damaged.write_bytes(b"x" * 100)
    with pytest.raises(CorruptTrace):
        gs.diff(good, damaged)


@pytest.mark.parametrize("limit", [None, -1, 0, "3"])
def test_a_number_of_rows_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"row_limit is .*; accepted are integers from 1"):
        gs.diff(version(KERNELS), version(KERNELS)).table(limit)


def test_totals_alone_have_no_steps() -> None:
    from fakes.stores import aggregate_store
    from gpuscope.recording import Recording

    with pytest.raises(NotAvailable, match="before: steps are not known"):
        gs.diff(Recording(aggregate_store()), version(KERNELS))


@pytest.mark.parametrize(
    ("target", "met"), [("+30 %", True), ("-20 %", True), ("+300 %", False), ("1 s", True), ("1 us", False)]
)
def test_a_target_is_judged_by_the_step_after(target: str, met: bool) -> None:
    after = {name: ns / 2 for name, ns in KERNELS.items()}
    found = gs.diff(version(KERNELS, seed=1), version(after, seed=2), target=target, findings=False)
    assert found.target is not None
    assert found.target.met is met
    assert str(found.target) in str(found)
    assert found.to_dict()["target"]["met"] is met


def test_programs_that_are_not_comparable_meet_no_target() -> None:
    found = gs.diff(version({"a": 4 * MS}, seed=1), version({"b": 4 * MS}, seed=2), target="1 s", findings=False)
    assert found.target is not None
    assert (found.target.met, found.target.why) == (None, "not comparable")


def test_a_target_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="target is '500 samples/s'; accepted are '20 ms'"):
        gs.diff("before.gscope", "after.gscope", target="500 samples/s")


def test_settings_of_torch_that_differ_are_a_note() -> None:
    sides = [version(KERNELS, seed=1, info={"conditions.cudnn_benchmark": each}) for each in ("off", "on")]
    assert "cudnn_benchmark: off before, on after" in gs.diff(*sides, findings=False).doubts


def test_settings_that_an_older_recording_lacks_are_no_difference() -> None:
    sides = [version(KERNELS, seed=1, info=each) for each in ({}, {"conditions.cudnn_benchmark": "on"})]
    assert not any("cudnn" in doubt for doubt in gs.diff(*sides, findings=False).doubts)
