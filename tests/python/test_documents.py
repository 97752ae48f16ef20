# SPDX-License-Identifier: Apache-2.0
"""What ARCHITECTURE.md and CONTRIBUTING.md name is there, and the changelog knows every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuscope.cli import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = (REPOSITORY, REPOSITORY / "cpp" / "gpuscope", REPOSITORY / "python" / "gpuscope")
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[.\w]+/)+[.\w]*|\w+\.(?:py|pyi|h|cpp|md|toml|txt)")
CPP_NAME = re.compile(r"(\w+)::(\w+)(?:::(\w+))?")
MADE = re.compile(r"build/|\.venv|/proc")  # by commands


def names(document: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """What is set as code, in the text and in blocks of commands, and matches as a whole."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    words = [*CODE.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))]
    words += [word.strip("\"'") for block in blocks for word in block.split()]
    return [match for word in words if (match := pattern.fullmatch(word)) and not MADE.match(word)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_paths_that_a_document_names_exist(document):
    found = [match[0] for match in names(document, PATH)]
    assert len(found) > 10
    assert [path for path in found if not any((root / path).exists() for root in ROOTS)] == []
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (REPOSITORY / document).read_text(encoding="utf-8"))
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


def test_every_room_is_in_the_tables():
    named = {match[0].rstrip("/") for match in names("ARCHITECTURE.md", PATH)}
    rooms = {path.name for root in ROOTS[1:] for path in root.iterdir() if path.is_dir() and any(path.glob("*.*"))}
    assert rooms - {"__pycache__"} - named == set()


def test_the_names_of_cpp_are_in_their_room():
    found = names("ARCHITECTURE.md", CPP_NAME)
    assert len(found) > 10
    for match in found:
        room, *inner = [name for name in match.groups() if name]
        if room == "std":
            continue
        text = "".join(path.read_text(encoding="utf-8") for path in (ROOTS[1] / room).glob("*.h"))
        assert all(re.search(rf"\b{name}\b", text) for name in inner), match[0]


def test_the_changelog_names_every_command():
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.count("\n## ") == 1
    assert [command.name for command in COMMANDS if f"`{command.name}`" not in text] == []
