# SPDX-License-Identifier: Apache-2.0
"""``gpuscope run``: the program behaves as under the interpreter, and its recording is always delivered."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpuscope as gs
from fakes.disturbances import least_disturbed
from fakes.gscope import make_store
from fakes.stores import INFO, START, training_tables
from gpuscope import _core
from gpuscope.recording import Recording

knows_stacks = pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")

PROBE = """\
import pickle, sys

class Here:
    pass

kinds = {"__loader__", "__spec__", "__builtins__"}
names = {key: type(value).__name__ if key in kinds else value for key, value in globals().items() if key[:2] == "__"}
copy = pickle.loads(pickle.dumps(Here()))
print(__name__, sys.argv, repr(sys.path[0]), sorted(names.items(), key=str), type(copy) is Here)
"""

TRAINING = """\
import gpuscope
for _ in range(4):
    with gpuscope.record_function("forward"):
        pass
    gpuscope.step()
"""


def plain(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


def names(path: Path) -> set[str]:
    return {event.key for event in gs.load(path).key_averages()}


@pytest.fixture
def programs(script, tmp_path: Path) -> None:
    script(PROBE, "probe.py")
    script(PROBE, "folder/__main__.py")
    script("", "package/__init__.py")
    script(PROBE, "package/__main__.py")
    script(PROBE, "package/module.py")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.py").symlink_to("../probe.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("probe.py", "-o", "x", "--", "--mode"),
        ("other/link.py",),
        ("other/../probe.py",),
        ("folder", "x"),
        ("archive.zip", "x"),
        ("-m", "package", "-x"),
        ("-m", "package.module", "x"),
        ("-c", PROBE, "-c", "x"),
    ],
    ids=lambda arguments: arguments[0] if arguments[0] != "-m" else arguments[1],
)
def test_a_program_finds_what_it_finds_under_the_interpreter(gpuscope, programs, arguments):
    expected = plain(*arguments)
    assert expected.returncode == 0
    assert gpuscope("run", *arguments).stdout == expected.stdout


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit()",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('for a reason')",
        "import sys; sys.exit(True)",
        "raise SystemExit([1])",
        "import os; os._exit(9)",
        "1 / 0",
        "def broken(:",
        "import nothing_of_that_name",
        "import json; json.loads('{')",
        "import sys; sys.excepthook = lambda *a: print('mine', a[1]); raise ValueError(2)",
        "import atexit; atexit.register(print, 'late'); raise ValueError",
        "from __future__ import annotations\nprint(print.__name__)",
        "def f(x: nothing): pass",
    ],
)
def test_output_errors_and_exit_code_are_the_programs_own(gpuscope, script, source):
    path = script(source)
    expected, actual = plain(path), gpuscope("run", "--no-table", path)
    assert actual.returncode == expected.returncode
    assert actual.stdout == expected.stdout
    assert actual.stderr.startswith(expected.stderr)


@pytest.mark.parametrize("command", [["run"], ["run", "--with-stack", "--schedule", "active=1"], ["diagnose"]])
def test_numpy_is_the_programs_to_import(gpuscope, script, command):
    """What it sets before, as OPENBLAS_NUM_THREADS, is read then."""
    assert gpuscope(*command, script("import sys; print('numpy' in sys.modules)")).stdout == "False\n"


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_a_report_that_fails_leaves_the_program_its_end(gpuscope, script, command):
    done = gpuscope(command, script("import sys; sys.modules['numpy'] = None; sys.exit(3)"))
    assert done.returncode == 3
    assert "gpuscope: the results could not be shown: ModuleNotFoundError: import of numpy" in done.stderr
    assert "Traceback" not in done.stderr


LAUNCHER = "import sys\nfrom gpuscope.cli import main\nsys.exit(main())\n"  # as pip makes one


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"]], ids=["script", "module"])
@pytest.mark.parametrize("name", ["logging", "random", "queue"])
def test_what_gpuscope_imports_is_no_file_of_the_programs_folder(script, tmp_path, name, program):
    script("print('taken')", f"work/{name}.py")
    script("", "work/program.py")
    command = [sys.executable, script(LAUNCHER, "bin/gpuscope"), "run", "-o", "x.html", *program]
    done = subprocess.run(command, cwd=tmp_path / "work", capture_output=True, text=True)
    assert done.returncode == 0
    assert "taken" not in done.stdout + done.stderr


def test_a_program_has_its_own_folders_back_at_its_end(gpuscope, script):
    source = "import atexit, sys\nsys.path.append('mine')\natexit.register(lambda b=[*sys.path]: print(b == sys.path))"
    assert gpuscope("run", script(source)).stdout == "True\n"


@pytest.mark.parametrize("command", ["run", "memory", "diagnose"])
def test_a_script_from_a_pipe_is_run(script, tmp_path, command):
    path = shlex.quote(str(script("print('ran', __name__)")))
    words = f"{shlex.quote(sys.executable)} -m gpuscope {command}"
    for line in (f"cat {path} | {words} /dev/stdin", f"{words} <(cat {path})"):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "ran __main__\n")


@pytest.mark.parametrize("command", ["run", "memory", "diagnose"])
def test_a_program_on_standard_input_finds_what_it_finds_under_the_interpreter(tmp_path, command):
    arguments = {"input": PROBE, "capture_output": True, "text": True, "cwd": tmp_path}
    expected = subprocess.run([sys.executable, "-", "x", "-c"], **arguments)
    done = subprocess.run([sys.executable, "-m", "gpuscope", command, "-", "x", "-c"], **arguments)
    assert (done.returncode, done.stdout) == (0, expected.stdout)
    assert [path.name for path in tmp_path.iterdir()] == (["stdin.gscope"] if command == "run" else [])


@pytest.mark.parametrize("source", ["1 / 0", "def broken(:", "raise SystemExit(3)", ""])
def test_errors_of_a_program_on_standard_input_are_its_own(tmp_path, source):
    arguments = {"input": source, "capture_output": True, "text": True, "cwd": tmp_path}
    expected = subprocess.run([sys.executable, "-"], **arguments)
    done = subprocess.run([sys.executable, "-m", "gpuscope", "run", "-"], **arguments)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.startswith(expected.stderr)


def test_closed_standard_input_is_no_program(tmp_path):
    command = f"{shlex.quote(sys.executable)} -m gpuscope run - <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "gpuscope: the program is -, but standard input is closed; accepted is - with code there\n"


HOOKS = {
    "exits": "def hook(*of_error):\n    sys.exit(7)",
    "exits with a reason": "def hook(*of_error):\n    sys.exit('reason')",
    "fails": "def hook(*of_error):\n    raise ValueError('of the hook')",
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("command", ["run", "diagnose", "memory"])
def test_an_excepthook_that_ends_the_program_loses_nothing(gpuscope, script, tmp_path, command, hook):
    path = script(f"import sys\n{hook}\nsys.excepthook = hook\n1 / 0")
    file = tmp_path / ("kept.json" if command == "memory" else "kept.gscope")
    expected, actual = plain(path), gpuscope(command, "-o", file.name, path)
    assert actual.returncode == expected.returncode
    assert actual.stderr.startswith(expected.stderr)
    assert f"wrote {file.name}" in actual.stderr
    assert file.stat().st_size


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_what_is_never_started_replaces_no_recording(gpuscope, tmp_path, command):
    gpuscope("run", "-o", "keep.gscope", "-c", TRAINING)
    done = gpuscope(command, "-o", "keep.gscope", "-m", "json.absent")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "forward" in names(tmp_path / "keep.gscope")
    gpuscope(command, "-m", "json.absent")
    assert [path.name for path in tmp_path.iterdir()] == ["keep.gscope"]


@pytest.mark.parametrize("end", ["", "1 / 0", "import sys; sys.exit(5)", "raise KeyboardInterrupt"])
def test_results_are_written_however_the_program_ends(gpuscope, script, tmp_path, end):
    gpuscope("run", script(TRAINING + end))
    assert "forward" in names(tmp_path / "script.gscope")


def test_ctrl_c_keeps_the_results_and_exits_with_130(script, tmp_path):
    path = script(TRAINING + "import time; print('ready', flush=True); time.sleep(60)")
    command = [sys.executable, "-m", "gpuscope", "run", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.count("KeyboardInterrupt") == 1
    assert "cli/script.py" not in errors
    assert "forward" in names(tmp_path / "script.gscope")


def test_threads_left_running_are_waited_for(gpuscope, script, tmp_path):
    source = """\
import threading, time, gpuscope
def late():
    time.sleep(0.3)
    with gpuscope.record_function("late"): pass
threading.Thread(target=late).start()
"""
    gpuscope("run", script(source))
    assert "late" in names(tmp_path / "script.gscope")


def test_an_executor_left_open_does_not_hold_the_process(gpuscope, script):
    source = (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\npool.submit(print, 'done')"
    )
    assert gpuscope("run", script(source)).stdout == "done\n"


def test_spawned_processes_find_the_scripts_functions(gpuscope, script):
    source = """\
import multiprocessing
def square(x): return x * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]))
"""
    done = gpuscope("run", script(source))
    assert (done.stdout, done.returncode) == ("[1, 4, 9]\n", 0)
    assert done.stderr.count("wrote") == 1


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(4)", "1 / 0"])
def test_a_forked_child_ends_without_a_report(gpuscope, script, end):
    source = f"""\
import os
child = os.fork()
if child == 0:
    {end}
else:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    path = script(source)
    done = gpuscope("run", path)
    assert done.stdout == plain(path).stdout
    assert done.stderr.count("wrote") == 1


def test_the_report_names_regions_and_files_on_standard_error(gpuscope, script):
    done = gpuscope("run", "--tree", script(TRAINING))
    assert done.stdout == ""
    for text in ("forward", "audit: ", "wrote script.gscope"):
        assert text in done.stderr


def test_every_named_file_is_written(gpuscope, script, tmp_path):
    files = ["a.gscope", "b.json", "c.json.gz", "d.pftrace"]
    gpuscope("run", *(word for file in files for word in ("-o", file)), script(TRAINING))
    assert all((tmp_path / file).stat().st_size for file in files)


def test_files_land_where_the_run_began(gpuscope, script, tmp_path):
    gpuscope("run", script("import os; os.chdir('/')"))
    assert (tmp_path / "script.gscope").exists()


def in_a_folder_that_is_gone(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    (tmp_path / "gone").mkdir()
    leave = tmp_path / "leave.py"  # by "-c" Python 3.13.0 has trouble of its own, with NumPy: it asks for the folder
    leave.write_text("import os, runpy; os.rmdir('../gone'); runpy.run_module('gpuscope', run_name='__main__')")
    command = [sys.executable, str(leave), *map(str, arguments)]
    return subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True)


def test_a_script_runs_in_a_folder_that_is_gone(script, tmp_path):
    done = in_a_folder_that_is_gone(tmp_path, "run", "-o", tmp_path / "out.gscope", script("print('ran')"))
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_what_needs_a_folder_that_is_gone_says_so(tmp_path):
    done = in_a_folder_that_is_gone(tmp_path, "run", "-m", "json.tool")
    assert done.returncode == 1
    assert done.stderr == "gpuscope: the current folder no longer exists\n"


def test_a_script_may_replace_standard_error(gpuscope, script, tmp_path):
    done = gpuscope("run", script("import sys; sys.stderr = open('log', 'w')"))
    assert "wrote script.gscope" in done.stderr
    assert (tmp_path / "log").read_text() == ""


def test_a_script_that_profiles_itself_is_told_so_in_one_sentence(gpuscope, script):
    done = gpuscope("run", script("import gpuscope\nwith gpuscope.profile():\n    pass"))
    assert done.returncode == 1
    assert "gpuscope: the script starts a profiler of its own" in done.stderr


def test_a_schedule_follows_the_steps_of_the_script(gpuscope, script, tmp_path):
    done = gpuscope("run", "--schedule", "wait=1,active=2,repeat=1", script(TRAINING))
    assert done.returncode == 0
    (forward,) = (event for event in gs.load(tmp_path / "script.gscope").key_averages() if event.key == "forward")
    assert forward.count == 2


def test_options_of_operators_reach_the_profiler(gpuscope, script):
    options = ("--record-shapes", "--with-stack", "--profile-memory", "--with-modules", "--with-flops")
    done = gpuscope("run", *options, script(TRAINING))
    assert done.returncode == 0
    for name in ("profile_memory", "with_modules", "with_flops"):
        assert f"note: {name}: no " in done.stderr


def test_rows_can_be_grouped_by_what_is_recorded(gpuscope, script):
    done = gpuscope("run", "--record-shapes", "--group-by-input-shape", script(TRAINING))
    assert done.returncode == 0
    assert "forward" in done.stderr
    assert "no shapes were recorded to group by" in done.stderr


def test_each_cycle_of_a_schedule_has_its_own_file(gpuscope, script, tmp_path):
    gpuscope("run", "--schedule", "wait=1,active=1,repeat=2", script(TRAINING))
    assert {path.name for path in tmp_path.glob("*.gscope")} == {"script.gscope", "script-2.gscope"}


def test_a_schedule_that_never_became_active_is_explained(gpuscope, script, tmp_path):
    done = gpuscope("run", "--schedule", "wait=2,active=1", script("print('hello')"))
    assert (done.stdout, done.returncode) == ("hello\n", 0)
    assert "0 steps" in done.stderr
    assert "gpuscope.step()" in done.stderr
    assert not list(tmp_path.glob("*.gscope"))


def test_a_script_that_takes_too_few_steps_is_not_told_to_take_any(gpuscope, script):
    done = gpuscope("run", "--schedule", "wait=2,active=1", script("import gpuscope; gpuscope.step()"))
    assert "1 step was taken" in done.stderr
    assert "must call" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to run"),
        (["absent.py"], "absent.py"),
        (["-m", "absent_module"], "absent_module"),
        (["-m", "json.absent"], "json.absent"),
        (["-m", ".relative"], "there is no module '.relative'"),
        (["."], "__main__"),
        (["-o", "x.txt", "script.py"], ".gscope"),
        (["-o", "absent/x.gscope", "script.py"], "absent"),
        (["-o", "x.json", "-o", "x.json", "script.py"], "twice"),
        (["--mode", "everything", "script.py"], "'full', 'ring', 'aggregate'"),
        (["--graphs", "leaf", "script.py"], "node"),
        (["--activities", "cpu,tpu", "script.py"], "tpu"),
        (["--schedule", "wait", "script.py"], "NAME=NUMBER"),
        (["--schedule", "wait=1", "script.py"], "active"),
        (["--schedule", "active=0", "script.py"], "active"),
        pytest.param(
            ["--schedule", f"active={'9' * 5000}", "script.py"], "999...999", id="--schedule with too many digits"
        ),
        (["--max-memory", "lots", "script.py"], "--max-memory is 'lots'"),
        (["--max-memory", "1073741824", "script.py"], "accepted are text with a unit, as '512MB' or '1GiB'"),
        (["--device-samples", "5", "script.py"], "'5' is not a time above 0 with its unit, as 5ms"),
        (["--counter-interval", "100", "script.py"], "'100' is not a time above 0 with its unit, as 5ms"),
        (["--mode", "ring", "--ring-seconds", "-1", "script.py"], "--ring-seconds is -1"),
        (["--ring-seconds", "5", "script.py"], "--ring-seconds needs --mode ring"),
        (["--mode", "aggregate", "--ring-seconds", "5", "script.py"], "--ring-seconds needs --mode ring"),
        (["--device-samples", "1us", "script.py"], "--device-samples is 1e-06"),
        (["--sort-by", "beauty", "script.py"], "--sort-by is 'beauty'"),
        (["--row-limit", "0", "script.py"], "--row-limit"),
        (["--max-depth", "x", "script.py"], "--max-depth"),
        (["--unknown", "script.py"], "--unknown"),
        (["--group-by-input-shape", "script.py"], "--group-by-input-shape needs --record-shapes"),
        (["--group-by-stack-n", "3", "script.py"], "--group-by-stack-n needs --with-stack"),
        (["--with-stack", "--group-by-stack-n", "-1", "script.py"], "--group-by-stack-n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_found_before_the_script_runs(gpuscope, script, arguments, sentence):
    script("print('ran')")
    done = gpuscope("run", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpuscope: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_an_unreadable_script_is_found_before_the_run(gpuscope, script):
    script("").chmod(0)
    assert gpuscope("run", "script.py").returncode == 2


SLOW_AND_FAST = """\
import time

def spend(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass

def slow():
    spend(0.06)

def fast():
    spend(0.02)

spent = {slow: 0.0, fast: 0.0}
for called in (slow, fast) * 6:
    began = time.perf_counter()
    called()
    spent[called] += time.perf_counter() - began
print(spent[slow] / sum(spent.values()))
"""


@knows_stacks
@pytest.mark.parametrize("more", [[], ["--mode", "ring"], ["--mode", "aggregate"], ["--python-samples", "500us"]])
@least_disturbed
def test_an_unmodified_script_gets_a_tree_of_its_functions(gpuscope, script, tmp_path, more):
    script(SLOW_AND_FAST)
    ran = gpuscope("run", *more, "script.py")
    assert ran.returncode == 0, ran.stderr
    assert "nothing was recorded" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "script.py:" in line]
    assert lines[0].startswith("<module>  script.py:")  # what runs the script is no part of it
    shown = {word for line in lines for word in line.split()}
    assert {"slow", "fast", "spend"} <= shown
    samples = gs.load(tmp_path / "script.gscope").samples()
    (root,) = [root for root in samples.roots if root.file.endswith("script.py")]
    share = {child.function: child.total_ns / root.total_ns for child in root.children}
    assert share["slow"] == pytest.approx(float(ran.stdout), abs=0.12)  # about 0.75 where the machine is not busy


@knows_stacks
def test_a_saved_recording_shows_the_same_functions(gpuscope, script):
    script(SLOW_AND_FAST)
    ran = gpuscope("run", "script.py")
    told = [line for line in ran.stderr.splitlines() if "script.py:" in line]
    report = gpuscope("report", "script.gscope")
    assert [line for line in report.stdout.splitlines() if "script.py:" in line] == told
    assert "slow" not in gpuscope("report", "script.gscope", "--no-functions").stdout


@knows_stacks
@least_disturbed
def test_regions_and_the_time_outside_them_make_up_the_run(gpuscope, script, tmp_path):
    script(SLOW_AND_FAST + "import gpuscope\nwith gpuscope.record_function('inside'):\n    spend(0.2)\n")
    ran = gpuscope("run", "script.py")
    assert "[outside every region]" in ran.stderr
    rows = {row.key: row for row in gs.load(tmp_path / "script.gscope").key_averages()}
    assert float(rows["inside"].self_cpu_percent.strip("%")) < 50
    total = sum(float(row.self_cpu_percent.strip("%")) for row in rows.values())
    assert total == pytest.approx(100, abs=0.1)


def test_no_python_samples_takes_none(gpuscope, script, tmp_path):
    script(SLOW_AND_FAST)
    ran = gpuscope("run", "--no-python-samples", "script.py")
    assert "Python functions" not in ran.stderr
    assert not gs.load(tmp_path / "script.gscope").samples()


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("0", "'0' is not a time above 0 with its unit, as 5ms, 2s or 1min"),
        ("5", "'5' is not a time above 0 with its unit, as 5ms, 2s or 1min"),
        ("-1ms", "'-1ms' is not a time above 0"),
        ("often", "'often' is not a time above 0"),
        ("nan", "'nan' is not a time above 0"),
        ("1e-9s", "--python-samples is 1e-09; accepted are True, False and seconds from 0.0001 to 10"),
    ],
)
def test_a_wrong_time_between_samples_gets_a_sentence(gpuscope, script, time, words):
    script("print('ran')")
    ran = gpuscope("run", f"--python-samples={time}", "script.py")
    assert ran.returncode == 2
    assert words in ran.stderr
    assert "ran" not in ran.stdout


@pytest.mark.parametrize("counters", ["why", "dram__bytes_read.sum,dram__bytes_write.sum"])
def test_counters_that_cannot_be_had_are_told_with_what_would_change_it(gpuscope, script, tmp_path, counters):
    script("print('ran')")
    ran = gpuscope("run", "--counters", counters, "--counter-interval", "50us", "script.py", CUDA_VISIBLE_DEVICES="")
    assert (ran.returncode, ran.stdout) == (0, "ran\n")
    assert "hardware counters were not sampled" in ran.stderr
    info = gs.load(tmp_path / "script.gscope").trace.info
    assert info["counters.interval_ns"] == "50000"
    assert info["counters.why"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--counters", ","), "counters is []; accepted is 'why', or a list of metrics"),
        (("--counters", "why", "--mode", "aggregate"), "counters is given with mode='aggregate'"),
        (("--counters", "why", "--counter-interval", "1us"), "--counter-interval is 1"),
        (("--counters", "why", "--counter-interval", "soon"), "'soon' is not a time above 0"),
    ],
)
def test_wrong_counters_get_a_sentence(gpuscope, script, arguments, words):
    script("print('ran')")
    ran = gpuscope("run", *arguments, "script.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert words in ran.stderr


def test_a_report_has_the_counters_that_were_sampled(gpuscope, tmp_path):
    tables = training_tables()
    tables["counter"] = {"name": ["sm__busy.pct"], "unit": ["percent"], "description": [""]}
    tables["counter_sample"] = {"start_ns": [START], "duration_ns": [100_000]}
    tables["counter_value"] = {"sample": [0], "counter": [0], "value": [62.5]}
    Recording(make_store(tables, info=INFO)).save(tmp_path / "run.gscope")
    ran = gpuscope("report", "run.gscope")
    assert "1 samples of 1 hardware counters" in ran.stdout
    assert "62.5" in ran.stdout


def test_a_pool_records_its_tasks_while_the_parent_records(gpuscope, script):
    source = """
import multiprocessing, gpuscope as gs
def task(number):
    with gs.profile(activities=["CPU"], python_samples=1e-3) as prof, gs.record_function("work"):
        sum(range(100_000))
    return prof.samples().count >= 0 and any(row.key == "work" for row in prof.key_averages())
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(all(pool.map(task, range(12))))
"""
    assert gpuscope("run", script(source)).stdout == "True\n"
