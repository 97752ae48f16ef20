# SPDX-License-Identifier: Apache-2.0
"""What a report's timeline tells: where an event was launched, what fills a stretch, the values of curves."""

from __future__ import annotations

import json
import re

import pytest

from fakes.browser import opener
from fakes.gscope import NONE
from fakes.loops import Loop
from fakes.recordings import make_trace
from gpuscope._core import Flag
from gpuscope.exporters.page import report, report_events, report_series
from gpuscope.exporters.page.report import export_report

ENDS = {"session.start_ns": "0", "session.stop_ns": "70000"}
GIB = 1 << 30


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a trace."""
    return opener(browser, tmp_path / "report.html", export_report)


def told(page, name):
    """A fact of the chosen event, or of the measured stretch."""
    facts = page.eval_on_selector_all(
        "#details dl > div", "all => all.map((one) => [...one.children].map((c) => c.textContent))"
    )
    return dict(facts)[name]


def launched_within(region, **tables):
    """A kernel that the second of two regions at the same time launches; the first has a call as well."""
    return make_trace(
        {
            "path": {"name": ["first", "second"], "parent": [NONE, NONE]},
            "region": {"start_ns": [1000, 2000], "duration_ns": [50000, 60000], "path": [0, 1], "parent": [NONE] * 2}
            | region,
            "variant": {"name": ["kernel"], "grid_x": [1], "block_x": [32]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "call": {"name": ["cuLaunchKernel"], "kind": [1]},
            "api": {"start_ns": [3000, 5000], "duration_ns": [500, 1000], "correlation": [9, 1], "region": [0, 1]}
            | ({"thread": region["thread"]} if "thread" in region else {}),
            "kernel": {"start_ns": [9000], "duration_ns": [5000], "correlation": [1], "variant": [0], "region": [1]},
            **tables,
        },
        info=ENDS,
    )


@pytest.mark.parametrize(
    "trace",
    [
        lambda: launched_within({"thread": [0, 1]}, thread={"system_id": [11, 12], "name": ["worker", "worker"]}),
        lambda: launched_within({"flags": [int(Flag.ASYNC)] * 2}, thread={"system_id": [11], "name": ["main"]}),
    ],
    ids=["threads of one name", "tasks of one thread"],
)
def test_work_is_in_the_region_that_launched_it(show, trace):
    with show(trace()) as page:
        page.focus("#lanes")
        page.keyboard.press("Enter")
        assert page.inner_text("#details h3") == "kernel"
        assert told(page, "in") == "second"


def test_regions_around_work_stand_outermost_first_and_without_their_step(show):
    made = Loop()
    for _ in made.steps(6):
        with made.region("model"), made.region("layer"):
            made.launch()
    with show(made.trace()) as page:
        page.focus("#lanes")
        page.keyboard.press("Enter")
        assert told(page, "in") == "model > layer"


def test_a_step_and_a_driver_call_have_the_names_of_their_boxes(show):
    made = Loop()
    for _ in made.steps(6):
        made.launch(name="void at::native::add<4>(int)")
    with show(made.trace()) as page:
        for text, name in (
            ("ProfilerStep#0", "ProfilerStep#0"),
            ("cudaLaunchKernel", "cuLaunchKernel"),
            ("add<4>", "void at::native::add<4>(int)"),
        ):
            page.focus("#lanes")
            page.keyboard.press("Escape")
            page.fill("#find", text)
            page.press("#find", "Enter")
            assert page.inner_text("#details h3") == name


def measured(page):
    """Measures nearly the whole timeline."""
    page.locator("#lanes").scroll_into_view_if_needed()
    box = page.locator("#lanes").bounding_box()
    y = box["y"] + 60
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 1, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, y, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    return told(page, "GPU 0 stream 7")


def test_a_stretch_is_no_busier_than_whole_where_kernels_overlap(show):
    trace = make_trace(
        {
            "variant": {"name": ["a"]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "kernel": {"start_ns": [0, 10_000, 20_000], "duration_ns": [35_000, 20_000, 15_000], "variant": [0] * 3},
        },
        info={**ENDS, "session.stop_ns": "35000"},
    )
    with show(trace) as page:
        count, share = re.fullmatch(r"(\d+) events, busy ([\d.]+) %", measured(page)).groups()
    assert int(count) == 3
    assert 99 <= float(share) <= 100


def many_at_once():
    """Kernels of one stream that all run from 12 us until 200 us, and a short one in the midst of their begins."""
    starts = [1000 * at for at in range(12)]
    return make_trace(
        {
            "variant": {"name": ["long", "short"]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "kernel": {
                "start_ns": [*starts, 20_000],
                "duration_ns": [*(200_000 - start for start in starts), 1000],
                "variant": [*([0] * 12), 1],
            },
        },
        info={**ENDS, "session.stop_ns": "200000"},
    )


def test_a_stretch_has_what_began_before_it_also_where_more_run_at_once_than_have_lanes(show):
    with show(many_at_once(), "/timeline?t=1000-5000") as page:  # from 32 us on
        assert measured(page) == "12 events, busy 100.0 %"


def test_what_is_handed_out_of_a_stretch_has_what_began_before_it(monkeypatch):
    monkeypatch.setattr(report_events, "MOST_EVENTS", 0)
    monkeypatch.setattr(report_events, "_WHOLE_LANE", 0)
    found = json.loads(report.ServedReport(many_at_once()).events(1000, 5000))
    lanes = [lane for group in found["groups"] if group["kind"] == "stream" for lane in group["lanes"]]
    assert sum(lane["total"] for lane in lanes) >= 12


def test_a_stretch_of_more_events_than_fit_is_measured_by_their_sums(show, monkeypatch):
    made = Loop()
    for _ in made.steps(30):
        for _ in range(40):
            made.launch(gpu=30)
        made.wait()
    trace = made.trace()
    with show(trace) as page:
        whole = measured(page)
    monkeypatch.setattr(report_events, "MOST_EVENTS", 600)
    monkeypatch.setattr(report_events, "_WHOLE_LANE", 200)
    with show(trace) as page:
        found = re.fullmatch(r"about ([\d,]+) events, busy about ([\d.]+) %", measured(page))
    count, share = re.fullmatch(r"([\d,]+) events, busy ([\d.]+) %", whole).groups()
    assert int(found[1].replace(",", "")) == pytest.approx(int(count.replace(",", "")), rel=0.01)
    assert float(found[2]) == pytest.approx(float(share), abs=0.5)


def test_memory_that_moves_within_a_point_of_its_curve_is_told_as_a_range(show, monkeypatch):
    monkeypatch.setattr(report_series, "_POINTS", 100)
    moments = range(1000, 41_000, 100)
    sizes = [GIB if place % 2 else 3 * GIB for place in range(len(moments))]
    zeros = [0] * len(moments)
    memory = {"start_ns": list(moments), "allocated_bytes": sizes, "bytes": sizes, "ordinal": zeros}
    with show(launched_within({}, allocation=memory, thread={"system_id": [11]})) as page:
        page.focus("#lanes")
        page.keyboard.press("Enter")
        assert told(page, "then GPU 0 memory in use") == "1.00 GiB to 3.00 GiB"


def test_links_of_the_page_leave_the_tree_as_it_is(show):
    made = Loop()
    for _ in made.steps(6):
        with made.region("model"):
            made.launch()
    with show(made.trace()) as page:
        page.select_option("#tree-by", "cpu")
        page.click("#tree-invert")
        page.locator(".steps a").first.click()
        page.wait_for_selector("nav a[href='#/timeline'][aria-current]")
        assert page.input_value("#tree-by") == "cpu"
        assert page.get_attribute("#tree-invert", "aria-pressed") == "true"


@pytest.mark.parametrize("text", ["at::native::add", "native::add<4>(int)", "add<4>"])
def test_kernels_are_found_by_their_whole_name_and_by_what_boxes_show(show, text):
    made = Loop()
    for _ in made.steps(6):
        made.launch(gpu=30, name="void at::native::add<4>(int)")
        made.launch(gpu=30, name="void at::other<4>(int)")
    with show(made.trace()) as page:
        page.fill("#find", text)
        page.fill("#tree-find", text)
        assert page.inner_text("#found") == "6 found"
        assert page.inner_text("#tree-found") == "50.0 % found"


def test_driver_calls_are_found_by_their_names_in_the_tables(show):
    with show(launched_within({"thread": [0, 0]}, thread={"system_id": [11]})) as page:
        page.fill("#find", "cudaLaunchKernel")
        assert page.inner_text("#found") == "2 found"
