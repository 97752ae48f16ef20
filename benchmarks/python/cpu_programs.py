# SPDX-License-Identifier: Apache-2.0
"""What `gpuscope diagnose` costs programs without GPU work, and how long after their end the page is there.

Each program runs as a process of its own, alone and under `gpuscope diagnose`, in turns. It prints when its work begins
and ends; imports come before.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

ROUNDS, QUICK_ROUNDS = 15, 3
PROGRAMS = {
    "a function per row (pandas)": """
import pandas as pd, numpy as np
def tax_of(row):
    return row["amount"] * (0.19 if row["kind"] == "a" else 0.07)
table = pd.DataFrame({"kind": ["a", "b"] * 40_000, "amount": np.arange(80_000.0)})
def work():
    table.apply(tax_of, axis=1)
""",
    "short calls": """
def leaf(number):
    return number + 1
def work():
    for number in range(8_000_000):
        leaf(number)
""",
    "JSON": """
import json
lines = [json.dumps({"id": n, "values": list(range(40))}) for n in range(2000)]
def work():
    for _ in range(40):
        [json.loads(line) for line in lines]
""",
    "four threads": """
import zlib
from concurrent.futures import ThreadPoolExecutor
data = bytes(range(256)) * 4000
def work():
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: zlib.compress(data, 6), range(60)))
""",
}
TIMED = """
import time
began = time.time()
work()
print(began, time.time())
"""


def run(script: Path, *command: str) -> tuple[float, float]:
    """Seconds of the work, and from its end to that of the process."""
    done = subprocess.run([sys.executable, *command, script], capture_output=True, text=True, check=True)
    ended = time.time()
    began, over = map(float, done.stdout.split())
    return over - began, ended - over


def main() -> None:
    options = measure.arguments(__doc__)
    lines: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in PROGRAMS.items():
            script = Path(folder) / "program.py"
            script.write_text(text + TIMED)
            alone, diagnosed, pages = [], [], []
            for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
                spent, ended = run(script)
                alone.append(spent)
                spent, page = run(script, "-m", "gpuscope", "diagnose")
                diagnosed.append(spent)
                pages.append(page - ended)
            ratio = measure.paired_ratio(diagnosed, alone)
            lines[name] = {"x": round(ratio, 4), "work_s": round(statistics.median(alone), 3)}
            lines[name]["page_s"] = round(statistics.median(pages), 3)
            print(name, lines[name], file=sys.stderr, flush=True)
    rows: dict[str, measure.Row] = {
        row: {
            "value": max(each[column] for each in lines.values()),
            "detail": {"python": sys.version.split()[0], **lines},
        }
        for row, column in (("cpu_program_cost", "x"), ("cpu_program_page", "page_s"))
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
