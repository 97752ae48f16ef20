# SPDX-License-Identifier: Apache-2.0
"""``gpuscope bench`` and its explorer on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gpuscope.benchmarking.explorer import explore

SPIN = "from gpuscope import _core; kernels = _core.Kernels()"


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuscope", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def measured(*arguments: object) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bench(*arguments, "--json").stdout)
    return content


def test_an_expression_on_the_gpu_has_kernels_and_every_quantity():
    found = measured("-s", SPIN, "kernels.spin(10_000)")
    assert found["quantity"] in ("kernel", "stream")
    assert set(found["quantities"]) >= {"stream", "launch", "wall"}
    if found["quantity"] == "kernel":
        assert len(found["kernels"]) == 1


def test_hot_and_cold_are_told_apart():
    assert measured("-s", SPIN, "kernels.spin(10_000)")["cold"] is True
    assert measured("-s", SPIN, "kernels.spin(10_000)", "--hot")["cold"] is False


def test_a_longer_kernel_is_judged_slower():
    setup = ("-s", SPIN)
    done = bench(*setup, "kernels.spin(10_000)", "--compare", "kernels.spin(20_000)", "--budget", "3s")
    assert "x slower than kernels.spin(10_000)" in done.stdout


def test_a_stream_is_given_in_terms_of_the_setup():
    pytest.importorskip("torch")
    setup = "import torch; side = torch.cuda.Stream(); a = torch.ones(1 << 20, device='cuda')"
    expression = "with torch.cuda.stream(side):\n    b = a + a\nb"
    assert measured("-s", setup, expression, "--stream", "side")["quantity"] in ("kernel", "stream")


def test_a_graph_is_captured_and_replayed():
    pytest.importorskip("torch")
    setup = "import torch; a = torch.ones(1 << 20, device='cuda'); b = torch.empty_like(a)"
    found = measured("-s", setup, "torch.add(a, a, out=b)", "--graph")
    assert found["quantity"] in ("kernel", "stream")


def test_the_explorer_measures_all_sides_and_answers(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    found = explore(["matmul", "copy"], [64, 512, 2048], budget=10)
    assert found.gpu is not None
    assert {point.side for point in found.points} == {"cpu", "gpu", "gpu+transfers"}
    assert len(found.points) == 2 * 3 * 3
    assert len(found.crossovers) == 4
    assert found.remarks == ()
    found.write_html(tmp_path / "page.html")
    assert torch.cuda.get_device_name() in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_large_matrix_product_is_faster_on_the_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    found = explore(["matmul"], [64, 2048], budget=20)  # a loaded CPU needs many samples
    large = next(point for point in found.points if (point.n, point.side) == (2048, "gpu"))
    assert large.speedup is not None
    assert large.speedup.low > 1
