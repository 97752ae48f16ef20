# SPDX-License-Identifier: Apache-2.0
"""What memory looked like when it ran out, written up before the error reaches the user."""

from __future__ import annotations

from gpuscope.memory.failures.report import Allocation, LivePieces, OutOfMemory
from gpuscope.memory.failures.watch import OutOfMemoryReports, report_out_of_memory

__all__ = ["Allocation", "LivePieces", "OutOfMemory", "OutOfMemoryReports", "report_out_of_memory"]
