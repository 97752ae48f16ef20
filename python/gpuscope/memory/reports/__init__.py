# SPDX-License-Identifier: Apache-2.0
"""Having allocators and the driver tell what they hand out and take back."""

from __future__ import annotations
