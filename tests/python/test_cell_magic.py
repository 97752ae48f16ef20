# SPDX-License-Identifier: Apache-2.0
"""``%%gpuscope``: what it records and shows of a cell, in IPython and in a kernel."""

from __future__ import annotations

import ast
import atexit
import sys
import threading
from dataclasses import dataclass, field

import pytest

import gpuscope as gs
from fakes.gscope import NONE, make_store
from gpuscope.errors import InvalidArgument
from gpuscope.profiler.cell_magic import store_of_cell
from gpuscope.recording import Recording
from gpuscope.trace import Trace

# -- IPython -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """IPython's shell with the extension, and what it displayed."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # of another environment IPython warns
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    capture = pytest.importorskip("IPython.utils.capture")
    interactive.InteractiveShell.clear_instance()
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    made = interactive.InteractiveShell.instance()
    made.history_manager.enabled = False
    made.run_line_magic("load_ext", "gpuscope")

    def run(cell):
        with capture.capture_output() as captured:
            captured.result = made.run_cell(cell, store_history=True)
        return captured

    made.run = run
    yield made
    made.atexit_operations()
    atexit.unregister(made.atexit_operations)  # a second time it finds nothing of what it takes away
    interactive.InteractiveShell.clear_instance()


CELL = "import gpuscope as gs\nwith gs.record_function('part'):\n    total = sum(range(1000))\nprint('ran')"


def test_a_cell_is_profiled_and_its_variables_stay(shell):
    done = shell.run(f"%%gpuscope\n{CELL}")
    assert done.result.success
    assert "ran" in done.stdout
    assert shell.user_ns["total"] == 499500
    assert [node.name for node in shell.user_ns["prof"].tree() if node.kind == "region"] == ["part"]
    (output,) = done.outputs
    assert "part" in output.data["text/html"]


def test_a_cell_names_its_recording_and_what_to_record(shell):
    shell.run(f"%%gpuscope first --with-stack\n{CELL}")
    assert shell.user_ns["first"].trace.info["metadata.with_stack"] == "1"
    assert "prof" not in shell.user_ns


def test_the_page_of_a_cell(shell):
    done = shell.run(f"%%gpuscope --page --height 300\n{CELL}")
    assert '<iframe sandbox="allow-scripts"' in done.outputs[0].data["text/html"]


def test_a_terminal_gets_no_html(shell):
    shell.display_formatter.active_types = ["text/plain"]
    (output,) = shell.run(f"%%gpuscope --page\n{CELL}").outputs
    assert list(output.data) == ["text/plain"]
    assert "part" in output.data["text/plain"]


def test_a_cell_that_fails_shows_its_error_and_the_recording(shell):
    done = shell.run(f"%%gpuscope\n{CELL}\n1 / 0")
    assert "ZeroDivisionError" in done.stdout + done.stderr
    assert "part" in [node.name for node in shell.user_ns["prof"].tree()]


def test_a_cell_that_fails_ends_the_run_of_its_notebook(shell):
    assert isinstance(shell.run("%%gpuscope\n1 / 0").result.error_in_exec, ZeroDivisionError)


def test_the_traceback_of_a_cell_is_shown_once(shell):
    done = shell.run("%%gpuscope\n1 / 0")
    assert (done.stdout + done.stderr).count("Traceback") == 1
    assert "In[1]" in done.stdout + done.stderr
    assert shell.run("%tb").stdout.count("Traceback") == 1


def test_a_cell_that_does_not_parse_is_not_recorded(shell):
    done = shell.run("%%gpuscope\n3 +")
    assert isinstance(done.result.error_before_exec, SyntaxError)
    assert (done.outputs, "prof" in shell.user_ns) == ([], False)


@pytest.mark.parametrize("body", ["", "\n", "\n\n# nothing\n"])
def test_a_cell_without_code_has_an_empty_recording(shell, body):
    (output,) = shell.run(f"%%gpuscope\n{body}").outputs
    assert output.data["text/plain"].startswith("no samples of the cell\n")
    assert len(shell.user_ns["prof"].samples()) == 0


@pytest.mark.parametrize("line", ["--wrong", "2x", "class", "--height tall", '"prof', "--help"])
def test_a_wrong_option_is_a_sentence(shell, line):
    done = shell.run(f"%%gpuscope {line}\n{CELL}")
    assert isinstance(done.result.error_in_exec, InvalidArgument)
    assert "total" not in shell.user_ns


def test_after_a_wrong_option_the_next_cell_is_recorded(shell):
    shell.run(f"%%gpuscope --wrong\n{CELL}")
    assert len(shell.run(f"%%gpuscope\n{CELL}").outputs) == 1
    assert shell.run(CELL).outputs == []


def test_what_a_wrong_option_refers_to_shows_the_options(shell):
    error = shell.run(f"%%gpuscope --wrong\n{CELL}").result.error_in_exec
    shown = shell.run(str(error).rpartition("see ")[2])
    assert shown.result.success
    assert "--record-shapes" in shown.stdout + str(shown.outputs)


def test_one_percent_sign_profiles_the_rest_of_a_cell(shell):
    shell.run(f"{CELL.replace('part', 'before')}\n%gpuscope\n{CELL}")
    assert [node.name for node in shell.user_ns["prof"].tree() if node.kind == "region"] == ["part"]


@pytest.mark.parametrize("magics", ["%%gpuscope\n%%time", "%%time\n%%gpuscope"])
def test_a_cell_is_timed_too(shell, magics):
    done = shell.run(f"{magics}\n{CELL}\ntotal")
    assert done.result.result == 499500
    assert done.stdout.count("Wall time") == 1
    assert "part" in [node.name for node in shell.user_ns["prof"].tree()]


@pytest.mark.parametrize(("magics", "shown"), [("%%gpuscope\n%%capture seen", 1), ("%%capture seen\n%%gpuscope", 0)])
def test_a_cell_is_captured_too(shell, magics, shown):
    done = shell.run(f"{magics}\n{CELL}")
    assert len(done.outputs) == shown  # the recording
    assert len(shell.user_ns["seen"].outputs) == 1 - shown
    assert "part" in [node.name for node in shell.user_ns["prof"].tree()]


def test_an_alias_profiles_its_cell(shell):
    shell.run("%alias_magic -c watch gpuscope")
    shell.run(f"%%watch\n{CELL}")
    assert "part" in [node.name for node in shell.user_ns["prof"].tree()]


def test_the_traceback_of_an_aliases_cell_is_shown_once(shell):
    shell.run("%alias_magic -c watch gpuscope")
    done = shell.run("%%watch\n1 / 0")
    assert not done.result.success
    assert (done.stdout + done.stderr).count("Traceback") == 1


# -- a kernel ----------------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What a kernel answered to a cell."""

    reply: dict
    outputs: list = field(default_factory=list)  # each a dictionary by type
    value: str | None = None
    errors: list = field(default_factory=list)
    text: str = ""

    @property
    def tree(self):
        """The rows of the tree of functions, as shown, without branches and numbers."""
        (output,) = self.outputs
        _, header, *lines, _ = output["text/plain"].splitlines()
        return [line[: header.index("Total %")].strip("├└│─ ") for line in lines]


class Kernel:
    """A kernel of Jupyter with the extension."""

    def __init__(self, client, manager):
        self._client, self._manager = client, manager

    def run(self, cell, interrupt=False):
        """Runs a cell; `interrupt`: as soon as it prints something."""
        ran = Ran({})

        def take(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                if interrupt and not ran.text:
                    self._manager.interrupt_kernel()
                ran.text += content["text"]
            elif kind == "display_data":
                ran.outputs.append(content["data"])
            elif kind == "execute_result":
                ran.value = content["data"]["text/plain"]
            elif kind == "error":
                ran.errors.append(content["ename"])

        ran.reply = self._client.execute_interactive(cell, output_hook=take, allow_stdin=False, timeout=60)["content"]
        return ran

    def evaluate(self, expression):
        """The value of what may be written as a literal."""
        return ast.literal_eval(self.run(expression).value)


SETUP = """%load_ext gpuscope
import asyncio, threading, time
import gpuscope as gs

def work(ms=50):
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        pass"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    pytest.importorskip("ipykernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("PYTHONWARNINGS", "ignore")
        from jupyter_client.manager import start_new_kernel

        manager, client = start_new_kernel(kernel_name="python3")
        try:
            yield Kernel(client, manager)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()


@pytest.fixture
def notebook(kernel):
    """The kernel, with its first cell run again."""
    ran = kernel.run(SETUP)
    assert ran.errors == []
    kernel.first = ran.reply["execution_count"]
    return kernel


def calls(notebook, name="prof"):
    return notebook.evaluate(f"[(each.function, each.file) for root in {name}.samples().roots for each in root]")


def test_a_cell_shows_what_ran_in_it_alone(notebook):
    ran = notebook.run("%%gpuscope\nx = work()")
    number = ran.reply["execution_count"]
    assert ran.tree[:2] == [f"<module>  In [{number}]:2", f"work  In [{notebook.first}]:7"]
    assert {file for _, file in calls(notebook) if file} == {f"In [{number}]", f"In [{notebook.first}]"}


def test_a_cell_has_one_output_as_text_and_as_html(notebook):
    (output,) = notebook.run("%%gpuscope\nx = work()").outputs
    assert set(output) == {"text/plain", "text/html"}
    assert f"work  In [{notebook.first}]:7" in output["text/html"]


def test_a_saved_recording_has_the_names_of_cells(notebook, tmp_path):
    number = notebook.run("%%gpuscope\nx = work()").reply["execution_count"]
    notebook.run(f"prof.save({str(tmp_path / 'cell.gscope')!r})")
    recording = gs.load(tmp_path / "cell.gscope")
    root = recording.samples().roots[0]
    assert (root.file, root.children[0].file) == (f"In [{number}]", f"In [{notebook.first}]")
    assert str(recording.diagnose().findings[0].where[0]) == f"In [{notebook.first}]:7"


def test_recorded_calls_begin_below_the_cell(notebook):
    notebook.run("%%gpuscope --with-stack\nx = work(1)")
    functions = notebook.evaluate("sorted({f.key for f in prof.key_averages(include_python_functions=True)})")
    assert f"In [{notebook.first}](5): work" in functions
    assert not [name for name in functions if "IPython" in name or "ipykernel" in name or "gpuscope" in name]


def test_the_last_value_is_shown_and_kept(notebook):
    ran = notebook.run("%%gpuscope\nx = 6\nx * 7")
    assert ran.value == "42"
    assert notebook.evaluate(f"(_, Out[{ran.reply['execution_count']}], x)") == (42, 42, 6)


def test_a_value_before_a_semicolon_is_not_shown(notebook):
    ran = notebook.run("%%gpuscope\n6 * 7;")
    assert (ran.value, len(ran.outputs)) == (None, 1)


def test_a_cell_may_await(notebook):
    ran = notebook.run(
        "%%gpuscope\nasync def job():\n    work()\n    return 5\nx = await asyncio.create_task(job())\nx"
    )
    assert ran.value == "5"
    assert ran.tree[:2] == [f"job  In [{ran.reply['execution_count']}]:3", f"work  In [{notebook.first}]:7"]


def test_the_time_that_a_cell_awaits_is_the_event_loops(notebook):
    notebook.run("%%gpuscope\nawait asyncio.sleep(0.05)")
    assert [function.rpartition(".")[2] for function, _ in calls(notebook)][:2] == ["_run_once", "select"]


def test_a_thread_that_outlives_its_cell_is_shown_in_the_next(notebook):
    started = notebook.run(
        "%%gpuscope\nstop = threading.Event()\ndef background():\n    while not stop.is_set():\n        work(1)\n"
        "thread = threading.Thread(target=background)\nthread.start()"
    )
    notebook.run("%%gpuscope\nx = work()")
    notebook.run("stop.set(); thread.join()")
    assert ("background", f"In [{started.reply['execution_count']}]") in calls(notebook)


def test_a_cell_that_raises_shows_its_error_once_and_stops_the_notebook(notebook):
    ran = notebook.run("%%gpuscope\nwork()\n1 / 0")
    assert (ran.errors, ran.reply["status"], "Error in callback" in ran.text) == (["ZeroDivisionError"], "error", False)
    assert ran.tree[0] == f"<module>  In [{ran.reply['execution_count']}]:2"


def test_an_interrupted_cell_shows_what_was_measured(notebook):
    ran = notebook.run(
        "%%gpuscope\nwork()\nprint('worked', flush=True)\nfor _ in range(10_000):\n    work(1)", interrupt=True
    )
    assert (ran.errors, ran.reply["status"]) == (["KeyboardInterrupt"], "error")
    assert ran.tree[0].startswith(f"<module>  In [{ran.reply['execution_count']}]:")


def test_methods_of_a_cells_class_have_its_name(notebook):
    ran = notebook.run("%%gpuscope\nclass Model:\n    def step(self):\n        work()\nModel().step()")
    name = "Model.step" if sys.version_info >= (3, 11) else "step"
    assert ran.tree[1] == f"{name}  In [{ran.reply['execution_count']}]:4"


def test_a_cell_of_time_is_shown_without_the_magics_frames(notebook):
    ran = notebook.run("%%gpuscope\n%%time\nwork()\nx = 1")
    assert ran.tree[:2] == ["<module>  <timed exec>:1", f"work  In [{notebook.first}]:7"]


# -- what is left out --------------------------------------------------------------------------------------------------

MS = 1_000_000
STACKS = {
    "parent": [NONE, 0, 1, NONE, NONE, 4],
    "function": ["start", "<module>", "work", "wait", "<module>", "run_line_magic"],
    "file": ["kernel.py", "/tmp/cell.py", "/tmp/old.py", "threading.py", "/tmp/cell.py", "shell.py"],
    "line": [1, 2, 7, 9, 1, 5],
    "instruction": [NONE] * 6,
}
CELLS = {"/tmp/cell.py": "In [3]", "/tmp/old.py": "In [2]"}


def cell_of(rows, known=(7, 8)):
    """The cell's part of samples as (start, duration, cpu, stack, thread) in ms, of this thread and 7 to 9."""
    info = {"session.tier": "cpu", "session.start_ns": "0", "session.stop_ns": str(100 * MS)}
    samples = {
        "start_ns": [row[0] * MS for row in rows],
        "duration_ns": [row[1] * MS for row in rows],
        "cpu_ns": [row[2] * MS for row in rows],
        "stack": [row[3] for row in rows],
        "count": [1] * len(rows),
        "thread": [row[4] for row in rows],
    }
    store = make_store(
        {
            "info": {"key": list(info), "value": list(info.values())},
            "thread": {"system_id": [threading.get_native_id(), 7, 8, 9]},
            "stack": STACKS,
            "python_sample": samples,
        }
    )
    return Recording(store_of_cell(Trace(store), ("/tmp/cell.py", 1), CELLS, list(known)))


def tree_of(recording):
    return [(each.function, each.file, each.total_ns // MS) for root in recording.samples().roots for each in root]


IN_CELL = [("<module>", "In [3]", 80), ("work", "In [2]", 80)]


def test_frames_around_the_cell_are_left_out():
    assert tree_of(cell_of([(0, 80, 80, 2, 0)])) == IN_CELL


def test_the_magics_own_line_is_left_out():
    assert tree_of(cell_of([(0, 10, 10, 5, 0), (10, 80, 80, 2, 0)])) == IN_CELL


def test_what_follows_the_cell_is_not_part_of_the_recorded_time():
    assert cell_of([(0, 80, 80, 2, 0), (80, 20, 20, 0, 0)]).samples().recorded_ns == 80 * MS


def test_threads_that_only_wait_are_left_out():
    assert tree_of(cell_of([(0, 80, 80, 2, 0), (0, 80, 0, 3, 1), (0, 80, 0, 3, 2)])) == IN_CELL


def test_threads_from_before_that_compute_are_one_row_with_their_time_on_a_cpu():
    found = tree_of(cell_of([(0, 80, 80, 2, 0), (0, 80, 3, 3, 1), (0, 80, 2, 3, 2)]))
    assert found == [*IN_CELL, ("2 other threads on a CPU", "", 5)]


def test_new_threads_that_compute_are_shown():
    assert tree_of(cell_of([(0, 80, 80, 2, 0), (0, 50, 50, 3, 3)])) == [*IN_CELL, ("wait", "threading.py", 50)]
