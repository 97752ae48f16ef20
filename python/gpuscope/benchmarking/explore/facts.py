# SPDX-License-Identifier: Apache-2.0
"""The machine and the versions that figures belong to."""

from __future__ import annotations

import os

import numpy as np

from gpuscope.benchmarking.explore.arrays import Backend
from gpuscope.system import environment as look

# What libraries read the number of their threads from.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def environment(cpu: Backend, gpu: Backend | None) -> dict[str, str]:
    """Names and what they stand for, in words; what is not known is left out."""
    found = look()
    memory = f"{found.devices[0].memory_bytes / 2**30:.0f} GiB" if gpu is not None and found.devices else None
    facts = {
        "GPU": gpu.device if gpu is not None else None,
        "GPU memory": memory,
        "GPU library": gpu.library if gpu is not None else None,
        "driver": found.driver_version,
        "CUDA of the driver": found.cuda_version,
        "CPU": cpu.device,
        "CPU library": cpu.library,
        "threads": ", ".join(f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ) or None,
        "NumPy": np.__version__,
        "Python": found.python_version,
        "system": found.platform,
        "gpuscope": found.gpuscope_version,
    }
    return {name: text for name, text in facts.items() if text}
