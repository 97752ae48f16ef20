# SPDX-License-Identifier: Apache-2.0
"""The explorer's page: what is in it, and what a browser makes of it."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.browser import look_at
from fakes.explorations import SIZES, exploration
from gpuscope.benchmarking.explorer import exploration as module
from gpuscope.errors import NotAvailable

pytest.importorskip("plotly")

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
    form = re.search(r"<form.*?</form>", exploration().to_html(), re.DOTALL)
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
        ({"warnings": ("careful",)}, "<li>careful</li>"),
        ({"remarks": ("too large",)}, "<li>too large</li>"),
    ],
)
def test_what_a_reader_must_know_stands_above_the_chart(changes, words):
    text = exploration(**changes).to_html()
    assert 0 < text.index(words) < text.index('id="chart"')


def test_without_plotly_there_is_no_page_but_a_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(NotAvailable, match=r"pip install 'gpuscope\[report\]'"):
        module.plotly_version()
    assert exploration().table()
    assert exploration().to_json()


Look = Callable[..., "tuple[str, str]"]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Opens a page in a browser and returns its document after a while, and what the console said."""

    def opened(found: Any, *, choice: str = "", script: str = "") -> tuple[str, str]:
        path = tmp_path / "page.html"
        found.write_html(path)
        return look_at(path, choice, script)

    return opened


def shown(document: str) -> str:
    found = re.search(r'data-shown="([^"]*)"', document)
    return found[1] if found else ""


def test_the_chart_is_drawn_without_a_complaint(look):
    document, said = look(exploration())
    assert said == ""
    assert shown(document) == "matmul time both"
    assert document.count('class="trace scatter') == 3 * 3  # a line and both edges of its band
    assert "n ≈ 100" in document
    assert "n ≈ 268" in document


def test_the_address_chooses_what_is_shown(look):
    document, _ = look(exploration(), choice="operation=copy&metric=speedup&data=transfers")
    assert shown(document) == "copy speedup transfers"
    assert "n ≈ 268" in document
    assert "n ≈ 100" not in document


def test_the_controls_redraw_the_chart_and_its_address(look):
    script = """
      const metric = document.getElementById("metric");
      metric.value = "rate";
      metric.dispatchEvent(new Event("change", { bubbles: true }));
      document.body.dataset.address = location.hash;"""
    document, said = look(exploration(), script=script)
    assert (shown(document), said) == ("matmul rate both", "")
    assert "metric=rate" in document


def test_hovering_tells_all_figures_of_a_point(look):
    script = 'Plotly.Fx.hover("chart", [{ curveNumber: 5, pointNumber: 0 }]);'
    document, _ = look(exploration(), script=script)
    bubble = re.search(r'<g class="hoverlayer">.*?</g></g>', document, re.DOTALL)
    assert bubble is not None
    for words in ("time", "throughput", "speed-up", "200 samples, worth 150 independent ones"):
        assert words in bubble[0]


def test_a_page_without_a_gpu_has_the_cpus_curve_alone(look):
    document, said = look(exploration(gpu=False), choice="metric=speedup&data=device")
    assert (shown(document), said) == ("matmul time ", "")
    assert document.count('class="trace scatter') == 3
    assert 'value="speedup"' not in document


def test_hostile_texts_run_nothing(look):
    document, said = look(hostile())
    assert said == ""
    assert "<title>CPU against GPU: &lt;/script&gt;" in document


def test_a_point_without_an_interval_is_hollow_and_has_no_band(look):
    found = exploration(gpu=False)
    points = list(found.points)
    points[2] = replace(points[2], wall=replace(points[2].wall, low=float("-inf"), high=float("inf")))
    script = """
      const traces = document.getElementById("chart").data;
      document.body.dataset.bands = traces.slice(0, -1).map((trace) => trace.x.length);
      document.body.dataset.hollow = traces.at(-1).marker.symbol.indexOf("circle-open");"""
    document, said = look(exploration(gpu=False, points=tuple(points)), script=script)
    assert said == ""
    assert 'data-bands="2,2,4,4"' in document
    assert 'data-hollow="2"' in document
