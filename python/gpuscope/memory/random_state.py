# SPDX-License-Identifier: Apache-2.0
"""Random generators are afterwards as they were before."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuscope.memory.batch_tries import torch_on_gpu


@contextmanager
def kept_random() -> Iterator[None]:
    """Keeps the state of Python's, NumPy's and torch's global generators, the latter on host and GPUs."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    python = random.getstate()
    arrays = numpy.random.get_state() if numpy is not None else None
    host = torch.get_rng_state() if torch is not None else None
    gpus = torch.cuda.get_rng_state_all() if torch_on_gpu() is not None else []
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
