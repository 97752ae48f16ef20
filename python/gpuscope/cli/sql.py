# SPDX-License-Identifier: Apache-2.0
"""``gpuscope sql``: SQL queries on a recording."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from dataclasses import asdict
from typing import TextIO

from gpuscope.cli import console
from gpuscope.cli.export import choose_recording, exit_code, open_recording
from gpuscope.cli.options import writable_paths
from gpuscope.errors import InvalidArgument


class Sql:
    """Runs a query on a recording."""

    description = (
        "Runs a query on a recording by DuckDB: pip install duckdb. Views are kernels, regions, operators,\n"
        "steps, launches, memcpys, memsets, gpu_work, idle and all tables of a recording; names are spelled out, and\n"
        "times are integers in ns. --schema lists them with their columns."
    )
    examples = """\
  gpuscope sql --schema                                            views and columns
  gpuscope sql "from idle"                                         the newest recording of this folder
  gpuscope sql run.gscope "select name, count(*) from kernels group by name"
  gpuscope sql run.gscope "from regions" --csv > regions.csv
  gpuscope sql trace.json.gz "from idle" --parquet idle.parquet      of torch.profiler"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "recording",
            metavar="FILE",
            nargs="?",
            help="a recording, of gpuscope or another tool (default: the newest .gscope of this folder)",
        )
        parser.add_argument("query", metavar="QUERY", nargs="?", help='as "select * from kernels"; - reads it')
        parser.add_argument("--schema", action="store_true", help="list the views and their columns instead")
        parser.add_argument("--salvage", action="store_true", help="read the intact part of a damaged file")
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--csv", action="store_true", help="comma-separated values")
        form.add_argument("--json", action="store_true", help="a list of objects")
        form.add_argument("--parquet", metavar="FILE", help="a Parquet file")

    def run(self, options: argparse.Namespace) -> int:
        """Runs the query, and prints or writes the result; the exit code is 3 if part of the file was lost."""
        from gpuscope.exporters.sql import Database, empty_database, schema_text, write_query

        if options.schema:
            views = empty_database().views()
            out = console.output()
            if options.json:
                out.line(json.dumps([asdict(view) for view in views], indent=2))
            else:
                out.report(schema_text(views))
            return 0
        if options.query is None and _is_query(options.recording):
            options.recording, options.query = None, options.recording
        if options.query is None:
            raise InvalidArgument("QUERY is missing; `gpuscope sql --schema` lists the views")
        choose_recording(options)
        written = writable_paths([options.parquet], (".parquet",))
        query = _from_standard_input() if options.query == "-" else options.query
        progress = console.errors()
        recording = open_recording(options, progress)
        if written:
            write_query(recording.trace, query, written[0])
            console.output(written).wrote(written[0])
        elif options.csv:
            Database(recording.trace).write_csv(query, _standard_output())
        elif options.json:
            Database(recording.trace).write_json(query, _standard_output())
        else:
            out = console.output()
            for line in Database(recording.trace).run(query).table(out.width).splitlines():
                out.line(line)
        code = exit_code(recording)
        if code:
            progress.note(recording.audit().verdict)
        return code


def _is_query(text: str | None) -> bool:
    """Whether a single argument is the query, not the file."""
    return text is not None and (text == "-" or len(text.split()) > 1) and not os.path.exists(text)


def _from_standard_input() -> str:
    if sys.stdin is None:
        raise InvalidArgument("QUERY is -, but standard input is closed; accepted is a query, or - with one there")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"QUERY is -, but what standard input has is no text in {error.encoding}") from None


def _standard_output() -> TextIO:
    """Standard output, or a sink if it is closed; characters outside its encoding are escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return sys.stdout or io.StringIO()
