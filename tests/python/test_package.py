# SPDX-License-Identifier: Apache-2.0
"""What is installed, and what importing it does to the process: nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.elf import needed_libraries
from gpuscope import _core

# What a program's C++ and C libraries are made of; anything else would have to be on the user's machine.
SYSTEM_LIBRARIES = (
    "libc.so",
    "libm.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libstdc++.so",
    "libgcc_s.so",
    "ld-linux",
)

# Looks at the process before and after an import and prints what is new.
WATCHER = """
import json, os, sys, {before}
folders = [os.getcwd(), os.environ["TMPDIR"], os.environ["HOME"]]
def state():
    return {{
        "threads": sorted(os.listdir("/proc/self/task")),
        "descriptors": sorted(os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
                              if os.path.lexists("/proc/self/fd/" + fd)),
        "files": sorted(os.path.join(at, name) for folder in folders
                        for at, _, names in os.walk(folder) for name in names),
        "libraries": sorted({{line.split()[-1] for line in open("/proc/self/maps") if "/" in line}}),
        "variables": dict(os.environ),
        "children": open("/proc/self/task/%d/children" % os.getpid()).read().split(),
    }}
before = state()
{statement}
after = state()
print(json.dumps([before, after]))
"""


def watch(tmp_path: Path, statement: str = "import gpuscope, gpuscope._core") -> tuple[dict, dict]:
    """The state of a fresh process before and after a statement."""
    folders = {"TMPDIR": tmp_path / "tmp", "HOME": tmp_path / "home"}
    cwd = tmp_path / "cwd"
    for folder in (cwd, *folders.values()):
        folder.mkdir()
    environment = {**os.environ, **{name: str(path) for name, path in folders.items()}, "PYTHONDONTWRITEBYTECODE": "1"}
    # numpy starts its BLAS threads when it is imported; they are not ours.
    command = [sys.executable, "-c", WATCHER.format(before="numpy", statement=statement)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    return before, after


def new(state: tuple[dict, dict], what: str) -> list[str]:
    before, after = state
    return [entry for entry in after[what] if entry not in before[what]]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    return watch(tmp_path_factory.mktemp("imported"))


def test_import_starts_no_thread(imported: tuple[dict, dict]) -> None:
    assert new(imported, "threads") == []


def test_import_starts_no_process(imported: tuple[dict, dict]) -> None:
    assert new(imported, "children") == []


def test_import_writes_no_file(imported: tuple[dict, dict]) -> None:
    assert new(imported, "files") == []


def test_import_leaves_no_file_open(imported: tuple[dict, dict]) -> None:
    assert new(imported, "descriptors") == []


def test_import_changes_no_environment_variable(imported: tuple[dict, dict]) -> None:
    before, after = imported
    assert before["variables"] == after["variables"]


def test_import_loads_no_library_of_cuda(imported: tuple[dict, dict]) -> None:
    vendor = ("libcuda", "libcupti", "libnvidia", "libnvperf", "nvidia")
    assert [path for path in new(imported, "libraries") if any(name in Path(path).name for name in vendor)] == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("import threading; t = threading.Thread(target=threading.Event().wait, daemon=True); t.start()", "threads"),
        ("open('left', 'w').close()", "files"),
        ("kept = open('/etc/passwd')", "descriptors"),
        ("import subprocess; p = subprocess.Popen(['sleep', '1'])", "children"),
    ],
)
def test_watcher_sees_a_side_effect(statement: str, what: str, tmp_path: Path) -> None:
    assert len(new(watch(tmp_path, statement), what)) == 1


def test_extension_links_only_the_system_libraries() -> None:
    needed = needed_libraries(Path(_core.__file__))
    assert [name for name in needed if not name.startswith(SYSTEM_LIBRARIES)] == []
    assert any(name.startswith("libstdc++") for name in needed)


def test_extension_uses_no_iostream() -> None:
    # After one was used, `import torch` crashes inside libstdc++. Mangled: std::ios_base, std::basic_ostringstream, ...
    symbols = re.compile(rb"_ZNK?(?:S[diow]|St(?:7__cxx11)?\d+(?:ios_base|basic_[a-z]*(?:stream|buf)))[A-Z0-9]\w*")
    assert set(symbols.findall(Path(_core.__file__).read_bytes())) == set()


def test_reader_of_linked_libraries_refuses_another_file(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("no library")
    with pytest.raises(ValueError, match="no 64-bit little-endian ELF"):
        needed_libraries(path)


def test_package_ships_its_types() -> None:
    package = importlib.resources.files("gpuscope")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("_core.pyi").is_file()


def test_version_is_the_one_of_the_metadata() -> None:
    assert _core.__version__ == importlib.metadata.version("gpuscope")


def test_package_installs_no_sources_of_the_core() -> None:
    suffixes = {Path(str(file)).suffix for file in importlib.metadata.files("gpuscope") or []}
    assert suffixes.isdisjoint({".cpp", ".h", ".a"})


@pytest.mark.parametrize("isolated", [True, False])
def test_a_subinterpreter_gets_import_error(isolated):
    """In one that is not isolated, Python itself does not refuse what is made for one interpreter a process."""
    script = f"""
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    number = interpreters.create("isolated" if {isolated} else "legacy")
else:
    import _xxsubinterpreters as interpreters
    number = interpreters.create(isolated={isolated})
interpreters.run_string(number, '''
try:
    import gpuscope._core
except ImportError as error:
    print("interpreter" in str(error), flush=True)
''')
import gpuscope._core  # the main one has it all the same
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
