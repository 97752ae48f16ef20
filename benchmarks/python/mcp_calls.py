# SPDX-License-Identifier: Apache-2.0
"""`gpuscope mcp`: frames under a process that prints, sizes of answers, start, and faults found by a fixed policy.

The policy is open, diagnose, explain of the first finding, for each planted fault and each mended program of
tests/python/diagnosis/test_rules.py; then diagnose of healthy programs. No GPU is needed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "docs" / "recordings"
CALLS, QUICK_CALLS = 10_000, 1_000
STARTS = 9
HEALTHY = [(kernels, us) for kernels in (10, 20, 40) for us in (100, 300, 1000, 3000)]  # a GPU that is never idle
# The server, in a process in which a thread, C and every call print.
NOISY = """
import ctypes, os, sys, threading, time
from gpuscope.agent import protocol
from gpuscope import cli
libc = ctypes.CDLL(None)
def prints():
    while True:
        os.write(1, b'{"jsonrpc":"2.0","id":1,"result":{}}\\n half a line')
        libc.puts(b"from C")
        time.sleep(0.0005)
call = protocol.Tool.check
def noisy(self, given):
    print("from Python", given, flush=True)
    call(self, given)
protocol.Tool.check = noisy
serve = protocol.serve
def serves(*given):
    threading.Thread(target=prints, daemon=True).start()
    serve(*given)
protocol.serve = serves
sys.exit(cli.main(sys.argv[1:]))
"""


class Client:
    """A server's process and its pipes."""

    def __init__(self, root: Path, *options: str, source: str = "") -> None:
        start = ["-c", source] if source else ["-m", "gpuscope"]
        command = [sys.executable, *start, "mcp", "--root", str(root), *options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._number = 0
        self.broken = 0
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "b", "version": "1"})
        self.listed = self.ask("tools/list")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            try:
                answer = json.loads(line)
                if answer["id"] == self._number:
                    return answer["result"]
            except (ValueError, KeyError, TypeError):
                pass
            self.broken += 1
        raise ValueError(f"the server ended at {method}")

    def text(self, tool: str, **given: Any) -> str:
        return self.ask("tools/call", name=tool, arguments=given)["content"][0]["text"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def broken_frames(calls: int) -> tuple[int, float]:
    client = Client(RECORDINGS, source=NOISY)
    one = {"recording": "syncs.gscope"}
    tools = [("open", one), ("table", one), ("diagnose", one), ("explain", {**one, "finding": "1"}), ("doctor", {})]
    began = time.perf_counter()
    for number in range(calls):
        name, given = tools[number % len(tools)]
        client.text(name, **given)
    spent = time.perf_counter() - began
    client.close()
    return client.broken, 1e3 * spent / calls


def largest_answer() -> dict[str, int]:
    client = Client(RECORDINGS)
    sizes: dict[str, int] = {}

    def ask(name: str, **given: Any) -> str:
        text = client.text(name, **given)
        sizes[name] = max(sizes.get(name, 0), len(text.encode()))
        return text

    ask("doctor")
    ask("open")
    for path in sorted(RECORDINGS.glob("*.gscope")):
        for name in ("open", "diagnose", "table"):
            ask(name, recording=path.name)
        ask("explain", recording=path.name, finding="1")
        ask("diff", before="resnet.gscope", after=path.name)
        ask("sql", recording=path.name, query="show tables")
        for view in ("kernels", "regions", "launches", "gpu_work", "api", "info"):
            ask("sql", recording=path.name, query=f"select * from {view}")
    client.close()
    return sizes


def starts() -> list[float]:
    spent = []
    for _ in range(STARTS + 1):
        began = time.perf_counter()
        client = Client(RECORDINGS)
        spent.append(time.perf_counter() - began)
        client.close()
    return spent[1:]  # the first wrote the bytecode


def claims_of(client: Client, name: str) -> list[str]:
    """The headings of findings that are more than info."""
    lines = client.text("diagnose", recording=name).splitlines()
    return [line for line in lines if line[:1].isdigit() and line.split()[1:2] in (["CRITICAL"], ["warn"])]


def faults() -> dict[str, list[str]]:
    """Faults without their place, with it, and mended programs for which the fault, or any finding, is claimed."""
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "python" / "diagnosis")]
    import test_rules

    from fakes.loops import Loop
    from gpuscope.exporters import save

    found: dict[str, list[str]] = {"missed": [], "found": [], "false": [], "any finding": []}
    with tempfile.TemporaryDirectory() as folder:
        client = Client(Path(folder))
        for kernels, us in HEALTHY:
            loop = Loop()
            for _ in loop.steps(14):
                for _ in range(kernels):
                    loop.launch(gpu=us)
            save(loop.trace().store, Path(folder) / "healthy.gscope")
            found["false"] += [f"healthy, {kernels} x {us} us: {line}" for line in claims_of(client, "healthy.gscope")]
        for number, each in enumerate(test_rules.FAULTS):
            fault = each.values[0]
            for kind in ("fault", "clean"):
                loop = fault.make()
                for _ in loop.steps(14):
                    getattr(fault, kind)(loop)
                name = f"{kind}-{number}.gscope"
                save(loop.trace().store, Path(folder) / name)
                client.text("open", recording=name)
                claims = claims_of(client, name)
                if kind == "fault":
                    text = client.text("explain", recording=name, finding="1")
                    named = f"\n{fault.id} " in text and fault.where in text
                    found["found" if named else "missed"].append(f"{each.id} at {fault.where or 'the GPU'}")
                else:
                    if any(f" {fault.id} " in line for line in claims):
                        found["false"].append(each.id)
                    found["any finding"] += [f"{each.id}: {line[:60]}" for line in claims]
        client.close()
    return found


def main() -> None:
    options = measure.arguments(__doc__)
    calls = QUICK_CALLS if options.quick else CALLS
    broken, ms = broken_frames(calls)
    sizes = largest_answer()
    client = Client(RECORDINGS, "--allow-run")
    listed = len(json.dumps(client.listed, separators=(",", ":")))
    client.close()
    spent = starts()
    found = faults()
    measure.answer(
        {
            "rows": {
                "mcp_broken_frames": {"value": broken, "detail": {"calls": calls, "ms a call": round(ms, 2)}},
                "mcp_answer": {"value": max(sizes.values()) / 1e3, "detail": {"bytes": sizes}},
                "mcp_list": {"value": listed / 1e3},
                "mcp_start": {"value": round(statistics.median(spent), 3), "detail": {"largest": max(spent)}},
                "mcp_faults_missed": {
                    "value": len(found["missed"]),
                    "detail": {
                        "missed": found["missed"],
                        "found": len(found["found"]),
                        "with a line": sum(".py:" in each for each in found["found"]),
                    },
                },
                "mcp_false_claims": {
                    "value": len(found["false"]),
                    "detail": {
                        "of": len(found["found"] + found["missed"]) + len(HEALTHY),
                        "false": found["false"],
                        "other findings": found["any finding"],
                    },
                },
            }
        }
    )


if __name__ == "__main__":
    main()
