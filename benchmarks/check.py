# SPDX-License-Identifier: Apache-2.0
"""Measures every budget of budgets.toml and says which are met: ``python benchmarks/check.py [--quick] [--only NAME]``.

Each script runs in a process of its own; the figures and the machine they belong to are written to a JSON file.
The exit status is 1 when a budget is missed or a script fails, 0 when all that could be measured here is met.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomllib
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "python"))

import floor  # noqa: E402 - after their folder is on the path
import measure  # noqa: E402

SCRIPT_SECONDS = 420
TOOLS = ("torch.profiler", "Proton")

Budget = dict[str, Any]
Row = dict[str, Any]


def read_budgets(path: Path, only: list[str]) -> list[Budget]:
    """The budgets whose name or script is in `only`, or all of them."""
    budgets: list[Budget] = tomllib.loads(path.read_text(encoding="utf-8"))["budget"]
    known = {name for budget in budgets for name in (budget["name"], Path(budget["script"]).stem)}
    if unknown := set(only) - known:
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: no such budget; there are {', '.join(sorted(known))}")
    return [budget for budget in budgets if not only or {budget["name"], Path(budget["script"]).stem} & set(only)]


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit measured, with a plus where the tree has changes."""
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def processor() -> str:
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def environment() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    from gpuscope import _core

    facts = _core.environment() if hasattr(_core, "environment") else {}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "gpus": [device["name"] for device in facts.get("devices", [])],
        "driver": facts.get("driver_version"),
        "cuda": facts.get("cuda_version"),
        "cupti": facts.get("cupti_version"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("gpuscope", "numpy", "torch", "triton")},
    }


def verdict(budget: Budget, row: Row) -> str:
    if "value" in row:
        return "met" if row["value"] <= budget["budget"] else "MISSED"
    return "skipped" if "skipped" in row else "FAILED"


def measure_all(budgets: list[Budget], quick: bool) -> list[Row]:
    """One row per budget, in their order, with the verdict in it."""
    answers: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if any(budget["script"] == "launches.py" for budget in budgets) and not os.environ.get(floor.VARIABLE):
            try:
                os.environ[floor.VARIABLE] = str(floor.build(Path(folder)))
            except floor.FloorMissing as error:
                print(error, file=sys.stderr)
        for script in dict.fromkeys(budget["script"] for budget in budgets):
            began = time.monotonic()
            answers[script] = measure.child(script, *(["--quick"] if quick else []), seconds=SCRIPT_SECONDS)
            print(f"{script}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    rows = []
    for budget in budgets:
        answer = answers[budget["script"]]
        why = {"error": f"{budget['script']}: {answer.get('error', 'it gave no such figure')}"}
        row = answer.get("rows", {}).get(budget["name"], why)
        rows.append({**budget, **row, "verdict": verdict(budget, row)})
    return rows


def other_figure(row: Row, tool: str) -> str:
    other = row.get("others", {}).get(tool)
    if other is None:
        return ""
    if "value" not in other:
        return "-"
    remark = other.get("unit") or other.get("note")
    return f"{other['value']:g}" + (f" ({remark})" if remark else "")


def print_table(rows: list[Row], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("what", "ours", "budget", "unit", "verdict", *TOOLS, "CUPTI floor"):
        table.add_column(
            heading, justify="left" if heading in ("what", "unit", "verdict") else "right", overflow="fold"
        )
    for row in rows:
        ours = f"{row['value']:g}" if "value" in row else "-"
        others = [other_figure(row, tool) for tool in (*TOOLS, "floor alone")]
        table.add_row(row["what"], ours, f"<= {row['budget']:g}", row["unit"], row["verdict"], *others)
    console.print(table)
    for row in rows:
        shown = {tool: other_figure(row, tool) for tool in row.get("others", {}) if tool not in (*TOOLS, "floor alone")}
        if figures := [f"{tool} {figure}" for tool, figure in shown.items() if figure not in ("", "-")]:
            console.print(f"{row['what']}: {', '.join(figures)}", markup=False, soft_wrap=True)
    reasons = dict.fromkeys(row.get("skipped") or row.get("error") for row in rows if "value" not in row)
    others = dict.fromkeys(
        f"{tool}: {other['error']}" for row in rows for tool, other in row.get("others", {}).items() if "error" in other
    )
    for reason in (*reasons, *others):
        console.print(f"not measured: {reason}", markup=False, soft_wrap=True)


def result_path(folder: Path, machine: dict[str, Any], options: argparse.Namespace) -> Path:
    """Named after GPU and day; a run of a part says so, and so never takes the place of a whole one."""
    gpu = machine["gpus"][0] if machine["gpus"] else "no-gpu"
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    part = "".join(f"-{name}" for name in ([*options.only, *(["quick"] if options.quick else [])]))
    return folder / f"{slug}-{machine['date'][:10]}{part}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; rows of 1M launches are skipped")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a budget or a script; repeatable")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR", help="where the JSON goes")
    options = parser.parse_args()
    budgets = read_budgets(HERE / "budgets.toml", options.only)
    machine = environment()
    rows = measure_all(budgets, options.quick)
    print_table(rows, Console(width=max(Console().width, 160)))
    options.out.mkdir(parents=True, exist_ok=True)
    path = result_path(options.out, machine, options)
    document = {"environment": machine, "quick": options.quick, "rows": rows}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
    return 1 if any(row["verdict"] in ("MISSED", "FAILED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
