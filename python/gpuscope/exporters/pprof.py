# SPDX-License-Identifier: Apache-2.0
"""Recordings for ``go tool pprof``, Grafana and what else reads pprof's profiles.

The format is the message Profile of https://github.com/google/pprof/blob/main/proto/profile.proto, compressed. Numbers
below are those of its fields.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator

from gpuscope.analysis.call_tree import STACK_METRICS, Node, tree
from gpuscope.paths import check_writable, replacing
from gpuscope.trace import Trace, number_of

SUFFIXES = (".pb.gz", ".pprof")
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING, _TIME, _DURATION, _COMMENT, _DEFAULT = (
    1,
    2,
    4,
    5,
    6,
    9,
    10,
    13,
    14,
)
_TYPES = (("count", "count"), ("cpu", "nanoseconds"), ("gpu", "nanoseconds"))
_VARINT, _BYTES = 0, 2  # wire types


def export_pprof(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes the call tree as a profile of pprof: for each path how often it came, its own CPU time and its GPU time.

    Args:
        trace: the recording.
        path: ends in ``.pb.gz`` or ``.pprof``.

    Raises:
        InvalidArgument: the suffix is another.
        GpuscopeError: the file cannot be written.
    """
    with replacing(check_writable(path, SUFFIXES)) as file:
        file.write(gzip.compress(b"".join(_profile(trace)), compresslevel=6, mtime=0))


def _profile(trace: Trace) -> Iterator[bytes]:
    strings: dict[str, int] = {"": 0}
    frames: dict[str, int] = {}  # of which each is a function and a location

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    for kind, unit in _TYPES:
        yield _message(_SAMPLE_TYPE, _number(1, text(kind)) + _number(2, text(unit)))
    found = tree(trace)
    own = [STACK_METRICS[f"self_{what}_time_total"] for what in ("cpu", "device")]
    waiting: list[tuple[Node, tuple[int, ...]]] = [(node, ()) for node in reversed(found.root.children)]
    while waiting:
        node, above = waiting.pop()
        stack = (frames.setdefault(node.name or "?", len(frames) + 1), *above)  # the innermost first
        values = (node.count, *(max(own_ns(node), 0) for own_ns in own))
        if any(values):
            yield _message(_SAMPLE, _packed(1, stack) + _packed(2, values))
        waiting += [(child, stack) for child in reversed(node.children)]
    for name, number in frames.items():
        line = _message(4, _number(1, number))
        yield _message(_LOCATION, _number(1, number) + line)
        yield _message(_FUNCTION, _number(1, number) + _number(2, text(name)) + _number(3, text(name)))
    yield _number(_TIME, number_of(trace.info, "session.start_ns"))
    yield _number(
        _DURATION, max(number_of(trace.info, "session.stop_ns") - number_of(trace.info, "session.start_ns"), 0)
    )
    yield _number(_COMMENT, text(found.verdict))
    yield _number(_DEFAULT, text("gpu" if found.has_device else "cpu"))
    for value in strings:
        yield _message(_STRING, value.encode("utf-8", "backslashreplace"))


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))
