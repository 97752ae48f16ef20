# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.gscope import (
    COLUMNS,
    Block,
    file_header,
    file_of,
    gscope_bytes,
    make_store,
    strings_block,
    table_block,
)
from fakes.stores import INFO, training_store, training_tables
from gpuscope import _core
from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument
from gpuscope.exporters import save
from gpuscope.readers.files import load_store

WHOLE = gscope_bytes(training_tables(), info=INFO)


def trace(store):
    pieces = []
    _core.write_chrome(store, pieces.append)
    return json.loads(b"".join(pieces))


@pytest.fixture
def opened(tmp_path):
    def open_bytes(data):
        path = tmp_path / "a.gscope"
        path.write_bytes(data)
        return load_store(path)

    return open_bytes


def test_saved_recording_opens_the_same(tmp_path):
    store = training_store()
    save(store, tmp_path / "a.gscope")
    assert trace(load_store(str(tmp_path / "a.gscope"))) == trace(store)


def test_writer_makes_the_bytes_that_the_format_says(tmp_path):
    full = {
        table: {name: columns.get(name, [0] * len(next(iter(columns.values())))) for name in COLUMNS[table]}
        for table, columns in training_tables().items()
    }
    full["path"]["depth"] = [0, 1]
    save(make_store(full), tmp_path / "a.gscope")
    # The same tables, in the order in which the product writes them.
    order = ["device", "track", "thread", "call", "variant", "path", "region", "mark", "api", "kernel", "memcpy"]
    strings = load_strings(full)
    assert (tmp_path / "a.gscope").read_bytes() == gscope_bytes({name: full[name] for name in order}, strings)


def load_strings(tables):
    strings = [""]
    for columns in tables.values():
        for values in columns.values():
            strings += [value for value in values if isinstance(value, str) and value not in strings]
    return strings


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255), st.integers(0, len(WHOLE)))
def test_damaged_file_raises_or_opens_in_part(opened, at, flip, length):
    damaged = bytearray(WHOLE)
    damaged[at] ^= flip
    try:
        store = opened(bytes(damaged[:length]))
    except CorruptTrace:
        return
    trace(store)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_after_a_good_header_are_harmless(opened, data):
    assert "file.truncated_at" in opened(file_header() + data).info()


def test_cut_file_says_where(opened):
    whole_blocks = gscope_bytes(training_tables(), info=INFO, end=False)
    assert opened(whole_blocks + b"GBLK").info()["file.truncated_at"] == str(len(whole_blocks))


def test_unknown_tables_columns_and_blocks_are_skipped(opened):
    data = file_of(
        strings_block(["", "x"]),
        table_block("thread", {"system_id": np.array([1], dtype="u8")}),
        table_block("weather", {"wind": np.array([1, 2], dtype="f4")}),
        Block(77, 3, b"", b"something new"),
        table_block("mark", {"start_ns": np.array([5], dtype="i8"), "colour": np.array([7], dtype="u8")}),
        minor=9,
    )
    store = opened(data)
    assert "file.truncated_at" not in store.info()
    assert [event["ph"] for event in trace(store)["traceEvents"] if event["ph"] != "M"] == ["i"]


def test_missing_columns_read_as_none_or_zero(opened):
    def forget(tables):
        del tables["kernel"]["region"], tables["kernel"]["correlation"]

    (kernel, _) = [e for e in trace(training_store(forget))["traceEvents"] if e.get("cat") == "kernel"]
    assert "region" not in kernel["args"]
    assert kernel["args"]["correlation"] == 0


def test_column_of_another_width_is_refused(opened):
    data = file_of(strings_block([""]), table_block("track", {"stream": np.array([7], dtype="u8")}))
    with pytest.raises(CorruptTrace, match=r"track\.stream is 8 bytes wide, not 4"):
        opened(data)


def test_newer_format_names_both_versions(opened):
    with pytest.raises(
        CorruptTrace, match=r"format version 3\.5 and this gpuscope reads 2\.x: a newer gpuscope reads it"
    ):
        opened(file_header(3, 5))


def test_older_format_names_both_versions(opened):
    with pytest.raises(
        CorruptTrace, match=r"format version 1\.0 and this gpuscope reads 2\.x: an older gpuscope reads it"
    ):
        opened(file_header(1, 0))


def test_bad_reference_is_told(opened):
    tables = training_tables()
    tables["kernel"]["variant"] = [0, 9]
    with pytest.raises(CorruptTrace, match="row 1 of kernel has variant 9, of 2") as caught:
        opened(gscope_bytes(tables))
    assert caught.value.path.endswith("a.gscope")


def test_empty_file_is_told(opened):
    with pytest.raises(CorruptTrace, match="the file is empty"):
        opened(b"")


def test_other_file_is_told(opened):
    with pytest.raises(CorruptTrace, match=r"no \.gscope file"):
        opened(b"PK\x03\x04 a zip file")


def test_missing_file_is_told(tmp_path):
    with pytest.raises(GpuscopeError, match="No such file or directory"):
        load_store(tmp_path / "missing.gscope")


def test_folder_is_told(tmp_path):
    (tmp_path / "a.gscope").mkdir()
    with pytest.raises(GpuscopeError, match="it is a directory"):
        load_store(tmp_path / "a.gscope")


@pytest.mark.parametrize("path", [3, None, b"a.gscope", "", "a\0.gscope", "\udcff.gscope"])
def test_what_is_no_path_is_told(path):
    with pytest.raises(InvalidArgument, match="path must be"):
        load_store(path)


def save_while_a_fact_is_set(store, path):
    """Other threads run while a file is written: at each chunk."""
    pieces = []

    def write(piece):
        pieces.append(piece)
        store.set_info(f"late.{len(pieces)}", f"value {len(pieces)}")

    _core.write_gscope(store, write)
    path.write_bytes(b"".join(pieces))
    return load_store(path)


def test_facts_that_are_set_while_a_file_is_written_are_not_in_it(tmp_path):
    store = training_store()
    before = store.info()
    assert save_while_a_fact_is_set(store, tmp_path / "a.gscope").info() == before


def test_facts_that_are_set_while_a_file_is_written_are_known_at_once():
    store = training_store()
    known = []

    def write(_):
        store.set_info("late", str(len(known)))
        known.append(store.info()["late"])

    _core.write_gscope(store, write)
    assert known == [str(number) for number in range(len(known))]


def test_facts_that_are_set_while_a_file_is_written_are_in_the_next(tmp_path):
    store = training_store()
    save_while_a_fact_is_set(store, tmp_path / "a.gscope")
    save(store, tmp_path / "b.gscope")
    assert load_store(tmp_path / "b.gscope").info() == store.info()
