# SPDX-License-Identifier: Apache-2.0
"""``%%gpuscope`` of notebooks: profiles a cell. ``%load_ext gpuscope`` brings it."""

from __future__ import annotations

import argparse
import keyword
import shlex
import traceback
from typing import Any, NoReturn

from gpuscope.errors import InvalidArgument
from gpuscope.profiler.facade import profile

_OPTIONS = {
    "record_shapes": "the shapes of operators' inputs",
    "with_stack": "where in the program operators and launches are",
    "with_modules": "the torch.nn.Module that operators run in",
    "profile_memory": "what allocators hand out",
    "with_flops": "floating-point operations, from shapes",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"%%gpuscope: {message}; see %%gpuscope?")  # --help needs a cell


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("%%gpuscope", description="Profiles the cell and shows what took the time.", allow_abbrev=False)
    parser.add_argument("name", nargs="?", default="prof", help="the variable that has the recording (default: prof)")
    parser.add_argument("--page", action="store_true", help="show the whole report")
    parser.add_argument("--height", type=int, default=600, help="of the report, in pixels (default: 600)")
    for option, words in _OPTIONS.items():
        parser.add_argument(f"--{option.replace('_', '-')}", action="store_true", help=f"record {words}")
    return parser


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidArgument(f"%%gpuscope: the line is {line!r}: {error}; accepted are words as of a shell") from error


def _show_briefly(error: BaseException) -> None:
    """Has the notebook show one line of an error, the next time that it shows it: its traceback is there already."""

    def lines() -> list[str]:
        del error._render_traceback_  # type: ignore[attr-defined]
        return traceback.format_exception_only(error)

    error._render_traceback_ = lines  # type: ignore[attr-defined]


def load_ipython_extension(shell: Any) -> None:
    """Registers ``%%gpuscope``: what ``%load_ext gpuscope`` calls with the notebook's shell."""

    def run(line: str, cell: str) -> None:
        try:
            options = _parser().parse_args(_words(line))
        except SystemExit:  # --help
            return
        if not options.name.isidentifier() or keyword.iskeyword(options.name):
            raise InvalidArgument(f"%%gpuscope: name is {options.name!r}; accepted is the name of a variable")
        chosen = {option: getattr(options, option) for option in _OPTIONS}
        profiler = profile(python_samples=True, **chosen)
        with profiler:
            done = shell.run_cell(cell)  # shows what the cell gives, and the traceback of what it raises
        shell.user_ns[options.name] = profiler
        if options.page:
            profiler.show(options.height)
        else:
            from IPython.display import display

            display(profiler)
        error = done.error_before_exec or done.error_in_exec
        if error is not None:
            _show_briefly(error)
            raise error  # or the notebook would go on with the cells below

    run.__doc__ = _parser().format_help()
    shell.register_magic_function(run, magic_kind="cell", magic_name="gpuscope")
