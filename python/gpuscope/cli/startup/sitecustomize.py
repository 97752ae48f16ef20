# SPDX-License-Identifier: Apache-2.0
"""Records a process from its start, if a recorded process started it: this folder is then the first of PYTHONPATH."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def _run_next() -> None:
    """Imports the sitecustomize that this one hides, if there is one."""
    own = sys.modules.pop("sitecustomize")
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


try:
    _run_next()
finally:
    with contextlib.suppress(Exception):  # another interpreter may lack gpuscope, and the program runs without it
        importlib.import_module("gpuscope.cli.children").begin()
