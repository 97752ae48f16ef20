# SPDX-License-Identifier: Apache-2.0
"""What every result has: a telling ``repr``, plain values, JSON, and a frame where it is a table."""

from __future__ import annotations

import json

import pytest

from fakes.operators import training_step
from gpuscope.analysis import audit, events, key_averages, modules, tree

RESULTS = (key_averages, events, tree, modules, audit)
TABLES = {key_averages: "events", events: "events", tree: "nodes", modules: "modules"}


@pytest.mark.parametrize("ask", RESULTS)
def test_json_is_the_text_of_the_plain_values(ask, tmp_path):
    result = ask(training_step())
    text = result.to_json(tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == text + "\n"
    assert json.loads(text).keys() == result.to_dict().keys()


@pytest.mark.parametrize("ask", TABLES)
def test_tables_are_frames(ask):
    pytest.importorskip("pandas")
    result = ask(training_step())
    rows = result.to_dict()[TABLES[ask]]
    frame = result.to_pandas()
    assert len(frame) == len(rows) > 0
    assert list(frame.columns) == list(rows[0])


def test_a_node_of_the_plain_tree_names_its_parent():
    found = tree(training_step())
    nodes = found.to_dict()["nodes"]
    assert nodes[0]["parent"] is None
    assert [node["name"] for node in nodes[1:]] == [node.name for node in found]
    assert all(nodes[node["parent"]]["count"] > 0 for node in nodes[1:])


@pytest.mark.parametrize(
    ("ask", "says"),
    [(key_averages, "<Averages: "), (events, "<Events: "), (tree, "<Tree of <Node recording"), (audit, "<Audit: ")],
)
def test_a_result_tells_itself_in_a_line(ask, says):
    text = repr(ask(training_step()))
    assert text.startswith(says)
    assert "\n" not in text
