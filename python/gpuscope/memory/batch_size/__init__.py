# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits in memory."""

from __future__ import annotations

from gpuscope.memory.batch_size.find import find_max_batch_size
from gpuscope.memory.batch_size.result import MaxBatchSize
from gpuscope.memory.batch_size.tries import Try

__all__ = ["MaxBatchSize", "Try", "find_max_batch_size"]
