# SPDX-License-Identifier: Apache-2.0
"""Callbacks for training libraries, one module per library, which needs that library installed."""
