# SPDX-License-Identifier: Apache-2.0
"""``run --children`` records the processes that the program starts into one folder, and reports them."""

from __future__ import annotations

import json
import os
import re
import textwrap
import time

import pytest

from gpuscope.recording import load

WORK = """
import multiprocessing, os, signal, subprocess, sys, time

def work(number=0):
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        sum(range(1000))
    return number
"""


@pytest.fixture
def recorded(gpuscope, script, tmp_path):
    """Runs a program with ``--children``; its report, and the recordings of its children by process."""

    def run(source, *options, **variables):
        guarded = f"{WORK}\nif __name__ == '__main__':\n{textwrap.indent(textwrap.dedent(source), '    ')}"
        done = gpuscope("run", "--children", "-o", "out/", *options, script(guarded), **variables)
        own = re.search(r"wrote out/pid-(\d+)", done.stderr)
        traces = [load(path).trace for path in (tmp_path / "out").glob("*.gscope")]
        found = {int(trace.info["process.id"]): trace for trace in traces}
        found.pop(int(own[1]) if own else None, None)
        return done, found

    return run


def functions(trace):
    return {trace.string(each).rpartition(".")[2] for each in trace.stacks.function.tolist()}


# -- what is recorded --------------------------------------------------------------------------------------------------

STARTS = {
    "fork": "pid = os.fork()\nif not pid:\n    work()\n    os._exit(0)\nos.waitpid(pid, 0)",
    "fork that returns": "pid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nelse:\n    work()",
    "fork of a fork": (
        "pid = os.fork()\nif not pid:\n    inner = os.fork()\n    work()\n"
        "    os._exit(inner and os.waitpid(inner, 0)[1])\nos.waitpid(pid, 0)"
    ),
    **{
        f"multiprocessing {method}": (
            f"process = multiprocessing.get_context({method!r}).Process(target=work)\n"
            "process.start()\nprocess.join()\nassert process.exitcode == 0"
        )
        for method in ("fork", "spawn", "forkserver")
    },
    "not joined": "multiprocessing.Process(target=work).start()",
    "terminated": (
        "context = multiprocessing.get_context('fork')\nworked = context.Event()\n"
        "process = context.Process(target=lambda: (work(), worked.set(), time.sleep(99)))\n"
        "process.start()\nworked.wait()\nprocess.terminate()\nprocess.join()"
    ),
    "subprocess": "subprocess.run([sys.executable, '-c', 'import script; script.work()'], check=True)",
}


@pytest.mark.parametrize("source", STARTS.values(), ids=STARTS)
def test_a_process_that_the_program_starts_is_recorded(recorded, source):
    done, found = recorded(source)
    assert done.returncode == 0, done.stderr
    assert found
    assert all("work" in functions(trace) for trace in found.values())
    assert all(f"{process} " in done.stderr for process in found)


def test_the_report_names_the_process_its_line_and_its_file(recorded):
    done, found = recorded("multiprocessing.Process(target=work, name='loader').start()")
    (process,) = found
    row = next(line for line in done.stderr.splitlines() if line.startswith(f"loader {process}"))
    assert re.search(rf"work \(script\.py:\d+\) +out/pid-{process}\.gscope$", row)


def test_a_worker_of_a_pool_is_recorded_though_the_pool_ends_it(recorded):
    _, found = recorded("with multiprocessing.get_context('fork').Pool(1) as pool:\n    pool.map(work, range(2))")
    assert any("work" in functions(trace) for trace in found.values())


def test_options_arrive_in_children(recorded):
    _, found = recorded(STARTS["subprocess"], "--python-samples", "7ms")
    assert [trace.info["samples.interval_ns"] for trace in found.values()] == ["7000000"]


def test_ranks_are_named_by_their_number_and_their_helpers_by_their_process(recorded, tmp_path):
    recorded(
        """
        code = "import os, script; pid = os.fork(); script.work(); pid and os.waitpid(pid, 0)"
        variables = {**os.environ, "RANK": "3", "WORLD_SIZE": "8"}
        subprocess.run([sys.executable, "-c", code], env=variables, check=True)
        """
    )
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [re.sub(r"\d+", "N", name) for name in names] == ["pid-N.gscope", "pid-N.gscope", "rank-N.gscope"]


def test_without_a_folder_a_new_one_is_named_by_the_script(gpuscope, script, tmp_path):
    (tmp_path / "script").mkdir()
    done = gpuscope("run", "--children", script("print('ran')"))
    assert re.search(r"wrote script-2/pid-\d+\.gscope", done.stderr)


def test_a_diagnosis_records_children_too(gpuscope, script):
    source = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"
    done = gpuscope("diagnose", "--children", "-o", "out/", script(source))
    assert re.search(r"^-c sum\(range\(10\*\*6\)\) \d+ .* out/pid-\d+\.gscope$", done.stderr, re.MULTILINE)


def test_children_without_a_folder_among_the_files_is_one_sentence(gpuscope, script):
    done = gpuscope("run", "--children", "-o", "out.html", script("print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpuscope: --children needs a folder, as -o out/; -o is 'out.html'\n"


# -- what is not -------------------------------------------------------------------------------------------------------


def test_the_default_says_how_many_were_not_recorded(gpuscope, script, tmp_path):
    source = f"""{WORK}
if __name__ == '__main__':
    with multiprocessing.get_context('spawn').Pool(2) as pool:  # and a tracker of resources, which is no process of its
        pool.map(work, range(2))
    subprocess.run([sys.executable, "-c", "pass"], preexec_fn=lambda: None)
    subprocess.run(["true"], preexec_fn=lambda: None)
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
"""
    done = gpuscope("run", script(source))
    assert done.stderr.endswith("note: 4 Python processes that it started were not recorded: --children\n")
    assert [path.name for path in tmp_path.glob("*.gscope")] == ["script.gscope"]


def test_a_program_without_processes_gets_no_note(gpuscope, script):
    assert "--children" not in gpuscope("run", script("print('ran')")).stderr


def test_a_killed_child_is_named_and_has_no_recording(recorded):
    done, found = recorded(
        """
        context = multiprocessing.get_context("fork")
        began = context.Event()
        process = context.Process(target=lambda: (began.set(), time.sleep(99)))
        process.start()
        began.wait()
        process.kill()
        process.join()
        print(process.pid)
        """
    )
    assert not found
    assert f"note: 1 process has no recording, as killed or still running: {done.stdout}" in done.stderr


def test_a_child_that_outlives_the_parent_is_named_and_written_later(gpuscope, script, tmp_path):
    source = """
import os, subprocess, sys, time
code = "import os, time\\nwhile not os.path.exists('go'): time.sleep(0.01)"
process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
while not any(str(process.pid) in open("out/" + name).read() for name in os.listdir("out") if name[0] == "."):
    time.sleep(0.01)
print(process.pid)
"""
    done = gpuscope("run", "--children", "-o", "out/", script(source))
    process = int(done.stdout)
    assert f"note: 1 process has no recording, as killed or still running: {process}" in done.stderr
    path = tmp_path / "out" / f"pid-{process}.gscope"
    assert not path.exists()
    (tmp_path / "go").touch()
    while os.path.exists(f"/proc/{process}/exe"):
        time.sleep(0.01)
    assert load(path).trace is not None
    assert len(list((tmp_path / "out").iterdir())) == 2  # no log is left


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run([sys.executable, '-I', '-c', 'print(1)'], check=True)",
        "subprocess.run(['true'], preexec_fn=lambda: None, check=True)",
        "subprocess.run([sys.executable, '-m', 'gpuscope', 'run', '-c', 'print(1)'], check=True)",
    ],
    ids=["isolated", "no Python", "gpuscope itself"],
)
def test_a_child_that_cannot_be_recorded_runs_as_ever(recorded, source):
    done, found = recorded(source)
    assert (done.returncode, found) == (0, {})
    assert "has no recording" not in done.stderr


def test_a_child_that_cannot_be_recorded_is_counted(recorded):
    done, _ = recorded("subprocess.run([sys.executable, '-I', '-c', 'print(1)'], check=True)")
    assert "note: 1 Python process was not recorded: another Python, -I, -E, -S or its own environment" in done.stderr


def test_a_forked_child_that_becomes_another_program_ends_as_that(recorded):
    done, _ = recorded(
        """
        pid = os.fork()
        if not pid:
            os.execv("/bin/sh", ["sh", "-c", "exit 7"])
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert (done.stdout, done.returncode) == ("7\n", 0)
    assert "has no recording" not in done.stderr


def test_the_report_says_why_a_recording_could_not_be_written(recorded):
    done, found = recorded(
        """
        code = "import gpuscope.recording as module; module.Analyses.save = lambda *of_save: 1 / 0; print('ran')"
        subprocess.run([sys.executable, "-c", code], check=True)
        """
    )
    assert (done.stdout, done.returncode, found) == ("ran\n", 0, {})
    assert re.search(r"gpuscope: process \d+: the recording could not be written: division by zero", done.stderr)


def test_a_child_that_can_write_no_file_runs_as_ever(recorded):
    done, found = recorded(
        """
        code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); print('ran')"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        print(done.stdout, done.stderr, sep="")
        """
    )
    assert (done.stdout, done.returncode, found) == ("ran\n\n", 0, {})


@pytest.mark.parametrize("code", ["raise SystemExit(5)", "import os; os._exit(5)"])
def test_the_exit_code_of_a_child_is_its_own(recorded, code):
    done, _ = recorded(f"sys.exit(subprocess.run([sys.executable, '-c', {code!r}], check=False).returncode)")
    assert done.returncode == 5


# -- the start of an interpreter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [False, True])
def test_a_sitecustomize_of_the_user_runs_in_children(recorded, tmp_path, broken):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import sys; sys.seen = __file__" + "; raise ValueError('of the user')" * broken
    )
    code = "import sys; print(sys.seen, sys.modules['sitecustomize'].__file__ if len(sys.argv) > 1 else '')"
    words = ["-c", code] + ["named"] * (not broken)
    own = str(tmp_path / "site" / "sitecustomize.py")
    source = f"subprocess.run([sys.executable, *{words!r}], check=True)"
    done, found = recorded(source, PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout.split() == [own] * (1 + (not broken))
    assert len(found) == 1


def test_a_child_finds_no_folder_of_ours_on_its_path(recorded):
    done, _ = recorded("subprocess.run([sys.executable, '-c', 'import sys; print(sys.path)'], check=True)")
    assert "startup" not in done.stdout


# -- the folder --------------------------------------------------------------------------------------------------------


def test_the_report_of_a_folder_has_a_line_for_each_process(recorded, gpuscope, tmp_path):
    _, found = recorded(STARTS["subprocess"])
    done = gpuscope("report", "out")
    heading, *rows, opening = done.stdout.splitlines()
    assert heading.split()[0] == "process"
    assert len(rows) == 1 + len(found)
    assert gpuscope(*opening.removeprefix("open one: gpuscope ").split()).returncode == 0


def test_a_recording_that_is_only_begun_is_none_of_the_folder(recorded, gpuscope, tmp_path):
    recorded("pass")
    (tmp_path / "out" / "pid-1.gscope").touch()
    assert gpuscope("report", "out").stdout.startswith("program")


def test_a_diff_of_folders_compares_the_programs_and_names_how_many_others_there_are(recorded, gpuscope, tmp_path):
    recorded(STARTS["subprocess"])
    (tmp_path / "out").rename(tmp_path / "before")
    recorded(STARTS["subprocess"])
    done = gpuscope("diff", "before", "out", "--json", "diff.json")
    found = json.loads((tmp_path / "diff.json").read_text())
    assert (found["before"]["runs"], found["after"]["runs"]) == (1, 1)
    assert "2 processes that the programs started" in done.stdout


def test_a_diff_of_jobs_compares_the_ranks(recorded, gpuscope, tmp_path):
    ranks = """
        for rank in "01":
            subprocess.run([sys.executable, "-c", "import script; script.work()"], env={**os.environ, "RANK": rank,
                           "WORLD_SIZE": "2"}, check=True)
    """
    recorded(ranks)
    (tmp_path / "out").rename(tmp_path / "before")
    recorded(ranks)
    gpuscope("diff", "before", "out", "--json", "diff.json")
    found = json.loads((tmp_path / "diff.json").read_text())
    assert (found["before"]["runs"], found["after"]["runs"]) == (2, 2)


def test_a_damaged_recording_does_not_hide_the_others(recorded, gpuscope, tmp_path):
    recorded("pass")
    (tmp_path / "out" / "pid-1.gscope").write_bytes(b"damaged")
    done = gpuscope("report", "out")
    assert done.returncode == 0
    assert "cannot be read" in done.stdout


def test_workers_of_a_dataloader_are_recorded(recorded):
    pytest.importorskip("torch")
    _, found = recorded(
        """
        import torch
        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, at):
                return torch.tensor(work(at))
        list(torch.utils.data.DataLoader(Numbers(), num_workers=2))
        """
    )
    assert sum("work" in functions(trace) for trace in found.values()) == 2
