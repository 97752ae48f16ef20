# SPDX-License-Identifier: Apache-2.0
"""Traces as JAX's profiler and Proton write them on a machine with a GPU."""

from __future__ import annotations

from typing import Any

STEPS = 10
GPU, HOST = 1, 701  # JAX's numbers of processes
STREAM, PYTHON = 7, 3234588627


def jax(steps: int = STEPS) -> dict[str, Any]:
    """Steps of an annotation with a call of a jitted function: a copy, a fill and two kernels on stream 7.

    After XLA's exporter: arguments are texts, derived lines (XLA Ops) repeat what the stream has, and the list ends
    with an empty event.
    """
    events: list[dict[str, Any]] = []

    def named(process: int, name: str, thread: int | None = None) -> None:
        about = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
        events.append({"ph": "M", "pid": process, "args": {"name": name}} | about)

    named(GPU, "/device:GPU:0 NVIDIA H100")
    named(HOST, "/host:CPU")
    named(GPU, "Stream #7(Compute,MemcpyH2D)", STREAM)
    named(GPU, "XLA Ops", 50)
    named(HOST, "python", PYTHON)

    def host(name: str, ts: float, dur: float, **arguments: str) -> None:
        events.append({"ph": "X", "pid": HOST, "tid": PYTHON, "ts": ts, "dur": dur, "name": name, "args": arguments})

    def gpu(name: str, ts: float, dur: float, **arguments: str) -> None:
        arguments = {"context_id": "$$1", "hlo_module": "jit_f"} | arguments
        events.append({"ph": "X", "pid": GPU, "tid": STREAM, "ts": ts, "dur": dur, "name": name, "args": arguments})
        events.append({"ph": "X", "pid": GPU, "tid": 50, "ts": ts, "dur": dur, "name": name, "args": arguments})

    for step in range(steps):
        t, number = 100.0 + 1000 * step, 10 * step
        host("train", t, 900, step_num=str(step))
        host("$loop.py:12 run", t + 1, 890)
        host("$loop.py:30 body", t + 2, 400)
        host("PjitFunction(f)", t + 5, 300)
        host("cuMemcpyHtoDAsync_v2", t + 10, 4, correlation_id=str(number + 1))
        copied = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
        gpu("MemcpyH2D", t + 20, 10.5, correlation_id=str(number + 1), memcpy_details=copied)
        host("cuMemsetD8Async", t + 15, 2, correlation_id=str(number + 2))
        gpu("Memset", t + 31, 2, correlation_id=str(number + 2), memset_details="kind:device size:512 async:1")
        for kernel, (name, length) in enumerate((("gemm_fusion_dot_3", 400.25), ("loop_tanh_fusion", 20.125))):
            host("cuLaunchKernel", t + 40 + 10 * kernel, 5, correlation_id=str(number + 3 + kernel))
            gpu(
                name,
                t + 100 + 410 * kernel,
                length,
                correlation_id=str(number + 3 + kernel),
                hlo_op=name,
                kernel_details="regs:32 static_shared:1024 dynamic_shared:16 grid:8,2,1 block:128,1,1 occ_pct:50",
            )
    metadata = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    return metadata | {"traceEvents": [*events, {}]}


def proton(steps: int = STEPS) -> dict[str, Any]:
    """Scopes "step" and "forward" on a CPU thread, two kernels each on stream 7, and arrows from scopes to kernels."""
    events: list[dict[str, Any]] = []

    def event(category: str, name: str, lane: int, ts: float, dur: float, stack: tuple[str, ...]) -> None:
        arguments = {"call_stack": ["ROOT", *stack]}
        events.append(
            {"args": arguments, "cat": category, "dur": dur, "name": name, "ph": "X", "pid": 0, "tid": lane, "ts": ts}
        )

    def arrow(number: int, scope_ts: float, kernel_ts: float) -> None:
        common = {"bp": "e", "cat": "flow", "id": number, "name": "launch->kernel", "pid": 0}
        events.append({**common, "ph": "s", "tid": 0, "ts": scope_ts})
        events.append({**common, "ph": "f", "tid": 200007, "ts": kernel_ts})

    for lane, name in ((0, "CPU Thread 0"), (200007, "GPU Stream 7")):
        events.append({"args": {"name": name}, "name": "thread_name", "ph": "M", "pid": 0, "tid": lane})
    for step in range(steps):
        t = 1000.0 * step
        event("scope", "step", 0, t, 900, ("step",))
        event("scope", "forward", 0, t + 10, 300, ("step", "forward"))
        event("kernel", "matmul_kernel", 200007, t + 100, 400.25, ("step", "forward", "matmul_kernel"))
        event("kernel", "add_kernel", 200007, t + 510, 20, ("step", "add_kernel"))
        arrow(2 * step, t + 10, t + 100)
        arrow(2 * step + 1, t, t + 510)
    return {"displayTimeUnit": "us", "traceEvents": events}


def proton_tree() -> list[dict[str, Any]]:
    """A tree of totals: two kernels in ROOT/step/forward, one of them in step too, and the GPU's facts."""

    def node(name: str, *children: dict[str, Any], ns: int = 0, count: int = 0) -> dict[str, Any]:
        metrics = {"time (ns)": ns, "count": count, "device_id": "0", "device_type": "CUDA"} if ns else {}
        return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}

    forward = node("forward", node("matmul", ns=4_000_000, count=10), node("add", ns=200_000, count=10))
    root = node("ROOT", node("step", forward, node("add", ns=100_000, count=5)))
    root["metrics"] = {"time (ns)": 0, "count": 0}
    gpu = {"arch": "90", "bus_width": 5120, "clock_rate": 1980000, "memory_clock_rate": 2619000, "num_sms": 132}
    return [root, {"CUDA": {"0": gpu}}]
