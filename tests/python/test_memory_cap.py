# SPDX-License-Identifier: Apache-2.0
"""A recording stays within its memory, and says what that cost."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading

import pytest

import gpuscope as gs

RESIDENT = """
    import gc, json, os
    import gpuscope as gs

    def resident_mib():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def names(count, begin=0):
        for number in range(begin, begin + count):
            with gs.record_function(f"a name that comes once {number:012d}"):
                pass

    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
        names(1000)
    len(prof.trace.regions), prof.audit()  # what is made and imported once is there
    del prof
    before = resident_mib()
"""


def mib_of(program: str) -> dict[str, float]:
    """What a program prints, with the beginning above."""
    script = textwrap.dedent(RESIDENT) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bytes_of(table):
    return sum(table[column].nbytes for column in table.columns)


def test_a_full_recording_stops_at_its_cap_and_says_how_much_it_left_out():
    with gs.profile(max_bytes=1 << 20) as prof:
        for _ in range(100_000):
            with gs.record_function("x"):
                pass
    audit = prof.audit()
    assert not audit.complete
    assert audit.refused + audit.log_dropped + len(prof.trace.regions) == 100_000
    assert bytes_of(prof.trace.regions) <= 2 << 20


@pytest.mark.parametrize("mode", ["ring", "aggregate"])
def test_names_that_come_once_stay_within_the_cap(mode):
    found = mib_of(f"""
        with gs.profile(activities=[gs.ProfilerActivity.CPU], mode="{mode}", max_bytes=1 << 20) as prof:
            names(400_000)
            inside = resident_mib() - before
        prof.trace
        del prof
        gc.collect()
        print(json.dumps({{"inside": inside, "after": resident_mib() - before}}))
    """)
    assert found["inside"] < 32  # the log of a thread that writes faster than is read: 16 MiB
    assert found["after"] < 16


def test_a_dropped_recording_gives_its_memory_back():
    found = mib_of("""
        kept = []
        for window in range(3):
            with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
                names(100_000, window * 100_000)
            kept.append(len(prof.trace.regions) + prof.audit().log_dropped)
            del prof
            gc.collect()
        print(json.dumps({"after": resident_mib() - before, "regions": min(kept)}))
    """)
    assert found["regions"] == 100_000
    assert found["after"] < 8


def test_names_for_which_there_is_no_room_make_the_audit_incomplete():
    with gs.profile(activities=[gs.ProfilerActivity.CPU], mode="aggregate", max_bytes=1 << 20) as prof:
        for number in range(50_000):
            with gs.record_function(f"a name that comes once {number:012d}"):
                pass
    audit = prof.audit()
    assert not audit.complete
    totals = sum(event.count for event in prof.key_averages())
    assert totals + audit.refused + audit.log_dropped == 50_000


def test_a_ring_keeps_its_cap_of_rows_and_the_newest_of_them():
    cap = 1 << 20
    with gs.profile(activities=[gs.ProfilerActivity.CPU], mode="ring", max_bytes=cap) as prof:
        for _ in range(300_000):
            with gs.record_function("x"):
                pass
    regions, audit = prof.trace.regions, prof.audit()
    assert cap // 2 < bytes_of(regions) <= cap
    clock_readings = len(regions) + audit.evicted + audit.log_dropped - 300_000  # one a second, of which some are kept
    assert 0 <= clock_readings + len(prof.trace.anchors) <= 2 + audit.recorded_ns / 1e9
    assert (regions.start_ns[1:] >= regions.start_ns[:-1]).all()


def test_threads_that_come_and_go_are_all_recorded():
    def live():
        with gs.record_function("short-lived"):
            pass

    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
        for _ in range(1000):
            threads = [threading.Thread(target=live) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(prof.trace.regions) == 2000
    assert prof.audit().complete


def test_profilers_that_come_and_go_leave_nothing():
    found = mib_of("""
        def cycles(count):
            for cycle in range(count):
                with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
                    names(10, cycle * 10)
                assert len(prof.trace.regions) == 10

        cycles(50)
        before = resident_mib()
        cycles(300)
        print(json.dumps({"after": resident_mib() - before}))
    """)
    assert found["after"] < 4
