# SPDX-License-Identifier: Apache-2.0
"""Tables as pandas frames, with names in place of row numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope.results import import_pandas

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd

Array = np.ndarray[Any, Any]


def path_texts(store: _core.Store) -> list[str]:
    """Each row of the path table as "outer/inner"."""
    columns = store.columns("path")
    texts: list[str] = []
    for name, parent in zip(columns["name"].tolist(), columns["parent"].tolist(), strict=True):
        text = store.string(name)
        texts.append(f"{texts[parent]}/{text}" if parent < len(texts) else text)
    return texts


def make(store: _core.Store, table: str) -> pd.DataFrame:
    """See ``Table.to_pandas``."""
    pd = import_pandas()
    spelled = _Spelled(store, table)
    frame: dict[str, Any] = {}
    for column, values in store.columns(table).items():
        spell = spelled.rules.get(column)
        frame.update(spell(values) if spell else {column: values})
    return pd.DataFrame(frame, copy=False)


class _Spelled:
    """What the columns of one table that refer to other tables turn into."""

    def __init__(self, store: _core.Store, table: str) -> None:
        self.store = store
        self.table = table
        self.rules: dict[str, Callable[[Array], dict[str, Any]]] = {
            "variant": self.variant,
            "track": self.track,
            "call": lambda rows: {"name": self.of("call", "name", rows)},
            "thread": lambda rows: {"thread": _take(store.columns("thread")["system_id"], rows)},
            "name": lambda ids: {"name": _categories(store.strings(), ids)},
            "uuid": lambda ids: {"uuid": _categories(store.strings(), ids)},
            "library": lambda ids: {"library": _categories(store.strings(), ids)},
            "path": self.path,
        }
        if table != "region_gpu":
            self.rules["region"] = self.region
        if table == "memcpy":
            self.rules["kind"] = self.copy

    def of(self, table: str, column: str, rows: Array) -> Any:
        names = [self.store.string(name) for name in self.store.columns(table)[column].tolist()]
        return _categories(names, rows)

    def variant(self, rows: Array) -> dict[str, Any]:
        columns = self.store.columns("variant")

        def triple(what: str) -> Any:
            axes = (columns[f"{what}_{axis}"].tolist() for axis in "xyz")
            return _categories([f"{x}, {y}, {z}" for x, y, z in zip(*axes, strict=True)], rows)

        return {
            "name": _categories(_core.kernel_names(self.store), rows),
            "grid": triple("grid"),
            "block": triple("block"),
            "registers": _take(columns["registers"], rows),
            "shared_bytes": _take(columns["static_shared_bytes"] + columns["dynamic_shared_bytes"], rows),
        }

    def track(self, rows: Array) -> dict[str, Any]:
        return {column: _take(values, rows) for column, values in self.store.columns("track").items()}

    def path(self, rows: Array) -> dict[str, Any]:
        texts = _categories(path_texts(self.store), rows)
        return {"name": self.of("path", "name", rows), "path": texts} if self.table == "region" else {"path": texts}

    def region(self, rows: Array) -> dict[str, Any]:
        paths = _take(self.store.columns("region")["path"], rows)
        return {"region": self.of("path", "name", paths), "path": _categories(path_texts(self.store), paths)}

    def copy(self, kinds: Array) -> dict[str, Any]:
        columns = self.store.columns("memcpy")
        codes = np.stack([kinds, columns["source"], columns["destination"]], axis=1)
        distinct, rows = np.unique(codes, axis=0, return_inverse=True)
        return {"name": _categories([_core.copy_name(*code) for code in distinct.tolist()], rows.reshape(-1))}


def _take(values: Array, rows: Array) -> Array:
    """Values by row; rows that are not there read as the largest number of the type, as NONE does."""
    absent = np.array([np.iinfo(values.dtype).max], dtype=values.dtype)
    return np.concatenate([values, absent])[np.minimum(rows, len(values))]


def _categories(texts: Sequence[str], rows: Array) -> Any:
    """Texts by row as a categorical; rows that are not there are missing."""
    import pandas as pd

    codes: dict[str, int] = {}
    code_of = np.array([*(codes.setdefault(text, len(codes)) for text in texts), -1], dtype=np.int64)
    return pd.Categorical.from_codes(code_of[np.minimum(rows, len(code_of) - 1)], categories=pd.Index(list(codes)))
