# SPDX-License-Identifier: Apache-2.0
"""How sizes read."""

from __future__ import annotations

import pytest

from gpuscope.memory.sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (-20 << 20, "-20.0 MiB"),
        (3 << 29, "1.50 GiB"),
        (1 << 60, "1048576 TiB"),
        (1023 << 20, "1.00 GiB"),
    ],
)
def test_sizes_read_in_binary_units(size, text):
    assert size_text(size) == text


def test_a_change_shows_its_sign():
    assert size_text(2048, signed=True) == "+2.00 KiB"
    assert size_text(0, signed=True) == "0 B"
