# SPDX-License-Identifier: Apache-2.0
"""``gpuscope bench`` measures a line of Python, ``gpuscope bench explore`` kinds of work by size."""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import inspect
import itertools
import linecache
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from gpuscope.arguments import BackendName, FloatType, type_of_option
from gpuscope.cli import console
from gpuscope.cli.export import raise_last
from gpuscope.cli.options import PAGE_SUFFIXES, check_apart, names, positive, seconds, share, sizes, writable_paths
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.targets import Target

if TYPE_CHECKING:
    from gpuscope.benchmarking.comparison import Comparison
    from gpuscope.benchmarking.result import BenchmarkResult

_PRECISION = 0.01
_FAILED, _INTERRUPTED = 1, 128 + signal.SIGINT
_PREFIX = "<gpuscope "  # of the file names of the texts in tracebacks


class Bench:
    """Measures an expression, or compares two."""

    description = (
        "Measures Python like 'python -m timeit', and the GPU: the time of its kernels, of the stream, of\n"
        "launching, and of the whole call, each with a 95% confidence interval. Measures until the interval is narrow\n"
        "enough or the budget is spent; Ctrl-C ends it early and keeps what there is."
    )
    examples = """\
  gpuscope bench -s 'import torch; a = torch.rand(4096, 4096).cuda()' 'a @ a'
  gpuscope bench -s 'import numpy' 'numpy.zeros(10**6)' --json zeros.json
  gpuscope bench -s 'x = list(range(1000))' 'sum(x)' --compare 'max(x)'
                          which is faster, and is it certain?
  gpuscope bench -s 'n = 4096' -s 'import torch' \\
      -s 'a = torch.rand(n, n).cuda()' 'a @ a' --flops '2 * n**3'
                          and how near to what the GPU can do?
  gpuscope bench -s 'x = set("abcdefgh")' 'sorted(x)' --processes 10
                          and does it hold in other processes?
  gpuscope bench explore  CPU against GPU, by kind of work and size"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "expression", nargs="?", metavar="EXPRESSION", help="Python to measure; statements may come before it"
        )
        parser.add_argument(
            "-s", "--setup", metavar="PYTHON", action="append", default=[], help="run once before; may be repeated"
        )
        parser.add_argument("--compare", metavar="OTHER", help="measure this in turns with it, and judge")
        parser.add_argument(
            "--json", metavar="FILE", nargs="?", const="-", help="the result as JSON; without FILE, instead of the text"
        )
        parser.add_argument("--name", metavar="TEXT", help="what to call it (default: the expression)")
        how = parser.add_argument_group("how it is measured")
        how.add_argument("--hot", action="store_true", help="leave the GPU's L2 cache as it is between calls")
        how.add_argument("--graph", action="store_true", help="capture it into a CUDA graph and measure replays")
        how.add_argument(
            "--precision",
            metavar="SHARE",
            type=share,
            help="half of the interval's width to reach (default: 1%%; --compare ends with its verdict)",
        )
        how.add_argument(
            "--target",
            metavar="TIME",
            type=_target,
            help="the time to reach, as 20ms, or with --baseline +30%% faster; exit code 1 if it is surely not met",
        )
        how.add_argument("--baseline", metavar="FILE", help="the JSON of an earlier result, for a --target as +30%%")
        how.add_argument("--budget", metavar="TIME", type=seconds, default=2.0, help="the most time (default: 2s)")
        how.add_argument(
            "--processes",
            metavar="N",
            type=positive,
            help="in N fresh processes, which share the budget; the interval comes from how they differ",
        )
        how.add_argument("--stream", metavar="PYTHON", help="stream to measure on, in terms of the setup's names")
        how.add_argument("--bytes", metavar="PYTHON", help="bytes that a call moves, as 3 * a.nbytes")
        how.add_argument("--flops", metavar="PYTHON", help="floating-point operations of a call, as '2 * n**3'")

    def run(self, options: argparse.Namespace) -> int:
        """Measures and prints."""
        from gpuscope.benchmarking.processes import left_program

        if options.expression is None:
            hint = "; put --json after the expression" if options.json not in (None, "-") else ""
            raise InvalidArgument(f"there is nothing to measure: give an expression{hint}")
        _make_folder_importable()
        alone = options.json == "-"
        files = writable_paths([None if alone else options.json])
        try:
            # Output of the code must not get between the lines of the JSON.
            apart = alone or console.are_standard_output(files)
            with console.output_to_errors() if apart else contextlib.nullcontext():
                result = _compare(options) if options.compare is not None else _measure(options)
        except Exception as error:
            shown = own_traceback(error)
            if shown is None:
                raise
            console.errors().line(shown)
            return _FAILED
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # else the measured code would decide the status
            raise left_program(error) from error
        out = console.output(files)
        if alone:
            out.line(result.to_json().rstrip("\n"))
        else:
            out.report(result.report())
        for path in files:
            result.to_json(path)
            out.sentence("wrote ", (console.display(path), "bold"))
        missed = getattr(getattr(result, "target", None), "met", None) is False
        return _INTERRUPTED if result.stopped == "interrupted" else _FAILED if missed else 0


class Explore:
    """Measures from which size on the GPU is faster."""

    description = (
        "Measures kinds of work on n by n matrices on the CPU, on the GPU, and on the GPU with the data moved there\n"
        "and back. Prints a table; -o writes one interactive page that needs nothing but a browser. Ctrl-C ends it\n"
        "early and keeps what was measured."
    )
    examples = """\
  gpuscope bench explore -o explorer.html
  gpuscope bench explore --operations matmul,fft --sizes 64:8192 --budget 2min
  gpuscope bench explore --backend torch --dtype float64 --json explorer.json"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "--operations",
            metavar="LIST",
            type=names,
            help="kinds of work, with commas (default: matmul,elementwise,reduction,fft,copy,sort)",
        )
        parser.add_argument(
            "--sizes",
            metavar="SIZES",
            type=sizes,
            default=sizes("64:4096"),
            help="n of the n by n matrices: FIRST:LAST doubles, 100,500 is a list (default: 64:4096)",
        )
        parser.add_argument(
            "--backend",
            choices=get_args(BackendName),
            help="torch on both sides, cupy against NumPy, or NumPy alone (default: NumPy against torch, or cupy)",
        )
        parser.add_argument("--dtype", choices=get_args(FloatType), default="float32", help="(default: float32)")
        parser.add_argument(
            "--budget",
            metavar="TIME",
            type=seconds,
            default=60.0,
            help="time to measure, as 60s or 2min; every point is measured once in any case (default: 60s)",
        )
        parser.add_argument("-o", "--output", metavar="FILE.html", help="write the interactive page")
        parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="JSON; without FILE, instead of text")

    def run(self, options: argparse.Namespace) -> int:
        """Measures, prints and writes."""
        from gpuscope.benchmarking.explorer import explore

        pages = writable_paths([options.output], PAGE_SUFFIXES)
        alone = options.json == "-"
        files = writable_paths([None if alone else options.json])
        check_apart([*pages, *files])
        with console.errors().status() as say:
            found = explore(
                options.operations,
                options.sizes,
                backend=options.backend,
                dtype=options.dtype,
                budget=options.budget,
                progress=say,
            )
        out = console.output([*pages, *files])
        if alone:
            out.line(found.to_json().rstrip("\n"))
        else:
            out.report(found.table())
        errors = []
        for path in (*pages, *files):
            try:
                found.write_html(path) if path in pages else found.to_json(path)
                (console.errors() if alone else out).sentence("wrote ", (console.display(path), "bold"))
            except GpuscopeError as error:
                errors.append(error)
        raise_last(errors)
        return _INTERRUPTED if found.interrupted else 0


@type_of_option
def _target(text: str) -> str:
    """The text of a time to reach."""
    return Target.of(text).text


def _measure(options: argparse.Namespace) -> BenchmarkResult:
    from gpuscope.benchmarking.benchmarks import benchmark
    from gpuscope.benchmarking.result import BenchmarkResult

    name = options.name or _short(options.expression)
    settings: dict[str, Any] = {"name": name, "graph": options.graph, "target": options.target}
    settings["precision"] = options.precision or _PRECISION
    if options.baseline is not None:
        settings["baseline"] = BenchmarkResult.from_json(Path(options.baseline))
    if options.processes is None or any(getattr(options, each) for each in ("stream", "bytes", "flops")):
        namespace, found = _prepare(options)
        for each in ("bytes", "flops"):
            settings[each] = _value(namespace, options, each)
        settings |= found
    if options.processes is None:
        with _measuring(name):
            return benchmark(namespace.function(options.expression, "expression"), **settings)
    settings |= {"cold": not options.hot, "budget": options.budget, "processes": options.processes}
    with console.errors().status() as say:
        return benchmark(_Expression("\n".join(options.setup), options.expression), progress=say, **settings)


@dataclass(frozen=True)
class _Expression:
    """An expression that becomes a function in another process, which runs the setup."""

    setup: str
    source: str

    def __reduce__(self) -> tuple[Callable[[str, str], Callable[[], object]], tuple[str, str]]:
        return _function, (self.setup, self.source)

    def __call__(self) -> object:
        return _function(self.setup, self.source)()


def _function(setup: str, source: str) -> Callable[[], object]:
    _make_folder_importable()
    return Namespace(setup).function(source, "expression")


def _compare(options: argparse.Namespace) -> Comparison:
    from gpuscope.benchmarking.comparison import compare

    for option in ("target", "graph", "bytes", "flops", "processes", "baseline"):
        if getattr(options, option):
            raise InvalidArgument(f"--{option} cannot go with --compare; measure one expression at a time for it")
    namespace, settings = _prepare(options)
    first = namespace.function(options.expression, "expression")
    second = namespace.function(options.compare, "other expression")
    names = (options.name or _short(options.expression), _short(options.compare))
    with _measuring(" against ".join(names)):
        return compare(first, second, names=names, precision=options.precision, **settings)


def _prepare(options: argparse.Namespace) -> tuple[Namespace, dict[str, Any]]:
    """Runs the setup, and reads the settings common to all measurements."""
    namespace = Namespace("\n".join(options.setup))
    settings = {"cold": not options.hot, "budget": options.budget, "stream": _value(namespace, options, "stream")}
    return namespace, settings


def _value(namespace: Namespace, options: argparse.Namespace, name: str) -> Any:
    """The value of an option in terms of the setup's names; None if the option is absent."""
    source = getattr(options, name)
    value = None if source is None else namespace.value(source, f"--{name}")
    return value.item() if isinstance(value, np.generic) else value


@contextlib.contextmanager
def _measuring(name: str) -> Iterator[None]:
    with console.errors().status() as say:
        say(f"measuring {name}")
        yield


def _short(source: str) -> str:
    """The expression as one line."""
    text = " ".join(source.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _make_folder_importable() -> None:
    """Like ``python -c``: modules of the current folder come first."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)) and os.getcwd() not in sys.path[:1]:
        sys.path.insert(0, os.getcwd())


class Namespace:
    """The names that the setup made, and code that uses them. Invalid Python raises InvalidArgument."""

    def __init__(self, setup: str) -> None:
        self._names: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__", "__annotations__": {}}
        tree = _parsed(setup, "setup")
        exec(_compiled(tree, "setup"), self._names)

    def function(self, source: str, label: str) -> Callable[[], object]:
        """A function without arguments that returns the value of the last expression; statements may precede it.

        Its attribute ``gpuscope_repeat`` runs the text a given number of times in a loop, like timeit. So a line of
        some 20 ns is measured without the cost of a function call.
        """
        tree = _parsed(source, label)
        if not tree.body:
            raise InvalidArgument(f"{label} is empty; give Python, as 'a @ b'")
        last = tree.body[-1]
        once = (
            [*tree.body[:-1], ast.copy_location(ast.Return(last.value), last)] if isinstance(last, ast.Expr) else None
        )
        function = self._defined("def measured(): pass", once or tree.body, label)
        function.__qualname__ = label
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"{label} contains yield or await, so that a call of it would do nothing")
        if not any(isinstance(node, ast.Return) for node in ast.walk(tree)):
            shell = "def measured(gpuscope_calls):\n  for gpuscope_call in gpuscope_calls: pass"
            loop = self._defined(shell, tree.body, label)
            function.gpuscope_repeat = lambda calls: loop(itertools.repeat(None, calls))  # type: ignore[attr-defined]
        return function

    def _defined(self, shell: str, body: list[ast.stmt], label: str) -> FunctionType:
        """Compiles a function `measured` with that body."""
        tree = ast.parse(shell, _file(label))
        outer: Any = tree.body[0]
        while not isinstance(outer.body[0], ast.Pass):
            outer = outer.body[0]
        outer.body = body
        function = self._executed(tree, label)
        # Variables that the setup made and the text assigns keep their value from call to call, as in timeit.
        assigned = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        if shared := sorted(self._names.keys() & assigned):
            measured: Any = tree.body[0]
            measured.body.insert(0, ast.Global(shared))
            function = self._executed(ast.fix_missing_locations(tree), label)
        return function

    def _executed(self, tree: ast.Module, label: str) -> FunctionType:
        found: dict[str, FunctionType] = {}  # separate: the setup may have a name `measured`
        exec(_compiled(tree, label), self._names, found)
        return found["measured"]

    def value(self, source: str, label: str) -> Any:
        """The value of an expression."""
        return self.function(source, label)()


def own_traceback(error: BaseException) -> str | None:
    """The traceback from the first frame of the texts on, as the interpreter prints it; None without such a frame."""
    from gpuscope.benchmarking.processes import InProcess

    if isinstance(error.__cause__, InProcess):
        return None if isinstance(error, InvalidArgument) else _own_part(str(error.__cause__))
    own: TracebackType | None = error.__traceback__
    while own is not None and not own.tb_frame.f_code.co_filename.startswith(_PREFIX):
        own = own.tb_next
    if own is None:
        return None
    return "".join(traceback.format_exception(type(error), error, own)).rstrip("\n")


def _own_part(text: str) -> str | None:
    """The same for a traceback given as text, from another process."""
    head, own, rest = text.partition(f'  File "{_PREFIX}')
    return f"{head.splitlines()[0]}\n{own}{rest}".rstrip("\n") if own else None


def _file(label: str) -> str:
    return f"{_PREFIX}{label}>"


def _parsed(source: str, label: str) -> ast.Module:
    with contextlib.suppress(UnicodeError):  # arguments are decoded as ASCII in the C locale
        source = source.encode(errors="surrogateescape").decode()
    text = textwrap.dedent(source).strip("\n")
    # Tracebacks, and libraries that compile functions, look for source here.
    linecache.cache[_file(label)] = (len(text), None, text.splitlines(keepends=True), _file(label))
    try:
        return ast.parse(text.strip() if "\n" not in text else text, _file(label))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested parentheses
        raise _misspelled(error, label) from None


def _compiled(tree: ast.Module, label: str) -> Any:
    try:
        return compile(tree, _file(label), "exec", dont_inherit=True)
    except (SyntaxError, RecursionError) as error:
        raise _misspelled(error, label) from None


def _misspelled(error: Exception, label: str) -> InvalidArgument:
    shown = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    return InvalidArgument(f"{label} is not valid Python:\n{shown}")
