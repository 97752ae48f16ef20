# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from gpuscope.memory.usage.stages import MemoryStage, MemoryStages
from gpuscope.memory.usage.tracking import memory_stages, track_memory

MIB = 1 << 20


def train(torch, *, weights, activations, gradients, state, steps=3, frees="after"):
    """What a training takes, in MiB; gradients are freed behind the optimizer ("after"), or by it ("in")."""
    torch.take(weights * MIB)
    for step in range(steps):
        with track_memory("forward"):
            torch.take(activations * MIB)
        with track_memory("backward"):
            for _ in range(10):
                torch.take(gradients * MIB // 10)
                torch.give(activations * MIB // 10)
        with track_memory("optimizer"):
            if step == 0:
                torch.take(state * MIB)
            if frees == "in":
                torch.give(gradients * MIB // 10 * 10)
        if frees == "after":
            with track_memory("zero_grad"):
                torch.give(gradients * MIB // 10 * 10)


def subjects(result):
    words = ("activations", "gradients", "state", "fragmentation")
    return [next(word for word in words if f"most likely {word}" in hint or f"optimizer's {word}" in hint)
            for hint in result.hints]  # fmt: skip


def made(name="x", **given):
    figures = {
        "device": 0, "count": 1, "allocated_bytes": 0, "reserved_bytes": 0, "before_bytes": 0, "delta_bytes": 0,
        "first_delta_bytes": 0, "peak_bytes": 0, "peak_at_most_bytes": None, "host_resident_bytes": 0,
    } | given  # fmt: skip
    return MemoryStage(name, **figures)


def host_stages(*, activations, gradients, exact):
    """A forward and a backward on the host, of a process with 200 MiB; whether the peak of the backward is known."""
    before, after = (200 + activations) * MIB, (200 + gradients) * MIB
    peak = before + gradients * MIB if exact else before
    host = {"device": -1, "count": 3, "reserved_bytes": None}
    forward = made("forward", **host, allocated_bytes=before, before_bytes=200 * MIB, delta_bytes=activations * MIB,
                   first_delta_bytes=activations * MIB, peak_bytes=before)  # fmt: skip
    backward = made("backward", **host, allocated_bytes=after, before_bytes=before, delta_bytes=after - before,
                    first_delta_bytes=after - before, peak_bytes=peak,
                    peak_at_most_bytes=peak if exact else None)  # fmt: skip
    return MemoryStages((forward, backward))


class TestTable:
    def test_has_a_row_a_stage_in_order_of_first_appearance(self, fake_torch):
        for name in ("b", "a", "b"):
            with track_memory(name):
                fake_torch.take(MIB)
        lines = str(memory_stages()).splitlines()
        assert lines[0].split() == ["Stage", "Count", "Allocated", "Reserved", "Peak", "Change", "Host"]
        assert [line.split()[:2] for line in lines[2:4]] == [["b", "2"], ["a", "1"]]

    def test_a_row_reads(self):
        stage = made(
            "forward", count=3, allocated_bytes=5 * MIB, reserved_bytes=8 * MIB, delta_bytes=2 * MIB,
            peak_bytes=6 * MIB, peak_at_most_bytes=6 * MIB, host_resident_bytes=100 * MIB,
        )  # fmt: skip
        row = str(MemoryStages((stage,))).splitlines()[2]
        assert row.split("  ")[0] == "forward"
        figures = ["3", "5.00", "MiB", "8.00", "MiB", "6.00", "MiB", "+2.00", "MiB", "100", "MiB"]
        assert row.split() == ["forward", *figures, "<-", "highest", "peak"]

    def test_the_highest_peak_is_marked_and_named(self, fake_torch):
        with track_memory("low"):
            fake_torch.take(MIB)
        with track_memory("high"):
            fake_torch.take(2 * MIB)
            fake_torch.give(2 * MIB)
        with track_memory("low again"):
            pass
        text = str(memory_stages())
        assert [line.split()[0] for line in text.splitlines() if line.endswith("<- highest peak")] == ["high"]
        assert 'The highest peak, 3.00 MiB, is in "high".' in text
        assert memory_stages().highest.name == "high"

    @pytest.mark.parametrize(("other", "is_marked"), [(995, False), (980, True)])
    def test_on_the_host_a_peak_within_one_percent_of_another_is_not_marked(self, other, is_marked):
        peaks = [
            made(name, device=-1, reserved_bytes=None, peak_bytes=peak) for name, peak in (("a", other), ("b", 1000))
        ]
        text = str(MemoryStages(tuple(peaks)))
        assert ("<- highest peak" in text, "The highest peak" in text) == (is_marked, is_marked)

    def test_a_peak_that_is_a_bound_says_so(self):
        assert ">= 5 B" in str(MemoryStages((made(peak_bytes=5, peak_at_most_bytes=7),)))

    def test_columns_stay_aligned_under_long_names(self):
        lines = str(MemoryStages((made("n" * 100), made("short")))).splitlines()
        assert "n..." in lines[2]
        assert len({len(line.replace("  <- highest peak", "")) for line in lines[:4]}) == 1

    def test_devices_are_told_apart(self):
        text = str(MemoryStages((made(device=0), made(device=1), made(device=-1, reserved_bytes=None))))
        assert [line.partition(")")[0] for line in text.splitlines()[2:5]] == ["x (GPU 0", "x (GPU 1", "x (host"]

    def test_without_stages_it_says_so(self):
        assert str(MemoryStages(())) == "no stage has been tracked yet"
        assert MemoryStages(()).to_dict() == {"stages": [], "highest": None, "hints": []}

    def test_without_a_gpu_it_says_so(self, host_only):
        with track_memory("x"):
            pass
        last = str(memory_stages()).splitlines()[-1]
        assert last.startswith("The figures are the resident memory of the process on the host: ")
        assert last.endswith("for the test")

    def test_what_could_not_be_read_is_told(self):
        assert str(MemoryStages((made(why="for the test"),))).endswith("\nfor the test")


def test_the_dictionary_has_every_figure_and_is_json(fake_torch):
    with track_memory("x"):
        fake_torch.take(MIB)
    found = json.loads(json.dumps(memory_stages().to_dict()))
    assert found["highest"] == "x"
    (stage,) = found["stages"]
    assert set(stage) == {field.name for field in dataclasses.fields(MemoryStage)}
    assert stage["delta_bytes"] == MIB


def test_results_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        made().peak_bytes = 3


class TestHints:
    def test_activations(self, fake_torch):
        train(fake_torch, weights=100, activations=800, gradients=100, state=0)
        assert subjects(memory_stages()) == ["activations"]
        assert '"forward" takes 800 MiB, and "backward" gives back 710 MiB or more of it' in memory_stages().hints[0]

    def test_activations_in_a_single_step(self, fake_torch):
        train(fake_torch, weights=100, activations=800, gradients=100, state=0, steps=1)
        assert subjects(memory_stages()) == ["activations"]

    @pytest.mark.parametrize("frees", ["after", "in"])
    def test_activations_and_what_the_optimizer_keeps(self, fake_torch, frees):
        train(fake_torch, weights=200, activations=800, gradients=200, state=400, frees=frees)
        assert subjects(memory_stages()) == ["activations", "state"]
        assert '"optimizer" took 400 MiB more the first time than the last' in memory_stages().hints[1]

    def test_gradients(self, fake_torch):
        train(fake_torch, weights=500, activations=300, gradients=500, state=0)
        assert subjects(memory_stages()) == ["gradients"]
        assert '"forward" and "backward" take 500 MiB that "zero_grad" frees' in memory_stages().hints[0]

    def test_gradients_beside_activations(self, fake_torch):
        train(fake_torch, weights=300, activations=500, gradients=300, state=0)
        assert subjects(memory_stages()) == ["activations", "gradients"]
        assert '300 MiB more than before "forward" are in use after "backward"' in memory_stages().hints[1]

    def test_a_small_batch_before_the_activations(self, fake_torch):
        for _ in range(2):
            with track_memory("load"):
                fake_torch.take(60 * MIB)
            train(fake_torch, weights=0, activations=800, gradients=100, state=0, steps=1)
            fake_torch.give(60 * MIB)
        assert subjects(memory_stages()) == ["activations"]

    def test_what_may_be_either_is_called_both(self, fake_torch):
        for _ in range(2):
            for name in ("a", "b"):
                with track_memory(name):
                    fake_torch.take(400 * MIB)
            with track_memory("c"):
                fake_torch.take(10 * MIB)
                fake_torch.give(810 * MIB)
        assert "activations or gradients" in memory_stages().hints[0]

    def test_gradients_and_state(self, fake_torch):
        train(fake_torch, weights=500, activations=300, gradients=500, state=1000)
        assert subjects(memory_stages()) == ["gradients", "state"]

    def test_state_of_a_single_step_is_not_guessed(self, fake_torch):
        train(fake_torch, weights=200, activations=800, gradients=200, state=400, steps=1)
        assert subjects(memory_stages()) == ["activations"]

    def test_inference_has_no_activations(self, fake_torch):
        with track_memory("load"):
            fake_torch.take(500 * MIB)
        for _ in range(3):
            with track_memory("forward"):
                fake_torch.take(400 * MIB)
                fake_torch.give(400 * MIB)
        assert memory_stages().hints == ()

    def test_fragmentation(self):
        stages = MemoryStages(
            (
                made(
                    allocated_bytes=400 * MIB,
                    reserved_bytes=900 * MIB,
                    peak_bytes=500 * MIB,
                    peak_at_most_bytes=500 * MIB,
                ),
            )
        )
        assert subjects(stages) == ["fragmentation"]
        assert "900 MiB are reserved for a peak of 500 MiB" in stages.hints[0]

    def test_a_cache_that_the_peak_explains_is_no_fragmentation(self):
        assert MemoryStages((made(allocated_bytes=1, reserved_bytes=500 * MIB, peak_bytes=450 * MIB),)).hints == ()

    def test_what_torchs_segments_explain_is_no_fragmentation(self):
        assert MemoryStages((made(allocated_bytes=1, reserved_bytes=20 * MIB, peak_bytes=MIB),)).hints == ()

    def test_another_gpus_stages_do_not_count(self):
        stages = (made(peak_bytes=900 * MIB), made(device=1, reserved_bytes=800 * MIB, peak_bytes=100 * MIB))
        assert MemoryStages(stages).hints == ()

    def test_activations_are_found_in_resident_memory(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", object())
        (hint,) = host_stages(activations=128, gradients=16, exact=True).hints
        assert hint.startswith(
            '"forward" takes 128 MiB, and "backward" gives back 128 MiB or more of it: most likely acti'
        )

    def test_without_the_peak_of_resident_memory_both_are_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", object())
        (hint,) = host_stages(activations=128, gradients=16, exact=False).hints
        assert "activations or gradients" in hint

    def test_what_a_first_call_adds_to_resident_memory_may_be_libraries(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", object())
        stages = host_stages(activations=128, gradients=16, exact=True).stages
        step = made("step", device=-1, count=3, first_delta_bytes=200 * MIB, delta_bytes=0)
        assert "libraries that its first call loads, or the optimizer's state" in MemoryStages((*stages, step)).hints[1]

    def test_the_host_of_a_program_without_torch_gets_none(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        assert host_stages(activations=128, gradients=16, exact=True).hints == ()

    def test_they_stand_below_the_table(self, fake_torch):
        train(fake_torch, weights=100, activations=800, gradients=100, state=0)
        assert str(memory_stages()).splitlines()[-1] == memory_stages().hints[0]
