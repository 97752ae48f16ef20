# SPDX-License-Identifier: Apache-2.0
"""What a report shows of the program's own code: its hottest lines, its functions with their source, its threads."""

from __future__ import annotations

import os
import re

import pytest

from fakes.browser import opener
from fakes.loops import US, Loop
from gpuscope.analysis import key_averages, samples
from gpuscope.diagnosis import break_down
from gpuscope.exporters.page.report import export_report, render
from gpuscope.exporters.page.report_events import Lanes
from gpuscope.exporters.page.report_names import Names
from gpuscope.exporters.page.report_tables import sampled_code

SITE = "/usr/lib/python3/site-packages"
IMPORT = ("<frozen importlib._bootstrap>", 1, "_find_and_load")
SOURCE = """import pandas


def parse(rows):
    found = []
    for row in rows:
        found.append(row + 1)
    return found
"""


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a trace."""
    return opener(browser, tmp_path / "report.html", export_report)


def sampled(made, us, *places, thread=0):
    """A thread is at these places, outermost first, for so long."""
    if places:
        with made.at(*places[0]):
            sampled(made, us, *places[1:], thread=thread)
        return
    for _ in range(us // 1_000):
        since = made.now
        made.work(1_000)
        made.sampled(since, 1.0, thread)


def script(file="/home/me/etl.py"):
    """400 ms: an import of 100 ms, 200 ms in a function at line 7, and 100 ms in the script itself."""
    made = Loop(info={"process.argv": "etl.py"})
    main = (file, 10, "<module>")
    sampled(
        made,
        60_000,
        main,
        IMPORT,
        (f"{SITE}/pandas/__init__.py", 3, "<module>"),
        ("/usr/lib/python3.11/re.py", 5, "compile"),
    )
    sampled(made, 40_000, main, IMPORT, (f"{SITE}/pandas/__init__.py", 4, "<module>"))
    sampled(made, 200_000, (file, 9, "<module>"), (file, 7, "parse"))
    sampled(made, 100_000, main)
    return made.trace()


def written(folder):
    """The script's source, older than its recording."""
    path = folder / "etl.py"
    path.write_text(SOURCE, encoding="utf-8")
    os.utime(path, ns=(0, 0))
    return str(path)


def rows(page, key):
    """The cells of a column, by the names in the table."""
    made = "rows => rows.map((row) => [row.firstChild.textContent, row.querySelector('[data-key=KEY]').textContent])"
    return dict(page.eval_on_selector_all("[role=row][data-row]", made.replace("KEY", key)))


def facts(page, place="#tree-details"):
    return page.inner_text(f"{place} h3"), " ".join(page.inner_text(f"{place} dl").split())


def test_a_script_without_steps_opens_with_its_run_its_hottest_lines_and_its_flame_graph(tmp_path):
    text = render(script(written(tmp_path)))
    assert re.findall(r'<section id="(\w+)"', text)[:2] == ["overview", "tree"]
    overview = text.partition('<section id="overview"')[2].partition("</section>")[0]
    assert "<dt>run</dt><dd><b>400 ms</b>" in overview
    hottest = re.search(r"Your lines with most of the time.*?<tbody><tr>(.*?)</tr>", overview)[1]
    assert " ".join(re.sub(r"<[^>]*>", " ", hottest).split()[4:]) == "etl.py:7 parse found.append(row + 1)"
    assert "<svg" not in overview


def test_a_script_without_steps_has_no_count_of_steps_in_its_header():
    header = render(script()).partition("<nav")[0]
    assert "<dt>recorded</dt><dd>400 ms</dd>" in header
    assert "<dt>steps</dt>" not in header


def test_steps_in_the_header_say_how_many_are_left_out():
    made = Loop()
    for _ in made.steps(12):
        made.work(100)
    assert "<dt>steps</dt><dd>8, 4 more excluded</dd>" in render(made.trace())


def test_a_function_has_the_same_share_in_the_lines_the_table_and_the_tree(show, tmp_path):
    with show(script(written(tmp_path))) as page:
        line = page.locator("#overview table tr", has_text="etl.py:7").inner_text()
        assert float(line.partition(" %")[0]) == pytest.approx(50, abs=0.3)  # of one interval half is not known
        assert rows(page, "share")["parse (etl.py:7)"] == "50.0 %"
        page.fill("#tree-find", "parse")
        assert page.inner_text("#tree-found") == "50.0 % found"


def test_the_run_has_the_same_time_in_header_figure_and_tree(show):
    with show(script()) as page:
        name, said = facts(page)
        assert (name, said.partition(" kind")[0]) == ("the run", "Python, by samples 400 ms, 100.0 % of the run")
        assert page.inner_text(".figure b") == "400 ms"
        assert "400 ms" in page.inner_text(".facts")


def test_shares_of_several_threads_are_of_the_run_everywhere(show):
    made = Loop()
    since = made.now
    made.work(10_000)
    for thread in (0, 1):
        with made.at("/home/me/a.py", 3, "both"):
            made.sampled(since, 1.0, thread)
    with show(made.trace()) as page:
        assert rows(page, "share") == {"both (a.py:3)": "200.0 %"}
        assert facts(page)[0] == "the run, all threads"
        page.fill("#tree-find", "both")
        assert page.inner_text("#tree-found") == "200.0 % found"


def test_an_import_is_one_entry_of_the_tree_and_of_the_table():
    functions, nodes = sampled_code(samples(script()))
    assert [(each.function, each.self_ns, each.total_ns) for each in functions] == [
        ("parse", 200_000 * US, 200_000 * US),
        ("<module>", 100_000 * US, 400_000 * US),
        ("imports", 100_000 * US, 100_000 * US),
    ]
    assert [(each["name"], each["cpu_ns"]) for each in nodes if each["kind"] == "imports"] == [
        ("imports", 100_000 * US),
        ("pandas", 100_000 * US),
    ]


def test_modules_of_the_program_and_scripts_that_runpy_runs_are_no_imports():
    made = Loop()
    sampled(made, 1_000, ("/home/me/a.py", 1, "<module>"), IMPORT, ("/home/me/b.py", 2, "<module>"))
    sampled(made, 1_000, ("<frozen runpy>", 1, "_run_code"), (f"{SITE}/tool/__main__.py", 2, "<module>"))
    functions, _ = sampled_code(samples(made.trace()))
    assert {each.file for each in functions} == {
        *("/home/me/a.py", "/home/me/b.py", "<frozen runpy>"),
        f"{SITE}/tool/__main__.py",
    }


def lanes_of(trace):
    return Lanes(trace, break_down(trace), Names(trace, key_averages(trace)))


def lanes_named(lanes, title):
    """The names of the events of each lane of a group."""
    group = next(group for group in lanes.groups if group.title == title)
    names = lanes.names
    return [
        [names.strings[names.names[thing]] for thing in lanes._tables[lane.table].thing[lane.rows].tolist()]
        for lane in group.lanes
    ]


def test_an_import_is_one_box_of_the_timeline():
    assert lanes_named(lanes_of(script()), "MainThread: Python, sampled") == [
        ["<module> (etl.py)"],
        ["imports", "parse (etl.py)"],
    ]


def test_threads_of_a_pool_are_one_group_with_a_lane_each():
    made = Loop(info={"process.id": "1"})
    main, pool = ("/home/me/a.py", 1, "main"), ("/usr/lib/python3.11/concurrent/futures/thread.py", 83, "_worker")
    for thread in (1, 2):
        sampled(made, 1_000, pool, ("/home/me/a.py", 5, "work"), (f"{SITE}/numpy/x.py", 6, "dot"), thread=thread)
        sampled(made, 1_000, pool, thread=thread)
    sampled(made, 1_000, main)
    lanes = lanes_of(made.trace())
    assert [group.title for group in lanes.groups] == [
        "MainThread: Python, sampled",
        "Thread-1 and 1 alike: Python, sampled",
    ]
    assert lanes_named(lanes, "Thread-1 and 1 alike: Python, sampled") == [["work (a.py)", "_worker (thread.py)"]] * 2


def test_functions_are_searched_and_sorted_and_own_ones_are_marked(show):
    with show(script()) as page:
        assert list(rows(page, "cpu")) == ["parse (etl.py:7)", "<module> (etl.py:9)", "imports"]
        marked = page.eval_on_selector_all(".own[role=gridcell]", "cells => cells.map((cell) => cell.textContent)")
        assert marked == ["parse (etl.py:7)", "<module> (etl.py:9)"]
        page.click("[data-key=cpu] button")
        assert next(iter(rows(page, "cpu"))) == "<module> (etl.py:9)"
        page.fill("#filter", "etl.py")
        assert page.inner_text("#filtered") == "2 of 3"


def test_a_function_is_shown_with_two_lines_of_source_on_each_side_of_its_hot_one(show, tmp_path):
    with show(script(written(tmp_path))) as page:
        page.locator("[data-row]", has_text="parse").click()
        assert page.inner_text("#row-details .source").rstrip().split("\n") == [
            "5      found = []",
            "6      for row in rows:",
            "7          found.append(row + 1)",
            "8      return found",
        ]
        assert page.inner_text("#row-details .source mark") == "7          found.append(row + 1)"


@pytest.mark.parametrize("state", ["gone", "changed", "shorter", "no text"])
def test_a_page_is_made_without_source_that_is_not_that_of_the_recording(tmp_path, state):
    file = written(tmp_path)
    if state == "gone":
        os.remove(file)
    elif state == "changed":
        os.utime(file)
    else:
        (tmp_path / "etl.py").write_bytes(b"import pandas\n" if state == "shorter" else b"\xff\xfe\x00" * 20)
        os.utime(file, ns=(0, 0))
    text = render(script(file))
    assert '"source":{}' in text
    assert "etl.py:7" in text


def test_source_of_anything_ends_no_element_and_keeps_to_its_line(tmp_path):
    file = written(tmp_path)
    hostile = "</script><img src=x>\u202e\x0c" + "x" * 400
    (tmp_path / "etl.py").write_text("\n" * 6 + hostile, encoding="utf-8")
    os.utime(file, ns=(0, 0))
    text = render(script(file))
    assert "<img src=x>" not in text
    assert "\u202e" not in text
    assert "x" * 200 not in text.partition('"source"')[2]


def test_a_function_that_is_chosen_is_lit_on_the_timeline(show):
    with show(script()) as page:
        page.locator("[data-row]", has_text="parse").click()
        page.wait_for_timeout(100)
        # In the second lane the import comes first, then the function.
        pixels = """canvas => {
            const row = canvas.getContext("2d").getImageData(0, 68, canvas.width, 1).data;
            return [0.1, 0.6].map((share) => row[4 * Math.floor(share * canvas.width) + 3]);
        }"""
        other, chosen = page.locator("#lanes canvas").evaluate(pixels)
        assert other < 100 < chosen == 255


def test_colors_of_the_timeline_and_of_the_tree_have_a_legend(show):
    with show(script()) as page:
        for place in ("#colors", "#tree-colors"):
            assert page.inner_text(place).split("\n") == ["Python:", "your code", "imports"]
        page.select_option("#tree-by", "count")
        assert page.inner_text("#tree-colors") == ""


def test_rules_of_accessibility_are_kept_with_functions_and_their_source(show, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme in ("light", "dark"):
        # axe brings its script along, which the page's policy rightly bars.
        with show(script(written(tmp_path)), color_scheme=scheme, bypass_csp=True) as page:
            page.locator("[data-row]", has_text="parse").click()
            found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
            assert found.violations_count == 0, found.generate_report()
