# SPDX-License-Identifier: Apache-2.0
"""How functions are sampled, and which quantities they have, from what they were seen to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuscope.benchmarking.sampling.facts import Facts
from gpuscope.benchmarking.sampling.samples import Quantity

# Driver calls that a stream takes while it is held back: a queue holds about a thousand.
_QUEUE = 700
_QUEUE_A_CHUNK = 256
_QUEUED_AROUND_A_CALL = 4  # flushes and events
_LARGEST_CHUNK = 32
# A chunk is over soon, so that clocks are looked at often and Ctrl-C is heard.
_LONGEST_CHUNK = 0.02
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.1, 5.0


@dataclass(frozen=True)
class Plan:
    """How a chunk is sampled.

    Attributes:
        chunk: calls in one.
        gate: the stream is held back until all of the chunk is queued.
        alone: each call meets an idle GPU, as a gate and a flush on one stream do not reach work on others.
        timeout_ns: after which the gate gives up.
    """

    chunk: int
    gate: bool
    alone: bool
    timeout_ns: int

    def smaller(self) -> Plan:
        """The plan after a gate that did not hold: half as many calls behind it, and none behind it after that."""
        return replace(self, chunk=max(1, self.chunk // 2), gate=self.gate and self.chunk > 1)


def plan(facts: Sequence[Facts]) -> Plan:
    """The plan for functions that take turns."""
    launches = max(fact.launches for fact in facts)
    call_seconds = max(fact.call_seconds for fact in facts)
    by_queue = _QUEUE_A_CHUNK // (launches + _QUEUED_AROUND_A_CALL)
    by_time = int(_LONGEST_CHUNK / max(call_seconds, 1e-9))
    chunk = max(1, min(by_queue, by_time, _LARGEST_CHUNK))
    waits = any(fact.synchronizes or fact.allocates for fact in facts)
    expected = 10 * chunk * max(fact.launch_seconds for fact in facts)
    timeout = min(max(expected, _SHORTEST_TIMEOUT), _LONGEST_TIMEOUT)
    alone = any(fact.other_streams for fact in facts)
    return Plan(chunk, launches <= _QUEUE and not waits, alone, round(timeout * 1e9))


def absences(facts: Sequence[Facts], why_untraced: str) -> dict[Quantity, str]:
    """The quantities that such functions do not have, and why.

    Args:
        facts: what each function does.
        why_untraced: why there are no kernel records; empty when there are.
    """
    idle = [number for number, fact in enumerate(facts) if not fact.uses_gpu]
    if idle:
        what = "the function puts" if len(facts) == 1 else f"function {idle[0]} puts"
        why = f"{what} no work on the GPU"
        return {"kernel": why, "span": why, "stream": why, "launch": why}
    absent: dict[Quantity, str] = {}
    if why_untraced:
        absent["kernel"] = absent["span"] = why_untraced
    if any(fact.synchronizes for fact in facts):
        absent["launch"] = "the function waits for the GPU inside, so that its own time includes the GPU's"
    if any(fact.other_streams for fact in facts):
        absent["stream"] = "work runs on other streams than the one timed; give it as stream="
    elif any(fact.synchronizes for fact in facts):
        absent["stream"] = "the function waits for the GPU inside, so that stream time would include launch latency"
    elif any(fact.allocates for fact in facts):
        absent["stream"] = "the function allocates GPU memory, which may wait for the GPU, so that it cannot be gated"
    elif any(fact.launches > _QUEUE for fact in facts):
        absent["stream"] = f"more than {_QUEUE} launches a call do not fit into a stream's queue behind a gate"
    return absent
