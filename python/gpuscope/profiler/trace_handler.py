# SPDX-License-Identifier: Apache-2.0
"""Ready-made callables that write each window: for `on_trace_ready`, and for ``profile(path=...)``."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING
from weakref import ref

from gpuscope import _core
from gpuscope.distributed import distributed_rank, recording_name
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gpuscope.recording import Analyses, Recording

_RECORDING = ".gscope"
_FIRST_SEGMENT, _LAST_SEGMENT = 0, 99_999_999  # of facts, before and after those of the core


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[Analyses], None]:
    """Writes every recording into a folder as TensorBoard's profile plugin expects.

    The folder is created, and found writable, now: before the run.

    Args:
        dir_name: the folder; files are named ``{worker}.{time in ns}.pt.trace.json``, plus ``.gz``.
        worker_name: unique among the processes of a distributed run; host name and process id when left out.
        use_gzip: compress.
        use_python_export: chooses between two writers in torch.profiler; here there is one.

    Raises:
        InvalidArgument: `worker_name` is no file name, or `dir_name` cannot be a folder.
        GpuscopeError: the folder cannot be written to.
    """
    if worker_name and os.path.basename(worker_name) != worker_name:
        raise InvalidArgument(f"worker_name is {worker_name!r}; accepted is a name without a path separator")
    suffix = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
    folder = os.fspath(dir_name)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"dir_name is {folder!r}, where no folder can be made ({error.strerror}); accepted is a writable folder"
        ) from error

    def name() -> str:
        worker = worker_name or f"{os.uname().nodename}_{os.getpid()}"
        return os.path.join(folder, f"{worker}.{_core.realtime_ns()}{suffix}")

    from gpuscope.paths import check_writable  # pathlib is a fifth of what `import gpuscope` may take

    check_writable(name())

    def write(recording: Analyses) -> None:
        recording.export_chrome_trace(name())

    return write


class FolderWriter:
    """Writes recordings into a folder as ``rank-00341.gscope``, by the rank that the recording has; 0 without one.

    The folder is created, and found writable, now: before the run. A file that exists is kept: the next one gets the
    first free number, as ``rank-00341-2.gscope``.

    Raises:
        InvalidArgument: `path` is not a path, or the name of a recording.
        GpuscopeError: the folder cannot be made or written to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # pathlib is a fifth of what `import gpuscope` may take
        from gpuscope.paths import as_path, check_writable, free_number, make_folder, numbered

        self._folder = as_path(path).absolute()  # the program may change its directory
        if self._folder.suffix == _RECORDING:
            raise InvalidArgument(f"path is {str(path)!r}; accepted is a folder, for files named by rank")
        make_folder(str(self._folder))
        rank = distributed_rank()
        first = self._folder / recording_name(rank.rank if rank else 0)
        check_writable(numbered(first, free_number(first, _RECORDING), _RECORDING))
        self._target = first
        self._of: ref[Recording] | None = None  # the recording that has the name `_target`

    def write(self, recording: Recording) -> None:
        """Writes a recording. The same one again replaces its file. A failed write is a warning."""
        from gpuscope.paths import claim, drop_claim, numbered
        from gpuscope.trace import number_of

        try:
            if self._of is None or self._of() is not recording:
                name = self._folder / recording_name(number_of(recording.trace.info, "process.rank"))
                self._target = numbered(name, claim(name, _RECORDING, 1), _RECORDING)
                self._of = ref(recording)
            try:
                recording.save(self._target)
            except GpuscopeError:
                drop_claim(self._target)
                raise
        except (OSError, GpuscopeError) as error:
            warnings.warn(f"the recording could not be written: {error}", GpuscopeWarning, stacklevel=2)


class SpoolWriter(FolderWriter):
    """Makes a folder of segments for each window, as ``rank-00341.gscope/``, into which the core writes its rows.

    Arguments and errors are those of `FolderWriter`.

    Attributes:
        latest: the folder of the latest window; None before the first.
    """

    latest: Path | None = None

    def begin(self, facts: Mapping[str, str]) -> str:
        """Makes the folder of a window with the facts that are known, and returns its path.

        Raises:
            GpuscopeError: it cannot be made.
        """
        from gpuscope.paths import claim_folder, make_folder

        make_folder(str(self._folder))
        self.latest = claim_folder(self._folder / recording_name(int(facts.get("process.rank", 0))), _RECORDING)
        # The core adds these at the end, which a process that is killed does not reach.
        known = {"process.id": str(os.getpid()), "process.host": os.uname().nodename, **facts}
        self._write_facts(_FIRST_SEGMENT, _core.make_store({}, [""], list(known.items())))
        return str(self.latest)

    def end(self, last: _core.Store, facts: Mapping[str, str]) -> _core.Store:
        """Writes the facts and names of threads, and returns all rows of the window. `last`: those of its last segment.

        What cannot be written or read is a warning. The result is then `last`.
        """
        import numpy as np

        threads = last.columns("thread")
        ids, names = np.unique(threads["name"], return_inverse=True)
        texts = ["", *(last.string(int(each)) for each in ids)]
        columns = {"system_id": threads["system_id"], "name": names.astype(np.uint32) + np.uint32(1)}
        error = last.info().get("session.spool_error")
        try:
            self._write_facts(_LAST_SEGMENT, _core.make_store({"thread": columns}, texts, list(facts.items())))
            return _core.read_segments(str(self.latest), last if error else None)
        except (OSError, GpuscopeError) as failed:
            error = error or str(failed)
            return last
        finally:
            if error:
                sentence = f"the recording is not complete on the disk: {error}"
                warnings.warn(sentence, GpuscopeWarning, stacklevel=2)

    def _write_facts(self, number: int, store: _core.Store) -> None:
        from gpuscope.paths import replacing

        assert self.latest is not None
        with replacing(self.latest / f"segment-{number:08d}{_RECORDING}") as file:
            _core.write_gscope(store, file.write)
