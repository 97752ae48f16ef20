# SPDX-License-Identifier: Apache-2.0
"""The page of a difference: its figures are those of the object, and what a reader can do with it."""

from __future__ import annotations

import csv
import math
import re

import pytest

import gpuscope as gs
from fakes.browser import opener
from fakes.loops import Loop
from fakes.versions import program, version
from gpuscope.errors import InvalidArgument
from gpuscope.recording import Recording

MS = 1e6
KERNELS = {"gemm": 4 * MS, "relu": 1 * MS, "norm": 2 * MS, "small*20": 0.05 * MS}
SLOWER = {"gemm": 5 * MS, "relu": 0.5 * MS, "fused": 1 * MS, "small*30": 0.05 * MS}
HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">'&amp;{{data}}"
)


@pytest.fixture(scope="module")
def found():
    return gs.diff(version(KERNELS, seed=1), version(SLOWER, seed=2, waits_ns=1 * MS))


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a difference."""
    return opener(browser, tmp_path / "diff.html", lambda diff, path: diff.to_html(path))


def test_the_target_is_a_figure_of_the_page():
    text = gs.diff(version(KERNELS, seed=1), version(SLOWER, seed=2), target="1 us", findings=False).to_html()
    assert "<dt>target</dt><dd><b>1 us: not met</b>" in text


ROWS = """() => [...document.querySelectorAll("[role=row][data-row]")].map((row) => {
  const entry = (cell) => [cell.dataset.key, [Number(cell.dataset.value), cell.textContent]];
  const cells = Object.fromEntries([...row.querySelectorAll("[data-key]")].map(entry));
  return { name: row.firstChild.textContent, cells };
})"""


def test_figures_are_those_of_the_object(show, found):
    compared = 0
    with show(found) as page:
        assert found.head()[1] == f"{page.inner_text('#verdict span')}: slower"  # which the badge says
        assert page.inner_text("#verdict b") == found.verdict == "slower"
        for kind in ("gpu", "idle", "host"):
            page.click(f"#tab-{kind}")
            nodes = {
                f"{node.name} in {' / '.join(node.path)}" if node.path else node.name: node
                for node in found.nodes
                if node.kind == kind
            }
            shown = page.evaluate(ROWS)
            assert sorted(row["name"] for row in shown) == sorted(nodes)
            for row in shown:
                node, cells = nodes[row["name"]], row["cells"]
                assert cells["delta"][0] == round(node.delta_ns)
                assert cells["before"][0] == round(node.before_ns)
                assert cells["after"][0] == round(node.after_ns)
                assert cells["verdict"][1] == node.verdict
                if "calls_after" in cells:
                    assert cells["calls_after"][0] == pytest.approx(node.count_after, abs=1e-3)
                compared += 1
    assert compared == len(found.nodes) > 8


def test_what_changed_most_stands_first(show, found):
    with show(found) as page:
        names = page.eval_on_selector_all("[data-row]", "rows => rows.map((row) => row.firstChild.textContent)")
        first = max((node for node in found.nodes if node.kind == "gpu"), key=lambda node: abs(node.delta_ns))
        assert names[0].startswith(first.name)


def test_what_was_promised_stands_beside_what_was_got(found):
    text = found.to_html()
    for promise in found.promises:
        assert f"<code>{promise.id}</code>" in text
        assert promise.state in text
    for doubt in found.doubts:
        assert doubt in text


def test_unlike_conditions_are_told(show):
    unlike = gs.diff(version(KERNELS, seed=1), version(KERNELS, seed=2, device="NVIDIA A100"))
    with show(unlike, "/conditions") as page:
        assert "GPUs: NVIDIA H100 before, NVIDIA A100 after" in page.inner_text("#conditions")
        assert "GPUs: NVIDIA H100 before, NVIDIA A100 after" in page.inner_text("#overview")


def test_tables_sort_and_search(show, found):
    with show(found) as page:

        def values(key):
            cells = page.eval_on_selector_all(
                f"[data-row] [data-key={key}]", "cells => cells.map((c) => c.dataset.value)"
            )
            return [float(value) for value in cells]

        page.click("[data-key=after] button")
        assert values("after") == sorted(values("after"), reverse=True)
        page.click("[data-key=delta] button")
        assert values("delta") == sorted(values("delta"), reverse=True)
        page.click("[data-key=delta] button")
        assert values("delta") == sorted(values("delta"))
        page.fill("#filter", "gemm")
        assert len(values("delta")) == 1
        page.locator("[data-row]").click()
        assert "slower" in page.inner_text("#row-details")
        with page.expect_download() as download:
            page.click("#csv")
        lines = download.value.path().read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("name,delta_ns,ratio,verdict,before_ns,after_ns,low_ns,high_ns")
        page.fill("#filter", "/(/")
        assert page.inner_text("#filtered") == "no regex"


def test_the_tree_adds_up_zooms_and_turns(show, found):
    with show(found) as page:
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        kinds = []
        for _ in range(3):
            kinds.append((page.inner_text("#tree-details h3"), page.inner_text("#tree-details dl")))
            page.keyboard.press("ArrowRight")
        assert {name for name, _ in kinds} == {"GPU work", "GPU idle", "Host"}
        gpu = sum(node.after_ns for node in found.nodes if node.kind == "gpu") / MS
        words = next(words for name, words in kinds if name == "GPU work")
        assert float(re.search(r"after\s+([\d.]+) ms", words)[1]) == pytest.approx(gpu, rel=0.01)
        page.fill("#tree-find", "gemm")
        assert re.fullmatch(r"[\d.]+ % found", page.inner_text("#tree-found"))
        page.click("#tree-invert")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        gemm = next(node for node in found.nodes if node.name == "gemm")
        assert page.inner_text("#tree-details h3") == "gemm"
        shown = re.search(r"before\s+([\d.]+) ms.*after\s+([\d.]+) ms", page.inner_text("#tree-details dl"), re.DOTALL)
        assert float(shown[1]) == pytest.approx(gemm.before_ns / MS, rel=0.01)
        assert float(shown[2]) == pytest.approx(gemm.after_ns / MS, rel=0.01)


def of_two_steps(kernels):
    return version(kernels, steps=2, noise=0)


@pytest.fixture(scope="module")
def uncertain():
    """Of too few steps for the upper ends of intervals; one kernel is new."""
    return gs.diff(of_two_steps({"gemm": MS}), of_two_steps({"gemm": MS, "fused": MS}))


def test_ends_of_intervals_that_are_not_known_are_told(show, uncertain):
    assert all(node.interval_ns[1] == math.inf for node in uncertain.nodes)
    with show(uncertain) as page:
        page.locator("[data-row]", has_text="gemm").click()
        assert "-1.00 ms to unknown" in page.inner_text("#row-details")
        assert "unknown" in page.inner_text("#rows")


def test_what_is_new_stands_above_every_ratio(show, uncertain):
    with show(uncertain) as page:
        page.click("[data-key=ratio] button")
        assert page.locator("[data-row]").first.inner_text().startswith("fused")


def test_files_for_spreadsheets_have_words_for_verdicts_and_nothing_for_what_is_not_known(show, uncertain):
    with show(uncertain) as page:
        with page.expect_download() as download:
            page.click("#csv")
        lines = download.value.path().read_text(encoding="utf-8").splitlines()
    rows = {row["name"]: row for row in csv.DictReader(lines)}
    fused = rows["fused in forward"]
    assert fused["verdict"] == "inconclusive"
    assert (fused["ratio"], fused["high_ns"]) == ("", "")
    assert float(fused["after_ns"]) == MS
    assert rows["gemm in forward"]["low_ns"] == str(-round(MS))


def nested(outer_us, inner_us):
    """A region that works, and in it another."""
    made = Loop()
    for _ in made.steps(6):
        with made.region("model"):
            made.work(outer_us)
            with made.region("layer"):
                made.work(inner_us)
    return Recording(made.trace().store)


def test_a_region_around_others_is_in_the_tree_with_what_it_has_alone(show):
    diff = gs.diff(nested(500, 100), nested(500, 400))
    with show(diff) as page:
        page.locator("#icicle").focus()
        for key in ("ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        assert page.inner_text("#tree-details h3") == "model"
        words = " ".join(page.inner_text("#tree-details dl").split())
        assert "before 600 µs after 900 µs" in words
        assert words.endswith("alone 500 µs to 500 µs, same")
        page.click("#tree-invert")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#tree-details h3") == "model"
        assert "before 500 µs after 500 µs" in " ".join(page.inner_text("#tree-details dl").split())


def test_a_tree_has_the_same_sums_whichever_way_it_stands(show, found):
    with show(found) as page:
        upright = page.inner_text("#tree-details dl")
        page.click("#tree-invert")
        assert page.inner_text("#tree-details h3") == "all"
        assert page.inner_text("#tree-details dl") == upright


def test_two_steps_begin_together_and_have_every_event_of_them(show, found):
    with show(found, "/timeline") as page:
        facts = page.evaluate("document.getElementById('timeline').innerText")
        for step in found.medians:
            assert f"step {step.number + 1} of {len(step.steps)}" in facts
        page.fill("#find", "gemm")
        assert page.inner_text("#found") == "2 found"
        page.fill("#find", "small")
        assert page.inner_text("#found") == "50 found"
        page.fill("#find", "forward")
        page.press("#find", "Enter")
        assert "began at" in page.inner_text("#details")
        page.fill("#find", "gemm")
        page.press("#find", "Enter")
        assert "launched by" in page.inner_text("#details")
        assert "cuLaunchKernel" in page.inner_text("#details")


def test_the_address_brings_everything_back(show, found):
    with show(found) as page:
        page.click("#tab-host")
        page.click("[data-key=before] button")
        page.locator("[data-row]").first.click()
        page.select_option("#tree-by", "after")
        for _ in range(200):
            if "by=after" in page.url and "row=" in page.url:
                break
            page.wait_for_timeout(50)
        address = page.url.partition("#")[2]
        seen = [page.inner_text("#rows"), page.inner_text("#row-details")]
    with show(found, address) as page:
        assert [page.inner_text("#rows"), page.inner_text("#row-details")] == seen
        assert page.input_value("#tree-by") == "after"


def test_keys_go_to_sections_and_search(show, found):
    with show(found) as page:
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        page.wait_for_selector("#help", state="hidden")  # while it is open, keys are its own
        page.keyboard.press("3")
        page.wait_for_selector("nav a[href='#/timeline'][aria-current]")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"


def run_of(**functions):
    return program(functions, rounds=20, noise=0)


def test_runs_have_their_verdict_cause_and_samples_and_no_scroll_box(show):
    diff = gs.diff(run_of(parse=200, clean=600), run_of(parse=200, clean=40))
    with show(diff, width=1280) as page:
        assert page.inner_text("#verdict b") == "faster"
        assert page.inner_text("#verdict span") == diff.sentence == "3.3 times faster: 800 ms -> 240 ms"
        assert "clean (etl.py:20)" in page.inner_text("#overview")
        assert "Two runs" in page.inner_text("#timeline")
        assert "the run before (800 ms) and the run after (240 ms)" in page.inner_text("#timeline")
        page.fill("#find", "clean (etl.py)")
        assert page.inner_text("#found") != "0 found"
        assert page.locator("[data-row]").first.inner_text().startswith("clean (etl.py:20)")
        assert page.evaluate(SCROLL_BOXES) == []


SCROLL_BOXES = """() => [...document.querySelectorAll("main *")].filter((each) => {
  const scrolls = /auto|scroll/.test(getComputedStyle(each).overflowY);
  return scrolls && each.scrollHeight > each.clientHeight + 1;
}).map((each) => each.id)"""


def test_a_long_table_has_no_scroll_box_on_a_wide_page(show):
    names = [f"kernel_{chr(97 + n // 20)}{chr(97 + n % 20)}" for n in range(120)]
    diff = gs.diff(version(dict.fromkeys(names, 0.1 * MS), steps=8), version(dict.fromkeys(names, 0.2 * MS), steps=8))
    with show(diff, width=1280) as page:
        assert page.evaluate(SCROLL_BOXES) == []


def test_what_is_not_comparable_is_grey_and_has_no_verdict(show):
    diff = gs.diff(run_of(parse=200, clean=600), run_of(sieve=400))
    with show(diff) as page:
        assert page.inner_text("#verdict b") == "not comparable"
        grey, faint = (
            page.evaluate(f"getComputedStyle(document.querySelector('{each}')).{style}")
            for each, style in (("#verdict b", "backgroundColor"), (".figure span", "color"))
        )
        assert grey == faint
        assert page.locator("#tree").count() == 0
        assert "faster" not in page.inner_text("main")


def test_what_was_not_compared_is_told(show):
    diff = gs.diff(nested(500, 100), nested(500, 400))
    with show(diff) as page:
        assert "not compared: functions: the recording before has no samples" in page.inner_text("#overview")


@pytest.mark.parametrize(
    "sides",
    [
        lambda: (version(KERNELS, seed=1), version(KERNELS, seed=2)),
        lambda: (version(KERNELS, steps=1), version(SLOWER, steps=1)),
        lambda: (version(KERNELS), version({"other": 1 * MS})),
        lambda: (run_of(parse=200), run_of(sieve=100)),
        lambda: ([version(KERNELS, seed=seed) for seed in range(3)], [version(SLOWER, seed=seed) for seed in range(3)]),
    ],
    ids=["equals", "one step", "two programs", "not comparable", "runs"],
)
def test_it_opens_without_a_complaint(show, sides):
    diff = gs.diff(*sides())
    with show(diff) as page:
        assert page.inner_text("#verdict b") == diff.verdict
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", [HOSTILE, "\u202egnorts\u202c עברית", "x" * 10_000, "a\x00b\x1b[31m\u2028"])
def test_names_run_nothing_and_break_nothing(show, name):
    facts = {"process.argv": f"{name}.py", "process.host": name}
    with show(gs.diff(version({name: MS}, info=facts), version({name: 2 * MS, "more": MS}))) as page:
        assert page.title() != "taken"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator("[data-row]").first.click()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", page.inner_text("body"))


@pytest.mark.parametrize("width", [360, 1280, 3840])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways_and_the_rules_of_accessibility_are_kept(show, found, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # axe brings its script along, which the page's policy rightly bars.
    with show(found, width=width, color_scheme=scheme, bypass_csp=True) as page:
        page.locator("[data-row]").first.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        judged = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
        assert judged.violations_count == 0, judged.generate_report()


def test_print_and_pages_without_javascript_have_the_table(show, found):
    with show(found, color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.locator("#tables .plain table").is_visible()
        assert page.locator("nav").is_hidden()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    with show(found, complete=False, java_script_enabled=False) as page:
        assert "need JavaScript" in page.inner_text("body")
        assert "gemm in forward" in page.inner_text("#tables")


def test_a_page_has_one_suffix(found, tmp_path):
    with pytest.raises(InvalidArgument, match=r"\.html"):
        found.to_html(tmp_path / "diff.txt")
