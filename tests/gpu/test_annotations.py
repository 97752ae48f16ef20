# SPDX-License-Identifier: Apache-2.0
"""What libraries on a GPU say through NVTX; each in a process of its own, for a library looks for its tool once."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

LOOK = """
def path(trace, row):
    at, names = trace.regions.path[row], []
    while at != 0xFFFFFFFF:
        domain = trace.string(trace.paths.domain[at])
        names.insert(0, (domain + ":" if domain else "") + trace.string(trace.paths.name[at]))
        at = trace.paths.parent[at]
    return "/".join(names)

def kernels_in(trace, name):
    rows = [row for row in range(len(trace.regions)) if name in path(trace, row)]
    return sum(int((trace.kernels.region == row).sum()) for row in rows)
"""


def run(code: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "NVTX_INJECTION64_PATH"}
    command = [sys.executable, "-c", LOOK + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@needs("torch")
def test_torchs_ranges_hold_their_kernels():
    out = run("""
        import torch, gpuscope as gs
        x = torch.ones(1 << 12, device="cuda")
        with gs.profile() as prof, torch.cuda.nvtx.range("doubling"):
            for _ in range(10):
                x = x * 2
            torch.cuda.synchronize()
        print(kernels_in(prof.trace, "doubling"), prof.audit().complete)
    """)
    assert out == ["10 True"]


@needs("cupy")
def test_cupys_ranges_hold_their_kernels():
    out = run("""
        import cupy, gpuscope as gs
        from cupyx.profiler import time_range
        x = cupy.ones(1 << 12, dtype="float32")
        with gs.profile() as prof, time_range("doubling"):
            for _ in range(10):
                x = x * 2
            cupy.cuda.Device().synchronize()
        print(kernels_in(prof.trace, "doubling"))
    """)
    assert out == ["10"]


@needs("torch")
def test_collectives_of_nccl_tell_their_size():
    out = run("""
        import os, torch, torch.distributed as dist, gpuscope as gs
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        with gs.profile() as prof:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
            dist.all_reduce(torch.ones(1024, device="cuda"))
            torch.cuda.synchronize()
        dist.destroy_process_group()
        trace = prof.trace
        rows = [row for row in range(len(trace.regions)) if path(trace, row).endswith("NCCL:ncclAllReduce")]
        given = {
            trace.string(trace.payloads.name[at]): int(trace.payloads.value[at])
            for at, region in enumerate(trace.payloads.region) if region in rows
        }
        print(len(rows), given["Message size [bytes]"])
    """)
    assert out == ["1 4096"]


@needs("jax")
def test_modules_of_xla_are_ranges_in_its_domain():
    out = run("""
        import gpuscope as gs
        with gs.profile() as prof:
            import jax, jax.numpy as jnp
            jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((64, 64))).block_until_ready()
        print(jax.default_backend(), any("TSL:" in path(prof.trace, row) for row in range(len(prof.trace.regions))))
    """)
    if out[0].startswith("cpu"):
        pytest.skip("this JAX knows no GPU")
    assert out == ["gpu True"]
