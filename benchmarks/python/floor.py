# SPDX-License-Identifier: Apache-2.0
"""Bare CUPTI kernel records: builds cupti_floor.cpp where it is needed, and speaks to it through ctypes.

GPUSCOPE_FLOOR names a library built earlier; check.py builds it once and sets this for its scripts.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "cpp" / "cupti_floor.cpp"
VARIABLE = "GPUSCOPE_FLOOR"


class FloorMissing(Exception):  # noqa: N818 - an answer rather than an error
    """The floor cannot be built or opened here; the message says why."""


def header_folders() -> list[str]:
    """Where cupti.h and what it includes lie: the wheels first, then a toolkit."""
    candidates: list[Path] = []
    try:
        import nvidia

        for base in map(Path, nvidia.__path__):
            candidates += [base / "cu13" / "include", *sorted(base.glob("cuda_*/include"))]
    except ImportError:
        pass
    for home in filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        candidates += [Path(home) / "include", Path(home) / "extras" / "CUPTI" / "include"]
    return [str(path) for path in candidates if path.is_dir()]


def build(folder: Path) -> Path:
    """Compiles the floor into a folder and returns the library."""
    library = folder / "libcupti_floor.so"
    command = [
        "g++",
        "-O2",
        "-std=c++20",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        str(SOURCE),
        "-o",
        str(library),
        "-ldl",
    ]
    command += [f"-isystem{path}" for path in header_folders()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise FloorMissing("the CUPTI floor needs g++, which is not here") from None
    if done.returncode != 0:
        raise FloorMissing(f"the CUPTI floor does not compile: {done.stderr.strip().splitlines()[0][:200]}")
    return library


def cupti_path() -> str:
    """The library to open where none is loaded yet."""
    from gpuscope import _core

    found = _core.environment()["cupti_path"] if hasattr(_core, "environment") else None
    return found or "libcupti.so.13"


class Floor:
    """CUPTI's CONCURRENT_KERNEL records, delivered and dropped. Not while a profiler records in this process."""

    def __init__(self) -> None:
        given = os.environ.get(VARIABLE)
        with tempfile.TemporaryDirectory() as folder:
            library = ctypes.CDLL(given or str(build(Path(folder))))
        library.floor_open.restype = ctypes.c_char_p
        library.floor_open.argtypes = [ctypes.c_char_p]
        library.floor_records.restype = ctypes.c_uint64
        library.floor_refused.restype = ctypes.c_uint64
        why = library.floor_open(cupti_path().encode())
        if why:
            raise FloorMissing(f"the CUPTI floor cannot be opened: {why.decode()}")
        self._library = library

    def start(self) -> None:
        self._check("start", self._library.floor_start())

    def stop(self) -> None:
        self._check("stop", self._library.floor_stop())

    def records(self) -> int:
        """Records delivered so far."""
        return int(self._library.floor_records())

    def refused(self) -> int:
        """Buffers that ran out; more than none makes the floor too low."""
        return int(self._library.floor_refused())

    @staticmethod
    def _check(what: str, code: int) -> None:
        if code != 0:
            raise FloorMissing(f"the CUPTI floor cannot {what}: CUPTI error {code}")
