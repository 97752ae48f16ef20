# SPDX-License-Identifier: Apache-2.0
"""A recording stays within its memory, and says what that cost."""

from __future__ import annotations

import gpuscope as gs


def test_a_full_recording_stops_at_its_cap_and_says_how_much_it_left_out():
    with gs.profile(max_bytes=1 << 20) as prof:
        for _ in range(100_000):
            with gs.record_function("x"):
                pass
    audit = prof.audit()
    assert not audit.complete
    assert audit.refused + len(prof.trace.regions) == 100_000
    assert len(prof.trace.regions) * 32 <= 2 << 20
