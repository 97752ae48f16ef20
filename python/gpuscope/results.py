# SPDX-License-Identifier: Apache-2.0
"""The base of results: texts without control characters, and JSON. Does not import NumPy, for a fast start."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.paths import check_writable, replacing, write_text
from gpuscope.text import shown
from gpuscope.units import first_line

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd


SCHEMA_VERSION = "1.0"
"""Of the JSON of all results. The minor number grows with new keys, the major number with other changes."""


def heading(kind: str) -> dict[str, str]:
    """The first keys of the JSON of a result."""
    return {"schema": f"gpuscope.{kind}", "schema_version": SCHEMA_VERSION}


@dataclass(frozen=True)
class Abstention:
    """A question that a result leaves open.

    Attributes:
        what: the question: "verdict", or the name of a part, a rule or a figure.
        why: the reason, a sentence.
    """

    what: str
    why: str


def abstained(*found: Iterable[Abstention]) -> list[dict[str, str]] | None:
    """The open questions for the JSON of a result, each once; None if every question is answered."""
    each = dict.fromkeys(itertools.chain(*found))
    return [{"what": one.what, "why": one.why} for one in each] or None


class Result(ABC):
    """A result that can be printed and saved as JSON; its texts have no control characters."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__str__", "__repr__", "render", "report", "summary", "table"):
            if name in cls.__dict__:
                setattr(cls, name, shown(cls.__dict__[name]))

    def __repr__(self) -> str:
        """The kind of result and the first line of its text, as a dataclass would show whole arrays."""
        return f"<{type(self).__name__}: {first_line(str(self))}>"

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """The rows of `to_pandas`. A result that is not a table has one row of `to_dict`'s figures, without lists."""
        return [_flat(plain_values(self.to_dict()))]

    def to_pandas(self) -> pd.DataFrame:
        """The result as a frame: a row for each line of its table, or one of its figures; units as in `to_dict`.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame([_flat(row) for row in self._frame_rows()])

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_pandas` as a Parquet file.

        Raises:
            NotAvailable: pandas or pyarrow is not installed.
            GpuscopeError: the file cannot be written.
        """
        write_parquet(self.to_pandas(), path)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of `to_dict`; also written to `path` when one is given.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        return json_text(self.to_dict(), path)


@contextlib.contextmanager
def kept_on_error(partial: Callable[[], object]) -> Iterator[None]:
    """Attaches the partial result to an error that ends a measurement, as its attribute ``measured``.

    `partial` makes the result, or None before the first sample. If it fails, the error has no such attribute.
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

    Numbers that JSON lacks, as infinite ends of an interval, become null. Values of other types become texts.

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


def write_parquet(frame: Any, path: str | os.PathLike[str]) -> None:
    """Writes a frame or an object with an Arrow stream as a Parquet file; values of other types become texts.

    Raises:
        NotAvailable: pyarrow is not installed.
        GpuscopeError: the file cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise NotAvailable("to_parquet is not available: pyarrow is not installed; pip install pyarrow") from None
    target = check_writable(path)
    if hasattr(frame, "iloc"):
        frame = arrow.table({str(name): _arrow_column(arrow, frame[name]) for name in frame.columns})
    else:
        frame = arrow.table(frame)
    try:
        with replacing(target) as file:
            parquet.write_table(frame, file)
    except arrow.ArrowException as error:  # as structures without a field
        raise GpuscopeError(f"cannot write {target}: {first_line(str(error))}") from error


def _arrow_column(arrow: Any, column: Any) -> Any:
    try:
        return arrow.Array.from_pandas(column)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):  # as enumerations, shapes, large numbers
        return arrow.array([None if value is None else str(value) for value in column], arrow.string())


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A row without nesting: a mapping's values have both names, as "times.mean"; lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, (list, tuple)):
            flat[f"{prefix}{name}"] = value
    return flat


def plain_fields(result: Any, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass by name, except `without`, as `plain_values`."""
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
