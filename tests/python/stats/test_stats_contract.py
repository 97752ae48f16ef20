# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from gpuscope import stats
from gpuscope.errors import InvalidArgument


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [[1.0, 2.0]], ["a"]])
@pytest.mark.parametrize("function", [stats.estimate, stats.trend, stats.modes, stats.autocorrelation_time])
def test_bad_samples_get_one_sentence(function, bad):
    with pytest.raises(InvalidArgument, match=r"^samples .*; accepted "):
        function(bad)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_samples_never_give_a_narrow_interval(n):
    found = stats.estimate(np.linspace(1, 2, n))
    assert found.relative_half_width == math.inf
