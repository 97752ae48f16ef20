# SPDX-License-Identifier: Apache-2.0
"""What every command of the command line offers."""

from __future__ import annotations

import argparse
from typing import Protocol


class Command(Protocol):
    """One command; ``run`` returns the exit code."""

    name: str
    summary: str
    description: str
    examples: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Does the work.

        Raises:
            InvalidArgument: an option cannot be used; the process ends with code 2.
            GpuscopeError: the work failed; the process ends with code 1.
        """
