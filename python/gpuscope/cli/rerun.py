# SPDX-License-Identifier: Apache-2.0
"""The command of a recording: stored by ``run`` and ``diagnose``, checked, and run again, also of another commit."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpuscope.cli.program import Program
from gpuscope.cli.recorder import recorded_words
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.text import one_line, shorten

FACT = "run.command"
"""The key of a recording's facts that has the command, as JSON."""

_RECORDERS = ("run", "diagnose")
_GIT_SECONDS = 2.0
_TAIL = 8  # lines of a failed program that are shown
_SHORT = 10  # digits of a commit
_VARIABLES = (
    "CUBLAS", "CUDA", "CUDNN", "GPUSCOPE", "JAX", "LD_", "MKL", "NCCL", "NVIDIA", "OMP", "OPENBLAS", "PYTHON",
    "PYTORCH", "TORCH", "TRITON", "XLA",
)  # fmt: skip
"""First letters of environment variables that change speed. Their names are stored, never their values."""


@dataclass(frozen=True)
class Command:
    """How a program was run and recorded.

    Attributes:
        python: path of the interpreter.
        folder: in which it ran.
        options: those that select what is recorded.
        program: a script, -m and a module, or -c and code; then its arguments.
        script: hash of the script; empty if there is none.
        variables: names of the environment variables that were set and may change speed.
        commit: of the git repository of the script; empty if unknown.
        dirty: whether files of that commit were changed.
        recorder: the command of gpuscope that recorded it.
    """

    python: str
    folder: str
    options: tuple[str, ...]
    program: tuple[str, ...]
    script: str = ""
    variables: tuple[str, ...] = ()
    commit: str = ""
    dirty: bool = False
    recorder: str = _RECORDERS[0]

    @staticmethod
    def now(recorder: str, options: argparse.Namespace, program: Program) -> Command | None:
        """The command of this process; None if it cannot run again: its code is from a pipe, or its folder is gone."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            return None
        is_there = program.kind != "script" or os.path.isfile(program.target) or os.path.isdir(program.target)
        if program.kind == "stdin" or not is_there:
            return None
        flags = {"module": ["-m"], "code": ["-c"]}.get(program.kind, [])
        recorded = recorded_words(options) + (["--children"] if options.children else [])
        words = (*flags, program.target, *program.arguments)
        return Command(sys.executable, folder, tuple(recorded), words, recorder=recorder).of_today()

    @classmethod
    def of(cls, info: Mapping[str, str], path: str) -> Command:
        """The command in the facts of a recording.

        Raises:
            InvalidArgument: the recording has none, or a damaged one.
        """
        if FACT not in info:
            if "process.rank" in info:
                why = "it is of one rank of a job, which a launcher started"
            else:
                why = "it is not of `gpuscope run` or `diagnose` with a script, -m or -c"
            raise InvalidArgument(
                f"{path!r} has no command to run again: {why}; accepted are recordings of gpuscope run or diagnose"
            )
        try:
            given = json.loads(info[FACT])
            values: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
            }
            found = cls(**values)
            is_sound = found.program and all(_is_like(getattr(found, each.name), each.type) for each in fields(cls))
            is_sound = is_sound and found.recorder in _RECORDERS
        except (ValueError, TypeError, AttributeError):
            is_sound = False
        if not is_sound:
            raise InvalidArgument(
                f"{path!r} has a damaged command; accepted are recordings of gpuscope run or diagnose"
            )
        return found

    def fact(self) -> str:
        """JSON that `of` reads."""
        return json.dumps(asdict(self))

    @property
    def script_path(self) -> str:
        """The script; empty for a module and for code."""
        return "" if self.program[0] in ("-m", "-c") else os.path.join(self.folder, self.program[0])

    @property
    def home(self) -> str:
        """The folder whose git repository has the program's code."""
        return os.path.dirname(os.path.realpath(self.script_path)) if self.script_path else self.folder

    def of_today(self) -> Command:
        """The same command with the script, the variables and the commit of this moment."""
        variables = tuple(sorted(name for name in os.environ if name.startswith(_VARIABLES)))
        status = git(self.home, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
        lines = (status or "").splitlines()
        commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
        dirty = any(not line.startswith("#") for line in lines)
        script = ""
        if self.script_path:
            with contextlib.suppress(OSError):
                script = hashlib.sha256(Path(self.script_path).read_bytes()).hexdigest()
        return replace(
            self, variables=variables, commit="" if commit == "(initial)" else commit, dirty=dirty, script=script
        )

    def check(self, *, in_work_tree: bool) -> None:
        """Raises InvalidArgument if the interpreter is no longer there, or, for the work tree, folder or script."""
        needed = [("interpreter", self.python)]
        if in_work_tree:
            needed += [("folder", self.folder), ("script", self.script_path)]
        for what, path in needed:
            if path and not os.path.exists(path):
                raise InvalidArgument(
                    f"the command of the recording cannot run: there is no {what} {path!r} any more; accepted is a "
                    "machine that has it, or a new recording"
                )

    def differences(self, commit: str | None) -> list[str]:
        """What differs today, or in a commit, a sentence each; also that nothing does."""
        today = self.of_today()
        if commit is not None:
            ignored = ["changes in the work tree are not part of the commit"] if today.dirty else []
            return [f"code: {self.version} before, commit {commit[:_SHORT]} after", *ignored]
        found = []
        for name in sorted({*self.variables} ^ {*today.variables}):
            was, now = ("set", "not set") if name in self.variables else ("not set", "set")
            found.append(f"the environment variable {name}: {was} before, {now} now")
        if self.commit and today.commit == self.commit and not (self.dirty or today.dirty):
            found.append(f"the code did not change: commit {self.commit[:_SHORT]} before and after")
        elif self.commit or today.commit:
            found.append(f"code: {self.version} before, {today.version} after")
        if self.script and today.script == self.script and not today.commit:
            found.append("the script did not change")
        return found

    @property
    def version(self) -> str:
        """The commit, in words."""
        return f"commit {self.commit[:_SHORT]}{' with changes' * self.dirty}" if self.commit else "no commit"

    def words(self, output: str) -> list[str]:
        """The command line that records into a folder."""
        return [self.python, "-m", "gpuscope", self.recorder, *self.options, "-o", f"{output}/", *self.program]

    def shown(self) -> str:
        """The command line for a reader, without the output."""
        return shlex.join([self.python, "-m", "gpuscope", self.recorder, *self.options, *self.program])

    def record(self, output: Path, variables: Mapping[str, str]) -> Path:
        """Runs it, and returns the recording of the program itself.

        Raises:
            NotAvailable: it cannot start, fails, or leaves no recording.
        """
        output.mkdir()
        log = output / "output.txt"
        try:
            with log.open("wb") as file:
                done = subprocess.run(
                    self.words(str(output)),
                    cwd=self.folder,
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
        except (OSError, ValueError) as error:
            raise NotAvailable(f"the command cannot start: {error}") from error
        if done.returncode:
            said = _error_in(log.read_text(encoding="utf-8", errors="replace"))
            raise NotAvailable(f"the program ended with exit code {done.returncode}; it printed: {said}")
        written = sorted(output.glob("*.gscope"), key=lambda path: (len(path.name), path.name))
        if not written:
            raise NotAvailable("the program left no recording: with a schedule it must call gpuscope.step()")
        return written[0]


class Checkout:
    """A commit in a temporary worktree of the program's repository, or the program where it is.

    Attributes:
        command: the command, in that worktree.
        variables: environment variables that differ there.
        name: for a reader.
    """

    def __init__(self, command: Command, name: str, variables: Mapping[str, str]) -> None:
        self.command = command
        self.name = name
        self.variables = variables

    @classmethod
    @contextlib.contextmanager
    def of(cls, command: Command, commit: str | None, folder: Path, build: str | None) -> Iterator[Checkout]:
        """Checks a commit out into a new folder, and removes it at the end; None is the program as it is.

        Raises:
            InvalidArgument: the program is in no repository, or its repository has no such commit.
            NotAvailable: git cannot check it out, or `build` fails there.
        """
        if commit is None:
            yield cls(command, "the work tree", {})
            return
        root, name = resolved(command, commit)
        try:
            if git(root, "worktree", "add", "--detach", "--quiet", str(folder), name, seconds=None) is None:
                raise NotAvailable(f"git cannot check out commit {commit!r} of {root!r}")
            moved = replace(command, folder=_moved(command.folder, root, folder))
            if command.script_path:
                script = _moved(command.script_path, root, folder)
                moved = replace(moved, program=(script, *command.program[1:]))
            paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            there = {"PYTHONPATH": os.pathsep.join(_moved(path, root, folder) for path in paths)} if any(paths) else {}
            made = cls(moved, f"commit {name[:_SHORT]}", there)
            if not os.path.isdir(moved.folder) or (moved.script_path and not os.path.exists(moved.script_path)):
                raise NotAvailable(f"{made.name} does not have {command.program[0]!r}")
            if build is not None:
                done = subprocess.run(
                    build, shell=True, cwd=folder, env={**os.environ, **there}, stdin=subprocess.DEVNULL,
                    capture_output=True, text=True, errors="replace", check=False,
                )  # fmt: skip
                if done.returncode:
                    said = shorten(one_line((done.stderr or done.stdout).strip()[-500:]), 500) or "nothing"
                    raise NotAvailable(f"{made.name} does not build: {build!r} ended with {done.returncode}: {said}")
            yield made
        finally:
            git(root, "worktree", "remove", "--force", "--force", str(folder), seconds=None)  # also half made
            git(root, "worktree", "prune", seconds=None)

    def record(self, output: Path) -> Path:
        """A recording of the program here; see `Command.record`."""
        try:
            return self.command.record(output, self.variables)
        except GpuscopeError as error:
            raise NotAvailable(f"{self.name} gave no recording: {error}") from error


def resolved(command: Command, commit: str) -> tuple[str, str]:
    """The root of the git repository of the program, and the whole name of a commit there.

    Raises:
        InvalidArgument: the program is in no repository, or there is no such commit.
    """
    root = (git(command.home, "rev-parse", "--show-toplevel") or "").rstrip("\n")
    if not root:
        raise InvalidArgument(f"{command.home!r} is in no git repository; accepted with a commit is a program in one")
    name = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if not name:
        raise InvalidArgument(f"{commit!r} is no commit of {root!r}; accepted is a commit, branch or tag")
    return root, name.strip()


def git(folder: str, *words: str, seconds: float | None = _GIT_SECONDS) -> str | None:
    """What git prints, without running hooks or monitors of the repository; None if it fails or takes too long."""
    quiet = ["-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
    try:
        done = subprocess.run(
            ["git", "-C", folder, *quiet, *words],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _moved(path: str, root: str, folder: Path) -> str:
    """A path inside the repository as one inside of the worktree; any other path as it is."""
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return path if not path or inside.split(os.sep)[0] == os.pardir else os.path.normpath(os.path.join(folder, inside))


def _error_in(printed: str) -> str:
    """The end of the last traceback, else of everything, on one line; gpuscope's report may follow a traceback."""
    before, mark, traceback = printed.rpartition("Traceback (most recent call last):\n")
    lines = (traceback or before).strip("\n").splitlines()
    if mark:
        ends = next((number for number, line in enumerate(lines) if line[:1].strip()), len(lines) - 1)
        lines = lines[: ends + 1]
    return shorten(one_line(" | ".join(line.strip() for line in lines[-_TAIL:])), 500) or "nothing"


def _is_like(value: Any, kind: Any) -> bool:
    """Whether a value has the type of its field."""
    if kind == "tuple[str, ...]":
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    return isinstance(value, {"str": str, "bool": bool}[kind])
