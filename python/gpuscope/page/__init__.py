# SPDX-License-Identifier: Apache-2.0
"""The core of HTML pages that need nothing but a browser: parts of templates, styles, and modules on a canvas."""
