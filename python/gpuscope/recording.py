# SPDX-License-Identifier: Apache-2.0
"""What came out of a profiled window, and everything that can be asked of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gpuscope.beside import cached_property
from gpuscope.text import shown

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from matplotlib.axes import Axes

    from gpuscope import _core
    from gpuscope.analysis import Audit, Averages, Events, Modules, Samples, Tree
    from gpuscope.analysis.call_tree import StackMetric
    from gpuscope.counters import SampledCounters
    from gpuscope.diagnosis import Diagnosis, EnergyReport, Roofline, StepBreakdown
    from gpuscope.exporters.sql import SqlResult
    from gpuscope.trace import Trace


class Analyses(ABC):
    """The analyses and exports of a recording. Their modules are imported by the first call that needs them."""

    @property
    @abstractmethod
    def trace(self) -> Trace:
        """The events as columns."""

    @property
    def _trace_so_far(self) -> Trace:
        """`trace`, or one without events, and a warning, while there is to be one: lists of events are torch's then."""
        return self.trace

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool = False,
    ) -> Averages:
        """Totals and percentiles per name, in us: one row a region, operator, driver call, kernel or copy.

        Args:
            group_by_input_shape: a row for each name and shapes of inputs (with ``record_shapes``).
            group_by_stack_n: a row for each name and so many of the innermost Python frames (with ``with_stack``).
            group_by_overload_name: and overload (with torch's ``_ExperimentalConfig(capture_overload_names=True)``).
            include_python_functions: add a row for each Python function (``with_stack``).
        """
        from gpuscope.analysis import key_averages

        grouping = (group_by_input_shape, group_by_stack_n, group_by_overload_name)
        return key_averages(self._trace_so_far, *grouping, include_python_functions)

    def events(self) -> Events:
        """Every event by itself, in order of time."""
        from gpuscope.analysis import events

        return events(self._trace_so_far)

    def tree(self) -> Tree:
        """The call tree of regions and the GPU work launched in them: inclusive, exclusive and count."""
        from gpuscope.analysis import tree

        return tree(self.trace)

    def samples(self) -> Samples:
        """Where the program was in Python, by samples: a tree and a list of functions with their lines and shares.

        Empty unless the recording was made with ``profile(python_samples=True)``, as ``gpuscope run`` does.
        """
        from gpuscope.analysis import samples

        return samples(self.trace)

    def counters(self) -> SampledCounters:
        """What the hardware counters say of kernels and regions; recorded with ``profile(counters=...)``.

        Raises:
            NotAvailable: the recording has totals alone (``mode="aggregate"``).
        """
        from gpuscope.counters.sampled import sampled_counters

        return sampled_counters(self.trace)

    def energy(self) -> EnergyReport:
        """What each GPU used, in all, in regions and in steps, in joules with their 95 % intervals.

        And for which share of that time its clocks were held back, by reason. Recorded with
        ``profile(device_samples=True)``; nothing waits for the GPU. What is not known is None, with the reason.
        """
        from gpuscope.diagnosis.energy import energy

        return energy(self.trace)

    def step_breakdown(self) -> StepBreakdown:
        """What each GPU did in the steps of the program: parts that add up to their time, idle time included.

        Steps are what ``prof.step()`` marks; without it, the turns of the outermost region that repeats, or of the
        sequence of kernels.

        Raises:
            NotAvailable: the recording has totals alone (``mode="aggregate"``).
        """
        from gpuscope.diagnosis import break_down

        return break_down(self.trace)

    def diagnose(self) -> Diagnosis:
        """What the steps lose their time to, in words: causes with their lines, evidence, advice and saving.

        The verdict is "findings", "fine" or "not enough evidence"; printing the result shows the page. It is the more
        telling the more was recorded: ``with_stack`` for lines, ``record_shapes``, ``profile_memory``.
        """
        from gpuscope.diagnosis import diagnose

        return diagnose(self.trace)

    def roofline(self, device: int | None = None, peaks: Mapping[str, float] | None = None) -> Roofline:
        """How near kernels and regions come to what the GPU reaches: bytes and operations a second.

        Bytes need ``profile(counters="why")``, or come from shapes and say so; operations need ``record_shapes=True``.

        Args:
            device: CUDA's number of the GPU; by default the one whose kernels took most time.
            peaks: what the GPU reaches, "bandwidth" in B/s and types as "bfloat16" in FLOP/s; those that are not given
                are measured, once a process, where the GPU of the recording is in this machine.

        Raises:
            NotAvailable: the recording has totals alone (``mode="aggregate"``), or no kernels of this GPU.
            InvalidArgument: a peak has another name, or is no rate.
        """
        from gpuscope.diagnosis.roofline import roofline

        return roofline(self.trace, device, peaks)

    def modules(self) -> Modules:
        """What each torch.nn.Module costs, forward and backward; recorded ``with_modules=True``.

        Raises:
            NotAvailable: the recording has totals alone (``mode="aggregate"``).
        """
        from gpuscope.analysis import modules

        return modules(self.trace)

    def audit(self) -> Audit:
        """Whether the recording is complete, and every count behind that verdict."""
        from gpuscope.analysis import audit

        return audit(self.trace)

    def table(self, **options: Any) -> str:
        """``key_averages().table(**options)``."""
        return self.key_averages().table(**options)

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:
        """Writes a file in JSON for Perfetto, chrome://tracing or TensorBoard.

        Args:
            path: any name; one that ends with ``.gz`` is compressed.
            use_python_export: chooses between two writers in torch.profiler; here there is one.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters import export_chrome_trace

        export_chrome_trace(self.trace.store, path)

    def export_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``.pftrace`` or ``.perfetto-trace`` file, a fraction of the size of Chrome's format.

        Raises:
            InvalidArgument: the suffix is another.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters import export_perfetto

        export_perfetto(self.trace.store, path)

    def export_stacks(self, path: str | os.PathLike[str], metric: StackMetric = "self_cpu_time_total") -> None:
        """Writes one line a call path, ``outer;inner;kernel 123``, for flame graphs; its own time, in us.

        Args:
            path: where to.
            metric: ``self_cpu_time_total`` for regions, driver calls and the functions of Python that samples found in
                and around them; ``self_device_time_total`` (or ``self_cuda_time_total``) for kernels and copies. A
                recording without GPU work has the former written, with a warning.

        Raises:
            InvalidArgument: the metric is another.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.analysis.call_tree import folded_stacks
        from gpuscope.paths import check_writable, replacing

        lines = folded_stacks(self.trace, metric)
        with replacing(check_writable(path)) as file:
            file.writelines(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)

    def export_speedscope(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``.json`` file for https://www.speedscope.app: a profile for each thread and each stream.

        Python samples have a profile of their own for each thread.
        Of recordings that would take more than 450 MB of text, the first events of each are written; speedscope's title
        then says so.

        Raises:
            InvalidArgument: the suffix is another, or the recording has totals alone (``mode="aggregate"``).
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters.speedscope import export_speedscope

        export_speedscope(self.trace, path)

    def export_pprof(self, path: str | os.PathLike[str]) -> None:
        """Writes the call tree for ``go tool pprof`` and Grafana: counts, CPU and GPU time of each call path, in ns.

        Lines of Python that samples found are in it, under the regions that they ran in.

        Raises:
            InvalidArgument: the suffix is neither ``.pb.gz`` nor ``.pprof``.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters.pprof import export_pprof

        export_pprof(self.trace, path)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Writes the memory in use over time, in torch.profiler's forms; every size is of torch's category "unknown".

        Args:
            path: ``.html`` for a page with a chart, ``.json`` or ``.json.gz`` for ``[times in us, sizes by category]``,
                ``.raw.json.gz`` for a ``[time in ns, action, bytes, category]`` an allocation.
            device: "cuda:0" or "cpu"; None takes the first GPU with allocations, else the host.

        Raises:
            InvalidArgument: the suffix is another, or the device has no allocations.
            NotAvailable: memory was not recorded: ``profile(profile_memory=True)`` does.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters.memory_timeline import export_memory_timeline

        export_memory_timeline(self.trace, path, device)

    def plot_memory_timeline(self, device: str | None = None, ax: Axes | None = None) -> Axes:
        """The memory in use over time, as ``export_memory_timeline`` writes it.

        Args:
            device: "cuda:0" or "cpu"; None takes the first GPU with allocations, else the host.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            InvalidArgument: the device has no allocations.
            NotAvailable: memory was not recorded, or Matplotlib is not installed.
        """
        from gpuscope.exporters.memory_timeline import plot_memory_timeline

        return plot_memory_timeline(self.trace, device, ax)

    def report(self, path: str | os.PathLike[str], title: str | None = None, findings: bool = True) -> None:
        """Writes one interactive HTML page that asks for no other file and no network.

        It has the audit's verdict, what fills a step and what that loses its time to, a timeline of all events (of more
        than 3 million those of the steps and gaps that matter, and says so), tables of kernels, operators and regions,
        the call tree, idle time, memory, communication and roofline as far as they were recorded.

        Args:
            path: ending in .html.
            title: heading of the page; by default the program's command line.
            findings: say what the steps lose their time to, which takes a second for a million kernels.

        Raises:
            InvalidArgument: the suffix is another.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters.page.report import export_report

        export_report(self.trace, path, title=title, findings=findings)

    def show(self, height: int = 600, title: str | None = None) -> None:
        """Shows the page of `report` in a notebook, in a frame.

        Args:
            height: of the frame, in pixels, from 100.
            title: heading of the page; by default the program's command line.

        Raises:
            NotAvailable: IPython is not installed, or nothing was recorded.
            InvalidArgument: the height is no such number.
        """
        from gpuscope.arguments import check_count
        from gpuscope.errors import NotAvailable

        check_count("height", height, 100)
        try:
            from IPython.display import display
        except ImportError:
            raise NotAvailable("show is not available: IPython is not installed; pip install ipython") from None
        from gpuscope.exporters.page.notebook import page_in_frame

        page = page_in_frame(self.trace, height, title)
        display({"text/html": page, "text/plain": "gpuscope report"}, raw=True)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: figures, findings, the rows that took most, the median step; None without any."""
        from gpuscope.errors import NotAvailable
        from gpuscope.exporters.page.notebook import notebook_html

        try:
            return notebook_html(self.trace)
        except NotAvailable:
            return None

    @shown
    def __str__(self) -> str:
        """The table, as wide as the terminal, and the verdict; before anything is recorded what `repr` gives."""
        from gpuscope.errors import NotAvailable

        try:
            trace = self.trace
        except NotAvailable:
            return repr(self)
        from gpuscope.analysis.terminal import overview

        return overview(trace)

    def sql(self, query: str) -> SqlResult:
        """What a query finds in the tables, which DuckDB reads where they lie: ``pip install 'gpuscope[sql]'``.

        Views are ``kernels``, ``regions``, ``operators``, ``steps``, ``launches``, ``memcpys``, ``memsets``,
        ``gpu_work``, ``idle`` and every table of `trace`; names are spelled out, and times are integers in ns.
        ``gpuscope sql --schema`` lists them.

        Raises:
            NotAvailable: DuckDB is not installed.
            InvalidArgument: it is no SQL that DuckDB runs on these views.
        """
        from gpuscope.exporters.sql import Database

        return Database(self.trace).run(query)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``.gscope`` file, which `load` opens again without loss.

        Raises:
            InvalidArgument: the suffix is another.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters import save

        save(self.trace.store, path)


class Recording(Analyses):
    """One recorded window."""

    def __init__(self, store: _core.Store) -> None:
        self._store = store

    @cached_property
    def trace(self) -> Trace:
        """The events as columns."""
        from gpuscope.trace import Trace  # with NumPy: not while a profiler is being stopped

        return Trace(self._store)

    def __reduce__(self) -> tuple[Callable[[Trace], Recording], tuple[Trace]]:
        return _of_trace, (self.trace,)

    def __repr__(self) -> str:
        return f"<Recording: {repr(self.trace)[1:-1]}; {self.audit().verdict}>"


def _of_trace(trace: Trace) -> Recording:
    return Recording(trace.store)


def load(path: str | os.PathLike[str], salvage: bool = False) -> Recording:
    """Opens a ``.gscope`` file, or what another tool has written; which one, its content tells.

    Read are Chrome's JSON of torch.profiler, of JAX's profiler and of Proton, compressed or not, Proton's trees
    (``.hatchet``), and exports of Nsight Systems: ``nsys export --type sqlite`` and ``--type parquetdir``. Everything
    that can be asked of a recording can be asked of them; `Recording.audit` lists what the tool does not record.

    A file that was cut off opens up to its last whole block, or event. Of one that is damaged elsewhere, ``salvage``
    opens what the whole blocks hold, or of JSON what stands before the damage: rows that had to refer to lost ones are
    lost too, other references to them read as ``NONE``, lost names as "(lost)". `Recording.audit` then is not complete,
    and says which rows are missing.

    Args:
        path: the file, the folder of Parquet files, or a run's folder (``gpuscope run -o DIR/``) with one recording.
        salvage: open a damaged file too.

    Raises:
        InvalidArgument: there is no such file, or the folder has no recording, or several.
        CorruptTrace: the file is damaged, no recording, or of another version of the format.
        NotAvailable: Parquet files need pyarrow.
        GpuscopeError: it cannot be read at all.
    """
    from gpuscope.exporters import load_store
    from gpuscope.paths import as_path, find_suffix

    if find_suffix(as_path(path), (".gscope",)) is None:
        from gpuscope.readers.files import read_foreign, recording_of

        path = recording_of(as_path(path))
        store = read_foreign(path, salvage)
        if store is not None:
            return Recording(store)
    return Recording(load_store(path, salvage))
