# SPDX-License-Identifier: Apache-2.0
"""Which kernel made a call slower."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.benchmarking.text import seconds
from gpuscope.pytest_plugin.texts import change


def culprit(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Names the kernel whose time per call grew most, and says which kernels came and went.

    Args:
        then: name, count and seconds, per call, of each kernel of the baseline.
        now: the same of this run.
    """
    if not then or not now:
        return "which kernel grew is not known: there are no kernel times"
    before = {kernel["name"]: kernel for kernel in then}
    after = {kernel["name"]: kernel for kernel in now}
    came = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    growth = {name: after[name]["seconds"] - before[name]["seconds"] for name in after if name in before}
    worst = max(growth, key=lambda name: growth[name], default="")
    grown = [(growth[worst], _grown(before[worst], after[worst]))] if worst and growth[worst] > 0 else []
    for name in came:
        time = after[name]["seconds"]
        grown.append((time, f"new kernel {name} takes {seconds(time)} per call"))
    sentences = [sentence for _, sentence in sorted(grown, key=lambda pair: -pair[0])]
    if not sentences:
        sentences.append("no kernel grew: the time lies between the kernels or on the host")
    sentences += [f"kernel {name} is gone ({seconds(before[name]['seconds'])} per call)" for name in gone]
    return "; ".join(sentences)


def _grown(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    ratio = new["seconds"] / old["seconds"] if old["seconds"] else math.inf
    runs = "" if old["count"] == new["count"] else f", {new['count']:g} runs instead of {old['count']:g}"
    return (
        f"kernel {new['name']} takes {seconds(new['seconds'])} per call, {seconds(old['seconds'])} before"
        f" ({change(ratio)}{runs})"
    )
