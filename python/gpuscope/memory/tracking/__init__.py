# SPDX-License-Identifier: Apache-2.0
"""What a program had at its stages, and the peaks inside them."""

from __future__ import annotations
