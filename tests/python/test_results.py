# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import pytest

from gpuscope.errors import GpuscopeError
from gpuscope.results import json_text


def test_what_json_lacks_becomes_null():
    text = json_text({"ends": [-math.inf, math.inf], "value": math.nan, "kept": (1.5, 2, "x", None, True)})
    assert json.loads(text) == {"ends": [None, None], "value": None, "kept": [1.5, 2, "x", None, True]}


def test_the_file_holds_the_text(tmp_path):
    text = json_text({"n": 1}, tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == text + "\n"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(GpuscopeError, match=r"cannot write .*/result\.json: the folder .*missing does not exist"):
        json_text({}, tmp_path / "missing" / "result.json")
