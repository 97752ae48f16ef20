# SPDX-License-Identifier: Apache-2.0
"""The page of the memory over time: the numbers in it, and what a browser makes of them."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest

from fakes.browser import look_at, opened
from fakes.memory_events import events
from gpuscope.devices import HOST
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.exporters.page.memory import ALLOCATIONS, GROUPS, STEPS, export_memory_page, make_steps, render
from gpuscope.memory.history.events import MemoryEvents
from gpuscope.memory.history.peak import peak_memory

KIB = 1 << 10
MODULE = ("Module._call_impl", "/usr/lib/python3/site-packages/torch/nn/modules/module.py", 1700)
STACKS = {
    1: (("load", "/home/me/data.py", 5),),
    2: (MODULE, ("step", "/home/me/train.py", 12)),
    3: (
        ("attend", "/usr/lib/python3/site-packages/transformers/llama.py", 7),
        MODULE,
        ("step", "/home/me/train.py", 13),
    ),
}
HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">&amp;{{data}}"
)


def history(**more):
    """Peak of 7 KiB at the fourth event, of which 1 is from before; 3 KiB live at the end."""
    held = {"reserved_bytes": 8 * KIB}
    rows = (
        ("alloc", 0x1000, KIB, {"stack": 1, "allocated_bytes": 2 * KIB, **held}),
        ("alloc", 0x2000, 4 * KIB, {"stack": 2, "allocated_bytes": 6 * KIB, **held}),
        ("free", 0x2000, 4 * KIB, {"stack": 2, "allocated_bytes": 2 * KIB, **held}),
        ("alloc", 0x3000, 5 * KIB, {"stack": 3, "allocated_bytes": 7 * KIB, **held}),
        ("free", 0x3000, 5 * KIB, {"stack": 3, "allocated_bytes": 2 * KIB, **held}),
        ("alloc", 0x4000, KIB, {"stack": 2, "allocated_bytes": 3 * KIB, **held}),
    )
    return events(*rows, frames=STACKS, **more)


def many(count, seed=3):
    """A random walk of allocations and releases by 200 lines."""
    chance = np.random.default_rng(seed)
    rows, live = [], []
    for number in range(count):
        if live and chance.random() < 0.48:
            rows.append(("free", *live.pop(int(chance.integers(len(live))))))
        else:
            size = int(chance.integers(1, 1 << 20))
            rows.append(("alloc", 0x1000 + number, size, {"stack": int(chance.integers(1, 201))}))
            live.append(rows[-1][1:3])
    return events(*rows, frames={stack: ((f"f{stack}", f"/home/me/m{stack}.py", stack),) for stack in range(1, 201)})


def island(text):
    """The data of a page, as a browser would cut it out."""
    found = re.search(r'<script type="application/json" id="memory">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert "<" not in found[1]  # neither an end tag, nor a comment that would hide one
    return json.loads(found[1])


def sizes(view):
    return {group["name"]: np.cumsum(group["sizes"]).tolist() for group in view["groups"]}


def test_every_group_has_its_size_at_each_step():
    found = sizes(island(render(history()))["views"]["line"])
    assert found == {
        "from before the history": [KIB] * 6,
        "train.py:13 step": [0, 0, 0, 5 * KIB, 0, 0],
        "train.py:12 step": [0, 4 * KIB, 0, 0, 0, KIB],
        "data.py:5 load": [KIB] * 6,
    }


def test_libraries_are_those_that_asked():
    found = sizes(island(render(history()))["views"]["library"])
    assert list(found) == ["from before the history", "torch: your code", "torch: transformers"]


def in_regions():
    return events(
        ("alloc", 0x1000, KIB, {"region": "load"}),
        ("alloc", 0x2000, 4 * KIB, {"region": "forward"}),
        ("alloc", 0x3000, 2 * KIB),
        ("free", 0x2000, 4 * KIB),
    )


def test_regions_are_those_in_which_it_was_taken():
    assert sizes(island(render(in_regions()))["views"]["region"]) == {
        "forward": [0, 4 * KIB, 4 * KIB, 0],
        "no region": [0, 0, 2 * KIB, 2 * KIB],
        "load": [KIB] * 4,
    }


def test_without_regions_there_is_no_such_view():
    text = render(history())
    assert "region" not in island(text)["views"]
    assert 'value="region"' not in text


@pytest.mark.parametrize("view", ["category", "line", "library"])
@pytest.mark.parametrize("made", [history(), many(9000)], ids=["few", "many"])
def test_the_groups_add_up_to_what_is_in_use(view, made):
    data = island(render(made))
    total = np.sum(list(sizes(data["views"][view]).values()), axis=0)
    assert total.tolist() == np.cumsum(data["used"]).tolist()


def test_the_peak_is_exact_however_many_events_there_are():
    made = many(9000)
    data = island(render(made))
    in_use = np.cumsum(made.bytes)
    assert len(data["used"]) <= STEPS + 1
    assert np.cumsum(data["used"])[data["peak"]] == in_use.max()
    assert np.cumsum(data["used"])[-1] == in_use[-1]


def test_no_stretch_of_time_hides_its_most():
    made = many(9000)
    steps, _ = make_steps(made, 0)
    in_use = np.cumsum(made.bytes)
    # A stretch ends where the next begins, somewhere between two rows that are shown.
    for first, second in zip(steps.chosen[:-1].tolist(), steps.chosen[1:].tolist(), strict=True):
        between = in_use[first : second + 1].max()
        assert between == max(in_use[first], in_use[second]) or second == len(made) - 1


def test_groups_and_allocations_are_limited_and_the_rest_is_told():
    data = island(render(many(9000)))
    groups = data["views"]["line"]["groups"]
    assert len(groups) == GROUPS + 1
    assert groups[-1]["name"] == "smaller ones"
    assert len(data["allocations"]["bytes"]) <= ALLOCATIONS


def test_allocations_know_when_they_live():
    allocations = island(render(history()))["allocations"]
    lives = list(zip(allocations["bytes"], allocations["first"], allocations["end"], strict=True))
    assert lives == [(KIB, 0, 6), (4 * KIB, 1, 2), (5 * KIB, 3, 4), (KIB, 5, 6)]


def test_categories_may_be_given():
    found = sizes(island(render(history(), categories=np.array([0, 4, 4, 5], dtype=np.uint8)))["views"]["category"])
    assert found["parameter"] == [KIB] * 6
    assert found["activation"] == [0, 4 * KIB, 0, 5 * KIB, 0, 0]
    assert found["gradient"] == [0, 0, 0, 0, 0, KIB]


def test_memory_of_the_driver_counts_where_nobody_hands_it_out():
    rows = (
        ("alloc", 0x10000, 64 * KIB, {"source": "driver", "allocated_bytes": 0}),  # torch's segment
        ("alloc", 0x90000, 3 * KIB, {"source": "driver", "allocated_bytes": 0}),  # somebody's workspace
        ("alloc", 0x10000, KIB, {"allocated_bytes": KIB}),
        ("free", 0x90000, 3 * KIB, {"source": "driver", "allocated_bytes": 0}),
    )
    data = island(render(events(*rows, frames=STACKS)))
    assert np.cumsum(data["used"]).tolist() == [3 * KIB, 4 * KIB, KIB]
    assert "driver: no call stack" in sizes(data["views"]["library"])


LIBRARYS = (
    ("alloc", 0x1000, KIB, {"stack": 1, "allocated_bytes": KIB, "reserved_bytes": 2 * KIB}),
    ("alloc", 0x90000, 3 * KIB, {"stack": 2, "source": "driver", "allocated_bytes": 0}),  # somebody's workspace
    ("alloc", 0x20000, 64 * KIB, {"stack": 2, "source": "driver", "allocated_bytes": 0}),  # torch's, mapped elsewhere
    ("alloc", 0x1400, KIB, {"stack": 1, "allocated_bytes": 2 * KIB, "reserved_bytes": 66 * KIB}),
)


def test_what_libraries_take_is_a_category_of_its_own():
    found = sizes(island(render(events(*LIBRARYS, frames=STACKS)))["views"]["category"])
    assert found["libraries"] == [0, 3 * KIB, 3 * KIB]


def test_what_libraries_take_is_held_too():
    data = island(render(events(*LIBRARYS, frames=STACKS)))
    assert np.cumsum(data["reserved"]).tolist() == [2 * KIB, 5 * KIB, 69 * KIB]


def test_the_peak_is_that_of_the_report():
    made = events(*LIBRARYS, frames=STACKS)
    data = island(render(made))
    assert np.cumsum(data["used"])[data["peak"]] == peak_memory(made).bytes == 5 * KIB


def test_what_autograds_threads_take_is_a_line_of_its_own():
    made = events(("alloc", 1, 5, {"stack": 1}), ("alloc", 2, 7, {"stack": 0, "thread": 2}), frames=STACKS)
    found = sizes(island(render(made))["views"]["line"])
    assert found == {"backward (autograd's thread, no Python stack)": [0, 7], "data.py:5 load": [5, 5]}


def test_the_busiest_gpu_is_shown_and_others_on_demand():
    made = events(
        ("alloc", 1, 5, {"device": 1}),
        ("alloc", 2, 6, {"device": 1}),
        ("alloc", 3, 7),
        ("alloc", 4, 9, {"device": HOST}),
    )
    assert "<dd>GPU 1</dd>" in render(made)
    assert "<dd>host</dd>" in render(made, device=HOST)
    with pytest.raises(InvalidArgument, match=r"device is 4; the history has events of the host \(-1\), GPU 0, GPU 1"):
        render(made, device=4)


def test_lost_events_and_notes_stand_above_the_chart():
    text = render(history(lost=1234), notes=["It ended early."])
    for words in ("1,234 older events are no longer kept", "It ended early."):
        assert 0 < text.index(words) < text.index('id="chart"')


def test_without_events_there_is_no_page(tmp_path):
    with pytest.raises(NotAvailable, match="no events"):
        export_memory_page(events(), tmp_path / "memory.html")
    assert not (tmp_path / "memory.html").exists()


@pytest.mark.parametrize("name", ["memory.json", "missing/memory.html"])
def test_where_no_page_can_be_written_is_an_error(tmp_path, name):
    with pytest.raises(GpuscopeError):
        export_memory_page(history(), tmp_path / name)


def test_the_page_allows_no_request():
    text = render(history())
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\';' in text
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=|https?://", text)


def test_texts_from_outside_are_no_tags():
    made = events(("alloc", 1, 5, {"stack": 1}), frames={1: ((HOSTILE, HOSTILE, 1),)})
    text = render(made, title=HOSTILE, notes=[HOSTILE])
    assert "<img" not in text
    assert (
        text.count(html.escape(HOSTILE)) == 4
    )  # title, heading, note, and the function in the table; no file's folder
    assert HOSTILE in island(text)["stacks"][0][0]


def test_a_hundred_thousand_events_make_a_file_of_a_few_mb():
    chance = np.random.default_rng(1)
    count = 100_000
    size = chance.integers(1, 1 << 22, count // 2)
    address = np.repeat(np.arange(count // 2, dtype=np.uint64), 2)
    change = np.stack([size, -size], axis=1).reshape(-1)
    order = np.argsort(np.arange(count) + np.where(change < 0, chance.integers(0, 4000, count), 0), kind="stable")
    made = MemoryEvents(
        time_ns=np.arange(count) * 1000,
        address=address[order],
        bytes=change[order],
        allocated_bytes=np.cumsum(change[order]),
        reserved_bytes=np.full(count, 1 << 34),
        device=np.zeros(count, dtype=np.int32),
        stack=chance.integers(1, 5000, count).astype(np.uint32),
        region=np.zeros(count, dtype=np.uint32),
        thread=np.ones(count, dtype=np.uint64),
        source=np.zeros(count, dtype=np.uint8),
        frames=lambda number: events(frames=STACKS).frames(number % 3 + 1),
    )
    assert len(render(made)) < 4_000_000


@pytest.fixture
def look(tmp_path):
    """Opens a page in a browser and returns its document after a while, and what the console said."""

    def opened(made, *, choice="", script="", **more):
        path = tmp_path / "page.html"
        export_memory_page(made, path, **more)
        return look_at(path, choice, script)

    return opened


def shown(document):
    """View and step that are shown."""
    return re.search(r'data-shown="(\w+) (\d+)', document).groups()


def table(document):
    body = re.search(r'<tbody id="rows">(.*?)</tbody>', document, re.DOTALL)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [html.unescape(re.sub(r"(?s)<pre>.*?</pre>|<[^>]*>", "", cell)) for cell in row.split("</td>")[:3]]
        for row in rows
    ]


KEYS = """
  const chart = document.getElementById("chart");
  const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
"""


def test_the_page_opens_at_the_peak_without_a_complaint(look):
    document, said = look(history())
    assert said == ""
    assert shown(document) == ("line", "3")
    assert "At the peak, 3 µs: 7.00 KiB, 8.00 KiB held from the driver" in document
    assert "Dashed: held from the driver." in document


def test_the_table_has_what_lives_at_the_moment(look):
    document, _ = look(history(), choice="view=line&step=1")
    assert table(document) == [
        ["4.00 KiB", "66.7 %", "train.py:12 step"],
        ["1.00 KiB", "16.7 %", "from before the history"],
        ["1.00 KiB", "16.7 %", "data.py:5 load"],
    ]
    assert "/home/me/train.py:12 step" in document  # the stack, in its details


def test_allocations_are_told_one_by_one(look):
    document, said = look(history(), choice="view=allocations&step=1")
    assert said == ""
    assert [row[0] for row in table(document)] == ["4.00 KiB", "1.00 KiB", "1.00 KiB"]
    assert table(document)[-1][2] == "all others"


def test_keys_move_through_the_history(look):
    document, said = look(
        history(), script=KEYS + 'press("End"); press("ArrowLeft"); press("+"); press("-"); press("0");'
    )
    assert (shown(document), said) == (("line", "4"), "")
    assert 'aria-valuenow="4"' in document
    assert 'aria-valuetext="In use, 4 µs: 2.00 KiB, 8.00 KiB held from the driver"' in document


@pytest.mark.parametrize(("keys", "shown"), [("ww", "0 2"), ("wwddd", "1 4"), ("wwdddaaa", "0 2"), ("ws", "0 5")])
def test_w_and_s_zoom_and_a_and_d_move(look, keys, shown):
    document, said = look(history(), choice="step=0", script=f'{KEYS} for (const key of "{keys}") press(key);')
    assert said == ""
    assert f'data-shown="line 0 {shown}"' in document


def test_a_question_mark_lists_the_keys(browser, tmp_path):
    path = tmp_path / "page.html"
    export_memory_page(history(), path)
    with opened(browser, path, complete=False) as page:
        page.wait_for_selector("#chart[data-shown]")
        assert not page.is_visible("#help")
        page.keyboard.press("?")
        assert "the peak" in page.inner_text("#help")
        page.keyboard.press("Escape")
        page.wait_for_selector("#help", state="hidden")
        page.click("#keys")
        assert page.is_visible("#help")


def test_zooming_and_coming_back(look):
    script = KEYS + 'press("+"); press("+"); document.body.dataset.zoomed = chart.dataset.shown; press("0");'
    document, _ = look(history(), script=script)
    assert re.search(r'data-shown="line 3 0 5"', document)


def test_the_switch_changes_the_view_and_the_address(look):
    script = """
      const radio = document.querySelector("[value=library]");
      radio.checked = true;
      radio.dispatchEvent(new Event("change", { bubbles: true }));
      setTimeout(() => { document.body.dataset.address = location.hash; }, 100);"""
    document, said = look(history(), script=script)
    assert (shown(document), said) == (("library", "3"), "")
    assert "view=library" in document


def test_a_click_chooses_the_moment_under_it(look):
    script = """
      const chart = document.getElementById("chart"), place = chart.getBoundingClientRect();
      const at = { clientX: place.left + 80, clientY: place.top + 60, button: 0, bubbles: true, pointerId: 1 };
      for (const kind of ["move", "down", "up"]) chart.dispatchEvent(new PointerEvent("pointer" + kind, at));"""
    document, said = look(history(), script=script)
    assert said == ""
    assert shown(document) == ("line", "0")
    assert "0 µs: 2.00 KiB" in re.search(r'<div id="tip"[^>]*>([^<]*)', document)[1]


@pytest.mark.parametrize("view", ["category", "line", "library", "allocations"])
def test_many_events_are_drawn(look, view):
    document, said = look(many(9000), choice=f"view={view}")
    assert said == ""
    assert shown(document)[0] == view


def test_regions_are_drawn(look):
    document, said = look(in_regions(), choice="view=region")
    assert (shown(document)[0], said) == ("region", "")
    assert "no region" in document


def test_hostile_texts_run_nothing(look):
    made = events(("alloc", 1, 5, {"stack": 1}), ("alloc", 2, 5), frames={1: ((HOSTILE, HOSTILE, 1),)})
    document, said = look(made, choice="view=line", title=HOSTILE, notes=[HOSTILE])
    assert said == ""
    assert "<title>&lt;/script&gt;" in document
    assert "<img" not in document


def test_every_control_has_a_name():
    text = render(history())
    assert len(re.findall(r"<label><input[^>]*> [a-z ]+</label>", text)) == 4
    assert all(re.search(r'aria-label="|>[A-Z]', button) for button in re.findall(r"<button.*?</button>", text))


@pytest.mark.parametrize("width", [360, 1280, 3840])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways_and_the_rules_of_accessibility_are_kept(browser, tmp_path, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    path = tmp_path / "page.html"
    export_memory_page(many(300), path)
    # axe brings its script along, which the page's policy rightly bars.
    with opened(browser, path, complete=False, width=width, color_scheme=scheme, bypass_csp=True) as page:
        page.wait_for_selector("#chart[data-shown]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [360, 3840])
def test_the_moment_under_the_pointer_is_chosen_at_every_width(browser, tmp_path, width):
    path = tmp_path / "page.html"
    export_memory_page(history(), path)
    with opened(browser, path, complete=False, width=width) as page:
        page.wait_for_selector("#chart[data-shown]")
        box = page.locator("#chart").bounding_box()
        chosen = []
        for share in (0.3, 0.999):  # inside, and behind the last event
            page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
            page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            chosen.append(int(page.get_attribute("#chart", "data-shown").split()[1]))
        assert chosen[0] < chosen[1]
        assert chosen[1] == 5
