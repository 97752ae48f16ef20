# SPDX-License-Identifier: Apache-2.0
"""`import gpuscope` over `import numpy`, each in fresh interpreters that take turns."""

from __future__ import annotations

import statistics
import subprocess
import sys

import measure

ROUNDS = 25
QUICK_ROUNDS = 9
STATEMENTS = ("import numpy", "import gpuscope", "import numpy, gpuscope")
TIMED = "import time; began = time.perf_counter_ns()\n{}\nprint(time.perf_counter_ns() - began)"


def time_statement(statement: str) -> float:
    """ms in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", TIMED.format(statement)], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e6


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available()
    if why and "not installed" in why:
        measure.answer({"rows": {"import": {"skipped": why}}})
        return
    spent: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for number in range((QUICK_ROUNDS if options.quick else ROUNDS) + 1):
        for statement in STATEMENTS:
            took = time_statement(statement)
            if number > 0:  # the first round writes the bytecode and warms the file cache
                spent[statement].append(took)
    middle = {statement: round(statistics.median(values), 2) for statement, values in spent.items()}
    # Whichever is dearer: gpuscope alone, or after numpy.
    dearest = max(middle["import gpuscope"], middle["import numpy, gpuscope"])
    measure.answer(
        {"rows": {"import": {"value": round(dearest - middle["import numpy"], 2), "detail": {"ms": middle}}}}
    )


if __name__ == "__main__":
    main()
