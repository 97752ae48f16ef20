# SPDX-License-Identifier: Apache-2.0
"""What training and inference are measured by: throughput, latency, and loading of data."""

from __future__ import annotations
