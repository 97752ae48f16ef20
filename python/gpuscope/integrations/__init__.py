# SPDX-License-Identifier: Apache-2.0
"""torch's operators and its profiler, while a window is recorded."""
