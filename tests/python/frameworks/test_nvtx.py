# SPDX-License-Identifier: Apache-2.0
"""The package nvtx plays the library: a process makes its first NVTX call once, so each test has one of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gpuscope
from gpuscope import _core, profile
from gpuscope.system import judge

VARIABLE = "NVTX_INJECTION64_PATH"

# Prints one line a range: its path, and what was given along.
SHOW = """
def show(trace):
    names = list(trace.paths.name)
    for row in range(len(trace.regions)):
        path, text = trace.regions.path[row], []
        while path != 0xFFFFFFFF:
            domain = trace.string(trace.paths.domain[path])
            text.insert(0, (domain + ":" if domain else "") + trace.string(names[path]))
            path = trace.paths.parent[path]
        of_row = [at for at, region in enumerate(trace.payloads.region) if region == row]
        given = [trace.string(trace.payloads.name[at]) for at in of_row]
        print("/".join(text), *given)
"""


def clean() -> dict[str, str]:
    """An environment without a tool, in which a new Python finds what this one does."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(code: str, **variables: str) -> str:
    """What a new Python prints; it must end well and without a complaint."""
    env = {**clean(), **variables}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_ranges_of_a_library_are_recorded_with_domain_category_and_payload():
    pytest.importorskip("nvtx")
    out = run(
        SHOW
        + """
import gpuscope as gs
with gs.profile() as prof:
    import nvtx
    with gs.record_function("step"), nvtx.annotate("load", domain="data", category="disk", payload=7):
        with nvtx.annotate("decode"):
            pass
    nvtx.mark("done")
show(prof.trace)
print(prof.audit().complete, len(prof.trace.marks))
"""
    )
    assert out.splitlines() == ["step", "step/data:load category payload", "step/data:load/decode", "True 1"]


def test_a_library_that_begins_between_two_windows_is_heard_in_the_second():
    pytest.importorskip("nvtx")
    out = run(
        SHOW
        + """
import gpuscope as gs, nvtx
with gs.profile():
    pass
nvtx.push_range("before")
with gs.profile() as prof:
    nvtx.push_range("within")
    nvtx.pop_range()
    nvtx.pop_range()
show(prof.trace)
print(prof.audit().complete)
"""
    )
    assert out.splitlines() == ["within", "True"]


def test_a_library_that_began_with_the_variable_set_is_heard():
    pytest.importorskip("nvtx")
    code = """
        import nvtx
        nvtx.mark("before gpuscope is imported")
        import gpuscope as gs
        with gs.profile() as prof, nvtx.annotate("heard"):
            pass
        print(len(prof.trace.regions))
    """
    assert run(code, **{VARIABLE: _core.own_file()}) == "1\n"


def test_structs_that_a_library_describes_are_recorded_field_by_field():
    pytest.importorskip("nvtx")
    code = """
        import gpuscope as gs, numpy
        with gs.profile() as prof:
            import nvtx
            payload = numpy.array((3, 0.5), dtype=[("rows", "i4"), ("share", "f8")])
            with nvtx.annotate("range", domain="structs", payload=payload):
                pass
        trace = prof.trace
        print({trace.string(name): int(value) for name, value in zip(trace.payloads.name, trace.payloads.value)})
    """
    assert run(code) == str({"rows": 3, "share": 0x3FE0000000000000}) + "\n"  # the bits of 0.5


def test_a_library_that_began_before_the_profiler_goes_on_unheard():
    pytest.importorskip("nvtx")
    code = """
        import gpuscope as gs, nvtx
        nvtx.mark("first")
        with gs.profile() as prof, nvtx.annotate("lost"):
            pass
        print(len(prof.trace.regions), gs._core.nvtx_libraries())
    """
    assert run(code) == "0 []\n"


def test_a_python_child_without_gpuscope_works_with_the_variable():
    pytest.importorskip("nvtx")
    code = """
        import sys, threading, nvtx
        def work():
            for _ in range(1000):
                with nvtx.annotate("a", domain="d", payload=1, category="c"):
                    nvtx.mark("b")
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        print("gpuscope" in sys.modules)
    """
    assert run(code, **{VARIABLE: _core.own_file()}) == "False\n"


def test_a_forked_child_works_with_the_variable():
    pytest.importorskip("nvtx")
    code = """
        import os, warnings, gpuscope as gs, nvtx
        warnings.simplefilter("ignore")  # of forking with threads
        with gs.profile() as prof, nvtx.annotate("parent"):
            child = os.fork()
            if child == 0:
                with nvtx.annotate("child"):
                    os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(len(prof.trace.regions))
    """
    assert run(code) == "7\n1\n"


def test_a_child_that_is_no_python_works_with_the_variable(tmp_path: Path):
    """It does what NVTX does at its first call: nvtxInit.h."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "client.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\nint main(void) {\n"
        f'  void* tool = dlopen(getenv("{VARIABLE}"), RTLD_LAZY);\n'
        '  int (*attach)(void*) = tool ? (int (*)(void*))dlsym(tool, "InitializeInjectionNvtx2") : 0;\n'
        '  printf("%d\\n", attach ? attach(0) : 0);\n  return 0;\n}\n'
    )
    subprocess.run([compiler, str(source), "-o", str(tmp_path / "client"), "-ldl"], check=True)
    env = {**os.environ, VARIABLE: _core.own_file()}
    done = subprocess.run([str(tmp_path / "client")], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


GETENV = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def seen():  # by NVTX
    return libc.getenv(b"NVTX_INJECTION64_PATH")
"""


def test_the_variable_is_set_for_libraries_when_a_profiler_is_made_and_stays():
    code = """
import gpuscope as gs
print(seen())
with gs.profile() as prof:
    pass
print(os.fsdecode(seen()) == gs._core.own_file(), "NVTX_INJECTION64_PATH" in os.environ)
print(gs._core.environment()["injection"])
"""
    assert run(GETENV + code) == "None\nTrue False\n[]\n"


CHILDREN = {
    "subprocess": "import subprocess; subprocess.run(PRINT)",
    "with environment": "import subprocess; subprocess.run(PRINT, env={**os.environ, 'OTHER': '1'})",
    "with preexec": "import subprocess; subprocess.run(PRINT, preexec_fn=lambda: None)",
    "shell": "import subprocess; subprocess.run('echo $NVTX_INJECTION64_PATH', shell=True)",
    "system": "os.system('echo $NVTX_INJECTION64_PATH')",
    "popen": "print(os.popen('echo $NVTX_INJECTION64_PATH').read(), end='')",
    "asyncio": "import asyncio; asyncio.run(start())",
    "fork": "print(seen() or '', flush=True) if os.fork() == 0 else os.wait()",
    "fork and exec": "os.execv(PRINT[0], PRINT) if os.fork() == 0 else os.wait()",
    "posix_spawn": "os.waitpid(os.posix_spawn(PRINT[0], PRINT, os.environ), 0)",
    "posix_spawn with its own": (
        "os.waitpid(os.posix_spawn(PRINT[0], PRINT, None if sys.version_info >= (3, 13) else os.environ), 0)"
    ),
    "spawnv": "os.spawnv(os.P_WAIT, PRINT[0], PRINT)",
    "exec": "os.execv(PRINT[0], PRINT)",
    "spawn": "run('spawn')",
    "forkserver": "run('forkserver')",
}


@pytest.mark.parametrize("start", CHILDREN.values(), ids=CHILDREN)
def test_children_begin_without_the_variable(start: str, tmp_path: Path):
    """Also a variable that the process has from C, which ``os.environ`` does not know, reaches them as before."""
    code = f"""
import asyncio, subprocess, sys, warnings
ECHO = "echo $NVTX_INJECTION64_PATH"
PRINT = ["/bin/sh", "-c", ECHO]
def run(method):
    import multiprocessing
    child = multiprocessing.get_context(method).Process(target=os.system, args=(ECHO,))
    child.start()
    child.join()
async def start():
    await (await asyncio.create_subprocess_exec(*PRINT)).wait()
if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of forking with threads
    import gpuscope as gs
    prof = gs.profile()
    assert seen()
    {start}
"""
    script = tmp_path / "script.py"
    script.write_text(GETENV + code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=clean())
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


def test_what_a_child_inherits_is_otherwise_the_same():
    code = """
import subprocess, sys
import gpuscope as gs
libc.setenv(b"FROM_C", b"1", 1)
before = subprocess.run(["env"], capture_output=True).stdout
prof = gs.profile()
print(subprocess.run(["env"], capture_output=True).stdout == before, b"FROM_C=1" in before)
"""
    assert run(GETENV + code) == "True True\n"


def test_a_library_that_begins_after_a_child_was_started_is_heard():
    pytest.importorskip("nvtx")
    code = """
        import os, subprocess, gpuscope as gs
        with gs.profile() as prof:
            subprocess.run(["true"])
            os.system("true")
            import nvtx
            with nvtx.annotate("heard"):
                pass
        print(len(prof.trace.regions))
    """
    assert run(code) == "1\n"


def test_another_tool_keeps_the_variable_and_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "/opt/nsys/libToolsInjection64.so")
    with profile() as profiler:
        pass
    assert os.environ[VARIABLE] == "/opt/nsys/libToolsInjection64.so"
    assert f"{VARIABLE} is /opt/nsys/libToolsInjection64.so" in profiler.trace.info["session.notes"]


def test_it_is_left_alone_without_cpu_activities(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    gpuscope.profile(activities=["CUDA"])
    assert VARIABLE not in os.environ


def test_nccl_that_began_before_the_profiler_is_named(monkeypatch: pytest.MonkeyPatch):
    class Distributed:
        is_initialized = staticmethod(lambda: True)
        get_backend = staticmethod(lambda: "cpu:gloo,cuda:nccl")

    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed())
    monkeypatch.setattr(_core, "nvtx_libraries", lambda: ["/lib/libtorch_cuda.so"])
    with profile() as profiler:
        pass
    assert "NVTX ranges of NCCL are missing" in profiler.trace.info["session.notes"]
    monkeypatch.setattr(_core, "nvtx_libraries", lambda: ["/lib/libnccl.so.2"])
    with profile() as profiler:
        pass
    assert "NCCL" not in profiler.trace.info["session.notes"]


def test_the_environment_tells_who_sends_ranges():
    def check(**core: object):
        found = judge(core, torch_profiler="absent", root=Path("/nowhere"), variables={})
        return next(check for check in found.checks if check.name == "NVTX")

    assert check().ok is None
    assert "gpuscope run" in check().fix
    assert check(nvtx_libraries=["/lib/libnccl.so.2"]).found == "ranges come from libnccl.so.2"
