# SPDX-License-Identifier: Apache-2.0
"""A torch model is afterwards as it was before: mode, parameters, gradients, buffers and the optimizer's state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gpuscope.errors import NotAvailable
from gpuscope.memory.host import host_room
from gpuscope.units import format_bytes

HOST_SHARE = 0.8  # of the host's free memory that copies may take


@contextmanager
def kept_state(model: Any, optimizer: Any = None) -> Iterator[None]:
    """Keeps a module's state, and with an optimizer that steps also the parameters and its state.

    Copies wait in the host's memory, so that they take none of the GPU's; values are put back in place, so that whoever
    refers to a tensor still does.

    Raises:
        NotAvailable: the host has no memory for the copies.
    """
    import torch

    parameters = {id(each): each for each in model.parameters()}
    if optimizer is not None:
        parameters |= {id(each): each for group in optimizer.param_groups for each in group["params"]}
    values = list(parameters.values()) if optimizer is not None else []
    values += [each.grad for each in parameters.values() if each.grad is not None]
    buffers = [
        (module._buffers, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    values += [buffer for _, _, buffer in buffers if not buffer.is_inference()]
    _check_room(values, optimizer)
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


def clear_new_gradients(parameters: list[Any]) -> None:
    """Lets go of these parameters' gradients."""
    for parameter in parameters:
        parameter.grad = None


def _check_room(values: list[Any], optimizer: Any) -> None:
    state = [] if optimizer is None else [each for one in optimizer.state.values() for each in one.values()]
    needed = sum(each.numel() * each.element_size() for each in (*values, *state) if hasattr(each, "element_size"))
    free, _ = host_room()
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
