# SPDX-License-Identifier: Apache-2.0
"""``gpuscope schema``: the JSON Schemas of results."""

from __future__ import annotations

import argparse
import json

from gpuscope.cli import console


class SchemaCommand:
    """Prints a schema, or lists all."""

    description = (
        "Prints the JSON Schema (2020-12) of a kind of result, for programs that read it. Without NAME, lists the\n"
        "kinds and what writes them. The keys 'schema' and 'schema_version' of a result name its schema."
    )
    examples = """\
  gpuscope schema
  gpuscope schema diagnosis > diagnosis.schema.json
  gpuscope schema diff | jq '."$defs".Change.properties'"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("name", metavar="NAME", nargs="?", help="diagnosis, diff, audit, fleet or benchmark")

    def run(self, options: argparse.Namespace) -> int:
        """Prints."""
        from gpuscope.agent.schemas import SCHEMAS, schema_of

        out = console.output()
        if options.name is not None:
            out.line(json.dumps(schema_of(options.name), indent=2))
            return 0
        for name, (what, _) in SCHEMAS.items():
            out.sentence((f"{name:<10}", "bold"), f" {what.replace('`', '')}")
        return 0
