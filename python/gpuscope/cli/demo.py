# SPDX-License-Identifier: Apache-2.0
"""``gpuscope demo``: profiles a small training loop, on the GPU or without one."""

from __future__ import annotations

import argparse
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core
from gpuscope.cli import console
from gpuscope.cli.export import Outputs, raise_last
from gpuscope.cli.options import positive
from gpuscope.cli.report import show_audit, show_table, show_tree
from gpuscope.errors import CudaError, GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.regions import record_function

_FOLDER = "gpuscope-demo"
_BATCH, _INPUTS, _HIDDEN, _CLASSES = 128, 512, 256, 16
_ELEMENTS = 1 << 20  # of a layer on the GPU
_RATE = np.float32(1e-3)

Array = NDArray[np.float32]


class Demo:
    """Shows example results on any machine."""

    description = (
        "Profiles a small loop with data loading, forward, backward and optimizer: kernels of its own on a GPU, NumPy\n"
        "without one. Prints table, call tree and verdict, and writes demo.gscope and demo.pftrace into a folder."
    )
    examples = "  gpuscope demo\n  gpuscope demo --steps 100 -o /tmp"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("--steps", metavar="N", type=positive, default=50, help="length (default: 50)")
        parser.add_argument(
            "-o", "--output", metavar="DIR", help=f"folder of the files (default: {_FOLDER}, which is made)"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Trains, prints and writes."""
        from gpuscope.profiler import profile

        folder = options.output or _FOLDER
        if options.output is None and not os.path.lexists(folder):
            try:
                os.mkdir(folder)
            except OSError as error:
                raise GpuscopeError(f"cannot make the folder {folder}: {error.strerror}") from error
        if not os.path.isdir(folder):
            raise InvalidArgument(f"{folder!r} is no folder; -o names one that exists")
        outputs = Outputs([os.path.join(folder, f"demo{suffix}") for suffix in (".gscope", ".pftrace")])
        out = console.output()
        model = _choose_model()
        _train(model, steps=1)
        with console.errors().working(f"training {options.steps} steps on {model.device}"), profile() as profiler:
            _train(model, options.steps)
        errors = outputs.write(profiler, console.errors())

        out.sentence(("gpuscope demo", "bold"), f"  {options.steps} training steps on {model.device}")
        out.line()
        show_table(profiler, out)
        show_tree(profiler, out)
        show_audit(profiler.audit(), out)
        raise_last(errors)
        recording, trace = map(console.display, outputs.written)
        out.line()
        out.sentence("wrote two files into the folder ", (folder, "bold"))
        out.sentence(
            "open ",
            (trace, "bold"),
            " at https://ui.perfetto.dev, or print again: ",
            (f"gpuscope report {recording}", "bold"),
        )
        return 0


class _Model(Protocol):
    """A model to train; the parts of ``forward`` and ``backward`` are regions of their own."""

    device: str

    def load(self) -> None:
        """Makes the next batch."""

    def forward(self) -> None:
        """From the batch to the loss."""

    def backward(self) -> None:
        """From the loss to the gradients."""

    def update(self) -> None:
        """Moves the weights along the gradients."""

    def finish(self) -> None:
        """Waits for work still running."""


def _train(model: _Model, steps: int) -> None:
    """Trains for some steps, in regions."""
    for _ in range(steps):
        with record_function("step"):
            with record_function("data_loading"):
                model.load()
            with record_function("forward"):
                model.forward()
            with record_function("backward"):
                model.backward()
            with record_function("optimizer"):
                model.update()
    model.finish()


def _choose_model() -> _Model:
    """The GPU's if there is a usable one, else NumPy's."""
    try:
        return _GpuModel()
    except (NotAvailable, CudaError):
        return _NumpyModel()


class _NumpyModel:
    """Two dense layers on the CPU."""

    device = "the CPU (NumPy)"

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        scale = np.float32(1 / 16)
        self._weights = [self._normal(_INPUTS, _HIDDEN) * scale, self._normal(_HIDDEN, _CLASSES) * scale]
        self._gradients = [np.zeros_like(weights) for weights in self._weights]

    def load(self) -> None:
        self._batch = self._normal(_BATCH, _INPUTS)
        self._targets = np.eye(_CLASSES, dtype=np.float32)[self._random.integers(_CLASSES, size=_BATCH)]

    def forward(self) -> None:
        with record_function("layer1"):
            self._hidden = np.maximum(_product(self._batch, self._weights[0]), 0)
        with record_function("layer2"):
            scores = _product(self._hidden, self._weights[1])
        with record_function("loss"):
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            self._error: Array = odds / odds.sum(axis=1, keepdims=True) - self._targets

    def backward(self) -> None:
        with record_function("layer2"):
            self._gradients[1] = _product(self._hidden.T, self._error)
            passed_on = _product(self._error, self._weights[1].T) * (self._hidden > 0)
        with record_function("layer1"):
            self._gradients[0] = _product(self._batch.T, passed_on)

    def update(self) -> None:
        for weights, gradients in zip(self._weights, self._gradients, strict=True):
            weights -= _RATE / _BATCH * gradients

    def finish(self) -> None:
        """Nothing runs in the background."""

    def _normal(self, rows: int, columns: int) -> Array:
        return self._random.standard_normal((rows, columns), dtype=np.float32)


def _product(left: Array, right: Array) -> Array:
    # Only on this thread: a BLAS with a thread per core depends on the load of the machine.
    product: Array = np.einsum("ij,jk->ik", left, right)
    return product


class _GpuModel:
    """The work of two layers of that size on a GPU, with the core's own kernels."""

    def __init__(self) -> None:
        self._kernels = _core.Kernels()
        self.device = next(iter(_core.environment()["devices"]))["name"]
        self._random = np.random.default_rng(0)

    def load(self) -> None:
        batch = self._random.standard_normal(_ELEMENTS // 4, dtype=np.float32)
        self._kernels.copy_in(batch.nbytes)

    def forward(self) -> None:
        with record_function("layer1"):
            self._kernels.spin(400_000)
            self._kernels.saxpy(_ELEMENTS)
        with record_function("layer2"):
            self._kernels.spin(100_000)
        with record_function("loss"):
            self._kernels.reduce(_ELEMENTS)
            self._kernels.copy_out(4)

    def backward(self) -> None:
        with record_function("layer2"):
            self._kernels.spin(200_000)
        with record_function("layer1"):
            self._kernels.spin(800_000)
            self._kernels.saxpy(_ELEMENTS)

    def update(self) -> None:
        for size in (_ELEMENTS, _ELEMENTS // 16):
            self._kernels.saxpy(size)
            self._kernels.fill(4 * size)

    def finish(self) -> None:
        self._kernels.synchronize()
