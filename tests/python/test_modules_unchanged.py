# SPDX-License-Identifier: Apache-2.0
"""The check that runs around every test, in tests/conftest.py: it tells stand-ins for modules from imported ones."""

from __future__ import annotations

import importlib
import sys
import types

import pytest

from fakes.modules import modules_unchanged


def put(name, module):
    return lambda: sys.modules.update({name: module})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (put("absent_framework", types.ModuleType("absent_framework")), "absent_framework is <module"),
        (put("absent_framework", types.SimpleNamespace()), "absent_framework is namespace()"),
        (put("absent_framework", None), "absent_framework is None"),
        (put("absent_framework.part", types.ModuleType("part")), "absent_framework.part is <module"),
        (put("gpuscope.absent", types.ModuleType("gpuscope.absent")), "gpuscope.absent is <module"),
        (put("json", types.ModuleType("json")), "json was replaced by <module"),
        (put("json", None), "json was replaced by None"),
        (lambda: sys.modules.pop("json"), "json was removed"),
    ],
)
def test_what_is_left_behind_fails_and_is_undone(change, told):
    import json

    before = dict(sys.modules)
    with pytest.raises(AssertionError) as failure, modules_unchanged():
        change()
    assert f"left in sys.modules: {told}" in str(failure.value)
    assert dict(sys.modules) == before
    assert sys.modules["json"] is json


def test_imports_may_stay(tmp_path, monkeypatch):
    (tmp_path / "imported_here.py").write_text(
        "import sys, types\nsys.modules[__name__ + '.made'] = types.ModuleType('made')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with modules_unchanged():
        importlib.import_module("imported_here")
    assert sys.modules.pop("imported_here")
    assert sys.modules.pop("imported_here.made")


def test_a_stand_in_that_was_imported_from_a_folder_may_not_stay(tmp_path):
    (tmp_path / "imported_once.py").write_text("")

    def change():
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(tmp_path)
            importlib.import_module("imported_once")

    with pytest.raises(AssertionError, match="imported_once is <module"), modules_unchanged():
        change()
    assert "imported_once" not in sys.modules


def test_a_stand_in_that_was_taken_away_again_is_fine(monkeypatch):
    with modules_unchanged(), monkeypatch.context() as patch:
        patch.setitem(sys.modules, "absent_framework", types.ModuleType("absent_framework"))
        patch.setitem(sys.modules, "json", None)


def test_it_runs_around_every_test(request):
    of_tests = [name for name in request.fixturenames if name != "small_heap"]  # that is of a module
    assert of_tests[0] == "modules_of_the_test"
