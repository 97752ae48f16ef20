# SPDX-License-Identifier: Apache-2.0
"""The call tree of a report's page: whose time is whose own, and trees that are deeper than a screen or a stack."""

from __future__ import annotations

import pytest

from fakes.browser import opener
from fakes.gscope import NONE
from fakes.loops import Loop
from fakes.recordings import make_trace
from gpuscope.exporters.page.report import export_report
from gpuscope.exporters.page.report_names import Names
from gpuscope.exporters.page.report_tables import _MOST_NODES, columns_of_nodes

DEEP = 3_000
HIGH = 20  # pixels of a box


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a trace."""
    return opener(browser, tmp_path / "report.html", export_report)


def regions(parents, starts, durations, threads=None):
    """Regions of a name each, nested as their parents say."""
    count = len(parents)
    return make_trace(
        {
            "path": {"name": [f"f{at}" for at in range(count)], "parent": parents},
            "thread": {"system_id": [1, 2]},
            "region": {
                "start_ns": starts,
                "duration_ns": durations,
                "path": list(range(count)),
                "parent": parents,
                "thread": threads or [0] * count,
            },
        },
        info={"session.start_ns": "0", "session.stop_ns": "20000000"},
    )


@pytest.fixture(scope="module")
def deep():
    rows = range(DEEP)
    return regions([NONE, *rows[:-1]], [1000 + 100 * at for at in rows], [10_000_000 - 200 * at for at in rows])


def facts(page):
    """What is told of the chosen box: its name, and all in one line."""
    return page.inner_text("#tree-details h3"), " ".join(page.inner_text("#tree-details dl").split())


def test_a_region_keeps_its_own_time_whatever_other_threads_do_in_it(show):
    with show(regions([NONE, 0], [1000, 2000], [5_000_000, 4_000_000], [0, 1])) as page:
        page.click("#tree-invert")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        name, told = facts(page)
        assert name == "f0"
        assert told.startswith("CPU time 5.00 ms, 55.6 % of all")
        page.keyboard.press("ArrowRight")
        assert facts(page)[1].startswith("CPU time 4.00 ms, 44.4 % of all")


def test_nodes_that_are_left_out_have_all_that_lies_in_them_as_their_own():
    times = {"device_ns": 0, "self_device_ns": 0, "count": 1, "kind": "region"}
    nodes = [{"parent": None, "name": "all", "cpu_ns": 10_000_000, "self_cpu_ns": 0} | times]
    nodes += [{"parent": 0, "name": f"{at}", "cpu_ns": 1000, "self_cpu_ns": 1000} | times for at in range(_MOST_NODES)]
    nodes += [{"parent": 0, "name": "small", "cpu_ns": 9, "self_cpu_ns": 2} | times]
    nodes += [{"parent": len(nodes) - 1, "name": "smaller", "cpu_ns": 7, "self_cpu_ns": 7} | times]
    columns = columns_of_nodes(nodes, Names(make_trace({}), ()))
    assert columns["cpu"][-1] >= 9
    assert columns["self_cpu"][-1] == columns["cpu"][-1]


@pytest.mark.parametrize("ratio", [1, 2])
def test_a_tree_of_any_depth_is_drawn(show, deep, ratio):
    with show(deep, device_scale_factor=ratio) as page:
        drawn = "canvas => [...canvas.getContext('2d').getImageData(canvas.width - 9, 9, 1, 1).data]"
        assert page.locator("#icicle").evaluate(drawn)[3] == 255
        assert page.locator("#icicle").evaluate("canvas => canvas.height") < 2_000 * ratio


def test_a_box_that_keys_go_to_is_brought_into_view(show, deep):
    with show(deep) as page:
        page.locator("#icicle").focus()
        for _ in range(60):
            page.keyboard.press("ArrowDown")
        place = "canvas => [canvas.parentElement.scrollTop, canvas.parentElement.clientHeight]"
        top, high = page.locator("#icicle").evaluate(place)
        assert top <= 60 * HIGH <= top + high - HIGH + 1
        assert facts(page)[0] == "f59"


def test_a_click_chooses_the_box_under_it_in_a_tree_that_is_scrolled(show, deep):
    with show(deep) as page:
        page.locator("#icicle").evaluate(f"canvas => {{ canvas.parentElement.scrollTop = {100 * HIGH}; }}")
        page.locator("#icicle").click(position={"x": 200, "y": 5.5 * HIGH})
        assert facts(page)[0] == "f104"


def test_a_deep_tree_is_inverted_and_searched(show, deep):
    with show(deep) as page:
        page.click("#tree-invert")
        page.fill("#tree-find", f"f{DEEP - 1}")
        assert page.inner_text("#tree-found").endswith("% found")
        page.fill("#tree-find", "further callers")
        assert page.inner_text("#tree-found").endswith("% found")
        assert page.inner_text("#tree-found") != "0.00 % found"


def test_without_any_time_it_shows_the_calls_that_it_can_be_shown_by(show):
    with show(regions([NONE, NONE], [1000, 2000], [0, 0])) as page:
        assert page.input_value("#tree-by") == "count"
        assert facts(page)[1].startswith("launches and calls 2, 100.0 % of all")


def test_what_a_search_found_is_told_of_what_boxes_are_wide_by(show):
    made = Loop()
    for _ in made.steps(6):
        with made.region("host"):
            made.work(1000)
        with made.region("gpu"):
            made.launch(gpu=30)
    with show(made.trace()) as page:
        page.fill("#tree-find", "host")
        assert page.inner_text("#tree-found") == "0.00 % found"
        page.select_option("#tree-by", "cpu")
        assert float(page.inner_text("#tree-found").removesuffix(" % found")) > 90
