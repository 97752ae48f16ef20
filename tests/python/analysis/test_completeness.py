# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fakes.recordings import INFO, cpu_only, make_trace, training
from gpuscope._core import Flag
from gpuscope.analysis import audit

COMPLETE = (
    "audit: complete - 3 of 3 launches have their kernel record, 1 graph launch ran 2 nodes, 0 dropped, "
    "overhead 1.8 % (estimated)"
)


def audit_of(**counters):
    return audit(make_trace({}, info={**INFO, **{name.replace("__", "."): text for name, text in counters.items()}}))


def test_a_whole_recording_is_complete():
    result = audit(training())
    assert result.complete
    assert result.reasons == ()
    assert result.verdict == COMPLETE


def test_the_verdict_says_how_the_overhead_was_found_and_what_of_it_is_cuptis():
    parts = {"audit__overhead_ns": "190000", "audit__overhead_cupti_ns": "150000", "audit__overhead_own_ns": "40000"}
    found = audit_of(**parts, audit__overhead_source="measured")
    assert found.verdict.endswith("overhead 19.0 % (measured; CUPTI's part 15.0 %)")
    assert (found.overhead_own_ns, found.overhead_cupti_ns) == (40_000, 150_000)
    found = audit_of(**parts, audit__overhead_source="estimated: the GPU was busy with other work")
    assert found.verdict.endswith("overhead 19.0 % (estimated; CUPTI's part 15.0 %)")
    assert found.to_dict()["overhead_source"] == "estimated: the GPU was busy with other work"
    assert "overhead: estimated: the GPU was busy with other work" in str(found)


@pytest.mark.parametrize(
    ("counter", "count", "reason"),
    [
        ("missing", 12, "12 launches have no kernel record"),
        ("missing", 1, "1 launch has no kernel record"),
        ("dropped", 5, "CUPTI dropped 5 records"),
        ("pool_exhausted", 2, "CUPTI found no free buffer 2 times"),
        ("zero_time", 1, "1 record has no timestamps"),
        ("backward_time", 3, "3 records have an end before the start"),
        ("foreign_buffers", 1, "another user of CUPTI took part in 1 buffer"),
        ("incomplete", 1, "1 kernel has no end, still running when recording stopped"),
        ("log_dropped", 1234, "1,234 regions or calls did not fit the log"),
        ("evicted", 7, "7 rows did not fit the memory cap"),
        ("refused", 1, "1 row did not fit the memory cap"),
        ("unread_bytes", 216, "216 bytes of CUPTI's buffers made no record"),
    ],
)
def test_each_loss_makes_it_incomplete_and_is_reported(counter, count, reason):
    result = audit_of(**{f"audit__{counter}": str(count)})
    assert not result.complete
    assert result.reasons == (reason,)
    assert result.verdict == f"audit: INCOMPLETE - {reason}"
    assert getattr(result, counter) == count


def test_kernels_that_still_ran_are_named():
    trace = make_trace(
        {
            "track": {"device": [0]},
            "variant": {"name": [f"kernel_{number}" for number in range(7)]},
            "kernel": {
                "variant": [6, 1, 6, 0, 2, 3, 4, 5],
                "flags": [Flag.INCOMPLETE, 0, Flag.INCOMPLETE, *[Flag.INCOMPLETE] * 5],
            },
        },
        info=INFO | {"audit.incomplete": "7"},
    )
    assert audit(trace).reasons == (
        "7 kernels have no end, still running when recording stopped: "
        "kernel_6 (2), kernel_0 (1), kernel_2 (1), kernel_3 (1), kernel_4 (1), 1 more",
    )


def test_all_losses_are_reported():
    assert audit_of(audit__missing="2", audit__dropped="1").verdict.count(";") == 1


@pytest.mark.parametrize("counter", ["unattributed", "unmatched_exits", "copies_without_record"])
def test_what_is_no_loss_is_remarked(counter):
    result = audit_of(**{f"audit__{counter}": "4"})
    assert result.complete
    assert "4" in result.remarks[0]


def test_what_the_ring_gave_up_is_no_loss():
    result = audit_of(session__mode="ring", audit__evicted="7")
    assert result.complete
    assert result.remarks == ("the ring gave up 7 rows, the oldest",)


def test_notes_of_the_session_are_remarks():
    assert audit_of(session__notes="one\ntwo").remarks == ("one", "two")


def test_without_a_gpu_nothing_is_amiss_and_the_details_say_why_no_gpu_was_traced():
    result = audit(cpu_only())
    assert result.complete
    assert not result.gpu_traced
    assert result.verdict.startswith("audit: complete on the CPU, overhead ")
    assert "GPU: not traced, no NVIDIA driver was found" in str(result)


def test_a_gpu_that_could_not_be_traced_is_no_matter_of_course():
    result = audit_of(session__tier="cpu", session__tier_reason="nsys holds CUPTI")
    why = "audit: complete on the CPU - GPU work was not traced: nsys holds CUPTI; overhead"
    assert result.verdict.startswith(why)
    assert result.brief.startswith(why)


def test_the_brief_verdict_counts_notes_and_fits_a_terminal():
    assert audit(training()).brief == "audit: complete, 3 launches recorded, 1 graph launch, overhead 1.8 %"
    assert audit_of(session__notes="one\ntwo").brief.endswith(", 2 notes")
    assert audit_of(audit__launches="0", audit__graph_launches="0").brief.startswith("audit: complete, no kernel")


def test_what_is_missing_stands_in_the_brief_verdict_too():
    found = audit_of(audit__missing="12", audit__dropped="5")
    assert found.brief == found.verdict
    assert "12 launches have no kernel record; CUPTI dropped 5 records" in found.brief


def test_events_in_place_of_kernels_are_reported():
    result = audit_of(session__tier="events", session__tier_reason="libcupti was not found")
    assert not result.gpu_traced
    assert "kernels were not traced: libcupti was not found" in result.verdict


def test_no_launch_is_reported():
    result = audit_of(audit__launches="0", audit__graph_launches="0")
    assert result.verdict.startswith("audit: complete - no kernel was launched")


def test_overhead_is_of_the_recorded_time():
    assert audit(training()).overhead_percent == pytest.approx(1.8)


def test_overhead_of_no_time_is_zero():
    assert audit_of(session__stop_ns="0", session__start_ns="0").overhead_percent == 0.0


def test_decode_time_is_per_kernel():
    assert audit_of(audit__decode_cpu_ns="400", audit__kernels="4").decode_ns_per_record == 100.0


def test_graph_nodes_are_counted_from_the_rows_too():
    trace = training()
    trace.store.set_info("audit.graph_nodes", "0")
    assert audit(trace).graph_nodes == 2


def test_a_counter_that_is_no_number_counts_as_zero():
    assert audit_of(audit__missing="many").missing == 0


def test_printing_lists_every_counter():
    text = str(audit_of(audit__dropped="5", session__notes="slow disk"))
    assert "lost: CUPTI dropped 5 records" in text
    assert "note: slow disk" in text
    for name in ("launches", "callbacks", "decode_lag_max_ns", "overhead_percent"):
        assert name in text


def test_an_audit_cannot_be_changed():
    with pytest.raises(AttributeError):
        audit(training()).complete = False


def test_a_file_that_was_cut_off_is_not_complete() -> None:
    result = audit_of(file__truncated_at="300")
    assert not result.complete
    assert "cut off at byte 300" in result.verdict


def test_what_was_lost_with_a_damaged_file_is_counted() -> None:
    result = audit_of(
        file__lost_blocks="2", file__lost_rows="kernel 15000 20000\nregion 40 0", file__cut_references="7"
    )
    assert result.reasons == (
        "2 blocks of the file were damaged",
        "lost with it are 5,000 of 20,000 rows of kernel, all rows of region but 40",
        "7 references to lost rows are none now",
    )


def test_a_recording_that_is_not_finished_is_not_complete() -> None:
    assert audit_of(session__unfinished="its window is still open").reasons == ("its window is still open",)
