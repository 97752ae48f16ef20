# SPDX-License-Identifier: Apache-2.0
"""``gpuscope counters``: lists the hardware counters of this GPU."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json

from gpuscope.cli import console, options
from gpuscope.counters.names import Counter, list_counters
from gpuscope.errors import InvalidArgument


class Counters:
    """Lists hardware counters."""

    description = (
        "Lists what a GPU can count, with units and descriptions. A metric is a counter's name with an ending: .sum,\n"
        ".avg, .max or .min of all units. A rate may follow, such as .per_second or .pct_of_peak_sustained_elapsed."
    )
    examples = (
        "  gpuscope counters 'dram__*'                          for gpuscope.measure_counters\n"
        "  gpuscope counters --sampling 'sm__*'                 for profile(counters=...)\n"
        "  gpuscope counters --chip GH100 --json | jq length    of another chip"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "pattern", nargs="?", metavar="PATTERN", help="counters whose name contains this, or matches it with *"
        )
        parser.add_argument(
            "--sampling", action="store_true", help="counters for sampling, instead of counters for a call"
        )
        parser.add_argument("--device", type=options.ordinal, default=0, metavar="N", help="which GPU (default: 0)")
        parser.add_argument("--chip", metavar="NAME", help="which chip instead, as GH100")
        parser.add_argument("--json", action="store_true", help="for programs")

    def run(self, options: argparse.Namespace) -> int:
        """Lists them."""
        found = list_counters(options.chip, sampling=options.sampling, device=options.device)
        chosen = [counter for counter in found if _matches(counter, options.pattern)]
        if not chosen:
            raise InvalidArgument(f"pattern is {options.pattern!r}, which none of {len(found)} counters matches")
        out = console.output()
        if options.json:
            out.line(json.dumps([dataclasses.asdict(counter) for counter in chosen], indent=2))
            return 0
        width = max(len(counter.name) for counter in chosen)
        for counter in chosen:
            about = f"{counter.kind} of {counter.hardware}" if counter.hardware else counter.kind
            unit = f" [{counter.unit}]" if counter.unit else ""
            out.sentence((f"{counter.name:<{width}}", "bold"), f"  {counter.description}{unit}", (f"  {about}", "dim"))
        return 0


def _matches(counter: Counter, pattern: str | None) -> bool:
    if pattern is None:
        return True
    name, wanted = counter.name.lower(), pattern.lower()
    return wanted in name or fnmatch.fnmatchcase(name, wanted)
