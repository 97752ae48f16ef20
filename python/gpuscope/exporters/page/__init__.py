# SPDX-License-Identifier: Apache-2.0
"""Recordings and histories as interactive HTML pages: a file each, with its template, styles and scripts."""
