# SPDX-License-Identifier: Apache-2.0
"""Traces as torch.profiler writes them, for Perfetto, chrome://tracing and Holistic Trace Analysis."""

from __future__ import annotations

import os

from gpuscope import _core
from gpuscope.paths import check_writable, replacing

CHROME_SUFFIXES = (".json", ".json.gz")


def export_chrome_trace(store: _core.Store, path: str | os.PathLike[str]) -> None:
    """Write a recording as a Chrome trace; times in it are us since ``baseTimeNanoseconds``.

    Names, categories and arguments are those of torch.profiler's files, for what reads these. Driver calls stand there
    under the runtime's names (``cudaLaunchKernel``) with their own in the argument ``driver call``; their times are the
    driver call's own, which is shorter than the runtime's around it.

    Args:
        store: the recording.
        path: ``.json``, or ``.json.gz`` for about a tenth of the size.

    Raises:
        InvalidArgument: another suffix, or a recording of ``mode="aggregate"``, which has no events.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, CHROME_SUFFIXES)
    with replacing(checked) as file:
        if checked.name.lower().endswith(".gz"):
            from gpuscope.exporters.pieces import GzipStream  # brings in thread pools, which importing gpuscope spares

            with GzipStream(file.write) as stream:
                _core.write_chrome(store, stream)
        else:
            _core.write_chrome(store, file.write)
