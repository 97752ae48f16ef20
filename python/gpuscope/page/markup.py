# SPDX-License-Identifier: Apache-2.0
"""Builds pages from files of the package, with texts and data escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from gpuscope.text import one_line
from gpuscope.units import format_seconds

_CORE = "gpuscope.page"
_IMPORT = re.compile(r'^import [^;]*? from "\./[\w.]+";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const|let|function|async|class)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*.*?\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
_BEHIND = re.compile(r"[ \t]+// [^\n\"'`]*$", re.MULTILINE)  # a comment after code, not within a text
_SPACE = re.compile(r"^\s+", re.MULTILINE)
_SPACED = re.compile(r"(?<=[;{},]) ")  # in a style sheet, whose texts have no such places
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def file_of_page(name: str, package: str = _CORE) -> str:
    """The text of a template, style or script, of the page's own package or else of the core."""
    places = (resources.files(each).joinpath(name) for each in (package, _CORE))
    return next((place for place in places if place.is_file()), resources.files(_CORE) / name).read_text("utf-8")


def filled(template: str, parts: Mapping[str, str]) -> str:
    """A template with its ``{{parts}}`` filled in; text that was filled in is not expanded again."""
    return _PLACE.sub(lambda place: parts[place[1]], template)


def page_of(
    name: str,
    parts: Mapping[str, str],
    *,
    styles: Iterable[str],
    scripts: Iterable[str],
    data_id: str = "data",
    package: str = _CORE,
    is_served: bool = False,
) -> str:
    """A page around a template, with the common head (content security policy), keys, data and script.

    Args:
        name: of the template.
        parts: texts of its places, the ``title``, the ``data`` and maybe ``columns``.
        styles: style sheets besides the core's.
        scripts: modules, each after those that it imports from.
        data_id: of the element with the data.
        package: the package of the template and of files that the core lacks.
        is_served: the page may ask the server that it came from.
    """
    common = {
        "columns": "",
        "data_id": data_id,
        "allowed": "; connect-src 'self'" if is_served else "",
        "css": style_of(("core.css", *styles), package),
        "before": script_of(("before.js",)),
        "script": script_of(scripts, package),
    }
    whole = file_of_page("head.html") + file_of_page(name, package) + file_of_page("foot.html")
    return filled(whole, {**common, **parts})


def script_of(modules: Iterable[str], package: str = _CORE) -> str:
    """Modules as one script, without comments. Each must follow those that it imports from; all names must differ."""
    text = "\n".join(_EXPORT.sub("", _IMPORT.sub("", file_of_page(name, package))) for name in modules)
    return _SPACE.sub("", _BEHIND.sub("", _COMMENT.sub("", text)))


def style_of(names: Iterable[str], package: str = _CORE) -> str:
    """Style sheets as one, without comments."""
    text = _COMMENT.sub("", "".join(file_of_page(name, package) for name in names))
    return _SPACED.sub("", _SPACE.sub("", text))


def island(data: object) -> str:
    """JSON for a script element: characters that could end the element are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=lambda array: array.tolist())
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def shown(text: object) -> str:
    """Any text, escaped for HTML, in one line."""
    return escape(one_line(str(text)))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    numbers: Iterable[int] = (),
) -> str:
    """A table of cells in HTML; the columns with the given `numbers` are aligned to the right."""
    right = set(numbers)

    def line(cells: Sequence[str], kind: str) -> str:
        made = []
        for column, cell in enumerate(cells):
            attributes = (' scope="col"' if kind == "th" else "") + (' class="number"' if column in right else "")
            made.append(f"<{kind}{attributes}>{cell}</{kind}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(cells, "td") for cells in rows)
    named = f"<caption>{shown(caption)}</caption>" if caption else ""
    head = line([shown(cell) for cell in header], "th")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{shown(caption or header[0])}">'
        f"<table>{named}<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def time_text(time_ns: float) -> str:
    """A time in the unit that suits: "1.23 ms"."""
    return format_seconds(time_ns / 1e9).replace(" us", " µs")


def share_text(share: float) -> str:
    """A share in percent with three digits, as units.js writes it."""
    return f"{100 * share:.{2 if abs(share) < 0.0995 else 1}f} %"


def share_bar(share: float, most: float) -> str:
    """A share next to a bar, which is full at the largest share."""
    width = 100 * share / most if most > 0 else 0
    return f'<span class="track"><i style="width:{width:.0f}%"></i></span>{share_text(share)}'


def facts_list(facts: Mapping[str, Any]) -> str:
    """Facts as a list of names and values, without empty values."""
    return "".join(
        f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in facts.items() if value
    )
