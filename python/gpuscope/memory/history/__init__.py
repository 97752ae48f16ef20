# SPDX-License-Identifier: Apache-2.0
"""Allocations and frees over time: events, peaks, leaks and the objects that hold memory."""
