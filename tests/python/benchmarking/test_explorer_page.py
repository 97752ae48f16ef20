# SPDX-License-Identifier: Apache-2.0
"""The explorer's page: what is in it, and what a browser makes of it."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from fakes.browser import opener
from fakes.explorations import SIZES, exploration

HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">&amp;{{data}}"
)


def island(text: str) -> dict[str, Any]:
    """The data of a page, as a browser would cut it out."""
    found = re.search(r'<script type="application/json" id="exploration">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert "<" not in found[1]  # neither an end tag, nor a comment that would hide one
    content: dict[str, Any] = json.loads(found[1])
    return content


def hostile() -> Any:
    """An exploration in which every text that comes from outside tries to leave its place."""
    found = exploration(environment={HOSTILE: HOSTILE}, remarks=(HOSTILE,), warnings=(HOSTILE,))
    return replace(found, cpu=HOSTILE, gpu=HOSTILE)


def test_the_data_cannot_end_its_script():
    assert island(hostile().to_html()) == json.loads(hostile().to_json())


def test_texts_from_outside_are_no_tags():
    text = hostile().to_html()
    assert "<img" not in text[: text.index('id="exploration"')]
    # In the title, both sides, a name and a value of the environment, a remark and a warning.
    assert text.count(html.escape(HOSTILE)) == 7


def test_the_page_allows_no_request():
    text = exploration().to_html()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=", text[: text.index('id="exploration"')])


def test_every_control_has_a_label():
    form = re.search(r'<form id="controls".*?</form>', exploration().to_html(), re.DOTALL)
    assert form is not None
    controls = re.findall(r"<(?:select|input)\b", form[0])
    labels = re.findall(r"<label[^>]*>(?:(?!</label>).)*<(?:select|input)\b", form[0], re.DOTALL)
    assert len(controls) == len(labels) == 5


def test_the_tables_hold_every_point_without_javascript():
    text = exploration().to_html()
    assert text.count('<th scope="row">') == 2 * len(SIZES)
    assert "the GPU is faster from 268 (95 %: 241 to 295)</p>" in text


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


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of an exploration."""
    return opener(browser, tmp_path / "page.html", lambda found, path: found.write_html(path))


def curves(page):
    return [text.strip() for text in page.locator("#legend button").all_inner_texts()]


def said_of_points(page, count):
    """What the chart says of the first points of its first curve, by keys alone."""
    page.focus("#chart")
    found = []
    for _ in range(count):
        page.keyboard.press("ArrowRight")
        found.append(page.locator("#chart .tip").inner_text().split("\n"))
    return found


def test_the_chart_is_drawn_with_its_curves_and_answers(show):
    with show(exploration()) as page:
        assert page.get_attribute("#chart", "data-shown") == "matmul time both"
        assert curves(page) == ["CPU", "GPU", "GPU with transfers"]
        assert "Data on the GPU: the GPU is faster from 100" in page.inner_text("#verdict")
        assert "With transfers: the GPU is faster from 268" in page.inner_text("#verdict")


def test_the_address_chooses_what_is_shown(show):
    with show(exploration(), "operation=copy&metric=speedup&data=transfers&logy=false") as page:
        assert page.get_attribute("#chart", "data-shown") == "copy speedup transfers"
        assert curves(page) == ["GPU with transfers"]
        assert "268" in page.inner_text("#verdict")
        assert "100" not in page.inner_text("#verdict")
        assert not page.is_checked("#logy")


def test_the_controls_redraw_the_chart_and_its_address(show):
    with show(exploration()) as page:
        page.select_option("#metric", "rate")
        assert page.get_attribute("#chart", "data-shown") == "matmul rate both"
        assert "metric=rate" in page.url
        before = page.get_attribute("#chart", "data-range")
        page.uncheck("#logx")
        assert page.get_attribute("#chart", "data-range") != before
        assert "logx=false" in page.url


def test_an_address_of_anything_is_harmless(show):
    with show(exploration(), "operation=none&metric=%3Cimg%3E&logx=7&x") as page:
        assert page.get_attribute("#chart", "data-shown") == "matmul time both"


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


def test_points_tell_all_their_figures_to_keys_and_pointers(show):
    found = exploration()
    with show(found) as page:
        first, second = said_of_points(page, 2)
        cpu = found.curve("matmul", "cpu")
        assert first[0] == f"CPU, n = {cpu[0].n}"
        assert second[0] == f"CPU, n = {cpu[1].n}"
        assert "200 samples, worth 150 independent ones" in first
        assert not any(line.startswith("speed-up") for line in first)
        page.keyboard.press("ArrowDown")
        other = page.locator("#chart .tip").inner_text()
        assert other.startswith("GPU, n = 128")
        assert f"speed-up {found.curve('matmul', 'gpu')[1].speedup.value:.3g}\N{MULTIPLICATION SIGN}" in other
        assert page.inner_text("#said").startswith("GPU, n = 128")
        page.keyboard.press("Escape")
        assert page.locator("#chart .tip").is_hidden()
        seen = page.evaluate(POINT_EVERYWHERE)
        assert set(seen) == {"CPU", "GPU", "GPU with transfers"}


def span(page):
    left, right, low, high = map(float, page.get_attribute("#chart", "data-range").split())
    return left, right, low, high


def test_a_reader_looks_closer_and_back(show):
    with show(exploration()) as page:
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


def test_a_curve_is_hidden_and_shown_by_its_name(show):
    with show(exploration()) as page:
        page.locator("#legend button").first.click()
        assert page.locator("#legend button").first.get_attribute("aria-pressed") == "false"
        assert said_of_points(page, 1)[0][0].startswith("GPU, n = ")
        page.locator("#legend button").first.click()
        page.keyboard.press("Escape")
        assert said_of_points(page, 1)[0][0].startswith("CPU, n = ")


def test_the_chart_is_saved_as_a_picture(show):
    with show(exploration()) as page:
        with page.expect_download() as download:
            page.click("#png")
        assert download.value.path().read_bytes().startswith(b"\x89PNG")
        assert download.value.suggested_filename.endswith(".png")


def test_a_page_without_a_gpu_has_the_cpus_curve_alone(show):
    with show(exploration(gpu=False), "metric=speedup&data=device") as page:
        assert page.get_attribute("#chart", "data-shown").strip() == "matmul time"
        assert curves(page) == ["CPU"]
        assert page.locator('option[value="speedup"]').count() == 0


def test_hostile_texts_run_nothing(show):
    with show(hostile()) as page:
        assert page.title().startswith("CPU against GPU: </script>")
        assert page.locator("img").count() == 0


def test_a_point_without_an_interval_says_so(show):
    found = exploration(gpu=False)
    points = list(found.points)
    points[2] = replace(points[2], wall=replace(points[2].wall, low=float("-inf"), high=float("inf")))
    with show(exploration(gpu=False, points=tuple(points))) as page:
        told = said_of_points(page, 3)
        assert "too few samples for an interval" in told[2][1]
        assert "too few samples for an interval" not in told[1][1]


def test_an_interval_far_wider_than_the_times_flattens_nothing(show):
    found = exploration(gpu=False)
    points = list(found.points)
    points[2] = replace(points[2], wall=replace(points[2].wall, low=1e-15, high=1e9))
    with show(exploration(gpu=False)) as page:
        usual = span(page)
    with show(exploration(gpu=False, points=tuple(points))) as page:
        assert span(page) == usual
        page.click("#everything")
        assert span(page)[3] > 1e8


@pytest.mark.parametrize("width", [360, 1280, 3840])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways_and_keeps_the_rules_of_accessibility(show, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # axe brings its script along, which the page's policy rightly bars.
    with show(exploration(), width=width, color_scheme=scheme, bypass_csp=True) as page:
        page.locator("#figures summary").click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
        assert found.violations_count == 0, found.generate_report()


def test_paper_has_the_chart_and_the_tables_in_light_colors(show):
    with show(exploration(), color_scheme="dark") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("#figures table").first.is_visible()
        assert page.locator("#chart").is_visible()
        assert page.locator("#legend").is_visible()
        assert page.locator("#metric").is_hidden()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert len(page.pdf()) > 10_000


def test_without_javascript_the_tables_are_there(show):
    with show(exploration(), complete=False, java_script_enabled=False) as page:
        assert "The chart needs JavaScript" in page.inner_text("main")
        page.locator("#figures summary").click()
        assert page.locator("#figures tbody tr").count() == 2 * len(SIZES)
