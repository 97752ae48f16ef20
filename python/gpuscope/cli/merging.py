# SPDX-License-Identifier: Apache-2.0
"""``gpuscope merge``: the recordings of a job's ranks become small tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from gpuscope.cli import console
from gpuscope.cli.options import whole
from gpuscope.text import brief


class Merge:
    """Reduces recordings to the tables of a job."""

    description = (
        "Reduces the recordings of a job's ranks to small tables, in Parquet: pip install 'gpuscope[fleet]'.\n"
        "`gpuscope fleet` and `gpuscope sql` read them. Recordings are .gscope files, traces of torch.profiler and\n"
        "exports of Nsight Systems. Damaged ones are left out. For a job of 1,000 ranks, several processes can each\n"
        "merge a part; a part that is merged again replaces its files."
    )
    examples = """\
  gpuscope merge ranks/ -o job/
  gpuscope merge 'node-*/rank-*.gscope' -o job/
  gpuscope merge ranks/ -o job/ --shard 2/16      64 ranks a file: 1,000 ranks make 16
  gpuscope merge ranks/ -o job/ --events          and the single kernels, copies, calls and regions
  gpuscope merge ranks/ -o job/ --anonymous       without names of hosts and paths"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "inputs", metavar="INPUT", nargs="+", help="a recording, a folder of them, or a pattern in quotes"
        )
        parser.add_argument("-o", "--output", metavar="JOB", required=True, help="the folder for the tables")
        parser.add_argument(
            "--shard", metavar="I/N", type=_shard, default=(1, 1), help="merge the i-th of n parts only, as 2/16"
        )
        parser.add_argument(
            "--anonymous", action="store_true", help="leave names of hosts and paths out; not with --shard"
        )

        parser.add_argument(
            "--events", action="store_true", help="write single kernels, copies, calls and regions too, for queries"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Reads the recordings and writes the tables."""
        from gpuscope.fleet.merging import merge_into

        with console.errors().status() as say:
            ranks, notes = merge_into(
                options.inputs,
                options.output,
                options.shard,
                counted(say),
                anonymous=options.anonymous,
                events=options.events,
            )
        folder = Path(options.output)
        number, count = options.shard
        part = f"part {number} of {count}: " if count > 1 else ""
        merged, world = len(ranks["rank"]), max(ranks["world_size"].tolist(), default=0)
        of = f" of {world:,}" if count == 1 and world > merged else ""
        left_out = ""
        if notes:
            more = f"{len(notes):,} recordings are left out, first: " if len(notes) > 1 else ""
            left_out = f"; {more}{notes[0]}"
        following = "next, after all parts: " if count > 1 else "next: "
        console.output().sentence(
            f"{part}merged {merged:,}{of} rank{'s' * (merged != 1 or of != '')} into ",
            (console.display(folder), "bold"),
            f"{left_out}; {following}",
            (f"gpuscope fleet {console.display(folder)}", "bold"),
        )
        return 0


def counted(say: Callable[[str], None]) -> Callable[[str], object]:
    """A function that shows the number and the path of each recording that is read."""
    number = 0

    def told(path: str) -> None:
        nonlocal number
        number += 1
        say(f"recording {number:,}: {path}")

    return told


def _shard(text: str) -> tuple[int, int]:
    first, _, last = text.partition("/")
    number, count = whole(first), whole(last)
    if not number or not count or number > count:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no part; accepted are 1/N to N/N, as 2/16")
    return number, count
