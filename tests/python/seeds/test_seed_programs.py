# SPDX-License-Identifier: Apache-2.0
"""Programs written for torch.profiler run with only their import changed, on a machine without a GPU too."""

from __future__ import annotations

import warnings

import pytest

from fakes import seeds

pytest.importorskip("torch")


@pytest.fixture
def run(tmp_path, monkeypatch):
    return lambda program: seeds.run(program, "cpu", tmp_path, monkeypatch)


@pytest.mark.parametrize("everywhere", [False, True], ids=["import only", "every mention"])
@pytest.mark.parametrize("name", seeds.ANYWHERE)
def test_a_program_runs_and_leaves_a_complete_recording(run, name, everywhere, capsys):
    prof = run(seeds.changed(seeds.ANYWHERE[name], everywhere)).get("prof")
    if prof is None:  # it keeps its profiler to itself
        assert "likely memory-bound" in capsys.readouterr().out
        return
    assert type(prof).__module__.startswith("gpuscope")
    assert prof.audit().complete
    prof.key_averages().table(sort_by="cuda_time_total")


# torch.profiler refuses to watch CUDA alone where there is none.
RUN_BY_TORCH = [name for name, program in seeds.ANYWHERE.items() if "activities=[ProfilerActivity.CUDA]" not in program]


@pytest.mark.parametrize("name", RUN_BY_TORCH)
def test_a_program_prints_its_tables_where_torch_prints_them(run, name, capsys):
    printed = []
    for program in (seeds.ANYWHERE[name], seeds.changed(seeds.ANYWHERE[name])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that there is no CUDA
            run(program)
        printed.append(capsys.readouterr().out.count("CPU total %"))
    assert printed[0] == printed[1]


def test_the_region_of_a_program_is_a_row_of_its_table(run, capsys):
    prof = run(seeds.changed(seeds.MATRIX_PRODUCT))["prof"]
    assert "my_matmul" in capsys.readouterr().out
    row = next(row for row in prof.key_averages() if row.key == "my_matmul")
    assert row.count == 1
    assert row.cpu_time_total > 0
    assert row.cuda_time_total == 0
    assert row.cuda_memory_usage == 0


def test_the_operators_of_a_program_are_rows_of_its_table(run):
    prof = run(seeds.changed(seeds.EVALUATION_AND_TRAINING))["prof"]
    assert {"aten::conv2d", "aten::relu", "aten::linear"} <= {row.key for row in prof.key_averages()}


def test_a_schedule_records_the_steps_that_it_names(run):
    prof = run(seeds.changed(seeds.A_FEW_ITERATIONS))["prof"]
    steps = {event.trace_name for event in prof.events() if event.name == "ProfilerStep*"}
    assert steps == {"ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"}
    assert [row.count for row in prof.key_averages() if row.key == "ProfilerStep*"] == [3]
    assert prof.step_num == 10
