# SPDX-License-Identifier: Apache-2.0
"""Recordings as files: Chrome JSON, Perfetto traces, gpuscope's own .gscope, memory timelines, and pages."""

from __future__ import annotations

from gpuscope.exporters.trace_files import export_chrome_trace, export_perfetto, save

__all__ = ["export_chrome_trace", "export_perfetto", "save"]
