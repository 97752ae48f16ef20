# SPDX-License-Identifier: Apache-2.0
"""The largest batch of a function: what counts as not fitting, where it stops, what is left behind."""

from __future__ import annotations

import math
import pickle
import random
import re
import sys
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.memory_machine import Machine, OutOfMemoryError, torch_on
from gpuscope.errors import GpuscopeWarning, InvalidArgument, NotAvailable
from gpuscope.frameworks import cupy
from gpuscope.memory import host
from gpuscope.memory.limits import batch_size
from gpuscope.memory.limits.batch_size import MaxBatchSize, find_max_batch_size


@pytest.fixture
def on(monkeypatch):
    """Makes a machine the one that the libraries tell of."""
    monkeypatch.setattr(batch_size.gc, "collect", lambda: 0)  # nothing here has cycles, and it takes most of the time
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "")

    def on(machine, **more):
        monkeypatch.setitem(sys.modules, "torch", torch_on(machine, **more))
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        return machine

    return on


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.integers(1, 10**12), st.integers(0, 10**11), st.integers(1, 10**7), st.sampled_from([1, 512, 2 << 20]))
def test_the_answer_is_exact_on_any_machine(on, capacity, fixed, per_sample, block):
    machine = on(Machine(capacity, fixed, per_sample, block=block))
    largest = min(machine.largest, 10**6)
    assert find_max_batch_size(machine, limit=10**6, steps=1) == largest


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.integers(10**9, 10**12), st.integers(10**4, 10**7))
def test_tries_are_few_when_peaks_are_known(on, capacity, per_sample):
    machine = on(Machine(capacity, 10**8, per_sample))
    found = find_max_batch_size(machine)
    assert len(found.tries) <= math.log(max(found, 16), 16) + 9


def test_each_size_that_fits_is_run_twice(on):
    machine = on(Machine(100, per_sample=10))
    find_max_batch_size(machine)
    assert machine.sizes.count(8) == 2


def test_the_seeds_call_prints_and_multiplies(on):
    largest = find_max_batch_size(on(Machine(1000, 100, 9)), None, 8)
    assert f"Max inference batch size: {largest}" == "Max inference batch size: 100"
    assert int(largest * 0.4) == 40


def test_other_users_of_the_gpu_are_counted_at_each_try(on):
    machine = on(Machine(10_000, per_sample=10))

    def shared(size):
        machine.capacity = 5_000
        machine(size)

    assert find_max_batch_size(shared) == 500


ERRORS = {
    "torch": lambda: OutOfMemoryError("CUDA out of memory."),
    "cublas": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cuda": lambda: RuntimeError("CUDA error: out of memory"),
    "host": MemoryError,
    "jax": lambda: type("XlaRuntimeError", (RuntimeError,), {})("RESOURCE_EXHAUSTED: Out of memory"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_out_of_memory_of_any_library_means_that_it_does_not_fit(on, error):
    assert find_max_batch_size(on(Machine(130, per_sample=10, error=error))) == 13


def test_any_other_error_is_raised_as_it_is(on):
    error = KeyError("weights")

    def broken(size):
        if size > 20:
            raise error

    on(Machine(1))
    with pytest.raises(KeyError) as raised:
        find_max_batch_size(broken)
    assert raised.value is error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are of Python 3.11")
def test_any_other_error_notes_the_batch_size(on):
    def broken(size):
        if size > 20:
            raise KeyError("weights")

    on(Machine(1))
    with pytest.raises(KeyError) as raised:
        find_max_batch_size(broken)
    assert raised.value.__notes__ == ["raised at batch size 32; 16 ran"]


def convolution_without_an_engine(machine, counts):
    def step(size):
        if size > 50:
            machine.failures += counts
            raise RuntimeError("GET was unable to find an engine to execute this computation")

    return step


def test_a_convolution_without_an_engine_does_not_fit_where_torch_ran_out(on):
    assert find_max_batch_size(convolution_without_an_engine(on(Machine(1)), 1)) == 50


def test_a_convolution_without_an_engine_is_an_error_where_memory_was_there(on):
    with pytest.raises(RuntimeError, match="engine"):
        find_max_batch_size(convolution_without_an_engine(on(Machine(1)), 0))


def test_nothing_of_a_failed_try_is_kept_alive(on):
    class Piece:
        pass

    pieces = []
    alive = []

    def step(size):
        alive.append(sum(piece() is not None for piece in pieces))
        piece = Piece()
        pieces.append(weakref.ref(piece))
        if size > 100:
            error = OutOfMemoryError("CUDA out of memory.")  # the frame holds the error, and the error the frame
            raise error

    on(Machine(1))
    find_max_batch_size(step)
    assert set(alive) == {0}


def test_zero_says_why(on):
    found = find_max_batch_size(on(Machine(100, fixed=90, per_sample=20)))
    assert (found, found.limited_by, found.recommended) == (0, "memory", 0)
    assert found.why.startswith("1 does not: OutOfMemoryError: CUDA out of memory")


def test_the_limit_is_told(on):
    found = find_max_batch_size(on(Machine(10**9)), limit=50)
    assert (found, found.limited_by, found.why) == (50, "limit", "all fit up to the limit of 50")


def test_what_takes_no_memory_comes_to_an_end(on):
    on(Machine(1))
    assert find_max_batch_size(lambda size: None).limited_by == "limit"


def test_ctrl_c_keeps_the_largest_known(on):
    def step(size):
        if size > 100:
            raise KeyboardInterrupt

    on(Machine(1))
    with pytest.warns(GpuscopeWarning, match="interrupted: 64 is the largest batch known to fit"):
        found = find_max_batch_size(step)
    assert (found, found.limited_by) == (64, "interrupted")


def test_ctrl_c_goes_on_when_nothing_is_known(on):
    def step(size):
        raise KeyboardInterrupt

    on(Machine(1))
    with pytest.raises(KeyboardInterrupt):
        find_max_batch_size(step)


def test_only_multiples_are_tried(on):
    machine = on(Machine(1000, per_sample=10))
    found = find_max_batch_size(machine, start=3, multiple_of=8)
    assert found == 96
    assert found.recommended == 80
    assert all(size % 8 == 0 for size in machine.sizes)


def test_the_line_tells_what_a_sample_takes(on):
    found = find_max_batch_size(on(Machine(10**6, fixed=5000, per_sample=70)))
    assert (found.bytes_per_sample, found.fixed_bytes) == (70, 5000)


def test_the_recommended_size_leaves_the_margin(on):
    found = find_max_batch_size(on(Machine(1000, per_sample=10)), margin=0.25)
    assert found.recommended == 75


def test_the_margin_is_taken_exactly(on):
    found = find_max_batch_size(on(Machine(1000, per_sample=10)), margin=0.9)
    assert (int(found), found.recommended) == (100, 10)


def test_the_limit_is_recommended_where_memory_is_left(on):
    assert find_max_batch_size(on(Machine(10**9)), limit=50).recommended == 50
    assert find_max_batch_size(on(Machine(1000, per_sample=10)), limit=99).recommended == 89


def test_a_report_of_a_search_that_the_limit_ends_says_nothing_of_memory(on):
    text = find_max_batch_size(on(Machine(10**9, fixed=5000, per_sample=0)), limit=50).report()
    assert "recommended: 50 (the limit; memory does not end the search)" in text
    assert "a sample takes less than can be measured, all else 4.88 KiB" in text


def test_a_report_says_that_the_margin_gives_no_smaller_size(on):
    text = find_max_batch_size(on(Machine(1000, per_sample=600))).report()
    assert "recommended: 1 (a margin of 10 % gives no smaller size)" in text


def test_the_report_has_a_line_for_each_try(on):
    found = find_max_batch_size(on(Machine(130, per_sample=10)))
    text = found.report()
    assert text.startswith("largest batch size that fits: 13 (14 does not: OutOfMemoryError")
    assert "recommended: 11 (a peak varies from run to run" in text
    assert len(re.findall(r"^  batch size \d+: ", text, re.MULTILINE)) == len(found.tries)


def test_progress_gets_one_line_a_try(on):
    lines = []
    found = find_max_batch_size(on(Machine(130, per_sample=10)), progress=lines.append)
    assert lines == [str(each) for each in found.tries]


def test_the_result_survives_pickling(on):
    found = find_max_batch_size(on(Machine(130, per_sample=10)))
    again = pickle.loads(pickle.dumps(found))
    assert isinstance(again, MaxBatchSize)
    assert (again, again.tries, again.to_dict()) == (found, found.tries, found.to_dict())


def test_random_generators_are_as_before(on):
    on(Machine(1))
    random.seed(1)
    np.random.seed(1)
    expected = random.getstate(), np.random.get_state()[1].tolist()
    find_max_batch_size(lambda size: (random.random(), np.random.rand()), limit=20)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected


@pytest.fixture
def host_of_a_gigabyte(monkeypatch):
    """A host of 10^9 bytes, 10^8 of them resident; returns a step of 10^6 bytes a sample, its sizes, what is free."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(cupy, "in_use", lambda: None)
    monkeypatch.setattr(batch_size.gc, "collect", lambda: 0)
    room, before, peak = 10**9, 10**8, [0]
    free = [room - before]
    monkeypatch.setattr(host, "available_memory", lambda: (free[0], room))
    monkeypatch.setattr(host, "resident", lambda: before)
    monkeypatch.setattr(host, "peak_resident", lambda root=None: peak[0])
    monkeypatch.setattr(host, "_highest", 0)
    ran = []

    def step(size):
        ran.append(size)
        peak[0] = before + size * 10**6

    return step, ran, free


def test_on_the_host_it_takes_half_of_what_is_free(host_of_a_gigabyte):
    step, ran, _ = host_of_a_gigabyte
    found = find_max_batch_size(step, device="cpu")
    assert found == max(ran) == 450  # of 900 MB free
    assert str(found.tries[-1]).startswith("batch size 451: not tried: ")


def test_why_says_where_the_search_ends_on_the_host(host_of_a_gigabyte):
    assert find_max_batch_size(host_of_a_gigabyte[0], device="cpu").why == (
        "451 was not tried: the process would have 525 MiB of the host's memory; the search stops at 525 MiB, 50 % of "
        "what was free at its start"
    )


def test_memory_that_others_take_meanwhile_is_left_to_them(host_of_a_gigabyte):
    step, _, free = host_of_a_gigabyte

    def shared(size):
        free[0] = 3 * 10**8
        step(size)

    assert find_max_batch_size(shared, device="cpu") == 300


@pytest.mark.parametrize("device", [None, "cuda", 0])
def test_without_a_gpu_nothing_is_called(monkeypatch, device):
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "no driver")
    called = []
    sentence = (
        'find_max_batch_size is not available: no driver; device="cpu" searches in half of the host\'s free memory'
    )
    with pytest.raises(NotAvailable, match=f"^{re.escape(sentence)}$"):
        find_max_batch_size(called.append, device=device)
    assert not called


def test_the_host_is_searched_where_it_is_named(monkeypatch):
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "no driver")
    assert find_max_batch_size(lambda size: None, device="cpu", limit=20) == 20


BAD = {
    "start is 0; accepted are whole numbers above 0": {"start": 0},
    "limit is 2.5; accepted are whole numbers above 0": {"limit": 2.5},
    "steps is True; accepted are whole numbers above 0": {"steps": True},
    "multiple_of is -1; accepted are whole numbers above 0": {"multiple_of": -1},
    "limit is an integer of 1329 bits; accepted are whole numbers above 0 and below 2**63": {"limit": 10**400},
    "limit is 7; accepted is at least multiple_of, which is 8": {"limit": 7, "multiple_of": 8},
    "margin is 1; accepted is a share from 0 to below 1": {"margin": 1},
    "input_shape is given with a function; a function is called with the batch size alone": {"input_shape": (3,)},
    "training is given with a function; a function is called with the batch size alone": {"training": True},
    "progress is 3; accepted is a function of one line of text, as print": {"progress": 3},
}


@pytest.mark.parametrize(("sentence", "given"), BAD.items(), ids=BAD)
def test_bad_input_gets_one_sentence(sentence, given):
    with pytest.raises(InvalidArgument, match=f"^{re.escape(sentence)}$"):
        find_max_batch_size(lambda size: None, **given)


@pytest.mark.parametrize("device", ["cdua:1", 3.5, True, -1])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are an ordinal"):
        find_max_batch_size(lambda size: None, device=device)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InvalidArgument, match=r"^fn_or_model is a int; accepted are models"):
        find_max_batch_size(3)
