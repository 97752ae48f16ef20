# SPDX-License-Identifier: Apache-2.0
"""Callbacks of libraries that train: a module a library, imported where that library is installed."""
