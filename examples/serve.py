# SPDX-License-Identifier: Apache-2.0
"""A server of requests that is recorded all the time, in bounded memory, and saves what led to a slow request.

``serve.py [--requests 200] [-o slow.gscope]``. With asyncio alone; work of a GPU is recorded where there is any.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import gpuscope as gs

LIMIT_S = 0.05


@gs.record_function("tokenize")
def tokenize(text: str) -> list[int]:
    """Work of the CPU."""
    return [hash(word) for word in text.split()]


@gs.record_function("request")
async def answer(number: int) -> int:
    """A request; each hundredth waits for something slow."""
    tokens = tokenize("how long does this take " * 20)
    with gs.record_function("model"):
        await asyncio.sleep(0.1 if number % 100 == 99 else random.uniform(0.0005, 0.001))
    return len(tokens)


async def serve(requests: int) -> list[int]:
    """Answers requests, eight at a time. Returns the numbers of the slow ones."""
    slow = []

    async def timed(number: int) -> None:
        began = time.perf_counter()
        await answer(number)
        if time.perf_counter() - began > LIMIT_S:
            gs.mark(f"slow request {number}")
            slow.append(number)

    for first in range(0, requests, 8):
        await asyncio.gather(*(timed(number) for number in range(first, min(first + 8, requests))))
    return slow


def main() -> None:
    """Serves under a ring that keeps the last five seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("-o", "--output", default="slow.gscope")
    options = parser.parse_args()
    with gs.profile(mode="ring", ring_seconds=5, max_bytes="64MB") as prof:
        slow = asyncio.run(serve(options.requests))
    print(prof.key_averages().table(sort_by="cpu_time_total", row_limit=6))
    if slow:
        prof.save(options.output)
        print(f"requests {', '.join(map(str, slow))} took more than {LIMIT_S} s; see {options.output}")


if __name__ == "__main__":
    main()
