# SPDX-License-Identifier: Apache-2.0
"""Damaged recordings, and files that are no recordings but say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuscope as gs
from fakes.gscope import (
    NONE,
    Block,
    contents_block,
    contents_of,
    file_header,
    file_of,
    gscope_blocks,
    gscope_bytes,
    numbered_blocks,
    strings_block,
    table_block,
)
from fakes.stores import INFO, training_tables
from gpuscope.errors import CorruptTrace, InvalidArgument

WHOLE = gscope_bytes(training_tables(), info=INFO)
IN_MEMORY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def opened(tmp_path):
    def open_bytes(data: bytes, salvage: bool = True) -> gs.Recording:
        path = tmp_path / "a.gscope"
        path.write_bytes(data)
        return gs.load(path, salvage=salvage)

    return open_bytes


def use(recording: gs.Recording, folder: Path) -> None:
    """Everything that a user asks of a recording works."""
    str(recording.key_averages().table())
    str(recording.tree())
    str(recording.audit())
    list(recording.events())
    if recording.trace.info.get("session.mode") != "aggregate":
        recording.export_chrome_trace(folder / "a.json")
        recording.export_perfetto(folder / "a.pftrace")
    recording.save(folder / "again.gscope")
    gs.load(folder / "again.gscope")


def without(*lost: str) -> bytes:
    """The training recording without the blocks of these tables."""
    blocks = gscope_blocks(training_tables(), info=INFO)
    names = ["contents", *(block.name for block in blocks), "end"]
    kept = zip(names, numbered_blocks(blocks), strict=True)
    return file_header() + b"".join(data for name, data in kept if name not in lost)


def test_a_damaged_file_says_that_it_can_be_salvaged(opened):
    damaged = bytearray(WHOLE)
    damaged[len(WHOLE) // 2] ^= 1
    with pytest.raises(CorruptTrace, match=r"damaged at byte \d+; gpuscope.load\(path, salvage=True\) and the option"):
        opened(damaged, salvage=False)


def test_a_flipped_bit_costs_one_block(opened):
    damaged = bytearray(WHOLE)
    damaged[WHOLE.index(b"\x06memcpy", len(WHOLE) // 2) + 100] ^= 1
    recording = opened(damaged)
    assert len(recording.trace.memcpy) == 0
    assert len(recording.trace.kernels) == 2
    assert recording.trace.info["file.lost_blocks"] == "1"
    assert "1 block of the file was damaged; lost with it are 1 of 1 rows of memcpy" in recording.audit().verdict
    assert not recording.audit().complete


def test_references_to_lost_rows_become_none(opened):
    recording = opened(without("region"))
    assert recording.trace.kernels.region.tolist() == [NONE, NONE]
    assert "7 references to lost rows are none now" in recording.audit().verdict


def test_rows_that_need_a_lost_one_are_lost_too(opened):
    recording = opened(without("variant"))
    assert len(recording.trace.kernels) == 0
    assert "2 of 2 rows of kernel, 2 of 2 rows of variant" in recording.audit().verdict


def test_lost_names_say_so(opened):
    recording = opened(without("string"))
    assert [recording.trace.string(name) for name in recording.trace.paths.name] == ["(lost)", "(lost)"]
    assert len(recording.trace.kernels) == 2


def test_lost_parents_make_paths_begin_at_the_top(opened):
    tables = {
        "path": {"name": ["train", "forward"], "parent": [NONE, 0]},
        "thread": {"system_id": [1]},
        "region": {"start_ns": [1, 2], "duration_ns": [9, 3], "parent": [NONE, 0], "path": [0, 1]},
    }
    strings, _, *rest = gscope_blocks(tables)
    first, second = (
        table_block("path", {"name": np.array([name], "u4"), "parent": np.array([parent], "u4"), "depth": depth}, row)
        for row, (name, parent, depth) in enumerate([(1, NONE, np.array([0], "u4")), (2, 0, np.array([1], "u4"))])
    )
    numbered = numbered_blocks([strings, first, second, *rest])
    recording = opened(file_header() + b"".join(numbered[:2] + numbered[3:]))
    assert recording.trace.store.path_texts() == ["forward"]
    assert recording.trace.regions.start_ns.tolist() == [2]
    assert recording.trace.regions.parent.tolist() == [NONE]


def test_histograms_that_lack_bins_are_forgotten(opened):
    tables = {
        "path": {"name": ["step"]},
        "region_total": {"path": [0], "histogram": [0], "count": [2], "total_ns": [30], "min_ns": [9], "max_ns": [21]},
        "histogram": {"histogram": [0, 0], "bin": [9, 21], "count": [1, 1]},
    }
    blocks = gscope_blocks(tables, info={"session.mode": "aggregate"})
    numbered = numbered_blocks(blocks)
    at = 1 + next(place for place, block in enumerate(blocks) if block.name == "histogram")
    recording = opened(file_header() + b"".join(numbered[:at] + numbered[at + 1 :]))
    assert recording.trace.region_totals.histogram.tolist() == [NONE]


@pytest.mark.parametrize("lost", [(), ("contents",), ("end",), ("contents", "end"), ("info", "region")])
def test_either_contents_say_what_is_lost(opened, tmp_path, lost):
    recording = opened(without("kernel", *lost))
    expected = "2 of 2 rows of kernel" if len({"contents", "end"} & set(lost)) < 2 else "cut off at byte"
    assert expected in recording.audit().verdict
    use(recording, tmp_path)


def test_rows_that_the_contents_alone_have_are_said_to_be_lost(opened, tmp_path):
    blocks = gscope_blocks(training_tables(), info=INFO)
    contents = contents_of([*blocks, Block(2, 3, name="kernel")])
    numbered = [block.numbered(number) for number, block in enumerate([contents, *blocks, contents])]
    recording = opened(file_header() + b"".join(numbered))
    assert "3 of 5 rows of kernel" in recording.audit().verdict
    use(recording, tmp_path)


def test_nothing_is_lost_of_a_whole_file(opened):
    assert opened(WHOLE).audit().complete
    assert not [key for key in opened(WHOLE).trace.info if key.startswith("file.")]


def test_blocks_between_other_bytes_are_found(opened):
    blocks = numbered_blocks(gscope_blocks(training_tables(), info=INFO))
    recording = opened(file_header() + b"noise, GBLK and all".join(blocks))
    assert len(recording.trace.kernels) == 2
    assert recording.audit().complete


def test_the_files_header_may_be_damaged(opened):
    with pytest.raises(CorruptTrace, match=r"header is damaged at byte 0; gpuscope.load"):
        opened(b"\x00" + WHOLE[1:], salvage=False)
    assert opened(bytes(16) + WHOLE[16:]).audit().complete


def test_other_files_cannot_be_salvaged(opened):
    with pytest.raises(CorruptTrace, match=r"this is no \.gscope file"):
        opened(b"PK\x03\x04 a zip file")


def test_a_block_that_stands_twice_is_read_once(opened):
    contents, *blocks = numbered_blocks(gscope_blocks(training_tables(), info=INFO))
    twice = file_header() + contents + b"".join(block + block for block in blocks)
    with pytest.raises(CorruptTrace, match="block 1 stands where block 2 belongs"):
        opened(twice, salvage=False)
    assert len(opened(twice).trace.kernels) == 2


@pytest.mark.parametrize("salvage", [False, True])
def test_a_file_cut_at_any_byte_opens_as_far_as_it_goes(opened, tmp_path, salvage):
    rows = 0
    for length in range(16, len(WHOLE)):
        recording = opened(WHOLE[:length], salvage)
        assert not recording.audit().complete
        now = sum(recording.trace.store.rows(table) for table in recording.trace.store.tables() if table != "info")
        assert now >= rows
        if now > rows:
            use(recording, tmp_path)
        rows = now
    assert rows == 18


@IN_MEMORY
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_whatever_is_salvaged_works(opened, tmp_path, flips):
    damaged = bytearray(WHOLE)
    for at, flip in flips:
        damaged[at] ^= flip
    use(opened(bytes(damaged)), tmp_path)


@IN_MEMORY
@given(st.data())
def test_wrong_blocks_with_right_checksums_are_refused_or_work(opened, tmp_path, data):
    blocks = gscope_blocks(training_tables(), info=INFO)
    at = data.draw(st.integers(0, len(blocks) - 1))
    payload = bytearray(blocks[at].payload)
    place = data.draw(st.integers(0, max(0, len(payload) // 8 - 1))) * 8
    payload[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))
    rows = data.draw(st.sampled_from([blocks[at].rows, 1, 2**32 - 1]))
    blocks[at] = blocks[at]._replace(payload=bytes(payload), rows=rows)
    for salvage in (False, True):
        try:
            recording = opened(file_of(*blocks), salvage)
        except CorruptTrace:
            continue
        use(recording, tmp_path)


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize(
    "columns", [b"", b"\x00\x08start_ns", b"\x08\x06colour"], ids=["none", "of no width", "too long"]
)
def test_rows_without_bytes_take_no_memory(opened, salvage, columns):
    rows = 3_000_000_000
    empty = Block(2, rows, b"\x06kernel" + columns, b"", 0, "kernel")
    data = file_of(strings_block([""]), empty)
    before = resident_kib()
    if salvage:
        assert len(opened(data).trace.kernels) == 0
    else:
        with pytest.raises(CorruptTrace, match=r"list of columns is damaged|a column is longer than its block"):
            opened(data, salvage=False)
    assert resident_kib() - before < 20_000


def resident_kib() -> int:
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])


def test_contents_that_promise_billions_take_no_memory(opened):
    blocks = gscope_blocks(training_tables())
    promise = contents_block({"string": 2**63, "kernel": 2**64 - 1})
    numbered = [block.numbered(number) for number, block in enumerate([promise, *blocks, promise])]
    with pytest.raises(CorruptTrace, match="the file holds other rows than its contents say: string"):
        opened(file_header() + b"".join(numbered), salvage=False)


@pytest.mark.parametrize(
    ("table", "column", "values", "words"),
    [
        ("region", "parent", [1, 0], "which it is an ancestor of"),
        ("path", "parent", [1, NONE], "which does not stand before it"),
        ("kernel", "region", [7, 1], "row 0 of kernel has region 7, of 2"),
        ("mark", "name", [4_000], "row 0 of mark has name 4000, of"),
        ("memcpy", "bytes", [2**64 - 1], "which is no size"),
        ("kernel", "duration_ns", [2**61, 2**61], "more than can be added"),
        ("api", "duration_ns", [2**63 - 1, 0, 0], "which is no time"),
    ],
)
def test_what_readers_could_not_bear_is_refused(opened, table, column, values, words):
    tables = training_tables()
    tables["path"]["depth"] = [0, 1]
    tables[table][column] = values
    for salvage in (False, True):
        with pytest.raises(CorruptTrace, match=words):
            opened(gscope_bytes(tables), salvage)


def test_facts_of_any_text_are_harmless(opened, tmp_path):
    info = {
        **{f"session.{name}": "9" * 5000 for name in ("start_ns", "stop_ns", "recorded_ns")},
        "audit.dropped": "9" * 400,
        "audit.overhead_ns": "١٢",
        "file.lost_rows": "kernel 99999999999999999999 1\nno numbers",
        "file.lost_blocks": "many",
    }
    use(opened(gscope_bytes(training_tables(), info=info)), tmp_path)


def test_headers_that_lie_about_their_length_are_passed_over(opened):
    lie = Block(2, 1, b"", bytes(8)).numbered(1)[:40]  # whole, but each says that its block reaches beyond the file
    data = file_header() + contents_of([]).numbered(0) + lie * 20_000
    assert "file.truncated_at" in opened(data[:-8]).trace.info


@pytest.mark.parametrize("salvage", [1, "yes", None])
def test_salvage_is_a_bool(opened, salvage):
    with pytest.raises(InvalidArgument, match="salvage is"):
        opened(WHOLE, salvage)


@pytest.mark.parametrize("name", ["training", "aggregate", "memory", "program", "devices"])
def test_the_fuzzers_recordings_open(name, tmp_path):
    path = Path(__file__).parents[2] / "golden" / "gscope" / f"{name}.gscope"
    use(gs.load(path), tmp_path)
