# SPDX-License-Identifier: Apache-2.0
"""The limits of memory: the largest batch, and out-of-memory errors."""
