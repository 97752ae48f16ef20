# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle

import pytest

from fakes.gscope import NONE, make_store
from fakes.versions import version
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.recording import Recording

US = 1000


def recording(**tables):
    return Recording(make_store(tables))


@pytest.fixture
def training():
    """Region step (100 us) around forward (60 us), which launches two kernels of 30 us; step launches one of 20 us."""
    return recording(
        path={"parent": [NONE, 0], "name": ["step", "forward;2"]},
        region={
            "start_ns": [0, 10 * US],
            "duration_ns": [100 * US, 60 * US],
            "parent": [NONE, 0],
            "path": [0, 1],
            "thread": [0, 0],
            "flags": [0, 0],
        },
        thread={"system_id": [1], "name": ["main"], "flags": [0]},
        track={"device": [0], "context": [1], "stream": [7]},
        variant={"name": ["gemm", "relu"]},
        kernel={
            "start_ns": [20 * US, 60 * US, 120 * US],
            "duration_ns": [30 * US, 30 * US, 20 * US],
            "correlation": [1, 2, 3],
            "variant": [0, 0, 1],
            "region": [1, 1, 0],
            "track": [0, 0, 0],
            "flags": [0, 0, 0],
        },
    )


def stacks(recording, path, *metric):
    recording.export_stacks(path, *metric)
    return sorted(path.read_text().splitlines())


def test_stacks_weigh_regions_by_their_own_cpu_time(training, tmp_path):
    assert stacks(training, tmp_path / "stacks.txt") == ["step 40", "step;forward:2 60"]


@pytest.mark.parametrize(
    "metric", ["self_device_time_total", "self_cuda_time_total", "self_xpu_time_total", "self_privateuse1_time_total"]
)
def test_stacks_weigh_kernels_by_their_gpu_time(training, tmp_path, metric):
    assert stacks(training, tmp_path / "stacks.txt", metric) == ["step;forward:2;gemm 60", "step;relu 20"]


def test_an_unknown_metric_is_named_and_nothing_is_written(training, tmp_path):
    with pytest.raises(InvalidArgument, match="metric is 'time'; accepted are 'self_cpu_time_total'"):
        training.export_stacks(tmp_path / "stacks.txt", "time")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named(training, tmp_path):
    with pytest.raises(GpuscopeError, match="missing"):
        training.export_stacks(tmp_path / "missing" / "stacks.txt")


def test_an_empty_recording_gives_no_stacks(tmp_path):
    assert stacks(recording(), tmp_path / "stacks.txt") == []


def test_the_table_is_that_of_the_averages(training):
    assert training.table(row_limit=1) == training.key_averages().table(row_limit=1)


def test_every_analysis_sees_the_same_recording(training):
    assert {row.key for row in training.key_averages()} >= {"step", "gemm", "relu"}
    assert training.tree().find("relu").device_ns == 20 * US
    assert len(training.trace.kernels) == 3
    assert training.audit().kernels == 0
    assert any(event.name == "gemm" for event in training.events())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda recording: pickle.loads(pickle.dumps(recording))])
def test_recordings_can_be_copied(training, again):
    assert again(training).key_averages().table() == training.key_averages().table()


def test_metadata_of_the_program_is_in_the_text():
    info = {"metadata.model": '"large"', "metadata.sizes": "[1, 2]", "metadata.with_stack": "1"}
    assert "\nmetadata: model: large, sizes: [1, 2]\n" in str(version({"gemm": 1e6}, info=info))
