# SPDX-License-Identifier: Apache-2.0
"""The rules by family: pure functions from the columns of a recording to what costs its time."""

from __future__ import annotations

from gpuscope.diagnosis.rules import (
    clocks,
    copies,
    counted,
    host,
    inputs,
    kernels,
    launches,
    machine,
    products,
    scheduling,
    waits,
)
from gpuscope.diagnosis.rules.rule import Cause, Rule

RULES: tuple[Rule, ...] = (
    *inputs.RULES,
    *copies.RULES,
    *waits.RULES,
    *host.RULES,
    *scheduling.RULES,
    *launches.RULES,
    *kernels.RULES,
    *products.RULES,
    *counted.RULES,
    *clocks.RULES,
    *machine.RULES,
)
"""All rules. They are independent: they may run in any order, and on several threads at once."""

__all__ = ["RULES", "Cause", "Rule"]
