# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own: what torch.profiler and NVTX leave behind lasts as long as their process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with this folder's modules to import and nothing to fetch from a network."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"} | more


def run(*command: object, seconds: int = 240, **more: str) -> str:
    """What a program printed; the test fails with the end of its errors when it does."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def run_code(code: str, **more: str) -> str:
    return run(sys.executable, "-c", code, **more)


@cache
def facts(script: str, *options: str, **more: str) -> dict[str, Any]:
    """The last line of JSON that a script of this folder printed, run once; ``{"skip": why}`` skips the test."""
    return last_facts(run(sys.executable, SCRIPTS / script, *options, **more))


def last_facts(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert lines, f"no facts were printed: {output[-1000:]}"
    found: dict[str, Any] = json.loads(lines[-1])
    if "skip" in found:
        pytest.skip(found["skip"])
    return found


def run_ranks(world: int, script: str, *options: object) -> list[dict[str, Any]]:
    """The last line of JSON of each of these processes of a script of this folder, started as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "NCCL_NVLS_ENABLE": "0"}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), *map(str, options)],
            env=environment(**meeting, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        ended = [process.communicate(timeout=150) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, ended, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [last_facts(output) for output, _ in ended]
