# SPDX-License-Identifier: Apache-2.0
"""Results as JSON: every sample, and a version so that files outlive this one."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.rates import Rate
from gpuscope.benchmarking.result import BenchmarkResult, Measured
from gpuscope.benchmarking.sampling.kernel_times import Kernel
from gpuscope.errors import InvalidArgument
from gpuscope.results import json_text

SCHEMA = "gpuscope.benchmark"
VERSION = 1

_PLAIN = ("name", "quantity", "absent", "converged", "stopped", "cold", "bytes", "flops", "environment", "seconds")


def to_dict(result: BenchmarkResult) -> dict[str, Any]:
    """The result as JSON types; None stands for nan and for the ends of an interval that has none."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **{name: getattr(result, name) for name in _PLAIN},
        "quantities": {name: _measured(measured) for name, measured in result.quantities.items()},
        "kernels": [asdict(kernel) for kernel in result.kernels],
        "warnings": list(result.warnings),
        "clock_hz": _numbers(result.clock_hz),
        "throttled": result.throttled.tolist(),
        "capped": result.capped.tolist(),
        "rates": [{name: _number(value) for name, value in asdict(rate).items()} for rate in result.rates],
    }


def to_json(result: BenchmarkResult, path: str | os.PathLike[str] | None) -> str:
    """The result as text; what the environment holds beyond JSON's types is spelled out."""
    return json_text(to_dict(result), path)


def from_json(source: str | os.PathLike[str]) -> BenchmarkResult:
    """A result of the text, or of the file that has this name."""
    content = _content(source)
    if content.get("schema") != SCHEMA:
        raise InvalidArgument("source is no benchmark of gpuscope; accepted is what to_json() gave")
    version = content.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise InvalidArgument(f"source has version {version!r}; accepted are versions up to {VERSION}")
    try:
        result = BenchmarkResult(
            **{name: content[name] for name in _PLAIN},
            quantities={name: _read_measured(name, row) for name, row in content["quantities"].items()},
            kernels=tuple(Kernel(**row) for row in content["kernels"]),
            warnings=tuple(content["warnings"]),
            clock_hz=_array(content["clock_hz"]),
            throttled=np.array(content["throttled"], bool),
            capped=np.array(content["capped"], bool),
            rates=tuple(Rate(**row) for row in content["rates"]),
        )
        rows = len(result.headline.samples)
        for column in ("clock_hz", "throttled", "capped"):
            if getattr(result, column).shape not in ((rows,), (0,)):
                raise ValueError(f"{column} does not have {rows} entries")
        return result
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"source is a damaged benchmark ({type(error).__name__}: {error})") from error


def _content(source: str | os.PathLike[str]) -> dict[str, Any]:
    if isinstance(source, str) and source.lstrip().startswith("{"):
        text = source
    else:
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, TypeError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise InvalidArgument(f"source is {str(source)[:80]!r}, which cannot be read: {what}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"source is no JSON ({error}); accepted is what to_json() gave") from error
    return content if isinstance(content, dict) else {}


def _measured(measured: Measured) -> dict[str, Any]:
    return {
        "samples": _numbers(measured.samples),
        "valid": measured.valid.tolist(),
        "estimate": {name: _number(value) for name, value in asdict(measured.estimate).items()},
    }


def _read_measured(name: str, row: dict[str, Any]) -> Measured:
    estimate = dict(row["estimate"])
    estimate["low"] = -math.inf if estimate["low"] is None else estimate["low"]
    estimate["high"] = math.inf if estimate["high"] is None else estimate["high"]
    samples, valid = _array(row["samples"]), np.array(row["valid"], bool)
    if samples.shape != valid.shape:
        raise ValueError(f"{name} has {len(samples)} samples and {len(valid)} marks")
    return Measured(name, samples, valid, stats.Estimate(**estimate))


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _array(values: list[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], np.float64)
