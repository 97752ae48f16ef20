# SPDX-License-Identifier: Apache-2.0
"""``%%gpuscope`` of notebooks: profiles a cell. ``%load_ext gpuscope`` registers it."""

from __future__ import annotations

import argparse
import keyword
import linecache
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from gpuscope._core import Flag, FunctionKind, Store, make_store
from gpuscope.analysis.completeness import kept_ns
from gpuscope.arguments import OPERATOR_OPTIONS
from gpuscope.errors import InvalidArgument
from gpuscope.profiler.facade import profile
from gpuscope.recording import Recording
from gpuscope.text import for_output
from gpuscope.trace import NONE, Trace

Array = np.ndarray[Any, Any]

_PLACE = re.compile(r"\(\d+\): .*", re.DOTALL)  # behind a file: "train.py(12): step"
_MAGIC = re.compile(r"%%gpuscope(?=\s|\Z)")
_ROWS = 20  # of the tree of functions
_LEAST_SHARE = 0.01  # of the recording, for threads that ran before the cell


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"%%gpuscope: {message}; see %%gpuscope?")


def _parser() -> argparse.ArgumentParser:
    about = "Profiles the cell and shows what took the time. %gpuscope profiles the rest of a cell."
    parser = _Parser("%%gpuscope", description=about, allow_abbrev=False, add_help=False)
    parser.add_argument("name", nargs="?", default="prof", help="the variable that has the recording (default: prof)")
    parser.add_argument("--page", action="store_true", help="show the whole report")
    parser.add_argument("--height", type=int, default=600, help="of the report, in pixels (default: 600)")
    for option, words in OPERATOR_OPTIONS.items():
        parser.add_argument(f"--{option.replace('_', '-')}", action="store_true", help=f"record {words}")
    return parser


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidArgument(f"%%gpuscope: the line is {line!r}: {error}; accepted are words as of a shell") from error


def load_ipython_extension(shell: Any) -> None:
    """Registers ``%%gpuscope``; ``%load_ext gpuscope`` calls it with the notebook's shell."""
    from IPython.core.error import UsageError
    from IPython.core.inputtransformer2 import cell_magic

    def run(line: str, cell: str | None = None) -> None:
        if cell is None:
            _Cell(shell, line)
        elif not shell.run_cell(f"%%gpuscope {line}\n{cell}").success:  # an alias or a program called the magic
            raise UsageError("%%gpuscope: the cell failed; its error is above")

    def run_in_cell(lines: list[str]) -> list[str]:
        # As a line magic, so that IPython runs the cell: its last value, awaits, errors and line numbers stay right.
        return [lines[0][1:], *cell_magic(lines[1:])] if lines and _MAGIC.match(lines[0]) else lines

    run.__doc__ = _parser().format_help()
    shell.register_magic_function(run, magic_kind="line_cell", magic_name="gpuscope")
    shell.input_transformer_manager.line_transforms.insert(0, run_in_cell)


class _Cell:
    """Profiles the rest of the cell that called the magic, and shows the result when the cell has ended."""

    def __init__(self, shell: Any, line: str) -> None:
        self._options = options = _parser().parse_args(_words(line))
        if not options.name.isidentifier() or keyword.iskeyword(options.name):
            raise InvalidArgument(f"%%gpuscope: name is {options.name!r}; accepted is the name of a variable")
        self._shell = shell
        self._number = max(1, shell.displayhook.prompt_count)
        caller = next((frame for frame in _frames() if frame.f_globals is shell.user_ns), sys._getframe())
        self._place = caller.f_code.co_filename, caller.f_lineno
        self._profiler = profile(
            python_samples=True, **{option: getattr(options, option) for option in OPERATOR_OPTIONS}
        )
        self._threads = [thread.native_id or 0 for thread in threading.enumerate()]
        self._profiler.start()
        shell.events.register("post_run_cell", self._end)

    def _end(self, _result: object = None) -> None:
        if any(frame.f_code.co_filename == self._place[0] for frame in _frames()):
            return  # the end of another cell, which a magic in this one ran
        self._shell.events.unregister("post_run_cell", self._end)
        self._profiler.stop()
        store = store_of_cell(self._profiler.trace, self._place, self._cells(), self._threads)
        store.set_info("process.argv", f"In [{self._number}]")
        self._shell.user_ns[self._options.name] = recording = Recording(store)
        shows_html = "text/html" in self._shell.display_formatter.active_types
        if self._options.page and shows_html:
            recording.show(self._options.height)
            return
        from IPython.display import display

        html = {"text/html": recording._repr_html_()} if shows_html else {}
        display({"text/plain": _text(recording), **html}, raw=True)

    def _cells(self) -> dict[str, str]:
        """Names of cells in notebooks, by the files that IPython compiled them as."""
        compiler, history = self._shell.compile, self._shell.history_manager
        numbers: dict[str, int] | None = getattr(compiler, "_filename_map", None)
        if numbers is None:  # IPython 7
            cells = enumerate(zip(history.input_hist_raw, history.input_hist_parsed, strict=False))
            numbers = {compiler.get_code_name(raw, parsed, number): number for number, (raw, parsed) in cells}
        # IPython may count a cell that a magic runs in this one as the next.
        names = {file: f"In [{min(number, self._number)}]" for file, number in numbers.items()}
        linecache.cache |= {names[file]: linecache.cache[file] for file in names if file in linecache.cache}
        return names


def _frames() -> Iterator[FrameType]:
    """The frames of this thread, the caller's first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _text(recording: Recording) -> str:
    """The tree of Python functions, the rows of regions and GPU work, and the verdict of the audit."""
    from gpuscope.analysis.program_tree import ProgramTree
    from gpuscope.analysis.terminal import overview, terminal_width

    trace, width = recording.trace, max(40, terminal_width())
    has_rows = len(trace.regions) or len(trace.api) or len(trace.kernels)
    tree = "no samples of the cell\n"
    if len(trace.python_samples):
        tree = ProgramTree(trace).render(_ROWS, width, more="samples()")
    return for_output(tree + (overview(trace, width) if has_rows else recording.audit().brief))


# -- the cell's part of a recording ------------------------------------------------------------------------------------


def store_of_cell(trace: Trace, place: tuple[str, int], cells: Mapping[str, str], threads: list[int]) -> Store:
    """A recording without the code that ran around a cell, with names of cells instead of their files.

    Args:
        trace: the recording.
        place: the file of the cell, and its line that called the magic.
        cells: the names of cells by their files.
        threads: the system's ids of the threads that ran before the cell.
    """
    tables = {table: dict(trace.store.columns(table)) for table in trace.store.tables() if table != "info"}
    stacks, samples, strings, info = tables["stack"], tables["python_sample"], trace.store.strings(), trace.info
    inside, waits = _cut_stacks(stacks, strings, place, cells)
    tables["python_function"] = _functions_of_cell(tables["python_function"], strings, cells)

    stack, cpu_ns, ends_ns = samples["stack"], samples["cpu_ns"], samples["start_ns"] + samples["duration_ns"]
    system_id = trace.threads.system_id[samples["thread"]]
    is_here = system_id == threading.get_native_id()
    kept = inside[stack] | (is_here & waits[stack])
    if info.get("session.tier") == "cpu" and (kept & is_here).any():  # later IPython shows errors and figures
        info["session.stop_ns"] = str(ends_ns[kept & is_here].max())
    kept |= ~is_here & ~np.isin(system_id, threads) & (2 * cpu_ns > samples["duration_ns"])
    others = ~kept & ~is_here & (cpu_ns > 0)
    if not kept.any() or cpu_ns[others].sum() < _LEAST_SHARE * kept_ns(trace, samples["start_ns"]):
        others[:] = False
    count = len(np.unique(system_id[others]))
    name = _id_of(strings, f"{count} other thread{'s' * (count > 1)} on a CPU")
    stack_row = {"parent": NONE, "function": name, "file": 0, "line": 0, "instruction": NONE}
    for column, table, row in (("stack", stacks, stack_row), ("thread", tables["thread"], {"name": name})):
        samples[column] = np.where(others, trace.store.rows(column), samples[column])
        for each, values in table.items():
            table[each] = np.append(values, values.dtype.type(row.get(each, 0)))
    samples["duration_ns"] = np.where(others, cpu_ns, samples["duration_ns"])
    tables["python_sample"] = {name: values[kept | others] for name, values in samples.items()}
    return make_store(tables, strings, list(info.items()), consume=True)


def _cut_stacks(
    stacks: dict[str, Array], strings: list[str], place: tuple[str, int], cells: Mapping[str, str]
) -> tuple[Array, Array]:
    """Cuts stacks so that they begin in cells; returns which rows are in cells, and which wait in the event loop."""
    files = [strings[number] for number in stacks["file"].tolist()]
    stacks["file"], is_cell = _renamed(strings, stacks["file"], cells)
    is_cell |= _are(files, lambda file: file.startswith("<timed "))  # compiled by %%time
    is_module = is_cell & (stacks["function"] == _id_of(strings, "<module>"))
    # A magic may run one cell in another: stacks begin in the inner one.
    stacks["parent"], inside = _cut(np.where(is_module, NONE, stacks["parent"]), is_cell)
    _, set_up = _cut(stacks["parent"], _are(files, place[0].__eq__) & (stacks["line"] == place[1]))
    # While a cell awaits, its thread is in the event loop.
    waits = ~inside & _are(files, lambda file: file.endswith("/selectors.py"))
    waits &= _at(_are(files, lambda file: "/asyncio/" in file), stacks["parent"])
    stacks["parent"][stacks["parent"][waits]] = NONE
    return inside & ~set_up, waits


def _functions_of_cell(functions: dict[str, Array], strings: list[str], cells: Mapping[str, str]) -> dict[str, Array]:
    """The calls of Python functions below cells."""
    functions["name"], is_cell = _renamed(strings, functions["name"], cells)
    names = [strings[number] for number in functions["name"].tolist()]
    is_module = is_cell & _are(names, lambda name: name.endswith(": <module>"))
    is_cell &= ~(is_module & ((functions["flags"] & int(Flag.CLIPPED)) != 0))  # that statement called the magic
    parents, inside = _cut(functions["parent"], is_cell)
    kept = (inside & ~is_module) | (functions["kind"] == int(FunctionKind.GARBAGE))
    functions["parent"] = np.where(_at(kept, parents), _at(np.cumsum(kept) - 1, parents), NONE)
    return {name: values[kept] for name, values in functions.items()}


def _are(texts: list[str], test: Callable[[str], bool]) -> Array:
    return np.array([test(text) for text in texts], bool)


def _at(values: Array, rows: Array) -> Array:
    """The values of rows, 0 for `NONE`."""
    found: Array = np.append(values, values.dtype.type(0))[np.minimum(rows, len(values))]
    return found


def _cut(parents: Array, tops: Array) -> tuple[Array, Array]:
    """Parents without those of the outermost `tops`, and which rows are `tops` or below one."""
    inside = tops.tolist()
    for row, parent in enumerate(parents.tolist()):  # a caller's row precedes those that it calls
        inside[row] = inside[row] or (parent < row and inside[parent])
    within = np.array(inside, bool)
    return np.where(tops & ~_at(within, parents), parents.dtype.type(NONE), parents), within


def _renamed(strings: list[str], ids: Array, cells: Mapping[str, str]) -> tuple[Array, Array]:
    """Ids of files or places, as "train.py(12): step", with cells by their names; and which are in cells."""
    known, places = np.unique(ids, return_inverse=True)
    new, is_cell = known.copy(), np.zeros(len(known), bool)
    for at, number in enumerate(known.tolist()):
        file = _PLACE.sub("", strings[number])
        if file in cells:
            new[at], is_cell[at] = _id_of(strings, cells[file] + strings[number][len(file) :]), True
    return new[places], is_cell[places]


def _id_of(strings: list[str], text: str) -> int:
    if text not in strings:
        strings.append(text)
    return strings.index(text)
