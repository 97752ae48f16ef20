# SPDX-License-Identifier: Apache-2.0
"""A training that is slow in several ways, and the same with these taken out: ``slow_to_fast.py slow`` or ``fast``.

The network is small. It runs with CuPy where there is a GPU, and with NumPy elsewhere. docs/tutorials/slow_to_fast.md
goes through it.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gpuscope as gs

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except Exception:  # no CuPy, or no GPU for it
    xp = np

FEATURES, HIDDEN, BATCH = 96, 64, 32
FILES = 64  # which stand for a larger data set


@dataclass(frozen=True)
class How:
    """What a training does: samples of text files or of one binary file, and the loss read in each step or seldom."""

    text: bool
    read_loss_every: int


SLOW = How(text=True, read_loss_every=1)
FAST = How(text=False, read_loss_every=8)


class Program:
    """The training: its samples on disk, its weights, and a step."""

    def __init__(self, how: How, samples: int = 1024) -> None:
        self.how = how
        self.count = samples
        self.folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        numbers = np.random.default_rng(1)
        data = numbers.standard_normal((FILES, FEATURES)).astype(np.float32)
        with gs.record_function("prepare"):
            for index, sample in enumerate(data.tolist()):
                (self.folder / f"{index}.txt").write_text("\n".join(map(str, sample)), encoding="utf-8")
            np.save(self.folder / "all.npy", data)
        self.all = np.load(self.folder / "all.npy", mmap_mode="r")
        self.first = xp.asarray(numbers.standard_normal((FEATURES, HIDDEN)) * 0.1)
        self.second = xp.asarray(numbers.standard_normal((HIDDEN, FEATURES)) * 0.1)
        self.steps = 0
        self.losses: list[float] = []

    def read_text(self, index: int) -> np.ndarray:
        """A sample of its own text file."""
        return np.loadtxt(self.folder / f"{index % FILES}.txt", dtype=np.float32)

    def read_binary(self, index: int) -> np.ndarray:
        """A sample of the binary file of all."""
        return np.asarray(self.all[index % FILES])

    def batches(self) -> Iterator[np.ndarray]:
        """The samples, a batch at a time."""
        for start in range(0, self.count - BATCH + 1, BATCH):
            with gs.record_function("load"):
                if self.how.text:
                    batch = np.stack([self.read_text(index) for index in range(start, start + BATCH)])
                else:
                    batch = self.all[np.arange(start, start + BATCH) % FILES]
            yield batch

    def step(self, batch: np.ndarray) -> None:
        """One step of an autoencoder."""
        inputs = xp.asarray(batch)
        with gs.record_function("forward"):
            hidden = xp.tanh(inputs @ self.first)
            error = hidden @ self.second - inputs
        with gs.record_function("backward"):
            second = hidden.T @ error
            first = inputs.T @ ((error @ self.second.T) * (1 - hidden**2))
        with gs.record_function("update"):
            self.first -= 1e-4 * first
            self.second -= 1e-4 * second
        if self.steps % self.how.read_loss_every == 0:
            with gs.record_function("loss"):
                self.losses.append(float((error**2).mean()))  # waits for the GPU
        self.steps += 1


def main(kind: str = "slow") -> None:
    """Trains for one pass over the samples."""
    program = Program(SLOW if kind == "slow" else FAST, samples=768)
    for batch in program.batches():
        program.step(batch)
        gs.step()
    print(f"{program.steps} steps, loss {program.losses[0]:.3f} to {program.losses[-1]:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
