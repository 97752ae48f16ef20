# SPDX-License-Identifier: Apache-2.0
"""Every GPU at a moment, of what NVML is said to have told."""

from __future__ import annotations

import json
import os

import pytest

import gpuscope as gs
from fakes.machines import OTHERS, gpu
from gpuscope import _core
from gpuscope.errors import GpuscopeWarning, InvalidArgument
from gpuscope.monitor import GpuState


@pytest.fixture
def shows(monkeypatch):
    """A function that makes NVML show these GPUs, and gives the snapshot of them."""

    def show(*gpus, why=""):
        monkeypatch.setattr(_core, "gpu_states", lambda: {"driver_version": "580.1", "gpus": [*gpus], "why": why})
        return gs.gpu_snapshot()

    return show


def test_the_core_and_the_type_know_the_same_figures():
    facts = {*gpu()} - {"figures"}
    assert {*_core.GPU_FIGURES} == {*GpuState.__dataclass_fields__} - facts


def test_a_snapshot_is_a_sequence_of_typed_states(shows):
    snapshot = shows(gpu(0), gpu(1, temperature_c=50.0))
    assert [state.index for state in snapshot] == [0, 1]
    assert (len(snapshot), snapshot[1].temperature_c) == (2, 50.0)
    assert snapshot[0].throttled_s == {"sw_power_cap": 1.5}


def test_a_snapshot_is_read_as_scripts_read_nvidia_smi(shows):
    state = shows(gpu())[0]
    assert state["gpu_util_pct"] == pytest.approx(99)
    assert state["mem_util_pct"] == pytest.approx(25)
    assert (state["mem_used_mb"], state["mem_total_mb"]) == (61 * 1024, 80 * 1024)
    assert (state["temp_c"], state["power_w"], state["index"]) == (67, 612.4, 0)
    assert {"index", "name", "gpu_util_pct", "power_w"} < {*state.keys()}


def test_a_key_that_is_none_is_refused_in_one_sentence(shows):
    with pytest.raises(InvalidArgument, match="key is 'power'; accepted are gpu_util_pct"):
        shows(gpu())[0]["power"]


def test_absent_figures_are_none_with_the_reason_and_no_zero(shows):
    state = shows(gpu(busy_ratio=None, power_w=None, why={"busy_ratio": "Not Supported"}))[0]
    assert (state.busy_ratio, state["gpu_util_pct"], state.power_w) == (None, None, None)
    assert state.why["busy_ratio"] == "Not Supported"


def test_the_text_has_a_line_for_each_gpu(shows):
    lines = str(shows(gpu(0), gpu(1))).splitlines()
    assert len(lines) == 4
    assert " ".join(lines[2].split()) == "0 H100 80GB HBM3 99 % 61.0/80.0 GiB 612/700 W 67 C 1755/1980 MHz"


def test_the_text_fits_80_columns_whatever_names_and_reasons_are_long(shows):
    snapshot = shows(
        gpu(7, name="NVIDIA " + "very long name " * 9, why=dict.fromkeys(OTHERS, "because " * 30)),
        gpu(8, processes=[(os.getpid(), 1 << 36), (4_000_000, None)]),
    )
    assert max(map(len, str(snapshot).splitlines())) <= 80


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"throttle_faults": ["sw_power_cap"]}, "held back now: sw_power_cap"),
        ({"power_limit_w": 400.0}, "its power limit is 400 W, its default 700 W"),
        ({"pcie_width": 4}, "link to the host has 4 of 16 lanes"),
        ({"remapping_pending": True}, "wait to be replaced: reset it"),
        ({"remapping_failed": True}, "could not be replaced"),
        ({"ecc_uncorrected": 3}, "3 errors of its memory could not be corrected"),
        ({"mig": True}, "split into instances"),
        ({"why": {"fan_ratio": "Not Supported", "mig": "Not Supported"}}, "not known: fan_ratio, mig (Not Supported)"),
    ],
)
def test_the_text_says_what_asks_for_action(shows, facts, said):
    assert said not in str(shows(gpu()))
    assert said in str(shows(gpu(**facts))).replace("\n ", "")


def test_processes_have_their_command_and_user(shows):
    snapshot = shows(gpu(processes=[(os.getpid(), 1 << 30), (2**22 + 1, None)]))
    own, foreign = snapshot[0].processes
    assert "python" in own.command
    assert own.user
    assert (foreign.command, foreign.user, foreign.memory_bytes) == (None, None, None)
    assert "1.00 GiB" in str(snapshot)
    assert "not to be seen from here" in str(snapshot)


def test_without_a_gpu_the_text_says_why(shows):
    assert str(shows(why="libnvidia-ml was not found")).endswith("no GPU: libnvidia-ml was not found")


@pytest.mark.parametrize("index", [0, -1])
def test_an_index_without_a_gpu_is_an_index_error_with_the_reason(shows, index):
    with pytest.raises(IndexError, match=r"^gpu_snapshot\(\) has no GPU: libnvidia-ml was not found$"):
        shows(why="libnvidia-ml was not found")[index]


def test_a_loop_without_a_gpu_warns_with_the_reason_at_its_own_line(shows):
    snapshot = shows(why="libnvidia-ml was not found")
    with pytest.warns(GpuscopeWarning, match="has no GPU: libnvidia-ml was not found") as warned:
        assert [*snapshot] == []
    assert [warning.filename for warning in warned] == [__file__]


def test_a_loop_over_gpus_does_not_warn(shows, recwarn):
    assert [state.index for state in shows(gpu())] == [0]
    assert not recwarn


@pytest.mark.parametrize(
    "use", [len, bool, str, repr, lambda one: one.to_dict(), lambda one: one.to_json(), lambda one: one[:1]]
)
def test_what_is_no_loop_does_not_warn_without_a_gpu(shows, recwarn, use):
    use(shows(why="libnvidia-ml was not found"))
    assert not recwarn


def test_the_text_has_encoder_decoder_and_bar1(shows):
    facts = {"encoder_busy_ratio": 0.31, "decoder_busy_ratio": 0.0, "jpeg_busy_ratio": 0.0}
    text = str(shows(gpu(**facts, bar1_used_bytes=2 << 20, bar1_total_bytes=128 << 30)))
    assert "GPU 0: encoder 31 %, decoder 0 %, BAR1 2.00 MiB of 128 GiB" in text


def test_a_snapshot_is_json(shows):
    facts = json.loads(shows(gpu(processes=[(1, None)])).to_json())
    assert facts["gpus"][0]["memory_used_bytes"] == 61 << 30
    assert facts["gpus"][0]["fan_ratio"] is None


def test_names_have_no_control_characters(shows):
    assert "\x1b" not in str(shows(gpu(name="\x1b[31mGPU", why={"mig": "\x1b[31m"})))
