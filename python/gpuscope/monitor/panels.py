# SPDX-License-Identifier: Apache-2.0
"""The page's lines on GPUs, the host and processes, as styled parts that fit the width.

Colour marks only problems that need action; each is also stated in words.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gpuscope.monitor.history import MINUTE_S, Moment
from gpuscope.monitor.programs import Program
from gpuscope.monitor.snapshot import GpuState, MigInstance
from gpuscope.text import columns_of, one_line, shorten

# A part of a line: its text, and its style as in rich; "alarm" and "dim" are of the page's theme.
Part = tuple[str, str]
Line = list[Part]

PLAIN, TITLE, DIM, ALARM = "", "bold", "dim", "bold red"
_GIB, _GB = 1 << 30, 1e9
_LABEL = 8  # columns of a row's label
_LEAST_GRAPH = 8
_GRAPH_WIDTH, _WIDEST_GRAPH = 36, 130  # of one that is several lines high; a minute of half seconds is 120
LEAST_HIGH, _HIGH_ENOUGH = 3, 8  # lines of those, with their titles
_ROW_BEFORE_GRAPH = 62  # least columns of text, so that graphs are aligned
_LINE_BEFORE_GRAPH = 86  # of a GPU in one line
_WIDEST_LINE = 200
_REGION = 24  # columns of the region that a program is in, at most
_MOST_PROGRAMS = 4
_WIDE = 100  # columns from which a GPU in one line shows minor figures
_BARS = "▁▂▃▄▅▆▇█"
_ABOUT = 0.05  # of a minute
_THROTTLED_MUCH = 0.01  # of the last minute: enough to show in a step's time

# Graphs: title, figure of GpuState or HostState, and the figure that is its 100 %; None for a share.
Graph = tuple[str, str, str | None]
Shares = Sequence[float | None]  # of 100 %, oldest first
GRAPHS: tuple[Graph, ...] = (
    ("SM active", "sm_active_ratio", None),
    ("busy", "busy_ratio", None),
    ("tensor", "tensor_active_ratio", None),
    ("DRAM", "dram_bandwidth_ratio", None),
    ("power", "power_w", "power_limit_w"),
    ("memory", "memory_used_bytes", "memory_total_bytes"),
)
HOST_GRAPHS: tuple[Graph, ...] = (
    ("CPU", "machine_cpu_s", "machine_cpus"),
    ("RAM", "machine_memory_used_bytes", "machine_memory_total_bytes"),
    ("RAM of its limit", "memory_charged_bytes", "memory_limit_bytes"),
    ("waits for CPU", "cpu_pressure_s", None),
    ("waits for disk", "io_pressure_s", None),
    ("waits for RAM", "memory_pressure_s", None),
)

HELP = """\
useful   what the GPU's units did, of all they could do in that time: tensor cores, memory (DRAM), FP32 and FP64. None
         comes to 100 %: a good matrix product has 60 to 80 % tensor, a good copy 90 % DRAM. From Hopper on.
active   SM: multiprocessors that had work, waiting or not. Busy is nvidia-smi's utilization: some kernel ran, however
         small; 100 % busy says nothing by itself. Occupancy: warps that were there; high is no goal.
memory   what processes hold, caches of frameworks included; the driver keeps some for itself.
power    the mean that the board reports, of its limit; degrees to where clocks are lowered; clock of its highest.
         THROTTLED: share of the last minute for which clocks were held back, by the counters of the driver.
links    bytes a second from (in) and to (out) the host and other GPUs; lanes that are missing; errors of memory.
         Xid: errors that the driver told since this page is open; 48, 62, 64, 74, 79, 95, 119 and 120 want a reset.
host     share of the machine's CPUs that work, tasks that wait for a CPU, storage or memory (pressure), and the CPUs
         and the memory that the container may use, with how long its limit stopped it. Without a GPU, your processes
         that run Python or use a CPU.
program  what you run under gpuscope: its step, steps a second, and what the latest diagnosis found.
graphs   the last minute, the oldest left, of 100 % or of the limit; they are as high as the terminal has room.
"""


def frame_lines(at: Moment, width: int, graph: int = 0, unicode: bool = True, height: int = 0) -> list[Line]:
    """The rows of a GPU: useful, active, memory, power, links; of a host: busy, memory, waits.

    The parts of a split GPU follow. Graphs of the last minute fill the lines that `height` leaves.
    """
    gpu = at.gpu
    if gpu is not None and "all" in gpu.why:
        reasons = "".join(f"  {error}" for error in gpu.xid_errors or ())
        said = f"    {one_line(gpu.why['all'])}: looked for again now and then{reasons}"
        return [cut([("lost", TITLE), (said, ALARM)], width)]
    names = ("busy", "memory", "waits") if gpu is None else ("useful", "active", "memory", "power", "links")
    rows = _host(at) if gpu is None else [_useful(gpu), _active(gpu), _memory(gpu), _power(at, gpu), _links(at, gpu)]
    lines: list[Line] = [[(f"{name:<{_LABEL}}", TITLE), *row] for name, row in zip(names, rows, strict=True)]
    instances = instance_lines(at, width)
    spare = height - len(lines) - len(instances)
    chosen = {each[0]: _shares(at, each) for each in _chosen(at, graph)}
    known = [title for title, shares in chosen.items() if shares] if spare >= LEAST_HIGH else []
    beside = _beside(len(known), width, spare)
    high = known[: beside * max(1, spare // _HIGH_ENOUGH)]
    for line, title in zip(lines, [title for title in chosen if title not in high], strict=False):
        _add_graph(line, title, chosen[title], width, unicode)
    lines = [*(cut(line, width) for line in lines), *instances]
    for first in range(0, len(high), beside):
        shelf = {title: chosen[title] for title in high[first : first + beside]}
        lines += _high_graphs(shelf, width // beside, spare // -(-len(high) // beside), unicode)
    return lines


def _beside(count: int, width: int, height: int) -> int:
    """The number of graphs next to each other: the fewest for which all are high enough, else the most."""
    most, rows = max(1, width // _GRAPH_WIDTH), max(1, height // _HIGH_ENOUGH)
    least = min(most, -(-width // _WIDEST_GRAPH))
    return next((beside for beside in range(least, most) if beside * rows >= count), most)


def instance_lines(at: Moment, width: int) -> list[Line]:
    """The parts of a split GPU, a line each."""
    return [cut(_instance_line(each), width) for each in (at.gpu.instances or () if at.gpu else ())]


def _instance_line(instance: MigInstance) -> Line:
    numbers = f"{instance.gpu_instance}/{instance.compute_instance}"
    shares = (("SM", "sm_active_ratio"), ("tensor", "tensor_active_ratio"), ("DRAM", "dram_bandwidth_ratio"))
    known = "  ".join(f"{title} {percent(instance.figures.get(name)):>4}" for title, name in shares)
    memory = f"{_of_gib(instance.memory_used_bytes, instance.memory_total_bytes):>18}"
    return [(f"{numbers:<{_LABEL}}", TITLE), (f"{known}  {memory}  ", PLAIN), (_profile(instance), DIM)]


def _profile(instance: MigInstance) -> str:
    """The part of an instance's name that is not in the GPU's name."""
    _, mig, profile = one_line(instance.name).rpartition("MIG ")
    return mig + profile


def gpu_title(gpu: GpuState) -> str:
    """The number and name of a GPU, and how it is split."""
    mig = "  MIG" if gpu.mig else ""
    return f"{gpu.index} {one_line(gpu.name.removeprefix('NVIDIA '))}{mig}"


def gpu_line(at: Moment, width: int, graph: int = 0, unicode: bool = True) -> Line:
    """A GPU in one line, with a graph if there is room."""
    gpu = at.gpu
    assert gpu is not None
    line: Line = [(f"{gpu.index:>2} ", TITLE)]
    if "all" in gpu.why:
        return cut([*line, (", ".join([f"lost: {one_line(gpu.why['all'])}", *_xids(gpu)]), ALARM)], width)
    line += [
        (f"SM {percent(gpu.sm_active_ratio):>4}  tensor {percent(gpu.tensor_active_ratio):>4}", PLAIN),
        (f"  DRAM {percent(gpu.dram_bandwidth_ratio):>4}", PLAIN),
        *([(f"  busy {percent(gpu.busy_ratio):>5}", DIM)] if width >= _WIDE else []),
        (f"  {_gib(gpu.memory_used_bytes):>5}/{_gib(gpu.memory_total_bytes)}G", PLAIN),
        (f"  {number(gpu.power_w):>3}W {number(gpu.temperature_c):>2}C", PLAIN),
    ]
    if warning := _alarms(at, gpu):  # warnings are cut last
        line = [*cut(line, max(_LABEL, width - columns_of(warning) - 2)), (f"  {warning}", ALARM)]
    if width >= _WIDE:
        first = _chosen(at, graph)[0]
        _add_graph(line, first[0], _shares(at, first), min(width, _WIDEST_LINE), unicode, least=_LINE_BEFORE_GRAPH)
    return cut(line, width)


def host_line(at: Moment, width: int) -> Line:
    """The machine, the container and waiting tasks, in one line."""
    cpu, memory, waits = _host(at)
    return cut([(f"{'host':<{_LABEL}}", TITLE), *cpu, ("  ", PLAIN), *memory, ("  waits: ", PLAIN), *waits], width)


def _host(at: Moment) -> list[Line]:
    host = at.sample.host
    cpus = "" if host.machine_cpus is None else f" of {host.machine_cpus}"
    cpu: Line = [(f"CPU {percent(at.machine_cpu_ratio)}{cpus}", PLAIN)]
    if host.cpu_limit_cpus is not None:
        cpu.append((f", limit {host.cpu_limit_cpus:g}", PLAIN))
    if throttled := at.host_rate("cpu_throttled_s"):
        cpu.append((f"  STOPPED BY ITS LIMIT {throttled:.2f} s a second", ALARM))
    memory: Line = [(f"RAM {_of_gib(host.machine_memory_used_bytes, host.machine_memory_total_bytes)}", PLAIN)]
    if host.memory_limit_bytes is not None:
        memory.append((f", limit {_gib(host.memory_charged_bytes)} of {_gib(host.memory_limit_bytes)}", PLAIN))
    names = {"CPU": "cpu_pressure_s", "disk": "io_pressure_s", "RAM": "memory_pressure_s"}
    rates = {name: at.host_rate(counter) for name, counter in names.items()}
    waits = " ".join(f"{name} {percent(rate)}" for name, rate in rates.items() if rate is not None)
    return [cpu, memory, [(waits, PLAIN) if waits else ("not known", DIM)]]


def program_lines(running: Sequence[Program], width: int) -> list[Line]:
    """The first few profiled programs, a line each."""
    lines = []
    for program in running[:_MOST_PROGRAMS]:
        step = "" if program.step is None else f"  step {program.step}"
        rate = "" if program.steps_per_s is None else f"  {program.steps_per_s:.3g} steps/s"
        line: Line = [(f"{'program':<{_LABEL}}", TITLE), (f"{program.name} {program.pid}{step}{rate}", PLAIN)]
        if program.region:
            line.append((f"  in {shorten(program.region, _REGION)}", PLAIN))
        line.append((f"  {program.state}", DIM))
        if program.verdict:
            line.append((f"  verdict: {program.verdict}", PLAIN))
        lines.append(cut(line, width))
    if len(running) > _MOST_PROGRAMS:
        lines.append(cut([(f"{'':<{_LABEL}}and {len(running) - _MOST_PROGRAMS} more", DIM)], width))
    return lines


def sparkline(shares: Shares, width: int, unicode: bool = True) -> str:
    """Shares of 0 to 1 as bars, or digits of tenths; a dot for an unknown share."""
    if width <= 0 or not shares:
        return ""
    shown = shares[-width:]
    levels = _BARS if unicode else "0123456789"

    def bar(share: float | None) -> str:
        if share is None:
            return "·" if unicode else "."
        return levels[min(len(levels) - 1, max(0, int(share * len(levels))))]

    return "".join(map(bar, shown)).rjust(width)


def _high_graphs(graphs: dict[str, Shares], width: int, height: int, unicode: bool) -> list[Line]:
    """Graphs next to each other: a line of titles with the latest shares, above the bars."""
    lines: list[Line] = [[] for _ in range(height)]
    for title, shares in graphs.items():
        latest = f" {percent(shares[-1])}"
        lines[0] += [(title, DIM), (latest.ljust(width - len(title)), PLAIN)]
        for line, bars in zip(lines[1:], _high_bars(shares, width - 2, height - 1, unicode), strict=True):
            line.append((f"{bars}  ", PLAIN))
    return lines


def _high_bars(shares: Shares, width: int, height: int, unicode: bool) -> list[str]:
    """Shares as bars of several lines, the top first; means if there are more shares than columns."""
    count = min(len(shares), width)
    levels = f" {_BARS}" if unicode else " _=#"
    steps = len(levels) - 1

    def bar(part: Shares) -> str:
        """Lines from the bottom up."""
        known = [share for share in part if share is not None]
        if not known:
            return ("·" if unicode else ".").ljust(height)
        full, rest = divmod(min(max(int(sum(known) / len(known) * height * steps), 1), height * steps), steps)
        return (levels[-1] * full + levels[rest]).ljust(height)[:height]

    bars = [bar(shares[at * len(shares) // count : (at + 1) * len(shares) // count]) for at in range(count)]
    return ["".join(line).rjust(width) for line in zip(*bars, strict=True)][::-1]


def _shares(at: Moment, graph: Graph) -> Shares:
    """The figure over the last minute as shares of its 100 %; empty if unknown."""
    _, figure, whole = graph
    most = 1.0 if whole is None else getattr(at.gpu or at.sample.host, whole)
    values = at.series(figure)
    if not most or all(value is None for value in values):
        return []
    return [None if value is None else value / most if at.gpu else min(1.0, value / most) for value in values]


def cut(line: Line, width: int) -> Line:
    """The parts of the line that fit; a mark at the end shows that parts are left out."""
    if sum(columns_of(text) for text, _ in line) <= width:
        return line
    left = width - 1
    kept: Line = []
    for text, style in line if width > 0 else ():
        shown = text[:left]
        while columns_of(shown) > left:
            shown = shown[:-1]
        left -= columns_of(shown)
        if shown != text:
            return [*kept, (f"{shown}…", style)]
        kept.append((text, style))
    return kept


def _chosen(at: Moment, graph: int) -> list[Graph]:
    graphs = HOST_GRAPHS if at.gpu is None else GRAPHS
    first = graph % len(graphs)
    return [*graphs[first:], *graphs[:first]]


def _add_graph(
    line: Line, title: str, shares: Shares, width: int, unicode: bool, least: int = _ROW_BEFORE_GRAPH
) -> None:
    """A figure over the last minutes at the right end, if there is room."""
    room = width - max(least, sum(len(text) for text, _ in line)) - 2
    label = f"{title} "
    if room < _LEAST_GRAPH + len(label):
        return
    shown = shares[len(label) - room :]
    if all(share is None for share in shown):
        return
    bars = sparkline(shown, room - len(label), unicode).lstrip()
    used = sum(len(text) for text, _ in line)
    line += [(" " * (width - used - len(label) - len(bars)), PLAIN), (label, DIM), (bars, PLAIN)]


def _useful(gpu: GpuState) -> Line:
    units = {
        "tensor": gpu.tensor_active_ratio,
        "DRAM": gpu.dram_bandwidth_ratio,
        "FP32": gpu.fp32_active_ratio,
        "FP64": gpu.fp64_active_ratio,
    }
    if all(value is None for value in units.values()) and gpu.instances:
        return [("its parts have it, below", DIM)]
    if all(value is None for value in units.values()):
        return [(f"not known: {_why(gpu, 'tensor_active_ratio')}", DIM)]
    return [("  ".join(f"{name} {percent(value):>4}" for name, value in units.items()), PLAIN)]


def _active(gpu: GpuState) -> Line:
    parts: Line = []
    if gpu.sm_active_ratio is not None:
        parts.append((f"SM {percent(gpu.sm_active_ratio):>4}  occupancy {percent(gpu.sm_occupancy_ratio):>4}", PLAIN))
    elif gpu.tensor_active_ratio is None and gpu.busy_ratio is not None:
        parts.append(("SM    -", DIM))
    busy = f"  busy {percent(gpu.busy_ratio)}" if gpu.busy_ratio is not None else f"busy: {_why(gpu, 'busy_ratio')}"
    return [*parts, (busy, DIM)]


def _memory(gpu: GpuState) -> Line:
    text = _of_gib(gpu.memory_used_bytes, gpu.memory_total_bytes)
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        text += f"  {percent(gpu.memory_used_bytes / gpu.memory_total_bytes)}"
    if gpu.memory_used_bytes is None:
        text = _why(gpu, "memory_used_bytes")
    moved = "" if gpu.memory_busy_ratio is None else f"  moved in {percent(gpu.memory_busy_ratio)} of the time"
    return [(text, PLAIN), (moved, DIM)]


def _power(at: Moment, gpu: GpuState) -> Line:
    power = f"{number(gpu.power_w)} of {number(gpu.power_limit_w)} W"
    margin = "" if gpu.temperature_margin_c is None else f", {gpu.temperature_margin_c:.0f} to its limit"
    clock = f"{number(gpu.sm_hz, 1e6)} of {number(gpu.sm_max_hz, 1e6)} MHz"
    warning = _throttled(at, gpu)
    return [
        (power, PLAIN),
        *([(f"  {warning}", ALARM)] if warning else []),
        (f"  {number(gpu.temperature_c)} C{margin}  {clock}", PLAIN),
    ]


def _links(at: Moment, gpu: GpuState) -> Line:
    received, sent = at.pcie_bytes_per_s
    parts: Line = []
    if received is None and sent is None:
        parts.append(("PCIe: not known", DIM))
    else:
        parts.append((f"PCIe {number(received, _GB, 1)} in {number(sent, _GB, 1)} out", PLAIN))
    nvlink = (gpu.nvlink_received_bytes_per_s, gpu.nvlink_sent_bytes_per_s)
    if any(nvlink):
        parts.append((f"  NVLink {number(nvlink[0], _GB, 1)} in {number(nvlink[1], _GB, 1)} out", PLAIN))
    if len(parts) > 1 or received is not None or sent is not None:
        parts.append(("  GB/s", PLAIN))
    if faults := _link_faults(gpu):
        parts.append((f"  {', '.join(faults)}", ALARM))
    elif gpu.ecc_uncorrected is not None or gpu.xid_errors is not None:
        none = [*(["memory errors 0"] if gpu.ecc_uncorrected is not None else [])]
        parts.append((f"  {', '.join([*none, *(['Xid none'] if gpu.xid_errors is not None else [])])}", DIM))
    return parts


def _xids(gpu: GpuState) -> list[str]:
    return [f"XID {error.xid}{'' if error.count == 1 else f' x{error.count}'}" for error in gpu.xid_errors or ()]


def _link_faults(gpu: GpuState) -> list[str]:
    lanes, most = gpu.pcie_width, gpu.pcie_width_max
    found = _xids(gpu)
    if lanes is not None and most is not None and lanes < most:
        found.append(f"{lanes} OF {most} LANES")
    if gpu.ecc_uncorrected:
        found.append(f"{gpu.ecc_uncorrected} MEMORY ERRORS")
    if gpu.remapping_pending:
        found.append("RESET NEEDED")
    if gpu.remapping_failed:
        found.append("BOARD FAULTY")
    return found


def _throttled(at: Moment, gpu: GpuState) -> str:
    share, shares = at.throttled_share, at.throttled_shares
    if share is not None and shares and share >= _THROTTLED_MUCH:
        reasons = ", ".join(_words(name) for name, part in shares.items() if part >= _THROTTLED_MUCH)
        return f"THROTTLED {percent(share)} of {_seen_s(at):.0f} s: {reasons}"
    if gpu.throttle_faults:
        return f"THROTTLED now: {', '.join(map(_words, gpu.throttle_faults))}"
    return ""


def _seen_s(at: Moment) -> float:
    """Seconds that shares refer to: about a minute, less if the samples are fewer, more if they are rarer."""
    seen_s = (at.samples[-1].time_ns - at.samples[0].time_ns) / 1e9
    return MINUTE_S if abs(seen_s - MINUTE_S) < _ABOUT * MINUTE_S else seen_s


def _alarms(at: Moment, gpu: GpuState) -> str:
    share = at.throttled_share or 0
    throttled = (
        f"THROTTLED {percent(share)}" if share >= _THROTTLED_MUCH else "THROTTLED" if gpu.throttle_faults else ""
    )
    return ", ".join(filter(None, [throttled, *_link_faults(gpu)]))


@functools.cache
def _words(reason: str) -> str:
    known = {
        "sw_power_cap": "power limit",
        "sw_thermal_slowdown": "heat (driver)",
        "hw_thermal_slowdown": "heat (board)",
        "hw_power_brake_slowdown": "power brake of the machine",
        "hw_slowdown": "board",
        "sync_boost": "clocks of other GPUs",
    }
    return known.get(reason, one_line(reason))


def _why(gpu: GpuState, name: str) -> str:
    return one_line(gpu.why.get(name, "NVML does not tell"))


def percent(ratio: float | None) -> str:
    """A share in percent."""
    return "-" if ratio is None else f"{100 * ratio:.0f} %"


def number(value: float | None, unit: float = 1.0, digits: int = 0) -> str:
    """A figure in a unit."""
    return "-" if value is None else f"{value / unit:.{digits}f}"


def _gib(size: int | None) -> str:
    return number(size, _GIB, 1)


def _of_gib(used: int | None, total: int | None) -> str:
    return f"{_gib(used)} of {_gib(total)} GiB"
