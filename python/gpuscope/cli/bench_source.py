# SPDX-License-Identifier: Apache-2.0
"""Python given as text, as functions in a namespace of their own."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import textwrap
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gpuscope.errors import InvalidArgument

_PREFIX = "<gpuscope "  # of the file names that the texts get in tracebacks


class Namespace:
    """The names that setup made, and code that uses them.

    Args:
        setup: statements, run at once.

    Raises:
        InvalidArgument: the setup is not Python.
    """

    def __init__(self, setup: str) -> None:
        self._names: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__", "__annotations__": {}}
        tree = _parsed(setup, "setup")
        exec(_compiled(tree, "setup"), self._names)

    def function(self, source: str, label: str) -> Callable[[], object]:
        """A function without arguments whose value is that of the last expression, which may follow statements.

        Args:
            source: the Python.
            label: what to call it in messages.

        Raises:
            InvalidArgument: it is not Python, or empty.
        """
        tree = _parsed(source, label)
        if not tree.body:
            raise InvalidArgument(f"{label} is empty; give Python, as 'a @ b'")
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            tree.body[-1] = ast.copy_location(ast.Return(last.value), last)
        shell = ast.parse("def measured(): pass", _file(label))
        definition = shell.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.body = tree.body
        exec(_compiled(shell, label), self._names)
        function: Callable[[], object] = self._names.pop("measured")
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"{label} contains yield or await, so that a call of it would do nothing")
        return function

    def value(self, source: str, label: str) -> Any:
        """What an expression comes to.

        Raises:
            InvalidArgument: it is not Python, or empty.
        """
        return self.function(source, label)()


def report(error: BaseException) -> str | None:
    """The traceback of an error from the texts on, as the interpreter prints it; None when they have no part in it."""
    own: TracebackType | None = error.__traceback__
    while own is not None and not own.tb_frame.f_code.co_filename.startswith(_PREFIX):
        own = own.tb_next
    if own is None:
        return None
    return "".join(traceback.format_exception(type(error), error, own)).rstrip("\n")


def _file(label: str) -> str:
    return f"{_PREFIX}{label}>"


def _parsed(source: str, label: str) -> ast.Module:
    text = textwrap.dedent(source).strip("\n")
    # Tracebacks, and libraries that compile functions, look for source here.
    linecache.cache[_file(label)] = (len(text), None, text.splitlines(keepends=True), _file(label))
    try:
        return ast.parse(text.strip() if "\n" not in text else text, _file(label))
    except (SyntaxError, ValueError) as error:
        raise _misspelled(error, label) from None


def _compiled(tree: ast.Module, label: str) -> Any:
    try:
        return compile(tree, _file(label), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _misspelled(error, label) from None


def _misspelled(error: Exception, label: str) -> InvalidArgument:
    shown = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    return InvalidArgument(f"{label} is not valid Python:\n{shown}")
