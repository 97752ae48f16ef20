# SPDX-License-Identifier: Apache-2.0
"""``gpuscope mcp`` and ``gpuscope skill``: what coding agents use."""

from __future__ import annotations

import argparse
import logging
import signal
from importlib import resources
from pathlib import Path
from types import FrameType

from gpuscope.cli import console
from gpuscope.paths import make_folder, write_text


class Mcp:
    """Serves tools on standard input and output."""

    description = (
        "A server of the Model Context Protocol on standard input and output, which a coding agent starts itself.\n"
        "Tools: doctor, open, diagnose, explain, table, sql, diff. They read recordings under one folder and change\n"
        "nothing. With --allow-run also record and verify, which run programs of that folder with your rights."
    )
    examples = """\
  gpuscope mcp                              recordings of this folder
  gpuscope mcp --root runs/                 of another one
  gpuscope mcp --root . --allow-run         the agent may also run and record programs"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("--root", metavar="DIR", default=".", help="folder with recordings (default: this one)")
        parser.add_argument("--allow-run", action="store_true", help="offer record and verify, which run programs")

    def run(self, options: argparse.Namespace) -> int:
        """Answers until the client ends."""
        from gpuscope.agent.protocol import Channel, serve
        from gpuscope.agent.tools import INSTRUCTIONS, Tools

        codes: list[int] = []

        def leave(number: int, _frame: FrameType | None) -> None:
            codes.append(128 + number)
            logging.disable()  # asyncio reports each task that ends by it
            raise SystemExit(codes[0])

        channel: list[Channel] = []
        tools = Tools(options.root, options.allow_run, lambda: channel[0].is_closed())
        channel.append(Channel())
        for number in (signal.SIGINT, signal.SIGTERM):  # asyncio's way is to wait for the tool
            signal.signal(number, leave)
        try:
            serve(tools.tools(), INSTRUCTIONS, channel[0])
        except BaseException:  # by then a group of exceptions
            if not codes:
                raise
        return codes[0] if codes else 0


class Skill:
    """Prints or installs the skill file."""

    description = (
        "Prints a skill file (SKILL.md): which commands a coding agent runs, in which order, and how it reads\n"
        "findings, intervals and abstentions. --install writes it where agents look: DIR/gpuscope/SKILL.md."
    )
    examples = """\
  gpuscope skill
  gpuscope skill --install .claude/skills       for one project
  gpuscope skill --install ~/.claude/skills     for all of yours"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("--install", metavar="DIR", help="write DIR/gpuscope/SKILL.md instead")

    def run(self, options: argparse.Namespace) -> int:
        """Prints or writes."""
        text = resources.files("gpuscope.agent").joinpath("SKILL.md").read_text(encoding="utf-8")
        if options.install is None:
            console.output().line(text.rstrip("\n"))
            return 0
        path = Path(make_folder(str(Path(options.install) / "gpuscope"))) / "SKILL.md"
        write_text(path, text)
        console.output([path]).wrote(path)
        return 0
