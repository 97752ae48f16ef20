# SPDX-License-Identifier: Apache-2.0
"""Every operator that torch has samples of. `.ci/asan-torch` runs it under AddressSanitizer, which finds a look past an
object of torch's; without expecttest, which torch's samples import, it is skipped."""

from __future__ import annotations

import itertools
import warnings

import pytest

import gpuscope as gs

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

SAMPLES = 1
GROUPS = 16


def run(operators):
    """Calls each with its first samples and leaves out what this build of torch does not support; how many calls."""
    calls = 0
    for operator in operators:
        try:
            samples = list(itertools.islice(operator.sample_inputs("cpu", torch.float32), SAMPLES))
        except Exception:
            continue
        for sample in samples:
            try:
                with gs.record_function(operator.name):
                    operator(sample.input, *sample.args, **sample.kwargs)
                calls += 1
            except Exception:
                continue
    return calls


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_operator_is_recorded_with_its_arguments(group):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        operators = [operator for operator in op_db if operator.supports_dtype(torch.float32, "cpu")][group::GROUPS]
        with gs.profile(
            activities=[gs.ProfilerActivity.CPU], record_shapes=True, with_stack=True, with_flops=True
        ) as prof:
            calls = run(operators)
    assert prof.audit().complete
    rows = {row.key: row.count for row in prof.key_averages()}
    assert calls > len(operators) / 2
    assert sum(rows.get(name, 0) for name in {operator.name for operator in operators}) >= calls
    assert sum(1 for event in prof.events() if event.input_shapes) > calls
