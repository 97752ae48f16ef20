# SPDX-License-Identifier: Apache-2.0
"""Reads pickles of plain data without running anything: numbers, strings, bytes, lists, tuples and dicts.

The standard library's Unpickler can be kept from finding classes, but not from filling the memory over a few damaged
bytes (the index of a memo entry makes it allocate up to that index). Here there is no instruction that does more than
build a container, and every length is compared with what the file has left. Protocols 2 to 5; the instructions are
those of ``pickletools``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_UINT16, _INT32, _UINT32, _UINT64, _FLOAT = (struct.Struct(form) for form in ("<H", "<i", "<I", "<Q", ">d"))
_NEWEST = 5


class Damaged(Exception):  # noqa: N818 - the caller makes an error for users of it
    """The bytes are no pickle of plain data.

    Attributes:
        offset: where reading ended.
    """

    def __init__(self, why: str, offset: int) -> None:
        super().__init__(why)
        self.offset = offset


def loads(data: bytes) -> Any:
    """The object that `data` holds.

    Raises:
        Damaged: it is cut off or no pickle, or holds something else than plain data.
    """
    return _Reader(data).read()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}

    def read(self) -> Any:
        data = self._data
        do = _INSTRUCTIONS
        try:
            while True:
                code = data[self._at]
                self._at += 1
                if code == _STOP:
                    return self._stack.pop()
                do[code](self)
        except IndexError:  # of the data or of the stack
            at_end = self._at >= len(data)
            why = "it ends before its data does" if at_end else "an instruction lacks what it works on"
        except KeyError:
            why = "it contains something else than plain data"
        except (TypeError, AttributeError):
            why = "an instruction was given what it cannot work on"
        except UnicodeDecodeError:
            why = "a string is not UTF-8"
        except struct.error:
            why = "it ends before its data does"
        raise Damaged(why, min(self._at, len(data))) from None

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise Damaged("it ends before its data does", len(self._data))
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, form: struct.Struct) -> Any:
        value = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def marked(self) -> list[Any]:
        items = self._stack
        self._stack = self._outer.pop()
        return items

    def last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def top(self, kind: type) -> Any:
        value = self._stack[-1]
        if type(value) is not kind:
            raise TypeError
        return value

    def remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def append(self) -> None:
        value = self._stack.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        values = self.marked()
        self.top(list).extend(values)

    def set_item(self) -> None:
        self.set(self.last(2))

    def set_items(self) -> None:
        self.set(self.marked())

    def set(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        # The hash of a tuple of tuples of the same tuples would take forever.
        if len(keys) != len(values) or not all(type(key) in (str, int) for key in keys):
            raise TypeError
        self.top(dict).update(zip(keys, values, strict=True))

    def drop(self) -> None:
        self._stack.pop()

    def recall(self, index: int) -> None:
        if index not in self._memo:
            raise TypeError
        self._stack.append(self._memo[index])

    def text(self, length: int) -> None:
        self.push(self.take(length).decode("utf-8", "surrogatepass"))

    def check_protocol(self) -> None:
        if self.byte() > _NEWEST:
            raise Damaged("it is of a newer protocol than is known here", self._at)

    def long(self, length: int) -> None:
        if length < 0:
            raise TypeError
        self.push(int.from_bytes(self.take(length), "little", signed=True))


_STOP = ord(".")

_INSTRUCTIONS: dict[int, Callable[[_Reader], None]] = {
    0x80: _Reader.check_protocol,  # PROTO
    0x95: lambda r: r.number(_UINT64),  # FRAME: only says how much may be read ahead
    ord("N"): lambda r: r.push(None),
    0x88: lambda r: r.push(True),
    0x89: lambda r: r.push(False),
    ord("K"): lambda r: r.push(r.byte()),  # BININT1
    ord("M"): lambda r: r.push(r.number(_UINT16)),  # BININT2
    ord("J"): lambda r: r.push(r.number(_INT32)),  # BININT
    0x8A: lambda r: r.long(r.byte()),  # LONG1
    0x8B: lambda r: r.long(r.number(_INT32)),  # LONG4
    ord("G"): lambda r: r.push(r.number(_FLOAT)),  # BINFLOAT
    0x8C: lambda r: r.text(r.byte()),  # SHORT_BINUNICODE
    ord("X"): lambda r: r.text(r.number(_UINT32)),  # BINUNICODE
    0x8D: lambda r: r.text(r.number(_UINT64)),  # BINUNICODE8
    ord("C"): lambda r: r.push(r.take(r.byte())),  # SHORT_BINBYTES
    ord("B"): lambda r: r.push(r.take(r.number(_UINT32))),  # BINBYTES
    0x8E: lambda r: r.push(r.take(r.number(_UINT64))),  # BINBYTES8
    ord("]"): lambda r: r.push([]),
    ord("}"): lambda r: r.push({}),
    ord(")"): lambda r: r.push(()),
    ord("("): _Reader.mark,
    ord("t"): lambda r: r.push(tuple(r.marked())),
    0x85: lambda r: r.push(tuple(r.last(1))),
    0x86: lambda r: r.push(tuple(r.last(2))),
    0x87: lambda r: r.push(tuple(r.last(3))),
    ord("a"): _Reader.append,
    ord("e"): _Reader.extend,
    ord("s"): _Reader.set_item,
    ord("u"): _Reader.set_items,
    0x94: _Reader.memoize,
    ord("q"): lambda r: r.remember(r.byte()),  # BINPUT
    ord("r"): lambda r: r.remember(r.number(_UINT32)),  # LONG_BINPUT
    ord("h"): lambda r: r.recall(r.byte()),  # BINGET
    ord("j"): lambda r: r.recall(r.number(_UINT32)),  # LONG_BINGET
    ord("0"): _Reader.drop,  # POP
}
