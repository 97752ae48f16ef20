# SPDX-License-Identifier: Apache-2.0
"""Directives whose text is made from the program itself: its commands, the tables of a recording, its findings."""

from __future__ import annotations

import argparse
import enum
from typing import TYPE_CHECKING

from sphinx.util.docutils import SphinxDirective

from gpuscope import _core
from gpuscope.cli import COMMANDS, Entry
from gpuscope.diagnosis.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils import nodes
    from sphinx.application import Sphinx

ROLES = {
    _core.Role.EVENT: "Events",
    _core.Role.TOTAL: "Totals, of recordings in aggregate mode",
    _core.Role.HISTOGRAM: "Histograms",
    _core.Role.DICTIONARY: "What events refer to",
    _core.Role.INFO: "Facts of the run",
}


def markdown_of_command(entry: Entry) -> Iterator[str]:
    """A command's description, usage, arguments and examples, of the parser that the command line has."""
    command = entry.load()
    parser = argparse.ArgumentParser(prog=f"gpuscope {entry.name}", add_help=False)
    command.prepare_parser(parser)
    yield f"## gpuscope {entry.name}\n\n{_plain(command.description)}\n"
    yield f"```text\n{parser.format_usage().strip()}\n```\n"
    for group in parser._action_groups:  # argparse has no public list of them
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions:
            yield f"**{(group.title or 'options').capitalize()}**\n"
        for action in actions:
            text = parser._get_formatter()._expand_help(action) if action.help else ""
            yield f"`{_invocation(action)}`\n: {_plain(text) or '(no text)'}\n"
    yield f"```text\n{command.examples.rstrip()}\n```\n"


def _invocation(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(f"{option}{value}" for option in action.option_strings)


def markdown_of_tables() -> Iterator[str]:
    """The tables and columns of a recording, of the list that the core has."""
    tables = _core.schema()
    for role, title in ROLES.items():
        yield f"## {title}\n"
        for table in tables:
            if table.role == role:
                yield f"### {table.name}\n\n{_plain(table.doc)} `trace.{table.attribute}`\n"
                yield "| column | type | holds | what it is |\n|---|---|---|---|"
                for column in table.columns:
                    yield f"| `{column.name}` | {column.dtype} | {_holds(column)} | {_plain(column.doc)} |"
                yield ""
    yield "## Numbers that stand for names\n"
    for name in sorted({column.values for table in tables for column in table.columns if column.values}):
        members: type[enum.IntEnum] = getattr(_core, name)
        yield f"`{name}`\n: {', '.join(f'{member.value} {member.name}' for member in members)}\n"


def _holds(column: _core.ColumnInfo) -> str:
    what = f"row of `{column.target}`" if column.target and column.target != "string" else column.target or ""
    what = "id of a string" if what == "string" else what or (f"`{column.values}`" if column.values else "")
    return f"{what}{', or none' if column.optional else ''}"


def markdown_of_findings() -> Iterator[str]:
    """The findings of a diagnosis, of the list of its rules."""
    yield "| finding | what it looks for | from which share on |\n|---|---|---|"
    for rule in sorted(RULES, key=lambda rule: rule.id):
        yield f"| {rule.id} | {_plain(rule.summary)} | {rule.limit:.0%} |"


def _plain(text: str) -> str:
    """Text in which Markdown finds no marks."""
    return " ".join(text.split()).replace("*", r"\*").replace("<", r"\<").replace("|", r"\|").replace("_", r"\_")


class Commands(SphinxDirective):
    """``{commands}``: every command."""

    def run(self) -> list[nodes.Node]:
        """The nodes of the text."""
        return self.parse_text_to_nodes(
            "\n".join(line for entry in COMMANDS for line in markdown_of_command(entry)), allow_section_headings=True
        )


class Tables(SphinxDirective):
    """``{tables}``: every table of a recording."""

    def run(self) -> list[nodes.Node]:
        """The nodes of the text."""
        return self.parse_text_to_nodes("\n".join(markdown_of_tables()), allow_section_headings=True)


class Findings(SphinxDirective):
    """``{findings}``: every rule of the diagnosis."""

    def run(self) -> list[nodes.Node]:
        """The nodes of the text."""
        return self.parse_text_to_nodes("\n".join(markdown_of_findings()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("commands", Commands)
    app.add_directive("tables", Tables)
    app.add_directive("findings", Findings)
    return {"parallel_read_safe": True}
