# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas (2020-12) of results, made from their dataclasses.

A property has the name, type hint and docstring of its attribute. `_WRITTEN` has the differences between a class and
its `to_dict`: keys that are computed, renamed or left out.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.results import SCHEMA_VERSION, Abstention

Schema = dict[str, Any]

SCHEMAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "diagnosis": ("`diagnose --json`", ("diagnosis.findings.Diagnosis",)),
    "diff": ("`diff --json`, of recordings and of jobs", ("diffing.differences.Diff", "fleet.differences.JobDiff")),
    "audit": ("`prof.audit().to_json()`", ("analysis.completeness.Audit",)),
    "fleet": (
        "`fleet --json`, of a job and of a .parquet file",
        ("fleet.verdict.JobDiagnosis", "fleet.what_if.WhatIf"),
    ),
    "benchmark": (
        "`bench --json`, `bench --compare` and `bench explore`",
        (
            "benchmarking.result.BenchmarkResult",
            "benchmarking.comparison.Comparison",
            "benchmarking.explorer.Exploration",
        ),
    ),
}
"""By name: what writes such JSON, and the classes that it is one of."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NUMBER: Schema = {"type": ["number", "null"]}  # null: not known, or infinite
_TEXT: Schema = {"type": "string"}
_RECORDING: Schema = {
    "type": ["string", "null"],
    "pattern": "^sha256:[0-9a-f]{64}$",
    "description": "Hash of the content, which Trace.content_hash computes; null if nothing was recorded.",
}
_ABSTAINED: Schema = {
    "anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Abstention"}}],
    "description": "Questions that are left open, and why; null if none is.",
}


@dataclass(frozen=True)
class _Written:
    """How `to_dict` of a class differs from its attributes.

    Attributes:
        kind: of `results.heading`; None for a part of a result.
        without: attributes that are not written.
        also: further keys, with a type hint or a schema.
        takes: attributes that are written; None for all.
    """

    kind: str | None = None
    without: tuple[str, ...] = ()
    also: Mapping[str, Any] = field(default_factory=dict)
    takes: tuple[str, ...] | None = None


def _numbers(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, _NUMBER)


def _record(**properties: Any) -> Schema:
    """An object with exactly these keys, as hints or schemas."""
    return {"_record": properties}


_SECONDS = ("before_s", "after_s", "difference_s", "slower_s", "more_often_s")
_BENCHMARK = {"version": int, "abstained": _ABSTAINED}
_SIDE = ("program", "runs", "steps", "left_out", "source", "incomplete", "recordings")
_PART = _record(
    name=str, kind=str, fill=float | None, **_numbers("exclusive_s", "covered_s", "share", "p50_s", "p95_s")
)
_DRAIN = _record(call=str, where=str | None, count=int, idle_s=float)

_WRITTEN: Mapping[str, _Written] = {
    "Diagnosis": _Written(
        "diagnosis",
        without=("breakdown", "blind", "unseen_by"),
        also={
            "recording": _RECORDING,
            "abstained": _ABSTAINED,
            "verdict": Literal["findings", "fine", "not enough evidence"],
            "host_times": dict[str, float],
            "steps": "gpuscope.steps.breakdown.StepBreakdown|None",
        },
    ),
    "Finding": _Written(
        also={
            "key": {"type": "string", "pattern": "^(R[0-9]{2}-[0-9a-f]{8})?$"},
            "severity": Literal["critical", "warn", "info"],
            "evidence": list[str],
            "is_bound": {"type": "boolean", "description": "Whether no saving is known; `share` is then its bound."},
        }
    ),
    "StepBreakdown": _Written(
        takes=("left_out",),
        also={
            "steps": int,
            "source": str,
            "step": _record(**_numbers("p50_s", "p95_s")),
            "audit": str,
            **_numbers("wall_s", "all_idle_s"),
            "devices": [_record(device=int, name=str, idle_s=float, drains=[_DRAIN], parts=[_PART])],
        },
    ),
    "IdleByCounters": _Written(
        without=("sampled_ns", "idle_ns"),
        also=_numbers("sampled_s", "idle_s", "agreement_points"),
    ),
    "Diff": _Written(
        "diff",
        without=("medians",),
        also={"abstained": _ABSTAINED, "verdict": str, "summary": str, "doubts": list[str]},
    ),
    "Side": _Written(takes=_SIDE, also=_numbers("busy_s", "waited_s")),
    "Change": _Written(
        takes=("kind", "name", "was", "verdict", "count_before", "count_after", "path"),
        also={
            **_numbers(*_SECONDS),
            "interval_s": tuple[float, float],
            "where_before": str | None,
            "where_after": str | None,
        },
    ),
    "Promise": _Written(also={"is_bound": bool}),
    "JobDiff": _Written("job_diff", also={"abstained": _ABSTAINED}),
    "Audit": _Written(
        "audit",
        without=("_trace",),
        also={
            "recording": _RECORDING,
            "abstained": _ABSTAINED,
            "verdict": str,
            **_numbers("overhead_percent", "decode_ns_per_record"),
        },
    ),
    "JobDiagnosis": _Written("job", without=("abstentions",), also={"recording": _RECORDING, "abstained": _ABSTAINED}),
    "JobBreakdown": _Written(
        also={
            "extremes": {
                "type": "object",
                "additionalProperties": _record(least_rank=int, most_rank=int, **_numbers("least", "most")),
            }
        }
    ),
    "Waits": _Written(without=("instances",), also={"seen": int, "wait_share": float | None}),
    "Stragglers": _Written(also={"imbalance": float | None}),
    "WhatIf": _Written("what_if", also={"abstained": _ABSTAINED}),
    "BenchmarkResult": _Written("benchmark", without=("value",), also={**_BENCHMARK, "scope": str}),
    "Measured": _Written(without=("quantity",)),
    "Processes": _Written(also={"spread": float | None}),
    "Comparison": _Written(
        "comparison",
        also={
            **_BENCHMARK,
            "a": list[float],
            "b": list[float],
            "culprit": "gpuscope.benchmarking.comparison.Growth|None",
        },
    ),
    "Exploration": _Written(
        "exploration",
        also={
            "kind": Literal["gpuscope exploration"],
            "abstained": _ABSTAINED,
            "operations": [_record(name=str, title=str, unit=str)],
        },
    ),
    "OperationCrossover": _Written(
        without=("answer",),
        also={
            "kind": str,
            "crossings": ["gpuscope.benchmarking.crossovers.Crossing"],
            "range": tuple[float, float] | None,
            **dict.fromkeys(("sizes", "faster", "slower"), int),
            "text": str,
        },
    ),
}


def schema_of(name: str) -> Schema:
    """The JSON Schema of a result.

    Times end in `_s`, `_ms` or `_ns` and sizes in `_bytes`; `saving`, `share` and the like are fractions of 1.

    Args:
        name: one of `SCHEMAS`.

    Raises:
        InvalidArgument: there is no such schema.
    """
    if name not in SCHEMAS:
        raise InvalidArgument(f"name is {name!r}; accepted are {', '.join(SCHEMAS)}")
    what, homes = SCHEMAS[name]
    definitions = _Definitions()
    found = [definitions.of(_class(f"gpuscope.{home}")) for home in homes]
    definitions.of(Abstention)
    return {
        "$schema": _DIALECT,
        "$id": f"urn:gpuscope:{name}:{SCHEMA_VERSION}",
        "title": f"gpuscope {name}",
        "description": f"What {what} writes. Shares are fractions of 1. A number is null if it is unknown or infinite.",
        **(found[0] if len(found) == 1 else {"oneOf": found}),
        "$defs": definitions.made,
    }


def _class(home: str) -> Any:
    module, _, name = home.rpartition(".")
    return getattr(importlib.import_module(module), name)


class _Definitions:
    """The schemas of classes, each made once."""

    def __init__(self) -> None:
        self.made: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """A reference to the schema of a dataclass."""
        if kind.__name__ not in self.made:
            self.made[kind.__name__] = {}
            self.made[kind.__name__] = self._object(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _object(self, kind: Any) -> Schema:
        written = _WRITTEN.get(kind.__name__, _Written())
        meanings = _attributes(kind)
        properties: dict[str, Schema] = {}
        if written.kind is not None:
            properties["schema"] = {"const": f"gpuscope.{written.kind}"}
            properties["schema_version"] = {"type": "string", "pattern": rf"^{SCHEMA_VERSION.split('.')[0]}\.[0-9]+$"}
        hints = get_type_hints(kind, localns=_LATE)
        left_out = {*written.without, *(each.name for each in dataclasses.fields(kind) if each.name.startswith("_"))}
        for each in dataclasses.fields(kind):
            if each.name in left_out or (written.takes is not None and each.name not in written.takes):
                continue
            properties[each.name] = self.type(hints[each.name])
        properties |= {name: self.type(hint) for name, hint in written.also.items()}
        for name, value in properties.items():
            if name in meanings and "description" not in value:
                properties[name] = {**value, "description": meanings[name]}
        return _closed(properties)

    def type(self, hint: Any) -> Schema:
        """The schema of the JSON of values with a type hint."""
        if isinstance(hint, dict):
            if "_record" in hint:
                return _closed({name: self.type(each) for name, each in hint["_record"].items()})
            more = hint.get("additionalProperties")
            return {**hint, "additionalProperties": self.type(more)} if isinstance(more, dict) else hint
        if isinstance(hint, list):
            return {"type": "array", "items": self.type(hint[0])}
        if isinstance(hint, str):  # a class by its path, or None
            found = self.of(_class(hint.removesuffix("|None")))
            return {"anyOf": [found, {"type": "null"}]} if hint.endswith("|None") else found
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        if dataclasses.is_dataclass(hint):
            return self.of(hint)
        if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
            return {"type": "integer"}
        return self._generic(get_origin(hint), get_args(hint))

    def _generic(self, origin: Any, inner: Sequence[Any]) -> Schema:
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.type(each) for each in inner]}
        if origin is np.ndarray:
            element = (*get_args(inner[1]), None)[0]
            kinds: list[tuple[Any, Schema]] = [
                (np.bool_, {"type": "boolean"}),
                (np.integer, {"type": "integer"}),
                (np.floating, _NUMBER),
            ]
            known = (schema for kind, schema in kinds if isinstance(element, type) and issubclass(element, kind))
            return {"type": "array", "items": next(known, {"type": ["number", "boolean", "string", "null"]})}
        if origin is tuple and inner[-1] is not ...:
            size = len(inner)
            items = [self.type(each) for each in inner]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": size, "maxItems": size}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.type(inner[1])}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.type(inner[0])}
        return {}


_LATE: dict[str, Any] = {"Trace": object}
_PLAIN: Mapping[Any, Schema] = {
    str: _TEXT,
    int: {"type": "integer"},
    float: _NUMBER,
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}


def _closed(properties: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _attributes(kind: Any) -> dict[str, str]:
    """The meanings of attributes, from the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        _, _, text = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("Attributes:\n")
        for name, meaning in re.findall(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", text, re.MULTILINE):
            found[name] = " ".join(meaning.split())
    return found
