# SPDX-License-Identifier: Apache-2.0
"""What all libraries hold at one moment, and what changed between two."""

from __future__ import annotations
