# SPDX-License-Identifier: Apache-2.0
"""Files of memory snapshots, in PyTorch's format."""

from __future__ import annotations
