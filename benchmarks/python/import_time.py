# SPDX-License-Identifier: Apache-2.0
"""`import gpuscope` over `import numpy`, each in fresh interpreters that take turns."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys

import measure

ROUNDS = 25
QUICK_ROUNDS = 9
# Each line is timed by itself. The last ones pay for what the import puts off until a name is used.
PROGRAMS = {
    "numpy": ("import numpy",),
    "alone": ("import gpuscope",),
    "after numpy": ("import numpy", "import gpuscope", "gpuscope.profile", "gpuscope.record_function"),
}
TIMED = "began = time.perf_counter_ns()\n{}\nspent.append((time.perf_counter_ns() - began) / 1e6)\n"


def time_lines(lines: tuple[str, ...]) -> list[float]:
    """ms of each line, in an interpreter of its own."""
    program = "import time\nspent = []\n" + "".join(TIMED.format(line) for line in lines) + "print(spent)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.strip("[]\n").split(",")]


def main() -> None:
    options = measure.arguments(__doc__)
    if importlib.util.find_spec("gpuscope") is None:
        measure.answer({"rows": {"import": {"skipped": "gpuscope is not installed"}}})
        return
    if measure.why_not_available():
        PROGRAMS["after numpy"] = PROGRAMS["after numpy"][:2]
    runs: dict[str, list[list[float]]] = {name: [] for name in PROGRAMS}
    for number in range((QUICK_ROUNDS if options.quick else ROUNDS) + 1):
        for name, lines in PROGRAMS.items():
            spent = time_lines(lines)
            if number > 0:  # the first round writes the bytecode and warms the file cache
                runs[name].append(spent)
    middle = {
        name: [round(statistics.median(line), 2) for line in zip(*spent, strict=True)] for name, spent in runs.items()
    }
    # Whichever is dearer: all that a first use needs once numpy is there, or the import where it is not.
    value = max(sum(middle["after numpy"][1:]), middle["alone"][0] - middle["numpy"][0])
    detail = {name: dict(zip(PROGRAMS[name], middle[name], strict=True)) for name in PROGRAMS}
    measure.answer({"rows": {"import": {"value": round(value, 2), "detail": {"ms": detail}}}})


if __name__ == "__main__":
    main()
