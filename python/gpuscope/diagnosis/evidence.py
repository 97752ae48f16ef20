# SPDX-License-Identifier: Apache-2.0
"""The rows behind findings: for each rule a query that `gpuscope sql` answers from the same recording."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.diagnosis.context import Context, Where

_KERNELS = (
    "select name, grid, block, count(*) as kernels, sum(duration_ns) as duration_ns from kernels where {gpu}{kernels} "
    "group by all order by duration_ns desc"
)
_COPIES = (
    "select name, source, destination, count(*) as copies, sum(bytes) as bytes, sum(duration_ns) as duration_ns "
    "from memcpys where {gpu} group by all order by duration_ns desc"
)
_CALLS = (
    "select name, count(*) as calls, sum(duration_ns) as duration_ns from api where {steps} group by all "
    "order by duration_ns desc"
)
_LAUNCHES = (
    "select kernel, count(*) as launches, sum(duration_ns) as duration_ns, "
    "sum(kernel_duration_ns) as kernel_duration_ns from launches where {steps} group by all order by launches desc"
)
_REGIONS = (
    "select name, count(*) as regions, sum(duration_ns) as duration_ns from regions where {steps}{regions} "
    "group by all order by duration_ns desc"
)
_IDLE = (
    "select ended_by, count(*) as gaps, sum(duration_ns) as duration_ns from idle where {gpu} group by all "
    "order by duration_ns desc"
)
_FUNCTIONS = (
    "select name, count(*) as calls, sum(duration_ns) as duration_ns from python_functions where {steps} and kind = 2 "
    "group by all"
)
_LINES = (
    "select file, line, function, sum(count) as samples, sum(cpu_ns) as cpu_ns from python_samples "
    "join (select row_number() over () - 1 as stack, * from stacks) using (stack) where {during} group by all "
    "order by samples desc"
)
_PROCESSES = (
    "select process, sum(duration_ns) as duration_ns, sum(cpu_ns) as cpu_ns, "
    "sum(wait_ns) filter (wait_ns >= 0) as wait_ns, sum(read_bytes) filter (read_bytes >= 0) as read_bytes "
    "from process_usages where {during} group by all"
)
_GROUP = (
    "select sum(duration_ns) as duration_ns, sum(throttled_ns) filter (throttled_ns >= 0) as throttled_ns, "
    "sum(io_wait_ns) filter (io_wait_ns >= 0) as io_wait_ns "
    "from control_group_usages where {during}"
)
_CPU_WAITS = (
    "select 'thread' as what, thread as id, sum(wait_ns) as wait_ns from thread_waits where {during} group by all "
    "union all select 'process', process, sum(wait_ns) filter (wait_ns >= 0) from process_usages "
    "where {during} group by all"
)
_DEVICE = (
    "select min(sm_mhz) filter (sm_mhz >= 0) as least_sm_mhz, max(sm_max_mhz) as sm_max_mhz, "
    "max(power_mw) as most_power_mw, min(power_limit_mw) filter (power_limit_mw >= 0) as least_power_limit_mw, "
    "max(temperature_c) as most_temperature_c, "
    "bit_or(throttle_reasons) filter (throttle_reasons >= 0) as throttle_reasons from device_samples where {gpu}"
)
_COUNTERS = (
    "select name, avg(value) as mean, max(value) as most from counter_values "
    "join (select row_number() over () - 1 as counter, name from counters) using (counter) "
    "join (select row_number() over () - 1 as sample, device, start_ns from counter_samples) using (sample) "
    "where {gpu} group by all"
)
_MEMORY = (
    "select ordinal, max(allocated_bytes) as allocated_bytes, max(reserved_bytes) as reserved_bytes from memory "
    "where {steps} group by all"
)
_STEPS = "select step, start_ns, duration_ns from steps order by step"
_DEVICES = (
    "select ordinal, devices.name, count(gpu_work.start_ns) as works from devices "
    "left join gpu_work on gpu_work.device = ordinal group by all order by ordinal"
)

QUERIES = {
    **dict.fromkeys(("R01", "R02", "R22", "R27"), _REGIONS),
    **dict.fromkeys(("R03", "R04", "R05", "R06"), _PROCESSES),
    "R07": _GROUP,
    "R08": _CPU_WAITS,
    **dict.fromkeys(("R09", "R10", "R11", "R12", "R13", "R14", "R18"), _COPIES),
    **dict.fromkeys(("R15", "R16", "R17"), _CALLS),
    **dict.fromkeys(("R19", "R20", "R21", "R40"), _LAUNCHES),
    "R23": _FUNCTIONS,
    **dict.fromkeys(("R24", "R25", "R26"), _IDLE),
    "R51": _LINES,
    **dict.fromkeys(("R29", "R30", "R31", "R32", "R33", "R34", "R35", "R36", "R39", "R46"), _KERNELS),
    **dict.fromkeys(("R37", "R38", "R45"), _COUNTERS),
    **dict.fromkeys(("R43", "R44"), _DEVICE),
    **dict.fromkeys(("R41", "R42"), _MEMORY),
    **dict.fromkeys(("R28", "R48"), _STEPS),
    "R47": _DEVICES,
}
"""Templates by id of the rule, with fields for the limits of rows."""


def evidence_query(rule: str, context: Context, where: Sequence[Where]) -> str:
    """SQL on the views of `gpuscope sql` that returns the rows that a rule's finding is about, in the judged steps.

    Args:
        rule: id of the rule.
        context: the diagnosed recording.
        where: the places of the finding; kernels and regions among them limit the rows.
    """
    starts, ends = context.host_steps.start_ns, (context.host_steps.end_ns, context.steps.end_ns)
    steps = during = "true"
    if len(starts):
        first, last = int(starts.min()), max(int(each.max()) for each in ends)
        steps = f"start_ns between {first} and {last}"
        during = f"start_ns <= {last} and start_ns + duration_ns >= {first}"
    gpu = f"device = {context.device.device} and {steps}" if context.device is not None else steps
    kernels = " or ".join(
        f"contains(name, {_quoted(each.kernel.removesuffix('...'))})" for each in where if each.kernel
    )
    regions = " or ".join(f"name = {_quoted(each.region.split(' > ')[-1])}" for each in where if each.region)
    query = QUERIES[rule]
    if context.device is None and query is _IDLE:  # a thread waits, not a GPU
        query = _LINES
    return query.format(
        steps=steps,
        during=during,
        gpu=gpu,
        kernels=f" and ({kernels})" if kernels else "",
        regions=f" and ({regions})" if regions else "",
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
