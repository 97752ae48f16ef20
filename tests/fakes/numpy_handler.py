# SPDX-License-Identifier: Apache-2.0
"""A handler of memory that a program sets in NumPy (NEP 49), and NumPy's table of C functions with other versions."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np

MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CAPSULE = b"mem_handler"


class Functions(ctypes.Structure):
    _fields_ = [("ctx", ctypes.c_void_p), ("malloc", MALLOC), ("calloc", CALLOC), ("realloc", REALLOC), ("free", FREE)]


class HandlerStruct(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("functions", Functions)]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_table = _pointer((np._core if hasattr(np, "_core") else np.core)._multiarray_umath._ARRAY_API, None)
_kept = []
_slots = ctypes.cast(_table, ctypes.POINTER(ctypes.c_void_p))
_set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_slots[304])
current = ctypes.PYFUNCTYPE(ctypes.py_object)(_slots[305])


def functions_of(capsule):
    """The bytes of a handler's functions: what is exchanged is seen."""
    return ctypes.string_at(_pointer(capsule, CAPSULE) + HandlerStruct.functions.offset, ctypes.sizeof(Functions))


class Handler:
    """The C library's functions, counted."""

    def __init__(self, name=b"of the program"):
        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
        libc.malloc.argtypes, libc.calloc.argtypes = [ctypes.c_size_t], [ctypes.c_size_t, ctypes.c_size_t]
        libc.realloc.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_size_t], [ctypes.c_void_p]
        self.calls = []

        def counted(function):
            def call(_, *arguments):
                self.calls.append(function.__name__)
                return function(*arguments)

            return call

        self.struct = HandlerStruct(name, 1)
        self.struct.functions = Functions(
            0,
            MALLOC(counted(libc.malloc)),
            CALLOC(counted(libc.calloc)),
            REALLOC(counted(libc.realloc)),
            FREE(lambda _, address, size: counted(libc.free)(_, address)),
        )
        self.capsule = _new(ctypes.addressof(self.struct), CAPSULE, None)
        _kept.append(self)  # as long as arrays may be left, as what is written in C is

    @contextlib.contextmanager
    def set(self):
        """In the calling context, until the end of the block."""
        before = _set(self.capsule)
        try:
            yield self
        finally:
            _set(before)


class Table:
    """A capsule of functions that say which versions they are of."""

    def __init__(self, binary, features):
        kind = ctypes.CFUNCTYPE(ctypes.c_uint)
        self._functions = [kind(lambda: binary), kind(lambda: features)]
        self._slots = (ctypes.c_void_p * 400)()
        for slot, function in zip((0, 211), self._functions, strict=True):
            self._slots[slot] = ctypes.cast(function, ctypes.c_void_p).value
        self.capsule = _new(ctypes.addressof(self._slots), None, None)
