# SPDX-License-Identifier: Apache-2.0
"""The code blocks of README.md and docs/: found, run, and their outputs written again.

``python docs/blocks.py`` runs the commands whose output is shown, and writes what they print now into the pages.

A ``python`` block is a program. One that begins with ``# NAME.py`` is also a file for the page's commands. A
``console`` block has commands after ``$``, which run in order in one folder a page, with docs/ and examples/ as in the
repository; output that stands below a command is all of its output. ``# needs a GPU`` and ``# needs torch`` say what a
block, or a command, cannot run without. ``sh`` blocks set up a machine, ``text`` is quoted: neither runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# ([\w/]+\.py)\n")
NEEDS = re.compile(r"# needs (a GPU|torch)\b")


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the output that is shown below it; empty where none is."""

    line: str
    output: str

    @property
    def needs(self) -> str:
        """What it cannot run without; empty for nothing."""
        return needs_of(self.line)


def pages() -> list[Path]:
    """The pages whose blocks are run."""
    built = REPOSITORY / "docs" / "build"
    return [
        REPOSITORY / "README.md",
        *(page for page in sorted(REPOSITORY.glob("docs/**/*.md")) if built not in page.parents),
    ]


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of one language."""
    return [code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def needs_of(code: str) -> str:
    """What a block says that it needs: "a GPU", "torch" or nothing."""
    found = NEEDS.search(code.split("\n", 1)[0])
    return found[1] if found else ""


def title(code: str) -> str:
    """A block's name in a list of tests."""
    name = NAME.match(code)
    return name[1] if name else next(line for line in code.splitlines() if line and "import" not in line)[:40]


def commands(block: str) -> list[Command]:
    """The commands of a console block."""
    found = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        found.append(Command(line, output.strip("\n")))
    return found


def prepare(page: Path, folder: Path) -> None:
    """Puts into a folder what the commands of a page find there."""
    for name in ("docs", "examples"):
        (folder / name).symlink_to(REPOSITORY / name)
    for code in blocks(page, "python"):
        if file := NAME.match(code):
            (folder / file[1]).write_text(code, encoding="utf-8")


def run(arguments: list[str], folder: Path, *, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder, with the commands of this interpreter's environment first."""
    return subprocess.run(
        arguments,
        cwd=folder,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONWARNINGS": warnings,
            "TZ": "UTC",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_command(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command of a console block; ``gpuscope`` and ``pytest`` are those of this interpreter."""
    own = 'gpuscope() { "$PYTHON" -m gpuscope "$@"; }; pytest() { "$PYTHON" -m pytest -p no:cacheprovider "$@"; }; '
    own += 'python() { "$PYTHON" "$@"; }; '
    return run(["env", f"PYTHON={sys.executable}", "bash", "-c", f"{own}{command.line}"], folder, warnings="default")


def shown(finished: subprocess.CompletedProcess[str]) -> str:
    """A command's output as a page shows it."""
    return "\n".join(line.rstrip() for line in finished.stdout.strip("\n").split("\n"))


def write_outputs(page: Path) -> bool:
    """Runs a page's commands, and puts their outputs where outputs stand. Whether the page has changed."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        prepare(page, Path(name))
        for block in blocks(page, "console"):
            lines = []
            for command in commands(block):
                lines.append(f"$ {command.line}")
                if not command.needs:
                    finished = run_command(command, Path(name))
                    if finished.returncode:
                        sys.exit(f"{page}: {command.line}\n{finished.stderr}")
                if command.output:
                    lines.append(command.output if command.needs else shown(finished))
            text = text.replace(f"```console\n{block}```", "```console\n" + "\n".join(lines) + "\n```")
    changed = text != page.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    return changed


if __name__ == "__main__":
    for page in [Path(argument).resolve() for argument in sys.argv[1:]] or pages():
        if any(command.output for block in blocks(page, "console") for command in commands(block)) and write_outputs(
            page
        ):
            print(f"{page.relative_to(REPOSITORY)} has changed")
