# SPDX-License-Identifier: Apache-2.0
"""The metadata of the project agrees with its wheels, its changelog and its pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import gpuscope as gs

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def versions_of_release() -> list[str]:
    """The versions of Python for which `.ci/release` builds wheels."""
    (versions,) = re.findall(r"^versions=\((.+)\)$", read(".ci/release"), re.MULTILINE)
    return versions.split()


def test_classifiers_name_the_pythons_of_the_wheels() -> None:
    found = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert found == versions_of_release()


def test_oldest_python_of_the_wheels_is_the_required_one() -> None:
    assert PROJECT["requires-python"] == f">={versions_of_release()[0]}"


def test_implementation_is_cpython() -> None:
    implementations = [line for line in PROJECT["classifiers"] if ":: Implementation ::" in line]
    assert implementations == ["Programming Language :: Python :: Implementation :: CPython"]


def test_installed_version_is_the_one_of_the_project() -> None:
    assert gs.__version__ == PROJECT["version"]


def test_cmake_has_no_version_of_its_own() -> None:
    (arguments,) = re.findall(r"^project\((.*)\)", read("CMakeLists.txt"), re.MULTILINE)
    assert "VERSION" not in arguments


def test_changelog_begins_with_the_version() -> None:
    newest = read("CHANGELOG.md").split("\n## ")[1]  # a heading, for unreleased changes with a sentence below it
    introduction = newest.partition("\n### ")[0]
    assert re.findall(r"\b\d+\.\d+\.\d+\b", introduction) == [PROJECT["version"]]


def test_every_extra_is_documented() -> None:
    cells = re.findall(r"^\| (`.+?) \|", read("docs/reference/extras.md"), re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`(.+?)`", cell)]
    assert sorted(documented) == sorted(PROJECT["optional-dependencies"])
