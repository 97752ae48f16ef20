# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

from fakes.gscope import NONE
from fakes.operators import training_step
from fakes.recordings import aggregate, make_trace, training
from gpuscope import _core
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.memory_timeline import CATEGORIES, export_memory_timeline, read_timeline
from gpuscope.exporters.page.memory import STEPS
from gpuscope.trace import Trace


def load(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)


def page_data(path):
    """Text and data of a page."""
    text = path.read_text()
    return text, json.loads(re.search(r'<script type="application/json" id="memory">(.*?)</script>', text)[1])


def many(count):
    return make_trace(
        {
            "thread": {"system_id": [1]},
            "allocation": {
                "start_ns": list(range(0, count * 100, 100)),
                "bytes": [1] * count,
                "address": list(range(count)),
                "region": [NONE] * count,
                "ordinal": [NONE] * count,
            },
        }
    )


def test_the_order_of_categories_is_torchs():
    profiler = pytest.importorskip("torch.profiler._memory_profiler")
    theirs = [category.name if category else "Unknown" for category in profiler._CATEGORY_TO_INDEX]
    assert list(CATEGORIES) == theirs
    assert (profiler.Action.PREEXISTING.value, profiler.Action.CREATE.value, profiler.Action.DESTROY.value) == (1, 2, 4)


@pytest.mark.parametrize("name", ["memory.json", "memory.json.gz"])
def test_json_has_times_in_us_and_sizes_by_category(tmp_path, name):
    export_memory_timeline(training_step(), tmp_path / name)
    times, sizes = load(tmp_path / name)
    assert times == [1007, 1045, 1046, 1200]
    assert [len(row) for row in sizes] == [1 + len(CATEGORIES)] * 4
    assert [sum(row) for row in sizes] == [1064, 1160, 1096, 1000]
    by_category = dict(zip(CATEGORIES, zip(*(row[1:] for row in sizes), strict=True), strict=True))
    assert by_category["ACTIVATION"] == (64, 64, 0, 0)
    assert by_category["GRADIENT"] == (0, 96, 96, 0)
    assert by_category["Unknown"] == (1000,) * 4  # from before the recording


@pytest.mark.parametrize(
    "options", [{"with_stack": True}, {"with_modules": True}, {}], ids=["stacks", "modules", "none"]
)
def test_a_training_on_the_cpu_is_told_apart(tmp_path, options):
    torch = pytest.importorskip("torch")
    import gpuscope

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.Adam(model.parameters())
    with gpuscope.profile(profile_memory=True, **options) as profiler:
        for _ in range(2):
            model(torch.randn(256, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    export_memory_timeline(profiler.trace, tmp_path / "memory.json", device="cpu")
    sizes = load(tmp_path / "memory.json")[1]
    most = dict(zip(CATEGORIES, (max(column) for column in list(zip(*sizes, strict=True))[1:]), strict=True))
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert weights <= most["GRADIENT"] <= weights + 64
    assert 2 * weights <= most["OPTIMIZER_STATE"] <= 2 * weights + 64
    # Both linear layers' outputs, GELU's, the squares: what waits for the backward.
    assert most["ACTIVATION"] >= 4 * 256 * (128 + 128 + 64)
    assert most["AUTOGRAD_DETAIL"] > 0


def test_what_is_taken_between_windows_is_unknown(tmp_path):
    def window(*rows):
        start, size, address, allocated = zip(*rows, strict=True)
        columns = {"start_ns": start, "bytes": size, "address": address, "allocated_bytes": allocated}
        more = {"region": [NONE] * len(rows), "ordinal": [0] * len(rows)}
        return make_trace({"thread": {"system_id": [1]}, "allocation": columns | more}).store

    first = window((1000, 100, 16, 100), (2000, 50, 32, 150))
    second = window((9000, 10, 144, 1110), (10_000, -10, 144, 1100))
    export_memory_timeline(Trace(_core.merge([first, second])), tmp_path / "memory.json")
    assert [sum(row) for row in load(tmp_path / "memory.json")[1]] == [100, 150, 1110, 1100]


def test_cuda_is_the_first_gpu_that_has_allocations():
    columns = {"start_ns": [0, 1, 2], "bytes": [8] * 3, "region": [NONE] * 3, "ordinal": [2, 1, NONE]}
    trace = make_trace({"thread": {"system_id": [1]}, "allocation": columns})
    assert read_timeline(trace, "cuda").device == "cuda:1"


def test_cuda_is_no_host():
    with pytest.raises(InvalidArgument, match="device is 'cuda'; the recording has allocations on cpu"):
        read_timeline(many(1), "cuda")


def test_changes_within_one_us_are_one_point(tmp_path):
    export_memory_timeline(many(25), tmp_path / "memory.json")
    times, sizes = load(tmp_path / "memory.json")
    assert (times, [row[-1] for row in sizes]) == ([0, 1, 2], [10, 20, 25])


def test_raw_has_every_allocation_in_ns(tmp_path):
    export_memory_timeline(training_step(), tmp_path / "memory.raw.json.gz", device="cuda:0")
    assert load(tmp_path / "memory.raw.json.gz") == [
        [-1, 1, 1000, 7],
        [1_007_000, 2, 64, 4],
        [1_045_000, 2, 96, 5],
        [1_046_000, 4, -64, 4],
        [1_200_000, 4, -96, 5],
    ]


def test_the_host_is_a_device_too(tmp_path):
    export_memory_timeline(training_step(), tmp_path / "memory.json", device="cpu")
    assert [sum(row) for row in load(tmp_path / "memory.json")[1]] == [4, 0]


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    export_memory_timeline(training_step(), tmp_path / "memory.html")
    page, data = page_data(tmp_path / "memory.html")
    assert "Memory of cuda:0" in page
    assert "1.13 KiB" in page
    assert "4.00 KiB" in page
    assert np.cumsum(data["used"]).tolist() == [1064, 1160, 1096, 1000]
    assert not re.search(r"https?:|<script src|<img|<link", page)


def test_the_page_shows_categories_one_upon_the_other(tmp_path):
    export_memory_timeline(training_step(), tmp_path / "memory.html")
    _, data = page_data(tmp_path / "memory.html")
    sizes = {group["name"]: np.cumsum(group["sizes"]).tolist() for group in data["views"]["category"]["groups"]}
    assert sizes == {
        "from before the history": [1000] * 4,
        "activation": [64, 64, 0, 0],
        "gradient": [0, 96, 96, 0],
    }


def test_the_page_shows_the_most_of_each_stretch_of_time(tmp_path):
    trace = many(10 * STEPS)
    export_memory_timeline(trace, tmp_path / "memory.html")
    page, data = page_data(tmp_path / "memory.html")
    assert len(data["used"]) <= STEPS + 1
    assert np.cumsum(data["used"])[-1] == 10 * STEPS
    assert f"{10 * STEPS / 1024:.1f} KiB" in page


def test_the_page_knows_regions_and_lines_of_a_recording(tmp_path):
    pytest.importorskip("torch")
    import torch

    import gpuscope

    with gpuscope.profile(profile_memory=True, with_stack=True) as profiler, gpuscope.record_function("forward"):
        kept = torch.ones(1 << 25)  # more than other tests have left behind
    export_memory_timeline(profiler.trace, tmp_path / "memory.html", device="cpu")
    _, data = page_data(tmp_path / "memory.html")
    most = {view: max(data["views"][view]["groups"], key=lambda group: sum(group["sizes"])) for view in data["views"]}
    assert most["region"]["name"] == "forward"
    assert "test_memory_timeline.py" in most["line"]["name"]
    assert sum(most["line"]["sizes"]) >= kept.nbytes


def test_one_allocation_alone_makes_a_page(tmp_path):
    export_memory_timeline(many(1), tmp_path / "memory.html")
    assert "1 B" in (tmp_path / "memory.html").read_text()


def test_without_allocations_the_option_is_named(tmp_path):
    with pytest.raises(NotAvailable, match="profile_memory=True"):
        export_memory_timeline(training(), tmp_path / "memory.html")
    assert not (tmp_path / "memory.html").exists()


def test_totals_alone_name_the_modes_that_have_allocations(tmp_path):
    with pytest.raises(NotAvailable, match="'full' and 'ring'"):
        export_memory_timeline(aggregate(), tmp_path / "memory.html")


@pytest.mark.parametrize("device", ["cuda:1", "xpu", "", 3])
def test_a_device_without_allocations_is_an_error(device):
    with pytest.raises(InvalidArgument, match="cuda:0, cpu"):
        read_timeline(training_step(), device)


def test_another_suffix_is_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match="html"):
        export_memory_timeline(training_step(), tmp_path / "memory.png")
