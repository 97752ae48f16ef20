# SPDX-License-Identifier: Apache-2.0
"""Plain programs without a GPU, each with one line that takes its time: the diagnosis names the line."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from fakes.disturbances import least_disturbed
from gpuscope import _core

pytestmark = pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")

HERE = "# HERE"
# Each is a name, what the line calls in words of the page ("" is anything), and the program.
PROGRAMS = {
    "a function per row": (
        ".apply",
        """
        import numpy as np
        import pandas as pd

        def tax_of(row):
            return row["amount"] * (0.19 if row["kind"] == "a" else 0.07)

        def add_tax(table):
            table["tax"] = table.apply(tax_of, axis=1)  # HERE

        table = pd.DataFrame({"kind": ["a", "b"] * 60_000, "amount": np.arange(120_000.0)})
        add_tax(table)
        """,
    ),
    "rows one by one": (
        "iterrows",
        """
        import numpy as np
        import pandas as pd

        def total(table):
            found = 0.0
            for _, row in table.iterrows():  # HERE
                found += row.a
            return found

        total(pd.DataFrame({"a": np.arange(60_000.0), "b": 1, "c": 2.0}))
        """,
    ),
    "JSON in a comprehension": (
        "json.loads",
        """
        import json

        def batches(lines):
            for at in range(0, len(lines), 1000):
                yield [json.loads(line) for line in lines[at : at + 1000]]  # HERE

        lines = [json.dumps({"id": n, "values": list(range(40))}) for n in range(2000)] * 40
        for batch in batches(lines):
            sum(record["id"] for record in batch)
        """,
    ),
    "garbage": (
        "gc.collect",
        """
        import gc

        kept = [[n] for n in range(300_000)]

        def step():
            kept[0] = [0]
            gc.collect()  # HERE

        for _ in range(60):
            step()
        """,
    ),
    "a sleep": (
        "time.sleep",
        """
        import time

        def fetch(tries):
            for _ in range(tries):
                time.sleep(0.1)  # HERE

        fetch(8)
        """,
    ),
    "subprocesses": (
        "subprocess.run",
        """
        import subprocess
        import sys

        def convert(count):
            for _ in range(count):
                subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)  # HERE

        convert(8)
        """,
    ),
    "a thread pool": (
        "",
        """
        from concurrent.futures import ThreadPoolExecutor

        def parse(text):
            return [part.strip().upper() for part in text.split(",")]  # HERE

        def main():
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(parse, [", word" * 60_000] * 60))

        main()
        """,
    ),
    "a lock": (
        "lock.acquire",
        """
        import threading
        import time

        lock = threading.Lock()

        def hold():
            with lock:
                time.sleep(1.0)

        def update():
            lock.acquire()  # HERE
            lock.release()

        thread = threading.Thread(target=hold)
        thread.start()
        time.sleep(0.1)
        update()
        thread.join()
        """,
    ),
    "checkpoints": (
        "pickle.dump",
        """
        import os
        import pickle
        import tempfile

        state = {f"layer{n}": list(range(20_000)) for n in range(60)}

        def save(path):
            with open(path, "wb") as file:
                pickle.dump(state, file)  # HERE

        path = os.path.join(tempfile.mkdtemp(), "state")
        for _ in range(25):
            save(path)
        """,
    ),
    "a copy": (
        "copy.deepcopy",
        """
        import copy

        config = {n: {"values": list(range(50)), "name": str(n)} for n in range(1500)}

        def run(config):
            own = copy.deepcopy(config)  # HERE
            own[0]["name"] = "x"

        for _ in range(8):
            run(config)
        """,
    ),
    "a product in Python": (
        "",
        """
        def dot(a, b):
            total = 0.0
            for x, y in zip(a, b):
                total += x * y  # HERE
            return total

        a = [float(n) for n in range(100_000)]
        for _ in range(80):
            dot(a, a)
        """,
    ),
    "a list that is searched": (
        "",
        """
        def missing(wanted, known):
            return [each for each in wanted if each not in known]  # HERE

        missing(list(range(6000, 12000)), list(range(6000)))
        """,
    ),
    "an expression compiled again": (
        "",
        """
        import re

        def match(texts):
            found = 0
            for text in texts:
                re.purge()
                found += bool(re.search(r"(\\w+)-(\\d{1,3})-([a-f]+|x{2,5})", text))  # HERE
            return found

        match(["word-12-abc"] * 1500)
        """,
    ),
    "logging": (
        ".info",
        """
        import logging
        import os

        logging.basicConfig(filename=os.devnull, level=logging.INFO)
        log = logging.getLogger(__name__)

        def work(count):
            for number in range(count):
                log.info("row %d of %d", number, count)  # HERE

        work(80_000)
        """,
    ),
    "metrics": (
        "numpy.histogram",
        """
        import numpy as np

        losses = np.random.default_rng(0).random(400_000)

        def report():
            return np.histogram(losses, bins=64)  # HERE

        for _ in range(60):
            report()
        """,
    ),
}


def number_of(source: str) -> int:
    return next(at for at, line in enumerate(source.splitlines(), 1) if HERE in line)


def diagnose(folder: Path, *target: str) -> dict:
    run = subprocess.run(
        [sys.executable, "-m", "gpuscope", "diagnose", "--json", "found.json", *target],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((folder / "found.json").read_text())
    found["page"] = run.stderr
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@least_disturbed
def test_the_line_that_takes_the_time_is_named_first(name, tmp_path):
    called, text = PROGRAMS[name]
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(text))
    found = diagnose(tmp_path, script.name)
    assert found["verdict"] == "findings", found["page"]
    first = found["findings"][0]
    where = first["where"][0]
    assert (where["file"], where["line"]) == (str(script), number_of(script.read_text())), found["page"]
    assert called in first["title"], found["page"]
    assert {(each["severity"], each["saving"]) for each in found["findings"] if each["id"] == "R51"} <= {("info", None)}


BUSY = """
def busy():
    total = 0
    for number in range(4_000_000):
        total += number
    return total

"""


def write(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(text))
    return script


@least_disturbed
def test_a_program_that_ends_at_once_is_too_short(tmp_path):
    write(tmp_path, "pass\n")
    found = diagnose(tmp_path, "program.py")
    assert found["verdict"] == "not enough evidence"
    assert any("the run was too short" in doubt for doubt in found["doubts"])


@least_disturbed
def test_a_program_that_only_waits_for_its_event_loop_is_fine(tmp_path):
    write(tmp_path, "import asyncio\nasyncio.run(asyncio.sleep(0.5))\n")
    found = diagnose(tmp_path, "program.py")
    assert (found["verdict"], found["findings"]) == ("fine", [])
    assert found["host_times"]["event loop with nothing to do"] > 0.5


@least_disturbed
def test_code_that_was_given_as_text_has_lines_and_names(tmp_path):
    found = diagnose(tmp_path, "-c", "import time\nfor _ in range(5):\n    time.sleep(0.1)")
    assert found["findings"][0]["title"] == "the script (<string>:3): time.sleep"


@least_disturbed
def test_code_that_the_program_executes_has_lines(tmp_path):
    write(tmp_path, f"exec(compile({BUSY + 'busy()'!r}, '<string>', 'exec'))")
    found = diagnose(tmp_path, "program.py")
    assert found["findings"][0]["title"].startswith("busy (<string>:")


@least_disturbed
def test_an_archive_has_lines(tmp_path):
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", BUSY + "busy()\n")
    found = diagnose(tmp_path, "app.pyz")
    assert found["findings"][0]["title"].startswith("busy (__main__.py:")


@pytest.mark.parametrize("change", ["os.remove(__file__)", "open(__file__, 'w').write('# other\\n' * 9)"])
@least_disturbed
def test_a_source_that_changed_or_vanished_keeps_its_lines_and_shows_no_text(change, tmp_path):
    write(tmp_path, BUSY + f"busy()\nimport os\n{change}\n")
    first = diagnose(tmp_path, "program.py")["findings"][0]
    assert first["title"].startswith("busy (program.py:")
    assert not any(fact.startswith("source ") for fact in first["evidence"])


@least_disturbed
def test_five_hundred_threads_that_sleep_are_one_line(tmp_path):
    text = """
    import threading
    import time

    def beat():
        time.sleep(0.5)  # HERE

    threads = [threading.Thread(target=beat) for _ in range(500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """
    write(tmp_path, text)
    found = diagnose(tmp_path, "program.py")
    assert found["findings"][0]["where"][0]["line"] == number_of(text)


@least_disturbed
def test_a_recursion_of_ten_thousand_calls_is_one_function(tmp_path):
    text = """
    import sys

    sys.setrecursionlimit(20_000)

    def deep(number):
        return sum(range(2000)) if number == 0 else deep(number - 1)

    for _ in range(200):
        deep(10_000)
    """
    write(tmp_path, text)
    first = diagnose(tmp_path, "program.py")["findings"][0]
    assert first["where"][0]["function"] == "deep"
    assert first["share"] > 0.8
