# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows of a recording: lines that fit, the columns that matter, bars of shares."""

from __future__ import annotations

import pytest

from fakes.gscope import NONE, gscope_bytes
from fakes.recordings import cpu_only, training
from gpuscope.analysis import key_averages, tree
from gpuscope.analysis.averages import outside_every_region
from gpuscope.analysis.terminal import averages_lines, overview, text_of, tree_table
from gpuscope.errors import InvalidArgument
from gpuscope.recording import Recording, load
from gpuscope.text import columns_of, file_names, shorten, shorten_apart

LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::{}Functor<float>, std::array<char*, 2ul> >(int)"
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_{}<float>, char*>(int, char*)"


def regions(tmp_path, names, durations=None, starts=None, **info):
    """A recording of 1 us with a region of each name, one after the other on one thread."""
    durations = durations or [100] * len(names)
    starts = starts or [1000 + 100 * at for at in range(len(names))]
    tables = {
        "path": {"name": names, "parent": [NONE] * len(names)},
        "thread": {"system_id": [1]},
        "region": {
            "start_ns": starts,
            "duration_ns": durations,
            "path": list(range(len(names))),
            "parent": [NONE] * len(names),
        },
    }
    path = tmp_path / "regions.gscope"
    facts = {"session.start_ns": "1000", "session.stop_ns": "2000", "session.tier": "cpu", **info}
    path.write_bytes(gscope_bytes(tables, info=facts))
    return load(path).trace


def kernels(tmp_path, names):
    """A recording of a kernel of each name."""
    tables = {
        "variant": {"name": names},
        "track": {"stream": [7]},
        "kernel": {
            "start_ns": [1000 + 100 * at for at in range(len(names))],
            "duration_ns": [50 - at for at in range(len(names))],
            "variant": list(range(len(names))),
            "track": [0] * len(names),
        },
    }
    path = tmp_path / "kernels.gscope"
    path.write_bytes(gscope_bytes(tables, info={"session.tier": "cupti"}))
    return load(path).trace


def table(trace, width, **options):
    return text_of(averages_lines(trace, key_averages(trace), width, **options)).splitlines()


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200, 500])
@pytest.mark.parametrize("make", [training, cpu_only])
def test_every_line_fits(make, width, unicode):
    trace = make()
    lines = averages_lines(trace, key_averages(trace), width, unicode=unicode)
    lines += tree_table(tree(trace), width, unicode=unicode)
    text = text_of(lines)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii() or unicode


def test_wider_terminals_have_what_narrower_ones_have_and_more():
    columns = [{*table(training(), width)[0].split()} for width in (40, 80, 120, 200)]
    assert columns[0] < columns[1] < columns[2] < columns[3]
    assert {"Name", "GPU", "total", "share"} <= columns[0]


def test_on_the_cpu_alone_no_line_is_about_gpus():
    text = overview(cpu_only(), 80)
    assert not any(word in text for word in ("GPU", "CUDA", "NVIDIA"))


def test_names_keep_both_ends(tmp_path):
    names = [f"{'begin' * 20}_{end}" for end in ("one", "two")]
    lines = table(regions(tmp_path, names), 60)[1:3]
    assert {line.split()[0][-4:] for line in lines} == {"_one", "_two"}
    assert all(line.startswith("begin") for line in lines)


def test_of_kernels_what_tells_them_apart_is_kept(tmp_path):
    trace = kernels(tmp_path, [KERNEL.format("add"), KERNEL.format("mul")])
    names = [line.split()[0] for line in table(trace, 80) if line.startswith("at::")]
    assert [name.endswith(f"_{what}<float>,") for name, what in zip(names, ("add", "mul"), strict=True)]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_names_that_differ_in_the_middle_alone_look_different(tmp_path, width):
    what = ["Mul", "Add", "Clamp", "ClampMin"]
    names = [line[:30] for line in table(kernels(tmp_path, [LONG.format(each) for each in what]), width)[1:5]]
    assert len(set(names)) == len(what)
    assert all(name.startswith("at") for name in names)


def test_kernels_that_differ_in_what_they_take_alone_look_different(tmp_path):
    names = table(kernels(tmp_path, [f"void {'long_name' * 9}<float>({kind})" for kind in ("int", "char")]), 80)[1:3]
    assert names[0][:30] != names[1][:30]


def test_mangled_names_are_shown_as_their_source_has_them(tmp_path):
    assert table(kernels(tmp_path, ["_ZN5space6kernelILi4EEEvPf"]), 80)[1].startswith("void space::kernel<4>(float*)")


@pytest.mark.parametrize("name", ["卷积" * 30, "e\u0301" * 100, "x" * 300, "\x1b[31mred" * 20])
def test_odd_names_neither_break_the_columns_nor_reach_the_terminal(tmp_path, name):
    lines = table(regions(tmp_path, [name, "plain"]), 80)
    assert "\x1b" not in "".join(lines)
    ends = {columns_of(line) for line in lines if "%" in line}
    assert len(ends) == 1
    assert ends <= {*range(81)}


def test_the_bar_and_the_share_say_the_same(tmp_path):
    trace = regions(tmp_path, ["half", "rest"], durations=[500, 250], starts=[1000, 1500])
    rows = {line.split()[0]: line for line in table(trace, 80)}
    assert "████     " in rows["half"]
    assert " 50.0 %" in rows["half"]
    assert "██       " in rows["rest"]
    plain = {line.split()[0]: line for line in table(trace, 80, unicode=False)}
    assert "####     " in plain["half"]


def test_time_outside_regions_has_a_row_of_its_own(tmp_path):
    trace = regions(tmp_path, ["a", "b"], durations=[300, 300], starts=[1100, 1200])
    outside = outside_every_region(trace)
    assert outside.cpu_time_total == pytest.approx(0.6)  # us, of 1: those in a and b at once count once
    (line,) = [line for line in table(trace, 80) if line.startswith("[outside every region]")]
    assert "600 ns" in line


def test_a_region_that_spans_the_recording_leaves_no_time_outside(tmp_path):
    assert outside_every_region(regions(tmp_path, ["a"], durations=[5000], starts=[500])) is None


PARTIAL = [
    {"audit.refused": "1"},
    {"audit.log_dropped": "1"},
    {"audit.regions_off": "1"},
    {"file.truncated_at": "100"},
]


@pytest.mark.parametrize("fact", PARTIAL, ids=[next(iter(fact)) for fact in PARTIAL])
def test_time_outside_is_not_known_where_regions_were_left_out(tmp_path, fact):
    assert outside_every_region(regions(tmp_path, ["a"], **fact)) is None


def test_time_outside_in_a_full_ring_is_since_its_first_row(tmp_path):
    trace = regions(tmp_path, ["a"], durations=[100], starts=[1800], **{"audit.evicted": "1"})
    assert outside_every_region(trace).cpu_time_total == pytest.approx(0.1)  # us, of the 0.2 behind the start of a


def test_rows_beyond_the_limit_are_counted(tmp_path):
    lines = table(regions(tmp_path, [f"r{at}" for at in range(9)]), 80, row_limit=3)
    assert len([line for line in lines if line.startswith("r")]) == 3
    assert "6 more rows: --row-limit 9" in lines[-1]


def test_the_column_that_sorts_is_always_there(tmp_path):
    trace = regions(tmp_path, ["short", "long"], durations=[10, 400], starts=[1000, 1100])
    heading, first, *_ = table(trace, 60, sort_by="p99")
    assert "p99" in heading
    assert first.startswith("long")


def test_without_gpu_work_rows_sorted_by_gpu_time_are_sorted_by_cpu_time_and_say_so(tmp_path):
    trace = regions(tmp_path, ["short", "long"], durations=[10, 400], starts=[1000, 1100])
    _, first, *facts = table(trace, 80, sort_by="cuda_time_total")
    assert first.startswith("long")
    assert "no GPU work was recorded: sorted by cpu_time_total" in " ".join(facts)


def test_torchs_names_of_other_devices_sort():
    assert table(training(), 80, sort_by="xpu_time_total") == table(training(), 80, sort_by="device_time_total")


def test_a_wrong_key_is_named():
    with pytest.raises(InvalidArgument, match="sort_by is 'speed'"):
        table(training(), 80, sort_by="speed")


def test_printing_a_recording_shows_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    text = str(Recording(training().store))
    assert text == overview(training(), 90)
    assert text.splitlines()[-1] == "audit: complete, 3 launches recorded, 1 graph launch, overhead 1.8 %"


def test_shortening_keeps_to_the_columns():
    for text in ("abcdefghij", "卷积卷积卷积卷积", "e\u0301e\u0301e\u0301"):
        for columns in range(1, 12):
            assert columns_of(shorten(text, columns)) <= columns
    assert shorten("abcdefghij", 7) == "abc…hij"
    assert shorten("abc", 3) == "abc"


@pytest.mark.parametrize("columns", range(2, 60))
def test_texts_that_are_shortened_together_keep_to_the_columns_and_differ_where_there_is_room(columns):
    texts = [f"{'begin' * 9}{middle}{'end' * 20}" for middle in ("卷积", "one", "two", "twelve")]
    short = shorten_apart(texts, columns)
    assert all(columns_of(text) <= columns for text in short.values())
    assert len(set(short.values())) == len(texts) or columns < 20


def test_files_are_named_by_as_many_folders_as_tell_them_apart():
    paths = ["/a/utils/__init__.py", "/a/train.py", "/b/train.py", "C:\\work\\main.py", "<string>", "run.py", "/run.py"]
    assert list(file_names(paths).values()) == [
        "utils/__init__.py",
        "a/train.py",
        "b/train.py",
        "main.py",
        "<string>",
        "run.py",
        "/run.py",
    ]


@pytest.mark.parametrize("columns", range(2, 12))
def test_a_shortened_name_keeps_marks_on_their_letters(columns):
    short = shorten("e\u0301" * 20, columns)
    assert columns_of(short) == columns
    assert short.replace("e\u0301", "") in ("\u2026", "e\u2026", "\u2026e")
