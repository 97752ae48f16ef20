# SPDX-License-Identifier: Apache-2.0
"""The what-if analysis of three real jobs beside the published answers of StragglerAnalysis (OSDI '25). Needs no GPU.

The folder with trace-, meta-, result-, mw- and ms- files of the jobs AR, ST and SE, from
https://github.com/ByteDance-Seed/StragglerAnalysis, is given by --folder or in GPUSCOPE_STRAGGLER_TRACES.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import measure

VARIABLE = "GPUSCOPE_STRAGGLER_TRACES"
CAUSES = {"AR": "slow ranks", "ST": "uneven stages", "SE": "sequence lengths"}
LARGEST = "AR"
ROWS = ("what_if_answers", "what_if_causes", "what_if_seconds", "what_if_memory")
MOST_ROUNDS = 9


def why_not(folder: str) -> str:
    if reason := measure.why_not_available():
        return reason
    try:
        import pyarrow.compute  # with all that reading needs, so that no time below has imports
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return "pyarrow is not installed"
    files = [f"{kind}-{job}" for job in CAUSES for kind in ("trace", "result", "mw", "ms")]
    names = {path.stem for path in Path(folder).glob("*")} if folder else set()
    return "" if names >= set(files) else f"no traces of StragglerAnalysis: --folder or {VARIABLE}"


def measured(folder: Path, quick: bool) -> dict[str, Any]:
    from gpuscope.fleet.dependencies import Operations
    from gpuscope.fleet.what_if import WhatIf, what_if
    from gpuscope.readers.straggler import read_straggler

    def analyse(job: str) -> WhatIf:
        return what_if(Operations.of_trace(read_straggler(folder / f"trace-{job}.parquet")))

    def published(kind: str, job: str, key: str) -> float:
        return float(json.loads((folder / f"{kind}-{job}.json").read_text())[key])

    before = measure.resident_bytes()
    found = {LARGEST: analyse(LARGEST)}
    most_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e6
    spent = []
    for _ in range(3 if quick else MOST_ROUNDS):
        began = time.process_time()
        analyse(LARGEST)
        spent.append(time.process_time() - began)
    found |= {job: analyse(job) for job in CAUSES if job != LARGEST}
    detail = {}
    for job, each in found.items():
        slowdown, ranks, stage = (
            published(*asked) for asked in (("result", job, "blocking_slowdown"), ("mw", job, "Mw"), ("ms", job, "Ms"))
        )
        detail[job] = {
            "S": [each.slowdown, slowdown],
            "M_W": [each.by_ranks, ranks],
            "M_S": [each.by_stage, stage],
            "cause": each.cause,
            "off": max(
                abs(each.slowdown / slowdown - 1), abs((each.by_ranks or 0) - ranks), abs((each.by_stage or 0) - stage)
            ),
        }
    return {
        "what_if_answers": {"value": round(max(each["off"] for each in detail.values()), 4), "detail": detail},
        "what_if_causes": {"value": sum(each.cause != CAUSES[job] for job, each in found.items())},
        "what_if_seconds": {"value": round(min(spent), 3), "detail": {"rounds": [round(each, 3) for each in spent]}},
        "what_if_memory": {"value": round(most_mb, 1)},
    }


def main() -> None:
    options = measure.arguments(__doc__, folder=os.environ.get(VARIABLE, ""))
    if reason := why_not(options.folder):
        measure.answer({"rows": {name: {"skipped": reason} for name in ROWS}})
        return
    measure.answer({"rows": measured(Path(options.folder), options.quick)})


if __name__ == "__main__":
    main()
