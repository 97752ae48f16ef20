# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "module", sorted({module.name for module in pkgutil.iter_modules(gpuscope.__path__)} & set(gpuscope.__all__))
)
def test_a_public_name_outlives_the_import_of_a_module_of_the_same_name(module):
    script = f"import gpuscope, types, gpuscope.{module}; print(isinstance(gpuscope.{module}, types.ModuleType))"
    assert python(script) == ["False"]


def test_import_alone_loads_no_other_part_of_the_package():
    assert python("import gpuscope, sys; print(*[m for m in sys.modules if m.startswith('gpuscope.')])") == []


@pytest.mark.parametrize("module", ["numpy", "rich", "argparse", "json", "dataclasses", "torch"])
def test_import_alone_loads_nothing_heavy(module):
    assert python(f"import gpuscope, sys; print({module!r} in sys.modules)") == ["False"]
