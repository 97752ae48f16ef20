# SPDX-License-Identifier: Apache-2.0
"""What memory is for: of models by category, of all by library."""

from __future__ import annotations
