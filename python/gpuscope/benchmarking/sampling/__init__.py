# SPDX-License-Identifier: Apache-2.0
"""Calls of functions under control, and the time of every single one."""

from __future__ import annotations
