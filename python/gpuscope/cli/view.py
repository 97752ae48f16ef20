# SPDX-License-Identifier: Apache-2.0
"""The text form of results: table, tree, verdict and notes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpuscope.cli.console import Console
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from gpuscope.recording import Results


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose what is shown."""
    group = parser.add_argument_group("what is shown")
    group.add_argument("--sort-by", metavar="KEY", help="column that orders the table, as device_time_total")
    group.add_argument("--row-limit", metavar="N", type=positive, default=25, help="rows of the table (default: 25)")
    group.add_argument("--no-table", action="store_true", help="no table")
    group.add_argument("--tree", action="store_true", help="the call tree too")
    group.add_argument("--max-depth", metavar="N", type=positive, help="levels of the tree (default: all)")


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)
