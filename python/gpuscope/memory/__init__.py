# SPDX-License-Identifier: Apache-2.0
"""Where a process's memory goes: on the GPU, of all libraries, and on the host."""
