# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what ``gpuscope memory`` asks, so that its own part can be looked at without a GPU or a framework.

Imported by a ``sitecustomize`` of the command's process: they are in place before gpuscope is.
"""

from __future__ import annotations

import os
import pickle
import sys
from types import ModuleType, SimpleNamespace

BROKEN = os.environ.get("BROKEN_PART", "")
LOST = int(os.environ.get("LOST_EVENTS", "0"))


class Report(SimpleNamespace):
    """Prints its text, and is plain data."""

    def __str__(self):
        return self.text

    def to_dict(self):
        return {"text": self.text}


recording = []  # the histories that have not ended


class History:
    notes = ("a note of the history",)

    def __init__(self, max_entries, stacks):
        self.asked = (max_entries, stacks)
        self.stopped = False
        recording.append(self)

    def stop(self):
        self.stopped = True
        if self.active:
            recording.remove(self)

    @property
    def active(self):
        return self in recording

    def events(self):
        from fakes.memory_events import events

        assert self.stopped
        stacks = {1: (("load", "/home/me/data.py", 5),), 2: (("step", "/home/me/train.py", 12),)}
        rows = (("alloc", 1, 1024, {"stack": 1}), ("alloc", 2, 4096, {"stack": 2}), ("free", 2, 4096, {"stack": 2}))
        return events(*rows, frames=stacks, lost=LOST)


class Finder:
    def __init__(self):
        self.steps = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def step(self):
        self.steps += 1
        raise RuntimeError("must not reach the program")

    def report(self):
        return Report(text=f"leaks in {self.steps} steps")


class Refusals:
    def close(self):
        print("reports end", file=sys.stderr)


def record_memory_history(*, max_entries, stacks, numpy):
    print(f"history of {max_entries} stacks {stacks} numpy {numpy}", file=sys.stderr)
    return History(max_entries, stacks)


CATEGORIES = {"optimizer state": 4096, "unknown": 1024}


def category_lines(peak):
    return [f"{one.name} {one.bytes}" for one in peak.categories]


def peak_memory(events, device=None, *, steps_ns=()):
    from gpuscope.memory.history.events import Frame

    places = tuple(
        SimpleNamespace(place=Frame(f"f{n}", f"/home/me/m{n}.py", n), bytes=1024 * (5 - n), count=n, backward=False)
        for n in (1, 2, 3)
    )
    places += (SimpleNamespace(place=None, bytes=512, count=1, backward=True),)
    told = Report(
        text="the peak", device=0, bytes=10240, base_bytes=1024, since_begin_ns=2000, step=None, places=places
    )
    told.categories = tuple(SimpleNamespace(name=name, bytes=size) for name, size in CATEGORIES.items())
    if steps_ns:
        told.step = len(steps_ns) - 1
    return told


def watched(text):
    """Says whether the driver was watched when this was asked for, as it is while a history is recorded."""
    return Report(text=f"{text}, {'watched' if recording else 'not watched'}")


def memory_snapshot(device=None):
    return Report(text=watched("the snapshot").text, devices=(SimpleNamespace(device=0),))


def dump_memory_snapshot(path):
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))


def memory_stages():
    return Report(text="the stages", stages=(1,) if "STAGES" in os.environ else ())


PARTS = {
    "history.history": {"record_memory_history": record_memory_history, "MOST_ENTRIES": 100_000_000},
    "history.snapshot_writer": {"dump_memory_snapshot": dump_memory_snapshot},
    "limits.out_of_memory_reports": {"report_out_of_memory": Refusals},
    "history.leaks": {"find_leaks": Finder},
    "history.peak": {"peak_memory": peak_memory, "category_lines": category_lines},
    "usage.snapshot": {"memory_snapshot": memory_snapshot},
    "usage.ledger": {"memory_ledger": lambda device: watched(f"the ledger of GPU {device}")},
    "usage.tracking": {"memory_stages": memory_stages},
}


def install():
    """Puts the stand-ins in place of the modules; the one that BROKEN_PART names cannot be used."""

    def fails(*arguments, **options):
        raise OSError("broken")

    for name, content in PARTS.items():
        module = ModuleType(f"gpuscope.memory.{name}")
        vars(module).update(dict.fromkeys(content, fails) if name.rpartition(".")[2] == BROKEN else content)
        sys.modules[module.__name__] = module
