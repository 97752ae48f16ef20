# SPDX-License-Identifier: Apache-2.0
"""A function's GPU work as a CUDA graph of so many calls, captured by whoever hands out the memory that it uses.

A graph keeps writing to the addresses it was captured with. torch and CuPy therefore capture from pools of their own,
which live as long as the graph; for anything else the results of the captured calls are kept.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuscope import _core, errors

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuscope.streams import Stream

# torch's documents warm up on a side stream before a capture, three times as a rule:
# docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
WARM_UP_CALLS = 3

# No stream, and the handle of the legacy default stream (cuda.h): neither can be captured.
_DEFAULT_STREAMS = (0, 1)

# torch's allocators keep pointing at a graph whose capture failed.
_spoilt: list[object] = []


@dataclass
class Captured:
    """A graph of `calls` calls of a function.

    Attributes:
        calls: how many calls of the function one launch replays.
        launch: puts one replay onto the stream that the graph was captured for; does not wait.
        nodes: the graph's kernels, copies and fills; None where the framework that owns it does not say.
        by: "torch", "cupy" or "driver".
    """

    calls: int
    launch: Callable[[], object]
    nodes: int | None
    by: str
    _kept: list[object] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Lets go of the graph and its memory; the replays must have ended. Idempotent."""
        self.launch = _closed
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _EmptyGraph(Exception):  # noqa: N818
    """Nothing of the function came onto the stream that was captured."""


def capture(function: Callable[[], object], calls: int, *, stream: Stream) -> Captured:
    """Captures `calls` calls of `function` into one CUDA graph, to be replayed on `stream`.

    The function is first called a few times for real. What it raises then goes on; what fails in the capture itself
    means that it cannot be captured.

    Raises:
        InvalidArgument: `calls` is below 1.
        NotAvailable: the function waits for the GPU, uses the legacy default stream, allocates outside of a pool or
            does something else that a graph cannot hold. No stream is left capturing.
    """
    if calls < 1:
        raise errors.InvalidArgument(f"calls is {calls}; accepted are whole numbers of 1 or more")
    ways = _ways()
    for way in ways:
        try:
            with _quiet_collector():
                return way(function, calls, stream)
        except _EmptyGraph:
            continue
    raise _not_available("nothing that it does comes onto the stream that is captured")


def _ways() -> list[Callable[[Callable[[], object], int, Stream], Captured]]:
    """Who can capture here, in the order of asking."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    ways: list[Callable[[Callable[[], object], int, Stream], Captured]] = []
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        ways.append(_by_torch)
    if cupy is not None and hasattr(cupy, "cuda"):
        ways.append(_by_cupy)
    return ways or [_by_driver]


def _by_torch(function: Callable[[], object], calls: int, stream: Stream) -> Captured:
    import torch

    replayed_on = _torch_stream(stream)
    side = replayed_on if stream.handle not in _DEFAULT_STREAMS else torch.cuda.Stream(stream.device)
    pool = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(stream.device):
        side.wait_stream(replayed_on)
        with torch.cuda.stream(side):
            _call(function, WARM_UP_CALLS)
        side.synchronize()
        generator = torch.cuda.default_generators[stream.device]
        spare = generator.clone_state() if hasattr(generator, "clone_state") else None  # from torch 2.4 on
        try:
            with torch.cuda.stream(side), _warnings_of_torch():
                # Only this thread's calls can spoil the capture: other threads go on with their work.
                begin = functools.partial(graph.capture_begin, pool=pool, capture_error_mode="thread_local")
                result, _ = _record(begin, function, calls, graph.capture_end)
        except _EmptyGraph:
            raise
        except BaseException:
            _spoilt.append(graph)
            _repair_torch(stream.device, pool, spare)
            raise

    def launch() -> None:
        with torch.cuda.stream(replayed_on):
            graph.replay()

    return Captured(calls, launch, None, "torch", [graph, result, function])


def _torch_stream(stream: Stream) -> Any:
    import torch

    if stream.handle in _DEFAULT_STREAMS:
        return torch.cuda.default_stream(stream.device)
    return torch.cuda.ExternalStream(stream.handle, device=stream.device)


@contextlib.contextmanager
def _warnings_of_torch() -> Iterator[None]:
    """An empty graph, of which torch only warns, is an error here. Other warnings go on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    empty = [warning for warning in caught if "Graph is empty" in str(warning.message)]
    for warning in caught:
        if warning not in empty:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if empty:
        raise _EmptyGraph


def _repair_torch(device: int, pool: Any, spare: Any) -> None:
    """Undoes what a capture that failed leaves in torch: its allocator waits for the end, and so does its generator."""
    import torch

    with contextlib.suppress(RuntimeError, AttributeError):  # ended already, or a torch that names them otherwise
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    current = torch.cuda.default_generators[device]
    state = current.get_state()
    try:
        torch.empty(1, device=torch.device("cuda", device)).uniform_()
    except RuntimeError:
        if spare is not None:
            current.graphsafe_set_state(spare)
    else:
        current.set_state(state)


def _by_cupy(function: Callable[[], object], calls: int, stream: Stream) -> Captured:
    import cupy

    with cupy.cuda.Device(stream.device):
        if stream.handle in _DEFAULT_STREAMS:
            side, replayed_on = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null
        else:
            side = replayed_on = _cupy_stream(stream)
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc), side:
            replayed_on.synchronize()
            _call(function, WARM_UP_CALLS)
            side.synchronize()
            result, graph = _record(side.begin_capture, function, calls, side.end_capture)
    if "_node_" not in graph.debug_dot_str():  # each node has a line of its own there
        raise _EmptyGraph
    return Captured(calls, lambda: graph.launch(replayed_on), None, "cupy", [graph, pool, result, function])


def _cupy_stream(stream: Stream) -> Any:
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.handle, stream.device)  # up to CuPy 13


def _by_driver(function: Callable[[], object], calls: int, stream: Stream) -> Captured:
    if stream.handle in _DEFAULT_STREAMS:
        raise _not_available("it uses the default stream, which cannot be captured; pass a stream of its own")
    results: list[object] = []
    _call(function, WARM_UP_CALLS)
    _core.synchronize_stream(stream.handle, stream.device)
    try:
        graph = _core.Graph.capture(
            lambda: results.append(function()), calls, device=stream.device, stream=stream.handle
        )
    except Exception as error:
        raise _not_available(_first_line(error)) from error
    if graph.nodes == 0:
        raise _EmptyGraph
    return Captured(calls, graph.launch, graph.nodes, "driver", [graph, results, function])


def _call(function: Callable[[], object], calls: int) -> object:
    """The last result; each is let go of when the next call has returned, as in a loop of the user's."""
    result = None
    for _ in range(calls):
        result = function()
    return result


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """A collection may free GPU memory or destroy streams, which a thread that captures must not."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _record(
    begin: Callable[[], object], function: Callable[[], object], calls: int, end: Callable[[], Any]
) -> tuple[object, Any]:
    """The last call's result and what `end` returns; whatever happens, the stream is not left capturing."""
    try:
        begin()
    except Exception as error:
        raise _not_available(_first_line(error)) from error
    try:
        result = _call(function, calls)
    except BaseException as error:
        with contextlib.suppress(Exception):  # a capture that was spoilt says so again when it ends
            end()
        if isinstance(error, Exception):
            raise _not_available(_first_line(error)) from error
        raise
    try:
        return result, end()
    except Exception as error:
        raise _not_available(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _not_available(reason: str) -> errors.NotAvailable:
    return errors.NotAvailable(f"a CUDA graph: the function cannot be captured: {reason}")


def _closed() -> None:
    raise errors.InvalidArgument("launch is of a graph that was closed; accepted are graphs before their close()")
