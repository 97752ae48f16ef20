# SPDX-License-Identifier: Apache-2.0
"""Results held against their schemas."""

from __future__ import annotations

import functools
import json
from typing import Any

from gpuscope.agent.schemas import schema_of
from gpuscope.results import Result


@functools.cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema_of(name))


def offences(name: str, result: Result | dict[str, Any]) -> list[str]:
    """Where the JSON of a result differs from its schema."""
    found = json.loads(result.to_json()) if isinstance(result, Result) else result
    errors = list(_validator(name).iter_errors(found))
    deepest = [each for error in errors for each in ((error.context or ()) or (error,))]
    return [f"{each.json_path}: {each.message[:300]}" for each in deepest]
