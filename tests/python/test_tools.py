# SPDX-License-Identifier: Apache-2.0
"""Everyone checks with the same versions of the tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("tool", "repository"), [("ruff", "ruff-"), ("mypy", "-mypy"), ("clang-format", "-clang-format")]
)
def test_pre_commit_uses_the_version_of_ci(tool: str, repository: str) -> None:
    pinned = re.search(rf"^{tool}==(.+)$", (REPOSITORY / ".ci" / "tools.txt").read_text(), re.MULTILINE)
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text()
    used = re.search(rf"repo: \S*{repository}\S*\n\s+rev: v(\S+)", hooks)
    assert pinned is not None
    assert used is not None
    assert used[1] == pinned[1]
