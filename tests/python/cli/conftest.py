# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gpuscope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs ``gpuscope ARGUMENTS`` as a process of its own, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuscope", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **variables}, stdin=subprocess.DEVNULL
        )

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script into the folder that ``gpuscope`` runs in."""

    def write(source: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    return write
