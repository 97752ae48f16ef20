# SPDX-License-Identifier: Apache-2.0
"""Adapters for torch, CuPy, JAX and other libraries. An adapter does not import its library."""
