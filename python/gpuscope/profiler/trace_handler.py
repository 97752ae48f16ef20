# SPDX-License-Identifier: Apache-2.0
"""Ready-made callables for `on_trace_ready`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuscope import _core
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuscope.recording import Analyses


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
