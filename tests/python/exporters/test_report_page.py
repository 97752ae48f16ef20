# SPDX-License-Identifier: Apache-2.0
"""The page of a recording: what stands on it, what a browser makes of it, and what a reader can do with it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

import gpuscope
from fakes.browser import opener
from fakes.gscope import NONE
from fakes.loops import Loop
from fakes.recordings import aggregate, cpu_only, make_trace, training
from fakes.steps import steps_store
from gpuscope import units
from gpuscope.analysis import key_averages
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.exporters.page import report_events
from gpuscope.exporters.page.report import export_report, render
from gpuscope.exporters.page.report_tables import FAMILIES
from gpuscope.page.markup import time_text
from gpuscope.recording import Recording
from gpuscope.trace import Trace

HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">'\"&amp;{{data}}"
)
RIGHT_TO_LEFT = "\u202egnorts\u202c עברית"
NS_PER_US = 1e3
RECORDINGS = Path(__file__).resolve().parents[3] / "docs" / "recordings"
SECTIONS = re.compile(r'<section id="(\w+)"')


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a trace."""
    return opener(browser, tmp_path / "report.html", export_report)


def loop(steps=8, launches=6):
    """Steps with a loader, products in a region, pointwise kernels, a copy and a wait."""
    made = Loop(info={"process.argv": "train.py"})
    for _ in made.steps(steps):
        with made.at("train.py", 9), made.region("load"):
            made.work(40)
        with made.at("train.py", 12), made.region("forward"):
            for _ in range(launches):
                made.launch(gpu=30)
        with made.at("train.py", 14), made.region("backward"):
            for _ in range(launches):
                made.launch(gpu=20, name="void at::native::vectorized_elementwise_kernel<4>(int)")
            made.wait()
    return made.trace()


def named(name, kernel=None):
    """A recording in which everything has this name."""
    return make_trace(
        {
            "path": {"name": [name, name], "parent": [NONE, 0], "kind": [0, 1]},
            "thread": {"system_id": [1], "name": [name]},
            "region": {"start_ns": [100, 110], "duration_ns": [9000, 500], "path": [0, 1], "parent": [NONE, 0]},
            "device": {"ordinal": [0], "name": [name]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "variant": {"name": [kernel or name], "grid_x": [1], "block_x": [32]},
            "call": {"name": ["cuLaunchKernel"], "kind": [1]},
            "api": {"start_ns": [150], "duration_ns": [20], "correlation": [1], "region": [1]},
            "kernel": {"start_ns": [200], "duration_ns": [500], "variant": [0], "region": [1], "correlation": [1]},
        },
        info={
            "process.argv": name,
            "process.host": name,
            "session.notes": name,
            "session.start_ns": "1",
            "session.stop_ns": "20000",
        },
    )


def sections(text):
    return SECTIONS.findall(text)


# -- what is on it -----------------------------------------------------------------------------------------------------


def test_sections_stand_in_order_and_those_without_data_are_left_out():
    assert sections(render(loop())) == ["overview", "timeline", "tables", "tree", "idle", "audit"]
    assert sections(render(cpu_only())) == ["overview", "timeline", "tables", "tree", "audit"]


def test_the_page_asks_for_nothing(tmp_path):
    text = render(training())
    assert "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'" in text
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text.partition('<script type="application/json"')[0])


def test_the_page_of_a_small_recording_is_small():
    """Of 450 launches in 50 steps, as `gpuscope demo` has them."""
    made = Loop()
    for _ in made.steps(50):
        for name in ("load", "forward", "backward"):
            with made.region(name):
                for _ in range(3):
                    made.launch(gpu=20)
    assert len(render(made.trace()).encode()) <= 150_000


def test_parts_of_a_step_add_up_to_it():
    made = Loop()
    for _ in made.steps(8):
        made.copy(1 << 22, gpu=90, pinned=True, stream=8)  # beside the kernels
        for _ in range(6):
            made.launch(gpu=30)
        made.wait()
    trace = made.trace()
    text = render(trace)
    wall = int(re.search(r'data-wall="(\d+)"', text)[1])
    parts = [int(value) for value in re.findall(r'<span class="part[^>]*data-ns="(\d+)"', text)]
    breakdown = Recording(trace.store).step_breakdown()
    assert any(part.overlapped_ns for part in breakdown.devices[0].parts)
    assert parts == [part.exclusive_ns for part in breakdown.devices[0].parts]
    assert sum(parts) == wall == breakdown.wall_ns
    assert "<b>100.0 %</b>" in text


def heights_of_steps(text):
    """Of each step's bar, all of its parts together."""
    bars = re.findall(r"<a .*?</a>", text.partition('<figure class="steps">')[2].partition("</svg>")[0])
    return [sum(map(float, re.findall(r'<path class="(?!cut|hit)[^>]*v([\d.]+)H0z"', bar))) for bar in bars]


def made_of_lengths(lengths):
    made = Loop()
    for step in made.steps(len(lengths)):
        for _ in range(lengths[step]):
            made.launch(gpu=30)
        made.wait()
    return made.trace()


def of_lengths(lengths):
    return render(made_of_lengths(lengths))


@pytest.mark.parametrize(
    ("steps", "said"), [(124, "Each step,"), (134, "slowest of each 1 or 2 steps,"), (244, "slowest of each 2 steps,")]
)
def test_bars_of_many_steps_say_of_how_many_they_are(steps, said):
    assert said in of_lengths([1] * steps)


def test_a_step_far_longer_than_the_others_does_not_flatten_their_bars():
    text = of_lengths([*[10] * 5, 200, *[10] * 5])
    assert min(heights_of_steps(text)) > 100
    assert text.count("longer than is drawn") == 1
    assert ", 1 longer one is cut;" in text


def test_no_step_is_cut_that_is_but_a_little_longer():
    text = of_lengths([*[10] * 3, 14, *[10] * 7])
    assert "longer than is drawn" not in text
    assert max(heights_of_steps(text)[1:]) < 100


def test_a_step_has_one_length_wherever_it_stands():
    text = of_lengths([14, *[10] * 3])
    breakdown = Recording(made_of_lengths([14, *[10] * 3]).store).step_breakdown()
    mean = time_text(breakdown.wall_ns / 4)
    assert f"<dt>step, mean of 4</dt><dd><b>{mean}</b>" in text
    assert f'<b>a step, mean of 4</b></td><td class="number"><b>{mean}</b>' in text
    assert "excluded" not in text


def test_findings_say_of_which_steps_they_are():
    text = render(loop(steps=12))
    assert "Mean of 8 steps. The first 3 (warm-up) and the last are excluded." in text
    assert "Mean of 5 steps. The last is excluded." in render(loop(steps=6))


def test_findings_have_the_units_of_the_page():
    assert re.search(r"would cut a step from [\d.]+ µs to", render(loop()))
    assert not re.search(r"\d us\b", render(loop()))


def test_files_have_their_names_and_over_them_their_paths(show):
    made = Loop()
    for _ in made.steps(8):
        with made.at("/home/user/train.py", 14), made.region("backward"):
            made.launch(gpu=20)
            made.wait()
    with show(made.trace()) as page:
        for place in ("#overview .where", "#idle"):
            assert "train.py:14" in page.inner_text(place)
            assert "/home" not in page.inner_text(place)
            assert page.locator(f"{place} [title='/home/user/train.py:14']").count()
        waits = page.get_by_role("region", name="Waits that left GPU 0 without work")
        assert "train.py:14" in waits.inner_text()


def test_totals_alone_have_their_figures_and_no_empty_table():
    text = render(aggregate())
    assert "<dt>GPU time</dt><dd><b>500 ns</b>" in text
    assert "Counts that are not 0" not in text


def test_findings_come_first():
    trace = loop()
    found = Recording(trace.store).diagnose()
    text = render(trace)
    assert found.findings
    assert text.index(found.findings[0].advice[:20]) < text.index("What fills a step of")
    assert f'data-verdict="{found.verdict}"' in text
    assert "data-verdict" not in render(trace, findings=False)


def test_the_audit_is_on_top():
    assert 'class="audit complete"' in render(loop())
    broken = make_trace({"path": {"name": ["a"]}}, info={"audit.dropped": "3", "session.stop_ns": "9"})
    text = render(broken)
    assert 'class="audit incomplete"' in text
    assert "CUPTI dropped 3 records" in text


def test_lanes_have_every_event(monkeypatch):
    trace = Trace(steps_store())
    lanes = lanes_of(trace)
    counts = {}
    for group in lanes.groups:
        for lane in group.lanes:
            counts[lane.table] = counts.get(lane.table, 0) + len(lane.rows)
    assert counts["work"] == len(trace.kernels) + len(trace.memcpy) + len(trace.memset)
    assert counts["regions"] == len(trace.regions)
    assert counts["calls"] == len(trace.api)


def lanes_of(trace):
    from gpuscope.diagnosis import break_down
    from gpuscope.exporters.page.report_names import Names

    return report_events.Lanes(trace, break_down(trace), Names(trace, key_averages(trace)))


def with_threads(names, calls, info, regions=None):
    """Threads of these names, each of which calls the driver at these times."""
    rows = [(start, thread) for thread, starts in enumerate(calls) for start in starts]
    return make_trace(
        {
            "path": {"name": ["step"], "parent": [NONE], "kind": [0]},
            "region": regions or {},
            "thread": {"system_id": [10 + at for at in range(len(names))], "name": names},
            "call": {"name": ["cuLaunchKernel"], "kind": [1]},
            "api": {
                "start_ns": [start for start, _ in rows],
                "duration_ns": [5] * len(rows),
                "thread": [thread for _, thread in rows],
                "region": [NONE] * len(rows),
            },
        },
        info={"session.start_ns": "0", "session.stop_ns": "10000", **info},
    )


def test_the_main_thread_comes_first_and_autograd_s_after_it():
    names, calls = ["worker", "pt_autograd_0", "python3"], [range(100, 900, 10), range(100, 500, 10), [200]]

    def titles(trace):
        return [group.title.removesuffix(": driver calls") for group in lanes_of(trace).groups if group.kind == "calls"]

    assert titles(with_threads(names, calls, {"process.id": "12"})) == ["python3", "pt_autograd_0", "worker"]
    assert titles(with_threads(names, [[300], [300], [200, 400]], {})) == ["python3", "pt_autograd_0", "worker"]
    steps = {"start_ns": range(0, 8000, 1000), "duration_ns": [900] * 8, "path": [0] * 8, "parent": [NONE] * 8}
    by_worker = with_threads(names, calls, {"process.id": "12"}, {**steps, "thread": [0] * 8})
    assert titles(by_worker) == ["worker", "pt_autograd_0", "python3"]


def test_events_of_a_lane_do_not_overlap():
    trace = make_trace(
        {
            "variant": {"name": ["a"]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "kernel": {"start_ns": [1000, 2000, 3000, 9000], "duration_ns": [5000, 3000, 500, 100], "variant": [0] * 4},
        },
        info={"session.start_ns": "0", "session.stop_ns": "10000"},
    )
    stream = next(group for group in lanes_of(trace).groups if group.kind == "stream")
    assert [lane.rows.tolist() for lane in stream.lanes] == [[0, 3], [1], [2]]


def test_regions_lie_as_deep_as_they_are_nested_on_their_thread():
    parents = [NONE, 0, 1, 2, 1, NONE, 3]
    threads = [0, 0, 0, 1, 0, 1, 1]
    depths = report_events._depths(np.array(parents, np.uint32), np.array(threads, np.uint16))
    assert depths.tolist() == [0, 1, 2, 2, 2, 0, 3]
    chain = np.arange(-1, 399).astype(np.uint32)
    assert report_events._depths(chain, np.zeros(400, np.uint16)).tolist() == list(range(400))


def test_each_gpu_has_its_bar_its_streams_and_its_idle_time(show):
    trace = make_trace(
        {
            "variant": {"name": ["a"]},
            "device": {"ordinal": [0, 1], "name": ["<One>", "Two"]},
            "track": {"device": [0, 1], "context": [1, 2], "stream": [7, 9]},
            "kernel": {
                "start_ns": [1000, 2000, 8000, 9000],
                "duration_ns": [500, 900, 100, 500],
                "variant": [0] * 4,
                "track": [0, 1, 0, 1],
            },
        },
        info={"session.start_ns": "0", "session.stop_ns": "10000"},
    )
    lanes = lanes_of(trace)
    titles = [group.title for group in lanes.groups]
    assert titles == ["GPU 0 stream 7", "GPU 1 stream 9", "GPU 0 idle, by cause", "GPU 1 idle, by cause"]
    walls = re.findall(r'data-wall="(\d+)"', render(trace))
    assert len(walls) == 2
    with show(trace) as page:
        assert page.locator(".bar").count() == 2
        assert "What fills a window of GPU 0 <One>" in page.inner_text("#overview")
        assert "The longest gaps of GPU 1" in page.inner_text("#idle")


def test_more_events_than_fit_are_kept_where_they_matter(monkeypatch):
    trace = loop(steps=30, launches=20)
    monkeypatch.setattr(report_events, "MOST_EVENTS", 600)
    monkeypatch.setattr(report_events, "_WHOLE_LANE", 200)
    lanes = lanes_of(trace)
    assert lanes.kept <= 600 < lanes.total
    assert lanes.windows
    stream = next(group for group in lanes.groups if group.kind == "stream").lanes[0]
    assert sum(stream.sums["count"]) == len(trace.kernels)
    text = render(trace)
    assert f"The recording has {lanes.total:,} events, more than a page holds: {lanes.kept:,}" in text


def test_a_step_that_is_kept_is_seen_event_by_event(show, monkeypatch):
    monkeypatch.setattr(report_events, "MOST_EVENTS", 600)
    monkeypatch.setattr(report_events, "_WHOLE_LANE", 200)
    with show(loop(steps=30, launches=20), "/timeline") as page:
        lanes = lanes_of(loop(steps=30, launches=20))
        assert lanes.windows
        page.focus("#lanes")
        page.keyboard.press(".")
        first, last = view(page)
        assert any(start <= first and last <= end for start, end in lanes.windows)


def test_wrong_suffixes_and_folders_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"\.html"):
        export_report(training(), tmp_path / "report.txt")
    with pytest.raises(GpuscopeError, match="does not exist"):
        export_report(training(), tmp_path / "none" / "report.html")


def test_a_recording_writes_its_page(tmp_path):
    Recording(training().store).report(tmp_path / "a.html", title="A & B")
    assert "<title>A &amp; B</title>" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_profile_writes_its_page(tmp_path):
    with gpuscope.profile(activities=["CPU"]) as prof, gpuscope.record_function("work"):
        pass
    prof.report(tmp_path / "report.html")
    assert '"work"' in (tmp_path / "report.html").read_text(encoding="utf-8")


# -- what a browser makes of it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trace",
    [
        lambda: make_trace({}),
        lambda: make_trace({}, info={"session.start_ns": "10", "session.stop_ns": "2000"}),
        cpu_only,
        aggregate,
        training,
        lambda: Trace(steps_store()),
        lambda: Trace(steps_store(info={"audit.dropped": "7", "session.unfinished": "it was cut"})),
        loop,
    ],
    ids=["empty", "no events", "CPU", "aggregate", "graphs", "steps", "incomplete", "loop"],
)
def test_it_opens_without_a_complaint(show, trace):
    with show(trace()) as page:
        assert page.locator("h1").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", [HOSTILE, RIGHT_TO_LEFT, "x" * 10_000, "a\x00b\x1b[31m\u2028"])
def test_names_run_nothing_and_break_nothing(show, name):
    with show(named(name)) as page:
        assert page.title() != "taken"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for family in ("kernels", "operators", "regions"):
            tab = page.locator(f"#tab-{family}")
            if tab.count():
                tab.click()
                page.locator("[role=row] [role=gridcell]").first.click()
        page.focus("#lanes")
        page.keyboard.press("Enter")
        assert page.locator("#details h3").inner_text()
        text = page.inner_text("body")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)


ROWS = """() => [...document.querySelectorAll("[role=row][data-row]")].map((row) => {
  const cells = [...row.querySelectorAll("[data-key]")];
  const entry = (cell) => [cell.dataset.key, [Number(cell.dataset.value), cell.textContent]];
  return { name: row.firstChild.title, cells: Object.fromEntries(cells.map(entry)) };
})"""


def unlike(tables):
    """No two durations are the same, so that no percentile is another's."""
    for name in ("kernel", "region", "api"):
        lengths = tables[name]["duration_ns"]
        tables[name]["duration_ns"] = [length - 97 * place for place, length in enumerate(lengths)]


FIGURES = {
    "count": lambda row: row.count,
    "gpu": lambda row: round(row.device_time_total * NS_PER_US),
    "self_gpu": lambda row: round(row.self_device_time_total * NS_PER_US),
    "cpu": lambda row: round(row.cpu_time_total * NS_PER_US),
    "self_cpu": lambda row: round(row.self_cpu_time_total * NS_PER_US),
    "p50": lambda row: round(row.p50 * NS_PER_US),
    "p95": lambda row: round(row.p95 * NS_PER_US),
    "max": lambda row: round(row.max * NS_PER_US),
    "bytes": lambda row: row.bytes,
}


def compared_rows(page, averages):
    """The rows that the tables show, by family, and how many figures in them are those of the averages."""
    names, compared = {}, 0
    for tab in page.locator("[data-family]").all():
        tab.click()
        family = tab.get_attribute("data-family")
        by_name = {row.key: row for row in averages if row.kind in FAMILIES[family]}
        shown = page.evaluate(ROWS)
        names[family] = {row["name"] for row in shown}
        for row in shown:
            for key, value in FIGURES.items():
                if key in row["cells"]:
                    number, text = row["cells"][key]
                    assert number == value(by_name[row["name"]]), (row["name"], key)
                    if key not in ("count", "bytes") and number:
                        assert text == units.format_seconds(number / 1e9).replace(" us", " µs")
                    compared += 1
    return names, compared


def test_figures_are_those_of_key_averages(show):
    trace = Trace(steps_store(unlike))
    averages = key_averages(trace)
    with show(trace) as page:
        names, compared = compared_rows(page, averages)
    for family, shown in names.items():
        assert shown == {row.key for row in averages if row.kind in FAMILIES[family]}
    assert compared > 50


def test_a_training_run_of_an_h100_has_its_sections_and_figures(show):
    recording = gpuscope.load(RECORDINGS / "resnet.gscope")
    with show(recording.trace) as page:
        named = page.locator("nav a").all_inner_texts()
        assert named == ["Overview", "Timeline", "Tables", "Tree", "Idle", "Audit"]
        for link in page.locator("nav a").all():
            link.click()
        _, compared = compared_rows(page, recording.key_averages())
        assert compared > 200
        said = page.locator("#overview").inner_text().lower()
        found = recording.diagnose().findings
        assert found
        assert [each.title for each in found if each.title.lower() not in said] == []


def test_a_million_events_are_there_and_are_found(show):
    launches = 500_000
    rows = np.arange(launches)
    begins = 1_000 + 2_000 * rows
    trace = make_trace(
        {
            "thread": {"system_id": [1], "name": ["python3"]},
            "device": {"ordinal": [0], "name": ["NVIDIA H100"]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "variant": {"name": ["first", "second"], "grid_x": [1, 1], "block_x": [32, 32]},
            "call": {"name": ["cuLaunchKernel"], "kind": [1]},
            "api": {"start_ns": begins, "duration_ns": 400 + rows % 7, "correlation": rows + 1},
            "kernel": {"start_ns": begins + 600, "duration_ns": 900 + rows % 11, "variant": rows % 5 > 0,
                       "correlation": rows + 1},
        },
        info={"session.start_ns": "1", "session.stop_ns": str(2_000 * launches + 2_000)},
    )  # fmt: skip
    with show(trace) as page:
        compared_rows(page, key_averages(trace))
        for text, found in (
            ("first", "100,000 found"),
            ("second", "400,000 found"),
            ("cuLaunchKernel", "500,000 found"),
        ):
            page.locator("#find").fill(text)
            page.wait_for_function("text => document.getElementById('found').textContent === text", arg=found)


def test_totals_are_of_all_events_also_where_the_page_has_not_all(show, monkeypatch):
    trace = loop(steps=30, launches=20)

    def total():
        with show(Trace(trace.store)) as page:
            values = page.eval_on_selector_all(
                "[data-key=gpu][data-value]", "cells => cells.map((c) => Number(c.dataset.value))"
            )
            return sum(values), page.locator(".notice").count()

    whole = total()
    monkeypatch.setattr(report_events, "MOST_EVENTS", 600)
    monkeypatch.setattr(report_events, "_WHOLE_LANE", 200)
    assert total() == (whole[0], whole[1] + 1)
    assert whole[0] == int(trace.kernels.duration_ns.sum())


def test_without_javascript_figures_findings_and_rows_are_there(show):
    with show(loop(), complete=False, java_script_enabled=False) as page:
        text = page.inner_text("body")
        assert "The timeline and the interactive tables need JavaScript" in text
        assert "step, mean of " in text
        assert "vectorized_elementwise_kernel" in text
        assert page.locator("#lanes").is_hidden()


def test_a_narrow_table_begins_with_names_gpu_totals_and_shares(show):
    with show(loop(), width=390) as page:
        titles = page.eval_on_selector_all("#rows .head > *", "all => all.map((one) => one.dataset.key)")
        assert titles[:3] == ["name", "gpu", "share"]
        right = "one => one.getBoundingClientRect().right"
        share = page.locator("#rows .row [data-key=share]").first.evaluate(right)
        assert share <= page.locator("#rows").evaluate(right)


def test_causes_of_idle_time_have_bars_of_their_shares(show):
    with show(loop()) as page:
        bars = "bars => bars.map((bar) => [parseFloat(bar.style.width), parseFloat(bar.closest('td').textContent)])"
        drawn = page.eval_on_selector_all("#idle td .track i", bars)
        most = max(share for _, share in drawn)
        assert len(drawn) > 1
        assert all(width == pytest.approx(100 * share / most, abs=0.6) for width, share in drawn)


@pytest.mark.parametrize("width", [390, 1280])
def test_findings_are_shown_to_their_ends(show, width):
    recording = gpuscope.load(RECORDINGS / "resnet.gscope")
    cut = """all => all.filter((one) => {
        const { display, textOverflow } = getComputedStyle(one);
        return textOverflow === "ellipsis" || (display !== "inline" && one.scrollWidth > one.clientWidth + 1);
    }).map((one) => one.outerHTML)"""
    with show(recording.trace, width=width) as page:
        page.evaluate("document.querySelectorAll('.finding details').forEach((one) => { one.open = true; })")
        assert page.eval_on_selector_all(".finding, .finding *, .verdict", cut) == []
        said = " ".join(page.locator(".findings").inner_text().split())
        for finding in recording.diagnose().findings:
            for text in (finding.title[1:], finding.advice, finding.verify, *finding.facts()):
                assert re.sub(r"(?<=\d) us\b", " µs", " ".join(text.split())) in said


def test_a_gpu_s_work_has_its_categories_in_the_legend(show):
    with show(loop()) as page:
        for place in ("#colors", "#tree-colors"):
            said = page.inner_text(place).split("\n")
            assert said[said.index("GPU:") + 1 :][:2] == [
                "matmul, conv on tensor cores",
                "elementwise, copying kernels",
            ]
        assert "waiting for data" not in page.inner_text("#tree-colors")


def test_print_has_the_tables_and_not_the_controls(show):
    with show(loop(), color_scheme="dark") as page:
        assert page.locator(".plain").first.is_hidden()
        page.emulate_media(media="print")
        assert page.locator(".plain").first.is_visible()
        assert page.locator("nav").is_hidden()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_print_has_the_lanes_of_the_timeline_on_light_paper(show):
    with show(loop(), color_scheme="dark", width=720) as page:
        page.emulate_media(media="print")
        lanes = page.locator("#lanes canvas")
        assert lanes.is_visible()
        assert page.locator("#find").is_hidden()
        corner = "canvas => [...canvas.getContext('2d').getImageData(1, canvas.height - 2, 1, 1).data]"
        red, green, blue, alpha = lanes.evaluate(corner)
        assert alpha == 0 or min(red, green, blue) > 200


def test_print_is_no_wider_than_its_paper(show):
    with show(Trace(steps_store()), width=720) as page:  # A4 without its margins has 718 pixels
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [360, 700, 1280, 3840])
def test_the_page_never_scrolls_sideways(show, width):
    with show(Trace(steps_store()), width=width) as page:
        page.locator("[role=row] [role=gridcell]").first.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_rules_of_accessibility_are_kept(show):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme in ("light", "dark"):
        # axe brings its script along, which the page's policy rightly bars.
        with show(loop(), color_scheme=scheme, bypass_csp=True) as page:
            page.locator("[role=row] [role=gridcell]").first.click()
            found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
            assert found.violations_count == 0, found.generate_report()


# -- what a reader can do ----------------------------------------------------------------------------------------------


def view(page):
    """The ticks that the timeline was last told to show."""
    page.wait_for_selector("#lanes[data-view]", state="attached")
    first, last = page.get_attribute("#lanes", "data-view").split("-")
    return int(first), int(last)


def address(page, part):
    """The address, once it has this part: it follows what a reader does a little later."""
    for _ in range(200):
        if part in page.url:
            break
        page.wait_for_timeout(50)
    assert part in page.url
    return page.url.partition("#")[2]


def test_keys_move_zoom_and_choose(show):
    with show(loop(), "/timeline") as page:
        page.focus("#lanes")
        page.keyboard.press(".")
        first = view(page)
        page.keyboard.press(".")
        second = view(page)
        assert second[0] > first[0]
        page.keyboard.press("+")
        near = view(page)
        assert near[1] - near[0] < second[1] - second[0]
        page.keyboard.press("ArrowRight")
        assert view(page)[0] > near[0]
        page.keyboard.press("Enter")
        chosen = page.inner_text("#details h3")
        began = page.inner_text("#details dl")
        for _ in range(8):  # beyond the end of the region, and over what has another name
            page.keyboard.press("]")
        assert page.inner_text("#details h3") == chosen
        assert page.inner_text("#details dl") != began
        for _ in range(8):
            page.keyboard.press("[")
        assert page.inner_text("#details dl") == began
        page.keyboard.press("f")
        close = view(page)
        assert close[1] - close[0] < near[1] - near[0]
        page.keyboard.press("0")
        assert view(page)[0] == 0
        assert view(page)[1] > 6 * (second[1] - second[0])
        page.keyboard.press("Escape")
        assert "Nothing is chosen" in page.inner_text("#details")


def test_w_and_s_zoom_and_a_and_d_move(show):
    with show(loop(), "/timeline") as page:
        page.keyboard.press("w")
        near = view(page)
        page.keyboard.press("d")
        later = view(page)
        assert later[0] > near[0]
        assert later[1] - later[0] == pytest.approx(near[1] - near[0], abs=2)
        page.keyboard.press("Shift+A")
        assert view(page)[0] < near[0]
        page.keyboard.press("s")
        assert view(page)[1] - view(page)[0] > near[1] - near[0]


def test_w_zooms_to_where_the_pointer_is(show):
    with show(loop(), "/timeline") as page:
        box = page.locator("#lanes").bounding_box()
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 60)
        for _ in range(6):
            page.keyboard.press("w")
        assert view(page)[0] > 5 * (view(page)[1] - view(page)[0])


def test_search_and_help_have_their_keys_within_a_table_and_the_tree(show):
    with show(loop(), "/tables") as page:
        for place, search in (("#rows", "filter"), ("#icicle", "tree-find")):
            page.focus(place)
            page.keyboard.press("/")
            assert page.evaluate("document.activeElement.id") == search
            page.focus(place)
            page.keyboard.press("?")
            assert page.locator("#help").is_visible()
            page.keyboard.press("Escape")


def test_keys_that_count_everywhere(show):
    with show(loop()) as page:
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        assert "measure" in page.inner_text("#help")
        page.keyboard.press("Escape")
        assert page.locator("#help").is_hidden()
        page.keyboard.press("2")
        page.wait_for_selector("nav a[href='#/timeline'][aria-current]")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"


def test_a_kernel_knows_what_launched_it(show):
    with show(Trace(steps_store()), "/timeline") as page:
        page.focus("#lanes")
        page.keyboard.press(".")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        page.fill("#find", "gemm_backward")
        page.press("#find", "Enter")
        text = page.inner_text("#details")
        assert "launched by" in text
        assert "cuLaunchKernel" in text
        assert "AddmmBackward0" in text
        assert "3, p50 60.0 µs" in text
        assert page.inner_text("#found") == "3 found"


def test_wheel_zooms_drag_moves_and_shift_measures(show):
    with show(loop(), "/timeline") as page:
        page.wait_for_timeout(400)
        box = page.locator("#lanes").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + 60
        page.mouse.move(x, y)
        page.mouse.wheel(0, -400)
        near = view(page)
        assert near[0] > 0
        page.mouse.down()
        page.mouse.move(x + 100, y, steps=4)
        page.mouse.up()
        assert view(page)[0] < near[0]
        page.keyboard.down("Shift")
        page.mouse.down()
        page.mouse.move(x + 300, y, steps=4)
        page.mouse.up()
        page.keyboard.up("Shift")
        assert page.inner_text("#details h3").startswith("Measured: ")
        assert "busy" in page.inner_text("#details")


@pytest.mark.parametrize("width", [360, 1280, 3840])
def test_a_click_chooses_what_is_under_it(show, width):
    with show(loop(), "/timeline", width=width) as page:
        page.focus("#lanes")
        page.keyboard.press(".")
        page.keyboard.press("Enter")  # of the stream, which is shown last but for its idle time
        page.keyboard.press("f")
        name = page.inner_text("#details h3")
        page.keyboard.press("Escape")
        assert page.locator("#details h3").count() == 0
        canvas = page.locator("#lanes canvas").bounding_box()
        found = None
        for above in range(
            4, int(canvas["height"]) - 60, 5
        ):  # from below: a title that is clicked closes what is below
            page.mouse.click(canvas["x"] + canvas["width"] / 2, canvas["y"] + canvas["height"] - above)
            found = page.locator("#details h3")
            if found.count() and found.inner_text() == name:
                break
        assert found.inner_text() == name


def test_a_bar_leads_to_its_step(show):
    with show(loop()) as page:
        page.locator(".steps a").nth(2).click()
        third = view(page)
        page.locator(".steps a").nth(3).click()
        page.wait_for_selector(f'#lanes:not([data-view="{third[0]}-{third[1]}"])', state="attached")
        assert view(page)[0] == pytest.approx(third[1], abs=2)
        page.wait_for_selector("nav a[href='#/timeline'][aria-current]")


def test_tables_sort_filter_and_light_the_timeline(show):
    with show(loop()) as page:

        def names():
            return page.eval_on_selector_all("[data-row]", "rows => rows.map((row) => row.firstChild.title)")

        by_time = names()
        page.click("[data-key=name] button")
        assert names() == sorted(by_time)
        page.click("[data-key=name] button")
        assert names() == sorted(by_time, reverse=True)
        page.fill("#filter", "/^void.*elementwise/")
        assert len(names()) == 1
        assert page.inner_text("#filtered") == f"1 of {len(by_time)}"
        page.fill("#filter", "/(/")
        assert page.inner_text("#filtered") == "no regex"
        page.fill("#filter", "nothing of that name")
        assert names() == []
        page.fill("#filter", "elementwise")
        page.locator("[role=row][data-row]").first.click()
        assert "backward" in page.inner_text("#row-details")
        page.click("#to-timeline")
        page.wait_for_selector("#lanes:focus")


def test_shares_are_of_the_whole_run_and_their_bars_of_the_largest(show):
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], python_samples=True) as prof:
        for name in ("load", "compute"):
            with gpuscope.record_function(name):
                time.sleep(0.01)
        time.sleep(0.05)
    trace = prof.trace
    assert "outside" in {row.kind for row in key_averages(trace)}
    with show(trace) as page:
        page.click("[data-family=regions]")
        rows = {row["name"]: row["cells"]["share"][0] for row in page.evaluate(ROWS)}
        whole = key_averages(trace).self_cpu_time_total
        for row in key_averages(trace):
            if row.kind in FAMILIES["regions"]:
                assert rows[row.key] == pytest.approx(row.cpu_time_total / whole, rel=1e-3)
        bars = "cells => cells.map((cell) => parseFloat(cell.style.getPropertyValue('--share')))"
        drawn = page.eval_on_selector_all("[role=row][data-row] .share", bars)
        assert max(drawn) == 100
        assert drawn == pytest.approx([100 * share / max(rows.values()) for share in rows.values()], abs=0.1)


def test_the_audit_has_times_in_their_units():
    text = render(make_trace({"path": {"name": ["a"]}}, info={"audit.decode_lag_max_ns": "5144132"}))
    assert re.search(r"<td>decode lag max</td><td[^>]*>5.14 ms</td>", text)


def test_rows_are_taken_along(show):
    with show(loop()) as page:
        with page.expect_download() as download:
            page.click("#csv")
        lines = download.value.path().read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("name,gpu_ns,share,")
        assert len(lines) == 1 + page.locator("[role=row][data-row]").count()


def test_many_rows_are_in_the_document_only_while_they_are_seen(show):
    count = 3_000
    names = [f"kernel_{chr(97 + number % 26)}{number:04d}" for number in range(count)]
    starts = [1000 * number for number in range(count)]
    trace = make_trace(
        {
            "variant": {"name": names},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "kernel": {"start_ns": starts, "duration_ns": [900] * count, "variant": list(range(count))},
        },
        info={"session.start_ns": "0", "session.stop_ns": str(1000 * count)},
    )
    with show(trace) as page:
        page.click("[data-key=name] button")
        assert page.locator("[role=row][data-row]").count() < 60
        page.evaluate("document.getElementById('rows').scrollTop = 1e9")
        shown = page.locator(f'[role=row][aria-rowindex="{count + 1}"]')
        assert shown.inner_text().startswith(max(names))


def test_the_address_brings_everything_back(show):
    with show(loop()) as page:
        page.click("#tab-operators")
        page.fill("#filter", "ward")
        page.click("[data-key=name] button")
        page.locator("[role=row][data-row]").nth(1).click()
        page.focus("#lanes")
        page.keyboard.press(".")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        found = address(page, "tree=")
        seen = [page.inner_text("#rows"), page.inner_text("#row-details"), page.inner_text("#tree-details"), view(page)]
    with show(loop(), found) as page:
        assert [
            page.inner_text("#rows"),
            page.inner_text("#row-details"),
            page.inner_text("#tree-details"),
            view(page),
        ] == seen


def test_an_address_of_anything_is_harmless(show):
    with show(loop(), "/tables?row=99999&sort=none&tab=x&tree=9.9.9&t=9-1&event=work.99999&q=%2F(%2F") as page:
        assert page.locator("[role=row]").count() > 1


def test_the_tree_zooms_searches_and_turns(show):
    with show(Trace(steps_store())) as page:
        assert page.inner_text("#tree-details h3") == "recording"
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        below = page.inner_text("#tree-details h3")
        assert below != "recording"
        page.keyboard.press("Enter")
        page.keyboard.press("Backspace")
        page.fill("#tree-find", "gemm")
        assert re.fullmatch(r"[\d.]+ % found", page.inner_text("#tree-found"))
        page.click("#tree-invert")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#tree-details h3") in ("gemm_backward", "gemm", "Memcpy HtoD (Pageable -> Device)")


def test_samples_of_python_are_a_tree_and_a_table(show):
    made = Loop(info={"session.interval_ns": "1000000"})
    for _ in made.steps(6):
        since = made.now
        with made.at("/home/user/train.py", 20, "compute"):
            made.work(2_000)
            made.sampled(since, 1_500)
    with show(made.trace()) as page:
        assert "compute (train.py:20)" in page.inner_text("#rows")
        assert "/home" not in page.inner_text("#rows")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#tree-details h3") == "compute (train.py:20)"
        page.select_option("#tree-by", "cpu")
        assert address(page, "by=cpu")


def test_the_theme_follows_the_system_until_it_is_chosen(show):
    ground = "getComputedStyle(document.body).backgroundColor"
    with show(loop(), color_scheme="dark") as page:
        assert page.evaluate(ground) == "rgb(13, 17, 23)"
        page.emulate_media(color_scheme="light")
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        page.click("#theme")
        assert page.evaluate(ground) == "rgb(13, 17, 23)"
        page.reload()
        page.wait_for_selector("html[data-complete]", state="attached")
        assert page.evaluate(ground) == "rgb(13, 17, 23)"
        page.evaluate("localStorage.clear()")
