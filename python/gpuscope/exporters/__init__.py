# SPDX-License-Identifier: Apache-2.0
"""Recordings as files: Chrome JSON, Perfetto traces, memory timelines and gpuscope's own .gscope."""

from __future__ import annotations

from gpuscope.exporters.chrome import CHROME_SUFFIXES, export_chrome_trace
from gpuscope.exporters.gscope import GSCOPE_SUFFIXES, load_store, save
from gpuscope.exporters.perfetto import PERFETTO_SUFFIXES, export_perfetto
from gpuscope.paths import check_writable

__all__ = [
    "CHROME_SUFFIXES",
    "GSCOPE_SUFFIXES",
    "PERFETTO_SUFFIXES",
    "check_writable",
    "export_chrome_trace",
    "export_perfetto",
    "load_store",
    "save",
]
