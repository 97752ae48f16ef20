# SPDX-License-Identifier: Apache-2.0
"""Interactive HTML pages that need nothing but a browser: one a file, its template, styles and scripts beside it."""
