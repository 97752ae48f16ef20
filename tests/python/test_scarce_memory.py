# SPDX-License-Identifier: Apache-2.0
"""Regions where there is no memory left for them: the program gets MemoryError, and goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpuscope as gs
from gpuscope import _core, cli
from gpuscope.cli.doctor import Doctor
from gpuscope.errors import GpuscopeError, GpuscopeWarning, NotAvailable

SCRIPT = """
import resource, gpuscope as gs
# Names by the hundred thousand, made before: to learn one takes memory of the core alone.
texts = [f"a region whose name is longer than a string without memory of its own {number}" for number in range(100_000)]
regions = [gs.record_function(text) for text in texts]
failed = 0
with gs.profile(max_bytes="64MB") as prof:
    with gs.record_function("before"):
        pass
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    for region in regions:
        try:
            with region:
                pass
        except MemoryError:
            failed += 1
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(failed > 0)
with gs.profile() as prof, gs.record_function("after"):
    pass
print({row.key for row in prof.key_averages()})
"""


FEW = """
import resource, sys
import gpuscope as gs
from gpuscope.errors import NotAvailable
gs.profile(activities=["CPU"]), gs.GPUMonitor(None)  # all that is imported
limits = resource.RLIMIT_AS, resource.RLIM_INFINITY
def limit(more):  # a thread's stack takes 8 MB
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(limits[0], (size + more, limits[1]))
"""


@pytest.mark.parametrize("call", ["gs.profile(activities=['CPU']).start()", "gs.GPUMonitor(None).start()"])
def test_where_no_thread_can_be_had_one_sentence_says_so(call):
    script = f"""{FEW}
limit(4 << 20)
try:
    {call}
except NotAvailable as error:
    print(error)
resource.setrlimit(limits[0], (limits[1], limits[1]))
with gs.profile(activities=["CPU"]) as prof, gs.record_function("after"):
    pass
print([row.key for row in prof.key_averages()])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "is not available: the system gives this process no further thread; raise the limit of" in done.stdout
    assert (done.stdout.count("\n"), done.stdout.splitlines()[-1], done.stderr) == (2, "['after']", "")


def test_a_recording_goes_on_without_samples_of_python_where_their_thread_cannot_be_had(monkeypatch):
    def refuse(interval_ns):
        raise NotAvailable("samples of Python are not available: the system gives this process no further thread")

    monkeypatch.setattr(_core.PythonSampler, "start", refuse)
    with (
        pytest.warns(GpuscopeWarning, match="python_samples: .* no further thread"),
        gs.profile(python_samples=True) as prof,
        gs.record_function("work"),
    ):
        pass
    assert "work" in {row.key for row in prof.key_averages()}


@pytest.mark.parametrize("error", [MemoryError(), ImportError("libx.so: failed to map segment from shared object")])
def test_a_command_without_memory_says_one_sentence(monkeypatch, capsys, error):
    def fail(options):
        raise error

    monkeypatch.setattr(Doctor, "run", staticmethod(fail))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith("gpuscope: there is not enough memory: ")


def test_a_start_without_memory_is_an_error_of_gpuscope_and_leaves_the_way_free(monkeypatch):
    prof = gs.profile()
    with monkeypatch.context() as patch:
        patch.setattr(_core.Session, "open", lambda session, folder: bytearray(1 << 62))
        with pytest.raises(GpuscopeError, match="there is not enough memory") as raised:
            prof.start()
    assert isinstance(raised.value, MemoryError)
    with gs.profile() as prof, gs.record_function("after"):
        pass
    assert "after" in {row.key for row in prof.key_averages()}


def test_a_region_without_memory_for_its_name_raises_memory_error():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n{'after'}\n", "")
