# SPDX-License-Identifier: Apache-2.0
"""Pages by command: ``gpuscope report -o``, ``gpuscope export`` and ``gpuscope run`` to .html, and ``--open``."""

from __future__ import annotations

import pytest

from fakes.steps import steps_store
from gpuscope import cli
from gpuscope.exporters import save

SCRIPT = """
import gpuscope
for step in range(3):
    with gpuscope.record_function("forward"):
        sum(range(1000))
    gpuscope.step()
"""


@pytest.fixture
def recording(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(steps_store(), tmp_path / "run.gscope")
    return "run.gscope"


@pytest.fixture
def browser(monkeypatch):
    """The addresses that a browser was to open."""
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    return shown


def test_report_writes_the_page_and_names_it(recording, tmp_path, capsys, browser):
    assert cli.main(["report", recording, "-o", "report.html"]) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<h1>train.py</h1>" in text
    assert capsys.readouterr().out.startswith("report.html")
    assert browser == []


def test_report_opens_a_page_named_after_the_recording(recording, tmp_path, browser):
    assert cli.main(["report", recording, "--open"]) == 0
    assert browser == [(tmp_path / "run.html").as_uri()]
    assert (tmp_path / "run.html").stat().st_size > 10_000


def test_export_writes_it_beside_other_formats(recording, tmp_path):
    assert cli.main(["export", recording, "-o", "run.html", "-o", "run.pftrace"]) == 0
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_page_has_one_suffix(recording, capsys):
    assert cli.main(["report", recording, "-o", "report.pdf"]) == 2
    assert ".html" in capsys.readouterr().err


def test_a_run_writes_and_opens_its_page(tmp_path, gpuscope):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = gpuscope("run", "-o", "kept.gscope", "--open", "script.py", BROWSER="echo %s")  # a browser that says what
    assert done.returncode == 0
    assert done.stdout.strip() == (tmp_path / "script.html").as_uri()
    assert "wrote script.html" in done.stderr
    assert (tmp_path / "kept.gscope").exists()
    assert '"forward"' in (tmp_path / "script.html").read_text(encoding="utf-8")
