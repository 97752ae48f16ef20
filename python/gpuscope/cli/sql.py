# SPDX-License-Identifier: Apache-2.0
"""``gpuscope sql``: SQL queries on a recording or a job."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TextIO

from gpuscope.cli import console
from gpuscope.cli.export import choose_recording, exit_code, open_recording
from gpuscope.cli.options import writable_paths
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from gpuscope.exporters.sql import SqlViews
    from gpuscope.fleet.job import Fleet


class Sql:
    """Runs a query on a recording or a job."""

    description = (
        "Runs a query on a recording by DuckDB: pip install duckdb. Views are kernels, regions, operators,\n"
        "steps, launches, memcpys, memsets, gpu_work, idle and all tables of a recording; names are spelled out, and\n"
        "times are integers in ns. --schema lists them with their columns. For a job, the folder that `gpuscope\n"
        "merge` wrote, views are ranks, steps, collectives and others, and QUERY can be a query's name: last_arrivals."
    )
    examples = """\
  gpuscope sql --schema                                            views and columns
  gpuscope sql "from idle"                                         the newest recording of this folder
  gpuscope sql run.gscope "select name, count(*) from kernels group by name"
  gpuscope sql run.gscope "from regions" --csv > regions.csv
  gpuscope sql trace.json.gz "from idle" --parquet idle.parquet      of torch.profiler
  gpuscope sql job/ --schema                                       views and queries of a job
  gpuscope sql job/ last_arrivals                                  who comes last at collectives"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "recording",
            metavar="FILE",
            nargs="?",
            help="a recording, of gpuscope or another tool, or a job (default: the newest .gscope of this folder)",
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
        from gpuscope.exporters.sql import Database, write_query

        if options.schema:
            self._show_schema(options.recording, options.json)
            return 0
        if options.query is None and _is_query(options.recording):
            options.recording, options.query = None, options.recording
        if options.query is None:
            raise InvalidArgument("QUERY is missing; `gpuscope sql --schema` lists the views")
        choose_recording(options)
        written = writable_paths([options.parquet], (".parquet",))
        query = _from_standard_input() if options.query == "-" else options.query
        progress = console.errors()
        recording, job = None, _job(options.recording)
        if job is None:
            recording = open_recording(options, progress)
            database: Callable[..., SqlViews] = partial(Database, recording.trace)
        else:
            from gpuscope.fleet.job import queries

            database, query = job.database, queries().get(query, query)
        if written:
            write_query(database, query, written[0])
            console.output(written).wrote(written[0])
        elif options.csv:
            database().write_csv(query, _standard_output())
        elif options.json:
            database().write_json(query, _standard_output())
        else:
            out = console.output()
            for line in database().run(query).table(out.width).splitlines():
                out.line(line)
        code = exit_code(recording) if recording is not None else 0
        if recording is not None and code:
            progress.note(recording.audit().verdict)
        return code

    def _show_schema(self, of: str | None, as_json: bool) -> None:
        from gpuscope.exporters.sql import empty_database, schema_text

        named: dict[str, str] = {}
        if _is_job(of):
            from gpuscope.fleet.job import queries, schema

            views, named = schema(), queries()
        else:
            views = empty_database().views()
        out = console.output()
        if as_json:
            out.line(json.dumps([asdict(view) for view in views], indent=2))
            return
        out.report(schema_text(views))
        for name, text in named.items():
            out.sentence(f"{name}:  {text.splitlines()[0].removeprefix('-- ')}")


def _is_job(path: str | None) -> bool:
    from gpuscope.fleet.tables import is_job

    return path is not None and is_job(path)


def _job(path: str) -> Fleet | None:
    """The job whose tables a folder has; None for anything else."""
    if not _is_job(path):
        return None
    from gpuscope.fleet.job import Fleet

    return Fleet.open(path)


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
