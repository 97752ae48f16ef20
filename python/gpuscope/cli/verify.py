# SPDX-License-Identifier: Apache-2.0
"""``gpuscope verify``: runs the command of a recording again and judges what changed."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli import console, options
from gpuscope.cli.console import Console
from gpuscope.cli.export import check_recording
from gpuscope.cli.rerun import Checkout, Command, resolved
from gpuscope.errors import GpuscopeError, InvalidArgument

if TYPE_CHECKING:
    from gpuscope.recording import Recording

_CODES = {"accept": 0, "reject": 1, "inconclusive": 3}
_MISUSED = 2
_WIDEST, _USUAL = 140, 100


class Verify:
    """Runs the command of a recording again."""

    description = (
        "Runs the command of a recording again, compares, and answers accept, reject or inconclusive. The recording\n"
        "must be one of `gpuscope run` or `diagnose`; its script, options, folder and interpreter are used again.\n"
        "The command is shown and asked for, as it comes from a file. With --against, an old commit is checked out\n"
        "next to the work tree, and both are run in turns, which is sure of smaller changes.\n"
        "Exit code 0: accept; 1: reject; 2: no verdict, as something cannot be used or run; 3: inconclusive."
    )
    examples = """\
  gpuscope verify before.gscope                            surely not slower?
  gpuscope verify before.gscope --claim R09                does the fix of this finding save what was promised?
  gpuscope verify before.gscope --against HEAD             uncommitted changes and the last commit, in turns
  gpuscope verify before.gscope --against main --commit my-branch
  gpuscope verify before.gscope --yes --json - | jq .verdict"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "before", metavar="BEFORE", help="a recording of gpuscope run or diagnose, before the change"
        )
        parser.add_argument(
            "--claim", metavar="ID", help="a finding of BEFORE that the change is for, as R09; its saving is checked"
        )
        parser.add_argument(
            "--margin",
            metavar="SHARE",
            type=options.share,
            help="a slow-down that does not count, without --claim (default: 5%%; with --against 2%%)",
        )
        parser.add_argument("--commit", metavar="COMMIT", help="the new version (default: the files as they are)")
        parser.add_argument("--against", metavar="COMMIT", help="the old version, run again in turns with the new")
        parser.add_argument(
            "--runs",
            metavar="N",
            type=options.positive,
            help="runs of the new version, 3 or more (default: 5); with --against pairs of runs, 9 or more "
            "(default: 30); half of the pairs are enough for a clear verdict",
        )
        parser.add_argument("--build", metavar="COMMAND", help="run by the shell in each commit that is checked out")
        parser.add_argument("--yes", action="store_true", help="run without asking")
        parser.add_argument("-o", "--output", metavar="DIR", help="keep the new recordings in this new folder")
        parser.add_argument("--json", metavar="FILE", help="write the verdict as JSON too, - for standard output")

    def run(self, options_: argparse.Namespace) -> int:
        """Runs, compares and prints."""
        # As at Ctrl-C, checked out commits and recordings are cleared away.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            return _verified(options_)
        except BrokenPipeError:
            raise
        except (GpuscopeError, OSError) as error:  # the exit code 1 would be a verdict
            raise InvalidArgument(str(error)) from error
        except Exception:
            traceback.print_exc()
            return _MISUSED


def _verified(options_: argparse.Namespace) -> int:
    from gpuscope.diagnosis import diagnose
    from gpuscope.diffing.verifying import FEWEST_PAIRS, FEWEST_RUNS, INCONCLUSIVE, PAIRS, RUNS, Claim, looks, verify
    from gpuscope.recording import load
    from gpuscope.steps.steps import find_steps

    written = options.writable_paths([options_.json])
    pairs = options_.against is not None
    usual, fewest, what = (PAIRS, FEWEST_PAIRS, "pairs of runs") if pairs else (RUNS, FEWEST_RUNS, "runs")
    runs = options_.runs or usual
    if runs < fewest:
        raise InvalidArgument(f"--runs is {runs}; accepted are {fewest} {what} or more, as fewer are never sure")
    check_recording(options_.before)
    before = load(options_.before)
    command = Command.of(before.trace.info, options_.before)
    command.check(in_work_tree=options_.commit is None)
    _check_gpus(before)
    find_steps(before.trace)  # raises if it has only totals
    claim = None if options_.claim is None else Claim.of(diagnose(before.trace), options_.claim)
    old, new = (commit and resolved(command, commit)[1] for commit in (options_.against, options_.commit))
    if options_.build and not (old or new):
        raise InvalidArgument("--build is for commits that are checked out; accepted with --commit or --against")
    out = console.errors()
    if not _agreed(command, options_, runs, out):
        out.complain("nothing was run, and there is no verdict")
        return _MISUSED
    with _folder(options_.output) as folder, contextlib.ExitStack() as checkouts:
        commits = {"before": old, "after": new} if pairs else {"after": new}
        versions = {
            name: checkouts.enter_context(Checkout.of(command, commit, folder / name, options_.build))
            for name, commit in commits.items()
        }
        rounds = _rounds(versions, folder, out)
        sides: dict[str, list[Recording]] = {"before": [] if pairs else [before], "after": []}
        if pairs:
            next(rounds)  # fills the caches of files
        for count in looks(runs) if pairs else (runs,):
            while len(sides["after"]) < count:
                for name, recording in next(rounds).items():
                    sides[name].append(recording)
            found = verify(**sides, pairs=pairs, claim=claim, margin=options_.margin)
            if found.verdict != INCONCLUSIVE:
                break
    names = " and ".join(version.name for version in versions.values())
    compared = [f"compared: {names}, {found.runs} pairs of runs"] if pairs else command.differences(new)
    found = replace(found, notes=(*compared, *found.notes))
    for path in written:
        found.to_json(path)
    shown = console.output(written)
    shown.report(found.page(min(shown.width or _USUAL, _WIDEST)))
    return _CODES[found.verdict]


def _check_gpus(before: Recording) -> None:
    """Raises InvalidArgument if this machine lacks a GPU of a recording with GPU work."""
    from gpuscope import _core

    trace = before.trace
    if not (len(trace.kernels) or len(trace.memcpy)):
        return
    there = [each["name"] for each in _core.environment().get("devices") or ()]
    for name in map(trace.string, trace.devices.name.tolist()):
        if name not in there:
            raise InvalidArgument(
                f"the recording is of the GPU {name}, and this machine has {', '.join(there) or 'none'}; accepted is a "
                "machine with that GPU"
            )


def _agreed(command: Command, options_: argparse.Namespace, runs: int, out: Console) -> bool:
    """Shows what will run, and asks; True with --yes."""
    if options_.against is None:
        times = f", {runs} times"
    else:
        times = f", up to {runs + 1} times each of {options_.against} and {options_.commit or 'the work tree'}"
    out.sentence("will run: ", (command.shown(), "bold"))
    out.sentence(f"  in {command.folder}{times}")
    if options_.build:
        out.sentence(f"  after {options_.build}")
    if options_.yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidArgument(
            "the command comes from a file, and standard input is no terminal to ask on; accepted is --yes"
        )
    out.sentence("Run it? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    """A folder for recordings; a temporary one is removed unless there is an error and recordings in it."""
    folder = Path(tempfile.mkdtemp(prefix="gpuscope-verify-") if given is None else given).absolute()
    if given is not None:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InvalidArgument(f"--output is {given!r}, which exists; accepted is a new folder") from None
    keeps = given is not None
    try:
        yield folder
    except BaseException as error:
        keeps = any(folder.glob("*/*.gscope"))
        kept = f"the recordings so far are in {folder}"
        if keeps and isinstance(error, GpuscopeError):
            raise InvalidArgument(f"{error}; {kept}") from error
        if keeps:
            console.errors().complain(kept)
        raise
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)


def _rounds(versions: dict[str, Checkout], folder: Path, out: Console) -> Iterator[dict[str, Recording]]:
    """Recordings of each version, run one after the other; every other round begins with the other version."""
    from gpuscope.recording import load

    for number in itertools.count(1):
        names = list(versions)
        found = {}
        for name in names if number % 2 else reversed(names):
            with out.working(f"running {versions[name].name}, round {number}"):
                found[name] = load(versions[name].record(folder / f"{name}-{number}"))
        yield found
