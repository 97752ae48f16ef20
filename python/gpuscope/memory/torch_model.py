# SPDX-License-Identifier: Apache-2.0
"""One step of a torch model at any batch size: forward, or forward, loss, backward and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuscope.errors import InvalidArgument
from gpuscope.memory.torch_state import clear_new_gradients


def is_model(value: Any) -> bool:
    """Whether it looks like a torch.nn.Module."""
    return callable(getattr(value, "forward", None)) and callable(getattr(value, "parameters", None))


def device_of(model: Any) -> Any:
    """The torch.device of a module's first parameter or buffer; the CPU's when it has neither."""
    import torch

    for tensors in (model.parameters(), model.buffers()):
        for tensor in tensors:
            return tensor.device
    return torch.device("cpu")


class ModelStep:
    """Called with a batch size, runs one step and lets go of all that it made.

    Args:
        model: a torch.nn.Module, already where it shall run.
        make_input: gives the model's inputs for a batch size: a tensor, a tuple or list of positional arguments, or a
            mapping of keywords. They are moved to the model's device.
        training: whether to train; else forward only, in evaluation mode and without gradients.
        make_target: gives what the loss is called with besides the output.
        loss: gives the scalar to go backward from, of the output (and the target); None takes the mean of the first
            output that has gradients.
        optimizer: steps after each backward; True takes the memory that Adam would.
    """

    def __init__(
        self,
        model: Any,
        make_input: Callable[[int], Any],
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
        self._device = device_of(model)
        self._without_gradient = [each for each in model.parameters() if each.grad is None]

    def __call__(self, size: int) -> None:
        """One step.

        Raises:
            InvalidArgument: no output has gradients and there is no loss.
        """
        import torch

        self._model.train(self._training)
        inputs = moved(self._make_input(size), self._device)
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
            clear_new_gradients(self._without_gradient)

    def _like_parameters(self, torch: Any, times: int) -> list[Any]:
        """Memory as of `times` values for each value that is trained, with an estimated optimizer."""
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
        return self._loss(output, moved(self._make_target(size), self._device))


def moved(values: Any, device: Any) -> Any:
    """Inputs with every tensor in them on `device`."""
    if hasattr(values, "to") and hasattr(values, "device"):
        return values.to(device)
    if isinstance(values, Mapping):
        return {name: moved(value, device) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        return tuple(moved(value, device) for value in values)
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
