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


def curves(**options):
    """Two lines over sizes, of which one has an unknown interval and the other lacks a size."""
    x = [64, 256, 1024, 4096]
    low, high = [0.9e-5, 1.8e-4, -math.inf, 0.9e-2], [1.1e-5, 2.2e-4, math.inf, 1.1e-2]
    lines = (
        Line("CPU", x, [1e-5, 2e-4, 3e-3, 1e-2], 7, low=low, high=high),
        Line("GPU", x[:3], [2e-5, 3e-5, 4e-5], 1, "square", "dash"),
    )
    n, time = Axis("n", log=True, ticks=x), Axis("time of a call", "time", log=True)
    return Chart("curves", [View("times", n, time, lines, text="the GPU is faster")], **options)


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


def test_a_table_has_all_lines_of_a_view_and_its_message():
    text = curves().to_html()
    assert text.count("<table>") == 1
    assert "<td>1,024</td><td>3.000 ms</td><td>unknown</td><td>40.00 us</td></tr>" in text
    assert "<td>9.000 ms to 11.00 ms</td><td>-</td></tr>" in text
    assert "<p>the GPU is faster</p>" in text


def test_a_table_has_the_first_rows_of_many():
    many = Line("many", list(range(600)), [1.0] * 600, 0)
    text = Chart("many", [View("all", Axis("x"), Axis("y"), (many,))]).to_html()
    assert "<caption>all, the first 500 of 600</caption>" in text
    assert text.count("<tr>") == 501


def test_a_rate_has_its_unit():
    line = Line("copy", [1], [2e9], 0)
    assert (
        "<td>2.00 GB/s</td>" in Chart("copy", [View("copy", Axis("n"), Axis("rate", "rate", "B"), (line,))]).to_html()
    )


def test_notices_and_the_environment_are_around_the_figure():
    noted = curves(above={"Left out": ["<one>"]}, below={"careful": ()}, environment={"driver": "580"})
    text = noted.to_html()
    places = [text.index(words) for words in ("Left out<ul><li>&lt;one&gt;</li>", 'id="chart"', ">careful<", "<dd>580")]
    assert places == sorted(places)
    assert text.index('id="figures"') < places[-1]


def test_the_page_allows_no_request():
    text = curves().to_html()
    assert "content=\"default-src 'none';" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=", text)


def test_every_control_has_a_label():
    form = re.search(r'<form id="controls".*?</form>', chart().to_html(), re.DOTALL)[0]
    assert len(re.findall(r"<(?:select|input)\b", form)) == 3
    assert len(re.findall(r"<label[^>]*>(?:(?!</label>).)*<(?:select|input)\b", form, re.DOTALL)) == 3


def test_an_address_of_anything_is_harmless(show):
    with show(chart(), "view=%3Cimg%3E&logx=7&x") as page:
        assert page.get_attribute("#chart", "data-shown") == "kernel"


# Within the page: a pointer that is moved from here takes 30 s for it.
POINT_EVERYWHERE = """() => {
  const chart = document.querySelector("#chart"), box = chart.getBoundingClientRect(), seen = [];
  for (let x = 60; x < box.width; x += 12) {
    for (let y = 40; y < box.height - 50; y += 25) {
      const at = {clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerType: "mouse"};
      document.elementFromPoint(at.clientX, at.clientY)?.dispatchEvent(new PointerEvent("pointermove", at));
      const tip = chart.querySelector(".tip");
      if (tip.checkVisibility()) seen.push(tip.innerText.split(",")[0]);
    }
  }
  return seen;
}"""


def test_keys_go_from_point_to_point_and_to_the_other_curve(show):
    with show(curves()) as page:
        page.focus("#chart")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.locator("#chart .tip").inner_text().startswith("GPU, n 256\n30.0 µs")
        assert page.inner_text("#said").startswith("GPU, n 256")
        page.keyboard.press("Escape")
        assert page.locator("#chart .tip").is_hidden()


def test_a_pointer_reaches_every_curve(show):
    with show(curves()) as page:
        assert set(page.evaluate(POINT_EVERYWHERE)) == {"CPU", "GPU"}


def test_a_reader_looks_closer_and_back(show):
    with show(curves()) as page:
        whole = span(page)
        box = page.locator("#chart").bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 300, steps=3)
        page.mouse.up()
        part = span(page)
        assert whole[0] < part[0] < part[1] < whole[1]
        assert whole[2] < part[2] < part[3] < whole[3]
        page.keyboard.down("Shift")
        page.mouse.down()
        page.mouse.move(box["x"] + 600, box["y"] + 300, steps=3)
        page.mouse.up()
        page.keyboard.up("Shift")
        moved = span(page)
        assert moved[0] < part[0]
        assert moved[1] / moved[0] == pytest.approx(part[1] / part[0], rel=1e-3)
        page.click("#whole")
        assert span(page) == whole
        page.focus("#chart")
        page.keyboard.press("+")
        assert span(page)[1] < whole[1]
        page.keyboard.press("0")
        assert span(page) == whole
        page.mouse.move(box["x"] + 300, box["y"] + 200)
        page.mouse.wheel(0, -300)
        for _ in range(200):
            if span(page) != whole:
                break
            page.wait_for_timeout(50)
        assert span(page)[1] < whole[1]
        page.dblclick("#chart")
        assert span(page) == whole


def test_a_linear_axis_shows_another_range_and_is_kept_in_the_address(show):
    with show(curves()) as page:
        before = span(page)
        page.uncheck("#logx")
        assert span(page) != before
        assert "logx=false" in page.url


def test_a_curve_is_hidden_and_shown_by_its_name(show):
    with show(curves()) as page:
        name = page.locator("#legend button").first
        name.click()
        assert name.get_attribute("aria-pressed") == "false"
        page.focus("#chart")
        page.keyboard.press("ArrowRight")
        assert page.locator("#chart .tip").inner_text().startswith("GPU, n 64")
        name.click()
        page.focus("#chart")
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
        assert page.locator("#chart .tip").inner_text().startswith("CPU, n 64")


def test_the_chart_is_saved_as_a_picture(show):
    with show(curves()) as page:
        with page.expect_download() as download:
            page.click("#png")
        assert download.value.path().read_bytes().startswith(b"\x89PNG")
        assert download.value.suggested_filename.endswith(".png")


def test_an_interval_far_wider_than_the_values_flattens_nothing(show):
    def wide(low, high):
        line = Line("line", [1, 2], [1e-6, 2e-6], 0, low=low, high=high)
        return Chart("wide", [View("wide", Axis("n"), Axis("time", "time", log=True), (line,))])

    with show(wide([0.9e-6, 1.9e-6], [1.1e-6, 2.1e-6])) as page:
        usual = span(page)
    with show(wide([0.9e-6, 1e-15], [1.1e-6, 1e9])) as page:
        assert span(page) == usual
        page.click("#everything")
        assert span(page)[3] > 1e8


@pytest.mark.parametrize("width", [360, 1280, 3840])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways_and_keeps_the_rules_of_accessibility(show, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    made = curves(facts={"GPU": "H200"}, above={"Left out": ["one"]}, below={"careful": ()}, environment={"CPU": "x"})
    # axe brings its script along, which the page's policy rightly bars.
    with show(made, width=width, color_scheme=scheme, bypass_csp=True) as page:
        page.locator("#figures summary").click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
        assert found.violations_count == 0, found.generate_report()


def test_paper_has_the_chart_and_the_tables_in_light_colors(show):
    with show(curves(), color_scheme="dark") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("#figures table").first.is_visible()
        assert page.locator("#chart").is_visible()
        assert page.locator("#legend").is_visible()
        assert page.locator("#controls").is_hidden()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert len(page.pdf()) > 10_000


def test_without_javascript_the_tables_are_there(show):
    with show(curves(), complete=False, java_script_enabled=False) as page:
        assert "The chart needs JavaScript" in page.inner_text("main")
        page.locator("#figures summary").click()
        assert page.locator("#figures tbody tr").count() == 4


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
