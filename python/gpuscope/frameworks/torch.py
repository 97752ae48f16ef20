# SPDX-License-Identifier: Apache-2.0
"""Access to an imported torch: modules, data loaders, graph capture and a matrix product."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from gpuscope.frameworks.graph_capture import (
    DEFAULT_STREAMS,
    WARM_UP_CALLS,
    Captured,
    EmptyGraph,
    call_repeatedly,
    record,
)

if TYPE_CHECKING:
    from gpuscope.streams import Stream

_OPTIONS = ("pin_memory", "drop_last", "collate_fn", "worker_init_fn", "generator", "in_order")
_WORKER_OPTIONS = ("timeout", "multiprocessing_context")


# torch's allocators keep pointing at a graph whose capture failed.
_failed_graphs: list[object] = []


class TorchEnum(Enum):
    """A copy of a torch enumeration; a member equals torch's member of that name, also in sets."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TorchEnum):
            return self is other
        named: Any = other
        return type(other).__name__ == type(self).__name__ and getattr(named, "name", None) == self.name

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        # torch's enumerations in C++ hash to their numbers, those in Python to their names.
        return hash(self._hashed)

    @property
    def _hashed(self) -> object:
        return self.value

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


E = TypeVar("E", bound=TorchEnum)


def for_torch(member: E) -> E:
    """The member for torch's code: equal to torch's own on either side of ``==``, in its lists and dicts.

    torch's C++ members differ from any other type, but Python asks a subclass on the right first. So if torch is
    imported, this is a member of a subclass of torch's enumeration.
    """
    theirs = getattr(sys.modules.get("torch.autograd"), type(member).__name__, None)
    return member if theirs is None else _for_torch(member, theirs)


@functools.cache
def _for_torch(member: E, theirs: Any) -> Any:
    methods = {
        "__eq__": lambda own, other: member == other,
        "__ne__": lambda own, other: member != other,
        "__hash__": lambda own: hash(member),
        "__str__": lambda own: str(member),
        "__reduce_ex__": lambda own, protocol: (for_torch, (member,)),
    }
    return type(theirs.__name__, (theirs,), methods)(member.value)


def process_group() -> dict[str, Any] | None:
    """The default process group, with the keys of torch's traces; None if there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized():
            return None
        group = {
            "backend": distributed.get_backend(),
            "rank": distributed.get_rank(),
            "world_size": distributed.get_world_size(),
        }
    except (AttributeError, RuntimeError, ValueError):  # torch built without it, or half imported
        return None
    with contextlib.suppress(AttributeError):  # older versions of torch
        group["pg_count"] = distributed.get_pg_count()
        group["pg_config"] = distributed.distributed_c10d._get_all_pg_configs()
    if group["backend"] == "nccl":
        group["nccl_version"] = ".".join(map(str, sys.modules["torch"].cuda.nccl.version()))
    return group


def initialized() -> Any:
    """The torch module if it has initialized CUDA; else None."""
    torch: Any = sys.modules.get("torch")
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return torch if is_initialized is not None and is_initialized() else None


def is_module(value: object) -> bool:
    """Whether it is a torch.nn.Module."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and isinstance(value, torch.nn.Module)


def device_of(module: Any) -> Any:
    """The torch.device of a module's first parameter or buffer; None when it has neither."""
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            return tensor.device
    return None


def dtype_of(module: Any) -> Any:
    """The dtype of a module's first floating-point parameter; None if there is none."""
    return next((each.dtype for each in module.parameters() if each.is_floating_point()), None)


def make_device(device: Any) -> Any:
    """A torch.device from anything that torch accepts."""
    import torch

    return torch.device(device)


@contextlib.contextmanager
def in_mode(module: Any, training: bool) -> Iterator[None]:
    """Sets training or evaluation mode; afterwards each submodule is back in its own mode.

    Evaluation also switches gradients off, by ``no_grad``: tensors that a model keeps from ``inference_mode`` could not
    be used in training afterwards.
    """
    import torch

    before = [(each, each.training) for each in module.modules()]
    module.train(training)
    try:
        with torch.set_grad_enabled(training):
            yield
    finally:
        for each, was in before:
            each.training = was


def is_loader(loader: object) -> bool:
    """Whether it is a torch.utils.data.DataLoader."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def is_dataset(value: object) -> bool:
    """Whether it is a map-style torch.utils.data.Dataset, whose samples have an index."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(value, data.Dataset) or isinstance(value, data.IterableDataset):
        return False
    return hasattr(value, "__len__")


def rebuilt(loader: Any, workers: int) -> Any:
    """The same loader with another number of workers, which are persistent."""
    import torch

    options = {name: getattr(loader, name) for name in _OPTIONS if hasattr(loader, name)}
    if loader.pin_memory and getattr(loader, "pin_memory_device", ""):
        options["pin_memory_device"] = loader.pin_memory_device
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):  # takes no samplers
        options["batch_size"] = loader.batch_size
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = loader.batch_sampler
        del options["drop_last"]  # the sampler's
    else:
        options |= {"batch_size": None, "sampler": loader.sampler}
    if workers:
        options |= {name: getattr(loader, name) for name in _WORKER_OPTIONS}
        options |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": True}
    with many_workers():
        return torch.utils.data.DataLoader(loader.dataset, num_workers=workers, **options)


@contextlib.contextmanager
def many_workers() -> Iterator[None]:
    """Suppresses torch's warning about more workers than cores, as the result has its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def shut_down(iterator: object) -> None:
    """Ends the workers of a loader's iterator, if any, and waits for them."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def uses_cuda() -> bool:
    """Whether torch is imported and has a GPU."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def capture_graph(function: Callable[[], object], calls: int, stream: Stream) -> Captured:
    """Captures calls with a memory pool for this graph; see `cuda_graphs.capture`."""
    import torch

    replayed_on = _stream_of(stream)
    side = replayed_on if stream.handle not in DEFAULT_STREAMS else torch.cuda.Stream(stream.device)
    pool = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(stream.device):
        side.wait_stream(replayed_on)
        with torch.cuda.stream(side):
            call_repeatedly(function, WARM_UP_CALLS)
        side.synchronize()
        generator = torch.cuda.default_generators[stream.device]
        spare = generator.clone_state() if hasattr(generator, "clone_state") else None  # from torch 2.4 on
        try:
            with torch.cuda.stream(side), _empty_graph_is_an_error():
                # "thread_local": calls of other threads do not break the capture.
                begin = functools.partial(graph.capture_begin, pool=pool, capture_error_mode="thread_local")
                result, _ = record(begin, function, calls, graph.capture_end)
        except EmptyGraph:
            raise
        except BaseException:
            _failed_graphs.append(graph)
            _undo_capture(stream.device, pool, spare)
            raise

    def launch() -> None:
        with torch.cuda.stream(replayed_on):
            graph.replay()

    return Captured(calls, launch, None, "torch", [graph, result, function])


def _stream_of(stream: Stream) -> Any:
    import torch

    if stream.handle in DEFAULT_STREAMS:
        return torch.cuda.default_stream(stream.device)
    return torch.cuda.ExternalStream(stream.handle, device=stream.device)


@contextlib.contextmanager
def _empty_graph_is_an_error() -> Iterator[None]:
    """Turns torch's warning about an empty graph into an error; other warnings are issued again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    empty = [warning for warning in caught if "Graph is empty" in str(warning.message)]
    for warning in caught:
        if warning not in empty:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if empty:
        raise EmptyGraph


def _undo_capture(device: int, pool: Any, spare: Any) -> None:
    """Ends a failed capture in torch's allocator and generator, which still wait for its end."""
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


@contextlib.contextmanager
def matrix_product(kind: str, size: int, device: int) -> Iterator[Callable[[], object]]:
    """A matrix product of random numbers; zeros would need less power, and so run at a higher clock."""
    import torch

    before = torch.get_float32_matmul_precision()
    with torch.cuda.device(device), torch.no_grad():
        # A separate generator, so that the program's is unchanged.
        random = torch.Generator(torch.device("cuda", device)).manual_seed(0)
        dtype = torch.float32 if kind == "tf32" else getattr(torch, kind)
        a, b = (torch.randn(size, size, device=random.device, generator=random).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        if kind == "tf32":
            torch.set_float32_matmul_precision("high")
        try:
            yield lambda: torch.mm(a, b, out=out)
            torch.cuda.synchronize(device)
        finally:
            if kind == "tf32":
                torch.set_float32_matmul_precision(before)
