# SPDX-License-Identifier: Apache-2.0
"""Recordings and histories as interactive HTML pages: one a file, its template, styles and scripts beside it."""
