# SPDX-License-Identifier: Apache-2.0
"""The page of a job: its figures are those of the tables, and what a reader can do with it."""

from __future__ import annotations

import re

import pytest

from fakes.browser import opener
from fakes.fleets import make_fleet
from gpuscope.errors import InvalidArgument
from gpuscope.fleet.job import Fleet

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">{{data}}"


@pytest.fixture(scope="module")
def fleet():
    return make_fleet(16, steps=30, calls=3, slow={5: 1.3}, per_host=16)


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a job."""
    return opener(browser, tmp_path / "fleet.html", lambda made, path: made.report(path))


def cell(page, matrix):
    return page.inner_text(f"#{matrix}-cell")


def test_the_verdict_and_all_findings_are_on_the_page(fleet, tmp_path):
    fleet.report(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    found = fleet.diagnose()
    assert found.verdict.removeprefix("verdict: ") in text
    assert found.findings
    assert all(finding.sentence in text for finding in found.findings)


def test_arrows_say_what_each_cell_has(show, fleet):
    with show(fleet) as page:
        page.locator("#steps-matrix").focus()
        page.keyboard.press("ArrowDown")
        assert cell(page, "steps") == "rank 0 on n0, step 0: compute, to its equals +0.0 %"
        for key in ("ArrowDown",) * 5 + ("ArrowRight",) * 2:
            page.keyboard.press(key)
        assert cell(page, "steps") == "rank 5 on n0, step 2: compute, to its equals +30.0 %"


def test_a_map_shows_waits_as_shares_of_the_step(show, fleet):
    with show(fleet, "/steps?steps=wait") as page:
        page.locator("#steps-matrix").focus()
        page.keyboard.press("ArrowDown")
        shown = re.search(r"waits ([\d.]+) %", cell(page, "steps"))
        assert float(shown[1]) == pytest.approx(100 * 3 * 1.2 / (3 * 7.2), abs=0.3)  # 4 ms * 0.3 before each call


def test_waits_are_told_by_collective_and_by_the_late_rank(show, fleet):
    with show(fleet, "/waits") as page:
        page.locator("#waits-matrix").focus()
        page.keyboard.press("ArrowDown")
        assert cell(page, "waits") == "rank 0 on n0, collective 1 all_reduce: mean wait 1.20 ms"
        page.select_option("#waits-value", label="waits a step")
        page.locator("#waits-matrix").focus()
        for key in ("ArrowDown",) + ("ArrowRight",) * 5:
            page.keyboard.press(key)
        assert cell(page, "waits") == "rank 0 on n0, for rank 5: waits a step 3.60 ms"


def test_ranks_are_ordered_by_cost_and_the_choice_is_in_the_address(show, fleet):
    with show(fleet) as page:
        page.select_option("#order", "cost")
        page.locator("#steps-matrix").focus()
        page.keyboard.press("ArrowDown")
        assert cell(page, "steps").startswith("rank 5 ")
        page.wait_for_url(re.compile("order=cost"))


def test_enter_chooses_the_rank_in_the_table(show, fleet):
    with show(fleet) as page:
        page.locator("#steps-matrix").focus()
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        assert page.inner_text("#row-details h3") == "rank 1"


def test_the_costliest_rank_stands_first_in_the_table(show, fleet):
    with show(fleet) as page:
        names = page.eval_on_selector_all("[data-row]", "rows => rows.map((row) => row.firstChild.textContent)")
        assert names[0] == "rank 5"
        assert len(names) == 16


def test_a_slow_rank_is_seen_where_ranks_share_a_pixel(show):
    with show(make_fleet(3000, steps=4, calls=1, slow={1717: 1.2}, per_host=3000)) as page:
        strongest = page.evaluate("""() => {
          const canvas = document.querySelector("#steps-matrix canvas"), pen = canvas.getContext("2d");
          const column = pen.getImageData(Math.round(canvas.width / 2), 0, 1, canvas.height).data;
          let best = [0, 0];
          for (let y = 30; y < canvas.height - 4; y += 1) {
            const colored = Math.abs(column[4 * y] - column[4 * y + 2]);
            if (colored > best[1]) best = [y, colored];
          }
          return [best[0] / canvas.height, best[1]];
        }""")
        assert strongest[1] > 100
        assert strongest[0] == pytest.approx(1717 / 3000, abs=0.03)


def test_keys_zoom_to_fewer_ranks_and_back(show, fleet):
    with show(fleet) as page:
        shown = page.locator("#steps-matrix")
        shown.focus()
        page.keyboard.press("+")
        assert shown.get_attribute("data-shown").startswith("compute 4-12 ")
        page.keyboard.press("0")
        assert shown.get_attribute("data-shown").startswith("compute 0-16 ")


def test_the_timeline_has_waits_and_transfers_of_the_costliest_and_of_typical_ranks(show, fleet):
    with show(fleet, "/timeline") as page:
        assert "Ranks 5, " in page.inner_text("#timeline")
        page.fill("#find", "all_reduce: wait")
        assert page.inner_text("#found") == "27 found"  # of three ranks in 3 steps: rank 5 does not wait
        page.fill("#find", "compute")
        assert page.inner_text("#found") == "36 found"


def test_the_timeline_has_the_ranks_and_steps_that_were_asked_for(fleet, tmp_path):
    fleet.report(tmp_path / "a.html", ranks=[7, 2], steps=(20, 22))
    assert "Ranks 7, 2, steps 20 to 22" in (tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(InvalidArgument, match="ranks has 99; accepted are the 16 ranks with a recording"):
        fleet.report(tmp_path / "a.html", ranks=[99])
    with pytest.raises(InvalidArgument, match="steps is 50:60; the ranks have steps 0 to 29"):
        fleet.report(tmp_path / "a.html", steps=(50, 60))


def test_hosts_with_markup_in_their_names_stay_text(show, fleet):
    ranks = {name: values.copy() for name, values in fleet.table("rank").items()}
    ranks["host"][:] = HOSTILE
    tables = {name: fleet.table(name) for name in ("step", "collective", "segment", "anchor")}
    with show(Fleet({"rank": ranks, **tables})) as page:
        assert page.title() == "16 of 16 ranks on 1 host"
        assert HOSTILE[:20] in page.inner_text("#rows")


def test_a_job_of_one_rank_without_steps_has_a_page(show, fleet):
    ranks = {name: values[:1] for name, values in fleet.table("rank").items()}
    with show(Fleet({"rank": ranks})) as page:
        assert page.locator("#steps-matrix").count() == 0
        assert page.locator("#rows [data-row]").count() == 1


def test_ten_thousand_ranks_stay_below_five_megabytes(tmp_path):
    made = make_fleet(10_000, steps=40, calls=1, noise=0.02, per_host=10_000)
    made.report(tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 5e6
