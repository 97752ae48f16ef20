# SPDX-License-Identifier: Apache-2.0
"""`import gpuscope` over `import numpy`, and how soon `gpuscope monitor` shows something: fresh processes in turns."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time

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

# What `gpuscope monitor` has written on a terminal of 120 by 40 when it is there.
MONITOR_SHOWS = {"a line": b"looking for GPUs", "figures": b"CPU ", "the page": b"q end"}
PATIENCE_S = 60


def time_lines(lines: tuple[str, ...]) -> list[float]:
    """ms of each line, in an interpreter of its own."""
    program = "import time\nspent = []\n" + "".join(TIMED.format(line) for line in lines) + "print(spent)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.strip("[]\n").split(",")]


def time_monitor() -> list[float]:
    """ms from the start of the process to each of `MONITOR_SHOWS`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    began = time.perf_counter_ns()
    variables = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "monitor"], stdin=theirs, stdout=theirs, stderr=theirs, env=variables
    )
    os.close(theirs)
    text, spent = b"", []
    for shown in MONITOR_SHOWS.values():
        while shown not in text and select.select([ours], [], [], PATIENCE_S)[0]:
            try:
                text += os.read(ours, 1 << 16)
            except OSError:  # it has ended
                break
        spent.append((time.perf_counter_ns() - began) / 1e6 if shown in text else float("nan"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.close(ours)
    return spent


def main() -> None:
    options = measure.arguments(__doc__)
    if importlib.util.find_spec("gpuscope") is None:
        measure.answer({"rows": {"import": {"skipped": "gpuscope is not installed"}}})
        return
    if measure.why_not_available():
        PROGRAMS["after numpy"] = PROGRAMS["after numpy"][:2]
    runs: dict[str, list[list[float]]] = {name: [] for name in PROGRAMS}
    frames: list[list[float]] = []
    for number in range((QUICK_ROUNDS if options.quick else ROUNDS) + 1):
        for name, lines in PROGRAMS.items():
            spent = time_lines(lines)
            if number > 0:  # the first round writes the bytecode and warms the file cache
                runs[name].append(spent)
        spent = time_monitor() if importlib.util.find_spec("textual") else []
        if number > 0:
            frames.append(spent)
    middle = {
        name: [round(statistics.median(line), 2) for line in zip(*spent, strict=True)] for name, spent in runs.items()
    }
    # Whichever is dearer: all that a first use needs once numpy is there, or the import where it is not.
    value = max(sum(middle["after numpy"][1:]), middle["alone"][0] - middle["numpy"][0])
    detail = {name: dict(zip(PROGRAMS[name], middle[name], strict=True)) for name in PROGRAMS}
    rows = {"import": {"value": round(value, 2), "detail": {"ms": detail}}}
    if frames[0]:
        shown = [round(statistics.median(line), 1) for line in zip(*frames, strict=True)]
        rows["first frame"] = {"value": shown[0], "detail": {"ms": dict(zip(MONITOR_SHOWS, shown, strict=True))}}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
