# SPDX-License-Identifier: Apache-2.0
"""Memory over time as one interactive HTML page that needs nothing but a browser."""

from __future__ import annotations

from gpuscope.exporters.memory_page.page import export_memory_page

__all__ = ["export_memory_page"]
