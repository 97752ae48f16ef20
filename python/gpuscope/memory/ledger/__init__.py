# SPDX-License-Identifier: Apache-2.0
"""Every byte that a process has on a GPU, by who took it."""

from __future__ import annotations
