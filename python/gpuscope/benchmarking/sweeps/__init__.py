# SPDX-License-Identifier: Apache-2.0
"""Times over arguments, and where one function overtakes another."""

from __future__ import annotations
