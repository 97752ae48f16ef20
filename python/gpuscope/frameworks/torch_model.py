# SPDX-License-Identifier: Apache-2.0
"""Runs steps of a torch model at any batch size, and restores the model and the random generators."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.frameworks import torch as torch_framework
from gpuscope.units import format_bytes

HOST_SHARE = 0.8  # of the host's free memory that copies may take


def is_model(value: Any) -> bool:
    """Whether it looks like a torch.nn.Module."""
    return callable(getattr(value, "forward", None)) and callable(getattr(value, "parameters", None))


class ModelStep:
    """Runs one step per call, given a batch size, and keeps no results.

    Args:
        model: a torch.nn.Module, already on `device`.
        make_input: returns the model's inputs for a batch size: a tensor, a tuple or list of positional arguments, or a
            mapping of keywords. They are moved to `device`.
        device: the torch.device of the model.
        training: whether to train; else only forward, in evaluation mode without gradients.
        make_target: returns the loss's second argument for a batch size.
        loss: returns the scalar for the backward pass, of the output (and the target); None takes the mean of the first
            output that has gradients.
        optimizer: steps after each backward; True allocates the memory of Adam.
    """

    def __init__(
        self,
        model: Any,
        make_input: Callable[[int], Any],
        device: Any,
        *,
        training: bool = False,
        make_target: Callable[[int], Any] | None = None,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
    ) -> None:
        self._model = model
        self._make_input = make_input
        self._training = training
        self._make_target = make_target
        self._loss = loss
        self._optimizer = optimizer
        self._device = device
        self._without_gradient = [each for each in model.parameters() if each.grad is None]

    def __call__(self, size: int) -> None:
        """One step.

        Raises:
            InvalidArgument: no output has gradients and there is no loss.
        """
        import torch

        self._model.train(self._training)
        inputs = move(self._make_input(size), self._device)
        if not self._training:
            with torch.no_grad():
                _called(self._model, inputs)
            return
        moments = self._like_parameters(torch, 2)
        try:
            with torch.enable_grad():
                self._loss_of(_called(self._model, inputs), size).backward()
            if self._optimizer is True:
                self._like_parameters(torch, 1)  # the square root that Adam divides by
            elif self._optimizer is not None:
                self._optimizer.step()
        finally:
            del moments
            for parameter in self._without_gradient:
                parameter.grad = None

    def _like_parameters(self, torch: Any, times: int) -> list[Any]:
        """`times` uninitialized copies of each trained parameter, if the optimizer is estimated."""
        if self._optimizer is not True:
            return []
        trained = [each for each in self._model.parameters() if each.requires_grad]
        return [torch.empty_like(each) for each in trained for _ in range(times)]

    def _loss_of(self, output: Any, size: int) -> Any:
        if self._loss is None:
            tensor = _trainable(output)
            if tensor is None:
                raise InvalidArgument(
                    "loss is missing; the model's output has no tensor with gradients to go back from"
                )
            return tensor.float().mean()
        if self._make_target is None:
            return self._loss(output)
        return self._loss(output, move(self._make_target(size), self._device))


def move(values: Any, device: Any) -> Any:
    """Inputs with every tensor in them on `device`."""
    if hasattr(values, "to") and hasattr(values, "device"):
        return values.to(device)
    if isinstance(values, Mapping):
        return {name: move(value, device) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        return tuple(move(value, device) for value in values)
    return values


def _called(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _trainable(output: Any) -> Any:
    """The first tensor in an output that has gradients; None without one."""
    if hasattr(output, "requires_grad"):
        return output if output.requires_grad and output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, Sequence) and not isinstance(output, (str, bytes)):
        return next((found for found in map(_trainable, output) if found is not None), None)
    return None


@contextmanager
def kept_state(model: Any, optimizer: Any = None, host_free: int | None = None) -> Iterator[None]:
    """Restores a module's state afterwards, and with an optimizer also the parameters and its state.

    Copies are in host memory, to take none of the GPU's. Values are restored in place, so that references to tensors
    remain valid. Raises NotAvailable if the copies do not fit into `host_free` bytes.
    """
    import torch

    parameters = {id(each): each for each in model.parameters()}
    if optimizer is not None:
        parameters |= {id(each): each for group in optimizer.param_groups for each in group["params"]}
    values = list(parameters.values()) if optimizer is not None else []
    values += [each.grad for each in parameters.values() if each.grad is not None]
    buffers = [(each._buffers, name, buffer) for each in model.modules() for name, buffer in each._buffers.items()]
    values += [buffer for _, _, buffer in buffers if buffer is not None and not buffer.is_inference()]
    _check_host_memory(values, optimizer, host_free)
    gradients = [(each, each.grad) for each in parameters.values()]
    modes = [(each, each.training) for each in model.modules()]
    with ExitStack() as put_back:
        for module, mode in modes:
            put_back.callback(setattr, module, "training", mode)
        for parameter, gradient in gradients:
            put_back.callback(setattr, parameter, "grad", gradient)
        for home, name, buffer in buffers:
            put_back.callback(home.__setitem__, name, buffer)
        for value in values:
            put_back.callback(_copier(torch, value))
        if optimizer is not None:
            put_back.callback(_optimizer_copier(torch, optimizer))
        yield


def _check_host_memory(values: list[Any], optimizer: Any, free: int | None) -> None:
    state = [] if optimizer is None else [each for one in optimizer.state.values() for each in one.values()]
    needed = sum(each.numel() * each.element_size() for each in (*values, *state) if hasattr(each, "element_size"))
    if free is not None and needed > HOST_SHARE * free:
        advice = "" if optimizer is None else "; optimizer=True reserves what Adam would take and changes nothing"
        raise NotAvailable(
            "find_max_batch_size is not available for this model: copies of its state, to be put back afterwards, "
            f"take {format_bytes(needed)} and the host has {format_bytes(free)}{advice}"
        )


def _copier(torch: Any, value: Any) -> Callable[[], None]:
    saved = value.detach().to("cpu", copy=True)

    def put_back() -> None:
        with torch.no_grad():
            value.detach().copy_(saved)

    return put_back


def _optimizer_copier(torch: Any, optimizer: Any) -> Callable[[], None]:
    def copied(value: Any) -> Any:
        return value.detach().to("cpu", copy=True) if torch.is_tensor(value) else copy.deepcopy(value)

    states = {key: {name: copied(value) for name, value in one.items()} for key, one in optimizer.state.items()}
    groups = [{name: value for name, value in one.items() if name != "params"} for one in optimizer.param_groups]
    settings = [{name: copied(value) for name, value in one.items()} for one in groups]

    def put_back() -> None:
        for key in list(optimizer.state):
            if key not in states:
                del optimizer.state[key]
                continue
            _restore(torch, optimizer.state[key], states[key])
        for group, saved in zip(optimizer.param_groups, settings, strict=True):
            _restore(torch, group, saved)

    return put_back


def _restore(torch: Any, state: dict[str, Any], saved: dict[str, Any]) -> None:
    for name in [name for name in state if name not in saved and name != "params"]:
        del state[name]
    for name, value in saved.items():
        if torch.is_tensor(value) and torch.is_tensor(state.get(name)):
            with torch.no_grad():
                state[name].copy_(value)
        else:
            state[name] = value


@contextmanager
def kept_random() -> Iterator[None]:
    """Restores the state of Python's, NumPy's and torch's global generators, torch's on host and GPUs."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    python = random.getstate()
    arrays = numpy.random.get_state() if numpy is not None else None
    host = torch.get_rng_state() if torch is not None else None
    gpus = torch.cuda.get_rng_state_all() if torch_framework.initialized() is not None else []
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(host)
        if torch is not None and gpus:
            torch.cuda.set_rng_state_all(gpus)
