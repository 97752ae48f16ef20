# SPDX-License-Identifier: Apache-2.0
"""GPU profiling and benchmarking."""

from __future__ import annotations
