# SPDX-License-Identifier: Apache-2.0
"""What edits save, against programs that run again on a simulated machine with the same changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.queue_programs import GAP, LATENCY, LAUNCH, QUEUE, WAKE, Changed, QueueProgram
from fakes.recordings import aggregate, cpu_only, make_trace
from gpuscope.diagnosis import Edit, Replay, Steps
from gpuscope.errors import CorruptTrace, InvalidArgument

US = 1000
STEPS = 10


def replay(program):
    run = program.run()
    return Replay(run.trace(), run.steps)


def predicted(program, *changes):
    made = replay(program)
    assert made.reason is None
    return made.saving([program.edit(each) for each in changes])


def realised(program, changed):
    """What the same change saves in the whole run."""
    return 1 - program.run(changed).wall_ns / program.run().wall_ns


def waiting_loop(kernels=1, time=50 * US, host=20 * US):
    """Each step launches, waits, and computes."""
    program, waits, computed = QueueProgram(), [], []
    for _ in range(STEPS):
        for _ in range(kernels):
            program.launch(time)
            waits.append(program.sync())
            computed.append(program.host(host))
        program.step()
    return program, waits, computed


def test_an_unchanged_program_takes_as_long_as_it_did():
    program, _, _ = waiting_loop()
    made = replay(program)
    assert made.reason is None
    assert made.error < 1e-3
    saving = made.saving([])
    assert (saving.value, saving.low, saving.high, saving.usual) == (0.0, 0.0, 0.0, 0.0)


def test_what_is_saved_is_of_all_steps_together_where_they_differ():
    program, computed = QueueProgram(), []
    for number in range(30):
        program.launch(50 * US)
        program.sync()
        program.host(20 * US)
        computed.append(program.host(0 if number % 3 else 200 * US))
        program.step()
    change = Changed(hidden=computed)
    assert predicted(program, change).value == pytest.approx(realised(program, change), rel=0.05)


def test_without_its_waits_a_loop_is_as_fast_as_its_kernels():
    program, waits, _ = waiting_loop()
    a_step = LAUNCH + LATENCY + 50 * US + WAKE + 20 * US
    saving = predicted(program, Changed(unwaited=waits))
    assert saving.value == pytest.approx(1 - (50 * US + GAP) / a_step, abs=0.01)
    assert saving.low <= saving.value <= saving.high


def test_of_tiny_kernels_a_wait_is_worth_what_it_takes_longer_than_one_for_nothing():
    program, waits = QueueProgram(), []
    for _ in range(STEPS):
        for _ in range(5):
            program.launch(2 * US)
            waits.append(program.sync())
            program.sync()
            program.host(10 * US)
        program.step()
    changed = Changed(unwaited=waits)
    assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.02)
    assert predicted(program, changed).value > 0.1


def launching_loop(time, host):
    program, kernels, computed = QueueProgram(), [], []
    for _ in range(STEPS):
        for _ in range(5):
            computed.append(program.host(host))
            kernels.append(program.launch(time))
        program.step()
    program.sync_device()
    return program, kernels, computed


def test_where_the_host_is_too_slow_faster_kernels_save_nothing_and_less_host_work_all_of_it():
    program, kernels, computed = launching_loop(time=2 * US, host=10 * US)
    assert predicted(program, Changed(factors=dict.fromkeys(kernels, 0.5))).value == pytest.approx(0, abs=0.001)
    assert predicted(program, Changed(hidden=computed)).value == pytest.approx(10 / 14, abs=0.02)


@pytest.mark.parametrize("cost", [0, 3 * US])
def test_what_recording_cost_each_launch_is_saved_by_no_change(cost):
    """A wait, and launches of small kernels one after the other: the host is late for these, and later recorded."""

    def looped(host):
        program, launched, computed = QueueProgram(), [], []
        for _ in range(STEPS):
            program.launch(100 * US)
            program.sync()
            for _ in range(20):
                computed.append(program.host(host))
                launched.append(program.launch(1 * US))
            program.sync()
            program.step()
        return program, Changed(removed=launched, hidden=computed)

    truth, change = looped(10 * US)
    recorded, _ = looped(10 * US + cost)
    run = recorded.run()
    made = Replay(run.trace(**{"audit.launch_cost_ns": str(cost)}), run.steps)
    made.leave_out_recording()
    assert made.saving([recorded.edit(change)]).value == pytest.approx(realised(truth, change), abs=0.01)


def test_where_the_gpu_is_too_slow_less_host_work_saves_nothing_and_faster_kernels_all_of_it():
    program, kernels, computed = launching_loop(time=100 * US, host=10 * US)
    assert predicted(program, Changed(hidden=computed)).value == pytest.approx(0, abs=0.001)
    assert predicted(program, Changed(factors=dict.fromkeys(kernels, 0.5))).value == pytest.approx(50 / 101.2, abs=0.02)


def test_edits_together_save_what_is_left_after_each_other():
    program, waits, computed = waiting_loop(time=50 * US, host=80 * US)
    of_waits, of_host = Changed(unwaited=waits), Changed(hidden=computed)
    both = predicted(program, of_waits, of_host).value
    assert both == pytest.approx(realised(program, Changed(unwaited=waits, hidden=computed)), abs=0.01)
    assert both > max(predicted(program, of_waits).value, predicted(program, of_host).value)


def test_time_that_two_edits_take_away_goes_once():
    program, _, computed = waiting_loop()
    edit = program.edit(Changed(hidden=computed))
    made = replay(program)
    assert made.saving([edit, edit]) == made.saving([edit])


def two_streams(event):
    """Long kernels on one stream, short ones on the other; with an event the long ones come after the short."""
    program, long, short = QueueProgram(), [], []
    for _ in range(STEPS):
        short.append(program.launch(30 * US, stream=1))
        if event:
            program.hold(0, 1)
        long.append(program.launch(100 * US, stream=0))
        program.sync_device()
        program.step()
    return program, long, short


def test_of_streams_beside_each_other_the_longer_one_counts():
    program, long, short = two_streams(event=False)
    assert predicted(program, Changed(factors=dict.fromkeys(short, 0.5))).value == pytest.approx(0, abs=0.001)
    changed = Changed(factors=dict.fromkeys(long, 0.5))
    assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.01)


def test_a_stream_that_waited_for_another_still_does():
    program, _, short = two_streams(event=True)
    changed = Changed(factors=dict.fromkeys(short, 0.5))
    assert predicted(program, changed).value == pytest.approx(15 / 150, abs=0.02)
    assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.01)


def test_a_wait_for_an_event_that_cost_nothing_holds_when_the_rest_is_faster():
    program, long = QueueProgram(), []
    for _ in range(STEPS):
        program.launch(80 * US, stream=1)
        long.append(program.launch(100 * US, stream=0))
        program.hold(0, 1)
        program.launch(50 * US, stream=0)
        program.sync_device()
        program.step()
    changed = Changed(factors=dict.fromkeys(long, 0.1))
    assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.01)
    assert realised(program, changed) < 0.2


def backward_on_a_worker():
    """The first thread launches, waits for the second that launches too, and goes on."""
    program, ours, theirs = QueueProgram(), [], []
    for _ in range(STEPS):
        for _ in range(4):
            ours.append(program.host(20 * US))
            program.launch(5 * US)
        program.hand_over(1)
        for _ in range(8):
            program.launch(5 * US)
            theirs.append(program.host(20 * US))
        program.hand_over(0)
        program.launch(5 * US)
        program.step()
    return program, ours, theirs


def test_a_thread_that_waits_for_another_gains_by_what_that_one_saves():
    program, ours, theirs = backward_on_a_worker()
    for hidden in (ours, theirs, theirs[:-1]):
        changed = Changed(hidden=hidden)
        assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.02)


def test_threads_at_their_own_pace_do_not_wait_for_each_other():
    first, second = launching_loop(5 * US, 50 * US)[0], launching_loop(5 * US, 9 * US)[0]
    tables, other = first.run().tables(), second.run().tables()
    calls = len(tables["api"]["start_ns"])
    for table in ("api", "kernel"):
        for name, values in other[table].items():
            moved = {"correlation": calls, "start_ns": 777}.get(name, 0)
            tables[table][name] += (
                [1] * len(values) if name in ("thread", "track") else [each + moved for each in values]
            )
    made = Replay(make_trace(tables), first.run().steps)
    assert made.reason is None
    start, end = first.run().steps.start_ns[0], first.run().steps.end_ns[-1]
    saving = made.saving([Edit(host_spans=np.array([[1, start, end]]))])
    assert saving.value == pytest.approx(0, abs=0.01)


def test_a_copy_that_blocks_drains_the_stream():
    program, copies = QueueProgram(), []
    for _ in range(STEPS):
        program.launch(100 * US)
        copies.append(program.copy(40 * US))
        program.host(60 * US)
        program.step()
    for changed in (
        Changed(unwaited=copies),
        Changed(factors=dict.fromkeys(copies, 0.25)),
        Changed(factors=dict.fromkeys(copies, 0.0), unwaited=copies),
        Changed(removed=copies),
    ):
        assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.02)


def test_a_full_queue_makes_the_host_wait_and_that_is_no_loss():
    program, computed, kernels = QueueProgram(), [], []
    for _ in range(3 * STEPS):
        for _ in range(400):
            kernels.append(program.launch(20 * US))
            computed.append(program.host(2 * US))
        program.step()
    assert len(kernels) > 10 * QUEUE
    assert predicted(program, Changed(hidden=computed)).value == pytest.approx(0, abs=0.005)
    changed = Changed(factors=dict.fromkeys(kernels, 0.7))
    assert predicted(program, changed).value == pytest.approx(realised(program, changed), abs=0.02)


def test_of_a_long_recording_some_steps_stand_for_all(monkeypatch):
    program, waits = QueueProgram(), []
    for step in range(60):
        program.launch((30 + step) * US)
        waits.append(program.sync())
        program.host(40 * US)
        program.step()
    edit = program.edit(Changed(unwaited=waits))
    whole = replay(program).saving([edit])
    monkeypatch.setattr("gpuscope.diagnosis.replay.MOST_CALLS", 50)
    some = replay(program)
    assert some.reason is None
    assert some.error < 1e-3
    assert some.saving([]).value == 0
    assert some.saving([edit]).value == pytest.approx(whole.value, abs=0.03)
    assert (some.saving([edit]).low, some.saving([edit]).high) != (whole.low, whole.high)


OPERATIONS = st.one_of(
    st.tuples(st.just("host"), st.integers(5 * US, 300 * US)),
    st.tuples(st.just("launch"), st.integers(5 * US, 300 * US), st.integers(0, 1)),
    st.tuples(st.just("fetch"), st.integers(2 * US, 50 * US)),
    st.tuples(st.just("copy"), st.integers(20 * US, 100 * US)),
    st.tuples(st.just("sync")),
    st.tuples(st.just("sync_device")),
)


@st.composite
def programs(draw):
    """The same operations in each step, and what is changed of them in every step."""
    body = draw(st.lists(OPERATIONS, min_size=1, max_size=10))
    changes = draw(
        st.lists(st.sampled_from(["no", "no", "hidden", "unwaited", "removed", 0.5, 0.0]), min_size=len(body) + 1)
    )
    # Each delay comes once alone, to be learned.
    lesson = [
        ("launch", 9 * US),
        ("launch", 90 * US),
        ("fetch", 9 * US),
        ("sync",),
        ("host", 9 * US),
        ("sync",),
        ("copy", 30 * US),
    ]
    program = QueueProgram()
    hidden, unwaited, removed, factors = set(), set(), set(), {}
    for _ in range(4):
        for what, *arguments in [*lesson, ("sync_device",)]:
            getattr(program, what)(*arguments)
        for (what, *arguments), change in zip(body, changes, strict=False):
            number = getattr(program, what)(*arguments)
            if what == "host" and change == "hidden":
                hidden.add(number)
            if what in ("sync", "sync_device", "copy") and change == "unwaited":
                unwaited.add(number)
            if what not in ("host",) and change == "removed":
                removed.add(number)
            if what in ("launch", "copy", "fetch") and isinstance(change, float):
                factors[number] = change
        program.sync_device()
        program.step()
    return program, Changed(unwaited, removed, hidden, factors)


@given(programs())
def test_random_programs_take_as_long_as_predicted(case):
    program, changed = case
    made = replay(program)
    assert made.reason is None
    saving = made.saving([program.edit(changed)])
    assert saving.value == pytest.approx(realised(program, changed), abs=0.02)


@given(programs())
def test_the_share_of_an_edit_needs_no_model(case):
    program, changed = case
    made = replay(program)
    share = made.share(program.edit(changed))
    made.reason = "set aside"
    assert made.saving([program.edit(changed)]) is None
    assert made.share(program.edit(changed)) == share
    assert 0 <= share <= 1


def test_the_share_of_host_time_is_what_it_takes_of_each_step():
    program, _, computed = waiting_loop()
    made = replay(program)
    share = made.share(program.edit(Changed(removed=computed)))
    assert share == pytest.approx(realised(program, Changed(removed=computed)), abs=0.05)


KERNEL = {"track": {"device": [0]}, "variant": {"name": ["kernel"]}}


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (aggregate, "aggregate mode"),
        (cpu_only, "no GPU work"),
        (lambda: make_trace({**KERNEL, "kernel": {"start_ns": [5], "duration_ns": [9]}}), "no calls"),
        (lambda: waiting_loop()[0].run().trace(), "one step says nothing"),
    ],
)
def test_what_a_replay_needs_is_said(trace, reason):
    made = Replay(trace(), Steps(np.array([0]), np.array([10**19 // 10]), "given"))
    assert reason in made.reason
    edit = Edit(unwaited=np.arange(3), kernels=np.array([0]), kernel_factors=np.array([0.5]))
    assert made.saving([edit]) is None
    assert 0 <= made.share(edit) <= 1


def test_a_recording_that_comes_out_differently_promises_nothing():
    program, waits, _ = waiting_loop()
    tables = program.run().tables()
    rng = np.random.default_rng(1)
    api = tables["api"]
    # The GPU starts whenever it likes: what held it back is not in the recording.
    tables["kernel"]["start_ns"] = [each + int(rng.integers(0, 400) * US) for each in tables["kernel"]["start_ns"]]
    made = Replay(make_trace(tables), program.run().steps)
    assert len(api["call"]) == 2 * STEPS
    assert made.error > 0.03
    assert "off by" in made.reason
    assert made.saving([program.edit(Changed(unwaited=waits))]) is None


def test_work_without_its_launch_makes_no_model():
    program, _, _ = waiting_loop()
    tables = program.run().tables()
    tables["kernel"]["correlation"] = [9999] * 5 + tables["kernel"]["correlation"][5:]
    made = Replay(make_trace(tables), program.run().steps)
    assert made.reason == "the launches of 5 of 10 kernels, copies and fills were not recorded"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Edit(kernels=np.array([1])), "kernel_factors has 0 entries"),
        (Edit(copies=np.array([1, 2]), copy_factors=np.array([0.5])), "one for each of the 2 copies"),
        (Edit(host_spans=np.array([1, 2, 3])), r"host_spans has the shape \(3,\); accepted is \(n, 3\)"),
        (Edit(unwaited=np.array([[1, 2]])), r"unwaited has the shape \(1, 2\); accepted is \(n,\)"),
    ],
)
def test_an_edit_of_another_shape_is_refused(edit, words):
    made = replay(waiting_loop()[0])
    with pytest.raises(InvalidArgument, match=words):
        made.saving([edit])


def test_rows_that_the_recording_does_not_have_change_nothing():
    far = np.array([-1, 10**6, 2**62, -(2**62)])
    edit = Edit(
        unwaited=far,
        removed_calls=far,
        host_spans=np.array([[9, 0, 10], [-1, 0, 5], [2**40, 0, 5], [0, 2**62, -(2**62)], [0, -(2**63), 5]]),
        kernels=far,
        kernel_factors=np.array([0.5, np.nan, np.inf, -1]),
        copies=far,
        copy_factors=np.zeros(4),
    )
    made = replay(waiting_loop()[0])
    assert made.saving([edit]).value == 0
    assert made.share(edit) == 0


def test_lists_and_empty_arrays_of_another_type_do_as_well():
    program, waits, _ = waiting_loop()
    made, edit = replay(program), program.edit(Changed(unwaited=waits))
    empty = np.array([])
    of_lists = Edit(edit.unwaited.tolist(), empty, empty, [], [], empty, empty)
    assert made.saving([of_lists]) == made.saving([edit])


WILD = st.one_of(st.integers(0, 3), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))
TIME = st.one_of(st.integers(0, 10**6), st.integers(-(2**63), 2**63 - 1))


@given(st.data())
def test_damaged_rows_do_no_harm(data):
    tables = backward_on_a_worker()[0].run().tables()
    for table, column in data.draw(
        st.lists(st.sampled_from([(name, column) for name in ("api", "kernel") for column in tables[name]]), max_size=4)
    ):
        values = tables[table][column]
        bits = 16 if column in ("track", "thread", "call") else 32
        for place in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=5)):
            values[place] = data.draw(TIME) if column.endswith("_ns") else data.draw(WILD) % 2**bits
    trace = damaged_trace(tables)
    if trace is None:
        return
    steps = backward_on_a_worker()[0].run().steps
    made = Replay(trace, steps)
    made.leave_out_recording()
    edit = Edit(
        unwaited=np.arange(50),
        kernels=np.arange(9),
        kernel_factors=np.full(9, 0.5),
        host_spans=np.array([[0, 1, 2]]),
    )
    saving = made.saving([edit])
    assert (saving is None) == (made.reason is not None)
    assert saving is None or np.isfinite([saving.value, saving.low, saving.high]).all()
    assert 0 <= made.share(edit) <= 1


def damaged_trace(tables):
    """None for what no file can hold."""
    try:
        return make_trace(tables, info={"audit.launch_cost_ns": "1000", "audit.region_cost_ns": str(2**63 - 1)})
    except CorruptTrace:
        return None
