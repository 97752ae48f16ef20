# SPDX-License-Identifier: Apache-2.0
"""Whether diagnose() names faults that were planted in programs, and what it says that mending them is worth.

The programs are those of tests/gpu/faults. Of each share of a step that the fault takes: how often the first finding is
the fault's, and how far the predicted saving is from what the mended program really saves. Of the mended programs: how
often they are said to have a fault. With ``--pairs 1`` also programs with two faults: how often both are found, in the
order of what mending each saves.

``--only R09,R15`` runs those, ``--shares 0.4,0.03`` those shares, ``--seconds 120`` begins no further program after so
long, ``--keep DIR`` saves the recordings of programs whose fault was missed or whose mended one is said to have one.
Each program has a line on stderr, and so have those that could not be made.
"""

from __future__ import annotations

import faulthandler
import linecache
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SHARES = (0.4, 0.1, 0.03)
ROUNDS, MORE_ROUNDS = 5, 10  # the latter once a program has the share that is asked for
AS_ASKED, TRIES = 0.25, 5  # of the share that is asked for, how far a program's may be; how often another is made
MADE = 1 / 3  # of the share: what mending saves at least where there is a fault to be named
ROWS, PAIRS = ("faults_missed", "savings_off", "false_alarms", "idle_unexplained"), "fault_pairs"
NEAR = 0.2  # of the realised saving
SECONDS = 330.0  # check.py ends a script after 420
STUCK_S = 90.0  # after which a program's stacks are printed, for whoever waits
EQUAL = 0.1  # of the larger: what two faults save is one as much as the other
LEAST = 0.03  # that each of two faults must save

Line = dict[str, Any]


def unexplained(found: Any) -> float:
    """The share of the GPUs' idle time in the steps that a diagnosis looked at for which there is no cause."""
    from gpuscope.steps.idle import IdleCause

    devices = found.breakdown.devices
    without = {cause.label for cause in (IdleCause.UNSEEN, IdleCause.NO_WORK_AFTER)}
    unknown = sum(part.exclusive_ns for device in devices for part in device.parts if part.name in without)
    return unknown / max(sum(device.idle_ns for device in devices), 1)


def rounds_ms(steps: Sequence[Any], calls: int, rounds: int = ROUNDS) -> list[list[float]]:
    """How long each of these takes, in turns: a list a round."""
    from faults import timed_ms

    return [[timed_ms(step, calls) for step in steps] for _ in range(rounds)]


def medians_ms(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


def savings(rounds: Sequence[Sequence[float]]) -> list[float]:
    """What the second saves of the first, round by round: what a machine does to both at a time is in neither."""
    return [1 - fast_ms / slow_ms for slow_ms, fast_ms in rounds]


def ids(finding: Any) -> list[str]:
    return [each.id for each in (finding, *finding.parts)]


def judged(fault: Any, share: float, keep: Path | None) -> Line:
    """A faulty program beside the mended one."""
    from faults import recorded

    for _ in range(TRIES):
        amount = fault.amount(share)
        faulty, clean = fault.slow(amount), fault.fast(amount)
        rounds = rounds_ms((faulty, clean), fault.calls)
        saved = statistics.median(savings(rounds))
        if abs(saved - share) <= AS_ASKED * share:
            break
        fault.learn(amount, saved)
    rounds += rounds_ms((faulty, clean), fault.calls, MORE_ROUNDS)
    saved = statistics.median(savings(rounds))
    if saved < MADE * share:
        known = {round(amount, 3): round(each, 4) for amount, each in sorted(fault.known.items())}
        raise ValueError(f"mending {amount:g} of it saves {saved:.4f} of a step, and {share:g} was wanted: {known}")
    profs = [recorded(step, fault.steps) for step in (faulty, clean)]
    began = time.perf_counter()
    found = profs[0].diagnose()
    seconds = time.perf_counter() - began
    mended = profs[1].diagnose()
    first = found.findings[0] if found.findings else None
    line = {
        "rule": fault.rule,
        "share": share,
        "first": ids(first) if first else [],
        "where": str(first.where[0]) if first and first.where else "",
        "has the line": first is not None and has_line(fault, first),
        "others": [each.id for each in found.findings[1:]],
        "small": [each.id for each in found.small],
        "predicted": None if first is None or first.saving is None else round(first.saving, 4),
        "is bound": first is not None and first.saving is None,
        "realised": round(saved, 4),
        "half of the rounds": [round(each, 4) for each in np.quantile(savings(rounds), (0.25, 0.75)).tolist()],
        "ms": [round(each, 3) for each in medians_ms(rounds)],
        "recorded ms": [step_ms(each) for each in (found, mended)],
        "amount": round(amount, 3),
        "of the mended": [each.id for each in mended.findings],
        "s to answer": round(seconds, 3),
        "idle without cause": round(unexplained(found), 4),
    }
    if keep is not None and (not named(line) or not near(line) or line["of the mended"]):
        kept(profs, keep, f"{fault.rule}-{share:g}", ("faulty", "clean"))
    return line


def has_line(fault: Any, finding: Any) -> bool:
    """Whether a place that it or what lies in it names is a line of the fault; some have none."""
    places = [place for each in (finding, *finding.parts) for place in each.where if place.file and place.line]
    return not fault.line or any(fault.line in linecache.getline(place.file, place.line) for place in places)


def step_ms(found: Any) -> float:
    """Of the steps that a diagnosis looked at."""
    return round(found.breakdown.wall_ns / 1e6 / len(found.breakdown.steps), 3)


def kept(profs: Sequence[Any], folder: Path, name: str, kinds: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prof, kind in zip(profs, kinds, strict=True):
        prof.save(folder / f"{name}-{kind}.gscope")


def named(line: Line) -> bool:
    return line["rule"] in line["first"] and line["has the line"]


def near(line: Line) -> bool:
    return line["predicted"] is not None and abs(line["predicted"] - line["realised"]) <= NEAR * abs(line["realised"])


def judged_pair(pair: Any, keep: Path | None) -> Line:
    """A program with two faults: whether both are found, the one that is worth more before the other."""
    from faults import recorded

    steps = pair.steps()
    both_ms, *without_ms = medians_ms(rounds_ms(steps, max(pair.first.calls, pair.second.calls)))
    prof = recorded(steps[0], max(pair.first.steps, pair.second.steps))
    every = [each for finding in prof.diagnose().findings for each in ids(finding)]
    rules = [pair.first.rule, pair.second.rule]
    saved = [1 - each / both_ms for each in without_ms]
    if min(saved) < LEAST:
        raise ValueError(f"one of its faults saves nothing while the other is there: {saved}")
    found = all(rule in every for rule in rules)
    is_equal = abs(saved[0] - saved[1]) <= EQUAL * max(saved)
    in_order = found and (is_equal or (every.index(rules[0]) < every.index(rules[1])) == (saved[0] > saved[1]))
    if keep is not None and not in_order:
        kept([prof], keep, "-".join(rules), ["faulty"])
    return {
        "rules": rules,
        "findings": every,
        "both": found,
        "in order": in_order,
        "realised": [round(each, 4) for each in saved],
        "ms": [round(each, 3) for each in (both_ms, *without_ms)],
    }


class Run:
    """Programs that are judged one after the other, as long as there is time; one that cannot be made is a line."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds if seconds else float("inf")
        self.failed: list[str] = []
        self.left_out: list[str] = []

    def judge(self, name: str, judge: Callable[[], Line]) -> Line | None:
        """None where there is no line."""
        if time.monotonic() > self.until:
            self.left_out.append(name)
            return None
        began = time.monotonic()
        faulthandler.dump_traceback_later(STUCK_S)
        try:
            line = judge()
        except Exception as error:
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
            say(f"{name}: NOT MADE: {type(error).__name__}: {error}")
            return None
        finally:
            faulthandler.cancel_dump_traceback_later()
        say(f"{name} [{time.monotonic() - began:.1f} s]: {line}")
        return line


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    options = measure.arguments(__doc__, only="", shares="", seconds=SECONDS, pairs=0, keep="")
    names = (*ROWS, *([PAIRS] if options.pairs else []))
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in names}})
        return
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    from faults import faults
    from faults.pairs import pairs

    wanted = set(filter(None, options.only.split(",")))
    shares = tuple(map(float, filter(None, options.shares.split(",")))) or SHARES[: 1 if options.quick else None]
    keep, run = Path(options.keep) if options.keep else None, Run(options.seconds)
    lines: list[Line] = []
    for share in shares:
        for fault in faults():
            if not wanted or fault.rule in wanted:
                line = run.judge(f"{fault.name} {share:g}", lambda: judged(fault, share, keep))  # noqa: B023 - at once
                lines += [line] if line else []
    together: list[Line] = []
    for pair in pairs() if options.pairs else ():
        if not wanted or wanted & {pair.first.rule, pair.second.rule}:
            line = run.judge(pair.name, lambda: judged_pair(pair, keep))  # noqa: B023
            together += [line] if line else []
    for share in shares:
        here = [line for line in lines if line["share"] == share]
        missed = [line["rule"] for line in here if not named(line)]
        far = [line["rule"] for line in here if named(line) and not near(line)]
        say(f"{share:g}: {len(here)} programs; missed: {missed}; predictions that are off: {far}")
    say(f"mended ones with findings: {[(each['rule'], each['share']) for each in lines if each['of the mended']]}")
    say(f"pairs that were missed: {[each['rules'] for each in together if not each['in order']]}")
    say(f"not made: {run.failed}; left out: {run.left_out}")
    measure.answer({"rows": rows(lines, together, run)})


def rows(lines: Sequence[Line], together: Sequence[Line], run: Run) -> dict[str, measure.Row]:
    nothing: measure.Row = {"skipped": "no program was judged"}
    found: dict[str, measure.Row] = dict.fromkeys(ROWS, nothing)
    if lines:
        right = [near(line) for line in lines if named(line)]
        detail = {"lines": list(lines), "not made": run.failed, "left out": run.left_out}
        found = {
            "faults_missed": {"value": round(1 - statistics.mean(map(named, lines)), 4), "detail": detail},
            "savings_off": {"value": round(1 - statistics.mean(right), 4) if right else 1.0},
            "false_alarms": {"value": round(statistics.mean(bool(line["of the mended"]) for line in lines), 4)},
            "idle_unexplained": {"value": max(line["idle without cause"] for line in lines)},
        }
    if together:
        in_order = statistics.mean(line["in order"] for line in together)
        found[PAIRS] = {"value": round(in_order, 4), "detail": {"lines": list(together)}}
    return found


if __name__ == "__main__":
    main()
