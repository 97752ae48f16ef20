# SPDX-License-Identifier: Apache-2.0
"""What pages are made of: columns as bytes, modules as one script, colors that can be told apart, short names."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import gpuscope
from fakes.browser import opened
from gpuscope import units
from gpuscope.diffing import page as diff_page
from gpuscope.exporters.page import memory, report
from gpuscope.exporters.page.report_names import COLORS, brief_name
from gpuscope.page import chart, markup
from gpuscope.page.planes import PLAIN, STEPS, TIMES, PageColumn, encode

PAGES = {module.__name__: module for module in (report, memory, chart, diff_page)}
ROOT = Path(gpuscope.__file__).parent
FOLDER = ROOT / "page"
CSP = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
HOSTILE = "</script><script>document.title = 'taken'</script>&amp;{{data}}"

COLUMNS = {
    "none": PageColumn(np.array([], np.int64)),
    "small": PageColumn(np.array([0, 1, 255])),
    "wide": PageColumn(np.array([0, 256, 65_535, 65_536, 2**32 - 1, 2**40 + 3])),
    "times": PageColumn(np.array([5, 5, 9, 3, 2**36, 2**36 + 1, 0, 7]), TIMES, (0, 3, 6)),
    "steps": PageColumn(np.array([7, 8, 9, 0, 0, 100, 99, 70_000, 1]), STEPS),
}


def test_columns_come_back_in_the_browser(browser, tmp_path):
    facts, texts = encode(COLUMNS)
    read = ", ".join(
        f"{name}: [...await readColumn(takeColumn('{name}'), facts.{name}, {list(column.firsts)})]"
        for name, column in COLUMNS.items()
    )
    script = f"{markup.script_of(['data.js'])}\nconst facts = {markup.island(facts)};\n"
    script += (
        f"document.body.textContent = JSON.stringify({{ {read} }}); document.documentElement.dataset.complete = 1;"
    )
    islands = "".join(f'<script type="text/plain" id="column-{name}">{text}</script>' for name, text in texts.items())
    page = f'<meta http-equiv="Content-Security-Policy" content="{CSP}"><body>{islands}<script type="module">{script}'
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html>{page}</script></body>", encoding="utf-8")
    with opened(browser, path) as shown:
        found = json.loads(shown.inner_text("body"))
    assert found == {name: column.values.tolist() for name, column in COLUMNS.items()}


def test_pages_write_figures_as_the_library_does(browser, tmp_path):
    sizes = [1152 << 20, 1136 << 20, 12544, 12800 - 64, 1000, 1023, 0, -1152 * 1024]
    times = [1125, 1135, 12_250, 12_350, 100_500_000, 101_500_000, 999, 999_499, 0]
    script = f"{markup.script_of(['units.js'])}\nconst found = [{sizes}.map(sizeText), {times}.map(timeText)];\n"
    script += "document.body.textContent = JSON.stringify(found); document.documentElement.dataset.complete = 1;"
    path = tmp_path / "page.html"
    path.write_text(f'<!DOCTYPE html><body><script type="module">{script}</script></body>', encoding="utf-8")
    with opened(browser, path) as shown:
        found = json.loads(shown.inner_text("body"))
    assert found == [list(map(units.format_bytes, sizes)), list(map(markup.time_text, times))]


def test_pages_write_shares_as_they_are_written_without_javascript(browser, tmp_path):
    shares = [0, 0.0004, 0.05125, 0.09949, 0.0995, 0.5, 1, 3.03]
    script = f"{markup.script_of(['units.js'])}\ndocument.body.textContent = JSON.stringify({shares}.map(shareText));"
    path = tmp_path / "page.html"
    script += "document.documentElement.dataset.complete = 1;"
    path.write_text(f'<!DOCTYPE html><body><script type="module">{script}</script></body>', encoding="utf-8")
    with opened(browser, path) as shown:
        assert json.loads(shown.inner_text("body")) == list(map(markup.share_text, shares))


def test_sorted_times_take_few_bytes():
    chance = np.random.default_rng(1)
    starts = np.cumsum(chance.integers(100, 200, 100_000))
    _, texts = encode({"times": PageColumn(starts, TIMES), "plain": PageColumn(starts, PLAIN)})
    assert len(texts["times"]) < 1.3 * len(starts)
    assert len(texts["times"]) < 0.75 * len(texts["plain"])


def test_planes_that_are_zero_are_left_out():
    facts, _ = encode(COLUMNS)
    assert [facts[name]["planes"] for name in COLUMNS] == [1, 1, 6, 5, 3]


@pytest.fixture(params=PAGES)
def scripts(request):
    """The modules of a page by name, in order."""
    made = PAGES[request.param]
    return {name: markup.file_of_page(name, made.__package__) for name in made.SCRIPTS}


def test_modules_are_joined_without_a_name_twice(scripts):
    declared = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) +([A-Za-z_]\w*)", re.MULTILINE)
    names = [name for text in scripts.values() for name in declared.findall(text)]
    assert len(names) > 10
    assert sorted(set(names)) == sorted(names)


def test_modules_come_after_those_that_they_import_from(scripts):
    before = set()
    for module, text in scripts.items():
        assert set(re.findall(r'from "\./([\w.]+)";', text)) <= before, module
        before.add(module)


def test_every_name_that_a_module_imports_is_exported(scripts):
    for module, text in scripts.items():
        for names, used in re.findall(r'import \{ ([^}]*) \} from "\./([\w.]+)";', text):
            for name in names.split(", "):
                pattern = rf"^export (?:async )?(?:const|let|function|class) {name}\b"
                assert re.search(pattern, scripts[used], re.MULTILINE), (module, name)
                assert re.search(rf"\b{name}\b", text.partition(f'"./{used}";')[2]), (module, name)  # and it is used


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_one_script_has_neither_imports_nor_exports(page):
    text = markup.script_of(page.SCRIPTS, page.__package__)
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
    assert "</" not in text


def test_files_of_pages_are_all_used():
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    found = [path for path in ROOT.rglob("*") if path.suffix in (".js", ".css", ".html")]
    assert len(found) > 30
    for path in found:
        assert f'"{path.name}"' in sources, path.name


def test_pages_need_no_library_of_charts():
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.js"), *ROOT.rglob("*.html"), ROOT.parents[1] / "pyproject.toml"]:
        if path.is_file():
            assert "plotly" not in path.read_text(encoding="utf-8").lower(), path.name


def test_data_ends_no_element():
    text = markup.island({"name": HOSTILE})
    assert "<" not in text
    assert "&" not in text
    assert json.loads(text) == {"name": HOSTILE}


def test_what_is_put_into_a_template_is_not_looked_at_again():
    assert markup.filled("{{a}}{{b}}", {"a": "{{b}}", "b": "x"}) == "{{b}}x"


@pytest.mark.parametrize(
    ("name", "brief"),
    [
        ("sgemm_128x64", "sgemm_128x64"),
        ("void at::native::fill<4, float>(int, float*)", "fill<4, float>"),
        ("void k<at::native::Add<float>, std::array<char*, 2ul> >(int)", "k<Add<float>, array<char*, 2ul>>"),
        ("void at::native::(anonymous namespace)::pool<float>(int)", "pool<float>"),
        ("void f<g(int)::{lambda(float)#1}>(int)", "f<g(int)::{lambda(float)#1}>"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("(", "("),
        ("", ""),
    ],
)
def test_kernels_have_short_names(name, brief):
    assert brief_name(name) == brief


# -- colors ------------------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency", IEEE TVCG
# 15(6), 2009: severity 1.0, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Ottosson, "A perceptual color space for image processing", 2020: cones and OKLab.
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
APART = {"none": 0.10, "protanopia": 0.07, "deuteranopia": 0.07, "tritanopia": 0.07}  # 0.02 is just noticeable


def palettes():
    """The colors of the style sheet by theme: a dictionary of linear RGB by name."""
    text = (FOLDER / "core.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text)
    return {
        theme: {name: linear(colors[place]) for name, *colors in pairs} for place, theme in enumerate(("light", "dark"))
    }


def linear(color):
    shares = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    lights = sorted(float(color @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def seen(color, blindness):
    return np.array(OKLAB) @ np.cbrt(np.array(CONES) @ np.clip(np.array(BLINDNESS[blindness]) @ color, 0, 1))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme):
    colors = palettes()[theme]
    for ground in ("paper", "panel", "notice"):
        assert contrast(colors["ink"], colors[ground]) >= 7
    for name in ("faint", "focus", "held", "good", "warn"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_boxes_stand_out_and_so_does_the_text_on_them(theme):
    colors = palettes()[theme]
    for slot in range(COLORS):
        box = colors[f"c{slot}"]
        assert contrast(box, colors["paper"]) >= 3, slot
        assert max(contrast(box, linear("#101418")), contrast(box, linear("#ffffff"))) >= 4.5, slot


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_twelve_can_be_told_apart(theme, blindness):
    colors = palettes()[theme]
    places = [seen(colors[f"c{slot}"], blindness) for slot in range(COLORS)]
    nearest = min(np.linalg.norm(one - other) for one, other in itertools.combinations(places, 2))
    assert nearest >= APART[blindness]


def test_both_themes_have_all_colors():
    light, dark = palettes().values()
    assert list(light) == list(dark)
    assert len([name for name in light if re.fullmatch(r"c\d+", name)]) == COLORS


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_takes_more_is_told_from_what_takes_less_and_from_what_is_the_same(theme, blindness):
    script = markup.file_of_page("diff.js", diff_page.__package__)
    more, less = (int(re.search(rf"\b{name} = (\d+)", script)[1]) for name in ("MORE", "LESS"))
    colors = palettes()[theme]
    places = [seen(colors[name], blindness) for name in (f"c{more}", f"c{less}", "rest")]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(places, 2)) >= 0.1


def test_scripts_have_no_colors_but_those_of_the_palette():
    """Black and white are for text on them."""
    for path in ROOT.rglob("*.js"):
        found = set(re.findall(r"#[0-9a-fA-F]{6}\b|\brgba?\(\d", path.read_text(encoding="utf-8")))
        assert found <= {"#101418", "#ffffff"}, path.name


def test_style_sheets_name_colors_in_one_place():
    for path in ROOT.rglob("*.css"):
        if path.name != "core.css":
            assert not re.search(
                r"#[0-9a-fA-F]{3,6}\b(?![^{]*\{)(?<!#0004)(?<!#0008)", path.read_text(encoding="utf-8")
            )
