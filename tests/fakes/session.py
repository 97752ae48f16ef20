# SPDX-License-Identifier: Apache-2.0
"""A core that collects nothing and writes down what is asked of it: everything lands in one list of words."""

from __future__ import annotations

from gpuscope import _core
from gpuscope.errors import InvalidArgument


class Log(list):
    """What happened: ``start``, ``open``, ``gpu off``, ``cut``, ``stop``, ``+name`` and ``-name`` of regions."""


class Store:
    def __init__(self, number):
        self.number = number
        self.facts = {"session.notes": "", "session.mode": "full"}

    def info(self):
        return dict(self.facts)

    def set_info(self, key, value):
        self.facts[key] = value

    def rows(self, table):
        return 0


def merge(stores):
    merged = Store(tuple(store.number for store in stores))
    for store in stores:
        merged.facts.update(store.facts)
    return merged


class Trace:
    def __init__(self, store):
        self.store = store


class Session:
    log = Log()
    options: dict
    running = None
    windows = 0
    timeout: float | None = None

    def __init__(self, **options):
        if Session.running is not None:
            raise InvalidArgument("a session is active already; stop it first")
        Session.running = self
        Session.options = options
        self.window = False
        self.log.append("start")

    def open(self, folder=""):
        assert Session.running is self
        assert not self.window
        self.window = True
        self.log.append("open")

    def switch_gpu(self, on):
        self.log.append(f"gpu {'on' if on else 'off'}")

    def switch_regions(self, on):
        self.log.append(f"regions {'on' if on else 'off'}")

    def cut(self, into=None):
        assert self.window
        self.log.append("cut")
        return self._store(into)

    def stop(self, timeout=None, into=None):
        if Session.running is not self:
            return None
        Session.running = None
        Session.timeout = timeout
        self.log.append("stop")
        return self._store(into) if self.window else None

    def _store(self, into):
        self.window = False
        Session.windows += 1
        store = Store(Session.windows)
        if into is not None:
            into.append(store)
        return store


class Region:
    """`record_function` with every entry and exit written down."""

    log = Session.log

    def __init__(self, name, args=None):
        self.name = name

    def __enter__(self):
        self.log.append(f"+{self.name}")
        return self

    def __exit__(self, *raised):
        self.log.append(f"-{self.name}")

    def __call__(self, function):
        from gpuscope.regions import decorate

        return decorate(self, function)


def install(patch=setattr):
    """Puts the fakes where the facade looks for the core; returns the log, emptied."""
    import gpuscope.profiler.facade
    import gpuscope.trace

    patch(_core, "Session", Session)
    patch(_core, "merge", merge)
    patch(_core, "environment", lambda: {"devices": []})
    patch(gpuscope.trace, "Trace", Trace)
    patch(gpuscope.profiler.facade, "record_function", Region)
    Session.running = None
    Session.windows = 0
    Session.log.clear()
    return Session.log
