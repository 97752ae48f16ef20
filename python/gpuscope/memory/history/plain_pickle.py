# SPDX-License-Identifier: Apache-2.0
"""Reads pickles of plain data from untrusted sources. Nothing in them is run.

The standard library's Unpickler can be restricted to no classes, but a few damaged bytes can make it fill the memory.
It allocates a memo up to any index, and a buffer of any length before reading it.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

_NEWEST_PROTOCOL = 5
_LONGEST_NUMBER = 16  # bytes; addresses have eight
_DEEPEST = 1_000  # open marks; torch's files have ten
_MOST_WAITING = 100_000  # values not yet in a container; the standard library's pickler leaves a thousand
_LARGEST_KEY = 1 << 16  # of a dict; hashes of larger numbers can be made to collide
_SMALL = 1 << 16  # shorter lengths are not checked against the rest of the file


class Damaged(Exception):  # noqa: N818 - the caller converts it to an error for users
    """The bytes are no pickle of plain data. Reading stopped at `offset`."""

    def __init__(self, why: str, offset: int) -> None:
        super().__init__(why)
        self.offset = offset


def load_plain_pickle(file: BinaryIO) -> Any:
    """Loads a pickle of protocol 2 to 5 that contains only numbers, strings, bytes, lists, tuples and dicts.

    Time and memory are proportional to the bytes read. Reading stops at the first invalid byte.

    Raises:
        Damaged: it is cut off, no pickle, or contains other than plain data.
    """
    return _Unpickler(file).load()


class _Wrong(Exception):  # noqa: N818
    """An instruction cannot be executed."""


class _Unpickler:
    """The pickle stack machine, limited to instructions for plain data."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        read, instructions = self._file.read, self._instructions()
        try:
            while (code := read(1)) != pickle.STOP:
                act = instructions.get(code)
                if act is None:
                    raise _Wrong("it contains something else than plain data" if code else "it ends before its data")
                act()
                if len(self._stack) > _MOST_WAITING:
                    raise _Wrong("it has more values than its containers take")
            return self._stack.pop()
        except _Wrong as error:
            raise Damaged(str(error), self._file.tell()) from None
        except (IndexError, KeyError):
            raise Damaged("an instruction lacks its operand", self._file.tell()) from None
        except ValueError as error:
            raise Damaged(f"it has an invalid text ({error})", self._file.tell()) from None

    def _instructions(self) -> dict[bytes, Callable[[], None]]:
        push = self._push
        return {
            pickle.PROTO: self._protocol,
            pickle.FRAME: self._frame,
            pickle.NONE: lambda: push(None),
            pickle.NEWTRUE: lambda: push(True),
            pickle.NEWFALSE: lambda: push(False),
            pickle.EMPTY_LIST: lambda: push([]),
            pickle.EMPTY_DICT: lambda: push({}),
            pickle.EMPTY_TUPLE: lambda: push(()),
            pickle.BININT: lambda: push(int.from_bytes(self._take(4), "little", signed=True)),
            pickle.BININT1: lambda: push(self._number(1)),
            pickle.BININT2: lambda: push(self._number(2)),
            pickle.LONG1: lambda: self._long(1),
            pickle.LONG4: lambda: self._long(4),
            pickle.BINFLOAT: lambda: push(struct.unpack(">d", self._take(8))[0]),
            pickle.SHORT_BINUNICODE: lambda: self._text(1),
            pickle.BINUNICODE: lambda: self._text(4),
            pickle.BINUNICODE8: lambda: self._text(8),
            pickle.SHORT_BINBYTES: lambda: push(self._take(self._number(1))),
            pickle.BINBYTES: lambda: push(self._take(self._number(4))),
            pickle.BINBYTES8: lambda: push(self._take(self._number(8))),
            pickle.TUPLE1: lambda: push(tuple(self._pop(1))),
            pickle.TUPLE2: lambda: push(tuple(self._pop(2))),
            pickle.TUPLE3: lambda: push(tuple(self._pop(3))),
            pickle.MARK: self._mark,
            pickle.TUPLE: lambda: push(tuple(self._pop_mark())),
            pickle.APPEND: lambda: self._append(self._pop(1)),
            pickle.APPENDS: lambda: self._append(self._pop_mark()),
            pickle.SETITEM: lambda: self._set_items(self._pop(2)),
            pickle.SETITEMS: lambda: self._set_items(self._pop_mark()),
            pickle.MEMOIZE: lambda: self._remember(len(self._memo)),
            pickle.BINPUT: lambda: self._remember(self._number(1)),
            pickle.LONG_BINPUT: lambda: self._remember(self._number(4)),
            pickle.BINGET: lambda: push(self._memo[self._number(1)]),
            pickle.LONG_BINGET: lambda: push(self._memo[self._number(4)]),
            pickle.POP: self._drop,
        }

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _drop(self) -> None:
        self._pop(1)

    def _mark(self) -> None:
        if len(self._outer) == _DEEPEST:
            raise _Wrong(f"its data is nested more than {_DEEPEST:,} deep")
        self._outer.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _append(self, items: list[Any]) -> None:
        container = self._stack[-1]
        if type(container) is not list:
            raise _Wrong("it appends to something that is no list")
        container.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        keys, container = items[::2], self._stack[-1]
        # Hashing nested tuples that repeat the same tuple would take exponential time.
        if len(items) % 2 or not all(type(key) is str or _is_small(key) for key in keys):
            raise _Wrong("the keys of a dict are something else than plain data")
        if type(container) is not dict:
            raise _Wrong("it sets entries of something that is no dict")
        container.update(zip(keys, items[1::2], strict=True))

    def _remember(self, at: int) -> None:
        self._memo[at] = self._stack[-1]

    def _protocol(self) -> None:
        if self._number(1) > _NEWEST_PROTOCOL:
            raise _Wrong("it is of a newer protocol than is known here")

    def _take(self, count: int) -> bytes:
        if count > _SMALL and count > self._size - self._file.tell():
            raise _Wrong("it ends before its data")
        data = self._file.read(count) or b""
        if len(data) < count:
            raise _Wrong("it ends before its data")
        return data

    def _frame(self) -> None:
        self._take(8)  # the frame's length, not needed

    def _number(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _long(self, count: int) -> None:
        length = self._number(count)
        if length > _LONGEST_NUMBER:
            raise _Wrong(f"it has a number of {length:,} bytes")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def _text(self, count: int) -> None:
        self._push(self._take(self._number(count)).decode("utf-8", "surrogatepass"))


def _is_small(key: Any) -> bool:
    return type(key) is int and 0 <= key < _LARGEST_KEY
