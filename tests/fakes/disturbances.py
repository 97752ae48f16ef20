# SPDX-License-Identifier: Apache-2.0
"""Tests that look at the clock, on a machine whose CPUs others use too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def least_disturbed(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test of which one run of five has to pass.

    For what is right as long as no thread waits long for a CPU: a sampler that got none for a while has not seen what
    ran meanwhile, and what took long did not take long by itself. What is wrong by itself fails each time.
    """

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> Any:
        for _ in range(4):
            try:
                return test(*arguments, **named)
            except Exception:
                continue
        return test(*arguments, **named)

    return run
