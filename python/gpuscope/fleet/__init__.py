# SPDX-License-Identifier: Apache-2.0
"""Jobs of many ranks: recordings of all processes become one set of tables, with one answer."""
