# SPDX-License-Identifier: Apache-2.0
"""``gpuscope completion``: what shells offer by the script that it prints."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from gpuscope import cli

# Asks the function that the script registers, as a shell does at TAB.
ASK = """\
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
registered=$(complete -p gpuscope); function=${registered##*-F }
"${function%% *}" gpuscope "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "gpuscope", "completion", shell]
        (folder / shell).write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    return folder


@pytest.fixture
def offers(scripts, tmp_path):
    """What bash offers for the last of the words behind ``gpuscope``."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    for name in ("train.py", "app.pyz", "made run.gscope", "trace.json.gz", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()

    def ask(*words):
        command = ["bash", "--norc", "-c", ASK, "bash", scripts / "bash", "gpuscope", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return {line for line in done.stdout.splitlines() if line}

    return ask


def test_commands_are_offered(offers):
    assert offers("") == {entry.name for entry in cli.COMMANDS if " " not in entry.name}
    assert offers("re") == {"report"}


def test_the_second_words_of_commands_are_offered(offers):
    assert offers("bench", "") == {"explore"}
    assert "show" in offers("memory", "")
    assert offers("bench", "explore", "--ba") == {"--backend"}


def test_options_of_the_command_are_offered(offers):
    assert offers("run", "--mo") == {"--mode"}
    assert offers("report", "--mo") == set()
    assert {"--help", "--version"} <= offers("--")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("run", "--mode", ""), {"full", "ring", "aggregate"}),
        (("run", "--open", "--graphs", "l"), {"launch"}),
        (("bench", "explore", "--dtype", ""), {"float32", "float64"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
    ],
)
def test_fixed_values_are_offered(offers, words, values):
    assert offers(*words) == values


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("run", ""), {"train.py", "app.pyz", "folder"}),
        (("run", "--tree", "tr"), {"train.py"}),
        (("report", ""), {"made run.gscope", "trace.json.gz", "folder"}),
        (("diff", "a.gscope", "m"), {"made run.gscope"}),
        (("diagnose", "t"), {"train.py", "trace.json.gz"}),
        (("report", "-o", "n"), {"notes.txt"}),
        (("demo", "-o", ""), {"folder"}),
    ],
)
def test_files_are_offered_by_their_suffix(offers, words, files):
    assert offers(*words) == files


@pytest.mark.parametrize("words", [("run", "train.py", "--mo"), ("memory", "-m", "package", "--to")])
def test_options_are_not_offered_behind_a_program(offers, words):
    assert offers(*words) == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_that_its_shell_reads(scripts, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    done = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_commands_options_and_values(scripts, shell):
    text = (scripts / shell).read_text()
    assert [entry.name for entry in cli.COMMANDS if entry.name.split()[-1] not in text] == []
    assert "full ring aggregate" in text
    assert "counter-interval" in text


def test_without_shtab_a_sentence_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert "pip install shtab" in capsys.readouterr().err


def test_another_shell_is_refused_with_those_that_there_are(gpuscope):
    done = gpuscope("completion", "csh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'bash', 'zsh', 'fish'" in done.stderr
