# SPDX-License-Identifier: Apache-2.0
"""Charts of results: the figures on the page, which no outlier flattens, whatever they are named."""

from __future__ import annotations

import math
import re

import pytest

from fakes.browser import opener
from gpuscope.errors import InvalidArgument
from gpuscope.page.chart import Axis, Chart, Line, Mark, View

HOSTILE = "</script><img src=x onerror=\"document.title = 'taken'\">'&amp;{{data}}\u202e"

LINES = (Line("none", [], [], 0), Line("one", [3], [2.0], 0), Line("zeros", [0, 1], [0.0, 0.0], 0))
LINES_OF_TWO = (Line("modes", [1, 2, 3, 4], [1e-4, 1e-4, 2e-2, 1e-4], 0, joined=False),)


def chart(name="kernel", outlier=1e-2):
    times = [1e-5 + 1e-7 * (place % 7) for place in range(200)]
    samples = Line("samples", list(range(201)), [*times, outlier], 7, joined=False)
    curve = Line(
        "curve",
        [1, 10, 100],
        [1e-6, 2e-6, math.nan],
        1,
        "square",
        low=[0.9e-6, -math.inf, 0],
        high=[1.2e-6, math.inf, 0],
    )
    across = Mark("y", 1e-5, 0.99e-5, 1.01e-5, "10 µs", 7)
    time = Axis("time", "time", shown=(0.9e-5, 1.1e-5))
    return Chart(
        name,
        [
            View(
                name,
                Axis("call"),
                time,
                (samples,),
                (across,),
                "a sentence",
                bars=True,
            ),
            View("sizes", Axis("n", log=True), Axis("time", "time", log=True), (curve,)),
        ],
        {"GPU": name},
    )


@pytest.fixture
def show(browser, tmp_path):
    return opener(browser, tmp_path / "chart.html", lambda made, path: made.write_html(path))


def span(page):
    return [float(value) for value in page.get_attribute("#chart", "data-range").split()]


def test_what_lies_far_off_is_counted_at_the_edge_and_shown_when_asked_for(show):
    with show(chart()) as page:
        assert span(page)[2:] == pytest.approx([0.9e-5, 1.1e-5])
        assert page.get_attribute("#chart", "data-beyond") == "1"
        page.click("#everything")
        assert span(page)[3] > 1e-2
        assert page.get_attribute("#chart", "data-beyond") == "0"
        page.click("#whole")
        assert span(page)[3] == pytest.approx(1.1e-5)
        page.focus("#chart")
        page.keyboard.press("End")
        assert page.locator("#chart .tip").inner_text() == "samples, call 200\n10.0 ms"


def test_logarithmic_values_show_all_where_the_axis_would_begin_below_0(show):
    made = Chart("wide", [View("wide", Axis("call"), Axis("time", "time", shown=(-5e-3, 2.5e-2)), LINES_OF_TWO)])
    with show(made) as page:
        page.check("#logy")
        low, high = span(page)[2:]
        assert 0 < low < 1e-4
        assert high > 2e-2
        assert page.get_attribute("#chart", "data-beyond") == "0"


def test_an_axis_ends_where_nothing_is_left_to_see(show):
    sizes = View("sizes", Axis("n", log=True), Axis("time", "time", log=True), LINES_OF_TWO)
    with show(Chart("sizes", [sizes])) as page:
        page.focus("#chart")
        for _ in range(40):
            page.keyboard.press("-")
        widest = span(page)
        page.keyboard.press("-")
        assert span(page) == widest
        assert all(0 < end < math.inf for end in widest)
        page.keyboard.press("0")
        assert span(page)[1] < 10


def test_views_are_chosen_and_kept_in_the_address(show):
    with show(chart()) as page:
        assert page.inner_text("#verdict") == "a sentence"
        page.select_option("#view", "sizes")
        assert page.is_checked("#logx")
        assert "view=sizes" in page.url
        found = page.url.partition("#")[2]
    with show(chart(), found) as page:
        assert page.get_attribute("#chart", "data-shown") == "sizes"
        page.focus("#chart")
        page.keyboard.press("ArrowRight")
        assert page.locator("#chart .tip").inner_text() == "curve, n 1\n1.00 µs\n95 %: 900 ns to 1.20 µs"
        page.keyboard.press("ArrowRight")
        assert "too few samples for an interval" in page.locator("#chart .tip").inner_text()
        page.keyboard.press("ArrowRight")  # to what is no number there is no way
        assert "n 10" in page.locator("#chart .tip").inner_text()


@pytest.mark.parametrize("name", [HOSTILE, "\u202egnorts\u202c עברית", "x" * 10_000, "a\x00b\x1b[31m", ""])
def test_names_run_nothing_and_break_nothing(show, name):
    with show(chart(name), width=360) as page:
        assert page.title() != "taken"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page.inner_text("body"))


@pytest.mark.parametrize(
    "lines", [(), (Line("none", [], [], 0),), (Line("one", [3], [2.0], 0),), (Line("zeros", [0, 1], [0.0, 0.0], 0),)]
)
@pytest.mark.parametrize("log", [False, True])
def test_a_chart_of_little_opens_without_a_complaint(show, lines, log):
    made = Chart("little", [View("little", Axis("x", log=log), Axis("y", "time", log=log), lines)])
    with show(made) as page:
        page.focus("#chart")
        for key in ("ArrowRight", "ArrowDown", "End", "+", "-", "a", "0", "Escape"):
            page.keyboard.press(key)


def test_tables_have_the_figures():
    text = chart().to_html()
    assert "<td>0</td><td>10.00 us</td>" in text
    assert "<td>900.0 ns to 1.200 us</td>" in text


def test_a_notebook_shows_it_in_a_frame_that_may_do_nothing_else():
    text = chart(HOSTILE)._repr_html_()
    assert text.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in text
    assert text.count("<") == 2  # the page is an attribute
    assert "\u202e" not in repr(chart(HOSTILE))


def test_a_page_has_one_suffix(tmp_path):
    with pytest.raises(InvalidArgument, match=r"\.html"):
        chart().write_html(tmp_path / "chart.png")


def test_show_opens_a_file_of_its_own(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    folder = tmp_path / "a folder #1"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    chart().show()
    (path,) = folder.iterdir()
    assert shown == [path.as_uri()]
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert path.stat().st_mode & 0o077 == 0
