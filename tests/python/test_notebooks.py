# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of a recording: static HTML, and the page in a frame."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest

import gpuscope as gs
from fakes.browser import chromium
from fakes.recordings import aggregate, cpu_only, training
from fakes.steps import START, STEP_NS, steps_store
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.page.notebook import MOST_BYTES, page_in_frame
from gpuscope.recording import Recording

EVIL = '</td><script>alert(1)</script><img src=x onerror=alert(1)>"&\x1b[31m'


def html_of(store):
    return Recording(store)._repr_html_()


class Tags(HTMLParser):
    """The tags of a text, the attributes of each, and those that were not closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.attributes, self.open = set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in ("br", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.add(tag)

    def handle_endtag(self, tag):
        if tag not in ("br", "path"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("make", [training, cpu_only, aggregate, None], ids=["GPU", "CPU", "totals", "steps"])
def test_it_is_static_and_small(make):
    html = html_of(steps_store() if make is None else make().store)
    assert len(html.encode()) <= MOST_BYTES
    tags = Tags(html)
    assert tags.open == []
    assert not tags.found & {"script", "style", "link", "img", "iframe", "object"}
    assert not {name for name in tags.attributes if name.startswith("on") or name in ("src", "href")}


def test_it_has_the_audit_the_figures_the_rows_and_the_median_step():
    html = html_of(steps_store())
    assert "audit: complete" in html
    assert "step, mean of " in html
    assert "<code>aten::addmm</code>" in html
    assert "the median step, " in html
    assert html.count("<svg") == 1
    assert "GPU 0 stream 7" in html


def test_graphs_that_were_traced_as_a_whole_are_in_the_median_step():
    def as_a_whole(tables):
        starts = [START + step * STEP_NS for step in range(3)]
        tables["graph_launch"] = {"start_ns": starts, "duration_ns": [STEP_NS // 2] * 3, "graph": [4] * 3}

    assert ">CUDA graph 4</text>" in html_of(steps_store(as_a_whole))


def test_ten_rows_at_most_and_the_others_are_counted():
    html = html_of(steps_store())
    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert body.count("<tr>") == 10
    assert re.search(r"\d+ more rows", html)


def test_names_run_nothing():
    def rename(tables):
        tables["path"]["name"][3] = EVIL
        tables["variant"]["name"] = [EVIL] * len(tables["variant"]["name"])

    tags = Tags(html_of(steps_store(rename)))
    assert not tags.found & {"script", "img"}
    assert "\x1b" not in html_of(steps_store(rename))


def test_however_long_names_are_it_stays_small():
    def rename(tables):
        tables["path"]["name"] = [f"{'卷' * 4000}{at}" for at in range(len(tables["path"]["name"]))]

    assert len(html_of(steps_store(rename, {"process.argv": "x" * 9999})).encode()) <= MOST_BYTES


def test_before_anything_is_recorded_there_is_none():
    assert gs.profile()._repr_html_() is None


def test_the_page_is_shown_in_a_frame_of_its_own(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", lambda data, raw: shown.append(data["text/html"]))
    Recording(steps_store()).show(height=450)
    (html,) = shown
    assert html.startswith('<iframe sandbox="allow-scripts" ')
    assert 'height="450"' in html
    assert Tags(html).found == {"iframe"}


def test_links_within_the_frame_stay_in_it():
    with chromium() as browser:
        page = browser.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_content(page_in_frame(Recording(steps_store()).trace, 600))
        frame = page.frames[-1]
        frame.click("nav a[href='#/tables']")
        frame.wait_for_selector("#tables-title", state="visible")
        assert frame.evaluate("location.href").startswith("about:srcdoc#/tables")
        assert said == []


@pytest.mark.parametrize("height", [0, 99, "tall", None, 1.5])
def test_a_wrong_height_is_a_sentence(height):
    with pytest.raises(InvalidArgument, match="height is"):
        Recording(steps_store()).show(height)


def test_without_ipython_it_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(NotAvailable, match="IPython is not installed; pip install ipython"):
        Recording(steps_store()).show()
