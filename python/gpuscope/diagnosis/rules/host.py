# SPDX-License-Identifier: Apache-2.0
"""The launching thread does other work than launching."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gpuscope._core import CallKind
from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.findings import OWN_CODE, percent
from gpuscope.diagnosis.own_code import (
    MUCH,
    OwnFunction,
    functions_in,
    host_time,
    region_of,
    source_lines,
    spans_of,
)
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import GENERAL, LEAST, Cause, Rule, count_of, host_edit, needs, places
from gpuscope.diagnosis.rules.waits import drained
from gpuscope.memory.history.call_stacks import is_program
from gpuscope.spans import count_before, covered_ns, union
from gpuscope.steps.host_waits import DEEPEST
from gpuscope.steps.idle import IdleCause, causes_of_paths, function_rows, overheads_of_thread
from gpuscope.steps.steps import WHOLE_RUN, Array
from gpuscope.trace import number_of
from gpuscope.units import format_digits, format_seconds

_FUNCTION = re.compile(r"^(?P<file>[^<].*)\((?P<line>\d{1,9})\): (?P<function>.+)$")
_MOST_LINES = 3
_MOST_OF_IT = 0.9
# Patterns of callees, and the advice for each.
_ADVICE = (
    (r"\bgc\.collect$", "do not collect garbage explicitly in the loop; gc.freeze() after the set-up"),
    (
        r"\b(apply|applymap|iterrows|itertuples)$",
        "use operations on whole columns instead of a Python function per row",
    ),
    (
        r"\b(torch|np|numpy|joblib|pickle)\.(save\w*|dumps?)$|\bto_(csv|parquet|pickle|json)$",
        "save less often, or on another thread or process",
    ),
    (r"\bdumps?$", "serialize less often, less data, or with a faster library"),
    (
        r"\b(json|pickle|csv|yaml)\b|\bread_(csv|json|parquet|excel)$|\bloads?$",
        "parse once and keep the result in a binary format, use a faster parser, or parse in worker processes",
    ),
    (r"\bsleep$", "wait for the event itself instead of sleeping, or sleep for less"),
    (
        r"\bsubprocess\.\w+$|\bPopen\b|\bos\.system$",
        "start the processes together and wait for all of them, or do their work in this process",
    ),
    (
        r"\b(acquire|wait|result)$|\b(Thread|Process)\.join$",
        "hold the lock for less time, or wait after doing other work",
    ),
    (
        r"\b(recv\w*|sendall|urlopen)$|\b(requests|httpx|Session)\.\w+$",
        "keep connections open and send several requests at once",
    ),
    (r"\b(logging|Logger)\b|^print$", "log less often, or through logging.handlers.QueueHandler"),
    (r"\b(open|read\w*|write\w*|flush|fsync)$", "read and write larger pieces, less often, or on another thread"),
    (r"deepcopy$", "copy only what changes"),
    (r"\bsynchronize$", "wait for the GPU once, after the loop"),
    (r"\bempty_cache$", "do not empty the cache in the loop"),
)
_COLLECTS, _IMPORTS = re.compile(r"\bcollect\("), re.compile(r"(import|from)\s")
_COMPUTING = "make it faster (vectorize it, keep results, compiled code), or divide it among processes"
_INTERVALS = 2  # sampling intervals that a pause must last to be divided by samples
_PREFETCH = "it waits most of this time: prefetch the data with a DataLoader or a thread"
_WAITING = "it waits most of this time: do other work meanwhile, on threads or with asyncio"


def _allocation(context: Context) -> Iterator[Cause]:
    pieces = context.pieces.having(IdleCause.ALLOCATION)
    kinds = (int(CallKind.ALLOC), int(CallKind.FREE))
    calls = np.flatnonzero(np.isin(context.trace.call_kinds, kinds) & (context.call_step >= 0))
    heads, frees = drained(context, "FREE")
    if len(calls) == 0 or len(pieces) + len(heads) == 0:
        return
    api = context.trace.api
    where = places(*context.places_of(calls, api.duration_ns[calls])[:2])
    spans = np.stack(
        [api.thread[calls].astype(np.int64), api.start_ns[calls], api.start_ns[calls] + api.duration_ns[calls]], axis=1
    )
    yield Cause(
        "memory is taken from the driver and given back in the steps",
        "no empty_cache() in the loop; sizes that do not change, expandable_segments:True, or a memory pool",
        Edit(unwaited=np.unique(frees), host_spans=spans),
        where,
        {
            "": f"{format_digits(len(calls) / len(context.steps))} calls a step",
            "each takes": _time(float(api.duration_ns[calls].mean())),
        },
    )


def _garbage(context: Context) -> Iterator[Cause]:
    pieces = context.pieces.having(IdleCause.GARBAGE)
    rows = _functions_of(context, IdleCause.GARBAGE, pieces)
    if len(rows) == 0 or len(pieces) == 0:
        return
    if len(rows) == 1 and len(context.steps.end_ns) == 1:  # probably a collection of the start
        return
    longest = int(context.trace.python_functions.duration_ns[rows].max())
    spans = _spans(context, rows)
    where = _callers(context, rows)
    text = _text_of(context, where[0]) if where else ""
    is_explicit = _COLLECTS.search(text) is not None
    if context.device is None and (is_explicit or _IMPORTS.match(text)):  # `_own_code` covers these and imports
        return
    yield Cause(
        "the program collects garbage explicitly" if is_explicit else "Python collects garbage",
        "do not call gc.collect() in the loop"
        if is_explicit
        else "gc.freeze() after the set-up, gc.set_threshold(100_000), or gc.collect() where it does not hurt",
        Edit(host_spans=spans),
        where,
        {"": count_of(len(rows), "collection"), "the longest took": _time(longest)},
        is_rare=True,
    )


def _files(context: Context) -> Iterator[Cause]:
    pieces = context.pieces.having(IdleCause.FILES)
    if len(pieces) == 0:
        return
    rows = _functions_of(context, IdleCause.FILES, pieces)
    spans = _with_library(context, _spans(context, rows))
    spent = context.pieces.cause_ns[IdleCause.FILES, pieces]
    lines = context.lines(context.pieces.launch[pieces], spent)[:1]
    inside = _functions(context, pieces)
    where = _callers(context, rows) or places(*(where for where, _ in lines))
    evidence = {"in": inside[0][1]} if inside else {}
    own = functions_in(context, set(spans[:, 0].tolist()), union(*spans[:, 1:].T), 0.0)[:1] if len(spans) else []
    if own:
        title = f"{_described(context, own[0], context.wall_ns)[0]} reads or writes"
        title += " while the GPU waits" if context.device else ""
    else:
        title = "files or sockets are read or written " + ("between launches" if context.device else "in the steps")
    yield Cause(
        title,
        "save and log on another thread, less often, and on one rank alone",
        Edit(host_spans=spans),
        where,
        evidence,
        is_rare=True,
    )


def _compiling(context: Context) -> Iterator[Cause]:
    pieces = context.pieces.having(IdleCause.COMPILING)
    if len(pieces) == 0:
        return
    trace, causes = context.trace, causes_of_paths(context.trace)
    regions = np.flatnonzero(causes[np.minimum(trace.regions.path, len(causes) - 1)] == IdleCause.COMPILING)
    last_ns = context.steps.end_ns[-1]
    starts = trace.regions.start_ns[regions]
    regions = regions[(starts >= context.steps.start_ns[0]) & (starts < last_ns)]
    nested = np.isin(trace.regions.parent[regions], regions)
    outermost = regions[~nested]
    ends = trace.regions.start_ns[outermost] + trace.regions.duration_ns[outermost]
    spans = np.stack(
        [trace.regions.thread[outermost].astype(np.int64), trace.regions.start_ns[outermost], ends], axis=1
    )
    where = context.where_of_region(int(outermost[0])) if len(outermost) else None
    yield Cause(
        "code is compiled in steps that should only run",
        "shapes that do not change (pad or bucket them), torch._dynamo.mark_dynamic, or a cache: TORCH_LOGS=recompiles",
        Edit(host_spans=spans),
        places(where),
        {"": _in_steps(context, len(outermost))},
        is_rare=True,
    )


def _loading(context: Context) -> Iterator[Cause]:
    pieces = context.pieces.having(IdleCause.LOADING)
    if len(pieces) == 0:
        return
    spans = [np.zeros((0, 3), np.int64)]
    for thread in sorted(context.threads_of(pieces)):
        starts, ends, causes = overheads_of_thread(context.trace, thread)
        loads = (causes == IdleCause.LOADING) & (ends > context.steps.start_ns[0]) & (starts < context.steps.end_ns[-1])
        starts, ends = union(starts[loads], ends[loads])
        spans.append(np.stack([np.full(len(starts), thread), starts, ends], axis=1))
    every = np.concatenate(spans)
    spent = context.pieces.cause_ns[IdleCause.LOADING, pieces]
    yield Cause(
        "the driver loads or compiles code in steps that should only run",
        "run each kernel once before (or CUDA_MODULE_LOADING=EAGER); code for this GPU instead of PTX; sizes that do "
        "not change, so that libraries keep their kernels",
        Edit(host_spans=every),
        places(*context.places_of(context.pieces.launch[pieces], spent)[:2]),
        {"": _in_steps(context, len(every))},
        is_rare=True,
    )


def _python(context: Context) -> Iterator[Cause]:
    """Pauses of the launching thread that are longer than launching takes.

    They are divided among the own functions that samples saw, if pauses last several sampling intervals. Otherwise they
    count for the place at their end.
    """
    if context.device is None:
        return
    causes = (IdleCause.HOST_CODE, IdleCause.FRAMEWORK)
    pieces = np.flatnonzero(context.long_pieces)
    spent = context.pieces.sum_of(causes, pieces)
    most = 2 * spent > context.pieces.end_ns[pieces] - context.pieces.start_ns[pieces]
    pieces, spent = pieces[most], spent[most]
    if len(pieces) == 0:
        return
    by_function = list(_own_pauses(context, pieces))
    if by_function:
        yield from by_function
        return
    for where, group in context.lines(context.pieces.launch[pieces], spent)[:_MOST_LINES]:
        rows = pieces[group]
        inside = _functions(context, rows)
        spans = context.pieces.start_ns[rows], context.pieces.end_ns[rows]
        sampled = context.sampled_places(context.threads_of(rows), *spans)
        evidence = {
            "": f"{format_digits(len(rows) / len(context.steps))} pauses a step"
            + (f", before {where}" if where else "")
        }
        evidence |= {f"in {name}": _time(time / len(context.steps)) for _, name, time in inside[:2]}
        evidence |= {f"at {place}": _time(time / len(context.steps)) for place, time in sampled[:2]}
        yield Cause(
            "code of the program keeps the GPU waiting",
            "make it faster (vectorise, compute it once before the loop), do it on the GPU, or have another thread or "
            "process do it",
            host_edit(context, rows, causes),
            places(*(place for place, _ in sampled[:1]), *(place for place, _, _ in inside[:1]), where),
            evidence,
        )


def _own_pauses(context: Context, pieces: Array) -> Iterator[Cause]:
    """These pauses by own function. The time of a function is that of its samples.

    A pause begins with the end of the thread's last call. If that was before the GPU was idle, the thread would be
    ahead by the whole pause.
    """
    idle, api, threads = context.pieces, context.trace.api, context.threads_of(pieces)
    since, until, calls = idle.start_ns[pieces], idle.end_ns[pieces], idle.launch[pieces]
    known = np.flatnonzero(calls >= 0)
    until[known] = np.clip(api.start_ns[calls[known]], since[known], until[known])
    before = context.call_before[calls[known]]
    known, before = known[before >= 0], before[before >= 0]
    since[known] = np.minimum(since[known], api.start_ns[before] + api.duration_ns[before])
    if (until - since).mean() < _INTERVALS * number_of(context.trace.info, "samples.interval_ns"):
        return
    spans = union(since, until)
    for function in functions_in(context, threads, spans, LEAST * context.wall_ns)[:_MOST_LINES]:
        seen = spans_of(context, function, threads, spans)
        title, where, evidence, advice = _described(context, function, context.wall_ns)
        yield Cause(f"{title} keeps the GPU waiting", advice, Edit(host_spans=seen), where, evidence)


def _own_code(context: Context) -> Iterator[Cause]:
    """Names the own functions with much of the time. Without GPU work no model predicts savings."""
    if context.device is not None:
        return
    wall_ns = max(context.once(host_time).wall_ns, 1)
    for function in context.once(host_time).functions:
        if function.time_ns < MUCH * wall_ns:
            break
        title, where, evidence, advice = _described(context, function, wall_ns)
        share = min(function.time_ns / wall_ns, 1.0)
        yield Cause(title, advice, where=where, evidence=evidence, share=share)


def _described(
    context: Context, function: OwnFunction, wall_ns: int
) -> tuple[str, tuple[Where, ...], dict[str, str], str]:
    """The title, place, evidence and advice of a finding about an own function."""
    called, called_ns = function.calls[0] if function.calls else ("", 0.0)
    names_it = called and called != function.where.function and called_ns >= MUCH * function.time_ns
    title = f"{function.name}: {called}" if names_it else function.name
    evidence = {"": format_seconds(function.time_ns / len(context.steps) / 1e9)}
    evidence[""] += " a step" if context.steps.source != WHOLE_RUN else ""
    evidence |= {name: percent(time / wall_ns) for name, time in function.calls[:2] if name and 20 * time > wall_ns}
    is_most = bool(function.lines) and function.lines[0][1] >= _MOST_OF_IT * function.time_ns
    more = [(f"line {line}", time) for line, time in function.lines[is_most:_MOST_LINES]]
    evidence |= {name: percent(time / wall_ns) for name, time in more if 20 * time > wall_ns}
    evidence |= {f"in {each.name}": percent(each.time_ns / wall_ns) for each in function.inner}
    if function.stacks:
        evidence["on a CPU"] = percent(min(function.cpu_ns / function.time_ns, 1.0))
    region = region_of(context, function)
    where = function.where if region is None else replace(function.where, region=region)
    text = _text_of(context, where)
    if text:
        evidence["source"] = text
    advice = _advice(function, text, float(context.pieces.cause_ns[IdleCause.CPU_WAIT].sum()) / wall_ns)
    if context.device is not None and advice == _WAITING:
        advice = _PREFETCH
    return title, (where,), evidence, advice


def _text_of(context: Context, where: Where) -> str:
    """The source of a line, if known."""
    lines = source_lines(context.trace, where.file or "")[(where.line or 0) - 1 :]
    return lines[0].strip() if lines and where.line else ""


def _advice(function: OwnFunction, text: str, no_cpu: float) -> str:
    """Advice by the function's main callee and its line. `no_cpu`: share of the time spent waiting for a CPU."""
    called = function.calls[0][0] if function.calls else ""
    for pattern, advice in _ADVICE:
        if re.search(pattern, called) or (not called and re.search(pattern, text)):
            return advice
    if not function.stacks:
        return "record it with python_samples=True (gpuscope diagnose does): samples show its lines"
    return _WAITING if function.cpu_ns / function.time_ns + no_cpu < 1 / 2 else _COMPUTING


def _functions(context: Context, pieces: Array) -> list[tuple[Where | None, str, float]]:
    """The Python functions in these idle pieces by their self time in ns, the largest first.

    Functions in C have the place of the function that calls them.
    """
    functions, idle = context.trace.python_functions, context.pieces
    launches = idle.launch[pieces]
    threads = np.append(context.trace.api.thread.astype(np.int64), context.main_thread)[launches]
    totals = np.zeros(len(functions))
    for thread in np.unique(threads).tolist():
        spans = pieces[threads == thread]
        starts, ends = idle.start_ns[spans], idle.end_ns[spans]
        rows = np.flatnonzero(functions.thread == thread)
        begins = functions.start_ns[rows]
        totals[rows] = covered_ns(starts, ends, begins, begins + functions.duration_ns[rows])
    known = functions.parent < len(functions)
    alone = totals.copy()
    np.subtract.at(alone, functions.parent[known], totals[known])
    if len(functions) == 0 or alone.max() <= 0:
        return []
    names = functions.name
    sums = np.bincount(names, np.maximum(alone, 0))
    best = [name for name in np.argsort(-sums, kind="stable")[:_MOST_LINES].tolist() if sums[name] > 0]
    found = []
    for name in best:
        text = context.trace.string(name)
        row = int(np.flatnonzero(names == name)[0])
        match = _FUNCTION.match(text)
        found.append(
            (_where_of_function(context, row), _plain(match["function"] if match else text), float(sums[name]))
        )
    return found


def _where_of_function(context: Context, row: int) -> Where | None:
    """The innermost function of the program that this one is or is called by; this one if there is none."""
    functions, first = context.trace.python_functions, None
    for _ in range(DEEPEST):
        if row >= len(functions):
            break
        match = _FUNCTION.match(context.trace.string(int(functions.name[row])))
        where = Where(match["file"], int(match["line"]), match["function"]) if match else None
        if where is not None and is_program(where.file or ""):
            return where
        first = first or where
        row = int(functions.parent[row])
    return first


def _plain(name: str) -> str:
    """The name of a C function without its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", name.strip("<>"))


def _functions_of(context: Context, cause: IdleCause, pieces: Array) -> Array:
    """The calls of Python functions with such a cause in the steps, on the threads that these pieces wait for."""
    functions = context.trace.python_functions
    rows = function_rows(context.trace, cause)
    starts = functions.start_ns[rows]
    inside = (starts >= context.steps.start_ns[0]) & (starts < context.steps.end_ns[-1])
    found: Array = rows[inside & np.isin(functions.thread[rows], list(context.threads_of(pieces)))]
    return found


def _callers(context: Context, rows: Array) -> tuple[Where, ...]:
    """The place in the program with most of the time of the calls.

    That is the line that samples saw; without samples, the function around.
    """
    functions = context.trace.python_functions
    if len(rows) == 0:
        return ()
    spans = union(functions.start_ns[rows], functions.start_ns[rows] + functions.duration_ns[rows])
    seen = context.sampled_places(np.unique(functions.thread[rows]).tolist(), *spans)
    if seen:
        return (seen[0][0],)
    longest = int(rows[np.argmax(functions.duration_ns[rows])])
    return places(_where_of_function(context, longest))


def _spans(context: Context, rows: Array) -> Array:
    """The time of the calls by thread, as `Edit.host_spans`; nested calls count once."""
    functions = context.trace.python_functions
    spans = [np.zeros((0, 3), np.int64)]
    for thread in np.unique(functions.thread[rows]).tolist():
        here = rows[functions.thread[rows] == thread]
        starts, ends = union(functions.start_ns[here], functions.start_ns[here] + functions.duration_ns[here])
        spans.append(np.stack([np.full(len(starts), thread), starts, ends], axis=1))
    return np.concatenate(spans)


def _with_library(context: Context, spans: Array) -> Array:
    """These spans, extended to the program's library call around each if they are most of it, such as `torch.save`.

    A library call that launches kernels is not used.
    """
    functions, library = context.trace.python_functions, context.library_calls
    found = [spans[:0]]
    for thread in np.unique(spans[:, 0]).tolist():
        own = union(*spans[spans[:, 0] == thread, 1:].T)
        calls = library[functions.thread[library] == thread]
        starts, ends = functions.start_ns[calls], functions.start_ns[calls] + functions.duration_ns[calls]
        launches = context.launches_of(thread)
        is_around = count_before(launches, starts, equal=False) == count_before(launches, ends, equal=False)
        is_around &= 2 * covered_ns(*own, starts, ends) > ends - starts
        starts, ends = union(np.append(own[0], starts[is_around]), np.append(own[1], ends[is_around]))
        found.append(np.stack([np.full(len(starts), thread), starts, ends], axis=1))
    return np.concatenate(found)


def _in_steps(context: Context, count: int) -> str:
    return f"{count_of(count, 'time')} in {count_of(len(context.steps), 'step')}"


def _time(time_ns: float) -> str:
    return format_seconds(time_ns / 1e9)


_STACKS = needs(
    "lines, functions and garbage collections of Python: with_stack=True, --with-stack",
    lambda context: len(context.trace.python_functions) or "metadata.with_stack" in context.trace.info,
)


RULES = (
    Rule("R17", "allocation in the loop", _allocation, 0.02),
    Rule("R23", "garbage collection", _garbage, 0.01, _STACKS),
    Rule("R24", "code of the program that keeps the GPU waiting", _python, LEAST, weight=GENERAL),
    Rule("R26", "files and sockets in the loop", _files, 0.01),
    Rule(OWN_CODE, "own code with much of the time, without GPU work", _own_code, MUCH, is_note=True),
    Rule("R27", "compiling in steady state", _compiling, 0.02),
    Rule("R27", "code that the driver loads in steady state", _loading, 0.02),
)
