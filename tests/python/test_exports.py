# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import types

import pytest

import fakes.session  # noqa: F401 - completes a core without regions
import gpuscope


def python(script):
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


@pytest.mark.parametrize("name", gpuscope.__all__)
def test_every_public_name_exists(name):
    assert getattr(gpuscope, name) is not None
    assert name in dir(gpuscope)


def test_every_lazy_name_is_public():
    assert sorted(gpuscope._HOME_OF) == sorted(gpuscope.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gpuscope' has no attribute 'profle'"):
        _ = gpuscope.profle


def test_public_names_outlive_the_import_of_modules_of_the_same_name():
    for module in pkgutil.iter_modules(gpuscope.__path__):
        if module.name in gpuscope.__all__:
            importlib.import_module(f"gpuscope.{module.name}")
    assert [name for name in gpuscope.__all__ if isinstance(getattr(gpuscope, name), types.ModuleType)] == []


def test_import_alone_loads_no_other_part_of_the_package():
    assert python("import gpuscope, sys; print(*[m for m in sys.modules if m.startswith('gpuscope.')])") == []


@pytest.mark.parametrize("module", ["numpy", "rich", "argparse", "json", "dataclasses", "torch"])
def test_import_alone_loads_nothing_heavy(module):
    assert python(f"import gpuscope, sys; print({module!r} in sys.modules)") == ["False"]
