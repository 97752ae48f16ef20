# SPDX-License-Identifier: Apache-2.0
"""Which kernel made a call slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.benchmark.text import seconds
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
    growth = {name: kernel["seconds"] - before.get(name, {"seconds": 0.0})["seconds"] for name, kernel in after.items()}
    worst = max(growth, key=lambda name: growth[name])
    sentences = []
    if growth[worst] <= 0:
        sentences.append("no kernel grew: the time lies between the kernels or on the host")
    elif worst in before:
        old, new = before[worst], after[worst]
        runs = "" if old["count"] == new["count"] else f", {new['count']:g} runs instead of {old['count']:g}"
        ratio = new["seconds"] / old["seconds"] if old["seconds"] else float("inf")
        sentences.append(
            f"kernel {worst} takes {seconds(new['seconds'])} per call, {seconds(old['seconds'])} before"
            f" ({change(ratio)}{runs})"
        )
    came = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    sentences += [f"new kernel {name} takes {seconds(after[name]['seconds'])} per call" for name in came]
    sentences += [f"kernel {name} is gone ({seconds(before[name]['seconds'])} per call)" for name in gone]
    return "; ".join(sentences)
