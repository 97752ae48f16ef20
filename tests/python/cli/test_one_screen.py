# SPDX-License-Identifier: Apache-2.0
"""``gpuscope run`` of small programs: the line that takes the time is seen at once, and the report fits on a screen."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from gpuscope import _core

pytestmark = pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")

SCREEN, TOP = 40, 15
RECORDINGS = Path(__file__).resolve().parents[3] / "docs" / "recordings"

JSON = """\
import json

def parse(lines):
    return [json.loads(line) for line in lines]  # the answer

def main():
    lines = [json.dumps({"number": number, "rest": [number] * 20}) for number in range(1000)]
    for _ in range(40):
        parse(lines)

main()
"""

PANDAS = """\
import pandas as pd

def add_tax(row):
    return row["price"] * (1 + row["tax"])

def total(frame):
    return frame.apply(add_tax, axis=1).sum()  # the answer

total(pd.DataFrame({"price": range(100_000), "tax": 0.2}))
"""

LOCK = """\
import threading
import time

lock = threading.Lock()

def write():
    for _ in range(30):
        with lock:
            time.sleep(0.02)  # the answer

def read(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with lock:
            pass
        time.sleep(0.001)

writer = threading.Thread(target=write, name="writer")
writer.start()
read(0.5)
writer.join()
"""

FILES = """\
def count(path):
    words = 0
    with open(path) as file:
        for line in file:
            words += len(line.split())  # the answer
    return words

with open("words.txt", "w") as file:
    file.writelines(f"{number} and some more words in each line\\n" for number in range(20_000))
for _ in range(30):
    count("words.txt")
"""

NUMPY = """\
import numpy as np

def smooth(values):
    for _ in range(40):
        values = np.sort(values + 1.0)[::-1].copy()  # the answer
    return values

smooth(np.random.default_rng(0).normal(size=300_000))
"""

TORCH = """\
import torch

def clip(batch):
    return [min(max(value, -1.0), 1.0) for value in batch.flatten().tolist()]  # the answer

def train(model, optimizer, steps):
    for _ in range(steps):
        batch = torch.tensor(clip(torch.randn(256, 256))).reshape(256, 256)
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

model = torch.nn.Sequential(torch.nn.Linear(256, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 100)
"""

PROGRAMS = {
    "JSON in a comprehension": ("parse", JSON),
    "pandas.apply": ("total", PANDAS),
    "a lock between threads": ("write", LOCK),
    "reading of files": ("count", FILES),
    "NumPy": ("smooth", NUMPY),
    "a training loop of torch": ("clip", TORCH),
}


@pytest.mark.parametrize(("function", "source"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_line_that_takes_the_time_is_at_the_top_of_one_screen(gpuscope, script, function, source):
    for module in re.findall(r"^import (\w+)", source, re.MULTILINE):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    answer = next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# the answer"))
    lines = gpuscope("run", script(source)).stderr.splitlines()
    top = [line.split() for line in lines[:TOP]]
    assert any({function, f"script.py:{answer}"} <= {*words} for words in top), "\n".join(lines)
    assert len(lines) <= SCREEN


DEEP = "\n".join(
    [
        "import time",
        *(f"def level_{number}(): level_{number + 1}()" for number in range(40)),
        "def level_40():",
        "    time.sleep(0.3)  # the answer",
        "level_0()",
    ]
)


def test_a_line_deep_in_the_program_is_at_the_top_too(gpuscope, script):
    lines = gpuscope("run", script(DEEP)).stderr.splitlines()
    assert any("level_40  script.py:43" in line for line in lines[:TOP]), "\n".join(lines)
    assert any("frames of the program]" in line for line in lines[:TOP])


WIDE = "\n".join(
    [
        "import time",
        *(f"def part_{number}():\n    time.sleep(0.012)" for number in range(60)),
        *(f"part_{number}()" for number in range(60)),
    ]
)


def test_what_is_cut_is_said_once(gpuscope, script):
    lines = gpuscope("run", script(WIDE)).stderr.splitlines()
    assert len(lines) <= SCREEN
    assert len([line for line in lines if line.endswith("more rows with less time: --tree)")]) == 1
    assert "more rows with less time" not in gpuscope("run", "--tree", script(WIDE)).stderr


def test_the_whole_tree_has_the_frames_of_libraries(gpuscope, script):
    source = script(JSON)
    assert "JSONDecoder.decode" not in gpuscope("run", source).stderr
    assert "JSONDecoder.decode" in gpuscope("run", "--tree", source).stderr


REGIONS = """\
import time
import gpuscope as gs

def work(number):
    with gs.record_function(f"region {number}"):
        time.sleep(0.002)

for number in range(30):
    work(number)
"""


def test_without_gpu_work_the_functions_come_first_and_fewer_rows_of_the_table(gpuscope, script):
    lines = gpuscope("run", script(REGIONS)).stderr.splitlines()
    regions = [number for number, line in enumerate(lines) if line.startswith("region ")]
    assert len(regions) == 10
    assert next(number for number, line in enumerate(lines) if "work  script.py:6" in line) < regions[0]
    assert len(lines) <= SCREEN


def test_without_functions_the_table_has_more_rows(gpuscope, script):
    lines = gpuscope("run", "--no-functions", script(REGIONS)).stderr.splitlines()
    assert len([line for line in lines if line.startswith("region ")]) == 25


def test_as_many_rows_are_shown_as_asked(gpuscope, script):
    lines = gpuscope("run", "--row-limit", 28, script(REGIONS)).stderr.splitlines()
    assert len([line for line in lines if line.startswith("region ")]) == 28


def test_a_recording_with_gpu_work_fits_too_and_its_table_comes_first(gpuscope):
    lines = gpuscope("report", RECORDINGS / "recommender.gscope").stdout.splitlines()
    assert len(lines) <= SCREEN
    assert next(at for at, line in enumerate(lines) if line.startswith("Name")) < next(
        at for at, line in enumerate(lines) if line.startswith("Python functions")
    )


@pytest.mark.parametrize("words", [("script.py", "a", "-b"), ("-m", "script", "a"), ("-c", "pass", "a")])
def test_a_recording_has_the_name_of_what_was_run(gpuscope, script, words):
    script("pass")
    gpuscope("run", "-o", "made.gscope", *words)
    assert gpuscope("report", "made.gscope").stdout.splitlines()[0] == f"program  {' '.join(words)}"
