# SPDX-License-Identifier: Apache-2.0
"""Recordings for ``go tool pprof``, Grafana and other readers of pprof's profiles.

The format is the message Profile of https://github.com/google/pprof/blob/main/proto/profile.proto, compressed. Numbers
below are those of its fields.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator

from gpuscope.analysis.call_tree import STACK_METRICS, Node, SampledNode, tree
from gpuscope.exporters.protobuf import message, number, packed
from gpuscope.paths import check_writable, replacing
from gpuscope.trace import Trace, number_of, program_name

SUFFIXES = (".pb.gz", ".pprof")
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_TIME, _DURATION, _COMMENT, _DEFAULT = 9, 10, 13, 14
_MOST_FRAMES = 512  # of a sample: regions that are never left nest without end
_TYPES = (("count", "count"), ("cpu", "nanoseconds"), ("gpu", "nanoseconds"))


def export_pprof(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes the call tree as a profile of pprof: count, self CPU time and GPU time of each path.

    Lines of Python that samples found are included, under the regions that they ran in; their count is that of samples.
    Of paths of more than 512 names the innermost are written.

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
    functions: dict[tuple[str, str], int] = {}  # by name and file
    frames: dict[tuple[int, int], int] = {}  # locations, by function and line

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    for kind, unit in _TYPES:
        yield message(_SAMPLE_TYPE, number(1, text(kind)) + number(2, text(unit)))
    found = tree(trace, with_samples=True)
    own = [STACK_METRICS[f"self_{what}_time_total"] for what in ("cpu", "device")]
    waiting: list[tuple[Node, tuple[int, ...]]] = [(node, ()) for node in reversed(found.root.children)]
    while waiting:
        node, above = waiting.pop()
        # The innermost first.
        name, file, line = (
            (node.function, node.file, node.line) if isinstance(node, SampledNode) else (node.name, "", 0)
        )
        function = functions.setdefault((name or "?", file), len(functions) + 1)
        stack = (frames.setdefault((function, line), len(frames) + 1), *above[: _MOST_FRAMES - 1])
        values = (node.count, *(max(own_ns(node), 0) for own_ns in own))
        if any(values):
            yield message(_SAMPLE, packed(1, stack) + packed(2, values))
        waiting += [(child, stack) for child in reversed(node.children)]
    # The mapping has the program's name, which pprof shows; with has_functions pprof looks for no binary.
    yield message(_MAPPING, number(1, 1) + number(5, text(program_name(trace.info))) + number(7, 1))
    for (function, line), frame in frames.items():
        yield message(_LOCATION, number(1, frame) + number(2, 1) + message(4, number(1, function) + number(2, line)))
    for (name, file), function in functions.items():
        # No system_name: if it equals the name, pprof cuts off template arguments, which distinguish kernels.
        yield message(_FUNCTION, number(1, function) + number(2, text(name)) + number(4, text(file)))
    yield number(_TIME, number_of(trace.info, "session.start_ns"))
    yield number(
        _DURATION, max(number_of(trace.info, "session.stop_ns") - number_of(trace.info, "session.start_ns"), 0)
    )
    yield number(_COMMENT, text(found.verdict))
    yield number(_DEFAULT, text("gpu" if found.has_device else "cpu"))
    for value in strings:
        yield message(_STRING, value.encode("utf-8", "backslashreplace"))
