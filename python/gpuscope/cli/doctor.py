# SPDX-License-Identifier: Apache-2.0
"""``gpuscope doctor``: checks this machine and names the fix for each problem."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.monitor.snapshot import GpuProcess, GpuState, gpu_snapshot
from gpuscope.monitor.xid import KernelXids, describe, kernel_xids
from gpuscope.system import Check, Environment, environment
from gpuscope.text import brief, wrapped

_INDENT = 20  # columns before a check's result

# The steps of the ladder: the tiers, the step's name, and the events that it records.
_STEPS = (
    (("cupti", "cupti-shared"), "CUPTI tracing", "every kernel, copy and launch, each in its region"),
    (("events",), "CUDA events", "the GPU time of each region"),
    (("cpu",), "CPU only", "the time of each region"),
)


class Doctor:
    """Prints the environment as a checklist."""

    description = (
        "Looks at driver, CUDA, CUPTI, other tools and privileges, and says how much a profiler can see here.\n"
        "Exit code 0 when CUPTI tracing works or there is no GPU, 1 when there is a GPU that cannot be traced."
    )
    examples = "  gpuscope doctor\n  gpuscope doctor --json | jq -r '.checks[] | select(.ok == false) | .fix'"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("--json", action="store_true", help="everything found, for programs")

    def run(self, options: argparse.Namespace) -> int:
        """Looks, and prints."""
        found, gpus = environment(), gpu_snapshot().gpus
        xids = kernel_xids() if gpus else KernelXids(())
        out = console.output()
        if options.json:
            warnings = {gpu.index: _warnings(gpu, xids) for gpu in gpus}
            out.line(json.dumps(found.to_dict() | {"warnings": warnings}, indent=2))
        else:
            _show(found, gpus, xids, out)
        return 1 if found.gpu_present and found.tier not in ("cupti", "cupti-shared") else 0


def _warnings(gpu: GpuState, xids: KernelXids) -> list[str]:
    """Reasons why a GPU is slower than possible, such as other users of it; this process is none."""
    users = [_user(process) for process in gpu.processes or ()]
    many = "1 process uses" if len(users) == 1 else f"{len(users)} processes use"
    errors = [
        f"{describe(xid)}, {'once' if count == 1 else f'{count} times'} since the machine started"
        for xid, count in sorted(xids.of(gpu.pci_address).items())
    ]
    return [*gpu.warnings, *errors, *([f"{many} it: {', '.join(users)}"] if users else [])]


def _user(process: GpuProcess) -> str:
    return f"{process.pid} ({brief(process.command) if process.command else 'not to be seen from here'})"


def _show(found: Environment, gpus: Sequence[GpuState], xids: KernelXids, out: Console) -> None:
    facts = (f"gpuscope {found.gpuscope_version}", f"Python {found.python_version}", found.platform)
    out.sentence((facts[0], "bold"), ("   " + "   ".join(facts[1:]), "dim"))
    out.line()
    for device in found.devices:
        memory = f"{device.memory_bytes / 2**30:.0f} GiB"
        details = f"{memory}, {device.multiprocessors} multiprocessors, compute capability {device.capability}"
        _row(out, "bold", " ", f"GPU {device.ordinal}", f"{device.name}, {details}")
    for check in found.checks:
        _show_check(check, out)
    for gpu in gpus:
        for warning in _warnings(gpu, xids):
            _row(out, "yellow", "!", f"GPU {gpu.index} (NVML)", warning)
    if xids.why:
        _row(out, "dim", " ", "errors (Xid)", f"not known: {xids.why}", dim=True)
    if found.frameworks:
        names = (
            f"{framework.name} {framework.version or ''}{' (imported)' if framework.imported else ''}"
            for framework in found.frameworks
        )
        _row(out, "", " ", "frameworks", ", ".join(names))
    out.line()
    _show_ladder(found, out)


def _show_check(check: Check, out: Console) -> None:
    style, glyph = {True: ("green", "✓"), False: ("bold red", "✗"), None: ("dim", "·")}[check.ok]
    _row(out, style, glyph, check.name, check.found, dim=check.ok is None)
    for label, text in (("", check.why), ("fix: ", check.fix)):
        if text and check.ok is not True:
            first, *rest = _lines(out, label + text)
            style = "bold" if label and check.ok is False else "dim"
            out.line(" " * _INDENT, (label, "bold"), (first.removeprefix(label), style))
            for line in rest:
                out.line(" " * _INDENT, (line, style))


def _row(out: Console, style: str, glyph: str, name: str, text: str, *, dim: bool = False) -> None:
    first, *rest = _lines(out, text)
    out.line("  ", (glyph, style), f" {name:<16}", (first, "dim" if dim else ""))
    for line in rest:
        out.line(" " * _INDENT, (line, "dim" if dim else ""))


def _lines(out: Console, text: str) -> list[str]:
    """The text next to a name, in lines that fit."""
    return wrapped(text, max(20, out.width - _INDENT)) if out.width else [text]


def _show_ladder(found: Environment, out: Console) -> None:
    for tiers, name, sees in _STEPS:
        live = found.tier in tiers
        mark = "→" if live else " "
        tail = f"  ({found.tier_reason})" if live and found.tier_reason else ""
        first, *rest = _lines(out, sees + tail)
        style = "" if live else "dim"
        out.line("  ", (mark, "bold green"), (f" {name:<16}", "bold" if live else "dim"), (first, style))
        for line in rest:
            out.line(" " * _INDENT, (line, style))
