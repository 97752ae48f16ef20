# SPDX-License-Identifier: Apache-2.0
"""Text for terminals: without control characters, shortened, padded and wrapped by columns."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")

# Characters that control a terminal: C0, DEL and C1 (ECMA-48), line and paragraph separators, and marks for the
# direction of writing (Unicode, UAX 9). Also halves of surrogate pairs, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_INTEGER = 256  # bits; Python refuses to print some thousands of digits
_LONGEST = 80  # characters of an argument in a message
KEPT_SPACE = "\N{NO-BREAK SPACE}"  # `wrapped` ends no line here, and prints a space
# Substitutes for our drawing characters, for outputs that lack them.
_PLAIN = dict(zip("├└│─█▉▊▋▌▍▎▏·→✓✗µ\N{MULTIPLICATION SIGN}", "|`|-#####   .>+xux", strict=True))
_PLAIN |= {"…": "...", "±": "+-"}
_CONTROL_IN_LINES = re.compile(r"(?![\n\t])" + _CONTROL.pattern)


def one_line(text: str) -> str:
    """A name for one line or a cell of a table: control characters are escaped as in Python's ``repr``."""
    return _CONTROL.sub(_escape, text)


def printable(text: str) -> str:
    """Lines of text: as `one_line`, except that tabs and ends of lines stay."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def carried(text: str, encoding: str | None) -> str:
    """The text in characters of an encoding: missing drawing characters become ASCII, others are escaped."""

    def is_carried(text: str) -> bool:
        with contextlib.suppress(UnicodeEncodeError):
            text.encode(encoding or "utf-8")
            return True
        return False

    def plain(found: re.Match[str]) -> str:
        return found[0] if is_carried(found[0]) else _PLAIN.get(found[0]) or _escape(found)

    return text if is_carried(text) else re.sub("[^\x00-\x7f]", plain, text)


def for_output(text: str) -> str:
    """The text in characters that standard output can encode."""
    return carried(text, getattr(sys.stdout, "encoding", None))


def shown(make: Callable[Arguments, str]) -> Callable[Arguments, str]:
    """Decorator: makes the returned text `printable` on the present standard output."""

    @functools.wraps(make)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> str:
        return for_output(printable(make(*args, **kwargs)))

    return wrapped


def brief(value: object) -> str:
    """An argument for a sentence: long texts and integers are cut short."""
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # in its own repr, or for such an integer in it
        return f"a {type(value).__name__} that has no repr"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: 2 for wide characters, 0 for marks on the one before."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def padded(text: str, columns: int, *, left: bool = True) -> str:
    """A text with spaces up to a width in columns: after the text, or before it if not `left`."""
    spaces = " " * (columns - columns_of(text))
    return text + spaces if left else spaces + text


def shorten(text: str, columns: int, ellipsis: str = "") -> str:
    """A text cut to a width in columns. Keeps both ends, as names that begin alike differ at their ends."""
    ellipsis = ellipsis or for_output("…")
    if columns_of(text) <= columns:
        return text
    room = columns - len(ellipsis)
    if room <= 0:
        return ellipsis[: max(0, columns)]
    tail = _taken(text[::-1], room // 2)[::-1]
    while tail and not _columns(tail[0]):  # a combining mark would join the ellipsis
        tail = tail[1:]
    return _taken(text, room - columns_of(tail)) + ellipsis + tail


def shorten_apart(texts: Iterable[str], columns: int, ellipsis: str = "") -> dict[str, str]:
    """`shorten` for each of several texts. Texts that would look alike show the place where they differ."""
    ellipsis = ellipsis or for_output("…")
    short = {text: shorten(text, columns, ellipsis) for text in texts}
    waiting = [(list(short), -1)]  # groups of texts, and the last place where they differ
    while waiting:
        together, before = waiting.pop()
        alike: dict[str, list[str]] = {}
        for text in together:
            alike.setdefault(short[text], []).append(text)
        for group in alike.values():
            at = sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*group, strict=False)))
            if len(group) > 1 and at > before:
                short |= {text: _around(text, at, columns, ellipsis) for text in group}
                waiting.append((group, at))
    return short


def _around(text: str, at: int, columns: int, ellipsis: str) -> str:
    """The beginning of a text, and the part around one of its characters."""
    room = max(0, columns - 2 * len(ellipsis))
    head = _taken(text, room // 3)
    rest = text[max(len(head), at - room // 6) :]
    if columns_of(rest) <= columns - columns_of(head) - len(ellipsis):  # the rest fits
        return shorten(f"{head}{ellipsis}{rest}", columns, ellipsis)
    return f"{head}{ellipsis}{_taken(rest, room - columns_of(head))}{ellipsis}"[:columns]


def file_names(paths: Iterable[str]) -> dict[str, str]:
    """Each file's name, with the folders that distinguish it; __init__.py and __main__.py always with one."""
    parts = {path: path.replace("\\", "/").split("/") for path in paths}
    taken = {path: min(len(part), 1 + (part[-1] in ("__init__.py", "__main__.py"))) for path, part in parts.items()}
    while True:
        names = {path: "/".join(part[-taken[path] :]) for path, part in parts.items()}
        counts = Counter(names.values())
        alike = [path for path, name in names.items() if counts[name] > 1 and taken[path] < len(parts[path])]
        if not alike:
            return names
        for path in alike:
            taken[path] += 1


def wrapped(text: str, columns: int, indent: int = 0, *, whole_words: bool = False) -> list[str]:
    """A sentence in lines of at most `columns`, with a hanging indent; a number and its "%" stay together.

    Args:
        text: without ends of lines.
        columns: widest line, including the indent.
        indent: of all lines except the first.
        whole_words: do not split words that are wider than a line, as paths and addresses, which are copied.
    """
    text = text.replace(" %", KEPT_SPACE + "%")
    wrapper = _Wrapper(
        max(1, columns), subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=not whole_words
    )
    return [line.replace(KEPT_SPACE, " ") for line in wrapper.wrap(text)]


class _Word(str):
    """A word whose length is its width on a terminal."""

    __slots__ = ()

    def __len__(self) -> int:
        return columns_of(str(self))


class _Wrapper(textwrap.TextWrapper):
    """Measures by columns, not by characters."""

    def _split(self, text: str) -> list[str]:
        return [_Word(chunk) for chunk in super()._split(text)]

    def _handle_long_word(self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int) -> None:
        if not self.break_long_words:
            super()._handle_long_word(reversed_chunks, cur_line, cur_len, width)
            return
        word = str(reversed_chunks.pop())
        taken = _taken(word, max(0, width - cur_len))
        if not taken and not cur_line:  # too narrow for one character: no line is empty
            taken = word[0]
        if taken:
            cur_line.append(_Word(taken))
        if rest := word[len(taken) :]:
            reversed_chunks.append(_Word(rest))


def _taken(text: str, columns: int) -> str:
    """The beginning of a text that fits."""
    if text.isascii():
        return text[:columns]
    width = 0
    for at, character in enumerate(text):
        width += _columns(character)
        if width > columns:
            return text[:at]
    return text


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
