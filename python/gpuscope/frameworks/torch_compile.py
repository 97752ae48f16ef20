# SPDX-License-Identifier: Apache-2.0
"""Regions in code that torch.compile, torch.export and torch.jit.script compile.

Dynamo and TorchScript accept only torch's own `record_function`. This registers ours as equivalent. By default,
Dynamo leaves regions out of graphs. With `torch._dynamo.config.capture_profiler_record_function`, and in TorchScript,
a region is an operator of the graph.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from gpuscope.frameworks import torch_regions as torch_regions  # installs regions for torch's own profilers
from gpuscope.late_imports import WhenImported
from gpuscope.regions import mark, record_function

__all__ = ["leave_out_of_graphs", "mark", "record_function"]

_DYNAMO = "torch._dynamo"  # the whole package: its modules import each other in circles
_SCRIPT = "torch.jit._script"

_left_out: list[tuple[str, object, type | None]] = [("mark", mark, None)]
_traceable = False  # whether everything is registered with Dynamo


def leave_out_of_graphs(name: str, function: object, block: type | None = None) -> None:
    """Makes Dynamo leave calls of a function out of its graphs, with a warning.

    Args:
        name: of the function, for the warning.
        function: the function.
        block: class of the context managers that it returns; None if it returns nothing.
    """
    _left_out.append((name, function, block))
    if _traceable:
        _register_left_out(name, function, block)


def _register_regions() -> None:
    global _traceable
    try:
        import torch.autograd.profiler
        from torch._dynamo.variables.builder import VariableBuilder
        from torch._dynamo.variables.torch import TorchCtxManagerClassVariable

        theirs = torch.autograd.profiler.record_function

        def build_class(builder: Any, value: object) -> Any:
            dispatch_on_types()  # for subclasses defined since: Dynamo meets their base class first
            _guard(builder)
            return TorchCtxManagerClassVariable(theirs, source=builder.source)

        def dispatch_on_types(kind: type[record_function] = record_function) -> None:
            _dispatch_on_type(kind, lambda value: _region_variable(theirs, value))
            for subclass in kind.__subclasses__():
                dispatch_on_types(subclass)

        VariableBuilder._id_dispatch()[id(record_function)] = build_class
        dispatch_on_types()
        _traceable = True
        for left_out in _left_out:
            _register_left_out(*left_out)
    except Exception as error:  # an unknown version of Dynamo, or a failed import: graphs break at regions
        warnings.warn(
            f"this torch's compiler does not take gpuscope's regions, and graphs break there: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def _region_variable(theirs: type, region: record_function) -> Any:
    """Dynamo's variable for a region that was made outside of the compiled code."""
    from torch._dynamo.variables import ctx_manager
    from torch._dynamo.variables.constant import ConstantVariable

    known = getattr(ctx_manager, "ProfilerRecordFunctionContextVariable", None)
    if known is None:
        return ctx_manager.NullContextVariable()
    args = region.args if isinstance(region.args, str) else None
    arguments = [ConstantVariable.create(value) for value in (region.name, args)]
    return known.create(func=theirs, record_args=arguments, record_kwargs={})


def _register_left_out(name: str, function: object, block: type | None) -> None:
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.ctx_manager import NullContextVariable
    from torch._dynamo.variables.misc import LambdaVariable

    def left_out(*_args: object, **_kwargs: object) -> Any:
        warnings.warn(f"{name}() inside of compiled code is left out of the graph", stacklevel=2)
        return NullContextVariable() if block is not None else ConstantVariable.create(None)

    def build(builder: Any, _value: object) -> Any:
        _guard(builder)
        return LambdaVariable(left_out, source=builder.source)

    VariableBuilder._id_dispatch()[id(function)] = build
    if block is not None:
        _dispatch_on_type(block, left_out)


def _dispatch_on_type(kind: type, variable: Callable[[Any], Any]) -> None:
    from torch._dynamo.variables.builder import VariableBuilder

    def build(builder: Any, value: object) -> Any:
        _guard(builder)
        return variable(value)

    for trace_numpy in (False, True):
        VariableBuilder._type_dispatch_impl(trace_numpy)[kind] = build


def _guard(builder: Any) -> None:
    from torch._dynamo.guards import GuardBuilder

    builder.install_guards(GuardBuilder.ID_MATCH)


def _script_regions() -> None:
    """Gives our class torch's name: TorchScript finds classes by name and compiles their source, which ours lacks."""
    import torch

    internal = sys.modules.get("torch._jit_internal")
    qualified_name = getattr(internal, "_qualified_name", None)
    if internal is None or qualified_name is None:  # an unknown version: TorchScript does not accept regions
        return

    def name_of(obj: object, *args: object, **kwargs: object) -> object:
        if obj is not record_function:
            result: object = qualified_name(obj, *args, **kwargs)
            return result
        theirs = torch.autograd.profiler.record_function
        name = qualified_name(theirs, *args, **kwargs)
        resolve = internal.createResolutionCallbackForClassMethods(theirs)
        torch.jit._recursive._compile_and_register_class(theirs, resolve, name)
        return name

    internal._qualified_name = name_of  # type: ignore[attr-defined]


WhenImported(_DYNAMO, _register_regions).watch()
WhenImported(_SCRIPT, _script_regions).watch()
