# SPDX-License-Identifier: Apache-2.0
"""The explorer's page: its figures, verdicts and notices. Charts in general are tested in tests/python/page."""

from __future__ import annotations

import html
import math
from dataclasses import replace

import pytest

from fakes.browser import opener
from fakes.explorations import SIZES, exploration

HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">&amp;{{data}}"
)
VERDICTS = (
    "Data on the GPU: the GPU is faster from 100 (95 %: 90 to 110). "
    "With transfers: the GPU is faster from 268 (95 %: 241 to 295)."
)


def hostile():
    """An exploration in which every text from outside could end its element."""
    found = exploration(environment={HOSTILE: HOSTILE}, remarks=(HOSTILE,), warnings=(HOSTILE,))
    return replace(found, cpu=HOSTILE, gpu=HOSTILE)


def views(found):
    return {view.name: view for view in found.plot().views}


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of an exploration."""
    return opener(browser, tmp_path / "page.html", lambda found, path: found.write_html(path))


def test_every_operation_has_a_view_of_each_metric():
    metrics = ("time", "throughput", "speed-up")
    assert [*views(exploration())] == [
        f"{name}: {metric}" for name in ("Matrix multiplication", "Copy") for metric in metrics
    ]


def test_without_a_gpu_only_the_cpus_time_and_throughput_are_shown():
    found = views(exploration(names=["copy"], gpu=False))
    assert [*found] == ["Copy: time", "Copy: throughput"]
    assert [line.name for view in found.values() for line in view.lines] == ["CPU", "CPU"]


def test_a_view_has_a_curve_for_each_side():
    found = exploration()
    view = views(found)["Copy: time"]
    assert [line.name for line in view.lines] == ["CPU", "GPU", "GPU with transfers"]
    for line, side in zip(view.lines, ("cpu", "gpu", "gpu+transfers"), strict=True):
        points = found.curve("copy", side)
        assert line.x == [*SIZES]
        assert (line.y, line.low) == ([point.wall.value for point in points], [point.wall.low for point in points])


def test_the_throughputs_interval_is_that_of_the_time():
    found = exploration(names=["copy"])
    point, line = found.curve("copy", "gpu")[0], views(found)["Copy: throughput"].lines[1]
    assert line.y[0] == point.rate
    assert (line.low[0], line.high[0]) == pytest.approx((point.rate / 1.05, point.rate / 0.95))


@pytest.mark.parametrize("ends", [(-math.inf, math.inf), (0.0, 1.0)])
def test_the_throughput_of_an_unknown_interval_has_none(ends):
    point = exploration(gpu=False).points[0]
    unknown = replace(point, wall=replace(point.wall, low=ends[0], high=ends[1]))
    assert math.isnan(unknown.throughput.high)


def test_crossings_are_marked():
    marks = views(exploration())["Copy: time"].marks
    assert [(mark.axis, mark.value, mark.low, mark.high) for mark in marks] == [
        ("x", 100.0, pytest.approx(90.0), pytest.approx(110.0)),
        ("x", 268.0, pytest.approx(241.2), pytest.approx(294.8)),
    ]


def test_the_speedup_is_compared_with_the_cpu():
    *_, equal = views(exploration())["Copy: speed-up"].marks
    assert (equal.axis, equal.value, equal.label) == ("y", 1.0, "as fast as the CPU")


def test_the_page_shows_curves_and_verdicts(show):
    with show(exploration()) as page:
        assert page.get_attribute("#chart", "data-shown") == "Matrix multiplication: time"
        assert page.locator("#legend button").all_inner_texts() == ["CPU", "GPU", "GPU with transfers"]
        assert page.inner_text("#verdict") == VERDICTS


def test_rates_have_the_unit_of_the_operation(show):
    with show(exploration(), "view=Copy: throughput") as page:
        page.focus("#chart")
        page.keyboard.press("ArrowRight")
        assert "GB/s" in page.locator("#chart .tip").inner_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": False}, "Only the CPU was measured: PyTorch finds no GPU."),
        ({"interrupted": True}, "The exploration was interrupted"),
        ({"remarks": ("too large",)}, "<li>too large</li>"),
    ],
)
def test_what_a_reader_must_know_stands_above_the_chart(changes, words):
    text = exploration(**changes).to_html()
    assert 0 < text.index(words) < text.index('id="chart"')


def test_warnings_stand_below_the_chart_and_above_the_figures():
    text = exploration(warnings=("careful",)).to_html()
    assert text.index('id="chart"') < text.index("<li>careful</li>") < text.index('id="figures"')


def test_texts_from_outside_are_no_tags():
    text = hostile().to_html()
    assert "<img" not in text
    # In the document's title and the heading, both sides, a name and a value of the environment, a remark, a warning.
    assert text.count(html.escape(HOSTILE)) == 8


def test_hostile_texts_run_nothing(show):
    with show(hostile()) as page:
        assert page.title().startswith("CPU against GPU: </script>")
        assert page.locator("img").count() == 0


def test_without_javascript_the_tables_have_every_point_and_the_verdicts(show):
    with show(exploration(), complete=False, java_script_enabled=False) as page:
        page.locator("#figures summary").click()
        assert page.locator("#figures tbody tr").count() == 2 * 3 * len(SIZES)
        assert VERDICTS in page.inner_text("#figures")
