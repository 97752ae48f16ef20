# SPDX-License-Identifier: Apache-2.0
"""What the machine's GPUs are: the facts that stay the same from run to run."""

from __future__ import annotations

from typing import Any


def stable_facts() -> dict[str, Any]:
    """The GPUs and their driver for pytest-benchmark's ``machine_info``; empty without a GPU.

    Only what changes with the machine and not with the hour: pytest-benchmark warns when any of it differs.
    """
    from gpuscope import _core

    try:
        core = _core.environment()
    except Exception:  # pytest-benchmark's run does not depend on us
        return {}
    if not core["devices"]:
        return {}
    kept = ("name", "capability", "memory_bytes")
    gpus = [{name: device[name] for name in kept} for device in core["devices"]]
    return {"gpus": gpus, "gpu_driver": core["driver_version"]}
