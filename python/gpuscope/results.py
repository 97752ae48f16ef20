# SPDX-License-Identifier: Apache-2.0
"""What every result has: texts without control characters, and JSON. Nothing here takes NumPy, which is 0.1 s."""

from __future__ import annotations

import contextlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from gpuscope.errors import NotAvailable
from gpuscope.paths import write_text
from gpuscope.text import shown
from gpuscope.units import first_line


class Result(ABC):
    """A result that can be printed and saved as JSON: its texts have no control characters, whatever its names have."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__str__", "__repr__", "render", "report", "summary", "table"):
            if name in cls.__dict__:
                setattr(cls, name, shown(cls.__dict__[name]))

    def __repr__(self) -> str:
        """What kind of result it is and the first line of its text: dataclasses show whole arrays."""
        return f"<{type(self).__name__}: {first_line(str(self))}>"

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of `to_dict`; also written to `path` when one is given.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        return json_text(self.to_dict(), path)


@contextlib.contextmanager
def kept_on_error(partial: Callable[[], object]) -> Iterator[None]:
    """An error that ends a measurement takes along what was measured until then, as its attribute ``measured``.

    `partial` makes the result, or None before the first sample; where it cannot, the error goes on without.
    """
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(Exception):
            if (measured := partial()) is not None:
                error.measured = measured  # type: ignore[attr-defined]
        raise


def json_text(values: Any, path: str | os.PathLike[str] | None = None) -> str:
    """The values as JSON; also written to `path` when one is given.

    Numbers that JSON lacks, as the ends of an interval that has none, become null. What is none of JSON's types is
    spelled out.

    Raises:
        GpuscopeError: the file cannot be written.
    """
    text = json.dumps(plain_values(values), allow_nan=False, default=str)
    if path is not None:
        write_text(path, text + "\n")
    return text


def import_pandas() -> Any:
    """pandas, which is optional.

    Raises:
        NotAvailable: it is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise NotAvailable("to_pandas is not available: pandas is not installed; pip install pandas") from None
    return pd


def plain_fields(result: Any, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass but `without` by name, as `plain_values`."""
    return {each.name: plain_values(getattr(result, each.name)) for each in fields(result) if each.name not in without}


def plain_values(value: Any) -> Any:
    """The value with None for each number that JSON lacks; dataclasses are dicts; arrays and tuples are lists."""
    if hasattr(value, "to_dict"):
        return plain_values(value.to_dict())
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {name: plain_values(each) for name, each in value.items()}
    if hasattr(value, "tolist") and not isinstance(value, type):  # of NumPy
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain_values(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
