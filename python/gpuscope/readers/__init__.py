# SPDX-License-Identifier: Apache-2.0
"""Readers that convert recordings of other profilers to gpuscope's."""

from __future__ import annotations
