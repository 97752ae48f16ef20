# SPDX-License-Identifier: Apache-2.0
"""Readers of recordings: gpuscope's own files, and those of other profilers, which they convert."""

from __future__ import annotations
