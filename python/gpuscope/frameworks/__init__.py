# SPDX-License-Identifier: Apache-2.0
"""What gpuscope knows of torch, CuPy, JAX and other libraries: one file for each, and none imports what it is about."""
