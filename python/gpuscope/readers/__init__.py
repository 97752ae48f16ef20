# SPDX-License-Identifier: Apache-2.0
"""Recordings of other profilers, as recordings of ours."""

from __future__ import annotations
