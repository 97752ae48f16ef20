# SPDX-License-Identifier: Apache-2.0
"""What the user and the profiler have to say about a recording; it travels inside it, as rows of `info`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from gpuscope import _core

_NOTES = "session.notes"


class Annotations:
    """Facts for every recording of one profiler, those made already and those to come."""

    def __init__(self) -> None:
        self._facts: dict[str, str] = {}
        self._notes: list[str] = []
        self._latest: _core.Store | None = None

    def add(self, key: str, value: str) -> None:
        """Adds text under ``metadata.<key>``, as the JSON value that trace formats want.

        Raises:
            InvalidArgument: the key or the value is no text.
        """
        if not isinstance(value, str):
            raise InvalidArgument(f"add_metadata: value is {value!r}; accepted is text")
        self._set(key, json.dumps(value))

    def add_json(self, key: str, value: str) -> None:
        """Adds JSON under ``metadata.<key>``.

        Raises:
            InvalidArgument: the key is no text, or the value is not JSON.
        """
        try:
            json.loads(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"add_metadata_json: value is {value!r}; accepted is text in JSON") from error
        self._set(key, value)

    def note(self, sentence: str) -> bool:
        """Adds a sentence to the notes of the audit; returns whether it is new."""
        if sentence in self._notes:
            return False
        self._notes.append(sentence)
        return True

    def write_to(self, store: _core.Store, **facts: str) -> None:
        """Puts everything said so far, and `facts`, into a recording; what is added later follows."""
        notes = [*store.info().get(_NOTES, "").split("\n"), *self._notes]
        store.set_info(_NOTES, "\n".join(dict.fromkeys(filter(None, notes))))
        for key, value in (self._facts | facts).items():
            store.set_info(key, value)
        self._latest = store

    def _set(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not key:
            raise InvalidArgument(f"metadata: key is {key!r}; accepted is text that is not empty")
        self._facts[f"metadata.{key}"] = value
        if self._latest is not None:
            self._latest.set_info(f"metadata.{key}", value)
