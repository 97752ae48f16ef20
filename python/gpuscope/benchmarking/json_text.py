# SPDX-License-Identifier: Apache-2.0
"""Results as JSON text, in a file where one is wanted."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError


def json_text(values: Any, path: str | os.PathLike[str] | None = None, *, indent: int | None = 1) -> str:
    """The values as JSON; also written to `path` when one is given.

    Numbers that JSON lacks, as the ends of an interval that has none, become null. What is none of JSON's types is
    spelled out.

    Raises:
        GpuscopeError: the file cannot be written.
    """
    text = json.dumps(_finite(values), indent=indent, allow_nan=False, default=str)
    if path is not None:
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise GpuscopeError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error
    return text


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _finite(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
