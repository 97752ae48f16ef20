# SPDX-License-Identifier: Apache-2.0
"""The ladder of rooms, and the rules of form that keep it readable.

Each rule is a function from a source tree to its offences. It is run on this repository, where it must find none, and
on a small tree with one offence, which it must find.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LONG_FILE = 1000
LONG_FILES: dict[str, str] = {}  # those that are longer, and why

# A room may use itself and the rooms of lower steps; the rooms of one step do not know each other.
CPP_LADDER = (
    ("base",),
    ("driver", "store"),
    ("timing", "activity", "memory"),
    ("attribution", "nvtx", "torch", "analysis", "nvml", "counters"),
    ("session", "exporters", "readers"),
    ("bindings",),
)
# "gpuscope" is the package's own __init__: what users import, and what the tools above it are built from.
PYTHON_LADDER = (
    ("_core", "text"),
    ("distributed", "errors", "local_server"),
    ("arguments", "threads"),
    ("paths", "spans", "stats", "tables", "units"),
    ("conditions", "plots", "targets"),
    ("figures", "page", "results", "streams"),
    ("devices", "late_imports", "regions", "system", "trace"),
    ("frameworks",),
    ("timing", "memory", "monitor"),
    ("analysis", "readers", "benchmarking", "counters"),
    ("steps",),
    ("costs",),
    ("diagnosis",),
    ("exporters",),
    ("recording",),
    ("diffing",),
    ("fleet",),
    ("profiler",),
    ("watching",),
    ("integrations",),
    ("gpuscope",),
    ("pytest_plugin",),
    ("agent",),
    ("cli",),
    ("__main__",),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
PYTHON_HEADER = re.compile(r"^(Python\.h|structmember\.h|pybind11/.*|numpy/.*)$")
VENDOR_HEADER = re.compile(r"^(cuda.*|cupti.*|nvml|nvperf.*|nvtx3/.*|crt/.*|generated_cuda.*|driver_types)\.h(pp)?$")
OPENS_A_LIBRARY = re.compile(r"\b(dlopen|dlmopen)\s*\(")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STREAMS = {"fstream", "iomanip", "ios", "iostream", "istream", "locale", "ostream", "regex", "sstream", "streambuf"}
EMPTY_NAMES = {"util", "utils", "common", "helper", "helpers", "misc"}

Rule = Callable[[Path], list[str]]


def files(root: Path, folder: str, *suffixes: str) -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*") if path.suffix in suffixes and path.is_file())


def cpp_files(root: Path) -> list[Path]:
    return files(root, "cpp", ".h", ".cpp")


def python_files(root: Path) -> list[Path]:
    return files(root, "python", ".py")


def includes(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, opening character and name of each include."""
    text = path.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1], match[2]


def step_of(ladder: tuple[tuple[str, ...], ...], room: str) -> int | None:
    return next((step for step, rooms in enumerate(ladder) if room in rooms), None)


def judge(ladder: tuple[tuple[str, ...], ...], room: str, used: str, where: str) -> list[str]:
    """The offence, if any, of `room` using `used`."""
    if room == used:
        return []
    own, other = step_of(ladder, room), step_of(ladder, used)
    if own is None or other is None:
        return [f"{where}: {room if own is None else used} has no step on the ladder"]
    if other < own:
        return []
    return [f"{where}: {room} uses {used}, which lies {'beside' if own == other else 'above'} it"]


def cpp_ladder(root: Path) -> list[str]:
    offences = []
    base = root / "cpp" / "gpuscope"
    for path in cpp_files(root):
        room = path.relative_to(base).parts[0]
        where = path.relative_to(root)
        for line, _, name in includes(path):
            parts = name.split("/")
            if parts[0] == "gpuscope":
                offences += judge(CPP_LADDER, room, parts[1], f"{where}:{line}")
    return offences


def cpp_includes_from_the_root(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {name} is not named from cpp/"
        for path in cpp_files(root)
        for line, opening, name in includes(path)
        if opening == '"' and not name.startswith("gpuscope/")
    ]


def room_of(module: str) -> str:
    """The room of a dotted module name that begins with gpuscope."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


@functools.cache
def imported_modules(text: str, package: str, modules: frozenset[str]) -> list[tuple[int, str]]:
    """Line and dotted name of each module of gpuscope that a file imports, wherever in the file it does."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*kept, *([origin] if origin else [])])
            # `from gpuscope import errors` uses the module errors; `from gpuscope import profile` uses the package.
            names = [
                f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in modules else origin for alias in node.names
            ]
        else:
            continue
        found += [(node.lineno, name) for name in names if name.split(".")[0] == "gpuscope"]
    return found


def python_imports(root: Path) -> Iterator[tuple[Path, int, str, str]]:
    """File, line, its module and the module it imports, for each import of gpuscope's modules."""
    names = {}
    for path in python_files(root):
        parts = list(path.relative_to(root / "python").with_suffix("").parts)
        names[path] = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    modules = frozenset({*names.values(), "gpuscope._core"})
    for path, name in names.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for line, used in imported_modules(path.read_text(encoding="utf-8"), package, modules):
            yield path, line, name, used


def python_ladder(root: Path) -> list[str]:
    offences = []
    for path, line, name, used in python_imports(root):
        offences += judge(PYTHON_LADDER, room_of(name), room_of(used), f"{path.relative_to(root)}:{line}")
    return offences


def circles(uses: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one file, by the algorithm of Tarjan."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        path.append(name)
        for used in sorted(uses.get(name, ())):
            if used not in order:
                visit(used)
            if used in path:
                lowest[name] = min(lowest[name], lowest[used])
        if lowest[name] == order[name]:
            start = path.index(name)
            if len(path) - start > 1:
                found.append(set(path[start:]))
            del path[start:]

    for name in sorted(uses):
        if name not in order:
            visit(name)
    return found


def no_circles(root: Path) -> list[str]:
    """Late imports and those for types count: who reads one file of a circle has to read them all."""
    uses: dict[str, set[str]] = {}
    for _, _, name, used in python_imports(root):
        uses.setdefault(name, set()).add(used)
    for path in cpp_files(root):  # a source and its header are one file here
        own = str(path.relative_to(root / "cpp").with_suffix(""))
        uses.setdefault(own, set()).update(name.rpartition(".")[0] for _, _, name in includes(path))
    return [f"{', '.join(sorted(circle))}: a circle of imports" for circle in circles(uses)]


def python_headers_in_bindings_only(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {name} outside bindings"
        for path in cpp_files(root)
        if path.relative_to(root).parts[2] != "bindings"
        for line, _, name in includes(path)
        if PYTHON_HEADER.match(name)
    ]


def vendor_headers_in_sources_only(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {name} in a header"
        for path in files(root, "cpp", ".h")
        for line, _, name in includes(path)
        if VENDOR_HEADER.match(name)
    ]


def libraries_opened_in_driver_only(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: opens a library"
        for path in cpp_files(root)
        if path.relative_to(root).parts[2] != "driver"
        and OPENS_A_LIBRARY.search(COMMENT.sub("", path.read_text(encoding="utf-8")))
    ]


def headers_guarded(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: no #pragma once"
        for path in files(root, "cpp", ".h")
        if "#pragma once\n" not in path.read_text(encoding="utf-8")
    ]


def namespace_is_the_folder(root: Path) -> list[str]:
    offences = []
    for path in files(root, "cpp", ".h"):
        room, text = path.relative_to(root).parts[2], path.read_text(encoding="utf-8")
        # A binary interface of C's has no namespace.
        if not re.search(rf'^(namespace gpuscope::{room}\b|extern "C" {{)', text, re.MULTILINE):
            offences.append(f"{path.relative_to(root)}: no namespace gpuscope::{room}")
    return offences


def no_iostreams(root: Path) -> list[str]:
    # `import torch` crashes inside libstdc++'s streams when they were used in the process before.
    return [
        f"{path.relative_to(root)}:{line}: {name} is an iostream's header"
        for path in cpp_files(root)
        for line, _, name in includes(path)
        if name in STREAMS
    ]


def no_using_namespace_in_headers(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: using namespace in a header"
        for path in files(root, "cpp", ".h")
        if "using namespace" in COMMENT.sub("", path.read_text(encoding="utf-8"))
    ]


def long_files_have_a_reason(root: Path) -> list[str]:
    offences = []
    for path in cpp_files(root) + python_files(root):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LONG_FILE and str(path.relative_to(root)) not in LONG_FILES:
            offences.append(f"{path.relative_to(root)}: {lines} lines and no reason")
    return offences


def names_say_something(root: Path) -> list[str]:
    found = [
        path
        for folder in ("cpp", "python", "tests", "benchmarks")
        for path in (root / folder).rglob("*")
        if path.stem.lower() in EMPTY_NAMES
    ]
    return [f"{path.relative_to(root)}: the name says nothing" for path in sorted(found)]


def licence_on_top(root: Path) -> list[str]:
    paths = [
        path
        for folder in ("cpp", "python", "tests", "benchmarks")
        for path in files(root, folder, ".h", ".cpp", ".py", ".pyi")
    ]
    return [
        f"{path.relative_to(root)}: no SPDX line on top"
        for path in paths
        if not re.match(r"(#!.*\n)?(//|#) SPDX-License-Identifier: Apache-2\.0\n", path.read_text(encoding="utf-8"))
    ]


HEADER = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\nnamespace gpuscope::{room} {{}}\n"
SOURCE = "// SPDX-License-Identifier: Apache-2.0\n"
MODULE = "# SPDX-License-Identifier: Apache-2.0\nfrom __future__ import annotations\n"

# Rule, offending file, its text, what the offence says.
OFFENCES: tuple[tuple[Rule, str, str, str], ...] = (
    (cpp_ladder, "cpp/gpuscope/base/a.cpp", '#include "gpuscope/store/store.h"', "base uses store, which lies above"),
    (
        cpp_ladder,
        "cpp/gpuscope/store/a.cpp",
        '#  include "gpuscope/driver/cuda.h"',
        "store uses driver, which lies beside",
    ),
    (
        cpp_ladder,
        "cpp/gpuscope/timing/a.cpp",
        '#include "gpuscope/nvml/device.h"',
        "timing uses nvml, which lies above",
    ),
    (
        cpp_ladder,
        "cpp/gpuscope/attribution/a.h",
        '#include "gpuscope/counters/metrics.h"',
        "attribution uses counters, which lies beside",
    ),
    (cpp_ladder, "cpp/gpuscope/session/a.h", "#include <gpuscope/exporters/chrome.h>", "which lies beside"),
    (cpp_ladder, "cpp/gpuscope/misplaced/a.h", '#include "gpuscope/base/clock.h"', "misplaced has no step"),
    (cpp_includes_from_the_root, "cpp/gpuscope/base/a.cpp", '#include "clock.h"', "is not named from cpp/"),
    (
        python_ladder,
        "python/gpuscope/errors.py",
        "from gpuscope.trace import Trace",
        "errors uses trace, which lies above",
    ),
    (python_ladder, "python/gpuscope/errors.py", "def f():\n    import gpuscope.cli", "errors uses cli"),
    (python_ladder, "python/gpuscope/regions.py", "from . import trace", "regions uses trace, which lies beside"),
    (python_ladder, "python/gpuscope/analysis/a.py", "from ..exporters import x", "analysis uses exporters"),
    (
        python_ladder,
        "python/gpuscope/trace.py",
        "from gpuscope import profile",
        "trace uses gpuscope, which lies above",
    ),
    (python_ladder, "python/gpuscope/misplaced.py", "from gpuscope import errors", "misplaced has no step"),
    (no_iostreams, "cpp/gpuscope/session/a.cpp", SOURCE + "#include <fstream>", "fstream is an iostream's header"),
    (python_headers_in_bindings_only, "cpp/gpuscope/memory/a.cpp", "#include <Python.h>", "Python.h outside bindings"),
    (python_headers_in_bindings_only, "cpp/gpuscope/store/a.h", "#include <pybind11/stl.h>", "outside bindings"),
    (vendor_headers_in_sources_only, "cpp/gpuscope/activity/a.h", "#include <cupti.h>", "cupti.h in a header"),
    (vendor_headers_in_sources_only, "cpp/gpuscope/driver/a.h", '#include "cuda_runtime_api.h"', "in a header"),
    (vendor_headers_in_sources_only, "cpp/gpuscope/nvml/a.h", "#include <nvml.h>", "nvml.h in a header"),
    (libraries_opened_in_driver_only, "cpp/gpuscope/activity/a.cpp", 'dlopen("libcupti.so", 1);', "opens a library"),
    (headers_guarded, "cpp/gpuscope/base/a.h", "namespace gpuscope::base {}", "no #pragma once"),
    (
        namespace_is_the_folder,
        "cpp/gpuscope/base/a.h",
        "namespace gpuscope::basement {}",
        "no namespace gpuscope::base",
    ),
    (no_using_namespace_in_headers, "cpp/gpuscope/base/a.h", "using namespace std;", "using namespace in a header"),
    (
        no_circles,
        "python/gpuscope/errors.py",
        "def f():\n    from gpuscope.analysis import x",
        "gpuscope.analysis, gpuscope.errors: a circle of imports",
    ),
    (
        no_circles,
        "python/gpuscope/_core.py",
        "if TYPE_CHECKING:\n    from gpuscope.analysis.idle import x",
        "gpuscope._core, gpuscope.analysis.idle: a circle of imports",
    ),
    (
        no_circles,
        "cpp/gpuscope/base/clock.cpp",
        '#include "gpuscope/store/store.h"',
        "gpuscope/base/clock, gpuscope/store/store: a circle of imports",
    ),
    (long_files_have_a_reason, "python/gpuscope/trace.py", "\n" * LONG_FILE, "1001 lines and no reason"),
    (long_files_have_a_reason, "cpp/gpuscope/base/a.cpp", "\n" * 1199, "1200 lines and no reason"),
    (names_say_something, "python/gpuscope/utils.py", "", "the name says nothing"),
    (names_say_something, "tests/helpers/a.py", "", "the name says nothing"),
    (names_say_something, "cpp/gpuscope/base/common.h", "", "the name says nothing"),
    (licence_on_top, "cpp/gpuscope/base/a.h", "#pragma once", "no SPDX line"),
    (licence_on_top, "tests/python/test_a.py", "import os", "no SPDX line"),
)
RULES = tuple(dict.fromkeys(rule for rule, *_ in OFFENCES))


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that keeps every rule, and comes close to the edge of some."""
    root = tmp_path / "tree"
    write(
        root,
        "cpp/gpuscope/base/clock.h",
        HEADER.format(room="base") + "#include <time.h>  // not dlopen(), nor Python.h",
    )
    write(root, "cpp/gpuscope/store/store.h", HEADER.format(room="store") + '#include "gpuscope/base/clock.h"')
    write(root, "cpp/gpuscope/driver/open.cpp", SOURCE + '#include <cuda.h>\nauto x = dlopen("libcuda.so.1", 1);')
    write(root, "cpp/gpuscope/bindings/bind.h", HEADER.format(room="bindings") + "#include <pybind11/pybind11.h>")
    write(root, "cpp/gpuscope/bindings/a.cpp", SOURCE + '#include "gpuscope/bindings/bind.h"\nusing namespace std;')
    write(root, "python/gpuscope/errors.py", MODULE)
    write(root, "python/gpuscope/trace.py", MODULE)
    write(root, "python/gpuscope/__init__.py", MODULE + "from gpuscope.profiler import profile")
    write(root, "python/gpuscope/profiler.py", MODULE + "import numpy\nfrom . import _core, errors\n" + "\n" * 300)
    write(
        root, "python/gpuscope/analysis/__init__.py", MODULE + "from .idle import x\nfrom ..errors import GpuscopeError"
    )
    write(root, "python/gpuscope/analysis/idle.py", MODULE + "from gpuscope._core import Store")
    write(root, "python/gpuscope/cli/run.py", MODULE + "import gpuscope\nfrom gpuscope import errors, profile")
    write(root, "tests/python/test_uncommon.py", MODULE)
    return root


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps_the_rule(rule: Rule) -> None:
    assert rule(REPOSITORY) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_allows_a_tree_that_keeps_it(rule: Rule, tree: Path) -> None:
    assert rule(tree) == []


@pytest.mark.parametrize(
    ("rule", "name", "text", "expected"), OFFENCES, ids=lambda value: getattr(value, "__name__", "")
)
def test_rule_finds_an_offence(rule: Rule, name: str, text: str, expected: str, tree: Path) -> None:
    write(tree, name, text)
    offences = rule(tree)
    assert len(offences) == 1
    assert expected in offences[0]


def test_the_ladders_name_the_rooms_that_there_are() -> None:
    rooms = {path.name for path in (REPOSITORY / "cpp" / "gpuscope").iterdir() if any(path.glob("*.h"))}
    assert sorted(room for step in CPP_LADDER for room in step) == sorted(rooms)
    package = REPOSITORY / "python" / "gpuscope"
    rooms = {path.relative_to(package).parts[0].removesuffix(".py") for path in package.rglob("*.py")}
    assert sorted(room for step in PYTHON_LADDER for room in step) == sorted(
        rooms - {"__init__"} | {"_core", "gpuscope"}
    )


def test_sources_are_found() -> None:
    assert len(cpp_files(REPOSITORY)) > 10
    assert len(python_files(REPOSITORY)) > 1
