# SPDX-License-Identifier: Apache-2.0
"""What changed between recordings of two versions of a program."""

from __future__ import annotations

from gpuscope.diffing.changes import Change, Promise
from gpuscope.diffing.differences import Diff, diff

__all__ = ["Change", "Diff", "Promise", "diff"]


def __dir__() -> list[str]:
    return __all__
