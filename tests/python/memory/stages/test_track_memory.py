# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from fakes.allocating_torch import FakeTorch
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.usage.stages import MemoryStage
from gpuscope.memory.usage.tracking import memory_stages, reset_memory_stages, track_memory


def stage(name):
    return next(stage for stage in memory_stages().stages if stage.name == name)


def names():
    return [stage.name for stage in memory_stages().stages]


class TestStatement:
    def test_prints_a_line_at_once(self, fake_torch, capsys):
        fake_torch.take(3 << 20)
        track_memory("After data to GPU")
        line = "After data to GPU              - Allocated:   3.00 MiB, Reserved:   3.00 MiB, Peak:   3.00 MiB\n"
        assert capsys.readouterr().out == line

    def test_tells_the_change_since_the_statement_before(self, fake_torch, capsys):
        fake_torch.take(3 << 20)
        track_memory("Start")
        fake_torch.take(2 << 20)
        track_memory("After forward")
        assert "Allocated:   5.00 MiB (+2.00 MiB), " in capsys.readouterr().out.splitlines()[1]
        assert (stage("Start").delta_bytes, stage("After forward").delta_bytes) == (None, 2 << 20)

    def test_has_the_peak_since_the_statement_before(self, fake_torch):
        fake_torch.take(100)
        track_memory("a")
        fake_torch.take(50)
        fake_torch.give(50)
        track_memory("b")
        fake_torch.take(20)
        track_memory("c")
        assert (stage("b").peak_bytes, stage("b").peak_is_exact) == (150, True)
        assert (stage("c").peak_bytes, stage("c").peak_at_most_bytes) == (120, 150)

    def test_does_not_restart_the_programs_peak(self, fake_torch):
        fake_torch.take(100)
        fake_torch.give(60)
        track_memory("a")
        track_memory("b")
        assert sys.modules["torch"].cuda.max_memory_allocated() == 100

    def test_says_at_least_where_the_program_restarted_the_peak(self, fake_torch, capsys):
        fake_torch.take(100)
        track_memory("a")
        fake_torch.give(60)
        sys.modules["torch"].cuda.reset_peak_memory_stats()
        track_memory("b")
        assert (stage("b").peak_bytes, stage("b").peak_at_most_bytes) == (100, None)
        assert "Peak:   >= 100 B" in capsys.readouterr().out.splitlines()[1]

    def test_quiet_prints_nothing_and_counts(self, fake_torch, capsys):
        track_memory("x", quiet=True)
        assert capsys.readouterr().out == ""
        assert stage("x").count == 1

    def test_reads_at_the_call_when_the_object_is_kept(self, fake_torch, capsys):
        fake_torch.take(10)
        kept = track_memory("kept")
        fake_torch.take(10)
        assert kept.allocated_bytes == 10
        assert capsys.readouterr().out.startswith("kept ")

    def test_kept_counts_once(self, fake_torch):
        kept = track_memory("kept")
        assert isinstance(kept.stage, MemoryStage)
        assert kept.peak_bytes == kept.reserved_bytes == 0
        del kept
        assert stage("kept").count == 1

    def test_kept_is_compared_with_the_statement_before_its_call(self, fake_torch):
        fake_torch.take(10)
        track_memory("first")
        fake_torch.take(5)
        kept = track_memory("kept")
        fake_torch.take(100)
        track_memory("last")
        assert kept.delta_bytes == 5
        assert stage("last").delta_bytes == 105

    def test_kept_does_not_come_between_later_statements(self, fake_torch):
        kept = track_memory("kept")
        fake_torch.take(10)
        track_memory("first")
        assert kept.allocated_bytes == 0
        fake_torch.take(5)
        track_memory("second")
        assert stage("second").delta_bytes == 5

    def test_what_lives_until_the_end_of_the_program_prints_nothing(self, capfd):
        program = "from gpuscope.memory.usage.tracking import track_memory\nkept = track_memory('x', 'cpu')"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
        assert capfd.readouterr() == ("", "")

    def test_a_prompt_shows_the_line_in_place_of_the_object(self, fake_torch, monkeypatch, capsys):
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        kept = track_memory("at the prompt")
        assert repr(kept).startswith("at the prompt                  - Allocated:")
        assert stage("at the prompt").count == 1
        del kept
        assert capsys.readouterr().out == ""

    def test_looking_at_the_object_elsewhere_counts_nothing(self, fake_torch):
        kept = track_memory("x")
        assert repr(kept) == "track_memory('x')"
        assert names() == []
        with kept:
            pass

    def test_survives_a_closed_standard_output(self, fake_torch, monkeypatch):
        def refuse(text):
            raise ValueError("I/O operation on closed file")

        monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=refuse, flush=lambda: None))
        track_memory("x")
        assert stage("x").count == 1

    def test_devices_have_chains_of_their_own(self, fresh_stages, monkeypatch):
        torch = FakeTorch(devices=2).put_in(monkeypatch)
        torch.take(10, device=0)
        torch.take(20, device=1)
        track_memory("x", 0)
        track_memory("x", "cuda:1")
        torch.take(1, device=0)
        track_memory("y", 0)
        assert [(one.name, one.device, one.allocated_bytes, one.delta_bytes) for one in memory_stages().stages] == [
            ("x", 0, 10, None),
            ("x", 1, 20, None),
            ("y", 0, 11, 1),
        ]

    def test_the_current_device_is_the_default(self, fresh_stages, monkeypatch):
        torch = FakeTorch(devices=2).put_in(monkeypatch)
        torch.device = 1
        track_memory("x")
        assert stage("x").device == 1


class TestBlock:
    def test_prints_nothing(self, fake_torch, capsys):
        with track_memory("x"):
            pass
        gc.collect()
        assert capsys.readouterr().out == ""

    def test_is_no_statement(self, fake_torch):
        with track_memory("x"):
            pass
        track_memory("y")
        assert stage("x").count == 1
        assert stage("y").delta_bytes is None

    def test_has_what_the_block_took_and_its_peak(self, fake_torch):
        fake_torch.take(100)
        with track_memory("forward") as forward:
            fake_torch.take(50)
            fake_torch.take(30)
            fake_torch.give(30)
        assert (forward.allocated_bytes, forward.reserved_bytes, forward.delta_bytes, forward.peak_bytes) == (
            150,
            1024,
            50,
            180,
        )
        assert forward.stage.before_bytes == 100
        assert forward.stage == stage("forward")

    def test_has_figures_while_it_is_open(self, fake_torch):
        with track_memory("x") as block:
            fake_torch.take(50)
            assert (block.delta_bytes, block.peak_bytes) == (50, 50)
            fake_torch.give(50)
            assert (block.delta_bytes, block.peak_bytes) == (0, 50)
        assert stage("x").count == 1

    def test_every_passing_counts_and_the_highest_peak_stays(self, fake_torch):
        for size in (10, 70, 20):
            with track_memory("x"):
                fake_torch.take(size)
                fake_torch.give(size)
        found = stage("x")
        assert (found.count, found.peak_bytes, found.peak_is_exact) == (3, 70, True)

    def test_the_first_change_is_kept(self, fake_torch):
        for size in (10, 0):
            with track_memory("optimizer"):
                fake_torch.take(size)
        assert (stage("optimizer").first_delta_bytes, stage("optimizer").delta_bytes) == (10, 0)

    def test_an_exception_goes_on_and_the_block_counts(self, fake_torch):
        with pytest.raises(RuntimeError, match="mine"), track_memory("x"):
            raise RuntimeError("mine")
        assert stage("x").count == 1

    def test_what_fails_at_its_end_does_not_reach_the_program(self, fake_torch, monkeypatch):
        with track_memory("x"):
            monkeypatch.setattr("gpuscope.memory.usage.tracking.measured", None)
        assert names() == []

    def test_one_object_can_be_entered_within_itself(self, fake_torch):
        tracked = track_memory("x")
        with tracked as outer:
            fake_torch.take(10)
            with tracked as inner:
                fake_torch.take(5)
        assert (outer.delta_bytes, inner.delta_bytes) == (15, 5)
        assert stage("x").count == 2

    def test_threads_share_an_object(self, fake_torch):
        tracked, entered, left = track_memory("x"), threading.Event(), threading.Event()
        inner = []

        def other():
            with tracked as block:
                entered.set()
                left.wait(10)
            inner.append(block)

        thread = threading.Thread(target=other)
        with tracked as outer:
            thread.start()
            entered.wait(10)
            fake_torch.take(10)
        fake_torch.take(100)
        left.set()
        thread.join()
        assert (outer.delta_bytes, inner[0].delta_bytes) == (10, 110)

    def test_works_in_an_exit_stack(self, fake_torch, capsys):
        with contextlib.ExitStack() as stack:
            stack.enter_context(track_memory("x"))
        assert stage("x").count == 1
        assert capsys.readouterr().out == ""

    def test_torch_may_begin_to_use_the_gpu_inside(self, fake_torch):
        fake_torch.begun = False
        with track_memory("model to GPU") as block:
            fake_torch.begun = True
            fake_torch.take(10)
            fake_torch.give(4)
        assert (block.stage.before_bytes, block.delta_bytes, block.peak_bytes) == (0, 6, 10)

    def test_asking_before_any_block_has_ended_says_so(self, fake_torch):
        tracked = track_memory("x")
        with tracked, pytest.raises(InvalidArgument, match="stage 'x' has not ended"):
            _ = tracked.stage


class TestDecorator:
    def test_function_counts_once_a_call(self, fake_torch, capsys):
        @track_memory("step")
        def step(size):
            "Takes."
            fake_torch.take(size)
            return size

        assert (step(5), step(size=6)) == (5, 6)
        assert (step.__name__, step.__doc__) == ("step", "Takes.")
        assert (stage("step").count, stage("step").delta_bytes) == (2, 6)
        assert capsys.readouterr().out == ""

    def test_methods(self, fake_torch):
        class Model:
            @track_memory("m")
            def forward(self):
                return self

            @track_memory("m")
            @classmethod
            def of_class(cls):
                return cls

            @track_memory("m")
            @staticmethod
            def static(value):
                return value

        model = Model()
        assert model.forward() is model
        assert Model.of_class() is Model
        assert Model.static(4) == 4
        assert stage("m").count == 3

    def test_coroutine_counts_once_a_call_and_not_what_others_take_meanwhile(self, fake_torch):
        @track_memory("c")
        async def work():
            fake_torch.take(10)
            await asyncio.sleep(0)
            fake_torch.take(7)
            fake_torch.give(4)
            return 5

        async def other():
            fake_torch.take(1000)

        async def main():
            return await asyncio.gather(work(), other())

        assert asyncio.run(main()) == [5, None]
        found = stage("c")
        assert (found.count, found.before_bytes, found.delta_bytes, found.first_delta_bytes, found.peak_bytes) == (
            1,
            0,
            13,
            13,
            1017,
        )

    def test_coroutine_that_raises_counts(self, fake_torch):
        @track_memory("c")
        async def work():
            raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            asyncio.run(work())
        assert stage("c").count == 1

    def test_generator_counts_each_run_of_its_body(self, fake_torch):
        @track_memory("g")
        def batches():
            for _ in range(2):
                fake_torch.take(10)
                yield

        for _ in batches():
            fake_torch.take(1000)
        assert (stage("g").count, stage("g").first_delta_bytes, stage("g").delta_bytes) == (3, 10, 0)

    def test_what_cannot_be_called_is_refused(self, fake_torch):
        with pytest.raises(InvalidArgument, match="callables"):
            track_memory("x")(3)


class TestWithoutGpu:
    def test_resident_memory_stands_in_and_the_line_says_so(self, host_only, capsys):
        track_memory("Start")
        line = capsys.readouterr().out
        assert line.startswith("Start                          - Host resident: ")
        assert line.endswith(" (no GPU)\n")
        assert stage("Start").why == "the GPU is not available: for the test"

    def test_a_block_sees_what_it_touches(self, host_only):
        with track_memory("x", "cuda") as block:
            data = bytearray(64 << 20)
        assert 60 << 20 < block.delta_bytes < 100 << 20
        assert block.peak_bytes >= block.allocated_bytes > len(data)
        assert block.reserved_bytes is None
        assert not block.stage.on_gpu

    def test_the_host_can_be_asked_for_where_there_is_a_gpu(self, fake_torch, capsys):
        track_memory("x", "cpu")
        assert "(no GPU)" not in capsys.readouterr().out
        assert stage("x").device == -1


def test_stages_are_forgotten_and_the_next_statement_is_a_first_one(fake_torch):
    fake_torch.take(10)
    track_memory("a")
    reset_memory_stages()
    track_memory("b")
    assert names() == ["b"]
    assert stage("b").delta_bytes is None


def test_an_allocator_without_counters_is_survived(fake_torch, capsys):
    fake_torch.broken = "CUDAPluggableAllocator does not yet support getDeviceStats.\nmore"
    with track_memory("x"):
        pass
    track_memory("y")
    why = "memory of torch is not known: CUDAPluggableAllocator does not yet support getDeviceStats."
    assert stage("x").why == stage("y").why == why
    assert f"({why})" in capsys.readouterr().out
    assert not stage("x").peak_is_exact


def test_a_reason_is_kept_when_a_later_passing_has_none(fake_torch):
    fake_torch.broken = "for the test"
    with track_memory("x"):
        pass
    fake_torch.broken = ""
    with track_memory("x"):
        pass
    assert stage("x").why == "memory of torch is not known: for the test"


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_that_is_none_is_refused(fake_torch, name):
    with pytest.raises(InvalidArgument, match=r"^name is .*; accepted are strings"):
        track_memory(name)


@pytest.mark.parametrize("device", ["gpu9x", -1, True, 1.5])
def test_a_device_that_is_none_is_refused(fake_torch, device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are "):
        track_memory("x", device)


def test_a_device_that_is_not_there_is_refused(fake_torch):
    with pytest.raises(NotAvailable, match="GPU 7"):
        track_memory("x", 7)
