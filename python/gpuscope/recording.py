# SPDX-License-Identifier: Apache-2.0
"""`Recording`: one profiled window, with all its analyses and exports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gpuscope.text import shown
from gpuscope.threads import cached_property

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
        """`trace`; while the first window is open, a trace without events and a warning, as in torch."""
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
            group_by_stack_n: a row for each name and this number of innermost Python frames (with ``with_stack``).
            group_by_overload_name: a row for each name and overload, with torch's
                ``_ExperimentalConfig(capture_overload_names=True)``.
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
        """Hardware counters of kernels and regions; recorded with ``profile(counters=...)``.

        Raises:
            NotAvailable: the recording has only totals (``mode="aggregate"``).
        """
        from gpuscope.counters.sampled import sampled_counters

        return sampled_counters(self.trace)

    def energy(self) -> EnergyReport:
        """The energy of each GPU, in total, in regions and in steps, in joules with 95 % intervals.

        Also reports for which share of the time its clocks were throttled, by reason. Recorded with
        ``profile(device_samples=True)``; nothing waits for the GPU. Unknown values are None, with the reason, as are
        energies of regions that ran less than 1 s in all.
        """
        from gpuscope.costs.energy import energy

        return energy(self.trace)

    def step_breakdown(self) -> StepBreakdown:
        """Time of each GPU in the steps of the program: parts that add up to the step time, including idle time.

        ``prof.step()`` marks steps. Without it, a step is one repetition of the outermost repeating region, or of the
        sequence of kernels.

        Raises:
            NotAvailable: the recording has only totals (``mode="aggregate"``).
        """
        from gpuscope.diagnosis import break_down

        return break_down(self.trace)

    def diagnose(self) -> Diagnosis:
        """Finds the causes of lost time in the steps, each with its lines, evidence, advice and saving.

        The verdict is "findings", "fine" or "not enough evidence"; printing the result shows the page. More options
        give more findings: ``with_stack`` for lines, ``record_shapes``, ``profile_memory``.
        """
        from gpuscope.diagnosis import diagnose

        return diagnose(self.trace)

    def roofline(self, device: int | None = None, peaks: Mapping[str, float] | None = None) -> Roofline:
        """How near kernels and regions come to the GPU's peaks, in bytes and operations a second.

        Bytes need ``profile(counters="why")``, or are estimated from shapes and marked so; operations need
        ``record_shapes=True``.

        Args:
            device: CUDA's number of the GPU; by default the one whose kernels took most time.
            peaks: rates that the GPU reaches, "bandwidth" in B/s and types as "bfloat16" in FLOP/s. Missing ones are
                measured once per process, if the GPU of the recording is in this machine.

        Raises:
            NotAvailable: the recording has only totals (``mode="aggregate"``), or no kernels of this GPU.
            InvalidArgument: a peak has another name, or is not a rate.
        """
        from gpuscope.costs.roofline import roofline

        return roofline(self.trace, device, peaks)

    def modules(self) -> Modules:
        """The cost of each torch.nn.Module, forward and backward; recorded ``with_modules=True``.

        Raises:
            NotAvailable: the recording has only totals (``mode="aggregate"``).
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
        """Writes one line a call path, ``outer;inner;kernel 123``, for flame graphs, with its self time in us.

        Args:
            path: the file.
            metric: ``self_cpu_time_total`` for regions, driver calls and the functions of Python that samples found in
                and around them; ``self_device_time_total`` (or ``self_cuda_time_total``) for kernels and copies.
                Without GPU work, CPU time is written, with a warning.

        Raises:
            InvalidArgument: the metric is unknown.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.analysis.call_tree import folded_stacks
        from gpuscope.paths import check_writable, replacing

        lines = folded_stacks(self.trace, metric)
        with replacing(check_writable(path)) as file:
            file.writelines(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)

    def export_speedscope(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``.json`` file for https://www.speedscope.app: a profile for each thread and each stream.

        Python samples have a profile of their own for each thread. If the file would exceed 450 MB, only the first
        events of each profile are written, and the title in speedscope says so.

        Raises:
            InvalidArgument: the suffix is another, or the recording has only totals (``mode="aggregate"``).
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters.speedscope import export_speedscope

        export_speedscope(self.trace, path)

    def export_pprof(self, path: str | os.PathLike[str]) -> None:
        """Writes the call tree for ``go tool pprof`` and Grafana: counts, CPU and GPU time of each call path, in ns.

        Lines of Python that samples found are included, under the regions that they ran in.

        Raises:
            InvalidArgument: the suffix is neither ``.pb.gz`` nor ``.pprof``.
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.exporters.pprof import export_pprof

        export_pprof(self.trace, path)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Writes the memory in use over time, by torch.profiler's categories and in its formats.

        Args:
            path: the suffix selects the format. ``.html`` is a page with a chart. ``.json`` and ``.json.gz`` contain
                ``[times in us, sizes by category]``. ``.raw.json.gz`` contains ``[time in ns, action, bytes,
                category]`` for each allocation.
            device: "cuda:0" or "cpu"; None takes the first GPU with allocations, else the host.

        Raises:
            InvalidArgument: the suffix is another, or the device has no allocations.
            NotAvailable: memory was not recorded; use ``profile(profile_memory=True)``.
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
        """Writes one interactive HTML page that needs no other file and no network.

        It contains the audit's verdict, the breakdown of a step and its findings, and a timeline of all events. It also
        contains tables of kernels, operators and regions, and the call tree. Idle time, memory, communication and
        roofline are shown if recorded. Of more than 3 million events, the timeline contains only those of the important
        steps and gaps, and says so.

        Args:
            path: ending in .html.
            title: heading of the page; by default the program's command line.
            findings: include the findings of `diagnose`.

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
            InvalidArgument: the height is not such a number.
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
        """HTML for a notebook: figures, findings, the rows that took most, the median step; None without any."""
        from gpuscope.errors import NotAvailable
        from gpuscope.exporters.page.notebook import notebook_html

        try:
            return notebook_html(self.trace)
        except NotAvailable:
            return None

    @shown
    def __str__(self) -> str:
        """The table, as wide as the terminal, and the verdict; before anything is recorded, the same as `repr`."""
        from gpuscope.errors import NotAvailable

        try:
            trace = self.trace
        except NotAvailable:
            return repr(self)
        from gpuscope.analysis.terminal import overview

        return overview(trace)

    def sql(self, query: str) -> SqlResult:
        """Runs a query on the tables with DuckDB, without copying them; needs ``pip install duckdb``.

        Every table of `trace` is a view, besides views such as ``kernels``, ``operators``, ``steps`` and ``idle``;
        ``gpuscope sql --schema`` lists them. Names are spelled out, and times are integers in ns.

        Raises:
            NotAvailable: DuckDB is not installed.
            InvalidArgument: DuckDB cannot run the query on these views.
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
    """Opens a ``.gscope`` file, or a file of another tool, recognised by its content.

    Other formats are Chrome's JSON of torch.profiler, of JAX's profiler and of Proton, compressed or not, and Proton's
    trees (``.hatchet``). Exports of Nsight Systems are read too: ``nsys export --type sqlite`` and ``--type
    parquetdir``. All analyses of a recording work on them; `Recording.audit` lists the events that the tool does not
    record.

    A file that was cut off opens up to its last whole block or event. With ``salvage``, a file that is damaged
    elsewhere opens too: its whole blocks, or the part of JSON before the damage. Lost references are ``NONE``, lost
    names "(lost)", and rows that need a lost row are lost too. `Recording.audit` then reports an incomplete recording
    and the missing rows.

    Args:
        path: the file, the folder of Parquet files, or a run's folder (``gpuscope run -o DIR/``) with one recording.
        salvage: open a damaged file too.

    Raises:
        InvalidArgument: there is no such file, or the folder has no recording, or several.
        CorruptTrace: the file is damaged, not a recording, or of another version of the format.
        NotAvailable: Parquet files need pyarrow.
        GpuscopeError: it cannot be read at all.
    """
    from gpuscope.readers.files import load_store

    return Recording(load_store(path, salvage))
