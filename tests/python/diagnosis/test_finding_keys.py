# SPDX-License-Identifier: Apache-2.0
"""Keys of findings: the same cause has the same key in every recording of a program."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fakes.loops import Loop
from gpuscope.diagnosis import Diagnosis, Where, diagnose
from gpuscope.diagnosis.findings import finding_key

READ = "    total += loss.item()\n"


def reading(file: Path | str, *lines: int) -> Diagnosis:
    """The diagnosis of a loop that reads a value at each of these lines."""
    loop = Loop()
    for _ in loop.steps(14):
        for line in lines:
            with loop.at(str(file), line, "train"):
                for _ in range(10):
                    loop.launch(gpu=100.0)
                loop.copy(4, 2, to_gpu=False, waits=True)
                loop.work(500)
    return diagnose(loop.trace())


def keys_of(found: Diagnosis) -> list[str]:
    return [each.key for each in found]


@pytest.fixture
def source(tmp_path: Path):
    """Writes a program that is older than the recordings."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(0, 0))
        return path

    return write


def test_a_key_is_the_rules_id_and_eight_hexadecimal_digits(source):
    found = reading(source(READ), 1)
    assert list(found)
    assert all(re.fullmatch(rf"{each.id}-[0-9a-f]{{8}}", each.key) for each in found)


def test_a_line_that_moved_keeps_its_key(source):
    before = reading(source(READ, "before/train.py"), 1)
    after = reading(source("\n" * 6 + "    " + READ, "after/train.py"), 7)
    assert keys_of(before) == keys_of(after)


def test_another_line_has_another_key(source):
    text = source("x = value.item()\ny = other.item()\n")
    assert not set(keys_of(reading(text, 1))) & set(keys_of(reading(text, 2)))


def test_two_findings_of_one_rule_have_different_keys(source):
    keys = keys_of(reading(source(READ + READ), 1, 2))
    assert keys
    assert len(set(keys)) == len(keys)


def test_without_the_text_of_the_line_a_key_does_not_depend_on_the_folder():
    assert keys_of(reading("/one/train.py", 3)) == keys_of(reading("/two/train.py", 3))


@pytest.mark.parametrize("where", [Where(region="train > forward"), Where(kernel="gemm"), Where("a.py", 1, "f")])
def test_a_key_depends_on_the_place(where):
    assert finding_key("R09", [where]) != finding_key("R09", [])


def test_findings_of_like_lines_are_numbered_by_line(source):
    text = source(READ + READ)
    keys = [
        {str(each.where[0]): each.key for each in reading(text, *lines) if each.id == "R15"}
        for lines in ((1, 2), (2, 1))
    ]
    assert keys[0] == keys[1]


def test_parts_have_keys(source):
    parts = [part for each in reading(source(READ + READ), 1, 2).findings for part in each.parts]
    assert parts
    assert all(part.key for part in parts)


def test_the_key_is_in_the_json(source):
    found = reading(source(READ), 1)
    assert [each["key"] for each in found.to_dict()["findings"]] == [each.key for each in found.findings]
