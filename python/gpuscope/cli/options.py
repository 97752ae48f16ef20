# SPDX-License-Identifier: Apache-2.0
"""Types of options for argparse, and the files that a command is to write."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuscope import units
from gpuscope.arguments import type_of_option
from gpuscope.cli import console
from gpuscope.counters.names import SETS
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.paths import check_writable, is_stream
from gpuscope.text import brief

PAGE_SUFFIXES = (".html", ".htm")
_STANDARD_OUTPUT = "/dev/stdout"


share = type_of_option(units.parse_share)
seconds = type_of_option(units.parse_seconds)


def whole(text: str) -> int | None:
    """The integer from 0 on in the text; None if there is none, or more digits than Python reads."""
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:
        return None


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not (number := whole(text)):
        raise argparse.ArgumentTypeError(f"{brief(text)} is not an integer of at least 1")
    return number


def ordinal(text: str) -> int:
    """The number of a GPU."""
    if (number := whole(text)) is None:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no ordinal of a GPU")
    return number


def rank_list(text: str) -> list[int]:
    """Numbers of ranks, as 0,7."""
    found = [whole(part) for part in text.split(",")]
    if any(number is None for number in found):
        raise argparse.ArgumentTypeError(f"{brief(text)} is no list of ranks, as 0,7")
    return [number for number in found if number is not None]


def step_range(text: str) -> tuple[int, int]:
    """The first and the last step, as 20:22, or one step."""
    first, last = (whole(part) for part in (text if ":" in text else f"{text}:{text}").split(":", 1))
    if first is None or last is None or first > last:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no range of steps, as 20:22")
    return first, last


def names(text: str) -> list[str]:
    """The parts between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def add_counters(group: argparse._ArgumentGroup) -> None:
    """Adds the options for sampling hardware counters."""
    group.add_argument(
        "--counters",
        metavar="LIST",
        type=_counters,
        help="hardware counters to sample: why, or names with commas that `gpuscope counters --sampling` lists",
    )
    group.add_argument(
        "--counter-interval",
        metavar="TIME",
        type=seconds,
        default=1e-4,
        help="time between samples of hardware counters (default: 100us)",
    )


def add_device_samples(group: argparse._ArgumentGroup) -> None:
    """Adds --device-samples."""
    group.add_argument(
        "--device-samples",
        metavar="TIME",
        type=seconds,
        default=False,
        help="read the GPUs' power, clocks and energy at this interval, as 500ms; a reading takes 3 ms of another core",
    )


def _counters(text: str) -> str | list[str]:
    return text if text.strip() in SETS else names(text)


def sizes(text: str) -> list[int]:
    """``64:4096`` doubles from the first to the last; ``64,100,1000`` is a list."""
    first, colon, last = text.partition(":")
    numbers = [_size(text, number) for number in ((first, last) if colon else first.split(","))]
    if not colon:
        return numbers
    if numbers[1] < numbers[0]:
        raise argparse.ArgumentTypeError(
            f"{brief(text)} ends before it begins; accepted is FIRST:LAST or a list with commas"
        )
    doubled = [numbers[0]]
    while doubled[-1] * 2 < numbers[1]:
        doubled.append(doubled[-1] * 2)
    return [*doubled, numbers[1]] if numbers[1] > numbers[0] else doubled


def _size(sizes: str, text: str) -> int:
    if not (number := whole(text.strip())):
        raise argparse.ArgumentTypeError(f"{brief(sizes)} contains {brief(text)}; accepted are integers of at least 1")
    return number


def writable_paths(paths: Sequence[str | None], suffixes: tuple[str, ...] = ()) -> list[Path]:
    """The files as absolute paths, checked to be writable: a program that runs in between may change its folder.

    None is an option that was not given, ``-`` is standard output. Raises InvalidArgument for a file that cannot be
    written or is named twice.
    """
    given = [_STANDARD_OUTPUT if path == "-" else path for path in paths if path is not None]
    try:
        found = [Path(os.path.abspath(check_writable(path, suffixes))) for path in given]
    except GpuscopeError as error:  # nothing is lost yet: the argument is wrong
        raise InvalidArgument(str(error)) from error
    check_apart(found)
    return found


def check_apart(outputs: Sequence[Path], inputs: Iterable[str] = ()) -> None:
    """Raises InvalidArgument if two outputs are one file, by any name, or if an output is an input."""
    read = set(map(os.path.realpath, inputs))
    taken: set[str] = set()
    for path in outputs:
        # A pipe or terminal is compared by name: two of them may lead to one target.
        target = os.path.abspath(path) if is_stream(path) else os.path.realpath(path)
        if target in taken and target != os.devnull:
            raise InvalidArgument(f"the output {console.display(path)} is named twice; accepted is a file for each")
        if target in read:
            raise InvalidArgument(f"the output {console.display(path)} is read too; accepted is another file")
        taken.add(target)
