# SPDX-License-Identifier: Apache-2.0
"""What frameworks can tell of themselves while a window is recorded: operators, modules, stacks, annotations."""

from __future__ import annotations

from gpuscope.integrations.rank import Rank, distributed_rank
from gpuscope.integrations.watch import Integrations, Wanted, Watch

__all__ = ["Integrations", "Rank", "Wanted", "Watch", "distributed_rank"]
