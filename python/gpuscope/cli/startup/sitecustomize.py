# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: I002 - older versions do not know that import
"""Records a process from its start, if a recorded process started it: this folder is then the first of PYTHONPATH.

Interpreters of any version read it, and run on without a recording where gpuscope is not installed.
"""

import importlib
import os
import sys

_own = sys.modules.pop("sitecustomize", None)
sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
try:
    importlib.import_module("sitecustomize")  # the one that this hides, if there is one
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _own)  # type: ignore[arg-type]
    try:
        from gpuscope.cli.children import begin

        begin()
    except Exception:  # another interpreter may lack gpuscope
        pass
